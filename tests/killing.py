"""Kills commands at random moments, continues them, and compares what they leave with an uninterrupted run.

    python tests/killing.py select 100 [--seed 0]

A script, not a fixture: every command runs in a process of its own, forked from this one so that torch is imported
once, and is killed with SIGKILL. Prints one JSON object.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from pathlib import Path

import torch

import goldiprox as gp
from goldiprox.artifacts import Table, read_header
from goldiprox.cli import main

FLAGS = ["--data", "killing:blobs", "--device", "cpu", "--dropout", "0.3", "--json", "--checkpoint-every", "0.01"]
SELECTION = ["--schedule", "cosine", "--epochs", "8", "--candidates", "40", "--keep", "8", "--proxy", "killing:small"]
STAGES = (
    "irreducible/model-0",
    "select",
    "rehearse-reducible_loss",
    "rehearse-predictability",
    "train",
    "train-uniform",
    "train-loss",
)


def blobs():
    """What tests/conftest.py calls so, without what it sets up for pytest."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 4
    x = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [-2.0, -2.0], [2.0, -2.0]])[y] + torch.randn(600, 2, generator=generator)
    data = gp.TensorData(x, y, num_classes=4, name="blobs")
    return data, data


def small(input_shape, num_classes):
    return torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
    )


COMMANDS = {
    "irreducible": ["irreducible", *FLAGS, "--proxy", "killing:small", "--out", "out.arrow"],
    "select": [
        *("select", *FLAGS, *SELECTION, "--acquisition", "loss", "--columns", "score,loss"),
        *("--out", "out.arrow", "--save-proxy", "proxy.safetensors"),
    ],
    "train": [*("train", *FLAGS, "--model", "killing:small"), *("--sequence", "../sequence.arrow", "--out", "out")],
    "run": ["run", *FLAGS, *SELECTION, "--model", "killing:small", "--out", "out"],
}
CHECKPOINTS = {"irreducible": "out.arrow.checkpoint", "select": "out.arrow.checkpoint"}


def start(command, folder):
    """A process that runs a command in a folder."""
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["goldiprox", *command]
        code = 0
        try:
            main()
        except SystemExit as e:
            code = e.code or 0
        sys.stdout.flush()
        os._exit(code)
    except BaseException as e:
        os.write(2, repr(e).encode())
        os._exit(99)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def finish(command, folder):
    code = wait(start(command, folder))
    if code:
        raise SystemExit(f"exit code {code}: {(folder / 'stderr').read_text()}")


def saved(checkpoints):
    """The names of all checkpoints, also of one that is being written; walks on where a folder is just removed."""
    return [name for _, folders, _ in os.walk(checkpoints) for name in folders if name.startswith("step-")]


def latest(checkpoints):
    """The highest step; -1 before the first."""
    return max((int(name[5:].removesuffix(".partial")) for name in saved(checkpoints)), default=-1)


def kill(command, folder, checkpoints, step, delay):
    """Kills a command a moment after it has reached a step; how it lay then."""
    pid = start(command, folder)
    while latest(checkpoints) < step and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    code = wait(pid)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"exit code {code}: {(folder / 'stderr').read_text()}")
    if code == 0 or (any(folder.glob("out*")) and not any(folder.rglob("*checkpoint"))):
        (folder / "stdout").unlink()  # it may not have come to print what it had done, or to tidy up
        for path in list(folder.rglob("*.removed")):
            shutil.rmtree(path)
        return "after the end"
    if any(name.endswith(".partial") for name in saved(checkpoints)):
        return "while a checkpoint was written"
    return "before the first checkpoint" if latest(checkpoints) < 0 else "between checkpoints"


