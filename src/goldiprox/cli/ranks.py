"""Commands that several processes run together, started by torchrun."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import torch
import torch.distributed as dist
import typer

from goldiprox.errors import ConfigError
from goldiprox.ranks import Ranks
from goldiprox.watch import Device, pick_device

RANK_SECONDS = 45.0
RankTimeout = Annotated[
    float, typer.Option("--rank-timeout", help="Under torchrun: seconds after which a rank that hangs is given up.")
]


@contextmanager
def started_ranks(device: Device, timeout: float) -> Iterator[Ranks | None]:
    """The process group that torchrun (or whoever sets its variables) asks for; None without one."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        yield None
        return
    if not timeout > 0:
        raise ConfigError(f"--rank-timeout {timeout}: give the seconds that a rank may take for a step")
    backend = "gloo"
    if pick_device(device).type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    yield Ranks(dist.group.WORLD)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone
