"""Large sequences: writing, opening, reading in order and at random, with the memory that takes."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from goldiprox.bench.reading import step_ids
from goldiprox.bench.timing import Measurement, Spread
from goldiprox.sequence import SequenceWriter

POWERS = (7, 8, 9)
KEEP = 1000


def write_sequence(path: Path, num_ids: int, *, keep: int = KEEP, length: int = 10**9) -> Path:
    """A sequence of so many ids."""
    with SequenceWriter(path, data={"fingerprint": "sha256:0", "length": length}, keep=keep) as writer:
        for step in range(num_ids // keep):
            writer.append(torch.from_numpy(step_ids(step, keep, length)))
    return path


def sizes(powers: tuple[int, ...] = POWERS) -> Iterator[Measurement]:
    """Files of growing size: bytes an id, and seconds to open, against those of the smallest."""
    smallest: float | None = None
    for power in powers:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            path = write_sequence(Path(folder) / "sequence.arrow", 10**power)
            written = time.perf_counter() - start
            size = path.stat().st_size
            command = [sys.executable, "-c", "import sys; from goldiprox.bench.reading import look; look(sys.argv[1])"]
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
                "MB held at most, imports included": round(held),
                "MB beyond the imports": round(more, 1),
            },
        )


def benchmarks() -> dict[str, Callable[[], Iterator[Measurement]]]:
    """What takes gigabytes on the disk and minutes: only when asked for."""
    return {"files": sizes}
