"""Ratios on the CPU, with budgets that `make bench` holds us to."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from goldiprox.acquisition import uniform
from goldiprox.bench.reference import KEEP, selecting_loop
from goldiprox.bench.timing import Measurement, compare, milliseconds
from goldiprox.data import TensorData
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import build
from goldiprox.recording import record
from goldiprox.rules import top_k
from goldiprox.sequence import Sequence

STEPS = 60


def made_up_data(length: int = 5_000) -> TensorData:
    """Random images of the shape of MNIST's, with labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (length, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (length,), generator=generator)
    return TensorData(x, y, num_classes=10, mean=(0.1307,), std=(0.3081,))


def selecting_step(repeats: int) -> Iterator[Measurement]:
    """`record` against the plain loop."""
    data = made_up_data()
    x, y = data.gather(torch.arange(len(data)))
    table = IrreducibleLosses(torch.zeros(len(data)))

    def ours() -> None:
        record(build("mlp128", (1, 28, 28), 10), data, irreducible=table, rule=top_k(), steps=STEPS)

    def plain() -> None:
        model = build("mlp128", (1, 28, 28), 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        selecting_loop(model, x, y, table.values, steps=STEPS, precision="fp32", optimizer=optimizer)

    yield compare(
        "selecting step / plain loop (mlp128, CPU)",
        lambda: milliseconds(ours, STEPS),
        lambda: milliseconds(plain, STEPS),
        repeats=repeats,
        target=1.6,
    )


def replaying_loader(repeats: int) -> Iterator[Measurement]:
    """A loader on a sequence against the same loader on a random batch sampler."""
    data, steps = made_up_data(), 4 * STEPS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sequence.arrow"
        record(build("mlp128", (1, 28, 28), 10), data, acquisition=uniform, steps=steps, out=path)
        sequence = Sequence.open(path, data=data)
    plain = BatchSampler(RandomSampler(data, num_samples=steps * KEEP), KEEP, drop_last=True)
    yield compare(
        "DataLoader(batch_sampler=sequence) / on a random batch sampler",
        lambda: milliseconds(lambda: list(DataLoader(data, batch_sampler=sequence)), steps),
        lambda: milliseconds(lambda: list(DataLoader(data, batch_sampler=plain)), steps),
        repeats=repeats,
        target=1.02,
    )


def importing(repeats: int) -> Iterator[Measurement]:
    """What selecting and training need of this package, against what they cannot do without."""

    def start(statement: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True)

    ours = start("from goldiprox import Selector, Sequence, load, record, replay")
    needed = start("import torch, pyarrow, safetensors.torch")
    yield compare(
        "importing record, replay and the like / torch, pyarrow",
        lambda: milliseconds(ours),
        lambda: milliseconds(needed),
        repeats=repeats,
        target=1.5,
    )


def benchmarks(repeats: int) -> dict[str, Callable[[], Iterator[Measurement]]]:
    """Every measurement on the CPU by name."""
    return {
        "cpu-step": lambda: selecting_step(repeats),
        "loader": lambda: replaying_loader(repeats),
        "import": lambda: importing(repeats),
    }
