"""Which of two lists is the better one: a model of the proxy's kind learns from each, and what was held out says.

What a proxy finds worth learning is one list; an order by the holdout model alone, easy examples first and the hardest
late and seldom, is the other. On some data the first is better by points, on some the second, and nothing that a table
or a proxy knows tells which. Small models tell: where they learn more from one of the lists, so do large ones.
"""

from collections.abc import Mapping

import numpy as np

from goldiprox.enough import AUTO
from goldiprox.ledger import Cost, Rate
from goldiprox.loop import History
from goldiprox.rules import RULE

LISTS = ("reducible_loss", "predictability")
"""What the two are recorded by."""
OTHER = 1_000_003
"""Between the seed of a proxy and that of the model that rehearses: a list fits the weights that it was made with."""


def acquisitions(name: str, rule: str) -> tuple[str, ...]:
    """What sequences are recorded by, before one of them is taken.

    Args:
        name: Of an acquisition; or ``auto`` for both of `LISTS`, and where the rule is not the default one for the
            first.
        rule: As a text.
    """
    if name != AUTO:
        return (name,)
    return LISTS if rule == RULE else LISTS[:1]


def best(accuracies: Mapping[str, float]) -> str:
    """By name, the one that did best; of equals the first."""
    return max(accuracies, key=lambda name: accuracies[name])


def cost_of(history: History, rate: Rate | None, held_out: np.ndarray) -> Cost:
    """What a rehearsal cost: learning from a list, and a pass over what was held out, which is part of it here."""
    cost = Cost()
    cost.merge(history.cost)
    cost.seconds, cost.evaluation_seconds = cost.seconds + cost.evaluation_seconds, 0.0
    cost.add(rate, scored=len(held_out))
    return cost
