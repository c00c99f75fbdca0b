"""Ratios on the CPU, each of two things measured side by side in this run; fails where one is over its budget.

python benchmarks/cpu.py [--repeats 7]

Repeats alternate between the two sides and the median ratio counts, so that other work on the machine hits both.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import goldiprox as gp

STEPS, CANDIDATES, KEEP = 60, 320, 32


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio(ours: Callable[[], object], reference: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Median, lowest and highest of our time divided by the reference's."""
    ours()
    reference()
    ratios = [seconds(ours) / seconds(reference) for _ in range(repeats)]
    return statistics.median(ratios), min(ratios), max(ratios)


def selecting_step(repeats: int) -> tuple[float, float, float]:
    """`record` against the barest loop that scores, sorts and trains."""
    data = gp.load("mnist5k").train
    table = gp.IrreducibleLosses(torch.zeros(len(data)))

    def ours() -> None:
        gp.record(gp.build("mlp128", (1, 28, 28), 10), data, irreducible=table, steps=STEPS)

    def bare() -> None:
        model = gp.build("mlp128", (1, 28, 28), 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        order = torch.randperm(len(data))
        for step in range(STEPS):
            first = step * CANDIDATES % (len(data) - CANDIDATES)
            x, y = data.gather(order[first : first + CANDIDATES])
            with torch.no_grad():
                rows = cross_entropy(model(x), y, reduction="none").topk(KEEP).indices
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    return ratio(ours, bare, repeats)


def replaying_loader(repeats: int) -> tuple[float, float, float]:
    """A loader on a sequence against the same loader on a random batch sampler."""
    data = gp.load("mnist5k").train
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sequence.arrow"
        gp.record(gp.build("mlp128", (1, 28, 28), 10), data, acquisition=gp.uniform, steps=4 * STEPS, out=path)
        sequence = gp.Sequence.open(path, data=data)
    plain = BatchSampler(RandomSampler(data, num_samples=4 * STEPS * KEEP), KEEP, drop_last=True)
    return ratio(
        lambda: list(DataLoader(data, batch_sampler=sequence)),
        lambda: list(DataLoader(data, batch_sampler=plain)),
        repeats,
    )


def importing(repeats: int) -> tuple[float, float, float]:
    """``import goldiprox`` against what it cannot do without: torch and pyarrow."""

    def start(statement: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True)

    return ratio(start("import goldiprox"), start("import torch, pyarrow, safetensors.torch"), repeats)


BUDGETS: dict[str, tuple[Callable[[int], tuple[float, float, float]], float]] = {
    "selecting step / bare loop (mlp128)": (selecting_step, 1.6),
    "loader on a sequence / on a random sampler": (replaying_loader, 1.1),
    "import goldiprox / import torch, pyarrow": (importing, 1.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {repeats} alternating repeats\n")
    print(f"{'ratio':<45} {'median':>7} {'lowest':>7} {'highest':>8} {'budget':>7}")
    over = []
    for name, (measure, budget) in BUDGETS.items():
        median, lowest, highest = measure(repeats)
        print(f"{name:<45} {median:>7.2f} {lowest:>7.2f} {highest:>8.2f} {budget:>7.2f}")
        over += [name] if median > budget else []
    if over:
        sys.exit(f"over budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
