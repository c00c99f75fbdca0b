"""Files: one Arrow IPC stream each, with a header, a checksum per record batch, and an end mark.

A file grows under ``<name>.partial`` and gets its name when it is complete, so what stands under a name is
whole, and `force` replaces an older file only when the new one is. docs/formats.md describes every byte.
"""

import contextlib
import io
import json
import math
import os
import platform
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import save_model

from goldiprox._version import __version__
from goldiprox.errors import (
    CorruptFile,
    MissingFile,
    OutputExists,
    OutputNotWritable,
    UnsupportedFormat,
    WrongKind,
)

FORMAT = 1
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow's end-of-stream mark
_HEADER, _CHECKSUM, _FIRST_ROW = b"goldiprox", b"goldiprox.crc32", b"goldiprox.first_row"


def versions() -> dict[str, str]:
    """What a figure or a file was made with."""
    return {"goldiprox": __version__, "torch": torch.__version__, "python": platform.python_version()}


@dataclass(frozen=True)
class Header:
    """What a file says about itself.

    Attributes:
        kind: ``sequence`` or ``irreducible``.
        data: Fingerprint and length of the base data set.
        parents: Digests of the files it was made from.
        config: The settings it was made with.
        columns: Name and type of every column.
    """

    kind: str
    data: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)
    format: int = FORMAT

    def check(self) -> None:
        """Raises unless every part is of its type: headers come from strangers."""
        for part in (self.data, self.config, self.parents, self.columns, self.versions):
            if not isinstance(part, dict):
                raise TypeError(f"{part!r} is not a table")
        length, print_ = self.data["length"], self.data["fingerprint"]
        if not isinstance(print_, str) or not isinstance(length, int) or not 0 <= length < 2**63:
            raise TypeError("the data set is not described by its length and fingerprint")
        if not all(isinstance(v, str) for v in (*self.parents.values(), *self.columns.values(), self.kind)):
            raise TypeError("a name or digest is not text")


def id_type(length: int) -> str:
    """The smallest unsigned integer type that holds every id of a data set of this length."""
    return next(t for t in ("uint8", "uint16", "uint32", "uint64") if length <= int(np.iinfo(t).max) + 1)


def check_output(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path, if it can be written; else an error, before any work is spent on it."""
    path = Path(path)
    partial = partial_path(path)
    if len(partial.name) > 250:
        raise OutputNotWritable(f"the name {path.name[:40]}... is too long for a file; choose a shorter --out")
    if path.is_dir():
        raise OutputExists(f"{path} is a folder; give the name of a file, such as {path / 'out.arrow'}")
    if not force and path.exists():
        raise OutputExists(f"{path} exists; choose another name, or add --force (force=True) to replace it")
    if not force and partial.exists():
        raise OutputExists(
            f"{partial} holds an unfinished run; keep it by choosing another name, "
            f"or add --force (force=True) to discard it"
        )
    check_folder(path.parent)
    return path


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made if missing, if files can be written in it."""
    folder = Path(folder)
    probe = folder / f".goldiprox-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise OutputNotWritable(f"cannot write in {folder}: {e.strerror or e}; choose another --out") from e
    return folder


def partial_path(path: Path) -> Path:
    """Where a file grows until it is complete."""
    return path.with_name(path.name + ".partial")


def write_atomically(path: Path, content: bytes) -> None:
    """Puts the content under the name in one step: a reader sees the old file or the new one."""
    partial = partial_path(path)
    with _writing(path), partial.open("wb") as f:
        f.write(content)
        _sync(f)
    _publish(partial, path)


@contextlib.contextmanager
def _writing(path: Path):
    try:
        yield
    except OSError as e:
        if isinstance(e, OutputNotWritable):
            raise
        raise OutputNotWritable(f"writing {path} failed: {e.strerror or e}") from e


def _sync(f: io.BufferedWriter) -> None:
    f.flush()
    os.fsync(f.fileno())


def _publish(partial: Path, path: Path) -> None:
    with _writing(path):
        partial.replace(path)
        if os.name != "posix":  # elsewhere folders cannot be opened, and need not be synced
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _checksum(first_row: int, columns: list[np.ndarray]) -> int:
    crc = zlib.crc32(first_row.to_bytes(8, "little"))
    for values in columns:
        crc = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data, crc)
    return crc


class TableWriter:
    """Appends record batches to a file; the file has its name only after `close`."""

    def __init__(self, path: Path, header: Header, *, force: bool = False):
        self.path = check_output(path, force=force)
        self.header = header
        self.num_rows = 0
        text = json.dumps(asdict(header)).encode()
        self._schema = pa.schema(
            [pa.field(name, pa.type_for_alias(t), nullable=False) for name, t in header.columns.items()],
            metadata={_HEADER: text, _CHECKSUM: str(zlib.crc32(text))},
        )
        self._schema_bytes = self._schema.serialize().to_pybytes()
        with _writing(path):
            self._file = partial_path(path).open("wb")
            self._file.write(self._schema_bytes)
            _sync(self._file)

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Writes one record batch and waits until it is on the disk."""
        arrays = [np.asarray(columns[name]).astype(t, copy=False) for name, t in self.header.columns.items()]
        batch = pa.record_batch([pa.array(a) for a in arrays], schema=self._schema)
        stamp = {_FIRST_ROW: str(self.num_rows), _CHECKSUM: str(_checksum(self.num_rows, arrays))}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(batch, custom_metadata=stamp)
        message = memoryview(sink.getvalue())[len(self._schema_bytes) : -len(END)]
        with _writing(self.path):
            self._file.write(message)
            _sync(self._file)
        self.num_rows += len(batch)

    def close(self) -> None:
        """Marks the file as complete and gives it its name."""
        if self._file.closed:
            return
        with _writing(self.path), self._file:
            self._file.write(END)
            _sync(self._file)
        _publish(partial_path(self.path), self.path)

    def abandon(self) -> None:
        """Stops without the end mark: what was appended stays readable under the partial name."""
        if self._file.closed:
            return
        self._file.close()
        if self.num_rows == 0:
            partial_path(self.path).unlink(missing_ok=True)


class Table:
    """A file that was opened and checked: header, checksums and end mark hold.

    Columns are read from the memory-mapped file without copying.
    """

    def __init__(self, path: Path, header: Header, batches: list[pa.RecordBatch], *, complete: bool):
        self.path = path
        self.header = header
        self.complete = complete
        self.batches = batches
        self.num_rows = sum(len(b) for b in batches)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, kind: str, partial: bool = False) -> "Table":
        """Opens a file of one kind.

        Args:
            path: The file.
            kind: What it must be.
            partial: Accept a file without its end mark, and give the intact rows at its beginning.
        """
        path = Path(path)
        source = _map(path)
        reader, header = _read_header(path, source)
        if header.kind != kind:
            raise WrongKind(f"{path} is of kind {header.kind!r}, where {kind!r} is expected; give the other file")
        batches, complete, damage = _read_batches(reader, source, header)
        if not complete and not partial:
            rows = sum(len(b) for b in batches)
            raise CorruptFile(
                f"{path} is truncated or damaged: {damage}. The first {rows:,} rows are intact; make the file "
                f"again, or open it with partial=True to use them"
            )
        return cls(path, header, batches, complete=complete)

    def column(self, name: str) -> np.ndarray:
        """All values of a column (without a copy when the file has one record batch)."""
        parts = [b.column(name).to_numpy(zero_copy_only=True) for b in self.batches]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, self.header.columns[name]), *parts]).astype(
            self.header.columns[name], copy=False
        )


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a file says about itself; its rows are not looked at."""
    path = Path(path)
    return _read_header(path, _map(path))[1]


def _map(path: Path) -> pa.NativeFile:
    if not path.exists():
        unfinished = partial_path(path)
        hint = f"; {unfinished} holds an unfinished run" if unfinished.exists() else ""
        raise MissingFile(
            f"{path} does not exist{hint}; name another file, or make it with `goldiprox irreducible` or "
            f"`goldiprox select`"
        )
    try:
        return pa.memory_map(str(path))
    except (OSError, pa.ArrowInvalid) as e:
        raise CorruptFile(f"{path} cannot be read: {e}") from e


