"""Whether selection pays: uniform's frontier, how far along it a method comes, what that cost. Pure numerics.

A *budget* is a number of uniform steps in multiples of the method's own steps; on every budget the learning rate runs
its whole schedule. Uniform's *frontier* is the best accuracy of a seed on any budget so far, linear in the logarithm
of the budget between those that were run. A method's *worth* is the first budget at which the frontier reaches its
accuracy: a worth of 2 means that uniform needs twice the steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

# Student's t at 97.5%, for 1 to 30 degrees of freedom: so few numbers are no reason for a dependency.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Side = Literal["", "<", ">"]


@dataclass(frozen=True)
class Worth:
    """So many times the method's steps. ``>``: above the largest budget that was run; ``<``: below the smallest."""

    budget: float
    side: Side = ""

    def __str__(self) -> str:
        side = f"{self.side} " if self.side else ""
        return f"{side}{self.budget:.2f}x" if self.budget < 10 else f"{side}{self.budget:.0f}x"

    @property
    def at_least(self) -> float:
        """What it surely is not below."""
        return 0.0 if self.side == "<" else self.budget

    @property
    def at_most(self) -> float:
        return math.inf if self.side == ">" else self.budget


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with lowest, highest, standard error, and a 95% interval (None for one seed)."""

    mean: float
    low: float
    high: float
    error: float | None
    interval: tuple[float, float] | None
    values: tuple[float, ...]


def t_value(num_seeds: int) -> float:
    """The factor of the standard error that makes a 95% interval of a mean over so many seeds."""
    return _T[num_seeds - 2] if num_seeds - 2 < len(_T) else 1.96 + 2.4 / (num_seeds - 1)


def interval(values: Sequence[float]) -> Interval:
    """Mean, extremes and Student's interval.

    Student's, not a bootstrap: three seeds have ten distinct resamples, whose spread is a fraction of the true one.
    """
    a = np.asarray(values, np.float64)
    error = float(a.std(ddof=1) / math.sqrt(len(a))) if len(a) > 1 else None
    mean = float(a.mean())
    around = None if error is None else (mean - t_value(len(a)) * error, mean + t_value(len(a)) * error)
    return Interval(mean, float(a.min()), float(a.max()), error, around, tuple(map(float, a)))


class Frontier:
    """Uniform's accuracy as a function of the budget.

    Args:
        budgets: In multiples of the method's steps, ascending.
        accuracies: For every seed, one per budget.
    """

    def __init__(self, budgets: Sequence[float], accuracies: Sequence[Sequence[float]]):
        self.budgets = np.asarray(budgets, np.float64)
        if len(self.budgets) < 1 or (np.diff(self.budgets) <= 0).any() or self.budgets[0] <= 0:
            raise ValueError(f"budgets {budgets} are not positive and ascending")
        # Whoever could afford a larger budget may stop at a smaller one: more steps never count as worse.
        self.best = np.maximum.accumulate(np.asarray(accuracies, np.float64), axis=1)

    def at(self, budget: np.ndarray | float) -> np.ndarray:
        """For every seed, the accuracy at these budgets."""
        x = np.log(np.atleast_1d(np.asarray(budget, np.float64)))
        return np.stack([np.interp(x, np.log(self.budgets), row) for row in self.best])

    def worth(self, accuracies: Sequence[float]) -> Worth:
        """The first budget at which the seeds' mean frontier reaches the mean of these accuracies."""
        return self._first(self.best.mean(0), float(np.mean(accuracies)))

    def worth_of_seed(self, seed: int, accuracy: float) -> Worth:
        """Likewise on one seed's own frontier."""
        return self._first(self.best[seed], accuracy)

    def _first(self, curve: np.ndarray, accuracy: float) -> Worth:
        # Means of the same numbers in another order differ in their last bit.
        reached = np.flatnonzero(curve >= accuracy - 1e-12)
        if not len(reached):
            return Worth(float(self.budgets[-1]), ">")
        first = int(reached[0])
        if first == 0:
            exactly = abs(curve[0] - accuracy) <= 1e-12
            return Worth(float(self.budgets[0]), "" if exactly else "<")
        below, above = curve[first - 1], curve[first]
        part = min(1.0, (accuracy - below) / (above - below))
        logs = np.log(self.budgets[first - 1 : first + 1])
        return Worth(float(np.exp(logs[0] + part * (logs[1] - logs[0]))))

    def interval(self, accuracies: Sequence[float]) -> tuple[Worth, Worth] | None:
        """A 95% interval of the worth: the budgets at which uniform cannot be told from the method.

        A budget belongs to it when Student's interval of ``accuracy - frontier(budget)``, paired by seed, holds zero.
        So the spread of both sides counts, and an interval that leaves the range of budgets says so instead of
        being extrapolated. None for one seed.
        """
        a = np.asarray(accuracies, np.float64)
        if len(a) < 2:
            return None
        grid = np.exp(np.linspace(np.log(self.budgets[0]), np.log(self.budgets[-1]), 1001))
        differences = a[:, None] - self.at(grid)
        mean = differences.mean(0)
        reach = t_value(len(a)) * differences.std(0, ddof=1) / math.sqrt(len(a)) + 1e-12
        undecided_from, undecided_to = np.flatnonzero(mean <= reach), np.flatnonzero(mean >= -reach)
        smallest, largest = Worth(float(self.budgets[0]), "<"), Worth(float(self.budgets[-1]), ">")
        if not len(undecided_from):
            return largest, largest
        if not len(undecided_to):
            return smallest, smallest
        point, first, last = self.worth(accuracies).budget, undecided_from[0], undecided_to[-1]
        lower = smallest if first == 0 else Worth(min(float(grid[first]), point))
        upper = largest if last == len(grid) - 1 else Worth(max(float(grid[last]), point))
        return lower, upper


