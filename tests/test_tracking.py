"""Trackers get the curves of a run, do not hold it up, do not end it, and go on where it goes on."""

import contextlib
import json
import logging
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.errors import CorruptFile, MissingExtra, UnknownName
from goldiprox.picks import Picks
from goldiprox.tracking import BACKENDS, backends, curves, open_tracker, protocol
from test_cli import QUICK, goldiprox  # noqa: F401

pytestmark = [
    # MLflow's own use of SQLAlchemy.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
]


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self):
        self.got, self.finished = [], False

    def log(self, stage, step, values):
        self.got.append((stage, step, dict(values)))

    def finish(self):
        self.finished = True


def recorded(data=None, *, track=None, steps=40, **settings):
    data = data or make_blobs()
    return gp.record(
        make_mlp(), data, irreducible=make_irreducible(data), candidates=40, keep=8, steps=steps,
        evaluate=gp.evaluate_on(make_blobs(seed=1)), eval_every=7, track=track, **settings,
    )  # fmt: skip


class TestPicks:
    def test_against_a_plain_loop(self):
        flags = np.arange(400) % 5 == 0
        history = recorded(corrupted=flags, columns=("score",)).history
        again = recorded(corrupted=flags)
        assert [e["step"] for e in history.evaluations] == [7, 14, 21, 28, 35, 40]
        before = 0
        for evaluation in history.evaluations:
            step = evaluation["step"]
            sofar, window = again.ids[: 8 * step], again.ids[8 * before : 8 * step]
            assert evaluation["coverage"] == len(set(sofar.tolist())) / 400
            assert evaluation["repetition"] == len(sofar) / len(set(sofar.tolist()))
            assert evaluation["corrupted"] == flags[window].mean()
            assert evaluation["score_p10"] < evaluation["score_p50"] < evaluation["score_p90"]
            before = step

    def test_quantiles_are_those_of_the_candidates(self):
        picks = Picks(100, 100)
        scores = torch.randn(150, 41, generator=torch.Generator().manual_seed(0))
        for step in range(150):
            picks.add(torch.tensor([step % 100]), {"scores": scores[step]})
        found = picks.figures()
        ordered = scores.sort(1).values.double()
        for name, row in (("score_p10", 4), ("score_p50", 20), ("score_p90", 36)):
            assert found[name] == pytest.approx(ordered[:, row].mean().item())
        assert "corrupted" not in found
        assert "score_p10" not in picks.figures()  # a new window

    def test_flags_that_do_not_fit(self):
        with pytest.raises(gp.ConfigError, match=r"one flag for each of the 400"):
            recorded(corrupted=np.zeros(3, bool))

    def test_uniform_has_coverage_without_scores(self):
        data = make_blobs()
        recording = gp.record(
            make_mlp(), data, acquisition=gp.uniform, candidates=40, keep=8, steps=4,
            evaluate=gp.evaluate_on(data), eval_every=2,
        )  # fmt: skip
        assert [e["coverage"] for e in recording.history.evaluations] == [16 / 400, 32 / 400]
        assert "score_p50" not in recording.history.final

    def test_a_continued_run_has_the_figures_of_one_that_was_not_broken_off(self, tmp_path):
        flags = np.arange(400) % 3 == 0
        whole, tracker = Kept(), Kept()
        expected = recorded(track=whole, corrupted=flags, out=tmp_path / "a.arrow").history.evaluations
        found = []
        for stop_at in (10, 15, None):  # in the middle of windows
            asked = iter(range(10**6))
            stop = lambda asked=asked, at=stop_at: at is not None and next(asked) >= at  # noqa: E731
            memory = protocol.Memory(tmp_path / "m.json", fresh=stop_at == 10)
            background = protocol.Background("kept", lambda: tracker, memory)
            ends = contextlib.nullcontext() if stop_at is None else pytest.raises(gp.Interrupted)
            with ends, gp.Checkpoints(tmp_path / "c", stop=stop) as checkpoints:
                settings = {"corrupted": flags, "out": tmp_path / "b.arrow", "checkpoints": checkpoints}
                found = recorded(track=background, **settings).history.evaluations
            background.finish()
        assert 0 < len({step for _, step, _ in tracker.got}) == len(tracker.got)
        timeless = [{k: v for k, v in e.items() if k != "seconds"} for e in found]
        assert timeless == [{k: v for k, v in e.items() if k != "seconds"} for e in expected]
        assert [(stage, step) for stage, step, _ in tracker.got] == [(stage, step) for stage, step, _ in whole.got]
        for (_, _, a), (_, _, b) in zip(tracker.got, whole.got, strict=True):
            assert {k: v for k, v in a.items() if "second" not in k} == {
                k: v for k, v in b.items() if "second" not in k
            }


