"""Section 5 by brute force: learn one point more, look at the holdout again, and see which score foretold it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from goldiprox.analysis import spearman
from goldiprox.assessment import score
from goldiprox.data import TensorData, iterate
from goldiprox.data.corruption import Truth
from goldiprox.holdout import HoldoutConfig, train_holdout_model
from goldiprox.loop import Task, fit
from goldiprox.models import build
from goldiprox.paper import refit
from goldiprox.prepare import Prepared
from goldiprox.randomness import derive, shuffle

EVERY = 10


@dataclass(frozen=True)
class Sizes:
    """How large the brute-force study is.

    Attributes:
        holdout: Examples held out.
        points: Candidates that are learnt, each alone.
        test: Examples of the test set.
        seen: Sizes of D_t for logistic regression.
        steps: Steps of the network after which a step more is tried; multiples of ten.
        features: Principal components that logistic regression gets.
        learning_rate: Of the step more.
        holdout_epochs: At most, for the network on the holdout.
    """

    holdout: int = 2_000
    points: int = 200
    test: int = 1_000
    seen: tuple[int, ...] = (20, 60, 200, 600, 1_800)
    steps: tuple[int, ...] = (10, 30, 100, 300, 1_000)
    features: int = 20
    learning_rate: float = 1e-4
    holdout_epochs: int = 100


QUICK = Sizes(holdout=300, points=20, test=200, seen=(20, 200), steps=(10, 40), features=10, holdout_epochs=4)


@dataclass(frozen=True)
class Sides:
    """The ids that take part: what is held out, the candidates, what the model has seen, what is only scored."""

    holdout: np.ndarray
    points: np.ndarray
    pool: np.ndarray
    test: np.ndarray

    @classmethod
    def of(cls, prepared: Prepared, sizes: Sizes, seed: int) -> "Sides":
        def draw(ids: np.ndarray, purpose: str) -> np.ndarray:
            return shuffle(torch.as_tensor(ids), derive(purpose, seed)).numpy()

        train = draw(prepared.split.train, "brute-force points")
        holdout = draw(prepared.split.holdout, "brute-force holdout")[: sizes.holdout]
        test = draw(np.arange(len(prepared.test)), "brute-force test")[: sizes.test]
        return cls(holdout, train[: sizes.points], train[sizes.points :], test)


def study(prepared: Prepared, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Both ways to learn a point more: fitted again to the optimum, and one gradient step."""
    sides = Sides.of(prepared, sizes, seed)
    return {
        "refit": _refit_study(prepared, sides, sizes),
        "step": _step_study(prepared, sides, sizes, seed),
        "seen": [n / len(sides.holdout) for n in sizes.seen],
        "steps": list(sizes.steps),
    }


def _refit_study(prepared: Prepared, sides: Sides, sizes: Sizes) -> dict[str, Any]:
    num_classes = prepared.data.num_classes or 0
    make = _features(prepared.data, sides.holdout, sizes.features)
    holdout, points, pool = (make(prepared.data, ids) for ids in (sides.holdout, sides.points, sides.pool))
    test = make(prepared.test, sides.test)
    from_holdout = refit.fit(holdout, num_classes)
    irreducible = refit.losses(from_holdout, points)
    rows = []
    for size in sizes.seen:
        seen = pool[slice(0, size)]
        weights = refit.fit(seen, num_classes)
        several = refit.fit_with_each(weights, seen, points)
        loss = refit.losses(weights, points)
        missed = (points.x @ weights).softmax(1) - torch.nn.functional.one_hot(points.y, num_classes)
        both = refit.fit(seen.and_also(holdout), num_classes)
        scores = {
            "reducible_loss": loss - irreducible,
            "D_t kept": loss - refit.losses(both, points),
            "loss": loss,
            "gradient_norm": missed.norm(dim=1) * points.x.norm(dim=1),
            "irreducible_loss": -irreducible,
        }
        drops = {
            "holdout": refit.losses(weights, holdout).sum() - refit.losses(several, holdout).sum(-1),
            "test": refit.losses(weights, test).sum() - refit.losses(several, test).sum(-1),
        }
        rows.append(_compared(scores, drops, prepared.truth, sides.points))
    return _by_score(rows)


def _features(data: TensorData, ids: np.ndarray, count: int):
    """Makes features: the leading principal components of these examples' inputs, scaled, and a constant."""
    x = data.gather(torch.as_tensor(ids))[0].flatten(1).double()
    mean = x.mean(0)
    _, scale, directions = torch.linalg.svd(x - mean, full_matrices=False)
    projection = directions[:count].T / (scale[:count] / len(x) ** 0.5)

    def make(data: TensorData, ids: np.ndarray) -> refit.Examples:
        x, y = data.gather(torch.as_tensor(ids))
        features = (x.flatten(1).double() - mean) @ projection
        return refit.Examples(torch.cat([features, torch.ones(len(ids), 1, dtype=torch.float64)], 1), y)

    return make


