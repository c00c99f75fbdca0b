"""`goldiprox bench`: how fast, as ratios measured side by side."""

import json as json_module
import logging
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from goldiprox.artifacts import versions
from goldiprox.bench import cpu, files, ranks, scale
from goldiprox.bench.timing import Measurement
from goldiprox.cli import options as o
from goldiprox.cli.console import out, print_json, table
from goldiprox.errors import UnknownName
from goldiprox.storage import write_atomically

PROFILES = 12


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="cpu, gpu, scale, files (5 GB), ranks, profile, or single ones; by default what runs here."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds that count, after one that does not.")] = 5,
    report: Annotated[Path | None, typer.Option(help="Write a report: FILE.md, and FILE.json beside it.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Fail where a ratio misses its target.")] = False,
    json: o.Json = False,
) -> None:
    """Measure speed: each line compares two things, timed in turn in this very run."""
    torch.set_num_threads(1)  # small models: several threads measure what else runs on the machine
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    on_gpu = torch.cuda.is_available()
    groups = {"cpu": cpu.benchmarks(repeats), "scale": scale.benchmarks(), "files": files.benchmarks()}
    groups |= {"ranks": ranks.benchmarks()}
    if on_gpu:
        from goldiprox.bench import gpu

        groups["gpu"] = gpu.benchmarks(repeats)
    every = {name: run for group in groups.values() for name, run in group.items()}
    asked = names or [*groups["cpu"], *(["gpu", "profile"] if on_gpu else [])]
    wanted = [single for name in asked for single in groups.get(name, [name])]
    unknown = [name for name in wanted if name not in every and not (name == "profile" and on_gpu)]
    if unknown:
        raise UnknownName("benchmark", unknown[0], [*groups, *every, *(["profile"] if on_gpu else [])])
    measured: list[Measurement] = []
    result: dict[str, Any] = {
        "command": "goldiprox " + " ".join(sys.argv[1:]),
        "machine": _machine(on_gpu),
        "versions": versions(),
        "repeats": repeats,
        "measurements": [],
        "profiles": [],
        "failed": (failed := {}),
    }
    for name in wanted:
        try:
            if name == "profile":
                result["profiles"] = _profiles(json)
                continue
            for measurement in every[name]():
                measured.append(measurement)
                result["measurements"].append(measurement.as_dict())
                if not json:
                    out.print(_line(measurement), highlight=False)
        except RuntimeError as e:  # what was measured is not to be lost with it
            failed[name] = str(e).splitlines()[0]
            out.print(f"{name} failed: {failed[name]}", highlight=False, markup=False)
        finally:
            if report:
                _write(report, result, measured)
    if json:
        print_json(result)
    else:
        out.print(table(f"{_machine(on_gpu)}, torch {torch.__version__}", _HEAD, [_row(m) for m in measured]))
    missed = [m.name for m in measured if m.is_met is False]
    if failed or (check and missed):
        out.print(f"missed: {'; '.join(missed)}; failed: {'; '.join(failed)}", markup=False)
        raise typer.Exit(1)


_HEAD = ["what", "ratio", "lowest", "highest", "target", "ours", "reference"]


def _row(m: Measurement) -> list[str]:
    target = "" if m.target is None else f"{'>=' if m.is_speedup else '<='} {m.target:g}{'' if m.is_met else ' missed'}"
    ratio = [f"{v:.3g}" for v in (m.ratio.median, m.ratio.lowest, m.ratio.highest)]
    return [m.name, *ratio, target, f"{m.ours.median:.4g}", f"{m.reference.median:.4g}"]


def _line(m: Measurement) -> str:
    return f"{m.name}: {m.ratio.median:.3g} ({m.ours.median:.4g} against {m.reference.median:.4g})"


def _machine(on_gpu: bool) -> str:
    threads = f"{torch.get_num_threads()} CPU threads"
    return f"{torch.cuda.get_device_name(0)}, {threads}" if on_gpu else f"{platform.machine()} CPU, {threads}"


def _write(report: Path, result: dict[str, Any], measured: list[Measurement]) -> None:
    """The report so far: a benchmark that is broken off leaves what it has measured."""
    write_atomically(report.with_suffix(".json"), (json_module.dumps(result, indent=2) + "\n").encode())
    write_atomically(report.with_suffix(".md"), _markdown(result, measured).encode())


def _profiles(quiet: bool) -> list[dict[str, Any]]:
    from goldiprox.bench.profile import profile_graph, profile_steps

    made = []
    for name in ("mlp128", "small_cnn", "resnet18"):
        for profile in (
            profile_graph(name, compile=False),
            profile_graph(name, compile=True),
            profile_steps(name, "eager"),
            profile_steps(name, "loader"),
        ):
            longest = [{"kernel": k[:90], "times": n, "microseconds": us} for k, n, us in profile.kernels[:PROFILES]]
            made.append(
                {
                    "title": profile.title,
                    "milliseconds": profile.milliseconds,
                    "busy": profile.busy,
                    "kernels": sum(n for _, n, _ in profile.kernels),
                    "longest": longest,
                }
            )
            if not quiet:
                out.print(f"{profile.title}: {profile.milliseconds:.3f} ms, {profile.busy:.3f} ms of them kernels")
    return made


def _markdown(result: dict[str, Any], measured: list[Measurement]) -> str:
    lines = [
        f"`{result['command']}`",
        "",
        f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}. "
        f"Each ratio is the median of {result['repeats']} rounds in which both sides were timed in turn; "
        f"times in milliseconds unless a line says otherwise.",
        "",
        f"| {' | '.join(_HEAD)} | notes |",
        f"|{'---|' * (len(_HEAD) + 1)}",
    ]
    for m in measured:
        notes = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in m.notes.items())
        lines.append(f"| {' | '.join(_row(m))} | {notes} |")
    lines += ["", *(f"{name} failed: {why}" for name, why in result["failed"].items())]
    for profile in result["profiles"]:
        lines += [
            "",
            f"### {profile['title']}",
            "",
            f"{profile['milliseconds']:.3f} ms a step, {profile['busy']:.3f} ms of them kernels, "
            f"{profile['kernels']:.0f} kernels a step; the longest:",
            "",
            "| us a step | times | kernel |",
            "|---|---|---|",
            *(f"| {k['microseconds']:.1f} | {k['times']:.1f} | `{k['kernel']}` |" for k in profile["longest"]),
        ]
    return "\n".join(lines) + "\n"
