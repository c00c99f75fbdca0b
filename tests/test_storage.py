"""Every system call of a flush, a close, a resumption and an atomic write is made to fail in turn."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import goldiprox as gp
from goldiprox import storage
from goldiprox.artifacts import Header, Table, TableWriter
from goldiprox.errors import OutputInUse, OutputNotWritable
from goldiprox.storage import GrowingFile, is_being_written, partial_path, write_atomically

HEADER = Header(kind="sequence", data={"fingerprint": "x", "length": 100}, config={"keep": 1}, columns={"id": "uint8"})
CALLS = ("open", "write", "fsync", "ftruncate", "replace", "lseek", "fstat", "stat", "unlink", "close", "pread")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)


class Faults:
    """The `os` module, in which the call of this number fails, and with `lasting` every later one too."""

    def __init__(self, number: int, error: int = 0, *, lasting: bool = False):
        self.number, self.error, self.lasting = number, error, lasting
        self.count = 0

    def __getattr__(self, name: str):
        real = getattr(os, name)
        return self._faulty(name, real) if name in CALLS else real

    def _faulty(self, name: str, real):
        def call(*arguments, **options):
            self.count += 1
            if self.count == self.number or (self.lasting and self.count > self.number):
                if name == "close":
                    real(*arguments)  # which the system does even where it reports an error
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **options)

        return call


def every_fault(monkeypatch, scenario):
    """Runs a scenario once for each of its system calls, error, and duration of the fault."""
    counting = Faults(0)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "os", counting)
        scenario("whole")
    assert counting.count > 5
    for number in range(1, counting.count + 1):
        for error in ERRORS:
            for lasting in (False, True):
                name = f"{number}-{error}-{lasting}"
                with monkeypatch.context() as patch:
                    patch.setattr(storage, "os", Faults(number, error, lasting=lasting))
                    failed = False
                    try:
                        scenario(name)
                    except OutputNotWritable:
                        failed = True
                yield name, failed


def rows_in(path: Path) -> list[int]:
    path = path if path.exists() else partial_path(path)
    return Table.open(path, kind="sequence", partial=True).column("id").tolist() if path.exists() else []


IDS = [1, 2, 3, 4, 5, 6]


def test_a_failing_disk_loses_nothing_that_was_acknowledged(tmp_path, monkeypatch):
    acknowledged: dict[str, list[int]] = {}

    def scenario(name: str) -> None:
        writer = TableWriter(tmp_path / name, HEADER)
        acknowledged[name] = []
        try:
            for first in range(0, 6, 2):
                writer.append({"id": np.array(IDS[first : first + 2])})
                acknowledged[name] += IDS[first : first + 2]
            writer.close()
        finally:
            writer.abandon()

    outcomes = dict(every_fault(monkeypatch, scenario))
    assert sum(outcomes.values()) > len(outcomes) // 2
    for name, failed in outcomes.items():
        path = tmp_path / name
        if name not in acknowledged:  # it could not even be begun
            assert not path.exists()
            continue
        held = rows_in(path)
        assert held == IDS[: len(held)]
        assert len(held) >= len(acknowledged[name])
        if not failed:
            assert Table.open(path, kind="sequence").column("id").tolist() == IDS
        assert not is_being_written(partial_path(path))


def test_after_a_passing_fault_the_same_writer_goes_on(tmp_path, monkeypatch):
    def scenario(name: str) -> None:
        writer = TableWriter(tmp_path / name, HEADER)
        for first in range(0, 6, 2):
            part = {"id": np.array(IDS[first : first + 2])}
            try:
                writer.append(part)
            except OutputNotWritable:
                writer.append(part)
        writer.close()

    for name, failed in every_fault(monkeypatch, scenario):
        if not failed:
            assert Table.open(tmp_path / name, kind="sequence").column("id").tolist() == IDS


@pytest.mark.parametrize("num_rows", [2, 3])
def test_a_failing_disk_while_continuing_loses_nothing(tmp_path, monkeypatch, num_rows):
    def scenario(name: str) -> None:
        path = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(storage, "os", os)
            writer = TableWriter(path, HEADER)
            writer.append({"id": np.array(IDS[:2])})
            writer.append({"id": np.array(IDS[2:])})
            writer.abandon()
        TableWriter(path, HEADER, resume_at=num_rows).close()

    for name, failed in every_fault(monkeypatch, scenario):
        held = rows_in(tmp_path / name)
        assert held == (IDS[: len(held)] if failed else IDS[:num_rows])
        assert len(held) >= num_rows


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    def scenario(name: str) -> None:
        (tmp_path / name).write_bytes(b"old")
        write_atomically(tmp_path / name, b"something new")

    seen = set()
    for name, failed in every_fault(monkeypatch, scenario):
        content = (tmp_path / name).read_bytes()
        assert content in (b"old", b"something new")
        assert failed or content == b"something new"
        seen.add((failed, content))
    assert (True, b"old") in seen


def test_a_failing_disk_while_a_table_is_saved(tmp_path, monkeypatch):
    table = gp.IrreducibleLosses(torch.ones(10), data={"fingerprint": "x", "length": 10})
    for name, failed in every_fault(monkeypatch, lambda name: table.save(tmp_path / name)):
        path = tmp_path / name
        assert not is_being_written(partial_path(path))
        assert failed or gp.IrreducibleLosses.open(path).digest == table.digest


def test_a_forgotten_writer_lets_go_of_its_lock(tmp_path):
    file = GrowingFile(tmp_path / "a", create=True)
    assert is_being_written(file.path)
    del file
    assert not is_being_written(tmp_path / "a")


def test_a_disk_that_is_really_full(tmp_path):
    code = """