def _step_study(prepared: Prepared, sides: Sides, sizes: Sizes, seed: int) -> dict[str, Any]:
    data = prepared.data
    il_model, model = (
        build("mlp128", data.input_shape, data.num_classes or 0, seed=derive(role, seed)) for role in ("il", "model")
    )
    config = HoldoutConfig(max_epochs=sizes.holdout_epochs)
    train_holdout_model(il_model, data, sides.holdout, config=config, seed=seed)
    irreducible = score(il_model, data, sides.points).double()
    rows = []
    for state in _checkpoints(model, data, sides.pool, sizes, seed):
        model.load_state_dict(state)
        rows.append(_one_step_each(model, prepared, sides, sizes.learning_rate, irreducible))
    return _by_score(rows)


def _checkpoints(
    model: nn.Module, data: TensorData, pool: np.ndarray, sizes: Sizes, seed: int
) -> list[dict[str, Tensor]]:
    """The model's weights after each of these numbers of uniform steps."""
    states: list[dict[str, Tensor]] = []
    calls = 0

    def keep_state(model: nn.Module) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls * EVERY in sizes.steps:
            states.append(copy.deepcopy(model.state_dict()))
        return {}

    steps, per_epoch = max(sizes.steps), len(pool) // 32
    orders = [
        shuffle(torch.as_tensor(pool), derive("brute-force epoch", seed, e)) for e in range(-(-steps // per_epoch))
    ]
    ids = [orders[step // per_epoch][step % per_epoch * 32 :][:32] for step in range(steps)]
    batches = iterate(data, ids, device=torch.device("cpu"))
    fit(Task(model, batches, steps=steps, seed=seed, evaluate=keep_state, eval_every=EVERY), engine="eager")
    return states


def _one_step_each(
    model: nn.Module, prepared: Prepared, sides: Sides, learning_rate: float, irreducible: Tensor
) -> dict[str, Any]:
    model.eval()
    parameters = dict(model.named_parameters())
    sets = {
        "holdout": prepared.data.gather(torch.as_tensor(sides.holdout)),
        "test": prepared.test.gather(torch.as_tensor(sides.test)),
    }

    def summed(values: Mapping[str, Tensor], name: str) -> Tensor:
        x, y = sets[name]
        with torch.no_grad():
            return cross_entropy(functional_call(model, dict(values), x), y, reduction="none").double().sum()

    before = {name: summed(parameters, name) for name in sets}
    x, y = prepared.data.gather(torch.as_tensor(sides.points))
    loss, norm = torch.empty(len(x), dtype=torch.float64), torch.empty(len(x), dtype=torch.float64)
    drops = {name: torch.empty(len(x), dtype=torch.float64) for name in sets}
    for row in range(len(x)):
        own = cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        gradients = torch.autograd.grad(own, list(parameters.values()))
        loss[row] = own.detach()
        norm[row] = torch.stack([g.norm() for g in gradients]).norm()
        moved = {n: (p - learning_rate * g).detach() for (n, p), g in zip(parameters.items(), gradients, strict=True)}
        for name in sets:
            drops[name][row] = before[name] - summed(moved, name)
    scores = {
        "reducible_loss": loss - irreducible,
        "loss": loss,
        "gradient_norm": norm,
        "irreducible_loss": -irreducible,
    }
    return _compared(scores, drops, prepared.truth, sides.points)


def _compared(
    scores: Mapping[str, Tensor], drops: Mapping[str, Tensor], truth: Truth, points: np.ndarray
) -> dict[str, Any]:
    """Rank correlations of scores with what learning each point did, and the mean of that by kind of point."""
    kinds = {
        "clean": ~truth.corrupted[points],
        "wrong label": truth.mislabelled[points] & ~truth.white_noise[points],
        "white noise": truth.white_noise[points],
    }
    found: dict[str, Any] = {
        f"correlation with {name}": {s: spearman(v.numpy(), drop.numpy()) for s, v in scores.items()}
        for name, drop in drops.items()
    }
    for name, values in {"drop": drops["holdout"], **scores}.items():
        found[f"mean {name}"] = {
            kind: float(values.numpy()[rows].mean()) if rows.any() else float("nan") for kind, rows in kinds.items()
        }
    found["share that helps"] = {
        kind: float((drops["holdout"].numpy()[rows] > 0).mean()) if rows.any() else float("nan")
        for kind, rows in kinds.items()
    }
    return found


def _by_score(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Lists over the sizes of D_t, one per score."""
    return {what: {name: [row[what][name] for row in rows] for name in rows[0][what]} for what in rows[0]}
