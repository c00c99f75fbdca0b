"""As many holdout models as it takes, and the table of irreducible losses that they fill."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.assessment import assess, assess_together, mirrored, misses_more, sharpened, sharpness, underfit
from goldiprox.checkpoint import Checkpoints
from goldiprox.data import iterate, labels_of, require_labels_of_items, unwrap
from goldiprox.engine import EngineName
from goldiprox.errors import ConfigError
from goldiprox.forward import Forward, PerExampleLoss, both_ways, call, cross_entropy, device_of, in_precision
from goldiprox.holdout import HoldoutConfig, HoldoutReport, Judged, can_blend, train_holdout_model
from goldiprox.irreducible import IrreducibleLosses, Rivals, contradicted, describe, fill, held_against
from goldiprox.ledger import Cost
from goldiprox.loop import OnStep
from goldiprox.randomness import derive, seeded
from goldiprox.ranks import Ranks
from goldiprox.split import Split, digest_ids, holdout_split, k_fold

log = logging.getLogger(__name__)
Parts: TypeAlias = list[tuple[np.ndarray, np.ndarray]]
"""What a model learns from, and what it then scores."""
MIN_INNER = 30
"""Of fewer examples one or two would decide whether a model knows anything."""
JUDGES = 1_000
"""The number of the first model that only judges what others are to learn from."""


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
    _check_factory(make_model)
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
    how: dict[str, Any] = {"loss": loss, "training_loss": training_loss, "forward": forward}
    how |= {"num_workers": num_workers, "engine": engine, "on_step": on_step}
    doubted, total, ways = np.empty(0, np.int64), Cost(), [config.mixup]
    plain: float | None = None
    alike: float | None = None
    worse: bool | None = None
    judged: Judged | None = None
    sharpens = (config.calibrated or config.mixup != "off") and loss is cross_entropy
    if config.cleaned:
        if labels is None:
            raise ConfigError(
                "cleaned=True, as in HoldoutConfig.robust(), judges labels, and this data set has none at hand: give "
                "it an attribute `targets` with the class of every example; for other tasks use cleaned=False"
            )
        if loss is not cross_entropy or len(np.unique(labels)) < 2:
            raise ConfigError(
                "cleaned=True, as in HoldoutConfig.robust(), judges labels of two classes or more, by cross-entropy; "
                "with another loss or a single class use cleaned=False (another loss to learn by alone: training_loss=)"
            )
        require_labels_of_items(data, split.train)
        opinions, _, judges, total = irreducible_losses(
            lambda number: make_model(JUDGES + number),
            data,
            split if num_folds else Split(split.holdout, split.train),
            num_folds=num_folds,
            config=replace(config, cleaned=False),
            seed=derive("judges", seed),
            **how,
            checkpoints=checkpoints and checkpoints.part("judges"),
            group=group,
            scoring=scoring,
        )
        doubted = opinions.ids[contradicted(opinions, labels)]
        _check_enough_is_left(parts, doubted, labels, config)
        ways = [judges[0].mixup]  # the models that are asked take what was better for their judges
        plain, alike, worse = judges[0].underfit, judges[0].mirrored, judges[0].blends_worse
        judged = _judged(opinions, judges, ranks)
    values = torch.full((len(unwrap(data)), 3), torch.nan)
    models, reports = [], []
    mirrors = "mirror" in config.moves and loss is cross_entropy  # of other outputs a mean may mean nothing
    asking, looks = in_precision(forward, config.training.precision), 1 + mirrors
    if mirrors:
        asking = both_ways(asking)
    if ways == ["auto"]:
        first = next(iterate(data, [torch.as_tensor(split.train[:2])], device=torch.device("cpu")))
        ways = ["off", "on"] if can_blend(first) else ["off"]
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
                seed=derive("fold", seed, number),
                **how,
                checkpoints=checkpoints and checkpoints.part(f"model-{number}{'-mixup' * (way == 'on')}"),
            )
            total.merge(report.cost)
            misses, factor = torch.tensor([report.figures["loss"]], dtype=torch.float64), 1.0
            if sharpens:
                passes = {"forward": asking, "num_workers": num_workers}
                with total.timed():
                    factor, misses = sharpness(model, data, report.inner, **passes)
                    asked = plain is None and way == "off" and (config.mixup != "off" or config.moves != "off")
                    if asked:
                        plain = underfit(model, data, np.setdiff1d(learn, report.inner), misses, **passes)
                        total.add(report.rate, scored=looks * len(report.inner))
                    if asked and config.augment == "auto":
                        alike = mirrored(model, data, report.inner, misses, guess=_commonest(labels, report), **passes)
                        total.add(report.rate, scored=0 if alike is None else len(report.inner))
                total.add(report.rate, scored=looks * len(report.inner))
            # What a GPU rounds otherwise must not make ranks choose otherwise.
            if ranks and (sharpens or config.mixup != "off"):
                said = [factor, *(-1.0 if known is None else known for known in (plain, alike))]
                shared = ranks.share(torch.cat([misses.new_tensor(said), misses]).to(ranks.device)).cpu()
                factor, misses = shared[0].item(), shared[3:]
                plain, alike = (None if known < 0 else known for known in shared[1:3].tolist())
            report.sharpness = factor
            if mirrors and sharpens:  # as it is asked from here on
                report.figures["accuracy"] = 1 - float(misses.mean())
            tried.append((misses, model, report))
        # The last learnt from blends, and knows less by heart.
        _, model, report = tried[0] if misses_more(tried[-1][0], tried[0][0]) else tried[-1]
        ways = [report.mixup]  # the other folds take what was better for the first
        worse = report is tried[0][2] if len(tried) > 1 else worse
        _warn_if_it_knows_nothing(report, labels)
        report.underfit, report.mirrored, report.blends_worse, report.judged = plain, alike, worse, judged
        scores = checkpoints and checkpoints.part(f"scores-{number}")
        made = {"split": digest_ids(target), "holdout": asdict(config), "mixup": report.mixup}
        scored = scores and scores.start(made, torch.device("cpu"))
        if scored:
            found = scored.state["found"]
        else:
            with total.timed(), seeded(derive("scoring", seed), device_of(model)):
                settings: dict[str, Any] = {"loss": loss, "forward": sharpened(asking, report.sharpness)}
                if scoring:
                    found = scoring(model, data, target, **settings, folder=scores and scores.folder)
                elif ranks:
                    found = assess_together(ranks, model, data, target, **settings, num_workers=num_workers)
                else:
                    found = assess(model, data, target, **settings, num_workers=num_workers)
        if scores:
            scores.save(len(target), {"found": found})
        total.add(report.rate, scored=looks * len(target))
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


def _check_factory(make_model: Callable[[int], nn.Module]) -> None:
    try:
        inspect.signature(make_model).bind(0)
    except TypeError:
        raise ConfigError(
            "the function that makes models is called with the number of a fold: lambda fold: Model(), say"
        ) from None
    except ValueError:  # it does not tell what it takes
        return


def _check_enough_is_left(parts: Parts, doubted: np.ndarray, labels: np.ndarray, config: HoldoutConfig) -> None:
    for whole, _ in parts:
        left = np.setdiff1d(whole, doubted)
        inner = holdout_split(len(left), labels[left], holdout=config.inner).holdout
        if len(left) < len(whole) and not len(inner):
            raise ConfigError(
                f"of {len(whole):,} labels to learn from, models of the other side contradict "
                f"{len(whole) - len(left):,}: {len(left):,} are too few. Hold out more, or learn from all of them: "
                f"cleaned=False (--no-cleaned)"
            )


def _warn_if_it_knows_nothing(report: HoldoutReport, labels: np.ndarray | None) -> None:
    """A model that is no better than one answer for all knows nothing of what is predictable."""
    right = report.figures.get("accuracy")
    if labels is None or right is None or len(report.inner) < MIN_INNER:
        return
    commonest = _commonest(labels, report)
    if right <= commonest:
        log.warning(
            "the holdout model is right on %.1f%% of the examples that chose its epoch, naming the commonest class "
            "on %.1f%%: it has learnt nothing. Look at the model, its learning rate, and how long it learns",
            100 * right,
            100 * commonest,
        )


def _commonest(labels: np.ndarray | None, report: HoldoutReport) -> float:
    """How often one answer for all is right on the inner part; 0 where labels are not known beforehand."""
    return 0.0 if labels is None else np.unique(labels[report.inner], return_counts=True)[1].max() / len(report.inner)


def _judged(opinions: IrreducibleLosses, judges: list[HoldoutReport], ranks: Ranks | None) -> Judged:
    _, margin = held_against(opinions)
    missed, counts = float((margin > 0).mean()), (len(margin), sum(len(judge.inner) for judge in judges))
    own = 1 - sum(judge.figures["accuracy"] * len(judge.inner) for judge in judges) / counts[1]
    if ranks:  # judges of other ranks may have been rounded otherwise
        missed, own = ranks.share(torch.tensor([missed, own], dtype=torch.float64, device=ranks.device)).tolist()
    shares = zip((missed, own), counts, strict=True)
    return Judged(missed, own, sum(share * (1 - share) / count for share, count in shares) ** 0.5)
