"""What is kept of the runs of a comparison, and what is read out of it again."""

import hashlib
import importlib
import inspect
from pathlib import Path
from typing import Any

import torch

from goldiprox.irreducible import IrreducibleLosses, Rivals
from goldiprox.loop import History
from goldiprox.store import Kept


def figures(history: History) -> dict[str, Any]:
    """What is kept of a run: accuracy at every evaluation, and the bill."""
    return {
        "steps": [e["step"] for e in history.evaluations],
        "accuracy": [e["accuracy"] for e in history.evaluations],
        "flops": history.cost.flops,
        "seconds": history.cost.seconds,
        "evaluation_seconds": history.cost.evaluation_seconds,
    }


def beginning(run: Kept, steps: int) -> Kept:
    """The first steps of a run, as if it had ended there."""
    count = run.numbers["steps"].index(steps) + 1
    part = steps / run.numbers["steps"][-1]
    shorter = {name: run.numbers[name][:count] for name in ("steps", "accuracy")}
    scaled = {n: None if run.numbers[n] is None else run.numbers[n] * part for n in ("flops", "seconds")}
    return Kept(run.numbers | shorter | scaled)


def identity(name: str) -> str:
    """A name, and for the user's own code a hash of the file it is in: when that changes, runs are made again."""
    if ":" not in name:
        return name
    path = inspect.getsourcefile(importlib.import_module(name.partition(":")[0]))
    return f"{name}@{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}" if path else name


def table_of(run: Kept) -> IrreducibleLosses:
    """The irreducible losses of a holdout model."""
    values, *against = (
        torch.from_numpy(run.arrays[name]) for name in ("values", *Rivals._fields) if name in run.arrays
    )
    return IrreducibleLosses(values, rivals=Rivals(*against) if against else None)


def summed(values: Any) -> Any:
    """The sum; None where one of them is not known."""
    known = list(values)
    return None if any(v is None for v in known) else sum(known)
