"""Batches of ids that are known beforehand, made on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from goldiprox.data import Batch, TensorData, WithIds, unwrap


def loading_processes(engine: str, num_workers: int | None) -> int | None:
    """How many processes load: the engine ``loader`` loads in this one where nothing is said."""
    return 0 if engine == "loader" and num_workers is None else num_workers


def on_device(data: Any, device: torch.device, num_workers: int | None) -> TensorData | None:
    """The data where a GPU can slice it by itself; None where it has to be loaded."""
    if device.type != "cuda" or num_workers is not None or (isinstance(data, WithIds) and not data.is_plain):
        return None
    data = unwrap(data)
    resident = data.resident(device) if isinstance(data, TensorData) else None
    numbered = torch.empty(0, device=device).device  # "cuda" is "cuda:0", or whichever is the current one
    return resident if resident is not None and resident.x.device == numbered else None


class Given:
    """A feed of known ids.

    Args:
        data: Lies on the device.
        rows: (first step, count) -> the ids of at most that many steps, one row each; none at the end.
        batches: The same batches for steps that run one by one.
        written: Gets the ids of steps that were done.
    """

    def __init__(
        self,
        data: TensorData,
        rows: Callable[[int, int], Tensor],
        batches: Iterable[Batch],
        written: Callable[[int, Mapping[str, Tensor]], None] = lambda first, values: None,  # noqa: ARG005
    ):
        self.data, self.window, self.batches, self.written = data, rows, batches, written

    def batch(self, ids: Tensor, step: Tensor) -> tuple[Batch, Mapping[str, Tensor]]:  # noqa: ARG002
        return Batch(ids, *self.data.gather(ids)), {}

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)
