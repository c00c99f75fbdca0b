"""The bytes of a file: Arrow messages, each with a seal over every byte of it and of all before it.

Plain Arrow readers read these files; this package reads them by itself. It takes the header and the values from
where docs/formats.md says they lie once the seal holds, so no byte of a damaged or hostile file reaches a parser
of Arrow's metadata, and nothing is allocated that is larger than the file.
"""

import itertools
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow's end-of-stream mark
TYPES = ("uint8", "uint16", "uint32", "uint64", "float32")
MAX_METADATA, MAX_DEPTH = 2**20, 32
_CHUNK = 2**20
KEY = "goldiprox"
# Text that JSON written with a space after every colon holds nowhere else.
_SEAL = b'{"seal":"'
_PREFIX = struct.Struct("<Ii")


class Damage(ValueError):
    """Where and why bytes are not a message of ours."""


@dataclass(frozen=True)
class Rows:
    """The rows of one record batch.

    Attributes:
        columns: Their values, by name, in the header's order.
        num_rows: How many.
        end: Where the next message begins.
        seal: The checksum of everything before `end`.
    """

    columns: Mapping[str, np.ndarray]
    num_rows: int
    end: int
    seal: int

    def values(self, name: str, first: int, end: int) -> np.ndarray:
        """Some values of a column, not copied."""
        return self.columns[name][first:end]


@dataclass(frozen=True)
class Span:
    """Where a record batch lies, as it says itself: nothing of this is checked yet.

    Attributes:
        start: Where its message begins.
        digits: Where those of its seal begin.
        starts: Where the values of each column begin.
        end: Where the next message begins.
        first_row: The number of rows before it.
        num_rows: How many.
        seal: What its digits say.
    """

    start: int
    digits: int
    starts: Mapping[str, int]
    end: int
    first_row: int
    num_rows: int
    seal: int


def schema_of(columns: Mapping[str, str], text: str | None = None) -> pa.Schema:
    """The Arrow schema of these columns; `text` goes into its metadata."""
    fields = [pa.field(name, pa.type_for_alias(t), nullable=False) for name, t in columns.items()]
    return pa.schema(fields, metadata=None if text is None else {KEY: text})


def encode_header(fields: Mapping[str, Any]) -> tuple[bytes, int]:
    """The first message of a file, and its seal."""
    return _seal(schema_of(fields["columns"], _text(fields)).serialize(), 0)


def encode_rows(arrays: Mapping[str, np.ndarray], first_row: int, seal: int) -> tuple[bytes, int]:
    """The message of one record batch, and its seal, which continues that of what lies before it."""
    schema = schema_of({name: str(values.dtype) for name, values in arrays.items()})
    batch = pa.record_batch([pa.array(values) for values in arrays.values()], schema=schema)
    stamp = {KEY: _text({"first_row": first_row, "num_rows": len(batch)})}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch, custom_metadata=stamp)
    return _seal(memoryview(sink.getvalue())[len(schema.serialize()) : -len(END)], seal)


def _text(fields: Mapping[str, Any]) -> str:
    rest = json.dumps(fields)[1:]
    return f'{_SEAL.decode()}{"0" * 8}", {rest}'


def _seal(message: Any, before: int) -> tuple[bytes, int]:
    made = bytearray(message)
    digits = made.find(_SEAL) + len(_SEAL)
    seal = _checksum(made, 0, digits, len(made), before)
    made[digits : digits + 8] = b"%08x" % seal
    return bytes(made), seal


def _checksum(content: Any, start: int, digits: int, end: int, before: int) -> int:
    content = memoryview(content)
    return zlib.crc32(content[digits + 8 : end], zlib.crc32(content[start:digits], before))


def decode_header(content: memoryview) -> tuple[dict[str, Any], int, int]:
    """What a file says about itself, where that ends, and its seal."""
    fields, digits, end = _metadata(content, 0)
    return fields, end, _check(content, 0, digits, end, 0)


def decode_rows(content: memoryview, start: int, columns: Mapping[str, str], first_row: int, seal: int) -> Rows:
    """The record batch at `start`, its values not copied.

    Args:
        content: The bytes of a file.
        start: Where the batch begins.
        columns: Name and type of every column.
        first_row: The number of rows before it.
        seal: That of what lies before it.
    """
    fields, digits, body = _metadata(content, start)
    num_rows, starts, end = _layout(fields, body, columns, first_row, len(content))
    seal = _check(content, start, digits, end, seal)
    values = {name: np.frombuffer(content, t, num_rows, starts[name]) for name, t in columns.items()}
    return Rows(values, num_rows, end, seal)


