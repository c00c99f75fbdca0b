"""Files: one Arrow IPC stream each, with a header, a seal on every message, and an end mark.

A file grows under ``<name>.partial`` and gets its name when it is complete, so what stands under a name is
whole, and `force` replaces an older file only when the new one is. docs/formats.md describes every byte.
"""

import bisect
import functools
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from goldiprox._version import __version__
from goldiprox.errors import (
    ConfigError,
    CorruptFile,
    MissingFile,
    OutputExists,
    OutputInUse,
    OutputNotWritable,
    UnsupportedFormat,
    WrongKind,
)
from goldiprox.messages import (
    END,
    MAX_DEPTH,
    MAX_METADATA,
    TYPES,
    Damage,
    Rows,
    Span,
    check_span,
    decode_all,
    decode_header,
    depth,
    encode_header,
    encode_rows,
    locate,
    read_values,
)
from goldiprox.storage import (
    GrowingFile,
    is_being_written,
    partial_path,
    read_file,
)

if TYPE_CHECKING:  # whoever only reads a file needs no torch
    pass

FORMAT = 1
_BLOCK = 2**20


def versions() -> dict[str, str]:
    """What a figure or a file was made with."""
    return {"goldiprox": __version__, "torch": _torch_version(), "python": platform.python_version()}


@functools.cache
def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")  # without importing it
    except importlib.metadata.PackageNotFoundError:  # built by hand
        import torch

        return torch.__version__


@dataclass(frozen=True)
class Header:
    """What a file says about itself.

    Attributes:
        kind: ``sequence``, ``irreducible``, ``receipt``, or ``scores``, which are kept while a cluster scores.
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
        if not isinstance(print_, str) or type(length) is not int or not 0 <= length < 2**63:
            raise TypeError("the data set is not described by its length and fingerprint")
        if not all(isinstance(v, str) for v in (*self.parents.values(), self.kind)):
            raise TypeError("a name or digest is not text")
        if self.columns.get("id") not in TYPES[:4] or not all(t in TYPES for t in self.columns.values()):
            raise TypeError(f"columns {self.columns!r}")

    def differences(self, other: "Header") -> str:
        """Where another header says something else; versions may differ."""
        # Columns as a list: their order is that of the bytes.
        mine, others = (flat({**asdict(h), "versions": 0, "columns": list(h.columns.items())}) for h in (self, other))
        changed = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
        return "; ".join(f"{name} {others.get(name)} there, {mine.get(name)} here" for name in changed)


def flat(value: Any, name: str = "") -> dict[str, str]:
    """A nested table as one of texts: ``config.seed`` and the like."""
    if not isinstance(value, Mapping):
        return {name: json.dumps(value)}
    return {k: v for key in value for k, v in flat(value[key], f"{name}.{key}" if name else str(key)).items()}


def id_type(length: int) -> str:
    """The smallest unsigned integer type that holds every id of a data set of this length."""
    return next(t for t in ("uint8", "uint16", "uint32", "uint64") if length <= int(np.iinfo(t).max) + 1)


def check_output(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path, if it can be written; else an error, before any work is spent on it."""
    path = require_file_name(Path(path))
    partial = partial_path(path)
    if not force and path.exists():
        raise OutputExists(f"{path} exists; choose another name, or add --force (force=True) to replace it")
    if is_being_written(partial):
        raise OutputInUse(f"another process is writing {partial}; wait until it is done, or choose another --out")
    if not force and partial.exists():
        raise OutputExists(
            f"{partial} holds an unfinished run; keep it by choosing another name, "
            f"or add --force (force=True) to discard it"
        )
    check_folder(path.parent)
    return path


def require_file_name(path: Path) -> Path:
    """The path, unless it names a folder, or nothing that could be a file."""
    if len(path.name) > 240:  # names that are made from it are longer
        raise OutputNotWritable(f"the name {path.name[:40]}... is too long for a file; choose a shorter --out")
    if not path.name or path.is_dir():
        raise OutputExists(f"{path} is a folder; give the name of a file, such as {path / 'out.arrow'}")
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


