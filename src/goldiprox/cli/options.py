"""The flags that commands share: each is spelt, explained and turned into a configuration in one place."""

import contextlib
import functools
import inspect
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from goldiprox.cli.signals import graceful
from goldiprox.data.sources import SOURCES
from goldiprox.errors import UnknownName
from goldiprox.holdout import HoldoutConfig
from goldiprox.optim import TrainingConfig
from goldiprox.prepare import DataConfig
from goldiprox.rules import IN_ORDER, RULE
from goldiprox.settings import RunConfig
from goldiprox.suspects import ODDS

Flag = tuple[str, Any, Any, str]
"""(parameter, type, default, help)"""

DATA: list[Flag] = [
    ("data", str, "mnist5k", "A built-in data set, a folder of images or Parquet files, or package.module:callable."),
    ("data_dir", str | None, None, "Where data sets lie (or GOLDIPROX_DATA)."),
    ("image_size", str | None, None, "Of your own images: crop and resize to this, 64 or 48x64 (height x width)."),
    ("data_seed", int, 0, "Seed of split and damage; the same in every command."),
    ("holdout", float, 0.5, "Share of the data that is held out."),
    (
        "noise",
        float | None,
        0.0,
        "Share of training labels to corrupt (run, compare: 0.1 of built-in data).",
    ),
    ("noise_kind", str, "uniform", "uniform, class or instance."),
    ("holdout_noise", float, 0.0, "Share of holdout labels to corrupt."),
    ("white_noise", float, 0.0, "Share of training inputs to replace by noise."),
    ("duplicates", float, 0.0, "Share of training examples to replace by copies of others."),
]
HOLDOUT_MODEL: list[Flag] = [
    (
        "il_model",
        str | None,
        None,
        "The holdout model: a name, proxy, model, or auto (the default): of the proxy's kind; where that falls short a "
        "thin one of the model's kind by moved images, if we have one, or of the model's kind.",
    ),
    ("folds", int, 0, "Cross-fit over this many folds (0: learn from the holdout)."),
    ("checkpoint", str, "inner", "Of the holdout model: inner, last or training_side."),
    ("holdout_epochs", int | None, None, "Passes that the holdout model learns for (10, or 300 steps; paper: 100)."),
    ("mixup", str | None, None, "Whether it learns from blends of two examples: auto (the default), on, off."),
    (
        "augment",
        str | None,
        None,
        "What is done to images while it learns: auto (the default), off, shift, mirror, shift+mirror.",
    ),
    ("cleaned", bool | None, None, "Learn from labels only where a model of the other side does not contradict."),
]
PROXY: list[Flag] = [("proxy", str, "mlp128", "The small model that selects; or package.module:callable.")]
MODEL: list[Flag] = [
    ("model", str, "mlp512", "The large model that trains on the sequence; or package.module:callable.")
]
REPLAY: list[Flag] = [
    (
        "window",
        int | None,
        None,
        "Shuffle what was chosen among so many steps; 1: as recorded; 0 (the default): those of a pass, an eighth "
        "of all at most.",
    )
]
ORDER: list[Flag] = [*REPLAY, ("seed", int, 0, "Of the order that --window makes.")]
OPTIMISER: list[Flag] = [
    ("lr", float, 1e-3, "Learning rate."),
    ("weight_decay", float, 0.01, "Weight decay."),
    ("dropout", float, 0.0, "Of built-in models."),
]
SCHEDULE: list[Flag] = [
    ("schedule", str, "constant", "Of proxy's and model's learning rate: constant, or cosine (decayed to zero)."),
]
SELECTION: list[Flag] = [
    (
        "acquisition",
        str | None,
        None,
        "What scores candidates, or package.module:callable; auto (the default of run and compare): two sequences are "
        "recorded, by reducible_loss and by predictability, and the second is taken if it teaches a small model more; "
        "with a --rule other than the default, too few held out, or a proxy too small for the data one, by "
        "reducible_loss.",
    ),
    (
        "rule",
        str | None,
        None,
        "From scores to a choice: discounted_top_k (:P, :P/pass, :P/run, :Piqr, :Pown), top_k, gumbel_top_k (:T, "
        ":T/pass, :T..T), mix (:share), ranked, floored (:share); mix:0.2+ranked. Default: "
        f"{RULE}; by predictability {IN_ORDER}.",
    ),
    ("temperature", float, 1.0, "Of gumbel_top_k, in standard deviations of the scores."),
    ("mix_fraction", float, 0.5, "Of mix: the share chosen uniformly."),
    ("candidates", int, 320, "Examples scored per step."),
    ("keep", int, 32, "Examples trained on per step."),
    ("epochs", int, 20, "Passes over the candidates."),
    (
        "trusted",
        float | None,
        None,
        f"Leave out labels contradicted at these odds (0: none; default: {ODDS:g}, more where labels look right).",
    ),
    ("ahead", bool, False, "Choose before the last update: scores are a step old, and on a GPU cost less time."),
]
MACHINE: list[Flag] = [
    ("seed", int, 0, "Seed of weights, candidates and selection."),
    ("device", str, "auto", "auto, cuda, mps or cpu."),
    ("workers", int | None, None, "Load through this many processes (default: data stays on the device)."),
    ("engine", str, "auto", "How steps run: auto, eager, graph (CUDA) or loader; for irreducible also ray."),
    ("precision", str, "fp32", "fp32, tf32 or bf16; on a GPU, bf16 is fastest for convolutions, tf32 for small MLPs."),
    ("compile", bool, False, "Use torch.compile: for runs of 50,000 steps and more."),
    ("threads", int | None, None, "CPU threads (default: 1 for small models, which is fastest on shared cores)."),
    ("deterministic", bool, False, "Only kernels that give the same result every time (GPUs have faster ones)."),
]
PRESET: list[Flag] = [
    (
        "preset",
        str,
        "default",
        "default, or paper: top_k from all labels, as recorded, one early-stopped holdout model.",
    )
]
PRESETS: dict[str, tuple[Callable[..., RunConfig], Callable[..., HoldoutConfig]]] = {
    "default": (RunConfig, HoldoutConfig.robust),
    "paper": (RunConfig.paper, HoldoutConfig),
}
PANELS = {
    "Data": DATA,
    "Holdout model": HOLDOUT_MODEL,
    "Models": PROXY + MODEL + REPLAY,
    "Training": OPTIMISER + SCHEDULE,
    "Selection": PRESET + SELECTION,
    "Machine": MACHINE,
}

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished run (done by itself where --out holds one).")
]
CheckpointEvery = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Curves for tensorboard, wandb, mlflow or trackio, too; may be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
OutFile = Annotated[Path, typer.Option("--out", help="The file to write.")]
OutFolder = Annotated[
    Path | None, typer.Option("--out", help="The folder to write to (default: a new one under runs/).")
]


