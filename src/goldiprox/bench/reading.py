"""Reading a large sequence in a process that does nothing else: without torch, as a reader of its own would."""

import sys
import time
from pathlib import Path

import numpy as np

from goldiprox.lazy import open_table
from goldiprox.sequence import KIND, Sequence


def step_ids(step: int, keep: int, length: int) -> np.ndarray:
    """Ids that look random and can be computed again: no step repeats one."""
    first = int(step) * 0x9E3779B1 % length
    return (first + np.arange(keep, dtype=np.int64) * (length // keep)) % length


def megabytes(what: str) -> float:
    """Memory of this process: what it holds (``VmRSS``), or the most that it has held (``VmHWM``); Linux only.

    Not ``getrusage``, which counts what a process's parent held when it was started.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(what)


def forget_peak() -> bool:
    """Lets ``VmHWM`` begin anew at what the process holds now; False where that cannot be (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def look(path: str) -> None:
    """Opens a sequence, reads steps at random and in order, and prints seconds and megabytes: a process of its own."""
    at_first = megabytes("VmRSS")
    start = time.perf_counter()
    sequence = Sequence.open(path)
    opened = time.perf_counter() - start
    steps = np.random.default_rng(0).integers(len(sequence), size=20_000)
    start = time.perf_counter()
    for step in steps[: len(steps) // 2]:
        sequence[step]
    unread = time.perf_counter() - start
    start = time.perf_counter()
    for step in steps[len(steps) // 2 :]:
        sequence[step]
    read = time.perf_counter() - start
    held = megabytes("VmHWM")
    assert "torch" not in sys.modules, "what is measured would be torch"
    start = time.perf_counter()
    for _ in sequence.blocks():
        pass
    in_order = time.perf_counter() - start
    parts = len(open_table(path, kind=KIND).parts)
    sys.stdout.write(f"{opened} {unread} {read} {in_order} {held} {held - at_first} {parts}\n")
