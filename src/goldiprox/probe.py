"""Whether a model would choose what its proxy chose: the rank correlation of their reducible losses as they train."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.analysis import spearman
from goldiprox.assessment import score
from goldiprox.forward import Forward, call
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.loop import Evaluate, OnRecord

NUM_PROBED = 512


class Probe:
    """Some of the examples that were watched while a proxy trained, looked at whenever a model is evaluated.

    Args:
        data: The base data set.
        ids: The examples that were watched, see `goldiprox.moments.watching`.
        losses: Of these examples under the proxy, at each of its evaluations.
        table: Irreducible losses.
        forward: How the model is called.
    """

    def __init__(
        self,
        data: Any,
        ids: np.ndarray,
        losses: Sequence[Tensor],
        table: IrreducibleLosses,
        *,
        forward: Forward = call,
    ):
        rows = np.linspace(0, len(ids) - 1, min(NUM_PROBED, len(ids))).astype(np.int64)
        self._data, self._ids, self._forward = data, ids[rows], forward
        self._floor = table.values[torch.as_tensor(self._ids)]
        self._proxy = [taken[torch.as_tensor(rows)] - self._floor for taken in losses]

    def of_model(self, evaluate: Evaluate, on_record: OnRecord | None) -> tuple[Evaluate, OnRecord]:
        """Also gives ``rank_correlation``, with the proxy at the evaluation of the same number."""
        count = 0

        def counted(record: dict[str, Any]) -> None:
            nonlocal count  # by the records: a continued run hands over those of evaluations before it first
            count += 1
            if on_record:
                on_record(record)

        def compared(model: nn.Module) -> dict[str, float]:
            figures = dict(evaluate(model))
            if count < len(self._proxy):
                mine = score(model, self._data, self._ids, forward=self._forward) - self._floor
                found = spearman(self._proxy[count].numpy(), mine.numpy())
                figures |= {"rank_correlation": found} if np.isfinite(found) else {}
            return figures

        return compared, counted
