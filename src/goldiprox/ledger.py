"""What each stage cost: examples, FLOPs, seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from goldiprox.models import count_flops


@dataclass
class Cost:
    """The bill of one stage. `flops` is None where a model could not be counted.

    Attributes:
        examples_scored: Forward passes for choosing (or for irreducible losses).
        examples_trained: Forward and backward passes for learning.
        flops: Of both together.
        seconds: Of wall time, without evaluation.
        evaluation_seconds: Of scoring on a test set, which a user without curves does not pay.
    """

    examples_scored: int = 0
    examples_trained: int = 0
    flops: int | None = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def add(self, rate: "Rate | None", *, scored: int = 0, trained: int = 0) -> None:
        self.examples_scored += scored
        self.examples_trained += trained
        if rate is None or self.flops is None:
            self.flops = None
        else:
            self.flops += scored * rate.forward + trained * rate.training

    def merge(self, other: "Cost") -> None:
        """Adds another bill to this one."""
        self.examples_scored += other.examples_scored
        self.examples_trained += other.examples_trained
        self.flops = None if self.flops is None or other.flops is None else self.flops + other.flops
        self.seconds += other.seconds
        self.evaluation_seconds += other.evaluation_seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


@dataclass(frozen=True)
class Rate:
    """FLOPs per example of one model: forward alone, and a training step's forward and backward."""

    forward: int
    training: int


def measure_rate(model: nn.Module, forward: Any, per_example_loss: Any, batch: Any) -> Rate | None:
    """Counts a model's FLOPs on a batch; None where the counter does not know an operation it meets."""
    n = batch.num_examples
    try:
        ahead = count_flops(lambda: forward(model, batch.x))
        both = count_flops(lambda: per_example_loss(forward(model, batch.x), batch.y).sum().backward())
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    finally:
        model.zero_grad(set_to_none=True)
    return Rate(ahead // n, both // n)


@dataclass
class Ledger:
    """The bills of all stages of a run, by name."""

    stages: dict[str, Cost] = field(default_factory=dict)

    def paid_once(self, besides: bool) -> Cost:
        """What is paid before training on the sequence begins.

        Args:
            besides: Training on it begins with its recording, which is left out then; not after it.
        """
        once = Cost()
        for name, cost in self.stages.items():
            if name.startswith(("irreducible", "select", "rehearsal")) and not (besides and name == "select"):
                once.merge(cost)
        return once

    def as_dict(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(cost) for name, cost in self.stages.items()}
