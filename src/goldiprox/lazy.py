"""A large complete file: opened at once, each part checked when it is first read, none of it kept in memory."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from goldiprox.artifacts import Table, read_start
from goldiprox.errors import CorruptFile
from goldiprox.messages import END, MAX_METADATA, Damage, Span, check_span, locate, read_values
from goldiprox.storage import open_file, read_range

EAGER_BYTES = 2**24
"""Files up to this size are checked as a whole when they are opened."""


class _File:
    """A file that stays open, read without a position, so that forked processes can share it."""

    def __init__(self, path: Path):
        self.path = path
        self._fd = open_file(path)
        self.size = os.fstat(self._fd).st_size

    def read(self, start: int, end: int) -> bytes:
        try:
            return read_range(self._fd, start, min(end, self.size))
        except OSError as e:
            raise CorruptFile(f"{self.path} cannot be read: {e.strerror or e}") from e

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


class LazyRows:
    """One record batch of a file; its seal is checked before the first value is given."""

    def __init__(
        self, file: _File, span: Span, columns: Mapping[str, str], before: int, check: Callable[["LazyRows"], None]
    ):
        self._file, self._span, self._columns, self._before = file, span, columns, before
        self._check, self._checked = check, False
        self.num_rows = span.num_rows

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        return {name: self.values(name, 0, self.num_rows) for name in self._columns}

    def values(self, name: str, first: int, end: int) -> np.ndarray:
        """Some values of a column, read anew."""
        if not self._checked:
            self._verify()
            self._checked = True
            self._check(self)
        return read_values(self._file.read, self._span, self._columns, name, first, end)

    def _verify(self) -> None:
        span = self._span
        try:
            check_span(self._file.read, span, self._before)
        except Damage as e:
            raise CorruptFile(
                f"{self._file.path} is truncated or damaged: the part at byte {span.start:,} is damaged ({e}). Rows "
                f"{span.first_row:,} to {span.first_row + self.num_rows - 1:,} cannot be used; make the file again, or "
                f"open it with partial=True to use what is intact before it"
            ) from e


class LazyTable(Table):
    """A complete file whose parts are found by their lengths, and checked when they are first read."""

    @classmethod
    def open_large(cls, path: Path, kind: str) -> "LazyTable | None":
        """The table of a file; None where its parts do not follow one another up to the end mark."""
        try:
            file = _File(path)
        except OSError as e:
            raise CorruptFile(f"{path} cannot be read: {e.strerror or e}") from e
        header, start, seal = read_start(path, memoryview(file.read(0, MAX_METADATA + 8)), kind)
        table = cls(path, header, [], complete=True)
        try:
            while start + len(END) < file.size:
                span = locate(file.read, file.size, start, header.columns, table.num_rows)
                table.parts.append(LazyRows(file, span, header.columns, seal, table._check))  # type: ignore[arg-type]
                table.num_rows += span.num_rows
                start, seal = span.end, span.seal
        except Damage:
            return None
        return table if file.read(start, file.size) == END else None

    def _check(self, part: LazyRows) -> None:
        self.check_part(part)


def open_table(path: str | os.PathLike[str], *, kind: str, partial: bool = False) -> Table:
    """Opens a file of one kind, a large complete one without reading all of it; see `Table.open`."""
    path = Path(path)
    if not partial and path.suffix != ".partial" and path.is_file() and path.stat().st_size > EAGER_BYTES:
        table = LazyTable.open_large(path, kind)
        if table is not None:
            return table
    return Table.open(path, kind=kind, partial=partial)  # which says what is wrong, where something is
