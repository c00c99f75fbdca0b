"""A file that another process is still writing, read as it grows."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from goldiprox.artifacts import Table, read_start
from goldiprox.errors import CorruptFile, MissingFile, WriterGone
from goldiprox.messages import Rows, decode_all
from goldiprox.storage import can_lock, open_file, partial_path, read_range


class FollowedTable(Table):
    """Gives rows as they reach the disk, and waits for those that have not.

    It reads, and does not map: a writer that continues after a crash cuts the file, and a map of what is cut off
    kills the process. Rows that were given never change: where the file says otherwise later, that is an error.

    Args:
        path: The name that the file will have, or its ``.partial`` name.
        kind: What it must be.
        timeout: Seconds to wait for a file that nobody writes.
        poll: Seconds between looks at it, at most.
    """

    _fd = -1

    def __init__(self, path: Path, *, kind: str, timeout: float, poll: float = 0.2):
        self.path = path.with_name(path.name.removesuffix(".partial"))
        self._kind, self._timeout, self._poll = kind, timeout, poll
        self.num_rows = 0
        self._until(self._begins)
        header, self._position, self._seal = self._start
        super().__init__(self.path, header, [], complete=False)
        self._read_on()

    @property
    def grows(self) -> bool:
        return not self.complete

    def wait(self, num_rows: int | None = None) -> None:
        """Returns when so many rows (None: all) are there, or the file is complete."""
        if not self.complete and (num_rows is None or self.num_rows < num_rows):
            self._until(lambda: self._has(num_rows))

    def _has(self, num_rows: int | None) -> bool:
        before = self.num_rows
        self._read_on()
        if not self.complete and self.num_rows == before:
            self._reopen()
            self._read_on()
        return self.complete or (num_rows is not None and self.num_rows >= num_rows)

    def _until(self, ready: Callable[[], bool]) -> None:
        """Returns when it is so; raises when it cannot become so any more."""
        pause, deadline, size = 0.01, time.monotonic() + self._timeout, -1
        while not ready():
            now, before, size = time.monotonic(), size, self._size()
            if size != before or (self._fd >= 0 and not can_lock(self._fd)):
                deadline = now + self._timeout
            elif now >= deadline:
                raise self._gone()
            if self.on_wait:
                self.on_wait()
            time.sleep(pause)
            pause = min(2 * pause, self._poll)

    def _gone(self) -> Exception:
        partial = partial_path(self.path)
        if self._fd < 0:
            return MissingFile(
                f"neither {self.path} nor {partial} has appeared within {self._timeout:g} s; start `goldiprox select`"
            )
        if not partial.exists() and self.path.exists():
            Table.open(self.path, kind=self._kind)  # which says what is wrong with it
        keep = self.header.config.get("keep") if self.num_rows else None
        there = f"{self.num_rows // keep:,} steps" if type(keep) is int and keep > 0 else f"{self.num_rows:,} rows"
        return WriterGone(
            f"{partial} holds {there} and no end mark, and nobody has been writing it for {self._timeout:g} s; "
            f"continue it (`goldiprox select --resume`) and follow it again, or use what is there: --partial "
            f"(partial=True)"
        )

    def _begins(self) -> bool:
        self._reopen()
        if self._fd < 0:
            return False
        try:
            self._start = read_start(self.path, self._content(), self._kind)
        except CorruptFile:  # as long as it is being written; what is really damaged stays so
            return False
        return True

    def _reopen(self) -> None:
        """Turns to another file where one has taken the place of this one."""
        for path in (partial_path(self.path), self.path):
            with contextlib.suppress(OSError):
                if self._fd >= 0 and os.path.samestat(os.fstat(self._fd), path.stat()):
                    return
                fd = open_file(path)
                self._close()
                self._fd = fd
                return

    def _size(self) -> int:
        return os.fstat(self._fd).st_size if self._fd >= 0 else -1

    def _content(self, start: int = 0) -> memoryview:
        try:
            return memoryview(read_range(self._fd, start, self._size()))
        except OSError as e:
            raise CorruptFile(f"{self.path} cannot be read: {e.strerror or e}") from e

    def _read_on(self) -> None:
        """Takes what has come after the rows that are here."""
        content = self._content(self._position)
        parts, complete, _ = decode_all(content, 0, self.header.columns, self.num_rows, self._seal)
        for part in parts:
            self._add(part)
        if parts:
            self._position, self._seal = self._position + parts[-1].end, parts[-1].seal
        # Its end; a file that was cut back; one that has grown again in other pieces, or half a message.
        if complete or self._size() < self._position or (content and not parts):
            self._read_again()

    def _read_again(self) -> None:
        """Reads the file from its beginning: what was given must be there, unchanged, and more may follow."""
        content = self._content()
        try:
            header, end, seal = read_start(self.path, content, self._kind)
        except CorruptFile:
            return
        if changed := self.header.differences(header):
            raise CorruptFile(f"{self.path} was begun anew while it was followed: {changed}; start over with it")
        parts, complete, _ = decode_all(content, end, header.columns, 0, seal)
        again = Table(self.path, header, parts, complete=complete)
        if again.num_rows < self.num_rows:  # cut back, and not yet where it was
            return
        rest = {}
        for name in header.columns:
            old, new = self.column(name), again.column(name)
            if not np.array_equal(old.view(np.uint8), new[: len(old)].view(np.uint8)):
                raise CorruptFile(
                    f"{self.path} has changed in rows that were given already: the run that writes it was not "
                    f"continued as it began; start over with the finished file"
                )
            rest[name] = new[len(old) :]
        if parts:
            self._position, self._seal = parts[-1].end, parts[-1].seal
        if again.num_rows > self.num_rows:
            self._add(Rows(rest, again.num_rows - self.num_rows, self._position, self._seal))
        self.complete = complete
        if complete:
            self._close()

    def _add(self, part: Rows) -> None:
        self.parts.append(part)
        self.num_rows += part.num_rows

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self._close()
