"""What selecting together costs a step: gathering, and the whole step, for several numbers of processes."""

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from goldiprox.bench.timing import Measurement, Spread
from goldiprox.data import TensorData
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.models import build
from goldiprox.ranks import Ranks
from goldiprox.recording import record
from goldiprox.rules import top_k

WORLDS, STEPS, CANDIDATES, KEEP, SHAPE = (1, 2, 4), 200, 640, 32, (1, 28, 28)


def work() -> None:
    """One rank: prints milliseconds to gather what a step gathers, and of a whole step, and the bytes it sends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks(dist.group.WORLD)
    ids, values = torch.arange(KEEP), {"score": torch.zeros(KEEP)}
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        ranks.pool(ids, values, KEEP)
        seconds.append(time.perf_counter() - start)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20_000, *SHAPE), dtype=torch.uint8, generator=generator)
    data = TensorData(x, torch.randint(0, 10, (len(x),), generator=generator), num_classes=10)
    model, table = build("mlp512", SHAPE, 10), IrreducibleLosses(torch.zeros(len(data)))
    sent, times = 0, []

    def on_step(step: int, _: object) -> None:
        nonlocal sent
        sent = ranks.bytes_sent if step == 1 else sent
        times.append(time.perf_counter())

    record(
        model,
        data,
        irreducible=table,
        rule=top_k(),
        candidates=CANDIDATES,
        keep=KEEP,
        steps=STEPS,
        group=ranks,
        on_step=on_step,
    )
    steps = [b - a for a, b in itertools.pairwise(times)]
    sent = (ranks.bytes_sent - sent) // (STEPS - 1)
    if ranks.rank == 0:
        gather, step = (1e3 * Spread.of(s).median for s in (seconds, steps))
        sys.stdout.write(f"{gather} {step} {sent}\n")
    dist.destroy_process_group()


def run(world_size: int) -> tuple[float, float, float]:
    """What rank 0 of so many processes on this machine prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    command = [sys.executable, "-c", "from goldiprox.bench.ranks import work; work()"]
    started = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world_size)
    ]
    output, *_ = [process.communicate()[0] for process in started]
    gather, step, sent = map(float, output.split())
    return gather, step, sent


def worlds() -> Iterator[Measurement]:
    """A whole selecting step against that of one process."""
    alone = run(1)
    for world_size in WORLDS:
        gather, step, sent = run(world_size)
        yield Measurement(
            f"{world_size} processes / one: a selecting step of {CANDIDATES} (mlp512, gloo; ms)",
            Spread.of([step / alone[1]]),
            Spread.of([step]),
            Spread.of([alone[1]]),
            notes={"gathering (ms)": gather, "bytes a rank sends": int(sent), "cores": os.cpu_count()},
        )


def benchmarks() -> dict[str, Callable[[], Iterator[Measurement]]]:
    """What starts processes of its own: only when asked for."""
    return {"ranks": worlds}
