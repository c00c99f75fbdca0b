"""The disk: files that only grow, locks, atomic writes. What writes files makes its system calls here."""

import contextlib
import errno
import logging
import mmap
import os
import shutil
import stat
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from goldiprox.errors import GoldiproxError, OutputInUse, OutputNotWritable

try:
    import fcntl
except ImportError:  # Windows, which has no advisory locks
    fcntl = None

LOCK_SECONDS = 1.0
_PIECE = 2**22
_NOFOLLOW, _NONBLOCK = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system refuses into an error that says what to do."""
    try:
        yield
    except GoldiproxError:
        raise
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free some space, or choose another --out" if full else "choose another --out"
        raise OutputNotWritable(
            f"writing {path} failed: {e.strerror or e}; {remedy}. What was written before is intact"
        ) from e


def partial_path(path: Path) -> Path:
    """Where a file grows until it is complete."""
    return path.with_name(path.name + ".partial")


def write_atomically(path: Path, content: bytes) -> None:
    """Puts the content under the name in one step: a reader sees the old file or the new one."""
    partial = partial_path(path)
    with writing(path):
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOFOLLOW, 0o666)
        try:
            try:
                _write(fd, content)
                os.fsync(fd)
            finally:
                os.close(fd)
            publish(partial, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def publish(partial: Path, path: Path) -> None:
    """Gives a file its name, for good."""
    with writing(path):
        os.replace(partial, path)
        sync_folder(path.parent)


def copy_atomically(path: Path, to: Path) -> None:
    """A copy of a finished file, there in one step; no link, so that what is begun anew there does not cut this one."""
    partial = partial_path(to)
    with writing(to):
        shutil.copyfile(path, partial)
        sync(partial)
        publish(partial, to)


def sync(path: Path) -> None:
    """Waits until a file that somebody else wrote is on the disk."""
    with writing(path):
        fd = os.open(path, os.O_RDWR | _NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    if os.name != "posix":  # elsewhere folders cannot be opened, and need not be synced
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:  # a disk that fills up takes a part first
        rest = rest[os.write(fd, rest) :]


def open_file(path: Path) -> int:
    """A descriptor for reading a plain file; a pipe or a device, which could block for ever, is an OSError."""
    fd = os.open(path, os.O_RDONLY | _NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file")
    return fd


def read_file(path: Path, *, mapped: bool) -> memoryview:
    """All of a file. Mapped only where nobody can cut the file: a map of what is gone kills the process."""
    fd = open_file(path)
    try:
        size = os.fstat(fd).st_size
        if mapped and size:
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        return memoryview(read_range(fd, 0, size))
    finally:
        os.close(fd)


def read_range(fd: int, start: int, end: int) -> bytes:
    """The bytes from start to end, or as many of them as are there."""
    parts = []
    while start < end and (part := os.pread(fd, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def is_being_written(path: Path) -> bool:
    """Whether a process that lives holds the file open for writing."""
    try:
        fd = open_file(path)
    except OSError:
        return False
    try:
        return not can_lock(fd)
    finally:
        os.close(fd)


def can_lock(fd: int) -> bool:
    """Whether no writer holds a file's lock. Looking takes a shared lock for a moment; writers try again."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _lock(fd: int, path: Path) -> None:
    """Takes the lock, which the system releases when the process ends, however it ends."""
    if fcntl is None:
        return
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            raise OutputInUse(
                f"another process is writing {path}; wait until it is done, or choose another --out"
            ) from None
        except OSError as e:
            _log.warning("%s cannot be locked (%s): see to it that one process alone writes it", path, e.strerror)
        return


class GrowingFile:
    """A file that one process appends to; what `append` has taken is on the disk when it returns.

    Args:
        path: The file.
        create: Begin an empty one; else continue one that is there.
    """

    _fd = -1

    def __init__(self, path: Path, *, create: bool):
        self.path = path
        self.size = 0
        self._dirty = False
        with writing(path):
            self._fd = os.open(path, os.O_RDWR | _NOFOLLOW | (os.O_CREAT if create else 0), 0o666)
            mine = False
            try:
                _lock(self._fd, path)
                self._check_place()
                mine = create
                if create:
                    os.ftruncate(self._fd, 0)
                self.size = os.fstat(self._fd).st_size
                sync_folder(path.parent)
            except BaseException:
                self.discard() if mine else self.close()
                raise
        _growing.add(self)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def read(self, start: int, end: int) -> bytes:
        """The bytes from start to end, or as many of them as are there."""
        with writing(self.path):
            return read_range(self._fd, start, min(end, self.size))

    def append(self, content: bytes | memoryview) -> None:
        """Adds to the end, all of it or nothing."""
        with writing(self.path):
            if self._dirty:
                self.cut(self.size)
            self._dirty = True
            try:
                os.lseek(self._fd, self.size, os.SEEK_SET)
                _write(self._fd, content)
                os.fsync(self._fd)
                self._check_place()
            except OSError:
                with contextlib.suppress(OSError):
                    self.cut(self.size)
                raise
        self.size += len(content)
        self._dirty = False

    def _check_place(self) -> None:
        """Raises where the file is no longer under its name: the system would let us write on, to nowhere."""
        try:
            there = os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            there = False
        if not there:
            raise OutputNotWritable(
                f"{self.path} was moved, removed or replaced while it was open; choose another --out"
            )

    def cut(self, size: int) -> None:
        """Drops what follows the first `size` bytes."""
        with writing(self.path):
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
        self.size = size
        self._dirty = False

    def replaced(self, size: int, content: bytes) -> "GrowingFile":
        """Its first `size` bytes and other content, put in its place in one step; this one is closed."""
        new = GrowingFile(self.path.with_name(self.path.name + ".new"), create=True)
        try:
            for start in range(0, size, _PIECE):
                new.append(self.read(start, min(start + _PIECE, size)))
            new.append(content)
            publish(new.path, self.path)
        except BaseException:
            new.discard()
            raise
        new.path = self.path
        self.close()
        return new

    def publish(self, path: Path) -> None:
        """Gives the file its name, and lets go of it."""
        publish(self.path, path)  # while it is locked, so that nobody begins anew in between
        self.close()

    def discard(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # everything was synced before
                os.close(fd)

    def __del__(self) -> None:
        self.close()  # a writer that was forgotten must not keep its lock


_growing: "weakref.WeakSet[GrowingFile]" = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child: a loading process that outlives its killed parent must not keep the parent's lock."""
    for file in list(_growing):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