class TableWriter:
    """Appends record batches to a file; the file has its name only after `close`.

    Args:
        path: Where the finished file goes.
        header: What it says about itself.
        force: Replace an existing file, once the new one is complete.
        resume_at: Continue the unfinished file after this many rows, and drop what follows them.
    """

    def __init__(self, path: Path, header: Header, *, force: bool = False, resume_at: int | None = None):
        self.path = path
        self.header = header
        self.num_rows, self._resumed = 0, resume_at is not None
        self._before: list[Span] = []
        try:
            header.check()
        except TypeError as e:
            raise ConfigError(f"the header of {path} could not be read again: {e}") from e
        fields = asdict(header)
        start, self._seal = encode_header(fields)
        if len(start) > MAX_METADATA or depth(fields) > MAX_DEPTH:
            raise ConfigError(
                f"the header of {path} takes {len(start):,} bytes and is nested {depth(fields)} deep; at most "
                f"{MAX_METADATA:,} and {MAX_DEPTH} are read again: give it a smaller config"
            )
        if resume_at is not None:
            self._file = self._reopened(resume_at)
            return
        self._file = GrowingFile(partial_path(check_output(path, force=force)), create=True)
        try:
            self._file.append(start)
        except OutputNotWritable:
            self._file.discard()
            raise

    def _reopened(self, num_rows: int) -> GrowingFile:
        partial = partial_path(self.path)
        if not partial.exists():
            raise MissingFile(f"{partial} does not exist: there is no unfinished file to continue; start anew")
        file = GrowingFile(partial, create=False)
        try:
            return self._continued(file, num_rows)
        except BaseException:
            file.close()
            raise

    def _continued(self, file: GrowingFile, num_rows: int) -> GrowingFile:
        """The file cut after so many rows; read a part at a time, for it may be larger than memory."""
        there, end, self._seal = read_start(file.path, memoryview(file.read(0, MAX_METADATA + 8)))
        if changed := self.header.differences(there):
            raise ConfigError(f"{file.path} was begun otherwise: {changed}. Use the same settings, or start anew")
        while self.num_rows < num_rows:
            try:
                span = locate(file.read, file.size, end, there.columns, self.num_rows)
                check_span(file.read, span, self._seal)
            except Damage as e:
                raise CorruptFile(
                    f"{file.path} holds {self.num_rows:,} intact rows, and is to be continued after {num_rows:,}; "
                    f"start anew"
                ) from e
            rest = num_rows - self.num_rows
            if span.num_rows > rest:
                head = {name: read_values(file.read, span, there.columns, name, 0, rest) for name in there.columns}
                message, self._seal = encode_rows(head, self.num_rows, self._seal)
                # In one step: a crash between cutting and appending would lose rows that were acknowledged.
                file = file.replaced(end, message)
                span = locate(file.read, file.size, end, there.columns, self.num_rows)
            else:
                self._seal = span.seal
            self.num_rows, end = self.num_rows + span.num_rows, span.end
            self._before.append(span)
        if file.size > end:
            file.cut(end)
        return file

    def rows_before(self, name: str) -> Iterator[np.ndarray]:
        """The values of a column that were there when the file was continued, some at a time."""
        for span in self._before:
            for first in range(0, span.num_rows, _BLOCK):
                yield read_values(self._file.read, span, self.header.columns, name, first, first + _BLOCK)

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Writes one record batch and waits until it is on the disk."""
        arrays = {name: np.asarray(columns[name]).astype(t, copy=False) for name, t in self.header.columns.items()}
        num_rows = len(arrays["id"])
        if not num_rows:
            return
        message, seal = encode_rows(arrays, self.num_rows, self._seal)
        self._file.append(message)
        self.num_rows, self._seal = self.num_rows + num_rows, seal

    def close(self) -> None:
        """Marks the file as complete and gives it its name."""
        if self._file.closed:
            return
        try:
            self._file.append(END)
            self._file.publish(self.path)
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Stops without the end mark: what was appended stays readable under the partial name."""
        if self._file.closed:
            return
        if self.num_rows or self._resumed:
            self._file.close()
        else:
            self._file.discard()


