"""What a model makes of the same candidates, again and again on its way."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.acquisition import Candidates
from goldiprox.data import TensorData, iterate
from goldiprox.forward import Precision, call, device_of, in_precision
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.loop import Evaluate
from goldiprox.randomness import derive


@dataclass
class Snapshots:
    """Evaluates on the test set, and keeps the reducible losses of the same candidates every time.

    Attributes:
        evaluate: On the test set.
        data: The base data set.
        ids: The candidates, a multiple of what one step scores.
        size: How many one step scores: BatchNorm sees as many here.
        irreducible: Their table.
        precision: As in training.
    """

    evaluate: Evaluate
    data: TensorData
    ids: Tensor
    size: int
    irreducible: IrreducibleLosses
    precision: Precision
    taken: list[np.ndarray] = field(default_factory=list)

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        device = device_of(model)
        forward = in_precision(call, self.precision)
        parts = []
        for batch in iterate(self.data, self.ids.split(self.size), device=device):
            scored = Candidates(model, batch, keep=1, irreducible=self.irreducible, forward=forward)
            parts.append((scored.loss - scored.irreducible).cpu())
        self.taken.append(torch.cat(parts).numpy())
        return self.evaluate(model)


def compared_ids(train: np.ndarray, candidates: int, count: int) -> Tensor:
    """About so many ids of the training side, whole candidate batches of them: the same in every run.

    Args:
        train: The training side.
        candidates: How many a step scores.
        count: How many ids are wanted.
    """
    rng = np.random.default_rng(derive("compared candidates"))
    size = max(1, min(count, len(train)) // candidates) * candidates
    return torch.as_tensor(rng.choice(train, size, replace=False))


def taken(watcher: Evaluate) -> dict[str, np.ndarray]:
    """What a watcher has kept, for the store; nothing where it keeps nothing."""
    return {"reducible": np.stack(watcher.taken).astype(np.float32)} if isinstance(watcher, Snapshots) else {}
