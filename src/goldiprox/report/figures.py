"""Learning curves and what was picked, as PNG files."""

import json
from pathlib import Path
from typing import Any

from goldiprox.errors import MissingExtra

# Colours that stay apart for colour-blind readers (Okabe & Ito 2008).
_COLOURS = {
    "uniform": "#009E73",
    "loss": "#0072B2",
    "reducible_loss": "#D55E00",
    "irreducible_loss": "#CC79A7",
}
_NAMES = {"uniform": "uniform", "loss": "high loss", "reducible_loss": "reducible loss (sequence)"}


def draw_run(folder: Path, result: dict[str, Any]) -> list[Path]:
    """Draws a finished run's figures into its folder."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "drawing figures") from None
    curves = json.loads((folder / "curves.json").read_text())
    title = f"{result['data']}, {result['model']['name']}, seed {result['seed']}"
    paths = []

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        steps = [e["step"] for e in curve["evaluations"]]
        axes.plot(steps, [100 * e["accuracy"] for e in curve["evaluations"]], **_style(name))
    target = 100 * result["results"]["uniform"]["accuracy"]
    _mark(axes, target, "uniform,\nfinal")
    best = max(100 * e["accuracy"] for c in curves.values() for e in c["evaluations"])
    axes.set_ylim(max(0, min(target, best) - 45), min(100.5, best + 4))
    axes.set(xlabel=f"training step ({title})", ylabel="test accuracy (%)")
    paths.append(_save(figure, folder / "accuracy.png"))

    if result["corrupted"]["data"] > 0:
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for name, curve in curves.items():
            steps = [e["step"] for e in curve["evaluations"]]
            axes.plot(steps, [100 * s for s in curve["corrupted"]], **_style(name))
        share = 100 * result["corrupted"]["data"]
        _mark(axes, share, "in the\ndata")
        axes.set_ylim(bottom=0)
        axes.set(xlabel=f"training step ({title})", ylabel="corrupted examples among the picks (%)")
        paths.append(_save(figure, folder / "corrupted.png"))
    return paths


def _mark(axes: Any, height: float, text: str) -> None:
    """A level, named at the right edge where no curve runs."""
    axes.axhline(height, color="grey", lw=0.8, ls=":")
    place = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
    axes.annotate(text, (1, height), va="center", fontsize=8, color="dimgrey", **place)


def _style(name: str) -> dict[str, Any]:
    return {"label": _NAMES.get(name, name), "color": _COLOURS.get(name), "lw": 1.8}


def _save(figure: Any, path: Path) -> Path:
    for side in ("top", "right"):
        for axes in figure.axes:
            axes.spines[side].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)  # where no curve runs
    figure.savefig(path, dpi=150)
    return path
