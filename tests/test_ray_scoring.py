"""Scoring on a Ray cluster: the table of one process, whatever happens to its workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import goldiprox as gp
from conftest import make_mlp
from goldiprox.cli import app
from goldiprox.data.parquet import ImageRows
from goldiprox.data.sources import training_files
from goldiprox.errors import MissingData, MissingExtra
from goldiprox.ray_scoring import RayScoring, _cause, _read, _seal, import_ray
from test_sources import write_parquet

WORKER = Path(__file__).parent / "ray_worker.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """9,000 small images of four classes in two files of several row groups; a few more for testing."""
    folder = tmp_path_factory.mktemp("ray")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 9_300)
    images = (rng.integers(0, 200, (len(labels), 8, 8)) + 18 * labels[:, None, None]).astype(np.uint8)
    (folder / "set").mkdir()
    for name, rows in (("train-0", slice(4_000)), ("train-1", slice(4_000, 9_000)), ("test-0", slice(9_000, None))):
        write_parquet(folder / "set" / f"{name}.parquet", images[rows], labels[rows], row_group_size=700)
    return folder


@pytest.fixture(scope="module")
def seen(folder) -> dict:
    """What a cluster of two workers made of it; one process for all, for starting Ray takes seconds."""
    pytest.importorskip("ray", reason="needs goldiprox[ray]")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    ran = subprocess.run(
        [sys.executable, WORKER, folder], env=environment, capture_output=True, text=True, timeout=600, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())


def test_a_worker_that_dies_midway_changes_nothing(seen):
    """Two folds, each scored by the model that did not learn it."""
    assert seen["died"]
    assert seen["on ray"] == seen["alone"]
    assert seen["equal bytes"]


def test_what_was_scored_before_is_not_scored_again(seen):
    """4,500 examples a fold are passes of 2,048, 2,048 and 404; the first was done when the run was broken off."""
    first, second = seen["told"][:3], seen["told"][3:]
    assert (first[0], first[-1]) == (2048, 4500)
    assert (second[0], second[-1], len(second)) == (0, 4500, 4)
    assert len(seen["passes"]) <= 2 + 3 + 1  # what was left, and the pass that one died in a second time


def test_files_that_are_not_what_was_loaded(folder):
    rows = ImageRows.of(training_files(str(folder / "set")))
    ids = np.array([700, 3])
    x, y = rows.read(np.sort(ids))
    item = {"ids": ids[None], "seal": np.array([_seal(x[::-1], y[::-1])])}
    block = _read(item, rows, channels=1)
    assert block["id"].tolist() == [700, 3]
    assert np.array_equal(block["y"], y[::-1])
    with pytest.raises(gp.DataError, match="examples 3 to 700 are not in the files as in the data set that was loaded"):
        _read({**item, "seal": np.array([_seal(x[::-1], y)])}, rows, channels=1)


def test_what_went_wrong_in_another_process_is_said_as_here():
    ours = _cause(
        Exception("ray::f() (pid=1)\ngoldiprox.errors.DataError: image 3 is broken\n\nThe above exception ...")
    )
    assert (type(ours), str(ours)) == (gp.DataError, "image 3 is broken")
    theirs = _cause(Exception("ray::f() (pid=1)\nValueError: shapes differ\n\nThe above exception was ...\nmore"))
    assert "scoring on Ray failed: ValueError: shapes differ" in str(theirs)


def test_the_command_line_writes_the_same_table_from_an_address(seen):
    assert seen["--engine ray"] == seen["--engine auto"]


def test_rows_are_read_by_id(folder):
    data = gp.load(f"file://{folder / 'set'}").train
    rows = ImageRows.of(training_files(f"file://{folder / 'set'}"))
    assert len(rows) == len(data) == 9_000
    assert rows.starts[:8] == (0, 700, 1400, 2100, 2800, 3500, 4000, 4700)
    ids = np.array([3, 699, 700, 3_999, 4_000, 8_999])
    x, y = rows.read(ids)
    assert np.array_equal(x, data.x[ids].numpy())
    assert np.array_equal(y, data.labels[ids])
    with pytest.raises(gp.DataError, match="ids 5 to 9,000 are asked for, the files hold 9,000"):
        rows.read(np.array([5, 9_000]))


def test_files_of_a_file_system_that_only_fsspec_knows(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "set"), "/goldiprox-test", recursive=True)
    address = "memory://goldiprox-test"
    try:
        assert gp.fingerprint(gp.load(address).train) == gp.fingerprint(gp.load(str(folder / "set")).train)
    finally:
        memory.rm("/goldiprox-test", recursive=True)
    with pytest.raises(MissingData, match="no file system is known for nothing://at/all"):
        gp.load("nothing://at/all")
    with pytest.raises(MissingData, match="cannot be listed"):
        gp.load(f"file://{folder}/missing")


def test_what_cannot_work_is_said_before_anything_is_trained(folder, monkeypatch):
    rows = ImageRows.of(training_files(str(folder / "set")))
    with pytest.raises(gp.ConfigError, match="at least one actor"):
        RayScoring(rows, actors=0)
    with pytest.raises(gp.DataError, match=r"9,000 examples, and are to be scored as a list of 3"):
        RayScoring(rows)(make_mlp(), [1, 2, 3], np.arange(3))
    with pytest.raises(gp.ConfigError, match="'mnist5k' is no set of Parquet files"):
        training_files("mnist5k")
    for flags, message in (
        (["irreducible", "--engine", "ray", "--noise", "0.1"], "--noise changes what is loaded"),
        (["select", "--engine", "ray", "--acquisition", "loss"], "ray is for `goldiprox irreducible` alone"),
    ):
        ran = CliRunner().invoke(app, [*flags, "--data", str(folder / "set"), "--out", str(folder / "no.arrow")])
        assert message in str(ran.exception)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'goldiprox\[ray\]'"):
        import_ray()
