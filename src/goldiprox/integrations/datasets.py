"""Hugging Face datasets: a sequence as a `datasets.Dataset`, and the examples that it keeps.

The other way needs nothing: `goldiprox.record`, `Sequence.open` and the rest take a `datasets.Dataset` as it is. Ids
are positions in it, and its fingerprint is that of its rows, whatever format is set.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from goldiprox.errors import ConfigError, MissingExtra
from goldiprox.sequence import Sequence

try:
    from datasets import Dataset
except ImportError as e:
    raise MissingExtra("datasets", "hf", "goldiprox.integrations.datasets") from e


def to_dataset(sequence: Sequence) -> Dataset:
    """The sequence as columns: ``step``, ``id`` and what else was recorded; a row for each kept example, in order."""
    _require_whole(sequence)
    steps = np.repeat(np.arange(len(sequence)), sequence.keep)
    extra = {name: sequence.column(name) for name in sequence.header.columns if name != "id"}
    return Dataset(pa.table({"step": steps, "id": sequence.ids, **extra}))


def kept_examples(sequence: Sequence, data: Dataset) -> Dataset:
    """The kept examples themselves, in order, repeated where they were kept more than once; nothing is copied.

    Args:
        sequence: Opened for all ranks.
        data: What it was made from.
    """
    _require_whole(sequence)
    sequence.require(data)
    return data.select(sequence.ids)


def _require_whole(sequence: Any) -> None:
    if sequence.world_size != 1:
        raise ConfigError(f"the sequence was opened for rank {sequence.rank} only; open it without rank=")
