"""Batches that know which examples they hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from goldiprox.data.resident import TensorData
from goldiprox.errors import DataError
from goldiprox.randomness import derive, seeded
from goldiprox.watch import has_triton

_TARGET_KEYS = ("labels", "label", "targets", "target", "y")


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies a function to every tensor inside tuples, lists and dictionaries; leaves the rest alone."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {k: map_tensors(function, v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, v) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(function, v) for v in value)
    return value


class Batch(NamedTuple):
    """Examples with their ids: a named tuple, so loaders collate it, pin it and move it as it is.

    Attributes:
        ids: Positions in the base data set.
        x: The inputs, of any structure, examples along the first dimension of every tensor.
        y: The targets, likewise; empty where there are none.
    """

    ids: Int[Tensor, " n"]
    x: Any
    y: Any

    @property
    def num_examples(self) -> int:
        return self.ids.numel()

    def take(self, rows: Int[Tensor, " k"]) -> "Batch":
        """The batch of these rows (positions inside this batch), in that order."""
        if all(map(_is_dense, self)) and rows.is_cuda and has_triton():
            from goldiprox.kernels import take_rows

            return Batch(*take_rows(self, rows))
        return Batch(*(_take(part, rows, self.num_examples) for part in self))

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(*(map_tensors(lambda t: t.to(device, non_blocking=True), part) for part in self))


def _is_dense(value: Any) -> bool:
    """Whether rows lie one after another in a GPU's memory, so that a kernel can copy them."""
    if not isinstance(value, Tensor) or not value.is_cuda or not len(value):
        return False
    return value.is_contiguous() or (value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last))


def _take(value: Any, rows: Tensor, n: int) -> Any:
    if isinstance(value, list | tuple) and len(value) == n and not any(isinstance(v, Tensor) for v in value):
        return [value[row] for row in rows.tolist()]  # what loaders leave as it is: text, say
    if isinstance(value, Mapping):
        return {k: _take(v, rows, n) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_take(v, rows, n) for v in value)
    return value[rows.to(value.device)] if isinstance(value, Tensor) else value


def as_batch(value: Any) -> Batch:
    """What a loader over `WithIds` gave, as a Batch."""
    if isinstance(value, Batch):
        return value
    if isinstance(value, tuple | list) and len(value) == 3 and isinstance(value[0], Tensor):
        ids = value[0]
        if ids.ndim == 1 and not ids.is_floating_point():
            return Batch(*value)
    raise DataError(
        f"a batch must carry ids: got {type(value).__name__}; wrap the data set: DataLoader(gp.WithIds(dataset), ...)"
    )


def split_item(item: Any) -> tuple[Any, Any]:
    """Inputs and target of one example as data sets give it: ``(x, y)``, ``(a, b, ..., y)`` or a dictionary."""
    if isinstance(item, Mapping):
        key = next((k for k in _TARGET_KEYS if k in item), None)
        return {k: v for k, v in item.items() if k != key}, item[key] if key else ()
    if isinstance(item, tuple | list):
        *inputs, target = item if len(item) > 1 else (*item, ())
        return inputs[0] if len(inputs) == 1 else tuple(inputs), target
    return item, ()  # empty rather than None, which loaders cannot collate


class WithIds(Dataset):
    """Any map-style data set, its items as `Batch(id, x, y)`.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``.
        split: Turns an item into inputs and target, where `split_item` does not fit.
    """

    def __init__(self, dataset: Any, split: Callable[[Any], tuple[Any, Any]] = split_item):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(
                f"{type(dataset).__name__} is not a map-style data set: ids are positions, so it needs "
                f"__len__ and __getitem__"
            )
        self.dataset = dataset
        self.split = split

    @property
    def is_plain(self) -> bool:
        """Whether items are divided in the usual way, so that resident data may be sliced instead."""
        return self.split is split_item

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, id: int) -> Batch:
        x, y = self.split(self.dataset[id])
        return Batch(torch.tensor(id), x, y)


def unwrap(data: Any) -> Any:
    """The base data set inside `WithIds`."""
    return data.dataset if isinstance(data, WithIds) else data


def iterate(
    data: Any,
    batch_ids: Iterable[Any],
    *,
    device: torch.device | str,
    num_workers: int | None = None,
    seed: int = 0,
    first: int = 0,
) -> Iterator[Batch]:
    """The batches of these ids, on the device: sliced where the data is resident, else through a DataLoader.

    What a data set draws itself (augmentation) depends on the seed and on the number of the batch: not on how many
    processes load, nor on whether the batches before were loaded.

    Args:
        data: `TensorData`, or any map-style data set.
        batch_ids: For each batch, its ids (list, array or tensor).
        device: Where the batches go.
        num_workers: Processes that load. None: slice `TensorData` directly, load other data in this process.
        seed: Of what the data set draws.
        first: The number of the first batch.
    """
    if isinstance(data, WithIds) and data.is_plain:
        data = data.dataset
    if isinstance(data, TensorData) and num_workers is None:
        data = data.resident(device)
        for ids in batch_ids:
            ids = torch.as_tensor(ids, dtype=torch.int64, device=data.x.device)
            yield Batch(ids, *data.gather(ids)).to(device)
        return
    if isinstance(data, TensorData):
        data = data.to("cpu")  # loading processes hand over memory of the host
    with_ids = data if isinstance(data, WithIds) else WithIds(data)
    loader = DataLoader(
        _Drawing(with_ids, seed),
        batch_sampler=_Numbered(batch_ids, first),
        num_workers=num_workers or 0,
        pin_memory=torch.device(device).type == "cuda",
        # Without a generator of its own the loader would draw from the global one.
        generator=torch.Generator().manual_seed(seed),
    )
    yield from _ahead(map(as_batch, loader), torch.device(device))


def _ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches on the device; on a GPU the next one is copied while this one is used."""
    if device.type != "cuda":
        for batch in batches:
            yield batch.to(device)
        return
    copying, using = torch.cuda.Stream(device), torch.cuda.current_stream(device)

    def copy(batch: Batch | None) -> Batch | None:
        with torch.cuda.stream(copying):
            return None if batch is None else batch.to(device)

    coming = copy(next(batches, None))
    while coming is not None:
        using.wait_stream(copying)
        batch = coming
        # Its memory came from the other stream, which must not use it again before this one is done.
        map_tensors(lambda t: t.record_stream(using) or t, tuple(batch))
        coming = copy(next(batches, None))
        yield batch


class _Numbered:
    """The number of every batch, and its ids as the list of ints that loaders pass on."""

    def __init__(self, batch_ids: Iterable[Any], first: int):
        self.batch_ids, self.first = batch_ids, first

    def __iter__(self) -> Iterator[list[Any]]:
        for number, ids in enumerate(self.batch_ids, self.first):
            yield [number, torch.as_tensor(ids).tolist()]


class _Drawing(Dataset):
    """Whole batches of a data set, each with its own draws."""

    def __init__(self, dataset: WithIds, seed: int):
        self.dataset, self.seed = dataset, seed

    def __getitems__(self, numbered: list[Any]) -> list[Batch]:
        number, ids = numbered
        with seeded(derive("loading", self.seed, number)):
            return [self.dataset[id] for id in ids]