def _read_header(path: Path, source: pa.NativeFile) -> tuple[pa.RecordBatchStreamReader, Header]:
    try:
        reader = pa.ipc.open_stream(source)
        metadata = reader.schema.metadata or {}
        text = metadata[_HEADER]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, KeyError, UnicodeDecodeError) as e:
        raise CorruptFile(
            f"{path} is not a GoldiProx file, or its beginning is damaged; make it again with "
            f"`goldiprox irreducible` or `goldiprox select`"
        ) from e
    if metadata.get(_CHECKSUM) != str(zlib.crc32(text)).encode():
        raise CorruptFile(f"{path}: the header's checksum does not hold; the file is damaged, make it again")
    try:
        fields = json.loads(text)
        if fields.get("format") != FORMAT:
            raise UnsupportedFormat(
                f"{path} has format version {fields.get('format')}, this release ({__version__}) reads version "
                f"{FORMAT}; open it with the release that wrote it ({fields['versions']['goldiprox']})"
            )
        header = Header(**fields)
        header.check()
        said = {name: str(pa.type_for_alias(alias)) for name, alias in header.columns.items()}
        real = {f.name: str(f.type) for f in reader.schema}
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as e:
        if isinstance(e, UnsupportedFormat):
            raise
        raise CorruptFile(f"{path}: the header cannot be understood ({e}); the file is damaged") from e
    if real != said:
        raise CorruptFile(f"{path}: the columns differ from what the header says; the file is damaged")
    return reader, header


def _read_batches(
    reader: pa.RecordBatchStreamReader, source: pa.NativeFile, header: Header
) -> tuple[list[pa.RecordBatch], bool, str]:
    """The intact record batches from the beginning; whether that was all; what is wrong where it was not."""
    batches: list[pa.RecordBatch] = []
    rows, position = 0, source.tell()
    while True:
        try:
            batch, stamp = reader.read_next_batch_with_custom_metadata()
            first_row, crc = int(stamp[_FIRST_ROW]), int(stamp[_CHECKSUM])
            columns = [batch.column(name).to_numpy(zero_copy_only=True) for name in header.columns]
        except StopIteration:
            break
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as e:
            return batches, False, f"unreadable after byte {position:,} ({str(e).splitlines()[0]})"
        if first_row != rows or crc != _checksum(first_row, columns):
            return batches, False, f"the checksum of the part at byte {position:,} does not hold"
        batches.append(batch)
        rows, position = rows + len(batch), source.tell()
    source.seek(position)
    rest = source.read(len(END) + 1)
    if rest == END:
        return batches, True, ""
    return batches, False, "the end mark is missing" if not rest else f"unexpected bytes after {position:,}"


def write_json(path: Path, value: object) -> None:
    """A JSON file, written atomically; what is not finite becomes null, which JSON has."""
    write_atomically(path, (json.dumps(_finite(value), indent=2, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def save_weights(model: torch.nn.Module, path: Path) -> None:
    """A model's weights as safetensors, put under their name in one step."""
    partial = partial_path(path)
    with _writing(path):
        partial.touch()
        mode = partial.stat().st_mode
        try:
            save_model(model, str(partial))
        except SafetensorError as e:
            partial.unlink(missing_ok=True)
            raise OutputNotWritable(f"writing {path} failed: {e}") from e
        partial.chmod(mode)  # safetensors makes files that nobody else can read
    _publish(partial, path)


class JsonLines:
    """Writes one JSON object a line, each handed to the system before the call returns; a context manager."""

    def __init__(self, path: Path):
        self.path = path
        with _writing(path):
            self._file = path.open("w", encoding="utf-8")

    def __call__(self, record: Mapping[str, object]) -> None:
        with _writing(self.path):
            self._file.write(json.dumps(_finite(record)) + "\n")
            self._file.flush()

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