def without_seconds(value):
    if isinstance(value, dict):
        timeless = {
            k: v for k, v in value.items() if "seconds" not in k and k not in ("out", "path", "figures", "report")
        }
        return {k: without_seconds(v) for k, v in timeless.items()}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def contents(folder):
    """Everything a command leaves, without seconds and places, by name."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "stderr"):
        name = str(path.relative_to(folder))
        if path.suffix == ".arrow":
            table = Table.open(path, kind=read_header(path).kind)
            found[name] = {column: table.column(column).tolist() for column in table.header.columns}
        elif path.suffix in (".json", ".jsonl") or path.name == "stdout":
            text = path.read_text()
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            found[name] = [without_seconds(json.loads(line)) for line in lines]
        elif path.suffix not in (".png", ".html"):
            found[name] = path.read_bytes()
    return found


def differences(one, other):
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def trial(kind, base, number, whole, total, chance, stage=""):
    """One run, killed once or more, then finished: (where the kills landed, what differs)."""
    folder = base / f"{kind}-{number}"
    checkpoints = folder / CHECKPOINTS.get(kind, "out/.checkpoint") / stage
    landed = []
    for _ in range(chance.choice((1, 1, 1, 1, 3))):
        step = chance.uniform(-0.15, 1.0) * total
        delay = chance.uniform(0, 0.3) if step < 0 else chance.uniform(0, 0.02)
        landed.append(kill(COMMANDS[kind], folder, checkpoints, step, delay))
        if landed[-1] == "after the end":
            break
    if landed[-1] != "after the end":
        finish(COMMANDS[kind], folder)
    left_behind = contents(folder)
    changed = differences(left_behind, {name: whole[name] for name in whole if name != "stdout" or name in left_behind})
    left = [str(p) for p in folder.rglob("*") if "checkpoint" in p.name or p.name.endswith(".partial")]
    shutil.rmtree(folder)
    return landed, changed + left


def follow_trial(base, number, whole, total, chance):
    """A run and a follower of it, one of the two killed and started again; as `trial`."""
    folder = base / f"follow-{number}"
    folder.mkdir()
    train = list(COMMANDS["train"])
    train[train.index("../sequence.arrow")] = "../writer/out.arrow"
    both = {"writer": COMMANDS["select"], "follower": [*train, "--follow"]}
    checkpoints = {"writer": "out.arrow.checkpoint", "follower": "out/.checkpoint"}
    victim, other = sorted(both, reverse=number % 2 == 1)
    pid = start(both[other], folder / other)
    step, delay = chance.uniform(-0.15, 1.0) * total, chance.uniform(0, 0.02)
    where = kill(both[victim], folder / victim, folder / victim / checkpoints[victim], step, delay)
    if where != "after the end":
        finish(both[victim], folder / victim)
    if wait(pid):
        raise SystemExit((folder / other / "stderr").read_text())
    left_behind = {name: contents(folder / name) for name in both}
    changed = [f for name in both for f in differences(left_behind[name], whole[name]) if f != "stdout"]
    shutil.rmtree(folder)
    return [f"{victim} {where}"], changed


def total_steps(kind, base):
    """How many steps there are to be killed in."""
    if kind == "irreducible":
        printed = json.loads((base / "irreducible-whole" / "stdout").read_text())
        return printed["ledger"]["irreducible"]["examples_trained"] // 128
    return len(gp.Sequence.open(base / "sequence.arrow"))


def trials(kind, count, seed):
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    chance, landed, problems = random.Random(seed), Counter(), []
    memory = Path("/dev/shm")  # a kill loses nothing that was handed to the system, so the disk need not be waited for
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        base = Path(name)
        # So that what commands import when they first need it is there in every fork.
        with suppress(ImportError):
            importlib.import_module("matplotlib.pyplot")
        with suppress(SystemExit), redirect_stdout(None):
            sys.argv = ["goldiprox", *COMMANDS["select"][:-4], "--out", str(base / "warm.arrow")]
            main()
        finish(COMMANDS["select"], base / "select-whole")
        shutil.copy(base / "select-whole" / "out.arrow", base / "sequence.arrow")
        whole = base / f"{kind}-whole"
        if kind == "follow":
            finish(COMMANDS["train"], base / "train-whole")
            expected = {"writer": contents(base / "select-whole"), "follower": contents(base / "train-whole")}
        else:
            if kind != "select":
                finish(COMMANDS[kind], whole)
            expected = contents(whole)
        total = total_steps(kind, base)
        stages = itertools.cycle(STAGES if kind == "run" else ("",))
        for number, stage in zip(range(count), stages, strict=False):
            if kind == "follow":
                where, changed = follow_trial(base, number, expected, total, chance)
            else:
                where, changed = trial(kind, base, number, expected, total, chance, stage)
            landed.update(where)
            if changed:
                problems.append(f"{number}, killed {where}: {changed}")
    return {"trials": count, "identical": count - len(problems), "landed": landed, "problems": problems}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*COMMANDS, "follow"])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(trials(arguments.kind, arguments.count, arguments.seed), indent=2))
