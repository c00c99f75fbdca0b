"""Is a small holdout model enough, or is one of the large model's kind worth its price?"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from goldiprox.holdout import HoldoutConfig, HoldoutReport
from goldiprox.irreducible import IrreducibleLosses
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


def kinds(
    il_model: str | None, proxy: str, model: str, *, judged: bool, flops: Callable[[str], float | None]
) -> list[str]:
    """The holdout models to try, in this order: the next one if the one before falls short.

    Args:
        il_model: A name; or ``proxy`` or ``model`` for one of their kind; or ``auto`` (None): of the proxy's, then of
            the model's, if that is the larger one.
        proxy: Its name.
        model: That of the large model.
        judged: Whether it is made in the way that tells what it falls short of (`HoldoutConfig.cleaned`), and anything
            is chosen by its losses; else ``auto`` is ``proxy``.
        flops: Of a pass of a model, by its name; None where they cannot be counted. All that are to be tried are
            counted, so that one which cannot be made is known before another is trained.
    """
    if il_model not in (AUTO, None):
        names = [{PROXY: proxy, MODEL: model}.get(il_model, il_model)]
    else:
        names = list(dict.fromkeys([proxy, model] if judged else [proxy]))
    cost = {name: flops(name) for name in names}
    smallest = cost[names[0]]
    return names[:1] + [n for n in names[1:] if smallest is None or (own := cost[n]) is None or own > smallest]


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
    """

    wrong_share: float | None
    underfit: float | None
    blends_worse: bool | None
    holdout_wrong_share: float | None = None
    holdout_error: float = 0.0

    @classmethod
    def of(cls, table: IrreducibleLosses, report: HoldoutReport) -> "Signs":
        wrong = None if table.rivals is None else wrong_share(table)
        if wrong is None or report.judged is None:
            return cls(wrong, report.underfit, report.blends_worse)
        missed, own, error = report.judged
        underfit = report.underfit
        if underfit is not None:
            underfit = max(0.0, (underfit * own - wrong) / (own - wrong)) if own > wrong else 0.0
        # Wrong labels are missed, of right ones as many on either side: 1 - missed = (1 - wrong) * (1 - hard).
        scale = (1 - wrong) / max(1 - own, 1e-9)
        return cls(wrong, underfit, report.blends_worse, max(0.0, 1 - scale * (1 - missed)), scale * error)

    @property
    def shortcoming(self) -> str | None:
        """What a larger one would do better, in words; None where this one is enough."""
        share, missed = self.wrong_share or 0.0, self.underfit or 0.0
        small = missed > UNDERFIT
        if share > WRONG:
            return f"{100 * share:.0f}% of the labels look wrong{', or it is too small for this data' * small}"
        if not small:
            return None
        return (
            f"it misses {100 * missed:.0f}% as much of what it learnt as of the rest, as if it were too small, or had "
            f"learnt too briefly"
        )

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

    def larger(self, config: HoldoutConfig) -> HoldoutConfig:
        """How a larger one is trained: where the holdout's labels look right once, on all of them and without blends.

        What learns no wrong labels needs no judges. That is a third of the price of `HoldoutConfig.robust`, and better,
        since judges take right labels away too (docs/lab-notes.md). Where none look wrong on either side, they may be
        all the same, if a small model finds the noise learnable; but then blends do it no harm.

        Args:
            config: How this one was.
        """
        some_look_wrong = (self.wrong_share or 0.0) > WRONG
        once = self.holdout_looks_right and (some_look_wrong or self.blends_worse)
        return replace(config, cleaned=False, mixup="off", calibrated=True) if once else config
