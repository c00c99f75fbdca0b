"""`goldiprox irreducible --engine ray`: its flags, and how they become `RayScoring`."""

import logging
import time
from typing import Annotated

import typer

from goldiprox.cli.console import err
from goldiprox.cli.signals import stop
from goldiprox.data.parquet import ImageRows
from goldiprox.data.sources import training_files
from goldiprox.errors import ConfigError, Interrupted
from goldiprox.ray_scoring import RayScoring, import_ray
from goldiprox.settings import RunConfig
from goldiprox.watch import pick_device

RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", help="With --engine ray: of a cluster (default: RAY_ADDRESS, or one started here)."),
]
Actors = Annotated[
    int | None, typer.Option("--actors", help="With --engine ray: processes that score (default: as many as fit).")
]
ActorGpus = Annotated[
    float | None,
    typer.Option("--actor-gpus", help="With --engine ray: GPUs for each, such as 0.25 (default: 1 on CUDA)."),
]
_DAMAGE = ("noise", "holdout_noise", "white_noise", "duplicates", "image_size")
_SECONDS = 10.0


def ray_scoring(
    config: RunConfig, address: str | None, actors: int | None, gpus: float | None, *, quiet: bool
) -> RayScoring:
    """What scores on a cluster the files that `--data` stands for."""
    data = config.data
    gpus = float(pick_device(config.device).type == "cuda") if gpus is None else gpus
    damaged = [f"--{name.replace('_', '-')}" for name in _DAMAGE if getattr(data, name)]
    if damaged:
        raise ConfigError(
            f"--engine ray reads files as they lie, and {', '.join(damaged)} changes what is loaded; leave it out, or "
            f"use another engine"
        )
    rows = ImageRows.of(training_files(data.data, data.data_dir))
    import_ray()  # so that it is not missed when the holdout model is trained
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    said = time.monotonic()

    def on_block(done: int, total: int) -> None:
        nonlocal said
        if stop():
            raise Interrupted(f"stopped after {done:,} of {total:,} examples were scored; all of it is saved")
        if not quiet and time.monotonic() - said > _SECONDS:
            said = time.monotonic()
            err.print(f"scored on Ray: {done:,} of {total:,} examples")

    return RayScoring(rows, address=address, actors=actors, gpus=gpus, on_block=on_block)
