"""The whole experiment: holdout model, proxy, sequence, large model, and its baselines, in one folder."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from goldiprox.acquisition import ACQUISITIONS, Acquisition, loss, uniform
from goldiprox.analysis import share, share_over_time, speedup
from goldiprox.artifacts import JsonLines, check_folder, save_weights, versions, write_json
from goldiprox.data import fingerprint, iterate, require_fingerprint
from goldiprox.errors import ConfigError, FingerprintMismatch, OutputExists, UnknownName
from goldiprox.irreducible import HoldoutConfig, IrreducibleLosses, irreducible_losses
from goldiprox.ledger import Ledger
from goldiprox.loop import Evaluate, History, OnRecord, OnStep, TrainingConfig, check_model, evaluate_on
from goldiprox.models import build, count_parameters
from goldiprox.prepare import DataConfig, Prepared, differences, prepare
from goldiprox.resolve import resolve
from goldiprox.selection import Rule, Selector, make_rule
from goldiprox.sequence import Sequence, statistics
from goldiprox.training import Recording, record, replay

Device = Literal["auto", "cuda", "mps", "cpu"]
EVALUATIONS = 50
OURS = (
    "*.arrow",
    "*.arrow.partial",
    "*.safetensors",
    "*.json",
    "metrics.jsonl",
    "truth.parquet",
    "accuracy.png",
    "corrupted.png",
)
REPLACED = ".replaced"


@dataclass(frozen=True)
class RunConfig:
    """Settings of `run`. The defaults are the paper's.

    Attributes:
        data: Which data, and what is done to it.
        proxy: The small model that selects.
        model: The large model that trains on the sequence.
        il_model: The holdout model; by default of the proxy's kind.
        num_folds: Cross-fit over this many folds instead of using the holdout.
        acquisition: Scores candidates.
        rule: Turns scores into a choice.
        temperature: Of the rule ``gumbel_top_k``.
        mix_fraction: Of the rule ``mix``.
        candidates: Scored per step.
        keep: Trained on per step.
        epochs: Passes over the candidates.
        seed: Of weights, candidates, selection.
        dropout: Of built-in models.
        holdout: How the holdout model is trained.
        training: How proxy and model are optimised.
    """

    data: DataConfig = field(default_factory=lambda: DataConfig(noise=0.1))
    proxy: str = "mlp128"
    model: str = "mlp512"
    il_model: str | None = None
    num_folds: int = 0
    acquisition: str = "reducible_loss"
    rule: str = "top_k"
    temperature: float = 1.0
    mix_fraction: float = 0.5
    candidates: int = 320
    keep: int = 32
    epochs: int = 20
    seed: int = 0
    dropout: float = 0.0
    device: Device = "auto"
    num_workers: int | None = None
    holdout: HoldoutConfig = field(default_factory=HoldoutConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


class Progress(Protocol):
    """What shows progress: one stage at a time."""

    def stage(self, title: str, total: int | None) -> AbstractContextManager[OnStep | None]: ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[OnStep | None]:  # noqa: ARG002
        yield None


def pick_device(name: Device) -> torch.device:
    """The device of this name; ``auto`` takes the first there is of CUDA, MPS, CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(d for d, available in there.items() if available))
    if name not in there:
        raise UnknownName("device", name, ["auto", *there])
    if not there[name]:
        raise ConfigError(f"device {name!r} is not available here; use --device auto")
    return torch.device(name)


