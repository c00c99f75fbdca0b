"""`goldiprox report`: a page to look at, of one run or of several side by side."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from goldiprox.artifacts import check_output
from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, out, print_json
from goldiprox.errors import ConfigError
from goldiprox.report.collect import read_run
from goldiprox.report.page import MAX_RUNS, NAME, is_page, write_page
from goldiprox.stages import Silent


def report(
    run: Annotated[list[Path], typer.Argument(help="Folders of finished runs, as `goldiprox run` leaves them.")],
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="The page (default: report.html, in the run's folder where there is one run)."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The package.module:callable that the data comes from; called only when given here."),
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie (or GOLDIPROX_DATA).")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Make the page of a run, or of several side by side: one file that opens anywhere, offline."""
    if len(run) > MAX_RUNS:
        raise ConfigError(f"a page shows at most {MAX_RUNS} runs, not {len(run)}; leave some out")
    path = out_file or (run[0] / NAME if len(run) == 1 else Path(NAME))
    runs = []
    progress = Silent() if json else Bars()
    with progress.stage("report", len(run) + 1) as on_step:
        for number, folder in enumerate(run, 1):
            runs.append(read_run(folder, own=data, data_dir=data_dir))
            if on_step:
                on_step(number, {})
        # A page of ours is made anew from what is there; anything else is somebody's work.
        write_page(runs, check_output(path, force=force or is_page(path)))
        if on_step:
            on_step(len(run) + 1, {})
    if show:
        webbrowser.open(path.resolve().as_uri())
    if json:
        missing = {str(folder): one.no_data for folder, one in zip(run, runs, strict=True) if one.no_data}
        return print_json({"report": str(path), "bytes": path.stat().st_size, "runs": len(runs), "no_data": missing})
    for folder, one in zip(run, runs, strict=True):
        if one.no_data:
            out.print(f"{folder}: without examples. {one.no_data}")
    return out.print(f"Wrote {path} ({path.stat().st_size / 1e6:.1f} MB): open it in any browser.")
