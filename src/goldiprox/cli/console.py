"""What a person sees: progress and messages on stderr, results on stdout."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from goldiprox.data.fingerprint import short
from goldiprox.loop import OnStep
from goldiprox.outputs import as_json

# Without markup: names of files and messages may hold brackets.
out = Console(highlight=False, soft_wrap=True, markup=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


class Bars:
    """A progress bar a stage: steps, rate, time left, the latest accuracy."""

    @contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[OnStep]:
        columns = [SpinnerColumn(), TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn()]
        columns += [
            TextColumn("{task.fields[rate]:>10}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[accuracy]}"),
        ]
        with Progress(*columns, console=err) as progress:
            task = progress.add_task(title, total=total, rate="", accuracy="")

            def on_step(step: int, latest: Mapping[str, Any]) -> None:
                speed = progress.tasks[task].speed
                accuracy = f"accuracy {latest['accuracy']:.3f}" if "accuracy" in latest else ""
                progress.update(task, completed=step, rate=f"{speed:.0f} steps/s" if speed else "", accuracy=accuracy)

            yield on_step
            if total is None:
                progress.update(task, total=progress.tasks[task].completed)


def printable(text: str) -> str:
    """Text from files without what would command the terminal: control characters as Python writes them."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    out.file.write(as_json(value))


def readable(value: Any) -> str:
    """A value from a file or a result, for people."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {readable(v)}" for k, v in value.items())
    if isinstance(value, str) and value.startswith("sha256:"):
        return short(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def facts(title: str, rows: list[list[str]]) -> Table:
    """Names and values, without a head."""
    made = Table(title=Text(title), title_justify="left", show_header=False)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def table(title: str, headers: list[str], rows: list[list[str]]) -> Table:
    """Figures in columns."""
    made = Table(title=Text(title), title_justify="left")
    for number, header in enumerate(headers):
        made.add_column(header, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def next_command(arguments: str) -> None:
    """What to try next, spelt so that it runs from here."""
    out.print(Text.assemble("\nNext: ", (f"{program()} {arguments}", "bold")))


def show_trackers(names: Sequence[str], folder: Path) -> None:
    """Where the curves are to be seen."""
    shown = {
        "tensorboard": f"tensorboard --logdir {shlex.quote(str(folder))}",
        "wandb": "where W&B keeps your runs; of an offline run: wandb sync " + shlex.quote(str(folder / "wandb")),
        "mlflow": "mlflow ui",
        "trackio": "trackio show --project goldiprox",
    }
    for name in names:
        out.print(f"Curves: {shown[name]}")


def program() -> str:
    """How this program is called from here."""
    if shutil.which("goldiprox"):
        return "goldiprox"
    called = Path(sys.argv[0])
    return str(called) if called.name == "goldiprox" else "python -m goldiprox"


def failure(message: str, label: str = "error:") -> None:
    err.print(Text.assemble((label, "bold red"), " ", printable(message)))


def success(message: str) -> None:
    out.print(Text.assemble(("ok", "green"), "   ", message))


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def times(factor: float | None) -> str:
    return "?x" if factor is None else f"{factor:.1f}x" if factor >= 1 else f"{factor:.2f}x"
