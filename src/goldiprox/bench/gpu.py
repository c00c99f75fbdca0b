"""The engines on a GPU, against a plain loop and against the limits of the hardware."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.assessment import score
from goldiprox.bench.reference import CANDIDATES, KEEP, selecting_loop
from goldiprox.bench.timing import Measurement, compare, finish, milliseconds
from goldiprox.choices import Behind
from goldiprox.data import TensorData
from goldiprox.engine import Given, Graph, Trainer
from goldiprox.forward import backends, call, cross_entropy, in_precision
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import build
from goldiprox.optim import TrainingConfig
from goldiprox.randomness import seeded
from goldiprox.recording import Job

EXAMPLES = 25_000
STEPS = 512
SHAPES = {"mlp128": (1, 28, 28), "mlp512": (1, 28, 28), "small_cnn": (3, 32, 32), "resnet18": (3, 32, 32)}
CONFIGS = {
    "mlp128": TrainingConfig(precision="bf16"),
    "small_cnn": TrainingConfig(precision="bf16"),
    "resnet18": TrainingConfig(precision="bf16"),
}
"""The fastest precision of each; the plain loop gets the same."""
DEVICE = torch.device("cuda", 0)


def configured(name: str, *, compile: bool) -> TrainingConfig:
    return replace(CONFIGS[name], compile=compile)


def made_up_data(shape: tuple[int, ...], length: int = EXAMPLES) -> TensorData:
    """Random images and labels on the GPU, laid out as the command line does."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randint(0, 256, (length, *shape), dtype=torch.uint8, device=DEVICE, generator=generator)
    y = torch.randint(0, 10, (length,), device=DEVICE, generator=generator)
    data = TensorData(x, y, num_classes=10, mean=(0.5,) * shape[0], std=(0.5,) * shape[0])
    return data.channels_last() if shape[0] > 1 else data


def made(name: str, seed: int = 0) -> nn.Module:
    model = build(name, SHAPES[name], 10, seed=seed, device=DEVICE)
    return model.to(memory_format=torch.channels_last) if len(SHAPES[name]) == 3 else model  # type: ignore[call-overload]


class Running:
    """An engine, captured and warm, whose steps can be timed."""

    def __init__(self, engine: Graph, precision: Any):
        self.engine, self.precision = engine, precision
        self.advance(16)
        if not engine.captured:
            raise RuntimeError(f"not captured: {engine.reason}")

    def advance(self, steps: int) -> None:
        goal = self.engine.done + steps
        with seeded(0, DEVICE), backends(self.precision, DEVICE):
            while self.engine.done < goal:
                if not self.engine.advance(goal - self.engine.done):
                    raise RuntimeError("the feed ended")
            self.engine.drain()

    def per_step(self) -> float:
        return milliseconds(lambda: self.advance(STEPS), STEPS)


def job_of(name: str, data: TensorData, config: TrainingConfig, seed: int = 0, *, ahead: bool = False) -> Job:
    table = IrreducibleLosses(torch.rand(len(data), generator=torch.Generator().manual_seed(1)))
    settings = {"config": config, "seed": seed, "ahead": ahead}
    return Job(made(name, seed), data, irreducible=table, steps=10**9, ids=np.arange(len(data)), **settings)


def selecting(names: list[str], data: TensorData, config: TrainingConfig, *, ahead: bool = False) -> Running:
    """Steps of `record`, of one proxy or of several at once."""
    tasks = [job_of(name, data, config, seed, ahead=ahead).task() for seed, name in enumerate(names)]
    trainers = [Trainer(t.model, steps=None, config=config) for t in tasks]
    return Running(Graph(trainers, [t.batches for t in tasks]), config.precision)  # type: ignore[misc]