def _layout(
    fields: Mapping[str, Any], body: int, columns: Mapping[str, str], first_row: int, size: int
) -> tuple[int, dict[str, int], int]:
    """How many rows a batch has, where each column's values begin, and where the last one's end."""
    num_rows = fields.get("num_rows")
    if fields.get("first_row") != first_row or type(num_rows) is not int or not 0 < num_rows <= size:
        raise Damage("it does not continue what lies before it")
    sizes = [-(-num_rows * np.dtype(t).itemsize // 8) * 8 for t in columns.values()]
    *starts, end = itertools.accumulate(sizes, initial=body)
    if end > size:
        raise Damage("it is cut off")
    return num_rows, dict(zip(columns, starts, strict=True)), end


def locate(
    read: Callable[[int, int], bytes], size: int, start: int, columns: Mapping[str, str], first_row: int
) -> Span:
    """The record batch at `start`, found by what it says of itself; its values are not read.

    Args:
        read: (start, end) -> those bytes of the file, or as many as there are.
        size: Of the file.
        start: Where the batch begins.
        columns: Name and type of every column.
        first_row: The number of rows before it.
    """
    content = memoryview(read(start, start + 1024))
    if (
        len(content) >= _PREFIX.size
        and 1024 - _PREFIX.size < (length := _PREFIX.unpack(content[:8])[1]) <= MAX_METADATA
    ):
        content = memoryview(read(start, start + _PREFIX.size + length))
    fields, digits, body = _metadata(content, 0)
    num_rows, starts, end = _layout(fields, start + body, columns, first_row, size)
    try:
        seal = int(bytes(content[digits : digits + 8]), 16)
    except ValueError:
        seal = -1
    if content[digits : digits + 8] != b"%08x" % seal:  # other spellings of a number are no seals
        raise Damage("it has no seal")
    return Span(start, start + digits, starts, end, first_row, num_rows, seal)


def check_span(read: Callable[[int, int], bytes], span: Span, before: int) -> None:
    """Raises unless a record batch is what its seal says, reading it a piece at a time.

    Args:
        read: (start, end) -> those bytes of the file, or as many as there are.
        span: Where it lies.
        before: The seal of what lies before it.
    """
    seal = before
    for first, last in ((span.start, span.digits), (span.digits + 8, span.end)):
        for start in range(first, last, _CHUNK):
            seal = zlib.crc32(read(start, min(start + _CHUNK, last)), seal)
    if seal != span.seal:
        raise Damage("its checksum does not hold")


def read_values(
    read: Callable[[int, int], bytes], span: Span, columns: Mapping[str, str], name: str, first: int, end: int
) -> np.ndarray:
    """Some values of a column of a record batch."""
    kind, start = np.dtype(columns[name]), span.starts[name]
    return np.frombuffer(read(start + first * kind.itemsize, start + min(end, span.num_rows) * kind.itemsize), kind)


def decode_all(
    content: memoryview, start: int, columns: Mapping[str, str], first_row: int, seal: int
) -> tuple[Sequence[Rows], bool, str]:
    """The intact record batches from `start` on; whether the end mark follows them; what is wrong where not."""
    found: list[Rows] = []
    while content[start:] != END:
        try:
            rows = decode_rows(content, start, columns, first_row, seal)
        except Damage as e:
            what = f"the part at byte {start:,} is damaged ({e})"
            if start == len(content):
                what = "the end mark is missing"
            elif content[start : start + len(END)] == END:
                what = f"unexpected bytes follow the end mark at {start:,}"
            return found, False, what
        found.append(rows)
        start, seal, first_row = rows.end, rows.seal, first_row + rows.num_rows
    return found, True, ""


def _metadata(content: memoryview, start: int) -> tuple[dict[str, Any], int, int]:
    """The text inside a message's metadata, where the digits of its seal lie, and where the metadata end."""
    prefix = content[start : start + _PREFIX.size]
    if len(prefix) < _PREFIX.size:
        raise Damage("it is cut off")
    mark, length = _PREFIX.unpack(prefix)
    end = start + _PREFIX.size + length
    if mark != 0xFFFFFFFF or length % 8 or not 0 < length <= MAX_METADATA:
        raise Damage("no message begins there")
    if end > len(content):
        raise Damage("it is cut off")
    metadata = bytes(content[start + _PREFIX.size : end])
    at = metadata.find(_SEAL)
    size = int.from_bytes(metadata[max(0, at - 4) : max(0, at)], "little")
    try:
        fields = json.loads(metadata[at : at + size].decode()) if at >= 4 else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Damage("it has no seal")
    if depth(fields) > MAX_DEPTH:
        raise Damage(f"it is nested more than {MAX_DEPTH} deep")
    del fields["seal"]
    return fields, start + _PREFIX.size + at + len(_SEAL), end


def depth(value: Any) -> int:
    """How deep tables and lists are nested, found without recursion, which a stranger's text could exhaust."""
    found, layer = 0, [value]
    while layer := [part for part in layer if isinstance(part, dict | list | tuple)]:
        found += 1
        layer = [inner for part in layer for inner in (part.values() if isinstance(part, dict) else part)]
    return found


def _check(content: memoryview, start: int, digits: int, end: int, before: int) -> int:
    seal = _checksum(content, start, digits, end, before)
    if content[digits : digits + 8] != b"%08x" % seal:
        raise Damage("its checksum does not hold")
    return seal
