"""A long run keeps memory, file handles and threads flat: many selection steps of a toy model.

    python benchmarks/soak.py [--steps 1000000]

Fails where resident memory grows by 1% or more after the first 10,000 steps, or handles or threads by one.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import goldiprox as gp

WARM_UP = 10_000
BUDGET = 0.01
PAGE_BYTES = 4096


def usage() -> tuple[int, int, int]:
    """Resident bytes, open files and threads of this process."""
    own = Path("/proc/self")
    resident = int((own / "statm").read_text().split()[1]) * PAGE_BYTES
    return resident, len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))


def soak(steps: int, folder: Path, *, warm_up: int = WARM_UP, checkpoint_every: float = 5.0) -> dict[str, Any]:
    """Records so many steps into a file, with checkpoints, and looks at the process ten times per `warm_up` steps."""
    generator = torch.Generator().manual_seed(0)
    data = gp.TensorData(torch.randn(4096, 8, generator=generator), torch.arange(4096) % 4, num_classes=4, name="noise")
    proxy = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    seen: list[tuple[int, int, int]] = []
    started = time.perf_counter()

    def on_step(step: int, latest: Mapping[str, Any]) -> None:  # noqa: ARG001
        if step % (warm_up // 10) == 0:
            seen.append(usage())
        if step % 100_000 == 0:
            print(f"{step:,} steps, {time.perf_counter() - started:.0f} s, {seen[-1]}", file=sys.stderr, flush=True)

    with gp.Checkpoints(folder / "checkpoint", every=checkpoint_every) as checkpoints:
        gp.record(
            proxy,
            data,
            acquisition=gp.loss,
            rule=gp.top_k(),
            candidates=32,
            keep=8,
            steps=steps,
            out=folder / "soak.arrow",
            on_step=on_step,
            checkpoints=checkpoints,
        )
    settled, later = seen[9], seen[10:]
    peaks = [max(values) for values in zip(*later, strict=True)]
    return {
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 1),
        "resident_bytes": {"settled": settled[0], "highest_later": peaks[0]},
        "growth": peaks[0] / settled[0] - 1,
        "file_handles": {"settled": settled[1], "highest_later": peaks[1]},
        "threads": {"settled": settled[2], "highest_later": peaks[2]},
    }


def is_flat(result: dict[str, Any]) -> bool:
    same = all(result[name]["highest_later"] <= result[name]["settled"] for name in ("file_handles", "threads"))
    return same and result["growth"] < BUDGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = soak(steps, Path(folder))
    print(json.dumps({**result, "flat": is_flat(result)}, indent=2))
    return 0 if is_flat(result) else 1


if __name__ == "__main__":
    sys.exit(main())
