"""What tests/test_ray_scoring.py runs in a process of its own: one local cluster of two workers for all of it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import ray
import torch
from torch import nn
from typer.testing import CliRunner

import goldiprox as gp
from goldiprox.cli import app
from goldiprox.data.parquet import ImageRows
from goldiprox.data.sources import training_files
from goldiprox.ray_scoring import RayScoring

FOLDER = Path(sys.argv[1])
SET, NOTES, DIED = FOLDER / "set", FOLDER / "passes", FOLDER / "died"


class Noting(nn.Module):
    """Notes every pass that an actor scores; one of them dies in the middle of its second, once."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 400 and ray.is_initialized() and ray.get_runtime_context().get_actor_id():
            with NOTES.open("a") as notes:
                notes.write(f"{len(x)}\n")
            self.passes += 1
            if self.passes == 2 and not DIED.exists():
                DIED.touch()
                os._exit(1)
        return self.layers(x)


class Stopped(Exception):
    pass


def main() -> None:
    torch.set_num_threads(1)
    data = gp.load(str(SET)).train
    split = gp.holdout_split(len(data), data.labels, holdout=0.0)
    settings = {
        "num_folds": 2,
        "config": gp.HoldoutConfig(max_epochs=2, patience=1, batch_size=256, training=gp.TrainingConfig(lr=1e-2)),
    }
    alone, *_ = gp.irreducible_losses(Noting, data, split, **settings)
    seen = {"alone": alone.digest}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    scoring = RayScoring(ImageRows.of(training_files(str(SET))))
    told = []

    def stop(done: int, total: int) -> None:
        if done >= 2048:
            raise Stopped

    # Broken off after the first pass of the first fold; then whole, with a death.
    for stopping in (True, False):
        DIED.touch() if stopping else DIED.unlink()
        on_block = stop if stopping else lambda done, total: told.append(done)
        here = replace(scoring, actors=1 if stopping else 2, on_block=on_block)
        try:
            with gp.Checkpoints(FOLDER / "checkpoint", every=0) as checkpoints:
                table, *_ = gp.irreducible_losses(
                    Noting, data, split, scoring=here, checkpoints=checkpoints, **settings
                )
                seen["on ray"] = table.digest
                seen["equal bytes"] = table.values.numpy().tobytes() == alone.values.numpy().tobytes()
        except Stopped:
            NOTES.unlink()
    seen["passes"] = [int(line) for line in NOTES.read_text().split()]
    seen["told"], seen["died"] = told, DIED.exists()

    flags = ["irreducible", "--data", f"file://{SET.resolve()}", "--json", "--threads", "1"]
    for engine in ("auto", "ray"):
        out = ["--out", str(FOLDER / f"{engine}.arrow"), "--engine", engine]
        out += ["--actors", "1"] if engine == "ray" else []
        ran = CliRunner().invoke(app, [*flags, *out], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        seen[f"--engine {engine}"] = json.loads(ran.stdout)["irreducible"]["digest"]
    (FOLDER / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
