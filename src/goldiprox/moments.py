"""The proxy's losses on a sample of the training side, at a few moments: what was there to be kept, for pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from goldiprox.errors import CorruptFile
from goldiprox.forward import Forward, PerExampleLoss, call, cross_entropy
from goldiprox.loop import Evaluate, outputs
from goldiprox.randomness import derive
from goldiprox.storage import write_atomically

KEY = "watched"
"""Under which an evaluation holds the losses: a tensor, which checkpoints keep for a run that is continued."""
NUM_WATCHED = 2_000
NUM_MOMENTS = 12


def watched_ids(ids: np.ndarray, seed: int) -> np.ndarray:
    """At most `NUM_WATCHED` of these ids, drawn evenly."""
    rng = np.random.default_rng(derive("watched", seed))
    return np.sort(rng.choice(ids, size=min(len(ids), NUM_WATCHED), replace=False))


def watching(
    evaluate: Evaluate, data: Any, ids: np.ndarray, *, loss: PerExampleLoss = cross_entropy, forward: Forward = call
) -> Evaluate:
    """An evaluation that also gives the losses of these examples, in evaluation mode."""

    def both(model: nn.Module) -> dict[str, Any]:
        parts = [loss(output, batch.y).float().cpu() for batch, output in outputs(model, data, ids, forward=forward)]
        return {**evaluate(model), KEY: torch.cat(parts)}

    return both


@dataclass(frozen=True)
class Moments:
    """Losses of the same examples at several steps.

    Attributes:
        ids: The examples.
        steps: After how many steps, ascending.
        losses: A row for each of these steps.
    """

    ids: np.ndarray
    steps: np.ndarray
    losses: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, by_step: Mapping[int, torch.Tensor]) -> "Moments":
        """At most `NUM_MOMENTS` of these: close together at first, when losses fall fastest."""
        steps = np.array(sorted(by_step), np.int64)
        spread = np.linspace(0, 1, NUM_MOMENTS) ** 1.5 * max(len(steps) - 1, 0)
        steps = steps[np.unique(spread.round().astype(int))] if len(steps) else steps
        losses = [by_step[step].numpy() for step in steps.tolist()]
        return cls(ids, steps, np.array(losses, np.float32).reshape(len(steps), len(ids)))

    def save(self, path: Path) -> None:
        """Writes it as Parquet, a row for each step and id."""
        columns = {
            "step": np.repeat(self.steps, len(self.ids)),
            "id": np.tile(self.ids, len(self.steps)),
            "loss": self.losses.ravel(),
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        write_atomically(path, sink.getvalue().to_pybytes())

    @classmethod
    def open(cls, path: Path) -> "Moments":
        try:
            table = pq.read_table(path.resolve(), columns=["step", "id", "loss"])
            step, id, loss = (table.column(name).to_numpy() for name in ("step", "id", "loss"))
            steps, ids = np.unique(step), np.unique(id)
            whole = len(step) == len(steps) * len(ids) and np.issubdtype(ids.dtype, np.integer)
            if not whole or not (id.reshape(len(steps), -1) == ids).all():
                raise ValueError("not the same examples at every step")
            return cls(ids, steps, loss.reshape(len(steps), -1).astype(np.float32))
        except (pa.ArrowException, OSError, ValueError, TypeError) as e:
            raise CorruptFile(f"{path} cannot be understood ({e}); make the run again") from e
