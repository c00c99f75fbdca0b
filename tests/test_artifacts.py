import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from goldiprox import artifacts
from goldiprox.artifacts import Header, Table, TableWriter
from goldiprox.errors import CorruptFile, MissingFile, OutputExists, OutputNotWritable, UnsupportedFormat, WrongKind

DATA = {"fingerprint": "sha256:0", "length": 100}


def write(path: Path, *parts: list[int], close: bool = True, **options) -> Path:
    header = Header(kind="sequence", data=DATA, config={"keep": 2}, columns={"id": "uint8"})
    writer = TableWriter(path, header, **options)
    for part in parts:
        writer.append({"id": np.array(part)})
    if close:
        writer.close()
    else:
        writer.abandon()
    return path


def test_roundtrip(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2, 3], [4, 5])
    table = Table.open(path, kind="sequence")
    assert table.column("id").tolist() == [1, 2, 3, 4, 5]
    assert table.header.data == DATA
    assert table.complete
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.arrow"]


def test_any_arrow_reader_reads_it(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2], [3])
    assert pa.ipc.open_stream(path.read_bytes()).read_all()["id"].to_pylist() == [1, 2, 3]


def test_an_empty_table_is_a_table(tmp_path):
    assert Table.open(write(tmp_path / "a.arrow"), kind="sequence").column("id").tolist() == []


@pytest.mark.parametrize(
    ("length", "type_"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_537, "uint32"), (2**32 + 1, "uint64")]
)
def test_ids_take_the_smallest_type_that_fits(length, type_):
    assert artifacts.id_type(length) == type_


def test_every_prefix_gives_an_intact_beginning_or_an_error(tmp_path):
    ids = [7, 8, 9, 10, 11, 12]
    content = write(tmp_path / "a.arrow", ids[:2], ids[2:4], ids[4:]).read_bytes()
    cut = tmp_path / "cut.arrow"
    found = set()
    for end in range(len(content)):
        cut.write_bytes(content[:end])
        with pytest.raises(CorruptFile):
            Table.open(cut, kind="sequence")
        try:
            table = Table.open(cut, kind="sequence", partial=True)
        except CorruptFile:
            continue
        assert not table.complete
        assert table.column("id").tolist() == ids[: table.num_rows]
        found.add(table.num_rows)
    assert found == {0, 2, 4, 6}


def test_every_flipped_bit_gives_the_right_ids_or_an_error(tmp_path):
    ids = [7, 8, 9, 10]
    content = write(tmp_path / "a.arrow", ids[:2], ids[2:]).read_bytes()
    flipped = tmp_path / "flipped.arrow"
    noticed = 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(damaged)
        try:
            table = Table.open(flipped, kind="sequence")
        except (CorruptFile, UnsupportedFormat):
            noticed += 1
            continue
        assert table.column("id").tolist() == ids
        assert table.header.data == DATA
    assert noticed > 4 * len(content)  # most bits matter: the test looks at more than padding


def test_bytes_after_the_end_mark_are_noticed(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptFile, match="unexpected bytes"):
        Table.open(path, kind="sequence")


def test_a_part_that_is_missing_in_the_middle_is_noticed(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2], [3, 4], [5, 6])
    lengths = [len(write(tmp_path / f"{n}.arrow", *[[1, 2]] * n).read_bytes()) for n in (0, 1)]
    part = lengths[1] - lengths[0]
    content = path.read_bytes()
    start = lengths[0] - len(artifacts.END) + part
    path.write_bytes(content[:start] + content[start + part :])
    with pytest.raises(CorruptFile, match="checksum"):
        Table.open(path, kind="sequence")


def test_not_our_file(tmp_path):
    path = tmp_path / "a.arrow"
    path.write_text("id\n1\n")
    with pytest.raises(CorruptFile, match="not a GoldiProx file"):
        Table.open(path, kind="sequence")
    path.write_bytes(b"")
    with pytest.raises(CorruptFile):
        Table.open(path, kind="sequence")


def test_another_kind_and_a_missing_file(tmp_path):
    path = write(tmp_path / "a.arrow", [1])
    with pytest.raises(WrongKind, match="is of kind 'sequence', where 'irreducible' is expected"):
        Table.open(path, kind="irreducible")
    with pytest.raises(MissingFile, match="does not exist"):
        Table.open(tmp_path / "b.arrow", kind="sequence")


