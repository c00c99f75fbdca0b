"""Which of two lists is the better one: a model of the proxy's kind learns from each, and what was held out says.

What a proxy finds worth learning is one list; an order by the holdout model alone, easy examples first and the hardest
late and seldom, is the other. On some data the first is better by points, on some the second, and nothing that a table
or a proxy knows tells which. Small models tell: where they learn more from one of the lists, so do large ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from goldiprox.assessment import assess, misses_more
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


def acquisitions(name: str, rule: str, held_out: bool = True) -> tuple[str, ...]:
    """What sequences are recorded by, before one of them is taken.

    Args:
        name: Of an acquisition; or ``auto`` for both of `LISTS`, if there is a choice to be made, else the first.
        rule: As a text; one that is not the default is for that one.
        held_out: Whether anything is, to judge by.
    """
    if name != AUTO:
        return (name,)
    return LISTS if rule == RULE and held_out else LISTS[:1]


def best(missed: Mapping[str, Tensor]) -> str:
    """By name, the first list; or one from which a model misses fewer, by more than two standard errors, if enough was
    held out to say so.

    Args:
        missed: For each list, which of the same examples its model misses.
    """
    taken, *others = missed
    for other in others:
        if len(missed[other]) >= MIN_HELD_OUT and misses_more(missed[taken], missed[other]):
            taken = other
    return taken


def judged(
    model: nn.Module, data: Any, held_out: np.ndarray, history: History, rate: Rate | None, **settings: Any
) -> tuple[Tensor, Cost]:
    """Which of what was held out a model misses, by the labels as they are; and the bill of its rehearsal, this pass
    included.

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
        missed = assess(model, data, held_out, **settings)[:, 2] > 0
    cost.add(rate, scored=len(held_out))
    return missed.double(), cost