class Table:
    """A file that was opened and checked: every seal and the end mark hold.

    Columns of a complete file are read from the memory-mapped file without copying.

    Attributes:
        header: What the file says about itself.
        parts: Its record batches.
        complete: Whether it has its end mark.
        grows: Whether more rows may come, which `wait` waits for.
        on_wait: Called while it waits; may raise.
        check_part: Called with a part before its first value is given, by tables that read parts late; may raise.
    """

    grows = False
    check_part: Callable[[Any], None] = staticmethod(lambda part: None)  # noqa: ARG005
    on_wait: Callable[[], None] | None = None

    def __init__(self, path: Path, header: Header, parts: Iterable[Rows], *, complete: bool):
        self.path = path
        self.header = header
        self.complete = complete
        self.parts = list(parts)
        self.num_rows = sum(p.num_rows for p in self.parts)
        self._starts = [0]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, kind: str, partial: bool = False) -> "Table":
        """Opens a file of one kind.

        Args:
            path: The file.
            kind: What it must be.
            partial: Accept a file without its end mark, and give the intact rows at its beginning.
        """
        path = Path(path)
        content = _content(path, mapped=not partial and path.suffix != ".partial", kind=kind)
        header, end, seal = read_start(path, content, kind)
        parts, complete, damage = decode_all(content, end, header.columns, 0, seal)
        if not complete and not partial:
            rows = sum(p.num_rows for p in parts)
            raise CorruptFile(
                f"{path} is truncated or damaged: {damage}. The first {rows:,} rows are intact; make the file "
                f"again, or open it with partial=True to use them"
            )
        return cls(path, header, parts, complete=complete)

    def column(self, name: str) -> np.ndarray:
        """All values of a column (without a copy when the file has one record batch)."""
        values = [p.values(name, 0, p.num_rows) for p in self.parts]
        return values[0] if len(values) == 1 else np.concatenate([np.empty(0, self.header.columns[name]), *values])

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        """Some values of a column."""
        for part in self.parts[len(self._starts) - 1 :]:
            self._starts.append(self._starts[-1] + part.num_rows)
        found = []
        number = bisect.bisect_right(self._starts, first) - 1
        while first < end:
            offset = first - self._starts[number]
            found.append(self.parts[number].values(name, offset, offset + end - first))
            first, number = first + len(found[-1]), number + 1
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.header.columns[name]), *found])

    def wait(self, num_rows: int | None = None) -> None:
        """Returns when so many rows (None: all) are there: at once, for a file that does not grow."""


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a file says about itself; its rows are not looked at."""
    path = Path(path)
    return read_start(path, _content(path, mapped=path.suffix != ".partial"))[0]


def _content(path: Path, *, mapped: bool, kind: str | None = None) -> memoryview:
    if not path.exists():
        unfinished = partial_path(path)
        hint = f"; {unfinished} holds an unfinished run" if unfinished.exists() else ""
        by = {"irreducible": "irreducible", "sequence": "select"}.get(kind or "", "irreducible` or `goldiprox select")
        raise MissingFile(f"{path} does not exist{hint}; name another file, or make it with `goldiprox {by}`")
    try:
        return read_file(path, mapped=mapped)
    except OSError as e:
        raise CorruptFile(f"{path} cannot be read: {e.strerror or e}") from e


def read_start(path: Path, content: memoryview, kind: str | None = None) -> tuple[Header, int, int]:
    """The header at the beginning of a file of this kind, where it ends, and its seal."""
    try:
        fields, end, seal = decode_header(content)
    except Damage as e:
        raise CorruptFile(
            f"{path} is not a GoldiProx file, or its beginning is damaged ({e}); make it again with "
            f"`goldiprox irreducible` or `goldiprox select`"
        ) from e
    try:
        if fields.get("format") != FORMAT:
            raise UnsupportedFormat(
                f"{path} has format version {fields.get('format')}, this release ({__version__}) reads version "
                f"{FORMAT}; open it with the release that wrote it ({fields['versions']['goldiprox']})"
            )
        header = Header(**fields)
        header.check()
    except (TypeError, KeyError, AttributeError) as e:
        raise CorruptFile(f"{path}: the header cannot be understood ({e}); the file is damaged") from e
    if kind is not None and header.kind != kind:
        raise WrongKind(f"{path} is of kind {header.kind!r}, where {kind!r} is expected; give the other file")
    return header, end, seal
