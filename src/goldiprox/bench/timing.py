"""Two things timed in turn, and their ratio."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of several repeats."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Measurement:
    """One line of a report.

    Attributes:
        name: What was compared.
        ratio: Ours divided by the reference, or the reference divided by ours where `is_speedup`.
        ours: Milliseconds, where it is a time.
        reference: Likewise.
        target: What the ratio should be: at most, or at least where `is_speedup`.
    """

    name: str
    ratio: Spread
    ours: Spread
    reference: Spread
    target: float | None = None
    is_speedup: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio.median >= self.target if self.is_speedup else self.ratio.median <= self.target

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_met": self.is_met}


def compare(
    name: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    repeats: int,
    target: float | None = None,
    is_speedup: bool = False,
    **notes: Any,
) -> Measurement:
    """Measures both in turn, so that what else happens on the machine hits both; the first round does not count.

    Args:
        name: What is compared.
        ours: Gives milliseconds.
        reference: Likewise.
        repeats: Rounds that count.
        target: For the ratio.
        is_speedup: The ratio is how many times faster ours is.
        notes: For the report.
    """
    rounds = []
    for number in range(repeats + 1):
        if number % 2:
            rounds.append((ours(), reference()))
        else:  # the other way round: what runs second finds memory warm
            theirs = reference()
            rounds.append((ours(), theirs))
    rounds = rounds[1:]
    ratios = [theirs / mine if is_speedup else mine / theirs for mine, theirs in rounds]
    times = [list(side) for side in zip(*rounds, strict=True)]
    return Measurement(
        name, Spread.of(ratios), Spread.of(times[0]), Spread.of(times[1]), target, is_speedup=is_speedup, notes=notes
    )


def milliseconds(run: Callable[[], object], count: int = 1) -> float:
    """The time that a function takes, divided by a count; includes what it left under way on a GPU."""
    finish()
    start = time.perf_counter()
    run()
    finish()
    return (time.perf_counter() - start) * 1e3 / count


def finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
