"""Large sequences: writing, opening, reading in order and at random, with the memory that takes."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from goldiprox.bench.timing import Measurement, Spread
from goldiprox.lazy import open_table
from goldiprox.sequence import KIND, Sequence, SequenceWriter

POWERS = (7, 8, 9)
KEEP = 1000


def step_ids(step: int, keep: int, length: int) -> np.ndarray:
    """Ids that look random and can be computed again: no step repeats one."""
    first = int(step) * 0x9E3779B1 % length
    return (first + np.arange(keep, dtype=np.int64) * (length // keep)) % length


def write_sequence(path: Path, num_ids: int, *, keep: int = KEEP, length: int = 10**9) -> Path:
    """A sequence of so many ids."""
    with SequenceWriter(path, data={"fingerprint": "sha256:0", "length": length}, keep=keep) as writer:
        for step in range(num_ids // keep):
            writer.append(torch.from_numpy(step_ids(step, keep, length)))
    return path


def megabytes(what: str) -> float:
    """Memory of this process: what it holds (``VmRSS``), or the most that it has held (``VmHWM``); Linux only.

    Not ``getrusage``, which counts what a process's parent held when it was started.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(what)


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
    start = time.perf_counter()
    for _ in sequence.blocks():
        pass
    in_order = time.perf_counter() - start
    parts = len(open_table(path, kind=KIND).parts)
    sys.stdout.write(f"{opened} {unread} {read} {in_order} {held} {held - at_first} {parts}\n")


def sizes(powers: tuple[int, ...] = POWERS) -> Iterator[Measurement]:
    """Files of growing size: bytes an id, and seconds to open, against those of the smallest."""
    smallest: float | None = None
    for power in powers:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            path = write_sequence(Path(folder) / "sequence.arrow", 10**power)
            written = time.perf_counter() - start
            size = path.stat().st_size
            command = [sys.executable, "-c", "import sys; from goldiprox.bench.files import look; look(sys.argv[1])"]
            done = subprocess.run([*command, str(path)], check=True, capture_output=True, text=True)
        opened, unread, read, in_order, held, more, parts = map(float, done.stdout.split())
        smallest = smallest or opened
        yield Measurement(
            f"10^{power} ids: opening / opening 10^{powers[0]} (ms)",
            Spread.of([opened / smallest]),
            Spread.of([opened * 1e3]),
            Spread.of([smallest * 1e3]),
            notes={
                "bytes an id": size / 10**power,
                "parts": int(parts),
                "ids written a second": f"{10**power / written:.3g}",
                "ids read in order a second": f"{10**power / in_order:.3g}",
                "first 10,000 random steps (us each)": round(unread * 100, 1),
                "next 10,000 (us each)": round(read * 100, 1),
                "MB held": round(held),
                "MB beyond the imports": round(more, 1),
            },
        )


def benchmarks() -> dict[str, Callable[[], Iterator[Measurement]]]:
    """What takes gigabytes on the disk and minutes: only when asked for."""
    return {"files": sizes}
