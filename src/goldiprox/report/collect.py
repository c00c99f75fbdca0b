"""What a run's folder holds, read and checked: everything a page shows comes through here."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from goldiprox.analysis import coverage_over_time, speedup
from goldiprox.artifacts import Header
from goldiprox.checkpoint import is_unfinished
from goldiprox.data import TensorData, require_fingerprint
from goldiprox.data.corruption import NoiseKind, Truth
from goldiprox.data.sources import MAX_CLASSES
from goldiprox.errors import ConfigError, CorruptFile, GoldiproxError, MissingFile
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.ledger import Cost, Ledger
from goldiprox.messages import MAX_DEPTH, depth
from goldiprox.moments import Moments
from goldiprox.pipeline import CHECKPOINTS
from goldiprox.prepare import DataConfig, prepare
from goldiprox.sequence import Sequence

MAX_PICKS = 2**26
"""Ids that are read from a sequence; of a longer one the beginning is shown."""
NOISES: tuple[NoiseKind, ...] = ("uniform", "class", "instance")


@dataclass(frozen=True)
class Method:
    """How one model was trained: on the sequence, uniformly, or on what it found hardest.

    Attributes:
        role: ``sequence``, ``uniform`` or ``loss``: decides the colour.
        label: For people.
        evaluations: Steps, FLOPs, seconds, accuracy.
        corrupted: The share of damaged picks since the evaluation before.
        coverage: The share of the training side seen by then; None where that was not recorded.
        classes: Picks per class; None likewise.
    """

    role: str
    label: str
    evaluations: list[dict[str, Any]]
    corrupted: list[float]
    coverage: list[float] | None
    classes: np.ndarray | None

    @property
    def short(self) -> str:
        return {"sequence": "sequence", "uniform": "uniform"}.get(self.role, "high loss")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        name: Of its folder.
        result: What ``goldiprox run --json`` printed.
        config: Its settings.
        methods: The one on the sequence first.
        proxy: The proxy's evaluations, where the model may train while it records.
        ledger: The bill of every stage.
        once: Of all that is paid before the model can train.
        speedup: See `goldiprox.analysis.speedup`.
        header: Of the sequence.
        ids: The picks, in order.
        losses: Their losses when they were picked; None where that was not recorded.
        keep: Picks per step.
        irreducible: One per example; NaN outside the training side.
        irreducible_digest: Of the table.
        train: The ids of the training side.
        given: The labels trained on; None where unknown.
        truth: What was done to the data; None where nothing is known, or nothing was done.
        moments: The proxy's losses on a sample; None where that was not recorded.
        data: The examples themselves; None where they could not be had.
        no_data: Why.
    """

    name: str
    result: dict[str, Any]
    config: dict[str, Any]
    methods: list[Method]
    proxy: list[dict[str, Any]]
    ledger: dict[str, Cost]
    once: Cost
    speedup: dict[str, Any]
    header: Header
    ids: np.ndarray
    losses: np.ndarray | None
    keep: int
    irreducible: np.ndarray
    irreducible_digest: str
    train: np.ndarray
    given: np.ndarray | None
    truth: Truth | None
    moments: Moments | None
    data: TensorData | None
    no_data: str = ""

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each example of the base data set was picked."""
        return np.bincount(self.ids, minlength=len(self.irreducible))

    @property
    def damage(self) -> str:
        """What is wrong with damaged examples, for sentences."""
        if self.truth is None:
            return ""
        kinds = {"wrong labels": self.truth.mislabelled, "inputs of noise": self.truth.white_noise}
        return " or ".join(name for name, flags in kinds.items() if flags[self.train].any())

    def class_name(self, label: int) -> str:
        names = self.data.class_names if self.data is not None else ()
        return names[label] if label < len(names) else str(label)


def read_run(
    folder: Path, *, data: TensorData | None = None, own: str | None = None, data_dir: str | None = None
) -> Run:
    """Reads a run's folder, or says why it is none.

    Args:
        folder: Made by ``goldiprox run``.
        data: Its data, where that is loaded already.
        own: The ``package.module:callable`` that may be called to load data. A folder may come from strangers, so what
            it names is not called because it names it.
        data_dir: Where data sets lie.
    """
    result, config, curves = (_json(folder, name) for name in ("result.json", "config.json", "curves.json"))
    sequence = Sequence.open(folder / "sequence.arrow")
    table = IrreducibleLosses.open(folder / "irreducible.arrow")
    if table.data != sequence.header.data:
        raise CorruptFile(f"{folder}: sequence.arrow and irreducible.arrow were made from different data; run it again")
    end = min(len(sequence), MAX_PICKS // sequence.keep) * sequence.keep
    ids = np.concatenate([np.empty(0, np.int64), *sequence.blocks(end)])
    truth, given = _truth(folder / "truth.parquet", len(table), table.ids)
    data, no_data = (data, "") if data is not None else _load(config, sequence.header, own, data_dir)
    if given is None and data is not None:
        given = data.labels
    moments = _moments(folder / "losses.parquet", len(table), end // sequence.keep)
    try:
        ledger = _ledger(result)
        proxy = [] if "rehearsal" in ledger else _proxy(folder / "metrics.jsonl")
        methods = _methods(result, curves, ids, len(table.ids), sequence.keep)
        by_role = {method.role: method for method in methods}
        once = Ledger(ledger).paid_once(besides=bool(proxy))
        factors = speedup(
            by_role.get("uniform", methods[0]).evaluations,
            methods[0].evaluations,
            proxy,
            paid_once={"flops": once.flops, "seconds": once.seconds},
        )
        return Run(
            name=folder.resolve().name,
            result=result,
            config=config,
            methods=methods,
            proxy=proxy,
            ledger=ledger,
            once=once,
            speedup=factors,
            header=sequence.header,
            ids=ids,
            losses=sequence.column("loss")[:end] if "loss" in sequence.header.columns else None,
            keep=sequence.keep,
            irreducible=table.values.numpy(),
            irreducible_digest=table.digest,
            train=table.ids,
            given=given,
            truth=truth,
            moments=moments,
            data=data,
            no_data=no_data,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as e:
        if isinstance(e, GoldiproxError):
            raise
        raise CorruptFile(
            f"{folder}: its files do not fit together ({type(e).__name__}: {e}); they were changed, or written by "
            f"another release: run it again"
        ) from e


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not folder.is_dir():
        raise MissingFile(f"{folder} is not a folder; give the folder of a run (`goldiprox run` prints it at its end)")
    if is_unfinished(folder / CHECKPOINTS):
        raise MissingFile(
            f"{folder} holds an unfinished run; finish it first: `goldiprox run --resume --out {folder}`, with the "
            f"flags that it was begun with"
        )
    if not path.is_file():
        raise MissingFile(
            f"{folder} is not the folder of a finished `goldiprox run`: it has no {name}; give the one that `goldiprox "
            f"run` prints at its end"
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise CorruptFile(f"{path} cannot be read: {e}") from e
    if not isinstance(value, dict) or depth(value) > MAX_DEPTH:
        raise CorruptFile(f"{path} does not hold a JSON object that can be shown; run it again")
    return value


def _ledger(result: Mapping[str, Any]) -> dict[str, Cost]:
    """The bills; and that everything else is there that a page takes from the result."""
    for value in (result["data"], result["device"], result["sequence"]["digest"], *result["versions"].values()):
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
    for role in ("proxy", "model") if result["proxy"] else ("model",):
        if not isinstance(result[role]["name"], str):
            raise TypeError(f"the name of the {role} is not text")
    _check_numbers(result["seed"])
    ledger = {name: Cost(**cost) for name, cost in result["ledger"].items()}
    for cost in ledger.values():
        _check_numbers(
            cost.examples_scored, cost.examples_trained, cost.flops or 0, cost.seconds, cost.evaluation_seconds
        )
    return ledger


def _proxy(path: Path) -> list[dict[str, Any]]:
    """The evaluations of the proxy that recorded the sequence."""
    if not path.is_file():
        raise MissingFile(f"{path} does not exist; run it again")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [line for line in lines if line["stage"] == "select"]
    for e in found:
        _check_numbers(e["step"], e["flops"] or 0, e["seconds"])
    return found


def _methods(
    result: Mapping[str, Any], curves: Mapping[str, Any], ids: np.ndarray, num_train: int, keep: int
) -> list[Method]:
    methods = []
    for number, (name, curve) in enumerate(curves.items()):
        role = "sequence" if number == 0 else name if name in ("uniform", "loss") else "loss"
        words = {"sequence": f"the sequence ({name.replace('_', ' ')})", "uniform": "uniform", "loss": "high loss"}
        evaluations = curve["evaluations"]
        coverage, classes = curve.get("coverage"), curve.get("classes")
        if coverage is None and number == 0:
            coverage = coverage_over_time(ids, num_train=num_train, keep=keep, steps=[e["step"] for e in evaluations])
        for e in evaluations:
            _check_numbers(e["step"], e["accuracy"], e["flops"] or 0, e["seconds"])
        _check_numbers(*curve["corrupted"], *(coverage or ()))
        methods.append(
            Method(
                role,
                words[role],
                evaluations,
                curve["corrupted"],
                coverage,
                None if classes is None else np.array(classes, np.int64),
            )
        )
        _check_numbers(result["results"][name]["accuracy"])
    if not methods or any(not m.evaluations for m in methods):
        raise ValueError("no evaluations")
    return methods


def _check_numbers(*values: Any) -> None:
    """What is drawn has to be finite numbers; JSON from strangers may hold anything in their place."""
    for value in values:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TypeError(f"{value!r} is not a finite number")


def _truth(path: Path, length: int, train: np.ndarray) -> tuple[Truth | None, np.ndarray | None]:
    """What was done to the data, and the labels that came out of it."""
    if not path.exists():
        return None, None
    truth, given = Truth.open(path)
    if len(truth.labels) != length:
        raise CorruptFile(f"{path} describes {len(truth.labels):,} examples, the run has {length:,}; run it again")
    for labels in (truth.labels, truth.labels if given is None else given):
        if len(labels) and not 0 <= labels.min() <= labels.max() < max(length, MAX_CLASSES):
            raise CorruptFile(f"{path} holds labels from {labels.min()} to {labels.max()}; run it again")
    return (truth if truth.corrupted[train].any() else None), given


def _moments(path: Path, length: int, num_steps: int) -> Moments | None:
    """Losses of examples that exist, at steps that are shown."""
    if not path.exists():
        return None
    moments = Moments.open(path)
    if not len(moments.ids) or moments.ids.min() < 0 or moments.ids.max() >= length or moments.steps.min() < 1:
        raise CorruptFile(f"{path} lists examples or steps that the run does not have; run it again")
    shown = moments.steps <= num_steps
    return Moments(moments.ids, moments.steps[shown], moments.losses[shown])


def _load(
    config: Mapping[str, Any], header: Header, own: str | None, data_dir: str | None
) -> tuple[TensorData | None, str]:
    """The examples, or why they cannot be shown."""
    settings = config.get("data")
    name = settings.get("data") if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not isinstance(name, str):
        return None, "config.json does not say which data set this was."
    if ":" in name and name != own:
        return None, (
            f"They come from the function {name}, which is only called when you say so: add --data {name} to "
            f"`goldiprox report`."
        )
    try:
        places = {"data_dir": data_dir} if data_dir else {}
        known = {k: v for k, v in settings.items() if k in DataConfig.__dataclass_fields__}
        chosen = DataConfig(**{**known, **places})
        if chosen.noise_kind not in NOISES:
            raise ConfigError(f"unknown kind of noise {chosen.noise_kind!r}")
        data = prepare(chosen).data
        require_fingerprint(data, header.data, "the run")
    except (GoldiproxError, TypeError, ValueError) as e:
        return None, f"{e}."
    return data, ""