class Stages:
    """The stages of one configuration, each usable alone; the command line calls nothing else.

    Everything that can be known to fail is checked on construction.
    """

    def __init__(self, config: RunConfig, *, progress: Progress | None = None):
        self.config = config
        self.progress = progress or Silent()
        self.device = pick_device(config.device)
        self.acquisition: Acquisition = resolve("acquisition", config.acquisition, ACQUISITIONS)
        self.rule: Rule = make_rule(config.rule, temperature=config.temperature, fraction=config.mix_fraction)
        for name in ("keep", "candidates", "epochs"):
            if getattr(config, name) < 1:
                raise ConfigError(f"--{name} {getattr(config, name)}: at least 1 is needed")
        if not 0 <= config.dropout < 1:
            raise ConfigError(f"--dropout {config.dropout} is not in [0, 1)")
        if config.num_workers is not None and config.num_workers < 0:
            raise ConfigError(f"--workers {config.num_workers}: give 0 or more")
        if config.keep > config.candidates:
            raise ConfigError(
                f"cannot keep {config.keep} of {config.candidates} candidates; lower --keep or raise --candidates"
            )
        self.prepared: Prepared = prepare(config.data)
        data, split = self.prepared.data, self.prepared.split
        if data.num_classes is None:
            raise ConfigError(f"the command line trains classifiers; {config.data.data} has no integer labels")
        self.data, self.test = data, self.prepared.test
        self.example = next(iterate(self.data, [split.train[:2]], device=self.device))
        self.steps = config.epochs * (len(split.train) // config.candidates)
        self.eval_every = max(1, self.steps // EVALUATIONS)
        self.ledger = Ledger()

    def require_same_data(
        self, path: str, data: Mapping[str, Any], config: Mapping[str, Any], parents: Mapping[str, str]
    ) -> None:
        """Raises where a file was made from other data or another split, and says which flags differ."""
        changed = differences(config.get("data", {}), self.config.data)
        require_fingerprint(self.data, data, path, hint=f"The flags differ: {changed}. " if changed else "")
        if parents.get("split", self.prepared.split.digest) != self.prepared.split.digest:
            raise FingerprintMismatch(
                f"{path} was made for another division into training and holdout side: "
                f"{changed or 'settings unknown'}. Use the same flags, or make it again"
            )

    def check_candidates(self) -> None:
        if self.config.candidates > len(self.prepared.split.train):
            raise ConfigError(
                f"{self.config.candidates} candidates per step, but the training side has only "
                f"{len(self.prepared.split.train):,} examples; lower --candidates"
            )

    def build(self, name: str, role: str, seed: int) -> nn.Module:
        """A model, tried on the data."""
        options = {"dropout": self.config.dropout} if self.config.dropout and ":" not in name else {}
        num_classes = self.data.num_classes or 0
        model = build(name, self.data.input_shape, num_classes, seed=seed, device=self.device, **options)
        check_model(model, self.example, data=self.data, role=role)
        return model

    def try_selection(self, proxy: nn.Module) -> None:
        """One selection without a trace, so that a long run does not fail at its second stage."""
        config, train = self.config, torch.as_tensor(self.prepared.split.train)
        batch = next(iterate(self.data, [train[: config.candidates]], device=self.device))
        nothing = IrreducibleLosses(torch.zeros(len(self.data)))
        Selector(self.acquisition, keep=config.keep, irreducible=nothing, rule=self.rule).check(proxy, batch)

    def evaluate(self) -> Evaluate:
        return evaluate_on(self.test)

    def irreducible(self) -> tuple[IrreducibleLosses, list[nn.Module], dict[str, Any]]:
        """Stage 2: the irreducible losses, the model(s) behind them, and how that went."""
        config = self.config
        name = config.il_model or config.proxy
        if not config.num_folds:
            self.prepared.split.require_holdout()
        with self.progress.stage("irreducible losses", None) as on_step:
            table, models, reports, cost = irreducible_losses(
                lambda fold: self.build(name, "holdout model", config.seed + 7919 * (fold + 1)),
                self.data,
                self.prepared.split,
                num_folds=config.num_folds,
                config=config.holdout,
                seed=config.seed,
                num_workers=config.num_workers,
                on_step=on_step,
                extra_config={"il_model": name, "data": config.data.recorded()},
            )
        self.ledger.stages["irreducible"] = cost
        accuracy = sum(r.figures["accuracy"] for r in reports) / len(reports)
        summary = {"accuracy": accuracy, "epoch": reports[0].epoch, "epochs": reports[0].epochs}
        return table, models, summary

    def select(
        self,
        table: IrreducibleLosses | None,
        out: Path | None,
        *,
        force: bool = False,
        columns: tuple[str, ...] = (),
        on_record: OnRecord | None = None,
    ) -> tuple[Recording, nn.Module]:
        """Stage 3: the proxy selects and records."""
        self.check_candidates()
        proxy = self.build(self.config.proxy, "proxy", self.config.seed)
        return self._record("select", proxy, table, self.acquisition, out, force, columns, on_record), proxy

    def baseline(self, acquisition: Acquisition, *, on_record: OnRecord | None = None) -> tuple[Recording, nn.Module]:
        """The large model on the same candidates, choosing for itself, and without irreducible losses."""
        model = self.build(self.config.model, "model", self.config.seed)
        name = f"train {acquisition.__name__}"
        return self._record(name, model, None, acquisition, None, False, (), on_record), model

    def _record(
        self,
        stage: str,
        model: nn.Module,
        table: IrreducibleLosses | None,
        acquisition: Acquisition,
        out: Path | None,
        force: bool,
        columns: tuple[str, ...],
        on_record: OnRecord | None,
    ) -> Recording:
        config = self.config
        with self.progress.stage(stage, self.steps) as on_step:
            recording = record(
                model,
                self.data,
                irreducible=table,
                acquisition=acquisition,
                rule=self.rule if stage == "select" else None,
                candidates=config.candidates,
                keep=config.keep,
                epochs=config.epochs,
                ids=self.prepared.split.train,
                out=out,
                columns=columns,
                force=force,
                config=config.training,
                seed=config.seed,
                num_workers=config.num_workers,
                evaluate=self.evaluate(),
                eval_every=self.eval_every,
                on_record=on_record,
                on_step=on_step,
                extra_config={
                    "proxy": config.proxy,
                    "rule": config.rule,
                    "temperature": config.temperature,
                    "mix_fraction": config.mix_fraction,
                    "training": asdict(config.training),
                    "data": config.data.recorded(),
                },
                parents={"split": self.prepared.split.digest},
            )
        self.ledger.stages[stage] = recording.history.cost
        return recording

    def train(self, sequence: Sequence, *, on_record: OnRecord | None = None) -> tuple[History, nn.Module]:
        """Stage 4: the large model on the sequence."""
        config = self.config
        model = self.build(config.model, "model", config.seed)
        with self.progress.stage("train on the sequence", len(sequence)) as on_step:
            history = replay(
                model,
                self.data,
                sequence,
                config=config.training,
                seed=config.seed,
                num_workers=config.num_workers,
                evaluate=self.evaluate(),
                eval_every=max(1, len(sequence) // EVALUATIONS),
                on_record=on_record,
                on_step=on_step,
            )
        self.ledger.stages["train"] = history.cost
        return history, model


@contextmanager
def run_folder(out: str | None, name: str, *, force: bool = False) -> Iterator[Path]:
    """The folder of a run: the one asked for, which must be empty, or the next free number under runs/.

    With `force`, the files of an older run there are set aside, and removed when the code inside is done.
    """
    folder = _free_folder(name) if out is None else _given_folder(Path(out), force=force)
    yield folder
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def _free_folder(name: str) -> Path:
    number = 1
    while (folder := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return check_folder(folder)


def _given_folder(folder: Path, *, force: bool) -> Path:
    if folder.is_file():
        raise OutputExists(f"{folder} is a file; give the name of a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputExists(f"{folder} is not empty; choose another --out, or add --force to replace the run in it")
    check_folder(folder)
    ours = [p for pattern in OURS for p in folder.glob(pattern)]
    aside = folder / REPLACED
    if aside.exists():  # the last complete run is there; what lies here is a failed try at replacing it
        for path in ours:
            path.unlink()
    elif ours:
        aside.mkdir()
        for path in ours:
            path.replace(aside / path.name)
    return folder


def run(
    config: RunConfig, out: str | None = None, *, force: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Does all of it, and leaves every file of it in one folder.

    Returns:
        What ``goldiprox run --json`` prints.
    """
    stages = Stages(config, progress=progress)
    stages.check_candidates()
    if not config.num_folds:
        stages.prepared.split.require_holdout()
    stages.try_selection(stages.build(config.proxy, "proxy", config.seed))
    stages.build(config.model, "model", config.seed)
    stages.build(config.il_model or config.proxy, "holdout model", config.seed)
    with run_folder(out, Path(config.data.data.replace(":", "-")).name, force=force) as folder:
        write_json(folder / "config.json", {**asdict(config), "versions": versions()})
        with JsonLines(folder / "metrics.jsonl") as metrics:
            result, curves = _run_stages(stages, folder, metrics)
        write_json(folder / "result.json", result)
        write_json(folder / "curves.json", curves)
    return result


def _run_stages(stages: Stages, folder: Path, metrics: JsonLines) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every stage in order: what is printed, and what is drawn."""
    config, truth, keep = stages.config, stages.prepared.truth, stages.config.keep

    def logger(stage: str) -> OnRecord:
        return lambda record: metrics({"stage": stage, **record})

    truth.save(folder / "truth.parquet")
    table, il_models, il_summary = stages.irreducible()
    table.save(folder / "irreducible.arrow")
    for number, il_model in enumerate(il_models):
        save_weights(il_model, folder / f"il_model{f'-{number}' if config.num_folds else ''}.safetensors")
    selected, proxy = stages.select(table, folder / "sequence.arrow", on_record=logger("select"))
    save_weights(proxy, folder / "proxy.safetensors")
    sequence = Sequence.open(folder / "sequence.arrow", data=stages.data)
    method = config.acquisition.rpartition(":")[2]
    histories: dict[str, History] = {}
    picks = {method: selected.ids}
    histories[method], model = stages.train(sequence, on_record=logger(method))
    save_weights(model, folder / f"model-{method}.safetensors")
    for baseline in (uniform, loss):
        name = baseline.__name__
        if name == method:
            continue
        recording, model = stages.baseline(baseline, on_record=logger(name))
        histories[name], picks[name] = recording.history, recording.ids
        save_weights(model, folder / f"model-{name}.safetensors")
    flags = truth.corrupted
    curves = {
        name: {
            "evaluations": history.evaluations,
            "corrupted": share_over_time(picks[name], flags, keep=keep, steps=[e["step"] for e in history.evaluations]),
        }
        for name, history in histories.items()
    }
    bill = stages.ledger.stages["irreducible"]
    stats = statistics(sequence)
    result = {
        "data": config.data.data,
        "seed": config.seed,
        "data_seed": config.data.data_seed,
        "fingerprint": fingerprint(stages.data),
        "device": str(stages.device),
        "proxy": {"name": config.proxy, "parameters": count_parameters(proxy)},
        "model": {"name": config.model, "parameters": count_parameters(model)},
        "il_model": {"name": config.il_model or config.proxy, **il_summary},
        "sequence": {
            "digest": sequence.digest,
            "steps": len(sequence),
            "path": str(folder / "sequence.arrow"),
            "keep": keep,
            "coverage": stats.coverage,
            "most_repeated": stats.most_repeated,
        },
        "results": {
            name: {
                "accuracy": history.final["accuracy"],
                "best_accuracy": max(e["accuracy"] for e in history.evaluations),
                "steps": history.steps,
                "flops": history.cost.flops,
                "seconds": history.cost.seconds,
            }
            for name, history in histories.items()
        },
        "proxy_accuracy": selected.history.final["accuracy"],
        "speedup": speedup(
            histories["uniform"].evaluations,
            histories[method].evaluations,
            selected.history.evaluations,
            paid_once={"flops": bill.flops, "seconds": bill.seconds},
        ),
        "corrupted": {
            "data": share(stages.prepared.split.train, flags),
            **{name: share(ids, flags) for name, ids in picks.items()},
        },
        "ledger": stages.ledger.as_dict(),
        "versions": versions(),
        "out": str(folder),
    }
    return result, curves
