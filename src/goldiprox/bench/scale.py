"""Does cost grow with the number of examples and with nothing else?"""

import resource
import time
from collections.abc import Callable, Iterator

import torch

from goldiprox.bench.timing import Measurement, Spread, finish
from goldiprox.data import TensorData
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import build
from goldiprox.optim import TrainingConfig
from goldiprox.recording import record

SHAPE = (1, 16, 16)
CANDIDATES = 320


def one_pass(length: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a pass over the candidates of so many examples, and megabytes beyond the data."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randint(0, 256, (length, *SHAPE), dtype=torch.uint8, device=device, generator=generator)
    data = TensorData(x, torch.randint(0, 10, (length,), device=device, generator=generator), num_classes=10)
    table = IrreducibleLosses(torch.zeros(length))
    model = build("mlp128", SHAPE, 10, device=device)
    finish()
    before = _memory(device, reset=True)
    start = time.perf_counter()
    config = TrainingConfig(precision="bf16" if device.type == "cuda" else "fp32")
    record(model, data, irreducible=table, candidates=CANDIDATES, keep=32, epochs=1, config=config)
    finish()
    return time.perf_counter() - start, _memory(device) - before


def _memory(device: torch.device, *, reset: bool = False) -> float:
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated() / 2**20
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def growth(device: torch.device, powers: range) -> Iterator[Measurement]:
    """Microseconds per example at each size, divided by those at the size before."""
    one_pass(10_000, device)
    seconds, memory = one_pass(10 ** powers[0], device)
    for power in powers[1:]:
        more_seconds, more_memory = one_pass(10**power, device)
        yield Measurement(
            f"10^{power} examples / ten times 10^{power - 1}: time of a pass over the candidates ({device.type}; s)",
            Spread.of([more_seconds / (10 * seconds)]),
            Spread.of([more_seconds]),
            Spread.of([seconds]),
            notes={"MB beyond the data": round(more_memory, 1), "before": round(memory, 1)},
        )
        seconds, memory = more_seconds, more_memory


def benchmarks() -> dict[str, Callable[[], Iterator[Measurement]]]:
    """Growth on the device there is; a GPU has room and speed for more."""
    if torch.cuda.is_available():
        return {"scale": lambda: growth(torch.device("cuda", 0), range(4, 8))}
    return {"scale": lambda: growth(torch.device("cpu"), range(4, 7))}
