"""Image sets as the Hugging Face hub lays them out: Parquet, encoded images, integer labels."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from goldiprox.errors import DataError, MissingExtra

_LABEL_NAMES = ("label", "labels", "fine_label", "target", "y")


def read_images(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images (n, channels, height, width) as bytes, labels (n,), and class names where the files give them."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "demo", "reading images") from None
    try:
        table = pa.concat_tables([pq.read_table(p) for p in paths])
    except (pa.ArrowInvalid, OSError) as e:
        raise DataError(f"cannot read {paths[0].parent}: {e}") from e
    image_column, label_column = _columns(table.schema, paths[0])
    if not len(table):
        raise DataError(f"{paths[0].parent}: {paths[0].name} holds no examples")
    encoded = table[image_column].combine_chunks().field("bytes").to_pylist()
    labels = table[label_column].to_numpy().astype(np.int64)

    def decode(id: int) -> np.ndarray:
        try:
            image = Image.open(io.BytesIO(encoded[id]))
            return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        except (OSError, TypeError, SyntaxError, ValueError) as e:
            raise DataError(f"{paths[0].parent}: image {id} cannot be decoded ({e}); remove or replace it") from e

    first = decode(0)
    images = np.empty((len(encoded), *first.shape), np.uint8)

    def fill(start: int) -> None:
        for id in range(start, min(start + 1024, len(encoded))):
            image = decode(id)
            if image.shape != first.shape:
                raise DataError(
                    f"{paths[0].parent}: image {id} is {image.shape}, image 0 is {first.shape}; make all images "
                    f"one size and mode first"
                )
            images[id] = image

    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
        list(pool.map(fill, range(0, len(encoded), 1024)))
    images = images[:, None] if images.ndim == 3 else np.moveaxis(images, 3, 1)
    return np.ascontiguousarray(images), labels, _class_names(table.schema, label_column)


def _columns(schema: pa.Schema, path: Path) -> tuple[str, str]:
    images = [f.name for f in schema if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0]
    integers = [f.name for f in schema if pa.types.is_integer(f.type)]
    label = next((n for n in _LABEL_NAMES if n in integers), integers[0] if len(integers) == 1 else None)
    if len(images) != 1 or label is None:
        raise DataError(
            f"{path}: expected one image column ({{bytes, path}}) and an integer label column, found "
            f"{', '.join(f'{f.name}: {f.type}' for f in schema)}; rename the label column to 'label'"
        )
    return images[0], label


def _class_names(schema: pa.Schema, label_column: str) -> tuple[str, ...]:
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label_column]
        return tuple(info["names"])
    except (KeyError, TypeError, ValueError):
        return ()