def configured(*groups: list[Flag], **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these flags, and hands them to it as one `RunConfig`, its first argument.

    Args:
        groups: Which flags.
        defaults: Where this command's differ.
    """
    flags = [flag for group in groups for flag in group]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            shared = {name: values.pop(name) for name, *_ in flags}
            if shared.pop("deterministic", False):
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
                torch.use_deterministic_algorithms(True)
            with graceful() if "resume" in values else contextlib.nullcontext():
                command(_configuration(shared), **values)

        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, default),
                annotation=Annotated[kind, typer.Option(help=text, rich_help_panel=_panel(name))],
            )
            for name, kind, default, text in flags
        ]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _panel(name: str) -> str:
    return next(title for title, flags in PANELS.items() if name in {flag[0] for flag in flags})


def _configuration(values: dict[str, Any]) -> RunConfig:
    """The configuration that a command's flags describe; flags it does not have keep their defaults."""

    def take(*names: str, **renamed: str) -> dict[str, Any]:
        names_of = {n: n for n in names} | renamed
        return {field: values[flag] for field, flag in names_of.items() if flag in values}

    if values.get("noise", 0.0) is None:  # a demonstration's damage, never by default to data of one's own
        values["noise"] = 0.1 if values["data"] in SOURCES else 0.0
    values.setdefault("acquisition", "reducible_loss")  # of commands that do not select
    values = {name: value for name, value in values.items() if value is not None}
    preset = values.get("preset", "default")
    if preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    configuration, holdout = PRESETS[preset]
    return configuration(
        data=DataConfig(**take(*(flag[0] for flag in DATA))),
        holdout=holdout(
            training=TrainingConfig(**take("lr", "weight_decay", "precision", "compile")),
            **take("checkpoint", "mixup", "augment", "cleaned", max_epochs="holdout_epochs"),
        ),
        training=TrainingConfig(**take("lr", "weight_decay", "schedule", "precision", "compile")),
        **take("proxy", "model", "il_model", "acquisition", "rule", "temperature", "mix_fraction"),
        **take("trusted", "window", "ahead"),
        **take(
            "candidates",
            "keep",
            "epochs",
            "seed",
            "device",
            "engine",
            "dropout",
            num_folds="folds",
            num_workers="workers",
            num_threads="threads",
        ),
    )


def data_flags(config: RunConfig, *more: str) -> str:
    """The data flags, and some more, as the next command needs them: those that differ from its defaults."""
    default = RunConfig(data=DataConfig())
    changed = {k: v for k, v in vars(config.data).items() if v != getattr(default.data, k)}
    changed |= {k: getattr(config, k) for k in more if getattr(config, k) != getattr(default, k)}
    paper = RunConfig.paper()
    if all(getattr(config, k) == getattr(paper, k) for k in ("rule", "trusted", "window")):
        changed["preset"] = "paper"
    return "".join(f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in changed.items())