@dataclass(frozen=True)
class Bill:
    """What a method costs in one unit (FLOPs or seconds).

    Attributes:
        uniform_step: A uniform step of the large model.
        method_steps: How many steps the method trains the large model for.
        each: Every training of the large model by the method.
        once: What is paid before the first one: holdout model(s) and proxy.
    """

    uniform_step: float
    method_steps: int
    each: float
    once: float

    def speedup(self, worth: float, replays: int) -> float:
        """Uniform's cost to the same accuracy, divided by the method's share of everything over so many replays."""
        return worth * self.method_steps * self.uniform_step / (self.each + self.once / replays)

    @property
    def break_even(self) -> float:
        """What it has to be worth to pay at all, were proxy and holdout model free."""
        return self.each / (self.method_steps * self.uniform_step)

    def pays_from(self, worth: float) -> int | None:
        """The number of replays from which it is cheaper than uniform; None where it never is."""
        gain = worth * self.method_steps * self.uniform_step - self.each
        if not gain > 0:
            return None
        return 1 if math.isinf(gain) else max(1, math.floor(self.once / gain) + 1)


def verdict(worth: Worth, around: tuple[Worth, Worth] | None, bill: Bill, num_seeds: int) -> tuple[str, str]:
    """(a word, a sentence): ``pays``, ``does not pay`` or ``too close``.

    It pays when even the lower end of the interval is cheaper than uniform, and does not when even the upper end is
    not, however often the sequence is replayed.
    """
    estimate = bill.pays_from(worth.at_least)
    guess = "it does not pay" if estimate is None else f"it pays from {_replay(estimate)} on"
    if around is None:
        return "too close", f"too close to call with one seed (which alone would say: {guess})"
    surely, at_best = bill.pays_from(around[0].at_least), bill.pays_from(around[1].at_most)
    if surely is not None:
        return "pays", f"pays from {_replay(surely)} on"
    if at_best is None:
        return "does not pay", "does not pay on this data, however often it is replayed"
    if around[1].side == ">" and bill.break_even >= around[1].budget:
        guess += f"; it must be worth more than {bill.break_even:.1f}x, and uniform was run up to {around[1].budget:g}x"
    return "too close", f"too close to call with {num_seeds} seeds (best estimate: {guess})"


def _replay(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"the {number:,}{suffix} replay"


def below_uniform(method: Sequence[Sequence[float]], uniform: Sequence[Sequence[float]]) -> list[int] | None:
    """The evaluations at which a method is below uniform by more than one standard error of their difference.

    Args:
        method: For every seed, its accuracy at every evaluation.
        uniform: Likewise, of uniform training for as many steps.

    Returns:
        Their numbers from 0; None for one seed, which has no standard error.
    """
    if len(method) < 2:
        return None
    differences = np.asarray(method, np.float64) - np.asarray(uniform, np.float64)
    errors = differences.std(0, ddof=1) / math.sqrt(len(differences))
    return np.flatnonzero(differences.mean(0) < -errors - 1e-12).tolist()


def judge(
    accuracies: Sequence[float],
    frontier: Frontier,
    uniform: Sequence[Sequence[float]],
    bills: Mapping[str, Bill | None],
    replays: Sequence[int],
) -> dict[str, Any]:
    """All that is said about one method, as it goes into a file.

    Args:
        accuracies: Of every seed.
        frontier: Uniform's.
        uniform: For every seed, its accuracy on every budget of the frontier.
        bills: By unit; None where a model could not be counted.
        replays: Over how many the costs are spread.
    """
    worth, around = frontier.worth(accuracies), frontier.interval(accuracies)
    own = [frontier.worth_of_seed(seed, a) for seed, a in enumerate(accuracies)]
    fair = [b for b, budget in enumerate(frontier.budgets) if budget >= 1]
    best = [max(row[b] for b in fair) for row in uniform]
    speedups, verdicts = {}, {}
    for unit, bill in bills.items():
        if bill is None:
            continue
        verdicts[unit] = dict(zip(("word", "sentence"), verdict(worth, around, bill, len(accuracies)), strict=True))
        speedups[unit] = {str(n): _speedup(bill, worth, around, n) for n in replays}
        speedups[unit] |= asdict(bill) | {"break_even": bill.break_even}
    return {
        "accuracy": asdict(interval(accuracies)),
        "minus_uniforms_best": asdict(interval([a - b for a, b in zip(accuracies, best, strict=True)])),
        "worth": {
            "steps": _plain(worth),
            "interval": None if around is None else [_plain(w) for w in around],
            "seeds": [_plain(w) for w in own],
        },
        "speedup": speedups,
        "verdict": verdicts,
    }


def _speedup(bill: Bill, worth: Worth, around: tuple[Worth, Worth] | None, replays: int) -> dict[str, Any]:
    def scaled(w: Worth) -> dict[str, Any]:
        return _plain(Worth(bill.speedup(w.budget, replays), w.side))

    return scaled(worth) | {"interval": None if around is None else [scaled(w) for w in around]}


def _plain(worth: Worth) -> dict[str, Any]:
    return {"text": str(worth), "times": worth.budget, "side": worth.side}
