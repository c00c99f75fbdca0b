import json
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldiprox import messages
from goldiprox.messages import END, TYPES, Damage

FIELDS = {"format": 1, "columns": dict.fromkeys(TYPES, "")}


def file_of(columns: dict[str, str], sizes: list[int], config: object = None) -> tuple[bytes, dict[str, np.ndarray]]:
    """A file of random values in record batches of these sizes, and the values."""
    rng = np.random.default_rng(0)
    values = {name: rng.integers(0, 200, sum(sizes)).astype(t) for name, t in columns.items()}
    content, seal = messages.encode_header({"columns": columns, "config": config})
    first = 0
    for size in sizes:
        part = {name: v[first : first + size] for name, v in values.items()}
        message, seal = messages.encode_rows(part, first, seal)
        content, first = content + message, first + size
    return content + END, values


columns_of_files = st.dictionaries(
    st.text(st.characters(codec="ascii"), max_size=9), st.sampled_from(TYPES), min_size=1
)
json_values = st.recursive(st.none() | st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))


@given(columns_of_files, st.lists(st.integers(1, 70), max_size=4), json_values)
def test_we_read_what_arrow_reads(columns, sizes, config):
    content, values = file_of(columns, sizes, config)
    view = memoryview(content)
    fields, end, seal = messages.decode_header(view)
    parts, complete, _ = messages.decode_all(view, end, columns, 0, seal)
    assert complete
    assert fields == {"columns": columns, "config": config}
    arrow = pa.ipc.open_stream(content)
    assert json.loads(arrow.schema.metadata[b"goldiprox"]) | fields == json.loads(arrow.schema.metadata[b"goldiprox"])
    table = arrow.read_all()
    for name, expected in values.items():
        ours = np.concatenate([np.empty(0, expected.dtype), *(p.columns[name] for p in parts)])
        assert np.array_equal(ours, expected)
        assert ours.dtype == expected.dtype
        assert np.array_equal(table[name].to_numpy(), expected)


def test_text_that_looks_like_a_seal_is_none():
    trap = {'{"seal":"': ['{"seal":"00000000", "columns": {}}', {"seal": "00000000"}]}
    content, _ = file_of({"id": "uint8"}, [3], trap)
    assert messages.decode_header(memoryview(content))[0]["config"] == trap


def test_the_seal_is_what_the_page_on_formats_says():
    content, _ = file_of({"id": "uint16"}, [3, 2])
    position = seal = 0
    while content[position:] != END:
        digits = content.index(b'{"seal":"', position) + 9
        end = content.find(b"\xff\xff\xff\xff", position + 8)
        seal = zlib.crc32(content[digits + 8 : end], zlib.crc32(content[position:digits], seal))
        assert content[digits : digits + 8].decode() == f"{seal:08x}"
        position = end
    assert seal


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_rows": 2**62}, "does not continue"),
        ({"num_rows": -1}, "does not continue"),
        ({"num_rows": 0}, "does not continue"),
        ({"num_rows": True}, "does not continue"),
        ({"num_rows": "3"}, "does not continue"),
        ({"num_rows": 200}, "cut off"),
        ({"first_row": 1}, "does not continue"),
    ],
)
def test_sizes_are_bounded_by_the_file(monkeypatch, change, said):
    fields = {"first_row": 0, "num_rows": 3} | change
    text = messages._text
    monkeypatch.setattr(messages, "_text", lambda f: text(fields if "num_rows" in f else f))
    content, _ = file_of({"id": "uint8"}, [3])
    _, end, seal = messages.decode_header(memoryview(content))
    with pytest.raises(Damage, match=said):
        messages.decode_rows(memoryview(content), end, {"id": "uint8"}, 0, seal)


@pytest.mark.parametrize(
    "text", ['{"seal":"00000000", "a": ' + "[" * 100_000, '{"seal":"00000000", "a": ' + "9" * 9_999]
)
def test_text_made_to_exhaust_the_parser(text):
    schema = messages.schema_of({"id": "uint8"}, text)
    content, _ = messages._seal(schema.serialize(), 0)
    with pytest.raises(Damage, match="no seal"):
        messages.decode_header(memoryview(content))


@pytest.mark.parametrize("what", ["compressed", "nulls", "dictionary", "list"])
def test_layouts_that_are_not_ours_are_refused_even_under_a_seal(what):
    values = {
        "compressed": pa.array(np.zeros(1_000, np.uint8)),
        "nulls": pa.array([1, None, 3], pa.uint8()),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "list": pa.array([[1], [2, 3], []], pa.list_(pa.uint8())),
    }[what]
    schema = pa.schema([pa.field("id", values.type)])
    stamp = {"goldiprox": messages._text({"first_row": 0, "num_rows": len(values)})}
    options = pa.ipc.IpcWriteOptions(compression="zstd" if what == "compressed" else None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        stream.write_batch(pa.record_batch([values], schema=schema), custom_metadata=stamp)
    header, seal = messages.encode_header({"columns": {"id": "uint8"}})
    message, _ = messages._seal(memoryview(sink.getvalue())[len(schema.serialize()) : -len(END)], seal)
    content = memoryview(header + message + END)
    found, complete, damage = messages.decode_all(content, len(header), {"id": "uint8"}, 0, seal)
    assert (list(found), complete) == ([], False)
    assert "damaged" in damage
