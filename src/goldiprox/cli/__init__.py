"""The command line: one sub-command per stage."""

import logging
import sys
from pathlib import Path

import typer

from goldiprox._version import __version__
from goldiprox.cli import bench, compare, data, files, materialize, paper, report, run, stages
from goldiprox.cli.console import failure
from goldiprox.errors import ConfigError, GoldiproxError, UnknownName

app = typer.Typer(
    name="goldiprox",
    help="Train faster by choosing which examples to train on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("irreducible")(stages.irreducible)
app.command("select")(stages.select)
app.command("train")(stages.train)
app.command("report")(report.report)
app.command("inspect")(files.inspect)
app.command("verify")(files.verify)
app.command("materialize")(materialize.materialize)
app.command("bench")(bench.bench)
app.command("paper")(paper.paper)
app.command("compare")(compare.compare)
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"goldiprox {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Train faster by choosing which examples to train on."""


def main() -> None:
    """The entry point: errors of ours become a message and an exit code (2: bad usage, 1: it failed)."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    sys.path.insert(0, str(Path.cwd()))  # so that package.module:callable finds what lies here
    try:
        app()
    except GoldiproxError as e:
        failure(str(e))
        sys.exit(2 if isinstance(e, ConfigError | UnknownName) else 1)
