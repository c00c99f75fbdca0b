"""Image sets as the Hugging Face hub lays them out: Parquet, encoded images, integer labels."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from goldiprox.data.images import MAX_EXPANSION, SMALL, Size, decode_images
from goldiprox.data.places import open_source
from goldiprox.errors import DataError

_LABEL_NAMES = ("label", "labels", "fine_label", "target", "y")


def read_images(
    paths: Sequence[str | PathLike[str]], *, size: Size | None = None, colour: bool | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images (n, channels, height, width) as bytes, labels (n,), and class names where the files give them.

    Args:
        paths: Files, or addresses of files, in order.
        size: Crop and resize to this; without it, all images must have one size.
        colour: Three channels, whatever the images have.
    """
    names = [fspath(path) for path in paths]
    folder, _, name = names[0].replace("\\", "/").rpartition("/")
    sources = [_open(path) for path in names]
    limit = max(SMALL, MAX_EXPANSION * sum(source.size() for source in sources))
    encoded: list[bytes | None] = []
    labels: list[np.ndarray] = []
    class_names, *_ = [_read(path, source, encoded, labels, limit) for path, source in zip(names, sources, strict=True)]
    if not encoded:
        raise DataError(f"{folder}: {name} holds no examples")
    x = decode_images(encoded, lambda id: f"image {id}", where=folder, limit=limit, size=size, colour=colour)
    return x, np.concatenate(labels), class_names


@dataclass(frozen=True)
class ImageRows:
    """Examples of image files by their ids: only the row groups that hold them are read.

    Attributes:
        paths: Files, or addresses of files; ids count their rows, one file after another.
        groups: For each row group the number of its file, and its own number in there.
        starts: The first id of each row group, and the number of all examples.
        columns: The names of the image column and of the label column.
    """

    paths: tuple[str, ...]
    groups: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    columns: tuple[str, str]

    @classmethod
    def of(cls, paths: Sequence[str | PathLike[str]]) -> "ImageRows":
        """From the files' footers."""
        names = tuple(fspath(path) for path in paths)
        files = [_parquet(path, _open(path)) for path in names]
        groups = [(number, group) for number, file in enumerate(files) for group in range(file.num_row_groups)]
        sizes = [files[number].metadata.row_group(group).num_rows for number, group in groups]
        columns = image_columns(files[0].schema_arrow, names[0])
        return cls(names, tuple(groups), tuple(itertools.accumulate(sizes, initial=0)), columns)

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of these ids, which ascend."""
        if len(ids) and not 0 <= ids[0] <= ids[-1] < len(self):
            raise DataError(f"ids {ids[0]:,} to {ids[-1]:,} are asked for, the files hold {len(self):,} examples")
        image_column, label_column = self.columns
        encoded: list[bytes | None] = []
        labels, size = [], 0
        first, last = np.searchsorted(self.starts, [ids[0], ids[-1]], side="right") - 1
        for start, end, (number, group) in zip(
            self.starts[first:], self.starts[first + 1 :], self.groups[first : last + 1], strict=False
        ):
            here = ids[(ids >= start) & (ids < end)]
            if not len(here):
                continue
            path = self.paths[number]
            try:
                file = _parquet(path, _open(path))
                rows = file.read_row_group(group, columns=[f"{image_column}.bytes", label_column], use_threads=False)
                rows = rows.take(pa.array(here - start))
            except (pa.ArrowException, OSError, ValueError) as e:
                raise _unreadable(path, e) from e
            size += rows.nbytes
            for chunk in rows[image_column].chunks:
                encoded.extend(chunk.field("bytes").to_pylist())
            labels.append(rows[label_column].cast(pa.int64()).to_numpy())
        where = self.paths[0].rpartition("/")[0]
        limit = max(SMALL, MAX_EXPANSION * size)
        x = decode_images(encoded, lambda row: f"image {ids[row]}", where=where, limit=limit)
        return x, np.concatenate(labels)


def _open(path: str) -> pa.NativeFile:
    try:
        return open_source(path)
    except (pa.ArrowException, OSError) as e:
        raise _unreadable(path, e) from e


def _parquet(path: str, source: pa.NativeFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, pre_buffer=False, thrift_container_size_limit=2**20)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise _unreadable(path, e) from e


def _unreadable(path: str, e: Exception) -> DataError:
    return DataError(f"cannot read {path}: {str(e).splitlines()[0] if str(e) else type(e).__name__}")


def _read(
    path: str, source: pa.NativeFile, encoded: list[bytes | None], labels: list[np.ndarray], limit: int
) -> tuple[str, ...]:
    """Adds the images and labels of one file; gives its class names."""
    try:
        file = _parquet(path, source)
        schema = file.schema_arrow
        image_column, label_column = image_columns(schema, path)
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
        raise _unreadable(path, e) from e
    return _class_names(schema, label_column)


def image_columns(schema: pa.Schema, path: str) -> tuple[str, str]:
    """The names of the image column and of the label column."""
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
