"""Image sets as the Hugging Face hub lays them out: Parquet, encoded images, integer labels."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from goldiprox.data.images import MAX_EXPANSION, SMALL, Size, decode_images
from goldiprox.errors import DataError
from goldiprox.storage import read_file

_LABEL_NAMES = ("label", "labels", "fine_label", "target", "y")


def read_images(
    paths: list[Path], *, size: Size | None = None, colour: bool | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images (n, channels, height, width) as bytes, labels (n,), and class names where the files give them.

    Args:
        paths: The files, in order.
        size: Crop and resize to this; without it, all images must have one size.
        colour: Three channels, whatever the images have.
    """
    folder = paths[0].parent
    limit = max(SMALL, MAX_EXPANSION * sum(p.stat().st_size for p in paths if p.is_file()))
    encoded: list[bytes | None] = []
    labels: list[np.ndarray] = []
    class_names, *_ = [_read(path, encoded, labels, limit) for path in paths]
    if not encoded:
        raise DataError(f"{folder}: {paths[0].name} holds no examples")
    x = decode_images(encoded, lambda id: f"image {id}", where=str(folder), limit=limit, size=size, colour=colour)
    return x, np.concatenate(labels), class_names


def _read(path: Path, encoded: list[bytes | None], labels: list[np.ndarray], limit: int) -> tuple[str, ...]:
    """Adds the images and labels of one file; gives its class names."""
    try:
        source = pa.BufferReader(pa.py_buffer(read_file(path, mapped=True)))
        file = pq.ParquetFile(source, pre_buffer=False, thrift_container_size_limit=2**20)
        schema = file.schema_arrow
        image_column, label_column = _columns(schema, path)
        sizes = [file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups)]
        if not 0 <= file.metadata.num_rows <= limit or not 0 <= sum(sizes) <= limit:
            raise DataError(f"{path} would take more than {MAX_EXPANSION} times its size; it is damaged or hostile")
        size = 0
        for batch in file.iter_batches(256, columns=[f"{image_column}.bytes", label_column], use_threads=False):
            size += batch.nbytes
            if size > limit:
                raise DataError(f"{path} takes more than {MAX_EXPANSION} times its size; it is damaged or hostile")
            if batch[label_column].null_count:
                raise DataError(f"{path}: examples have no {label_column}; remove them")
            labels.append(batch[label_column].cast(pa.int64()).to_numpy())
            encoded.extend(batch[image_column].field("bytes").to_pylist())
    except (pa.ArrowException, OSError, ValueError) as e:
        if isinstance(e, DataError):
            raise
        raise DataError(f"cannot read {path}: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
    return _class_names(schema, label_column)


def _columns(schema: pa.Schema, path: Path) -> tuple[str, str]:
    images = [f.name for f in schema if pa.types.is_struct(f.type) and _holds_bytes(f.type)]
    integers = [f.name for f in schema if pa.types.is_integer(f.type)]
    label = next((n for n in _LABEL_NAMES if n in integers), integers[0] if len(integers) == 1 else None)
    if len(images) != 1 or label is None:
        raise DataError(
            f"{path}: expected one image column ({{bytes, path}}) and an integer label column, found "
            f"{', '.join(f'{f.name}: {f.type}' for f in schema)}; rename the label column to 'label'"
        )
    return images[0], label


def _holds_bytes(struct: pa.DataType) -> bool:
    index = struct.get_field_index("bytes")  # type: ignore[attr-defined]
    return index >= 0 and (pa.types.is_binary(t := struct.field(index).type) or pa.types.is_large_binary(t))


def _class_names(schema: pa.Schema, label_column: str) -> tuple[str, ...]:
    try:
        names = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label_column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(n, str) for n in names) else ()