import resource, sys, torch, goldiprox as gp
from goldiprox.errors import OutputNotWritable
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
acknowledged = 0
try:
    data = {"fingerprint": "x", "length": 1000}
    with gp.SequenceWriter(sys.argv[1], data=data, keep=10, flush_rows=50) as writer:
        for step in range(10_000):
            writer.append(torch.arange(10) + step % 900)
            if (step + 1) % 5 == 0:
                writer.flush()
                acknowledged = step + 1
except OutputNotWritable as e:
    print(acknowledged, e)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True, check=True)
    acknowledged, _, message = done.stdout.partition(" ")
    assert "File too large; free some space" in message
    held = Table.open(tmp_path / "s.partial", kind="sequence", partial=True)
    assert held.num_rows == 10 * int(acknowledged) > 0
    assert held.column("id").tolist() == [i + s % 900 for s in range(int(acknowledged)) for i in range(10)]
    assert (tmp_path / "s.partial").stat().st_size < 20_000  # the part that did not fit was cut off again


def test_a_read_only_folder(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(storage.os, "open", refuse)
    with pytest.raises(OutputNotWritable, match="Read-only file system; choose another --out"):
        write_atomically(tmp_path / "a", b"")


def test_a_link_in_place_of_the_growing_file_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("content")
    (tmp_path / "a.partial").symlink_to(tmp_path / "precious")
    for write in (
        lambda: write_atomically(tmp_path / "a", b""),
        lambda: GrowingFile(tmp_path / "a.partial", create=True),
    ):
        with pytest.raises(OutputNotWritable):
            write()
    assert (tmp_path / "precious").read_text() == "content"


def test_the_lock_ends_with_its_process(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from goldiprox.storage import GrowingFile\n"
        "file = GrowingFile(Path(sys.argv[1]), create=True); file.append(b'abc'); print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    path = tmp_path / "a"
    process = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "open\n"
        assert is_being_written(path)
        with pytest.raises(OutputInUse, match="another process is writing"):
            GrowingFile(path, create=False)
    finally:
        process.kill()
        process.communicate()
    assert not is_being_written(path)
    assert GrowingFile(path, create=False).read(0, 9) == b"abc"


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    file = GrowingFile(tmp_path / "a", create=True)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # only system calls: the parent's threads are not here
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert is_being_written(file.path)
    file.close()
    assert not is_being_written(file.path)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for fd in (*ready, *done):
        os.close(fd)


def test_a_file_system_without_locks_still_takes_files(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    file = GrowingFile(tmp_path / "a", create=True)
    file.append(b"abc")
    assert "cannot be locked" in caplog.text
    assert not is_being_written(file.path)
    file.close()
