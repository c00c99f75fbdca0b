"""The receipt: which ids a training run really consumed, to be compared with the sequence."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from goldiprox.artifacts import Header, Table, TableWriter, check_output, id_type
from goldiprox.buffered import BufferedWriter
from goldiprox.data import Batch, as_batch
from goldiprox.errors import ConfigError, CorruptFile, FingerprintMismatch, ReceiptMismatch, some
from goldiprox.irreducible import describe
from goldiprox.sequence import Sequence

KIND = "receipt"
COLUMN = "step"


def receipt(
    batches: Iterable[Any], out: str | os.PathLike[str], *, data: Any = None, force: bool = False
) -> Iterator[Batch]:
    """The same batches, their ids written down as they are handed out.

    ``for batch in gp.receipt(loader, "receipt.arrow"):`` is the whole change to a loop. The file is complete when the
    loop ends, by `break` too. `goldiprox verify sequence.arrow --receipt receipt.arrow` compares.

    Args:
        batches: A loader over `WithIds`, or anything that gives `Batch`.
        out: The file to write.
        data: The base data set; by default the loader's.
        force: Replace an existing file.
    """
    data = getattr(batches, "dataset", None) if data is None else data
    if data is None:
        raise ConfigError(f"{type(batches).__name__} has no data set; give the base data set with data=")
    about = describe(data)
    header = Header(kind=KIND, data=about, columns={"id": id_type(about["length"]), COLUMN: "uint32"})
    return _recorded(batches, check_output(out, force=force), header, force)


def _recorded(batches: Iterable[Any], path: Path, header: Header, force: bool) -> Iterator[Batch]:
    with BufferedWriter(TableWriter(path, header, force=force)) as writer:
        for step, value in enumerate(batches):
            batch = as_batch(value)
            ids = batch.ids.cpu().numpy()
            writer.append({"id": ids, COLUMN: np.full(len(ids), step, np.uint32)})
            try:
                yield batch
            except GeneratorExit:  # the loop is done with it: what it took is on the receipt
                return


def compare(sequence: Sequence, path: str | os.PathLike[str]) -> int:
    """The number of steps on a receipt; raises unless they are those of the sequence, all of them, in order."""
    table = Table.open(path, kind=KIND, partial=True)
    if COLUMN not in table.header.columns:
        raise CorruptFile(f"{path}: the header names columns {', '.join(table.header.columns)}, but no {COLUMN}")
    if table.header.data != sequence.header.data:
        raise FingerprintMismatch(f"{path} is the receipt of a run on other data than the sequence was made from")
    ids, steps = table.column("id").astype(np.int64), table.column(COLUMN)
    expected = sequence.ids
    common = min(len(ids), len(expected))
    differs = (ids[:common] != expected[:common]) | (steps[:common] != np.arange(common) // sequence.keep)
    if differs.any():
        step = int(differs.argmax()) // sequence.keep
        raise ReceiptMismatch(
            f"{path} and the sequence differ first at step {step:,}: the run trained on ids "
            f"{some(ids[steps == step].tolist())}, the sequence has {some(sequence[step].tolist())}; give the sequence "
            f"to the loader as its batch_sampler",
            step=step,
        )
    if len(ids) != len(expected):
        num_steps = len(ids) // sequence.keep
        raise ReceiptMismatch(
            f"{path} holds {num_steps:,} steps, the sequence {len(sequence):,}; those that both have agree",
            step=min(num_steps, len(sequence)),
        )
    return len(sequence)
