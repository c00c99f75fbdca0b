"""Where the time of a step goes."""

from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from goldiprox.bench import gpu
from goldiprox.engine import EngineName
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.recording import record
from goldiprox.rules import top_k

STEPS = 64


@dataclass(frozen=True)
class Profile:
    """What the GPU did in a step.

    Attributes:
        title: Which step.
        milliseconds: Of the step, without the profiler.
        busy: Milliseconds in which a kernel ran.
        kernels: (name, times per step, microseconds per step), the longest first.
    """

    title: str
    milliseconds: float
    busy: float
    kernels: list[tuple[str, float, float]]


def profile_graph(name: str, *, compile: bool) -> Profile:
    """A selecting step of the graph engine."""
    config = gpu.configured(name, compile=compile)
    running = gpu.selecting([name], gpu.made_up_data(gpu.SHAPES[name]), config)
    running.advance(STEPS)
    milliseconds = running.per_step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        running.advance(STEPS)
    return _summed(f"graph engine{', compiled' if compile else ''}, {name}, {config.precision}", milliseconds, profiler)


def profile_steps(name: str, engine: EngineName) -> Profile:
    """A selecting step of an engine that runs one operation after another; the steps before it warm it up."""
    config, data = gpu.CONFIGS[name], gpu.made_up_data(gpu.SHAPES[name])
    table = IrreducibleLosses(torch.zeros(len(data)))
    workers = 4 if engine == "loader" else None

    def run() -> float:
        made = gpu.made(name)
        history = record(
            made,
            data,
            irreducible=table,
            rule=top_k(),
            steps=STEPS,
            config=config,
            engine=engine,
            num_workers=workers,
        ).history
        return history.cost.seconds * 1e3 / STEPS

    run()
    milliseconds = run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    return _summed(f"{engine} engine, {name}, {config.precision}", milliseconds, profiler)


def _summed(title: str, milliseconds: float, profiler: profile) -> Profile:
    events = [(e.key, e.count / STEPS, e.self_device_time_total / STEPS) for e in profiler.key_averages()]
    kernels = sorted((e for e in events if e[2] > 0), key=lambda e: -e[2])
    return Profile(title, milliseconds, sum(e[2] for e in kernels) / 1e3, kernels)
