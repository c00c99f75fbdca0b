import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from goldiprox import artifacts, lazy, messages, outputs
from goldiprox.artifacts import Header, Table, TableWriter
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
from goldiprox.outputs import save_weights

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


@pytest.fixture(params=["checked on opening", "checked when read"])
def eagerness(request, monkeypatch):
    """Small files as they are opened, and as large ones are."""
    if request.param == "checked when read":
        monkeypatch.setattr(lazy, "EAGER_BYTES", 0)


def opened(path: Path, *, partial: bool = False) -> list[int] | None:
    """The ids of a file, or None where that is refused."""
    try:
        return lazy.open_table(path, kind="sequence", partial=partial).column("id").tolist()
    except (CorruptFile, UnsupportedFormat):
        return None


def test_every_prefix_gives_an_intact_beginning_or_an_error(tmp_path, eagerness):
    ids = [7, 8, 9, 10, 11, 12]
    content = write(tmp_path / "a.arrow", ids[:2], ids[2:4], ids[4:]).read_bytes()
    cut = tmp_path / "cut.arrow"
    found = set()
    for end in range(len(content)):
        cut.write_bytes(content[:end])
        assert opened(cut) is None
        rescued = opened(cut, partial=True)
        if rescued is not None:
            assert rescued == ids[: len(rescued)]
            found.add(len(rescued))
    assert found == {0, 2, 4, 6}


def test_every_flipped_bit_gives_an_intact_beginning_or_an_error(tmp_path, eagerness):
    ids = [7, 8, 9, 10]
    content = write(tmp_path / "a.arrow", ids[:2], ids[2:]).read_bytes()
    flipped = tmp_path / "flipped.arrow"
    found = set()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(damaged)
        assert opened(flipped) is None, f"bit {bit} is under no seal"
        rescued = opened(flipped, partial=True)
        if rescued is not None:
            assert rescued == ids[: len(rescued)]
            found.add(len(rescued))
    assert found == {0, 2, 4}


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
    with pytest.raises(CorruptFile, match="does not continue what lies before it"):
        Table.open(path, kind="sequence")


def test_a_part_of_another_file_is_noticed(tmp_path):
    path, other = (write(tmp_path / f"{n}.arrow", [n, n], [3, 4]) for n in (1, 2))
    content, more = path.read_bytes(), other.read_bytes()
    path.write_bytes(content[:700] + more[700:])  # the second part: the same rows, at the same place
    with pytest.raises(CorruptFile, match="checksum"):
        Table.open(path, kind="sequence")
    assert content[:700] != more[:700]
    assert len(content) > 700


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
    """Gives a file another header, with seals that hold; its rows stay as they are."""
    content = memoryview(path.read_bytes())
    fields, end, seal = messages.decode_header(content)
    parts, complete, _ = messages.decode_all(content, end, fields["columns"], 0, seal)
    schema = messages.schema_of(fields["columns"], messages._text(fields | changes))
    message, seal = messages._seal(schema.serialize(), 0)
    first_row = 0
    for part in parts:
        rows, seal = messages.encode_rows(part.columns, first_row, seal)
        message, first_row = message + rows, first_row + part.num_rows
    path.write_bytes(message + (messages.END if complete else b""))


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
        {"columns": {"id": "float32"}},
        {"columns": {"id": "uint8", "more": "string"}},
        {"columns": {"id": ["uint8"]}},
        {"columns": {}},
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


@pytest.mark.parametrize("part", ["format", "kind", "data", "config", "columns", "versions", "surprise"])
def test_a_header_that_is_nested_to_exhaust_the_reader_is_our_error(tmp_path, part):
    path = write(tmp_path / "a.arrow", [1])
    for depth in (50, 400):  # what Python's own limits would let through
        rewrite_header(path, **{part: json.loads("[" * depth + "]" * depth)})
        with pytest.raises(CorruptFile, match="nested more than 32 deep"):
            Table.open(path, kind="sequence")
        path = write(tmp_path / f"{depth}.arrow", [1])


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
    with pytest.raises(OutputNotWritable, match="moved, removed or replaced"):
        writer.append({"id": np.array([1])})
    with pytest.raises(OutputNotWritable):
        writer.close()


def test_the_order_of_columns_is_part_of_the_header(tmp_path):
    names = {"id": "uint8", "score": "float32", "loss": "float32"}
    writer = TableWriter(tmp_path / "a.arrow", Header(kind="sequence", data=DATA, columns=names))
    writer.append({name: np.array([1]) for name in names})
    writer.abandon()
    other = dict(sorted(names.items()))
    with pytest.raises(ConfigError, match="columns"):
        TableWriter(tmp_path / "a.arrow", Header(kind="sequence", data=DATA, columns=other), resume_at=1)


def test_what_is_not_finite_is_null_in_json(tmp_path):
    value = {"a": [float("nan"), 1.5], "b": {"c": float("inf")}}
    outputs.write_json(tmp_path / "a.json", value)
    with outputs.JsonLines(tmp_path / "a.jsonl") as lines:
        lines(value)
    for name in ("a.json", "a.jsonl"):
        assert json.loads((tmp_path / name).read_text()) == {"a": [None, 1.5], "b": {"c": None}}


def rows_of(path: Path) -> list[int]:
    return Table.open(path, kind="sequence", partial=True).column("id").tolist()


def begun(path: Path, **changes) -> TableWriter:
    """A writer that continues what `write` left, as `write` began it."""
    resume_at = changes.pop("resume_at")
    header = {"kind": "sequence", "data": DATA, "config": {"keep": 2}, "columns": {"id": "uint8"}} | changes
    return TableWriter(path, Header(**header), resume_at=resume_at)