def test_record_and_replay_hand_over_their_evaluations(tmp_path):
    tracker, data, records = Kept(), make_blobs(), []
    recording = recorded(data, track=tracker, out=tmp_path / "s.arrow", on_record=records.append)
    assert [(stage, step) for stage, step, _ in tracker.got] == [("select", r["step"]) for r in records]
    values = tracker.got[-1][2]
    assert values["accuracy"] == recording.history.final["accuracy"]
    assert {"coverage", "repetition", "score_p50", "points_per_second", "flops", "examples"} <= set(values)
    before, last = (recording.history.evaluations[i] for i in (-2, -1))
    rate = (last["examples"] - before["examples"]) / (last["seconds"] - before["seconds"])
    assert values["points_per_second"] == pytest.approx(rate)
    tracker.got.clear()
    gp.replay(make_mlp(1), data, gp.Sequence.open(tmp_path / "s.arrow"), evaluate=gp.evaluate_on(data), track=tracker)
    assert [(stage, step) for stage, step, _ in tracker.got] == [("train", 40)]


def test_only_finite_numbers_are_handed_over():
    tracker = Kept()
    hand_on = curves(tracker, "s")
    assert hand_on is not None
    hand_on({"step": 1, "loss": float("nan"), "flops": None, "name": "x", "fine": 2, "flag": True})
    assert tracker.got == [("s", 1, {"fine": 2.0})]
    assert curves(None, "s") is None