def training(name: str, data: TensorData, config: TrainingConfig) -> Running:
    """Steps of `replay` on ids that are known."""
    ids = torch.randint(0, len(data), (4096, KEEP), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    feed = Given(data, lambda first, count: ids[first % 4096 :][:count], ())
    return Running(Graph([Trainer(made(name), steps=None, config=config)], [feed]), config.precision)


def both(proxy: str, model: str, data: TensorData, config: TrainingConfig, *, ahead: bool = False) -> Running:
    """Steps of `record_and_train`."""
    task = job_of(proxy, data, config, ahead=ahead).task()
    trainers = [Trainer(task.model, steps=None, config=config), Trainer(made(model), steps=None, config=config)]
    behind = Behind(task.batches, 10**9)  # type: ignore[arg-type]
    return Running(Graph(trainers, [task.batches, behind]), config.precision)  # type: ignore[list-item]


def plain(name: str, config: TrainingConfig) -> Callable[[], float]:
    """The plain loop on data that lies on the GPU."""
    data = made_up_data(SHAPES[name])
    x, y = data.gather(torch.arange(len(data), device=DEVICE))
    x, irreducible = x.contiguous(), torch.rand(len(data), device=DEVICE)
    model = build(name, SHAPES[name], 10, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    steps = 64

    def run() -> None:
        with backends(config.precision, DEVICE):
            selecting_loop(model, x, y, irreducible, steps=steps, precision=config.precision, optimizer=optimizer)

    return lambda: milliseconds(run, steps)


def large_forward(name: str, data: TensorData, config: TrainingConfig, batch: int = 8192) -> Callable[[], float]:
    """Losses of `CANDIDATES` examples at the speed of large batches: one graph that gathers, runs, takes the loss."""
    model, losses = made(name), config.losses(cross_entropy, call)
    ids = torch.arange(batch, device=DEVICE)

    def run() -> Tensor:
        return losses(model, *data.gather(ids))

    with torch.no_grad(), backends(config.precision, DEVICE):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        finish()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    repeats = 20

    def replay() -> None:
        for _ in range(repeats):
            graph.replay()

    def per_step(alive: tuple[Any, ...] = (model, ids, data)) -> float:  # the graph knows their addresses only
        del alive
        return milliseconds(replay, repeats) * CANDIDATES / batch

    return per_step


def _suffix(*, compile: bool, ahead: bool) -> str:
    return (", compiled" if compile else "") + (", choosing ahead" if ahead else "")


def bench_step(name: str, target: float, *, repeats: int, compile: bool, ahead: bool = False) -> Iterator[Measurement]:
    config = configured(name, compile=compile)
    data = made_up_data(SHAPES[name])
    ours = selecting([name], data, config, ahead=ahead)
    suffix = _suffix(compile=compile, ahead=ahead)
    yield compare(
        f"selecting step, {name}{suffix}: plain loop / ours",
        ours.per_step,
        plain(name, config),
        repeats=repeats,
        target=target,
        is_speedup=True,
        precision=config.precision,
    )


def bench_floor(name: str, target: float, *, repeats: int, compile: bool, ahead: bool = False) -> Iterator[Measurement]:
    config = configured(name, compile=compile)
    data = made_up_data(SHAPES[name])
    ours, step = selecting([name], data, config, ahead=ahead), training(name, data, config)
    forward = large_forward(name, data, config)
    suffix = _suffix(compile=compile, ahead=ahead)
    yield compare(
        f"selecting step / (large-batch forward of {CANDIDATES} + graphed training step of {KEEP}), {name}{suffix}",
        ours.per_step,
        lambda: step.per_step() + forward(),
        repeats=repeats,
        target=target,
        precision=config.precision,
        forward_ms=forward(),
        training_ms=step.per_step(),
    )


def bench_both(target: float, *, repeats: int, compile: bool, ahead: bool = False) -> Iterator[Measurement]:
    config = configured("resnet18", compile=compile)
    data = made_up_data(SHAPES["resnet18"])
    together, alone = both("small_cnn", "resnet18", data, config, ahead=ahead), training("resnet18", data, config)
    suffix = _suffix(compile=compile, ahead=ahead)
    yield compare(
        f"small_cnn selecting and resnet18 training at once / resnet18 on uniform batches{suffix}",
        together.per_step,
        alone.per_step,
        repeats=repeats,
        target=target,
        precision=config.precision,
    )


def bench_scoring(target: float, *, repeats: int) -> Iterator[Measurement]:
    for name in ("small_cnn", "resnet18"):
        config = CONFIGS[name]
        data = made_up_data(SHAPES[name], 100_000)
        model, ahead = made(name), large_forward(name, data, config)
        forward, ids = in_precision(call, config.precision), np.arange(len(data))
        yield compare(
            f"irreducible-loss pass / large-batch forward alone, {name}",
            lambda model=model, data=data, ids=ids, forward=forward: milliseconds(
                lambda: score(model, data, ids, forward=forward), len(ids) // CANDIDATES
            ),
            ahead,
            repeats=repeats,
            target=target,
            precision=config.precision,
        )


def bench_seeds(target: float, *, repeats: int, compile: bool) -> Iterator[Measurement]:
    config, count = configured("mlp128", compile=compile), 8
    data = made_up_data(SHAPES["mlp128"])
    many, one = selecting(["mlp128"] * count, data, config), selecting(["mlp128"], data, config)
    suffix = ", compiled" if compile else ""
    yield compare(
        f"{count} seeds of mlp128 at once / {count} times one{suffix}",
        many.per_step,
        lambda: one.per_step() * count,
        repeats=repeats,
        target=target,
        precision=config.precision,
    )


def bench_memory(target: float) -> Iterator[Measurement]:
    """Peak memory of the resident engine, against what it cannot do without; megabytes instead of milliseconds."""
    for name, length in (("small_cnn", 1_000_000), ("resnet18", 1_000_000)):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        data = made_up_data(SHAPES[name], length)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        running = selecting([name], data, CONFIGS[name])
        running.advance(64)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        parameters = sum(p.nbytes for p in running.engine.lanes[0].trainer.model.parameters())
        needed = (data.x.nbytes + data.y.nbytes + 3 * parameters) / 2**20
        yield compare(
            f"peak memory / (data of {length:,} examples + model + optimiser), {name} (MB)",
            lambda peak=peak: peak,
            lambda needed=needed: needed,
            repeats=1,
            target=target,
        )


def benchmarks(repeats: int) -> dict[str, Callable[[], Iterator[Measurement]]]:
    """Every measurement on a GPU by name."""
    return {
        "mlp128": lambda: bench_step("mlp128", 30, repeats=repeats, compile=False),
        "mlp128-compiled": lambda: bench_step("mlp128", 30, repeats=repeats, compile=True),
        "mlp128-ahead": lambda: bench_step("mlp128", 30, repeats=repeats, compile=True, ahead=True),
        "small_cnn": lambda: bench_step("small_cnn", 9, repeats=repeats, compile=False),
        "small_cnn-compiled": lambda: bench_step("small_cnn", 9, repeats=repeats, compile=True),
        "resnet18": lambda: bench_step("resnet18", 4.2, repeats=repeats, compile=False),
        "resnet18-compiled": lambda: bench_step("resnet18", 4.2, repeats=repeats, compile=True),
        "floor": lambda: bench_floor("small_cnn", 1.05, repeats=repeats, compile=False),
        "floor-compiled": lambda: bench_floor("small_cnn", 1.05, repeats=repeats, compile=True),
        "floor-ahead": lambda: bench_floor("small_cnn", 1.05, repeats=repeats, compile=False, ahead=True),
        "floor-ahead-compiled": lambda: bench_floor("small_cnn", 1.05, repeats=repeats, compile=True, ahead=True),
        "both": lambda: bench_both(1.10, repeats=repeats, compile=False),
        "both-compiled": lambda: bench_both(1.10, repeats=repeats, compile=True),
        "both-ahead": lambda: bench_both(1.10, repeats=repeats, compile=True, ahead=True),
        "scoring": lambda: bench_scoring(1.10, repeats=repeats),
        "seeds": lambda: bench_seeds(0.35, repeats=repeats, compile=False),
        "seeds-compiled": lambda: bench_seeds(0.35, repeats=repeats, compile=True),
        "memory": lambda: bench_memory(1.5),
    }
