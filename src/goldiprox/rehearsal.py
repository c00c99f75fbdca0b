"""Which of two lists is the better one: a model of the proxy's kind learns from each, and what was held out says.

What a proxy finds worth learning is one list; an order by the holdout model alone, easy examples first and the hardest
late and seldom, is the other. On some data the first is better by points, on some the second, and nothing that a table
or a proxy knows tells which. Small models tell: where they learn more from one of the lists, so do large ones; unless
what is easy is all that they have room for.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from goldiprox.assessment import assess, missed, misses_more
from goldiprox.enough import AUTO
from goldiprox.ledger import Cost, Rate
from goldiprox.loop import History
from goldiprox.rules import RULE

LISTS = ("reducible_loss", "predictability")
"""What the two are recorded by."""
OR_BOTH = "Or auto, in run and compare: two sequences. Your own: package.module:callable."
"""Where a name is none of an acquisition."""
OTHER = 1_000_003
"""Between the seeds of models that are not to be alike: of a proxy and of the one that rehearses, since a list fits the
weights that it was made with.
"""
MIN_HELD_OUT = 30
"""Of fewer examples one or two would decide."""
TOO_SMALL = 0.87
"""What a holdout model of the proxy's kind misses of what it learnt, divided by what it misses of other examples: above
this such models say nothing of larger ones. Where the second list was the better one for a larger one too, they were at
0.67 to 0.73; where it only seemed so, at 0.91 to 0.97 (docs/lab-notes.md).
"""


def acquisitions(name: str, rule: str, held_out: int = MIN_HELD_OUT) -> tuple[str, ...]:
    """What sequences are recorded by, before one of them is taken.

    Args:
        name: Of an acquisition; or ``auto`` for both of `LISTS`, if there is a choice to be made, else the first.
        rule: As a text; one that is not the default is for that one.
        held_out: How many examples are, to judge by.
    """
    if name != AUTO:
        return (name,)
    return LISTS if rule == RULE and held_out >= MIN_HELD_OUT else LISTS[:1]


def too_small(proxy: str, il_model: Mapping[str, Any]) -> float | None:
    """How much a holdout model of the proxy's kind missed of what it learnt, as `goldiprox.assessment.underfit` has it,
    if that is too much for a rehearsal; else, and where there was none of that kind, None.

    Args:
        proxy: Its name.
        il_model: The ``name`` of the holdout model, its `goldiprox.enough.Signs`, and what it was made ``instead`` of.
    """
    asked = il_model["instead"] or {**il_model, "of": il_model["name"]}
    underfit = asked["underfit"] if asked["of"] == proxy and not asked.get("moved") else None
    return underfit if underfit is not None and underfit > TOO_SMALL else None


def best(misses: Mapping[str, Tensor]) -> str:
    """By name, the first list; or one from which a model misses fewer, by more than two standard errors.

    Args:
        misses: For each list, which of the same examples its model misses.
    """
    taken, *others = misses
    for other in others:
        if misses_more(misses[taken], misses[other]):
            taken = other
    return taken


def in_words(by: str, accuracies: Mapping[str, float], model: str) -> str:
    """Why a list was taken.

    Args:
        by: What it was recorded by.
        accuracies: By list, how often a model that learnt from it is right.
        model: What to call the one that rehearsed.
    """
    ((other, theirs),) = ((name, each) for name, each in accuracies.items() if name != by)
    return (
        f"of what was held out, {model} is right on {100 * accuracies[by]:.1f}% having learnt from it, on "
        f"{100 * theirs:.1f}% from the one by {other}"
    )


def unasked_in_words(underfit: float, model: str) -> str:
    """Why there was no rehearsal.

    Args:
        underfit: As `too_small` has it.
        model: What to call one of the proxy's kind.
    """
    return (
        f"no second one was tried, since {model} could not tell which is better for a larger one: as a holdout model "
        f"it misses {100 * underfit:.0f}% as much of what it learnt as of the rest"
    )


def judged(
    model: nn.Module, data: Any, held_out: np.ndarray, history: History, rate: Rate | None, **settings: Any
) -> tuple[Tensor, Cost]:
    """Which of what was held out a model misses, by the labels as they are: all of it where it has diverged; and the
    bill of its rehearsal, this pass included.

    Args:
        model: Has learnt from a list.
        data: The base data set.
        held_out: The ids.
        history: Of its training.
        rate: Its FLOPs.
        settings: As for `goldiprox.assessment.assess`.
    """
    cost = Cost()
    cost.merge(history.cost)
    with cost.timed():
        found = missed(assess(model, data, held_out, **settings))
    cost.add(rate, scored=len(held_out))
    return found, cost