class TestInTheBackground:
    def test_a_slow_tracker_is_not_waited_for(self, tmp_path):
        go, tracker = threading.Event(), Kept()
        log = tracker.log
        tracker.log = lambda *a: (go.wait(60), log(*a))
        background = protocol.Background("slow", lambda: tracker, protocol.Memory(tmp_path / "m", fresh=True))
        recorded(track=background)
        assert tracker.got == []  # the run is over, the tracker has not begun
        go.set()
        background.finish()
        assert len(tracker.got) == 6
        assert tracker.finished

    @pytest.mark.parametrize("when", ["made", "logged", "finished"])
    def test_one_that_fails_is_warned_of_once_and_the_run_goes_on(self, tmp_path, caplog, when):
        def fail(*_):
            raise ConnectionError("no network\nand more lines")

        class Failing(Kept):
            log = fail if when == "logged" else Kept.log
            finish = fail if when == "finished" else Kept.finish

        make = fail if when == "made" else Failing
        background = protocol.Background("x", make, protocol.Memory(tmp_path / "m", fresh=True))
        with caplog.at_level(logging.WARNING):
            assert recorded(track=background).steps == 40
            background.finish()
        assert [r.getMessage() for r in caplog.records] == ["no more curves for x (no network); the run goes on"]

    def test_one_that_hangs_does_not_hold_up_the_end(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(protocol, "FINISH_SECONDS", 0.05)
        release, tracker = threading.Event(), Kept()
        tracker.log = lambda *a: release.wait(60)
        background = protocol.Background("x", lambda: tracker, protocol.Memory(tmp_path / "m", fresh=True))
        background.log("s", 1, {})
        background.finish()
        assert "was not done" in caplog.text
        release.set()

    def test_a_memory_that_cannot_be_read(self, tmp_path):
        for text in ("{", "[]", '{"run": 1}', '{"run": "a", "steps": 3}'):
            (tmp_path / "m").write_text(text)
            with pytest.raises(CorruptFile, match="remove it, and the curves begin anew"):
                protocol.Memory(tmp_path / "m", fresh=False)


def read_tensorboard(folder: Path, run: str) -> dict[str, list]:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = module.EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {
        tag: [(e.step, round(e.value, 4)) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def read_mlflow(folder: Path, run: str) -> dict[str, list]:
    client = pytest.importorskip("mlflow").MlflowClient()
    assert client.get_run(run).data.params == {"a.b": "1"}
    keys = client.get_run(run).data.metrics
    return {k: [(m.step, round(m.value, 4)) for m in client.get_metric_history(run, k)] for k in keys}


def wandb_records(path: Path):
    """The messages of a .wandb file: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    content, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield message
            message = b""


def read_wandb(folder: Path, run: str) -> dict[str, list]:
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found: dict[str, list] = {}
    for path in sorted((folder / "wandb").glob(f"offline-run-*-{run}/*.wandb")):
        for content in wandb_records(path):
            record = messages.Record()
            record.ParseFromString(content)
            row = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item}
            for key, value in row.items():
                stage, _, name = key.rpartition("/")
                if stage and name != "step":
                    found.setdefault(key, []).append((row[f"{stage}/step"], round(value, 4)))
    return found


def read_trackio(folder: Path, run: str) -> dict[str, list]:
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    found: dict[str, list] = {}
    for row in storage.get_logs("goldiprox", run):
        for key, value in row.items():
            if "/" in key:
                found.setdefault(key, []).append((row["step"], round(value, 4)))
    return found


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_keeps_the_curves_and_goes_on_with_them(name, tmp_path, monkeypatch, capfd):
    pytest.importorskip(BACKENDS[name][1])
    if name == "mlflow":
        pytest.importorskip("sqlalchemy", reason="MLflow's local store needs it")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    for resume in (False, True):
        with open_tracker([name], tmp_path / "t", config={"a": {"b": 1}, "c": None}, resume=resume) as tracker:
            for step in range(0, 30 if resume else 20, 10):  # the first two come again
                for stage in ("select", "train uniform"):
                    tracker.log(stage, step, {"accuracy": step / 100, "loss": 1.0})
    run = json.loads((tmp_path / "t" / f"{name}.json").read_text())["run"]
    read = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb, "trackio": read_trackio}
    found = read[name](tmp_path / "t", run)
    for stage in ("select", "train uniform"):
        assert found[f"{stage}/accuracy"] == [(0, 0.0), (10, 0.1), (20, 0.2)], found
        assert len(found[f"{stage}/loss"]) == 3
    assert capfd.readouterr().out == ""  # --json has stdout for itself


def test_trackers_that_are_unknown_or_not_installed(goldiprox, monkeypatch, tmp_path):  # noqa: F811
    with pytest.raises(UnknownName, match="Did you mean 'wandb'"):
        open_tracker(["wandbb"], tmp_path)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'goldiprox\[mlflow\]'"):
        open_tracker(["mlflow"], tmp_path)
    for command in (["run"], ["select", "--acquisition", "loss"], ["train"]):
        code, _, err = goldiprox(*command, "--track", "trackio")
        assert (code, "goldiprox[trackio]" in err) == (1, True), err
    assert list(tmp_path.iterdir()) == []


def test_tracking_on_the_command_line(goldiprox, tmp_path):  # noqa: F811
    pytest.importorskip("tensorboard")
    flags = [*QUICK, "--track", "tensorboard", "--json"]
    code, out, err = goldiprox("run", *flags, "--il-model", "proxy", "--acquisition", "reducible_loss", "--out", "r")
    assert code == 0, err
    result = json.loads(out)
    found = read_tensorboard(tmp_path / "r" / "tracking", "r")
    assert found["train/accuracy"][-1] == (12, round(result["results"]["reducible_loss"]["accuracy"], 4))
    for tag in ("select/corrupted", "select/coverage", "select/score_p90", "train/rank_correlation", "train loss/loss"):
        assert len(found[tag]) == 12, tag
    assert found["ledger/select/examples_scored"] == [(12, 3840)]
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    selected = [line for line in lines if line["stage"] == "select"]
    assert [s for s, _ in found["select/coverage"]] == [line["step"] for line in selected]
    assert [v for _, v in found["select/coverage"]] == [round(line["coverage"], 4) for line in selected]
    code, out, err = goldiprox("select", *flags, "--acquisition", "loss")
    assert code == 0, err
    assert len(read_tensorboard(tmp_path / "sequence.arrow.tracking", "")["select/accuracy"]) == 12


def test_a_run_that_replaces_another_does_not_go_on_with_its_curves(tmp_path):
    pytest.importorskip("tensorboard")
    for value in (0.25, 0.75):
        with open_tracker(["tensorboard"], tmp_path) as tracker:
            tracker.log("train", 1, {"accuracy": value})
    assert read_tensorboard(tmp_path, "") == {"train/accuracy": [(1, 0.75)]}