@pytest.mark.parametrize("num_rows", range(8))
def test_an_unfinished_file_is_cut_back_to_any_row_and_continued(tmp_path, num_rows):
    path = write(tmp_path / "a.arrow", [1, 2, 3], [4], [5, 6, 7], close=False)
    partial = artifacts.partial_path(path)
    writer = begun(path, resume_at=num_rows)
    assert writer.num_rows == num_rows
    assert rows_of(partial) == [1, 2, 3, 4, 5, 6, 7][:num_rows]
    writer.append({"id": np.array([90, 91])})
    writer.close()
    whole = Table.open(path, kind="sequence")
    assert whole.column("id").tolist() == [*[1, 2, 3, 4, 5, 6, 7][:num_rows], 90, 91]
    assert pa.ipc.open_stream(path.read_bytes()).read_all()["id"].to_pylist() == whole.column("id").tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["a.arrow"]


def test_continuing_at_the_beginning_and_stopping_again_leaves_a_file_to_continue(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2], close=False)
    for _ in range(2):
        begun(path, resume_at=0).abandon()
    begun(path, resume_at=0).close()
    assert Table.open(path, kind="sequence").num_rows == 0


def test_a_damaged_end_is_cut_off_on_continuing(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2], [3, 4], close=False)
    partial = artifacts.partial_path(path)
    partial.write_bytes(partial.read_bytes()[:-3])
    with pytest.raises(CorruptFile, match="holds 2 intact rows, and is to be continued after 4"):
        begun(path, resume_at=4)
    begun(path, resume_at=2).close()
    assert Table.open(path, kind="sequence").column("id").tolist() == [1, 2]


def test_a_file_with_its_end_mark_that_was_never_named_is_continued(tmp_path):
    path = write(tmp_path / "a.arrow", [1, 2])
    path.rename(artifacts.partial_path(path))
    begun(path, resume_at=2).close()
    assert Table.open(path, kind="sequence").column("id").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"fingerprint": "sha256:1", "length": 100}}, 'data.fingerprint "sha256:0" there, "sha256:1" here'),
        ({"config": {"keep": 2, "a": {"b": 1}}}, "config.a.b None there, 1 here"),
        ({"parents": {"split": "x"}}, 'parents.split None there, "x" here'),
        ({"columns": {"id": "uint16"}}, 'columns [["id", "uint8"]] there, [["id", "uint16"]] here'),
    ],
)
def test_continuing_with_another_header_is_refused_and_says_what_changed(tmp_path, changes, said):
    path = write(tmp_path / "a.arrow", [1, 2], close=False)
    before = artifacts.partial_path(path).read_bytes()
    with pytest.raises(ConfigError, match="was begun otherwise") as caught:
        begun(path, resume_at=2, **changes)
    assert said in str(caught.value)
    assert artifacts.partial_path(path).read_bytes() == before
    begun(path, resume_at=2, versions={"goldiprox": "another"}, config={"keep": 2}).abandon()


def test_there_is_nothing_to_continue(tmp_path):
    with pytest.raises(MissingFile, match="no unfinished file"):
        begun(tmp_path / "a.arrow", resume_at=0)


@pytest.mark.parametrize("force", [False, True])
def test_two_writers_on_one_file(tmp_path, force):
    path = tmp_path / "a.arrow"
    header = Header(kind="sequence", data=DATA, config={"keep": 2}, columns={"id": "uint8"})
    first = TableWriter(path, header)
    first.append({"id": np.array([1, 2])})
    with pytest.raises(OutputInUse, match=r"another process is writing .*a\.arrow\.partial"):
        TableWriter(path, header, force=force)
    with pytest.raises(OutputInUse):
        TableWriter(path, header, resume_at=0)
    first.append({"id": np.array([3])})
    first.close()
    assert Table.open(path, kind="sequence").column("id").tolist() == [1, 2, 3]


def test_a_header_that_no_reader_takes_is_not_written(tmp_path):
    header = Header(kind="sequence", data=DATA, config={"note": "x" * 2**20}, columns={"id": "uint8"})
    with pytest.raises(ConfigError, match="at most 1,048,576 and 32"):
        TableWriter(tmp_path / "a.arrow", header)
    header = Header(kind="sequence", data=DATA, config=nested(40), columns={"id": "uint8"})
    with pytest.raises(ConfigError, match="nested 42 deep"):
        TableWriter(tmp_path / "a.arrow", header)
    assert list(tmp_path.iterdir()) == []


def nested(depth: int) -> dict:
    return {"a": nested(depth - 1)} if depth else {}


def test_only_plain_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.arrow")  # which would block until somebody writes
    with pytest.raises(CorruptFile, match="not a plain file"):
        Table.open(tmp_path / "pipe.arrow", kind="sequence")
    with pytest.raises(CorruptFile, match="cannot be read"):
        Table.open(tmp_path, kind="sequence")


def test_what_a_kill_left_of_weights_goes_with_the_next_ones(tmp_path):
    path, model = tmp_path / "proxy.safetensors", torch.nn.Linear(2, 3)
    left = tmp_path / "proxy.safetensors.saving"
    left.mkdir()
    for name in (".tmpVsNUwq", "proxy.safetensors"):
        (left / name).write_text("half")
    save_weights(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["proxy.safetensors"]
    assert torch.equal(load_file(path)["weight"], model.weight)
    path.unlink()
    path.mkdir()  # so that it cannot get its name
    with pytest.raises(OutputNotWritable):
        save_weights(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["proxy.safetensors"]
