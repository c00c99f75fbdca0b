"""`goldiprox paper`: the paper's figures and tables."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, failure, next_command, out, print_json
from goldiprox.paper.experiments import expand, make
from goldiprox.paper.settings import make_plan
from goldiprox.stages import Silent
from goldiprox.watch import Device, pick_device


def paper(
    name: Annotated[str, typer.Argument(help="table1, table2, fig1, fig2, fig3, fig4, theory or all.")],
    data: Annotated[str, typer.Option(help="mnist5k, mnist, qmnist, cifar10 or cinic10.")] = "mnist5k",
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie (or GOLDIPROX_DATA).")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each kind: seeds 0, 1, ... (default: 3; quick: 2).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same code in a minute or two, on few steps.")] = False,
    folder: Annotated[Path | None, typer.Option("--out", help="The folder (default: results/DATA).")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    json: o.Json = False,
) -> None:
    """Make a figure or table of the paper: numbers, picture, and whether its claim holds here.

    Finished runs are kept in OUT/runs, so a call that was interrupted goes on, and a second one only draws.
    """
    plan = make_plan(data, data_dir, (2 if quick else 3) if seeds is None else seeds, quick=quick)
    names = expand(name, plan)
    target = folder or Path("results") / (f"{data}-quick" if quick else data)
    where: Device = device  # type: ignore[assignment]
    command = "goldiprox " + " ".join(sys.argv[1:])
    results = {}
    progress = Silent() if json else Bars()
    try:
        for outcome, files in make(names, plan, target, device=pick_device(where), command=command, progress=progress):
            results[outcome.name] = {
                "sentence": outcome.sentence,
                "holds": outcome.holds,
                "checks": outcome.checks,
                "files": list(map(str, files)),
            }
            if not json:
                out.print(f"{outcome.name}: {outcome.sentence}\n  {', '.join(map(str, files))}\n")
    except KeyboardInterrupt:
        failure(f"finished runs stay in {target / 'runs'}; the same command goes on from there", label="interrupted:")
        raise
    if json:
        print_json({"out": str(target), "results": results})
    elif quick:
        next_command(f"paper {name} --data {data}")
