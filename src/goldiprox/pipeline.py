"""The whole experiment: holdout model, proxy, sequence, large model, and its baselines, in one folder."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from goldiprox import tracking
from goldiprox.acquisition import loss, uniform
from goldiprox.analysis import coverage_over_time, share, share_over_time, speedup
from goldiprox.artifacts import check_folder, versions
from goldiprox.checkpoint import SECONDS, Checkpoints, is_unfinished
from goldiprox.data import fingerprint
from goldiprox.errors import ConfigError, MissingFile, OutputExists, OutputInUse, some
from goldiprox.inspection import statistics
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.ledger import Cost
from goldiprox.loop import History, OnRecord
from goldiprox.models import count_parameters
from goldiprox.moments import KEY, Moments, watched_ids
from goldiprox.outputs import JsonLines, save_weights, write_json
from goldiprox.recording import Recording
from goldiprox.rehearsal import best, too_small
from goldiprox.sequence import Sequence
from goldiprox.settings import RunConfig
from goldiprox.stages import Progress, Stages
from goldiprox.storage import copy_atomically, is_being_written

TRACKING = "tracking"
METRICS = "metrics.jsonl"
BASELINES = (uniform, loss)
OURS = (
    "config.json",
    "result.json",
    "curves.json",
    "irreducible.arrow",
    "irreducible.arrow.partial",
    "sequence.arrow",
    "sequence.arrow.partial",
    "sequence-*.arrow",
    "sequence-*.arrow.partial",
    "il_model.safetensors",
    "il_model-*.safetensors",
    "proxy.safetensors",
    "model.safetensors",
    "model-*.safetensors",
    METRICS,
    "truth.parquet",
    "losses.parquet",
    "report.html",
    "accuracy.png",
    "corrupted.png",
    TRACKING,
)
"""What runs leave in their folder, and nothing else: what a new one in their place sets aside, and removes."""
REPLACED = ".replaced"
CHECKPOINTS = ".checkpoint"


@contextmanager
def run_folder(
    out: str | None,
    name: str,
    *,
    settings: Mapping[str, Any],
    force: bool = False,
    resume: bool = False,
    every: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    reads: Seq[Path] = (),
) -> Iterator[tuple[Path, Checkpoints]]:
    """The folder of a run and its checkpoints: the one asked for, or one under runs/.

    A folder that holds an unfinished run with the same settings is continued. Else the one asked for must be empty;
    with `force`, the files of an older run there are set aside, and removed when the code inside is done. Where that
    fails before anything was saved to go on from, all is as it was.

    Args:
        out: The folder; None takes the next free number under runs/.
        name: What folders under runs/ begin with.
        settings: What must be the same for a run to be continued.
        force: Start over, whatever is there.
        resume: There must be an unfinished run; without `out`, the last one under runs/.
        every: Seconds between checkpoints.
        stop: Whether to save and stop.
        reads: Files that the run is made from, which it must not replace.
    """
    if resume and force:
        raise ConfigError("--resume continues what is there, --force starts over; choose one")
    folder = Path(out) if out is not None else _numbered_folder(name, last=resume)
    if resume and not is_unfinished(folder / CHECKPOINTS):
        raise MissingFile(f"{folder} holds no unfinished run; leave out --resume to begin one")
    is_new = out is None or not folder.exists()
    _check_given(folder, force=force)
    if lost := {p.resolve() for p in reads} & {p.resolve() for p in _ours(folder)}:
        raise OutputExists(
            f"{min(lost)} lies in {folder}, and would be replaced with the run there; choose another --out"
        )
    begun = False
    try:
        with Checkpoints(folder / CHECKPOINTS, every=every, settings=settings, force=force, stop=stop) as checkpoints:
            if not checkpoints.continues:
                _set_aside(folder)
                begun = True
            yield folder, checkpoints
    except Exception:
        if begun and not is_unfinished(folder / CHECKPOINTS):
            _put_back(folder)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
        raise
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def _numbered_folder(name: str, *, last: bool) -> Path:
    number = 1
    while (folder := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return folder.with_name(f"{name}-{max(number - 1, 1):03d}") if last else check_folder(folder)


def _check_given(folder: Path, *, force: bool) -> None:
    if folder.is_file():
        raise OutputExists(f"{folder} is a file; give the name of a folder")
    unfinished = is_unfinished(folder / CHECKPOINTS)
    if folder.is_dir() and any(folder.iterdir()) and not (force or unfinished):
        raise OutputExists(f"{folder} is not empty; choose another --out, or add --force to replace the run in it")
    check_folder(folder)
    if busy := [p for p in folder.glob("*.partial") if is_being_written(p)]:
        raise OutputInUse(f"another process is writing {busy[0]}; wait until it is done, or choose another --out")
    is_run = unfinished or (folder / METRICS).exists() or (folder / REPLACED).exists()
    if not is_run and (others := _ours(folder)):  # a model of somebody else's, say
        raise OutputExists(
            f"{folder} holds {some(p.name for p in others)}, but no run that could be replaced: there is no {METRICS}; "
            f"choose another --out"
        )


def _ours(folder: Path) -> list[Path]:
    return [p for pattern in OURS for p in folder.glob(pattern)]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _put_back(folder: Path) -> None:
    """Takes a failed run away, and what it was to replace from where it was set aside."""
    _remove(_ours(folder))
    aside = folder / REPLACED
    if aside.exists():
        for path in aside.iterdir():
            path.replace(folder / path.name)
        aside.rmdir()


def _set_aside(folder: Path) -> None:
    ours, aside = _ours(folder), folder / REPLACED
    if aside.exists():  # the last complete run is there; what lies here is a try at replacing it that was killed
        _remove(ours)
    elif ours:
        aside.mkdir()
        for path in ours:
            path.replace(aside / path.name)


def run(
    config: RunConfig,
    out: str | None = None,
    *,
    force: bool = False,
    resume: bool = False,
    every: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    track: Seq[str] = (),
    finish: Callable[[Path, Stages], None] | None = None,
) -> dict[str, Any]:
    """Does all of it, and leaves every file of it in one folder; see `run_folder` for its arguments.

    `track` names trackers, see `goldiprox.tracking.BACKENDS`. `finish` is called with the folder and the stages when
    the run is complete, whatever becomes of what it does.

    Returns:
        What ``goldiprox run --json`` prints.
    """
    tracking.require(track)
    stages = Stages(config, progress=progress)
    stages.check_candidates()
    if not config.num_folds:
        stages.prepared.split.require_holdout()
    proxy = stages.build(config.proxy, "proxy", config.seed)
    computed = {name: stages.try_selection(proxy, name) for name in stages.acquisitions}
    columns = {name: ("loss",) if "loss" in known else () for name, known in computed.items()}
    stages.build(config.model, "model", config.seed)
    _ = stages.holdout_models  # each is tried on the data
    name = Path(config.data.data.replace(":", "-")).name
    settings = config.settings()
    with run_folder(out, name, settings=settings, force=force, resume=resume, every=every, stop=stop) as (
        folder,
        stages.checkpoints,
    ):
        write_json(folder / "config.json", {**asdict(config), "versions": versions()})
        tracked = tracking.open_tracker(
            track, folder / TRACKING, name=folder.name, config=settings, resume=stages.checkpoints.continues
        )
        with JsonLines(folder / METRICS) as metrics, tracked as stages.track:
            result, curves = _run_stages(stages, folder, metrics, columns)
        write_json(folder / "result.json", result)
        write_json(folder / "curves.json", curves)
    if finish:
        finish(folder, stages)
    return result


def _run_stages(
    stages: Stages, folder: Path, metrics: JsonLines, columns: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every stage in order: what is printed, and what is drawn."""
    config, truth, keep, train = stages.config, stages.prepared.truth, stages.config.keep, stages.prepared.split.train
    watched = watched_ids(train, config.seed)

    def logger(stage: str) -> OnRecord:
        def log(record: dict[str, Any]) -> None:
            metrics({"stage": stage, **{k: v for k, v in record.items() if k != KEY}})

        return log

    labels = stages.data.labels
    truth.save(folder / "truth.parquet", given=labels)
    table, il_models, il_summary = stages.irreducible()
    table.save(folder / "irreducible.arrow", force=True)  # the same again, where a run is continued
    for number, il_model in enumerate(il_models):
        save_weights(il_model, folder / f"il_model{f'-{number}' if config.num_folds else ''}.safetensors")
    path = folder / "sequence.arrow"
    small = too_small(config.proxy, il_summary) if len(stages.acquisitions) > 1 else None
    names = stages.acquisitions[:1] if small else stages.acquisitions
    selected, proxy, by, rehearsed = _select(stages, names, table, path, columns, watched, logger)
    if proxy is not None:
        moments = {record["step"]: record[KEY] for record in selected.history.evaluations}
        Moments.of(watched, moments).save(folder / "losses.parquet")
        save_weights(proxy, folder / "proxy.safetensors")
    sequence = Sequence.open(path, data=stages.data)
    method = by.rpartition(":")[2]
    if by != method and method in {baseline.__name__ for baseline in BASELINES}:
        method = by.replace(":", ".")  # one of the user's own, that bears the name of a baseline
    histories: dict[str, History] = {}
    picks = {method: stages.ordered(sequence).ids}  # as the model comes to see them
    probe = None if proxy is None else stages.probe(watched, selected.history, table)
    histories[method], model = stages.train(sequence, on_record=logger(method), probe=probe)
    save_weights(model, folder / f"model-{method}.safetensors")
    for baseline in BASELINES:
        name = baseline.__name__
        if name == method:
            continue
        recording, model = stages.baseline(baseline, on_record=logger(name))
        histories[name], picks[name] = recording.history, recording.ids
        save_weights(model, folder / f"model-{name}.safetensors")
    flags = truth.corrupted
    curves = {}
    for name, history in histories.items():
        steps = [e["step"] for e in history.evaluations]
        curves[name] = {
            "evaluations": history.evaluations,
            "corrupted": share_over_time(picks[name], flags, keep=keep, steps=steps),
            "coverage": coverage_over_time(picks[name], num_train=len(train), keep=keep, steps=steps),
            "classes": np.bincount(labels[picks[name]], minlength=stages.data.num_classes or 0).tolist(),
        }
    alongside = () if rehearsed else selected.history.evaluations  # of two sequences none can be followed
    once = stages.ledger.paid_once(besides=bool(alongside))
    rehearsing = stages.build(config.proxy, "proxy", 0) if rehearsed else proxy
    stats = statistics(sequence)
    result = {
        "data": config.data.data,
        "seed": config.seed,
        "data_seed": config.data.data_seed,
        "fingerprint": fingerprint(stages.data),
        "device": str(stages.device),
        "proxy": None if rehearsing is None else {"name": config.proxy, "parameters": count_parameters(rehearsing)},
        "model": {"name": config.model, "parameters": count_parameters(model)},
        "il_model": il_summary,
        "sequence": {
            "digest": sequence.digest,
            "steps": len(sequence),
            "path": str(path),
            "keep": keep,
            "window": config.window,
            "coverage": stats.coverage,
            "most_repeated": stats.most_repeated,
            "by": method,
            "rehearsed": rehearsed,
            "too_small": small,
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
        "proxy_accuracy": selected.history.final.get("accuracy"),
        "speedup": speedup(
            histories["uniform"].evaluations,
            histories[method].evaluations,
            alongside,
            paid_once={"flops": once.flops, "seconds": once.seconds},
        ),
        "corrupted": {
            "data": share(train, flags),
            **{name: share(ids, flags) for name, ids in picks.items()},
        },
        "ledger": stages.ledger.as_dict(),
        "versions": versions(),
        "out": str(folder),
    }
    return result, curves


def _select(
    stages: Stages,
    names: tuple[str, ...],
    table: IrreducibleLosses,
    path: Path,
    columns: Mapping[str, tuple[str, ...]],
    watched: np.ndarray,
    logger: Callable[[str], OnRecord],
) -> tuple[Recording, nn.Module | None, str, dict[str, float]]:
    """The sequence, of two the one that the rehearsals are for: its recording and proxy if it had one, what it was
    recorded by, and how a small model did by each.

    Both stay beside it, under the names of what they were recorded by.
    """
    found = {}
    paths = {name: path.with_stem(f"{path.stem}-{name}") if len(names) > 1 else path for name in names}
    for name in names:
        settings = {"watched": watched, "columns": columns[name], "on_record": logger(stages.selecting(name))}
        found[name] = stages.select(table, paths[name], by=name, **settings)
    if len(names) == 1:
        return *found[names[0]], names[0], {}
    once, missed = Cost(), {}
    for name in names:
        missed[name], cost = stages.rehearse(Sequence.open(paths[name], data=stages.data), name)
        once.merge(cost)
    taken = best(missed)
    stages.bill("rehearsal", once, stages.steps)
    copy_atomically(paths[taken], path)
    return *found[taken], taken, {name: float((1 - each).mean()) for name, each in missed.items()}
