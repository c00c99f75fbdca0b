"""What a selection looks like while it runs: how much it has seen, how often, how its scores lie."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldiprox.errors import ConfigError

QUANTILES = {"score_p10": 0.1, "score_p50": 0.5, "score_p90": 0.9}
_BATCH = 64
"""Steps that are looked at together."""


class Picks:
    """Figures of a selection since the last evaluation, and since its beginning.

    * ``coverage``: the share of the training side that was ever kept
    * ``repetition``: how often an example that was kept at all was kept, in the mean
    * ``corrupted``: the share of what was kept since the last evaluation that is known to be damaged
    * ``score_p10``, ``score_p50``, ``score_p90``: quantiles of the candidates' scores, in the mean of those steps

    Args:
        length: Of the base data set.
        num_train: Of the training side.
        corrupted: One flag per id of the base data set, where that is known.
    """

    def __init__(self, length: int, num_train: int, corrupted: np.ndarray | None = None):
        if corrupted is not None and np.shape(corrupted) != (length,):
            raise ConfigError(
                f"`corrupted` has shape {np.shape(corrupted)}; give one flag for each of the {length:,} examples"
            )
        self._num_train, self._flags = num_train, corrupted
        self._seen = np.zeros(length, bool)
        self._kept = 0
        self._window = [0, 0]  # kept, and damaged among them
        self._sums = [0.0] * len(QUANTILES)
        self._num_scored = 0
        self._waiting: list[tuple[Tensor, Tensor | None]] = []

    def add(self, ids: Tensor, values: Mapping[str, Tensor]) -> None:
        """What a step kept, and what is known of its candidates."""
        self._waiting.append((ids, values.get("scores")))
        if len(self._waiting) >= _BATCH:
            self._look()

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._count(np.concatenate([ids.numpy() for ids, _ in waiting]))
        scores = [s for _, s in waiting if s is not None]
        if not scores:
            return
        ordered = np.sort(torch.stack(scores).float().cpu().numpy(), axis=1)  # one copy, where they lie on a GPU
        rows = [round(q * (ordered.shape[1] - 1)) for q in QUANTILES.values()]
        for quantiles in ordered[
            :, rows
        ].tolist():  # step by step, so that sums do not depend on where a run was broken
            self._sums = [a + b for a, b in zip(self._sums, quantiles, strict=True)]
        self._num_scored += len(scores)

    def _count(self, ids: np.ndarray) -> None:
        self._seen[ids] = True
        self._kept += len(ids)
        self._window[0] += len(ids)
        self._window[1] += 0 if self._flags is None else int(self._flags[ids].sum())

    def figures(self) -> dict[str, float]:
        """As above; begins a new window."""
        self._look()
        seen = int(self._seen.sum())
        found = {"coverage": seen / self._num_train, "repetition": self._kept / max(seen, 1)}
        if self._flags is not None and self._window[0]:
            found["corrupted"] = self._window[1] / self._window[0]
        if self._num_scored:
            found |= {name: total / self._num_scored for name, total in zip(QUANTILES, self._sums, strict=True)}
        self._window, self._sums, self._num_scored = [0, 0], [0.0] * len(QUANTILES), 0
        return found

    def state(self) -> dict[str, Any]:
        self._look()
        return {"sums": self._sums, "num_scored": self._num_scored, "window": self._window}

    def restore(self, blocks: Iterable[np.ndarray], state: Mapping[str, Any]) -> None:
        """Goes on after these ids, some at a time."""
        for ids in blocks:
            self._count(ids)
        self._sums, self._num_scored = state.get("sums", self._sums), state.get("num_scored", 0)
        self._window = list(state.get("window", [0, 0]))
