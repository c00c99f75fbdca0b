"""Holdout models: trained on what is held out, they give the training side its irreducible losses."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.assessment import assess, assess_together, misses_more, sharpened, sharpness, underfit
from goldiprox.best_epoch import BestEpoch
from goldiprox.checkpoint import Checkpoints
from goldiprox.data import Batch, fingerprint, iterate, labels_of, unwrap
from goldiprox.engine import EngineName, Given, loading_processes, on_device
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import (
    Forward,
    PerExampleLoss,
    call,
    check_model,
    cross_entropy,
    device_of,
    in_precision,
)
from goldiprox.irreducible import IrreducibleLosses, Rivals, contradicted, describe, fill, held_against
from goldiprox.ledger import Cost, Rate
from goldiprox.loop import OnStep, Task, evaluate_on, fit, rate_of
from goldiprox.optim import TrainingConfig
from goldiprox.randomness import ORDER, derive, seeded
from goldiprox.ranks import Ranks
from goldiprox.selection import CandidateSampler
from goldiprox.split import Split, check_ids, digest_ids, holdout_split, k_fold

Checkpoint = Literal["inner", "last", "training_side"]
Mixup = Literal["off", "on", "auto"]
JUDGES = 1_000
"""The number of the first model that only judges what others are to learn from."""


@dataclass(frozen=True)
class HoldoutConfig:
    """How the holdout model is trained.

    Attributes:
        checkpoint: ``inner``: the epoch with the lowest loss on an inner part of the holdout. ``last``: the
            converged model. ``training_side``: the epoch with the lowest loss on the training side (with noise
            there, that stops far too early; kept because published code does so).
        inner: The share of the holdout that only chooses the checkpoint.
        max_epochs: An upper bound; at a constant learning rate training ends earlier, after `patience` epochs without
            a new best.
        patience: Epochs to wait for a better checkpoint.
        min_steps: With few examples as many more epochs as this takes.
        batch_size: Examples per step.
        training: The optimiser.
        mixup: ``on``: learn from blends of two examples (`goldiprox.optim.TrainingConfig.losses`), which leaves less
            room to learn wrong labels by heart; inputs must be numbers that can be blended, not tokens. ``auto``: try
            both, and keep the blends unless they miss more of the inner part, by more than two standard errors (where
            the loss is not cross-entropy: unless their loss is higher). In both cases logits are made as sharp as with
            `calibrated`.
        cleaned: Models of the other side first judge what is to be learnt from, and labels that they contradict with
            confidence are left out of it (`goldiprox.irreducible.contradicted`). Twice the price; for holdouts with
            wrong labels.
        calibrated: Logits are made as sharp as the inner part of the holdout wants them
            (`goldiprox.assessment.sharpness`), so that odds mean what they say; where the loss is cross-entropy.
    """

    checkpoint: Checkpoint = "inner"
    inner: float = 0.1
    max_epochs: int = 100
    patience: int = 5
    min_steps: int = 0
    batch_size: int = 128
    training: TrainingConfig = field(default_factory=TrainingConfig)
    mixup: Mixup = "off"
    cleaned: bool = False
    calibrated: bool = False

    def __post_init__(self):
        if self.checkpoint not in get_args(Checkpoint):
            raise UnknownName("checkpoint rule", self.checkpoint, get_args(Checkpoint))
        if self.mixup not in get_args(Mixup):
            raise UnknownName("mixup", self.mixup, get_args(Mixup))
        if min(self.max_epochs, self.patience, self.batch_size) < 1:
            raise ConfigError(
                f"max_epochs={self.max_epochs}, patience={self.patience}, batch_size={self.batch_size}: "
                f"all must be at least 1"
            )
        if not 0 < self.inner < 1:
            raise ConfigError(f"an inner share of {self.inner} of the holdout is not between 0 and 1")

    @classmethod
    def robust(cls, training: TrainingConfig = TrainingConfig(), **changes: Any) -> "HoldoutConfig":
        """What withstands wrong labels, also in the holdout: ten epochs (or 300 steps) at a decaying rate, from blends
        where these do better, on labels that a model of the other side does not contradict. It trains three models.

        Args:
            training: The optimiser; its schedule becomes ``cosine``.
            changes: What else is to differ; where `max_epochs` does, it is not raised for few examples.
        """
        settings: dict[str, Any] = {"mixup": "auto", "cleaned": True}
        if "max_epochs" not in changes:
            settings |= {"max_epochs": 10, "min_steps": 300}
        return cls(training=replace(training, schedule="cosine"), **settings | changes)


class Judged(NamedTuple):
    """How often models of one side contradict the labels of the other.

    Attributes:
        missed: The share of the other side's labels that they do not predict.
        own: That of their own side's, of examples that they did not learn from.
        error: The standard error of the difference.
    """

    missed: float
    own: float
    error: float


@dataclass
class HoldoutReport:
    """How the training of a holdout model went.

    Attributes:
        epoch: The one whose weights were taken.
        epochs: How many there were.
        figures: Of the inner part, after that epoch.
        cost: The bill.
        rate: FLOPs per example.
        inner: The examples that chose the epoch.
        mixup: Whether it learnt from blends, ``on`` or ``off``.
        sharpness: What its logits were multiplied with for the table.
        underfit: Of its like without blends (`goldiprox.assessment.underfit`); None where it was not one of two.
        blends_worse: Whether blends missed more of the inner part; None where they were not tried.
        judged: What its judges, models of the other side, miss of the labels that it was to learn from, and of those of
            their own side; None where none were asked.
    """

    epoch: int
    epochs: int
    figures: dict[str, float]
    cost: Cost
    rate: Rate | None
    inner: np.ndarray = field(repr=False)
    mixup: Mixup = "off"
    sharpness: float = 1.0
    underfit: float | None = None
    blends_worse: bool | None = None
    judged: Judged | None = None


def train_holdout_model(
    il_model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    config: HoldoutConfig = HoldoutConfig(),
    training_side: np.ndarray | None = None,
    loss: PerExampleLoss = cross_entropy,
    training_loss: PerExampleLoss | None = None,
    forward: Forward = call,
    seed: int = 0,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    on_step: OnStep | None = None,
    checkpoints: Checkpoints | None = None,
) -> HoldoutReport:
    """Trains a model on the holdout until it stops improving, and leaves it at its chosen checkpoint.

    Args:
        il_model: Trained in place.
        data: The base data set.
        ids: The holdout side.
        config: Checkpoint rule, patience, optimiser.
        training_side: Only for the checkpoint rule ``training_side``.
        loss: One loss per example.
        training_loss: What it learns by, where that is not `loss`: `goldiprox.forward.generalised_cross_entropy(0.7)`
            where the holdout has wrong labels too, say. Its checkpoint is chosen by `loss` all the same.
        forward: How the model is called.
        seed: Of shuffling, inner split and dropout.
        num_workers: Loading processes, for data that is not resident.
        engine: How steps run, see `goldiprox.loop.fit`.
        on_step: Called after every step, or every few.
        checkpoints: Where to save how far it is; the same call goes on from there.
    """
    ids = check_ids(ids, what="the holdout", length=len(unwrap(data)))
    labels = labels_of(data)
    inner = holdout_split(len(ids), None if labels is None else labels[ids], holdout=config.inner, seed=seed)
    learn, judge = torch.as_tensor(ids[inner.train]), ids[inner.holdout]
    if config.checkpoint == "training_side":
        if training_side is None:
            raise ConfigError("checkpoint='training_side' needs the ids of the training side")
        learn, judge = torch.as_tensor(ids), training_side
    if not len(judge):
        raise ConfigError(f"a holdout of {len(ids)} examples is too small to choose a checkpoint on; enlarge it")
    device, num_workers = device_of(il_model), loading_processes(engine, num_workers)
    batch_size = min(config.batch_size, len(learn))
    with seeded(derive("example", seed), device):
        example = next(iterate(data, [learn[:2]], device=device))
    check_model(il_model, example, loss=loss, forward=forward, data=data, role="holdout model")
    if config.mixup == "auto":
        raise ConfigError("one model learns from blends or it does not: give mixup='on' or 'off'")
    if config.mixup == "on" and not _can_blend(example):
        kind = getattr(example.x, "dtype", type(example.x).__name__)
        raise ConfigError(f"inputs of type {kind} cannot be blended; train the holdout model with mixup='off'")
    lowered = in_precision(forward, config.training.precision)
    patience = config.patience if config.training.schedule == "constant" else None  # one that decays is best at its end
    evaluate = evaluate_on(data, ids=judge, loss=loss, forward=lowered, num_workers=num_workers)
    best = BestEpoch(evaluate, patience=patience, last=config.checkpoint == "last")
    saved = None
    if checkpoints:
        settings = {"holdout": asdict(config), "seed": seed, "order": ORDER, "split": digest_ids(ids, judge)}
        saved = checkpoints.start({**settings, "fingerprint": fingerprint(data)}, device)
        if saved:
            best.load_state_dict(saved.state["extra"])
    start = saved.step if saved else 0
    per_epoch = len(learn) // batch_size
    epochs = max(config.max_epochs, -(-config.min_steps // per_epoch))
    order = CandidateSampler(learn, batch_size, seed=derive("holdout epochs", seed), steps=epochs * per_epoch)

    def batches() -> Iterator[Batch]:
        # An epoch at a time: loading processes read ahead, and must not decide on convergence too early.
        for epoch in range(start // per_epoch, epochs):
            if epoch * per_epoch >= start and best.converged:
                return
            first = max(start, epoch * per_epoch)
            rest = itertools.islice(order.batches(first), (epoch + 1) * per_epoch - first)
            yield from iterate(data, rest, device=device, num_workers=num_workers, seed=seed, first=first)

    def rows(first: int, count: int) -> Tensor:
        if first % per_epoch == 0 and best.converged:
            return torch.empty(0, batch_size)
        return order.window(first, count, device)

    resident = on_device(data, device, num_workers)
    rate = rate_of(il_model, example, loss=loss, forward=forward)
    task = Task(
        il_model,
        batches() if resident is None else Given(resident, rows, batches()),
        steps=epochs * per_epoch,
        config=config.training,
        loss=training_loss or loss,
        forward=forward,
        seed=derive("holdout model", seed),
        mixed=config.mixup == "on",
        evaluate=best,
        eval_every=per_epoch,
        rate=rate,
        on_step=on_step,
        checkpoints=checkpoints,
        saved=saved,
        state=lambda step: best.state_dict(),  # noqa: ARG005
    )
    history = fit(task, engine=engine)
    epoch, figures = best.restore(il_model)
    # Choosing the checkpoint is part of making it, not a courtesy to the user: it belongs on the bill.
    history.cost.add(rate, scored=len(judge) * best.epoch)
    history.cost.seconds += history.cost.evaluation_seconds
    history.cost.evaluation_seconds = 0.0
    return HoldoutReport(epoch, best.epoch, figures, history.cost, rate, judge, config.mixup)


def _judged(opinions: IrreducibleLosses, judges: list[HoldoutReport], ranks: Ranks | None) -> Judged:
    _, margin = held_against(opinions)
    missed, counts = float((margin > 0).mean()), (len(margin), sum(len(judge.inner) for judge in judges))
    own = 1 - sum(judge.figures["accuracy"] * len(judge.inner) for judge in judges) / counts[1]
    if ranks:  # judges of other ranks may have been rounded otherwise
        missed, own = ranks.share(torch.tensor([missed, own], dtype=torch.float64, device=ranks.device)).tolist()
    shares = zip((missed, own), counts, strict=True)
    return Judged(missed, own, sum(share * (1 - share) / count for share, count in shares) ** 0.5)


def _can_blend(example: Batch) -> bool:
    return isinstance(example.x, Tensor) and example.x.is_floating_point()


def irreducible_losses(
    make_model: Callable[[int], nn.Module],
    data: Any,
    split: Split,
    *,
    num_folds: int = 0,
    config: HoldoutConfig = HoldoutConfig(),
    loss: PerExampleLoss = cross_entropy,
    training_loss: PerExampleLoss | None = None,
    forward: Forward = call,
    seed: int = 0,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    on_step: OnStep | None = None,
    checkpoints: Checkpoints | None = None,
    extra_config: dict[str, Any] | None = None,
    group: Any = None,
    scoring: Callable[..., Tensor] | None = None,
) -> tuple[IrreducibleLosses, list[nn.Module], list[HoldoutReport], Cost]:
    """Trains the holdout model(s) and scores the training side.

    Without folds, one model learns the holdout and scores the training side. With folds the training side is
    divided; each part is scored by a model that learnt the other parts (and the holdout, where there is one).

    Args:
        make_model: Gives a fresh model for a fold number.
        data: The base data set.
        split: Training and holdout side.
        num_folds: 0, or 2 and more for cross-fitting.
        config: How the models are trained.
        loss: One loss per example.
        training_loss: What models learn by, where that is not `loss`.
        forward: How models are called.
        seed: Of everything random.
        num_workers: Loading processes, for data that is not resident.
        engine: How steps run, see `goldiprox.loop.fit`.
        on_step: Called after every training step, or every few.
        checkpoints: Where to save how far it is; the same call goes on from there.
        extra_config: Recorded in the table's header.
        group: Of ``torch.distributed``: every rank makes this call, and scores a share of the training side. The table
            is the same on all, and the same as from one process.
        scoring: Scores in place of this process, such as `goldiprox.ray_scoring.RayScoring`.

    Returns:
        The table, the models, how each went, and the bill.
    """
    if isinstance(make_model, nn.Module):
        raise ConfigError("give a function of the fold number that returns a fresh model, not a model")
    labels = labels_of(data)
    if num_folds:
        folds = k_fold(split.train, None if labels is None else labels[split.train], num_folds=num_folds, seed=seed)
        parts = [(np.union1d(np.setdiff1d(split.train, fold), split.holdout), fold) for fold in folds]
    else:
        split.require_holdout()
        parts = [(split.holdout, split.train)]
    ranks = Ranks.of(group)
    if ranks and scoring:
        raise ConfigError("score with a process group or elsewhere, not both: give group or scoring")
    doubted, total, ways = np.empty(0, np.int64), Cost(), [config.mixup]
    plain: float | None = None
    worse: bool | None = None
    judged: Judged | None = None
    sharpens = (config.calibrated or config.mixup != "off") and loss is cross_entropy
    if config.cleaned:
        if labels is None:
            raise ConfigError(
                "cleaned=True, as in HoldoutConfig.robust(), judges labels, and this data set has none at hand: give "
                "it an attribute `targets` with the class of every example; for other tasks use cleaned=False"
            )
        opinions, _, judges, total = irreducible_losses(
            lambda number: make_model(JUDGES + number),
            data,
            split if num_folds else Split(split.holdout, split.train),
            num_folds=num_folds,
            config=replace(config, cleaned=False),
            loss=loss,
            training_loss=training_loss,
            forward=forward,
            seed=derive("judges", seed),
            num_workers=num_workers,
            engine=engine,
            on_step=on_step,
            checkpoints=checkpoints and checkpoints.part("judges"),
            group=group,
            scoring=scoring,
        )
        doubted = opinions.ids[contradicted(opinions, labels)]
        ways = [judges[0].mixup]  # the models that are asked take what was better for their judges
        plain, worse = judges[0].underfit, judges[0].blends_worse
        judged = _judged(opinions, judges, ranks)
    values = torch.full((len(unwrap(data)), 3), torch.nan)
    models, reports = [], []
    lowered = in_precision(forward, config.training.precision)
    if ways == ["auto"]:
        first = next(iterate(data, [torch.as_tensor(split.train[:2])], device=torch.device("cpu")))
        ways = ["off", "on"] if _can_blend(first) else ["off"]
    for number, (whole, target) in enumerate(parts):
        learn = np.setdiff1d(whole, doubted)
        tried = []
        for way in ways:
            model = make_model(number)
            if ranks:
                ranks.same_weights(model)
            report = train_holdout_model(
                model,
                data,
                learn,
                config=replace(config, mixup=way),
                training_side=target,
                loss=loss,
                training_loss=training_loss,
                forward=forward,
                seed=derive("fold", seed, number),
                num_workers=num_workers,
                engine=engine,
                on_step=on_step,
                checkpoints=checkpoints and checkpoints.part(f"model-{number}{'-mixup' * (way == 'on')}"),
            )
            total.merge(report.cost)
            misses, factor = torch.tensor([report.figures["loss"]], dtype=torch.float64), 1.0
            if sharpens:
                passes = {"forward": lowered, "num_workers": num_workers}
                with total.timed():
                    factor, misses = sharpness(model, data, report.inner, **passes)
                    if config.mixup != "off" and way == "off" and plain is None:
                        plain = underfit(model, data, np.setdiff1d(learn, report.inner), misses, **passes)
                        total.add(report.rate, scored=len(report.inner))
                total.add(report.rate, scored=len(report.inner))
            # What a GPU rounds otherwise must not make ranks choose otherwise.
            if ranks and (sharpens or config.mixup != "off"):
                own = misses.new_tensor([factor, -1.0 if plain is None else plain])
                shared = ranks.share(torch.cat([own, misses]).to(ranks.device)).cpu()
                factor, misses = shared[0].item(), shared[2:]
                plain = None if plain is None else shared[1].item()
            report.sharpness = factor
            tried.append((misses, model, report))
        # The last learnt from blends, and knows less by heart.
        _, model, report = tried[0] if misses_more(tried[-1][0], tried[0][0]) else tried[-1]
        ways = [report.mixup]  # the other folds take what was better for the first
        worse = report is tried[0][2] if len(tried) > 1 else worse
        report.underfit, report.blends_worse, report.judged = plain, worse, judged
        scores = checkpoints and checkpoints.part(f"scores-{number}")
        made = {"split": digest_ids(target), "holdout": asdict(config), "mixup": report.mixup}
        scored = scores and scores.start(made, torch.device("cpu"))
        if scored:
            found = scored.state["found"]
        else:
            with total.timed(), seeded(derive("scoring", seed), device_of(model)):
                settings: dict[str, Any] = {"loss": loss, "forward": sharpened(lowered, report.sharpness)}
                if scoring:
                    found = scoring(model, data, target, **settings, folder=scores and scores.folder)
                elif ranks:
                    found = assess_together(ranks, model, data, target, **settings, num_workers=num_workers)
                else:
                    found = assess(model, data, target, **settings, num_workers=num_workers)
        if scores:
            scores.save(len(target), {"found": found})
        total.add(report.rate, scored=len(target))
        fill(values[:, 0], torch.as_tensor(target), found[:, 0])
        values[torch.as_tensor(target), 1:] = found[:, 1:]
        models.append(model)
        reports.append(report)
    described = {"seed": seed, "num_folds": num_folds, "holdout": asdict(config), **(extra_config or {})}
    described |= {"left_out": len(doubted)} if config.cleaned else {}
    described |= {"mixup": ways[0]} if config.mixup != "off" else {}
    described |= {"sharpness": [r.sharpness for r in reports]} if sharpens or config.mixup != "off" else {}
    losses, rival, margin = values.unbind(1)
    against = None if margin.isnan().all() else Rivals(rival, margin)
    table = IrreducibleLosses(
        losses, data=describe(data), config=described, parents={"split": split.digest}, rivals=against
    )
    return table, models, reports, total
