"""Is a small holdout model enough, or is one of the large model's kind worth its price?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from goldiprox.forward import Augmentation
from goldiprox.holdout import HoldoutConfig, HoldoutReport
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import THIN
from goldiprox.suspects import wrong_share

AUTO, PROXY, MODEL = "auto", "proxy", "model"
"""What a holdout model may be instead of a name: decided here, of the proxy's kind, of the large model's kind."""
WRONG = 0.01
"""The share of labels that look wrong from which on a larger model is asked: telling wrong from hard is what it does
better, by two to three points of what comes of it (docs/lab-notes.md).
"""
UNDERFIT = 0.43
"""From which on a model counts as too small for its data: what it cannot learn it would call unlearnable, and a larger
one never see. On clean labels a larger one was worth 0.1 to 0.3 points at 0.35 to 0.40, 0.5 and 1.0 at 0.45 to
0.53 (docs/lab-notes.md).
"""
UNDERFIT_MOVED = 0.65
"""The same for a model that learnt moved images, which it does not know by heart. With 30 epochs a thin ResNet, as good
as a `resnet18`, is at 0.41 and 0.43, a `small_cnn`, which makes worse lists, at 0.90 (docs/lab-notes.md).
"""
ALIKE = 0.9
"""Mirrored images are images of the same kind if a model that never saw any knows this share as much of them, beyond
what one answer for all would be right on. Digits keep less than half, animals and cars all (docs/lab-notes.md).
"""
MOVED: Augmentation = "shift+mirror"
"""What is done to images while a thin model learns that is to do as well as a large one."""
LONGER = 3
"""How many times as long it learns."""


@dataclass(frozen=True)
class Attempt:
    """A holdout model to try.

    Attributes:
        name: Its name.
        moved: Whether it is one like the large model, but thin, that learns images that are shifted and mirrored, for
            longer (`HoldoutConfig.augment`).
    """

    name: str
    moved: bool = False

    def falls_short(self, signs: "Signs") -> str | None:
        """What a larger one would do better, by the signs of this one, in words; None where it is enough.

        One of moved images tells wrong from hard as well as a large one does (docs/lab-notes.md).
        """
        return signs.smallness if self.moved else signs.shortcoming


def attempts(
    il_model: str | None,
    proxy: str,
    model: str,
    *,
    judged: bool,
    moving: bool = False,
    flops: Callable[[str], float | None],
) -> list[Attempt]:
    """The holdout models to try, in this order: the next one if the one before falls short.

    Args:
        il_model: A name; or ``proxy`` or ``model`` for one of their kind; or ``auto`` (None): of the proxy's, then of
            the model's, if that is the larger one.
        proxy: Its name.
        model: That of the large model.
        judged: Whether it is made in the way that tells what it falls short of (`HoldoutConfig.cleaned`), and anything
            is chosen by its losses; else ``auto`` is ``proxy``.
        moving: Whether a thin one that learns moved images is to be tried before a large one, where one like the large
            model is known (`goldiprox.models.THIN`).
        flops: Of a pass of a model, by its name; None where they cannot be counted. All that are to be tried are
            counted, so that one which cannot be made is known before another is trained.
    """
    if il_model not in (AUTO, None):
        found = [Attempt({PROXY: proxy, MODEL: model}.get(il_model, il_model))]
    elif not judged or model == proxy:
        found = [Attempt(proxy)]
    else:
        moved = [Attempt(THIN[model], moved=True)] if moving and model in THIN else []
        found = [Attempt(proxy), *moved, Attempt(model)]
    cost = {attempt.name: flops(attempt.name) for attempt in found}
    first, last = cost[found[0].name], cost[found[-1].name]
    return found if first is None or last is None or last > first else found[:1]


def titled(name: str, augment: str | None) -> str:
    """What to call a holdout model."""
    return name if augment in (None, "off") else f"{name} by moved images"


def in_words(instead: Mapping[str, Any]) -> str:
    """Why another holdout model was made.

    Args:
        instead: What it was made ``instead`` of, as `run` has it.
    """
    said = f"{instead['of']} falls short: {instead['because']}"
    if also := instead.get("also"):
        said += f"; so does {titled(also['of'], MOVED)}: {also['because']}"
    return said


@dataclass(frozen=True)
class Signs:
    """What a holdout model says of itself.

    Attributes:
        wrong_share: Of labels, those that look wrong to it (`goldiprox.suspects.wrong_share`); None where its table
            does not say what it predicts.
        underfit: Of its training, as `goldiprox.holdout.HoldoutReport` has it, but for the labels that look wrong: they
            are missed on either side, whatever a model could learn.
        blends_worse: Likewise.
        holdout_wrong_share: Of the labels that it was to learn from, those that are wrong if `wrong_share` of the
            others are, by how many its judges miss of either; None where none were asked.
        holdout_error: The standard error of that.
        mirrored: What it knows of mirrored images, divided by what it knows of others; None where that was not asked,
            where there are no images, and where it misses few (`goldiprox.assessment.mirrored`).
        moved: Whether it learnt moved images.
    """

    wrong_share: float | None
    underfit: float | None
    blends_worse: bool | None
    holdout_wrong_share: float | None = None
    holdout_error: float = 0.0
    mirrored: float | None = None
    moved: bool = False

    @classmethod
    def of(cls, table: IrreducibleLosses, report: HoldoutReport) -> "Signs":
        wrong = None if table.rivals is None else wrong_share(table)
        images = {"mirrored": report.mirrored, "moved": report.augment != "off"}
        if wrong is None or report.judged is None:
            return cls(wrong, report.underfit, report.blends_worse, **images)
        missed, own, error = report.judged
        underfit = report.underfit
        if underfit is not None:
            underfit = max(0.0, (underfit * own - wrong) / (own - wrong)) if own > wrong else 0.0
        # Wrong labels are missed, of right ones as many on either side: 1 - missed = (1 - wrong) * (1 - hard).
        scale = (1 - wrong) / max(1 - own, 1e-9)
        return cls(wrong, underfit, report.blends_worse, max(0.0, 1 - scale * (1 - missed)), scale * error, **images)

    @property
    def too_small(self) -> bool:
        """Whether it misses nearly as much of what it learnt as of the rest."""
        return (self.underfit or 0.0) > (UNDERFIT_MOVED if self.moved else UNDERFIT)

    @property
    def smallness(self) -> str | None:
        """In words; None where it is large enough."""
        if not self.too_small:
            return None
        return (
            f"it misses {100 * (self.underfit or 0.0):.0f}% as much of what it learnt as of the rest, as if it were "
            f"too small, or had learnt too briefly"
        )

    @property
    def shortcoming(self) -> str | None:
        """What a larger one would do better, in words; None where this one is enough."""
        share = self.wrong_share or 0.0
        if share > WRONG:
            return f"{100 * share:.0f}% of the labels look wrong{', or it is too small for this data' * self.too_small}"
        return self.smallness

    @property
    def alike(self) -> bool:
        """Whether mirrored images are of the same kind."""
        return (self.mirrored or 0.0) >= ALIKE

    @property
    def holdout_looks_right(self) -> bool:
        """Whether there is nothing in the holdout that a model must withstand, within two standard errors.

        Where labels of the training side look wrong, those of the holdout must be clearly fewer: what looks wrong to a
        weak model may be hard, and then is on both sides.
        """
        if self.holdout_wrong_share is None or self.wrong_share is None:
            return False
        low, high = (self.holdout_wrong_share + 2 * sign * self.holdout_error for sign in (-1, 1))
        if self.wrong_share <= WRONG:
            return low <= WRONG
        return self.holdout_wrong_share < self.wrong_share / 2 and high < self.wrong_share

    def then(self, attempt: Attempt, config: HoldoutConfig) -> HoldoutConfig:
        """How the next one is trained: where the holdout's labels look right once, on all of them and without blends.

        What learns no wrong labels needs no judges. That is a third of the price of `HoldoutConfig.robust`, and better,
        since judges take right labels away too (docs/lab-notes.md). Where none look wrong on either side, they may be
        all the same, if a small model finds the noise learnable; but then blends do it no harm.

        Args:
            attempt: The next one. Where it learns moved images these take the place of blends.
            config: How this one was.
        """
        some_look_wrong = (self.wrong_share or 0.0) > WRONG
        once = self.holdout_looks_right and (some_look_wrong or self.blends_worse)
        if once or attempt.moved:
            config = replace(config, cleaned=config.cleaned and not once, mixup="off", calibrated=True)
        if not attempt.moved:
            return config
        longer = {"max_epochs": LONGER * config.max_epochs, "min_steps": LONGER * config.min_steps}
        return replace(config, augment=MOVED, **longer)


def until_enough(
    found: Sequence[Attempt],
    config: HoldoutConfig,
    make: Callable[[Attempt, HoldoutConfig, dict[str, Any] | None], Signs],
) -> None:
    """Makes holdout models, until one is enough or there is none left.

    Args:
        found: Which may be tried, in order.
        config: How the first one is trained.
        make: Makes one in such a way, ``instead`` of the first (None: it is the first), and gives its signs.
    """
    first, *others = found
    asked = signs = make(first, config, None)
    latest, instead = first, None
    for other in others:
        if not (short := latest.falls_short(signs)):
            return
        if other.moved and not asked.alike:
            continue
        if instead is None:
            instead = {"of": first.name, "because": short, **asdict(asked)}
        if latest.moved:
            instead = {**instead, "also": {"of": latest.name, "because": short}}
        latest, signs = other, make(other, asked.then(other, config), instead)
