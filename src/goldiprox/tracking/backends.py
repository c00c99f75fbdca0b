"""TensorBoard, W&B, MLflow and trackio as trackers. Each is imported when it is asked for."""

import contextlib
import contextvars
import importlib
import importlib.util
import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from goldiprox.artifacts import flat
from goldiprox.errors import MissingExtra, UnknownName
from goldiprox.tracking.protocol import Background, Memory, Tracker, Trackers

PROJECT = "goldiprox"


class TensorBoard:
    """Event files in the run's folder: ``tensorboard --logdir FOLDER``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], memory: Memory):  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        if memory.run is None:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that this one replaces
        memory.run = name
        self._writer = SummaryWriter(str(folder))

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{stage}/{name}", value, step)
        self._writer.flush()  # so that a killed run has lost nothing

    def finish(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases; WANDB_MODE=offline keeps everything here."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], memory: Memory):
        wandb: Any = importlib.import_module("wandb")
        folder.parent.mkdir(parents=True, exist_ok=True)  # in which it makes a folder of its own name
        memory.run = memory.run or uuid.uuid4().hex[:12]
        self._run = wandb.init(
            project=PROJECT,
            name=name,
            id=memory.run,
            resume="allow",
            dir=str(folder.parent),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._stages: set[str] = set()
        self._memory = memory

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        if stage not in self._stages:  # every stage counts its own steps
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/step", hidden=True)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        named = {f"{stage}/{name}": value for name, value in {"step": step, **values}.items()}
        self._run.log(named, step=self._memory.count)  # its own count would begin anew in a continued offline run

    def finish(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, where MLFLOW_TRACKING_URI says; else where it keeps its runs by default."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], memory: Memory):  # noqa: ARG002
        self._client: Any = importlib.import_module("mlflow").MlflowClient()
        if memory.run is None:
            experiment = self._client.get_experiment_by_name(PROJECT)
            number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            memory.run = self._client.create_run(number, run_name=name).info.run_id
            for key, value in config.items():
                self._client.log_param(memory.run, key, value)
        else:
            self._client.update_run(memory.run, status="RUNNING")
        self._run = memory.run

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        metric: Any = importlib.import_module("mlflow.entities").Metric
        now = int(time.time() * 1000)
        metrics = [metric(f"{stage}/{name}", value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self) -> None:
        self._client.set_terminated(self._run)


class Trackio:
    """trackio, in its own folder (TRACKIO_DIR): ``trackio show``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], memory: Memory):  # noqa: ARG002
        trackio: Any = importlib.import_module("trackio")
        resumes = "must" if memory.run else "never"
        memory.run = memory.run or f"{name}-{uuid.uuid4().hex[:6]}"  # a name is all that it knows a run by
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        # In a context of its own, so that the end of the process does not finish it once more; what it prints is not
        # a result of ours.
        with contextlib.redirect_stdout(sys.stderr):
            self._run = contextvars.copy_context().run(
                trackio.init, PROJECT, memory.run, config=dict(config), resume=resumes, **quiet
            )

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def finish(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


Make = Callable[[Path, str, Mapping[str, Any], Memory], Tracker]
BACKENDS: dict[str, tuple[Make, str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WandB, "wandb"),
    "mlflow": (MLflow, "mlflow"),
    "trackio": (Trackio, "trackio"),
}
"""Each with the package it needs; the extra has the same name."""


def require(names: Sequence[str]) -> None:
    """Raises where one is unknown or not installed."""
    for name in names:
        if name not in BACKENDS:
            raise UnknownName("tracker", name, BACKENDS)
        if importlib.util.find_spec(BACKENDS[name][1]) is None:
            raise MissingExtra(BACKENDS[name][1], name, f"tracking with {name}")


def open_tracker(
    names: Sequence[str],
    folder: Path,
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Trackers:
    """Trackers of these names as one: a context manager, for `record`, `replay` and the command line.

    They work in threads of their own. One that fails is left out with a warning; the run goes on.

    Args:
        names: Of `BACKENDS`.
        folder: For what has to be kept: which run it is, how far, and files of those that write any.
        name: Of the run, where trackers show several; by default the folder's.
        config: Settings, to be shown beside the curves.
        resume: Go on with the curves whose traces are in the folder.
    """
    require(names)
    folder = Path(folder)
    settings = {key: json.loads(text) for key, text in flat(config or {}).items() if text != "null"}
    made: list[Tracker] = []
    for backend in dict.fromkeys(names):
        memory = Memory(folder / f"{backend}.json", fresh=not resume)
        make, run_name = BACKENDS[backend][0], name or folder.resolve().name
        made.append(
            Background(
                backend, lambda make=make, b=backend, n=run_name, m=memory: make(folder / b, n, settings, m), memory
            )
        )
    return Trackers(made)
