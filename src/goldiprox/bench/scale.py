"""Does time grow with the number of examples and with nothing else, and memory not at all?"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch

from goldiprox.bench.reading import forget_peak, megabytes
from goldiprox.bench.timing import Measurement, Spread, finish
from goldiprox.data import TensorData
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import build
from goldiprox.optim import TrainingConfig
from goldiprox.recording import record
from goldiprox.rules import top_k

SHAPE = (1, 16, 16)
CANDIDATES = 320


def one_pass(length: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a pass over the candidates of so many examples, and the most megabytes that it takes.

    Beyond data, table and model; and, on the host, beyond the ids that are kept, which are what it is for. NaN on hosts
    that do not tell.
    """
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randint(0, 256, (length, *SHAPE), dtype=torch.uint8, device=device, generator=generator)
    data = TensorData(x, torch.randint(0, 10, (length,), device=device, generator=generator), num_classes=10)
    table = IrreducibleLosses(torch.zeros(length))
    table[torch.zeros(1, dtype=torch.int64, device=device)]  # so that it lies on the device
    model = build("mlp128", SHAPE, 10, device=device)
    finish()
    before = _start_of_memory(device)
    start = time.perf_counter()
    config = TrainingConfig(precision="bf16" if device.type == "cuda" else "fp32")
    kept = record(model, data, irreducible=table, rule=top_k(), candidates=CANDIDATES, keep=32, epochs=1, config=config)
    finish()
    seconds = time.perf_counter() - start
    if device.type == "cuda":
        return seconds, torch.cuda.max_memory_allocated() / 2**20 - before
    return seconds, math.nan if math.isnan(before) else megabytes("VmHWM") - before - kept.ids.nbytes / 2**20


def _start_of_memory(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    return megabytes("VmRSS") if forget_peak() else math.nan


def alone(length: int) -> None:
    """Prints a pass on the host, for a process of its own: what others have freed would hide what this one takes."""
    cpu = torch.device("cpu")
    one_pass(10_000, cpu)  # libraries take memory when they are first used
    sys.stdout.write(json.dumps(one_pass(length, cpu)))


def measured(length: int, device: torch.device) -> tuple[float, float]:
    """`one_pass`, on the host in a process of its own."""
    if device.type == "cuda":
        return one_pass(length, device)
    command = [sys.executable, "-c", f"from goldiprox.bench.scale import alone; alone({length})"]
    seconds, memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return seconds, memory


def growth(device: torch.device, powers: range) -> Iterator[Measurement]:
    """Time at each size against ten times that at the size before, and memory against that at the size before.

    A block of candidates takes a few MB, which an epoch of fewer than 10^5 examples does not fill: from there on memory
    is flat.
    """
    if device.type == "cuda":
        one_pass(10_000, device)
    seconds, memory = measured(10 ** powers[0], device)
    for power in powers[1:]:
        more_seconds, more_memory = measured(10**power, device)
        yield Measurement(
            f"10^{power} examples / ten times 10^{power - 1}: time of a pass over the candidates ({device.type}; s)",
            Spread.of([more_seconds / (10 * seconds)]),
            Spread.of([more_seconds]),
            Spread.of([seconds]),
        )
        if not math.isnan(memory):
            yield Measurement(
                f"10^{power} examples / 10^{power - 1}: memory beyond data, table and model ({device.type}; MB)",
                Spread.of([more_memory / memory]),
                Spread.of([more_memory]),
                Spread.of([memory]),
                notes={"bytes an example": more_memory * 2**20 / 10**power},
            )
        seconds, memory = more_seconds, more_memory


def benchmarks() -> dict[str, Callable[[], Iterator[Measurement]]]:
    """Growth on the device there is; a GPU has room and speed for more."""
    if torch.cuda.is_available():
        return {"scale": lambda: growth(torch.device("cuda", 0), range(4, 8))}
    return {"scale": lambda: growth(torch.device("cpu"), range(4, 7))}
