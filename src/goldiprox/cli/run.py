"""`goldiprox run`: everything, on embedded data by default."""

from pathlib import Path
from shlex import quote
from typing import Any

from goldiprox import enough, pipeline
from goldiprox.acquisition import needs_table
from goldiprox.checkpoint import SECONDS
from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, err, next_command, out, percent, print_json, show_trackers, table, times
from goldiprox.cli.signals import stop
from goldiprox.data.sources import SOURCES
from goldiprox.errors import GoldiproxError, MissingExtra
from goldiprox.rehearsal import acquisitions, in_words, unasked_in_words
from goldiprox.report.collect import read_run
from goldiprox.report.page import NAME, write_page
from goldiprox.settings import RunConfig
from goldiprox.stages import Silent, Stages

FEW_STEPS = 100
"""Below this nothing has been learnt that could be compared."""


@o.configured(
    o.DATA,
    o.PROXY,
    o.MODEL,
    o.REPLAY,
    o.HOLDOUT_MODEL,
    o.PRESET,
    o.SELECTION,
    o.OPTIMISER,
    o.SCHEDULE,
    o.MACHINE,
    noise=None,
)
def run(
    config: RunConfig,
    out_folder: o.OutFolder = None,
    force: o.Force = False,
    resume: o.Resume = False,
    checkpoint_every: o.CheckpointEvery = SECONDS,
    track: o.Track = None,
    json: o.Json = False,
) -> None:
    """Do all of it: holdout model, proxy, sequence, and the large model on it, on uniform and on high-loss batches."""
    progress = Silent() if json else Bars()
    drawn: dict[str, Any] = {"report": None, "figures": []}

    def draw(folder: Path, stages: Stages) -> None:
        try:
            drawn["report"] = str(write_page([read_run(folder, data=stages.prepared.data)], folder / NAME))
        except GoldiproxError as e:
            err.print(f"no report: {e}")

    result = pipeline.run(
        config,
        str(out_folder) if out_folder else None,
        force=force,
        resume=resume,
        every=checkpoint_every,
        stop=stop,
        progress=progress,
        track=track or (),
        finish=draw,
    )
    try:
        from goldiprox.report.figures import draw_run

        drawn["figures"] = [str(p) for p in draw_run(Path(result["out"]), result)]
    except MissingExtra as e:
        err.print(f"no figures: {e}")
    result |= drawn
    if json:
        print_json(result)
    else:
        _show(result, config)
        show_trackers(track or (), Path(result["out"]) / pipeline.TRACKING)
        _next(result, config)


def _show(result: dict[str, Any], config: RunConfig) -> None:
    corrupted = result["corrupted"]
    method = next(name for name in result["results"])
    rows = [
        [
            f"the sequence ({name})" if name == method else name,
            percent(figures["accuracy"]),
            percent(figures["best_accuracy"]),
            f"{figures['seconds']:.1f}",
            *([percent(corrupted[name])] if corrupted["data"] else []),  # else nothing is known of that
        ]
        for name, figures in result["results"].items()
    ]
    title = f"{result['model']['name']} on {result['data']}, {result['sequence']['steps']:,} steps of {config.keep}"
    title += f"; {percent(corrupted['data'])} of the training side is corrupted" if corrupted["data"] else ""
    if instead := result["il_model"]["instead"]:
        how = "" if result["il_model"]["cleaned"] else ", trained once"
        why = f"since {enough.in_words(instead)}"
        name = enough.titled(result["il_model"]["name"], result["il_model"].get("augment"))
        out.print(f"\nHoldout model: {name}{how}, {why}.")
    if why := _why(result):
        out.print(f"\n{why}")
    headers = ["trained on", "final accuracy", "best", "seconds", *(["corrupted picks"] if corrupted["data"] else [])]
    out.print()
    out.print(table(title, headers, rows))
    speedup = result["speedup"]
    if speedup["steps"] is None:
        out.print("The sequence did not reach uniform's final accuracy on this data.")
        il_model, model = result["il_model"]["name"], result["model"]["name"]
        known = not needs_table(acquisitions(config.acquisition, config.rule)[0]) or result["il_model"].get("moved")
        if not known and il_model != model:
            out.print(
                f"What its holdout model, {il_model}, cannot learn looks unlearnable; {model} may learn it. Try "
                f"--il-model {model}."
            )
    else:
        replay = speedup["replay"]
        rows = [
            ["for whoever is given the sequence", *map(times, (speedup["steps"], replay["flops"], replay["seconds"]))],
            [
                "all that is paid once on the bill",
                *map(times, (speedup["steps"], speedup["flops"], speedup["seconds"])),
            ],
        ]
        title = "Reaching uniform's final accuracy: uniform's cost divided by the sequence's"
        out.print(table(title, ["", "steps", "FLOPs", "seconds"], rows))
    steps = result["sequence"]["steps"]
    if steps < FEW_STEPS:
        out.print(
            f"{steps} steps are few: a pass over the training side is {steps // config.epochs} of them. Raise "
            f"--epochs, or lower --candidates ({config.candidates}) and --keep ({config.keep})."
        )
    caution = "; seconds depend on what else runs on this machine" if result["device"] == "cpu" else ""
    rate = f"a {config.training.schedule} rate"
    if config.training.schedule == "constant":
        rate += ", at which being ahead is easier than at the decayed one of goldiprox compare"
    out.print(f"One seed ({result['seed']}), {rate}; {result['device']}{caution}. Files: {result['out']}")
    if result["report"]:
        out.print(f"To look at, in any browser: {result['report']}")


def _why(result: dict[str, Any]) -> str | None:
    """Which sequence was taken and why, where two were thought of."""
    sequence, proxy = result["sequence"], result["proxy"]
    if sequence["rehearsed"]:
        said = in_words(sequence["by"], sequence["rehearsed"], proxy["name"])
    elif sequence["too_small"]:
        said = unasked_in_words(sequence["too_small"], proxy["name"])
    else:
        return None
    return f"The sequence was recorded by {sequence['by']}: {said}."


def _next(result: dict[str, Any], config: RunConfig) -> None:
    # Another architecture where that takes seconds; else the same one from other weights.
    fast = config.data.data in SOURCES and result["device"] != "cpu"
    other = "--model small_cnn" if fast else f"--model {config.model} --seed {config.seed + 1}"
    next_command(f"train --sequence {quote(result['sequence']['path'])} {other}{o.data_flags(config)}")
