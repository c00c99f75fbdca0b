"""Batches that know which examples they hold."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from goldiprox.data.resident import TensorData
from goldiprox.errors import DataError, some
from goldiprox.randomness import derive, seeded
from goldiprox.watch import has_triton

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
"""Under which of them a dictionary holds its target; the first that is there."""


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
        if all(_is_dense(part, self.num_examples) for part in self) and rows.is_cuda and has_triton():
            from goldiprox.kernels import take_rows

            return Batch(*take_rows(self, rows))
        return Batch(*(_take(part, rows, self.num_examples) for part in self))

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(*(map_tensors(lambda t: t.to(device, non_blocking=True), part) for part in self))


def _is_dense(value: Any, n: int) -> bool:
    """Whether n rows lie one after another in a GPU's memory, so that a kernel can copy them."""
    if not isinstance(value, Tensor) or not value.is_cuda or not value.ndim or not n or len(value) != n:
        return False
    return value.is_contiguous() or (value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last))


def _take(value: Any, rows: Tensor, n: int) -> Any:
    if isinstance(value, Mapping):
        return {k: _take(v, rows, n) for k, v in value.items()}
    if isinstance(value, list | tuple):
        tensors = [v for v in value if isinstance(v, Tensor)]
        uneven = isinstance(value, list) and not all(_has_rows(v, n) for v in tensors)
        if len(value) == n and (uneven or not tensors):
            return [value[row] for row in rows.tolist()]  # one of each example: text, say, or tensors of any length
        taken = [_take(v, rows, n) for v in value]
        return type(value)(*taken) if hasattr(value, "_fields") else type(value)(taken)
    if not isinstance(value, Tensor):
        return value
    if not _has_rows(value, n):
        raise DataError(
            f"a batch of {n} examples holds a tensor of shape {tuple(value.shape)}; to keep some of the examples, they "
            f"must lie along the first dimension of every tensor (padded, batch_first=True), or one by one in a list"
        )
    return value[rows.to(value.device)]


def _has_rows(value: Tensor, n: int) -> bool:
    return value.ndim > 0 and len(value) == n


def as_batch(value: Any) -> Batch:
    """What a loader over `WithIds` gave."""
    if isinstance(value, Batch):
        return value
    raise DataError(
        f"a batch must carry ids, as gp.Batch(ids, x, y): got {type(value).__name__}; wrap the data set: "
        f"DataLoader(gp.WithIds(dataset), ...), and a collate_fn of your own: gp.WithIds(dataset, collate=collate_fn) "
        f"with DataLoader(..., collate_fn=that.collate)"
    )


def split_item(item: Any) -> tuple[Any, Any]:
    """Inputs and target of one example as data sets give it: ``(x, y)``, ``(a, b, ..., y)`` or a dictionary."""
    if isinstance(item, Mapping):
        key = next((k for k in TARGET_KEYS if k in item), None)
        return {k: v for k, v in item.items() if k != key}, item[key] if key else ()
    if isinstance(item, tuple | list):
        *inputs, target = item if len(item) > 1 else (*item, ())
        return inputs[0] if len(inputs) == 1 else tuple(inputs), target
    return item, ()  # empty rather than None, which loaders cannot collate


class WithIds(Dataset):
    """Any map-style data set, its items as `Batch(id, x, y)`. Where a stage takes data, it takes this too.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``. Ids are positions in it.
        split: Turns an item into inputs and target, where `split_item` does not fit.
        collate: Makes a batch of a list of items, where they cannot simply be stacked: the ``collate_fn`` of your
            loader, which is then given ``collate_fn=data.collate``. `split` is applied to what it gives.
    """

    def __init__(
        self,
        dataset: Any,
        split: Callable[[Any], tuple[Any, Any]] = split_item,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
    ):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(
                f"{type(dataset).__name__} is not a map-style data set: ids are positions, so it needs "
                f"__len__ and __getitem__"
            )
        if isinstance(dataset, Subset) and type(self) is WithIds:
            warnings.warn(
                "gp.WithIds(Subset(data, indices)): ids are positions in the Subset. For tables and sequences of the "
                "data set itself, wrap it first: Subset(gp.WithIds(data), indices)",
                stacklevel=2,
            )
        self.dataset, self.split, self.collate_items = dataset, split, collate

    @property
    def is_plain(self) -> bool:
        """Whether items are divided and stacked in the usual way, so that resident data may be sliced instead."""
        return self.split is split_item and self.collate_items is None

    def collate(self, items: list[Batch]) -> Batch:
        """A batch of items of this data set; for loaders, ``collate_fn=data.collate``."""
        try:
            if self.collate_items is None:
                return default_collate(items)
            x, y = self.split(self.collate_items([item.x for item in items]))
            return Batch(torch.stack([item.ids for item in items]), x, y)
        except (RuntimeError, TypeError, KeyError) as e:
            how = "stacked" if self.collate_items is None else "collated"
            what, *_ = str(e).splitlines() or [type(e).__name__]
            ids = [int(item.ids) for item in items]
            raise DataError(
                f"the examples of ids {some(ids)} cannot be {how}: {what}. Pad them in the data set, "
                f"or say how to make a batch of them: gp.WithIds(data, collate=your_collate_fn)"
            ) from e

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, id: int) -> Batch:
        item = self.dataset[id]
        return Batch(torch.tensor(id), *((item, ()) if self.collate_items is not None else self.split(item)))


class _Whole(WithIds):
    """A base data set, whatever it is: a Subset too, since its own positions are meant."""


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
    with_ids = data if isinstance(data, WithIds) else _Whole(data)
    loader = DataLoader(
        _Drawing(with_ids, seed),
        collate_fn=with_ids.collate,
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
