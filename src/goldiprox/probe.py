"""Whether a model would choose what its proxy chose: the rank correlation of their reducible losses as they train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import nn

from goldiprox.analysis import spearman
from goldiprox.errors import CorruptFile
from goldiprox.forward import Forward, call
from goldiprox.holdout import score
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.loop import Evaluate, OnRecord
from goldiprox.randomness import derive
from goldiprox.storage import write_atomically

NUM_PROBED = 512


class Probe:
    """A fixed sample of the training side, looked at whenever proxy and model are evaluated.

    The proxy is evaluated first; a model that is evaluated at the same steps then gets ``rank_correlation``.

    Args:
        data: The base data set.
        ids: The training side.
        table: Irreducible losses.
        forward: How models are called.
        seed: Of the sample.
        path: Where to keep what the proxy had, for a run that is continued.
    """

    def __init__(
        self,
        data: Any,
        ids: np.ndarray,
        table: IrreducibleLosses,
        *,
        forward: Forward = call,
        seed: int = 0,
        path: Path | None = None,
    ):
        rng = np.random.default_rng(derive("probe", seed))
        self.ids = np.sort(rng.choice(ids, min(NUM_PROBED, len(ids)), replace=False))
        self._data, self._forward, self._path = data, forward, path
        self._floor = table.values[torch.as_tensor(self.ids)]
        self._proxy: dict[str, torch.Tensor] = {}
        if path is not None and path.exists():
            try:
                self._proxy = load(path.read_bytes())
            except Exception as e:
                raise CorruptFile(f"{path} cannot be read ({e}); add --force (force=True) to start over") from e

    def of_proxy(self, evaluate: Evaluate, on_record: OnRecord | None) -> tuple[Evaluate, OnRecord]:
        """Also remembers the proxy's reducible losses."""

        def remember(number: int, model: nn.Module) -> dict[str, float]:
            self._proxy[str(number)] = self._reducible(model)
            if self._path is not None:
                write_atomically(self._path, save(self._proxy))
            return {}

        return _numbered(evaluate, on_record, remember)

    def of_model(self, evaluate: Evaluate, on_record: OnRecord | None) -> tuple[Evaluate, OnRecord]:
        """Also gives the rank correlation with the proxy at the same evaluation."""

        def compare(number: int, model: nn.Module) -> dict[str, float]:
            proxy = self._proxy.get(str(number))
            found = float("nan") if proxy is None else spearman(proxy.numpy(), self._reducible(model).numpy())
            return {"rank_correlation": found} if np.isfinite(found) else {}

        return _numbered(evaluate, on_record, compare)

    def _reducible(self, model: nn.Module) -> torch.Tensor:
        return score(model, self._data, self.ids, forward=self._forward) - self._floor


def _numbered(
    evaluate: Evaluate, on_record: OnRecord | None, look: Callable[[int, nn.Module], dict[str, float]]
) -> tuple[Evaluate, OnRecord]:
    """Counts evaluations by the records of them: a continued run hands over those before it first."""
    count = 0

    def counted(record: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if on_record:
            on_record(record)

    return lambda model: {**look(count, model), **evaluate(model)}, counted
