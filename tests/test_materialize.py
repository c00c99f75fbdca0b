import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import goldiprox as gp
from conftest import make_blobs
from goldiprox.cli import app

STEPS = [[7, 3], [3, 9], [0, 7], [5, 5], [1, 2]]


def recorded(path, data, **settings) -> gp.Sequence:
    with gp.SequenceWriter(path, data=gp.describe(data), keep=2, **settings) as writer:
        for ids in STEPS:
            writer.append(torch.tensor(ids))
    return gp.Sequence.open(path, data=data)


def test_examples_come_in_the_order_of_the_sequence(tmp_path):
    images = torch.arange(10 * 12, dtype=torch.uint8).view(10, 1, 3, 4)
    data = gp.TensorData(images, torch.arange(10) % 4, num_classes=4, mean=(0.5,), std=(0.25,))
    files = gp.materialize(recorded(tmp_path / "s.arrow", data), data, tmp_path / "out", shard_rows=5)
    assert [f.name for f in files] == [f"part-0000{n}-of-00003.parquet" for n in range(3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "s.arrow"]
    tables = [pq.read_table(f) for f in files]
    assert [len(t) for t in tables] == [4, 4, 2]
    ids = sum((t["id"].to_pylist() for t in tables), [])
    assert ids == sum(STEPS, [])
    assert sum((t["step"].to_pylist() for t in tables), []) == [n for n in range(5) for _ in range(2)]
    described = json.loads(tables[0].schema.metadata[b"goldiprox"])
    assert described["shapes"]["x"] == [1, 3, 4]
    assert (described["mean"], described["std"], described["keep"]) == ([0.5], [0.25], 2)
    x = np.concatenate([np.array(t["x"].to_pylist(), np.uint8) for t in tables]).reshape(-1, 1, 3, 4)
    assert (x == images[ids].numpy()).all()
    assert sum((t["y"].to_pylist() for t in tables), []) == data.y[ids].tolist()


class Texts(torch.utils.data.Dataset):
    """Items as language models have them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, id: int) -> dict:
        return {"tokens": torch.full((4,), id), "mask": torch.ones(4), "label": torch.tensor(id % 2)}


def test_items_of_any_structure(tmp_path):
    data = Texts()
    (file,) = gp.materialize(recorded(tmp_path / "s.arrow", data), data, tmp_path / "out")
    table = pq.read_table(file)
    assert table.column_names == ["step", "id", "tokens", "mask", "y"]
    assert table["tokens"].to_pylist() == [[id] * 4 for id in sum(STEPS, [])]


def test_what_is_refused(tmp_path, blobs):
    sequence = recorded(tmp_path / "s.arrow", blobs)
    out = tmp_path / "out"
    gp.materialize(sequence, blobs, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(gp.OutputExists, match="--force"):
        gp.materialize(sequence, blobs, out)
    with pytest.raises(gp.FingerprintMismatch):
        gp.materialize(sequence, make_blobs(seed=1), out, force=True)
    with pytest.raises(gp.ConfigError, match="rank 1 only"):
        gp.materialize(gp.Sequence.open(tmp_path / "s.arrow", rank=1, world_size=2), blobs, out, force=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    gp.materialize(sequence, blobs, out, shard_rows=2, force=True)
    assert len(list(out.iterdir())) == len(STEPS)


def test_the_command(tmp_path):
    data = gp.load("mnist5k").train
    gp.record(gp.build("mlp128", (1, 28, 28), 10), data, acquisition=gp.uniform, steps=2, out=tmp_path / "s.arrow")
    result = CliRunner().invoke(app, ["materialize", str(tmp_path / "s.arrow"), "--out", str(tmp_path / "d"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 64
    (file,) = (tmp_path / "d").iterdir()
    assert pq.read_table(file)["id"].to_pylist() == gp.Sequence.open(tmp_path / "s.arrow").ids.tolist()
    result = CliRunner().invoke(
        app, ["materialize", str(tmp_path / "s.arrow"), "--out", str(tmp_path / "w"), "--window", "2", "--seed", "3"]
    )
    assert result.exit_code == 0, result.output
    (file,) = (tmp_path / "w").iterdir()
    shuffled = gp.Sequence.open(tmp_path / "s.arrow").shuffled(2, seed=3)
    assert pq.read_table(file)["id"].to_pylist() == shuffled.ids.tolist()
