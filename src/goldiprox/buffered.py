"""Rows collected into record batches: few enough that a file reads fast, soon enough that little is lost."""

import contextlib
import time
from collections.abc import Mapping

import numpy as np

from goldiprox.artifacts import TableWriter
from goldiprox.errors import GoldiproxError

GROWTH, MAX_ROWS = 32, 2**22


class BufferedWriter:
    """Appends rows to a file, several appends to a record batch.

    A context manager: leaving it normally completes the file; leaving it through an error keeps what was appended,
    unfinished.

    Args:
        table: What it writes to.
        flush_rows: Rows per record batch; more as the file grows, so that a large one has few of them.
        flush_seconds: Rows wait no longer than this for the disk, while rows come.
    """

    def __init__(self, table: TableWriter, *, flush_rows: int = 8192, flush_seconds: float = 1.0):
        self.table = table
        self.flush_rows, self.flush_seconds = flush_rows, flush_seconds
        self._waiting: list[Mapping[str, np.ndarray]] = []
        self._num_waiting = 0
        self._flushed = time.monotonic()

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Adds rows; copied, for whoever made them may use their memory again."""
        self._waiting.append({name: np.array(values) for name, values in columns.items()})
        self._num_waiting += len(columns["id"])
        enough = max(self.flush_rows, min(self.table.num_rows // GROWTH, MAX_ROWS))
        if self._num_waiting >= enough or time.monotonic() - self._flushed >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Waits until everything appended is on the disk."""
        if self._waiting:
            names = self.table.header.columns
            self.table.append({name: np.concatenate([part[name] for part in self._waiting]) for name in names})
        self._waiting, self._num_waiting, self._flushed = [], 0, time.monotonic()

    def __enter__(self) -> "BufferedWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            # What ended the loop says more than that its last rows cannot be written either.
            with contextlib.suppress(GoldiproxError) if kind else contextlib.nullcontext():
                self.flush()
            if kind is None:
                self.table.close()
        finally:
            self.table.abandon()