def rewrite_header(path: Path, **changes) -> None:
    """Gives a file another header, with a checksum that holds; its rows stay as they are."""
    content = path.read_bytes()
    schema = pa.ipc.open_stream(content).schema
    header = json.loads(schema.metadata[b"goldiprox"]) | changes
    text = json.dumps(header).encode()
    new = schema.with_metadata({"goldiprox": text, "goldiprox.crc32": str(zlib.crc32(text))})
    path.write_bytes(new.serialize().to_pybytes() + content[len(schema.serialize()) :])


def test_rewriting_a_header_keeps_the_file_whole(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2])
    rewrite_header(path, config={"keep": 1, "note": "x"})
    assert Table.open(path, kind="sequence").column("id").tolist() == [1, 2]


def test_another_format_version_names_the_release_that_wrote_it(tmp_path):
    path = write(tmp_path / "a.arrow", [1])
    rewrite_header(path, format=99, versions={"goldiprox": "9.1"})
    with pytest.raises(UnsupportedFormat, match=r"format version 99.*reads version 1.*9\.1"):
        Table.open(path, kind="sequence")


@pytest.mark.parametrize(
    "changes",
    [
        {"surprise": 1},
        {"columns": {"id": "no such type"}},
        {"columns": {"id": "uint16"}},
        {"columns": {"id": "uint8", "more": "float32"}},
        {"columns": 5},
        {"versions": 3, "format": 2},
        {"data": {"length": "many", "fingerprint": "x"}},
        {"data": {"length": -1, "fingerprint": "x"}},
        {"parents": {"split": 1}},
        {"config": []},
    ],
)
def test_a_header_that_makes_no_sense_is_our_error(tmp_path, changes):
    path = write(tmp_path / "a.arrow", [1])
    rewrite_header(path, **changes)
    with pytest.raises(CorruptFile, match="header"):
        Table.open(path, kind="sequence")


def test_an_existing_file_is_refused_and_left_alone(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2])
    before = path.read_bytes()
    with pytest.raises(OutputExists, match="--force"):
        write(path, [3])
    assert path.read_bytes() == before


def test_force_replaces_only_when_the_new_file_is_complete(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2])
    write(path, [3, 4], close=False, force=True)
    assert Table.open(path, kind="sequence").column("id").tolist() == [1, 2]
    write(path, [5, 6], force=True)
    assert Table.open(path, kind="sequence").column("id").tolist() == [5, 6]


def test_an_unfinished_file_is_refused_and_stays_readable(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2], close=False)
    assert not path.exists()
    with pytest.raises(OutputExists, match="unfinished"):
        artifacts.check_output(path)
    partial = Table.open(artifacts.partial_path(path), kind="sequence", partial=True)
    assert partial.column("id").tolist() == [1, 2]
    with pytest.raises(MissingFile, match="unfinished"):
        Table.open(path, kind="sequence")


def test_unwritable_folders(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="choose another --out"):
        artifacts.check_output(tmp_path / "file" / "a.arrow")
    with pytest.raises(OutputNotWritable):
        artifacts.check_output("/proc/nowhere/a.arrow")
    with pytest.raises(OutputNotWritable, match="too long"):
        artifacts.check_output(tmp_path / ("x" * 300))
    with pytest.raises(OutputExists, match="is a folder"):
        artifacts.check_output(tmp_path)


def test_a_vanished_folder_while_writing_is_our_error(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    header = Header(kind="sequence", data=DATA, columns={"id": "uint8"})
    writer = TableWriter(folder / "a.arrow", header)
    artifacts.partial_path(folder / "a.arrow").unlink()
    folder.rmdir()
    with pytest.raises(OutputNotWritable):
        writer.close()


def test_what_is_not_finite_is_null_in_json(tmp_path):
    value = {"a": [float("nan"), 1.5], "b": {"c": float("inf")}}
    artifacts.write_json(tmp_path / "a.json", value)
    with artifacts.JsonLines(tmp_path / "a.jsonl") as lines:
        lines(value)
    for name in ("a.json", "a.jsonl"):
        assert json.loads((tmp_path / name).read_text()) == {"a": [None, 1.5], "b": {"c": None}}
