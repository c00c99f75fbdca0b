"""The kept examples themselves, in the order of a sequence, as Parquet files: for readers that only stream."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from goldiprox.artifacts import check_folder
from goldiprox.data import Batch, TensorData, iterate, unwrap
from goldiprox.errors import ConfigError, DataError, OutputExists
from goldiprox.sequence import Sequence
from goldiprox.storage import partial_path, publish, sync, writing

KEY = "goldiprox"


def materialize(
    sequence: Sequence,
    data: Any,
    out: str | os.PathLike[str],
    *,
    shard_rows: int = 65_536,
    force: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> list[Path]:
    """Writes the examples of a sequence, step by step: columns ``step``, ``id``, and the inputs and targets.

    Tensors of more than one number are lists of fixed length; their shapes, and mean and standard deviation of data
    that is normalised when it is taken, stand in the schema's metadata under ``goldiprox``. `TensorData` is written as
    it is stored: bytes stay bytes.

    Args:
        sequence: Opened for all ranks.
        data: The data set it was made from.
        out: A new folder; it gets its name when it is complete.
        shard_rows: Rows per file, at most; a step is never divided.
        force: Replace the folder.
        on_step: Called with the number of steps done.

    Returns:
        The files, in order.
    """
    sequence.require(data)
    if sequence.world_size != 1:
        raise ConfigError(f"the sequence was opened for rank {sequence.rank} only; open it without rank=")
    if not len(sequence):
        raise ConfigError("the sequence has no steps")
    out = Path(out)
    if out.is_file() or (out.exists() and any(out.iterdir()) and not force):
        raise OutputExists(f"{out} exists; choose another --out, or add --force (force=True) to replace it")
    check_folder(out.parent)
    partial = partial_path(out)
    each = max(1, shard_rows // sequence.keep)
    firsts = range(0, len(sequence), each)
    names = [f"part-{number:05d}-of-{len(firsts):05d}.parquet" for number in range(len(firsts))]
    with writing(out):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for first, name in zip(firsts, names, strict=True):
            steps = range(first, min(first + each, len(sequence)))
            with pq.ParquetWriter(partial / name, (start := _table(sequence, data, steps[:1])).schema) as writer:
                writer.write_table(start)
                for few in _in_blocks(steps[1:], max(1, 1024 // sequence.keep)):
                    writer.write_table(_table(sequence, data, few))
            sync(partial / name)
            if on_step:
                on_step(steps.stop)
        if out.exists():
            shutil.rmtree(out)
        publish(partial, out)
    return [out / name for name in names]


def _in_blocks(steps: range, count: int) -> Iterator[range]:
    for first in range(0, len(steps), count):
        yield steps[first : first + count]


def _table(sequence: Sequence, data: Any, steps: range) -> pa.Table:
    ids = np.concatenate([sequence[step] for step in steps])
    columns = {
        "step": torch.arange(steps.start, steps.stop).repeat_interleave(sequence.keep),
        "id": torch.from_numpy(ids),
    }
    described: dict[str, Any] = {"fingerprint": sequence.header.data["fingerprint"], "keep": sequence.keep}
    base = unwrap(data)
    if isinstance(base, TensorData):
        values = {"x": base.x[ids].cpu(), "y": base.y[ids].cpu()}
        described |= {"mean": base.mean, "std": base.std}
    else:
        batch: Batch = next(iterate(data, [ids], device="cpu"))
        values = {**_named("x", batch.x), **_named("y", batch.y)}
    clash = values.keys() & columns.keys()
    if clash:
        raise DataError(f"examples have parts named {', '.join(sorted(clash))}, which name the step and the id here")
    columns |= values
    described["shapes"] = {name: list(v.shape[1:]) for name, v in columns.items()}
    arrays = [_array(value) for value in columns.values()]
    table = pa.table(arrays, names=list(columns))
    return table.replace_schema_metadata({KEY: json.dumps(described)})


def _named(name: str, value: Any) -> dict[str, Tensor]:
    """The tensors of an example's part, by name."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, Mapping):
        return {k: v for key, inner in value.items() for k, v in _named(str(key), inner).items()}
    if isinstance(value, tuple | list):
        return {k: v for n, inner in enumerate(value) for k, v in _named(f"{name}{n}", inner).items()}
    raise DataError(f"an example's {name} is {type(value).__name__}; only tensors can be written")


def _array(values: Tensor) -> pa.Array:
    flat = pa.array(values.contiguous().flatten().numpy())
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values[0].numel())
