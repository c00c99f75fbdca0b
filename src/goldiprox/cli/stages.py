"""`goldiprox irreducible`, `select` and `train`: the stages one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from goldiprox import tracking
from goldiprox.acquisition import NEEDS_TABLE, needs_proxy
from goldiprox.artifacts import check_output, require_file_name, versions
from goldiprox.checkpoint import SECONDS, Checkpoints, is_unfinished
from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, next_command, out, percent, print_json, show_trackers
from goldiprox.cli.ranks import RANK_SECONDS, RankTimeout, started_ranks
from goldiprox.cli.ray import ActorGpus, Actors, RayAddress, ray_scoring
from goldiprox.cli.signals import stop
from goldiprox.data.fingerprint import short
from goldiprox.data.sources import SOURCES
from goldiprox.enough import AUTO, MODEL, PROXY, in_words, titled
from goldiprox.errors import ConfigError, MissingFile, MissingIrreducible
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.outputs import JsonLines, save_weights, write_json
from goldiprox.pipeline import TRACKING, run_folder
from goldiprox.prepare import fitting_sizes
from goldiprox.ranks import Ranks
from goldiprox.sequence import Sequence
from goldiprox.settings import RunConfig
from goldiprox.stages import Progress, Silent, Stages


@o.configured(o.DATA, o.PROXY, o.HOLDOUT_MODEL, o.PRESET, o.OPTIMISER, o.MACHINE)
def irreducible(
    config: RunConfig,
    model: Annotated[
        str | None, typer.Option(help="The large model that the losses are for; --il-model auto may take one like it.")
    ] = None,
    out_file: o.OutFile = Path("irreducible.arrow"),
    force: o.Force = False,
    resume: o.Resume = False,
    checkpoint_every: o.CheckpointEvery = SECONDS,
    rank_timeout: RankTimeout = RANK_SECONDS,
    ray_address: RayAddress = None,
    actors: Actors = None,
    actor_gpus: ActorGpus = None,
    json: o.Json = False,
) -> None:
    """Train the holdout model and write the irreducible loss of every training example."""
    scoring, asked = None, config.il_model
    if model is None and asked == MODEL:
        raise ConfigError("--il-model model is of the large model's kind: name that too (--model NAME)")
    if model:
        config = replace(config, model=model)
    elif asked == AUTO:  # what the losses are for is not known
        config = replace(config, il_model=PROXY)
    if config.engine == "ray":  # which says where to score; the holdout model trains as ever
        config = replace(config, engine="auto")
        scoring = ray_scoring(config, ray_address, actors, actor_gpus, quiet=json)
    elif (ray_address, actors, actor_gpus) != (None, None, None):
        raise ConfigError("--ray-address, --actors and --actor-gpus are for scoring on Ray: add --engine ray")
    with (
        started_ranks(config.device, rank_timeout) as ranks,
        _checkpoints(out_file, config, force=force, resume=resume, every=checkpoint_every, ranks=ranks) as checkpoints,
    ):
        first = ranks is None or ranks.rank == 0
        stages = Stages(config, progress=_progress(json or not first), checkpoints=checkpoints)
        if model:
            stages.build(model, "model", config.seed)  # which may never be asked for, and yet be a slip
        table, _, summary = stages.irreducible(ranks, scoring)
        if first:
            table.save(out_file, force=force or checkpoints.continues)
    if not first:
        return None
    path = out_file
    losses = table.values[table.ids]
    result = {
        "irreducible": {
            "path": str(path),
            "digest": table.digest,
            "examples": len(losses),
            "mean": losses.mean().item(),
        },
        "il_model": summary,
        "ledger": stages.ledger.as_dict(),
    }
    if json:
        return print_json(result)
    out.print(
        f"Wrote {path}: {len(losses):,} irreducible losses, mean {losses.mean().item():.3f}; the holdout model "
        f"({titled(summary['name'], summary['augment'])}) has accuracy {percent(summary['accuracy'])} on the inner "
        f"holdout."
    )
    if instead := summary["instead"]:
        how = "" if summary["cleaned"] else " The labels of the holdout look right, so it was trained once."
        out.print(f"Not one of the proxy's kind, since {in_words(instead)}.{how}")
    elif summary["shortcoming"] and asked == AUTO and model is None and config.holdout.cleaned:
        out.print(f"It falls short: {summary['shortcoming']}. Say what it is for: --model NAME --force.")
    sizes = fitting_sizes(len(losses)) if len(losses) < 640 else {}
    fitting = "".join(f" --{name} {value}" for name, value in sizes.items())
    flags = o.data_flags(config, "proxy", "dropout")
    return next_command(f"select --irreducible {quote(str(path))} --out sequence.arrow{flags}{fitting}")


@o.configured(o.DATA, o.PROXY, o.PRESET, o.SELECTION, o.OPTIMISER, o.SCHEDULE, o.MACHINE, acquisition="reducible_loss")
def select(
    config: RunConfig,
    irreducible: Annotated[
        Path | None,
        typer.Option(help="The irreducible losses; not needed by acquisitions such as loss or uniform."),
    ] = None,
    columns: Annotated[str, typer.Option(help="What to record beside ids: score,loss,irreducible.")] = "",
    out_file: o.OutFile = Path("sequence.arrow"),
    save_proxy: Annotated[Path | None, typer.Option(help="Also write the proxy's weights: a safetensors file.")] = None,
    force: o.Force = False,
    resume: o.Resume = False,
    checkpoint_every: o.CheckpointEvery = SECONDS,
    pieces: Annotated[
        int, typer.Option(help="Under torchrun: passes that candidates are scored in; a multiple of the ranks' number.")
    ] = 8,
    scope: Annotated[
        str, typer.Option(help="Under torchrun: global, or local (each process keeps its own best; see docs/scale.md).")
    ] = "global",
    rank_timeout: RankTimeout = RANK_SECONDS,
    track: o.Track = None,
    json: o.Json = False,
) -> None:
    """Train the proxy on what it selects, and write the sequence; under torchrun, with several processes.

    By predictability, irreducible_loss or uniform there is no proxy, and it takes seconds.
    """
    if config.acquisition == AUTO:
        raise ConfigError(
            "--acquisition auto records two sequences and takes one, which run and compare do; give one here: "
            "reducible_loss (the default) or predictability"
        )
    if irreducible is None and config.acquisition in NEEDS_TABLE:
        there = " (there is an irreducible.arrow here)" if Path("irreducible.arrow").exists() else ""
        raise MissingIrreducible(
            f"--acquisition {config.acquisition} needs irreducible losses: give --irreducible FILE{there}, "
            f"made by `goldiprox irreducible`"
        )
    tracking.require(track or ())
    with (
        started_ranks(config.device, rank_timeout) as ranks,
        _checkpoints(out_file, config, force=force, resume=resume, every=checkpoint_every, ranks=ranks) as checkpoints,
    ):
        first = ranks is None or ranks.rank == 0
        if save_proxy is not None and first:
            check_output(save_proxy, force=force or checkpoints.continues)
        stages = Stages(config, progress=_progress(json or not first), checkpoints=checkpoints)
        if save_proxy is not None and not needs_proxy(stages.acquisition, scope):
            raise ConfigError(f"--acquisition {config.acquisition} needs no proxy; leave out --save-proxy {save_proxy}")
        table = None
        if irreducible is not None:
            table = IrreducibleLosses.open(irreducible)
            stages.require_same_data(str(irreducible), table.data or {}, table.config, table.parents)
        names = tuple(c.strip() for c in columns.split(",") if c.strip())
        if scope != "global" and not ranks:
            raise ConfigError(f"--scope {scope} is for several processes: start them with torchrun")
        together = {"group": ranks, "pieces": pieces, "scope": scope} if ranks else {}
        place = out_file.with_name(f"{out_file.name}.tracking")
        with tracking.open_tracker(
            (track or ()) if first else (), place, config=config.settings(), resume=checkpoints.continues
        ) as stages.track:
            recording, proxy = stages.select(table, out_file, force=force, columns=names, **together)
        if save_proxy is not None and proxy is not None and first:
            save_weights(proxy, save_proxy)
    if not first:
        return None
    result = {
        "sequence": {
            "digest": recording.digest,
            "steps": recording.steps,
            "path": str(recording.path),
            "keep": config.keep,
        },
        "proxy": None if proxy is None else {"name": config.proxy, "accuracy": recording.history.final["accuracy"]},
        "ledger": stages.ledger.as_dict(),
    }
    if json:
        return print_json(result)
    how = f"by {config.acquisition}, for which no proxy is needed"
    if result["proxy"]:
        how = f"the proxy ({config.proxy}) ends at accuracy {percent(result['proxy']['accuracy'])}"
    out.print(
        f"Wrote {recording.path}: {recording.steps:,} steps of {config.keep}, digest {short(recording.digest)}; {how}."
    )
    show_trackers(track or (), out_file.with_name(f"{out_file.name}.tracking"))
    model = "mlp512" if config.data.data in SOURCES else config.proxy
    return next_command(f"train --sequence {quote(str(recording.path))} --model {model}{o.data_flags(config)}")


@o.configured(o.DATA, o.MODEL, o.REPLAY, o.PRESET, o.OPTIMISER, o.SCHEDULE, o.MACHINE)
def train(
    config: RunConfig,
    sequence: Annotated[Path, typer.Option(help="The sequence to train on.")] = Path("sequence.arrow"),
    partial: Annotated[bool, typer.Option("--partial", help="Accept a sequence that was broken off.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Train while another process is still selecting; wait for its steps.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="With --follow: seconds to wait for a selecting process.")] = 60.0,
    out_folder: o.OutFolder = None,
    force: o.Force = False,
    resume: o.Resume = False,
    checkpoint_every: o.CheckpointEvery = SECONDS,
    track: o.Track = None,
    json: o.Json = False,
) -> None:
    """Train the large model on a sequence: metrics.jsonl, model.safetensors, result.json."""
    tracking.require(track or ())
    opened = Sequence.open(sequence, partial=partial, follow=follow, timeout=timeout)
    stages = Stages(config, progress=_progress(json))
    header = opened.header
    stages.require_same_data(str(sequence), header.data, header.config, header.parents)
    stages.build(config.model, "model", config.seed)
    name = f"train-{config.model.replace(':', '-')}"
    with run_folder(
        str(out_folder) if out_folder else None,
        name,
        settings=config.settings(),
        force=force,
        resume=resume,
        every=checkpoint_every,
        stop=stop,
        reads=[sequence],
    ) as (folder, stages.checkpoints):
        tracked = tracking.open_tracker(
            track or (),
            folder / TRACKING,
            name=folder.name,
            config=config.settings(),
            resume=stages.checkpoints.continues,
        )
        with JsonLines(folder / "metrics.jsonl") as metrics, tracked as stages.track:
            history, model = stages.train(opened, on_record=lambda record: metrics({"stage": "train", **record}))
        save_weights(model, folder / "model.safetensors")
        result = {
            "data": config.data.data,
            "seed": config.seed,
            "model": config.model,
            "sequence": {"digest": opened.digest, "steps": len(opened), "path": str(sequence), "window": config.window},
            "accuracy": history.final["accuracy"],
            "ledger": stages.ledger.as_dict(),
            "versions": versions(),
            "out": str(folder),
        }
        write_json(folder / "result.json", result)
    if json:
        return print_json(result)
    out.print(
        f"{config.model} after {history.steps:,} steps: accuracy {percent(result['accuracy'])} "
        f"({history.cost.seconds:.1f} s of training). Files: {folder}"
    )
    show_trackers(track or (), folder / TRACKING)
    return next_command(f"inspect {quote(str(sequence))}")


@contextmanager
def _checkpoints(
    out_file: Path, config: RunConfig, *, force: bool, resume: bool, every: float, ranks: Ranks | None = None
) -> Iterator[Checkpoints]:
    """The checkpoints of a command that writes one file, in a folder beside it."""
    require_file_name(out_file)
    folder = out_file.with_name(f"{out_file.name}.checkpoint")
    if resume and force:
        raise ConfigError("--resume continues what is there, --force starts over; choose one")
    first = ranks is None or ranks.rank == 0
    if resume and first and not is_unfinished(folder):
        raise MissingFile(f"there is no {folder} to continue from; leave out --resume to begin a run")
    if first and (force or not is_unfinished(folder)):
        check_output(out_file, force=force)
    with Checkpoints(
        folder, every=every, settings=config.settings(), force=force, stop=stop, group=ranks
    ) as checkpoints:
        yield checkpoints


def _progress(json: bool) -> Progress:
    return Silent() if json else Bars()
