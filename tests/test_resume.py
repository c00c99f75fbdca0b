"""Commands that are killed or interrupted, and continued: what they leave is what an uninterrupted one leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import goldiprox as gp
from goldiprox.cli import signals
from killing import COMMANDS, FLAGS, SELECTION, contents, differences
from test_cli import goldiprox  # noqa: F401

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}


def kills(kind: str, count: int, seed: int = 0) -> dict:
    command = [sys.executable, str(HERE / "killing.py"), kind, str(count), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("kind", "count"), [("select", 5), ("train", 5), ("irreducible", 1), ("run", 2)])
def test_killed_at_random_moments(kind, count):
    result = kills(kind, count)
    assert result["problems"] == []
    assert result["identical"] == count
    landed = result["landed"]
    assert landed.get("between checkpoints", 0) + landed.get("while a checkpoint was written", 0) >= count // 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("select", 100), ("train", 100), ("irreducible", 25), ("run", 25)])
def test_killed_at_very_many_random_moments(kind, count):
    result = kills(kind, count, seed=1)
    assert result["problems"] == []
    assert result["identical"] == count
    assert result["landed"]["between checkpoints"] >= count // 10
    assert result["landed"]["while a checkpoint was written"] >= 1
    if kind in ("select", "train"):
        assert result["landed"]["before the first checkpoint"] >= 1


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_a_writer_or_its_follower_is_killed(count):
    """And started again, while the other one goes on."""
    result = kills("follow", count)
    assert result["problems"] == []
    assert {where.split()[0] for where in result["landed"]} == {"writer", "follower"}


@pytest.mark.slow
def test_a_long_run_stays_flat():
    command = [sys.executable, str(HERE.parent / "benchmarks" / "soak.py"), "--steps", "20000"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def started(command, folder):
    """A process of its own, with everything that comes with that."""
    command = [sys.executable, "-m", "goldiprox", *command]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_signals_finish_the_step_and_say_how_to_go_on(tmp_path):
    """With progress bars, in one run: SIGTERM, then SIGINT, then to the end."""
    command = [flag for flag in COMMANDS["select"] if flag != "--json"]
    for flag, value in (("--epochs", "20"), ("--checkpoint-every", "0.05")):
        command[command.index(flag) + 1] = value
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = started(command, tmp_path / "whole")
    folder = tmp_path / "broken"
    step = 0
    for signum, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = started(command, folder)
        checkpoints = folder / "out.arrow.checkpoint" / "select"
        until(lambda before=step, c=checkpoints: _latest(c) > before, process)
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert b"Traceback" not in err
        assert b"once more to stop at once" in err
        step = _latest(checkpoints)
        assert f"interrupted: stopped after step {step:,}; all of it is saved" in err.decode()
        (again,) = re.findall(r"To go on: (?:.*goldiprox) (.*)", err.decode())
        command = again.split()
        assert command[-1] == "--resume"
    process = started(command, folder)
    assert process.communicate()[1] is not None
    assert process.returncode == whole.wait() == 0
    one, other = (gp.Sequence.open(tmp_path / name / "out.arrow") for name in ("whole", "broken"))
    assert one.digest == other.digest
    a, b = (load_file(tmp_path / name / "proxy.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(a[k], b[k]) for k in a)
    whole.communicate()


def _latest(checkpoints: Path) -> int:
    return max((int(p[5:]) for p in _names(checkpoints) if re.fullmatch(r"step-\d+", p)), default=0)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


@pytest.fixture
def python_handlers():
    """What Python sets up at its start, also where tests run in the background and SIGINT is ignored."""
    before = {signum: signal.getsignal(signum) for signum in signals.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_acts_at_once(signum, capfd, python_handlers):
    before = [signal.getsignal(s) for s in signals.SIGNALS]
    with pytest.raises(KeyboardInterrupt), signals.graceful():
        signal.raise_signal(signum)
        assert signals.stop()
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(s) for s in signals.SIGNALS] == before
    assert "interrupted: at once" in capfd.readouterr().err


@pytest.fixture
def stopping(monkeypatch):
    """Has the next command stop before so many more steps."""

    def after(steps):
        left = iter(range(steps))
        monkeypatch.setattr(signals.Stop, "__call__", lambda self: next(left, None) is None)

    return after


@pytest.fixture
def never(monkeypatch):
    return lambda: monkeypatch.setattr(signals.Stop, "__call__", lambda self: False)


@pytest.fixture
def command(goldiprox, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(str(HERE))
    return goldiprox


SELECT = [*("select", *FLAGS, *SELECTION, "--acquisition", "loss", "--out", "s.arrow")]


class TestSelect:
    def test_by_default_an_unfinished_run_is_continued(self, command, stopping, never, tmp_path):
        stopping(9)
        code, out, err = command(*SELECT)
        assert (code, out) == (130, "")
        assert "stopped after step 9" in err
        assert (tmp_path / "s.arrow.checkpoint" / "select" / "step-9").is_dir()
        never()
        assert command(*SELECT)[0] == 0
        assert [p.name for p in tmp_path.iterdir()] == ["s.arrow"]
        assert command(*SELECT)[0] == 1  # there is a finished one now

    def test_stopped_before_the_first_step(self, command, stopping, never):
        stopping(0)
        assert command(*SELECT)[0] == 130
        never()
        assert command(*SELECT, "--resume")[0] == 0

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--lr", "0.5"], "--lr 0.001 there, 0.5 here"),
            (["--seed", "3", "--keep", "4"], r"--keep 8 there, 4 here; --seed 0 there, 3 here"),
            (["--noise", "0.2"], "--noise 0.0 there, 0.2 here"),
            (["--threads", "2"], "--threads null there, 2 here"),
            (["--workers", "1"], "--workers null there, 1 here"),
        ],
    )
    def test_other_settings_are_refused(self, command, stopping, flags, said, tmp_path):
        stopping(9)
        command(*SELECT)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        code, _, err = command(*SELECT, *flags)
        assert code == 2
        assert re.search(f"unfinished run with other settings: {said}.*--force", err)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before

    def test_force_starts_over(self, command, stopping, never):
        stopping(9)
        command(*SELECT)
        never()
        assert command(*SELECT, "--seed", "3", "--force")[0] == 0

    def test_changed_data_is_refused(self, command, stopping, never, monkeypatch):
        stopping(9)
        command(*SELECT)
        import killing

        train, test = killing.blobs()
        train.x[3] += 1
        monkeypatch.setattr(killing, "blobs", lambda: (train, test))
        never()
        code, _, err = command(*SELECT)
        assert code == 1
        assert "the data changed" in err

    def test_resume_needs_something_to_resume(self, command, tmp_path):
        code, _, err = command(*SELECT, "--resume")
        assert code == 1
        assert "leave out --resume" in err
        code, _, err = command(*SELECT, "--resume", "--force")
        assert code == 2
        assert "choose one" in err
        assert list(tmp_path.iterdir()) == []

    def test_a_bad_setting_leaves_nothing_behind(self, command, tmp_path):
        assert command(*SELECT, "--columns", "irreducible")[0] == 2
        assert list(tmp_path.iterdir()) == []

    def test_divergence_says_what_is_left(self, command, tmp_path):
        code, _, err = command(*SELECT, "--lr", "1e38", "--checkpoint-every", "0")
        assert code == 1
        assert re.search(r"not finite at step \d+, ids .*lower the learning rate.*before the first checkpoint", err)
        assert (tmp_path / "s.arrow.partial").exists()


class TestRun:
    RUN = ("run", *FLAGS, *SELECTION, "--model", "killing:small")

    @pytest.mark.slow
    def test_interrupted_in_every_stage(self, command, stopping, never, tmp_path):
        """A stage that is finished is not repeated."""
        code, whole, _ = command(*self.RUN, "--out", "whole")
        assert code == 0
        stages = ("irreducible/model-0-mixup", "select", "train", "train-uniform", "train-loss")
        finished = {}
        code = 130
        while code == 130:
            stopping(90)  # more than a list without a proxy asks, which is made again at each try
            code = command(*self.RUN, "--out", "out")[0]
            begun = [(s, p) for s in stages for p in tmp_path.glob(f"out/.checkpoint/{s}/step-*")]
            for stage, path in begun[:-1]:  # made once and for all
                assert finished.setdefault(stage, path.stat().st_ino) == path.stat().st_ino
        assert code == 0
        assert set(finished) == set(stages[:-1])
        one, other = contents(tmp_path / "whole"), contents(tmp_path / "out")
        assert differences(one, other) == []
        assert not (tmp_path / "out" / ".checkpoint").exists()

    def test_resume_takes_the_last_one(self, command, stopping, never, tmp_path):
        stopping(7)
        for _ in range(2):
            assert command(*self.RUN)[0] == 130
        folders = sorted(p.name for p in (tmp_path / "runs").iterdir())
        assert folders == ["killing-blobs-001", "killing-blobs-002"]
        never()
        code, out, _ = command(*self.RUN, "--resume")
        assert code == 0
        assert json.loads(out)["out"] == "runs/killing-blobs-002"
        code, _, err = command(*self.RUN, "--resume")
        assert code == 1
        assert "holds no unfinished run" in err

    @pytest.mark.slow
    def test_force_over_an_older_run_can_be_continued(self, command, stopping, never, tmp_path):
        assert command(*self.RUN, "--out", "out")[0] == 0
        stopping(30)
        assert command(*self.RUN, "--out", "out", "--force", "--seed", "1")[0] == 130
        assert (tmp_path / "out" / ".replaced" / "result.json").exists()
        never()
        assert command(*self.RUN, "--out", "out", "--seed", "1")[0] == 0
        assert command(*self.RUN, "--out", "fresh", "--seed", "1")[0] == 0
        assert differences(contents(tmp_path / "out"), contents(tmp_path / "fresh")) == []
        assert not (tmp_path / "out" / ".replaced").exists()


class TestTrain:
    def test_following_a_writer_that_is_gone_is_saved(self, command, stopping, never, tmp_path):
        """And goes on when the writer does, to the end of a replay of the finished file."""
        never()
        assert command(*SELECT)[0] == 0
        train = [*("train", *FLAGS, "--model", "killing:small", "--window", "1", "--sequence")]
        assert command(*train, "s.arrow", "--out", "whole")[0] == 0
        stopping(40)
        select = [*SELECT[:-1], "f.arrow"]
        assert command(*select)[0] == 130
        never()
        follow = [*train, "f.arrow", "--out", "t", "--follow", "--timeout", "0.1"]
        code, _, err = command(*follow)
        assert code == 1
        assert "nobody has been writing it" in err
        assert (tmp_path / "t" / ".checkpoint" / "train" / "step-40").is_dir()
        assert command(*select)[0] == 0
        assert command(*follow, "--resume")[0] == 0
        assert differences(contents(tmp_path / "t"), contents(tmp_path / "whole")) == []

    def test_another_order_is_refused(self, command, stopping, never, tmp_path):
        never()
        assert command(*SELECT)[0] == 0
        train = ["train", *FLAGS, "--model", "killing:small", "--sequence", "s.arrow", "--window", "20"]
        assert command(*train, "--out", "whole")[0] == 0
        stopping(30)
        assert command(*train, "--out", "t")[0] == 130
        never()
        for other, said in ((["--window", "10"], "--window 20 there, 10 here"), (["--seed", "5"], "--seed")):
            code, _, err = command(*train, "--out", "t", "--resume", *other)
            assert (code, said in err) == (2, True), err
        assert command(*train, "--out", "t", "--resume")[0] == 0
        assert differences(contents(tmp_path / "t"), contents(tmp_path / "whole")) == []

    def test_interrupted_while_it_waits(self, command, stopping, never, tmp_path):
        stopping(40)
        assert command(*SELECT)[0] == 130
        stopping(50)  # forty steps, then waiting
        train = [*("train", *FLAGS, "--model", "killing:small", "--sequence", "s.arrow", "--out", "t", "--follow")]
        code, _, err = command(*train, "--window", "1")
        assert code == 130
        assert "stopped after step 40" in err
