"""How figures look: a mean line and a band from the lowest to the highest seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from goldiprox.errors import MissingExtra

# Colours that stay apart for colour-blind readers (Okabe & Ito 2008).
COLOURS = {
    "uniform": "#009E73",
    "loss": "#0072B2",
    "reducible_loss": "#D55E00",
    "irreducible_loss": "#CC79A7",
    "ordered_loss": "#56B4E9",
    "bald": "#0072B2",
    "entropy": "#E69F00",
    "gradient_norm": "#E69F00",
    "other": "#000000",
}
LABELS = {
    "uniform": "uniform",
    "loss": "high loss",
    "reducible_loss": "reducible loss",
    "irreducible_loss": "irreducible loss",
    "ordered_loss": "Ordered SGD",
    "bald": "BALD",
    "entropy": "entropy",
    "gradient_norm": "gradient norm",
}


def panels(count: int, *, rows: int = 1, width: float = 4.6, height: float = 3.4) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side in every row; row after row."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "drawing figures") from None
    figure = Figure(figsize=(max(6.4, width * count), height * rows + 0.6), layout="constrained")
    axes = list(np.asarray(figure.subplots(rows, count, squeeze=False), dtype=object).ravel())
    for a in axes:
        for side in ("top", "right"):
            a.spines[side].set_visible(False)
        a.tick_params(labelsize=9)
    return figure, axes


def band(axes: Any, x: Sequence[float], runs: Sequence[Sequence[float]], **style: Any) -> None:
    """The mean of several runs as a line, their lowest and highest as a band."""
    values = np.asarray(runs, np.float64)
    axes.plot(x, values.mean(0), lw=1.8, **style)
    axes.fill_between(x, values.min(0), values.max(0), color=style.get("color"), alpha=0.15, lw=0)


def level(axes: Any, height: float, text: str) -> None:
    """A level, named at the right edge where no curve runs."""
    axes.axhline(height, color="grey", lw=0.8, ls=":")
    place = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
    axes.annotate(text, (1, height), va="center", fontsize=8, color="dimgrey", **place)


def from_zero(axes: Any) -> None:
    """Begins the axis a little below zero, so that a curve at zero is not hidden by it."""
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])


def legend(figure: Any, axes: Sequence[Any], columns: int = 5) -> None:
    """One legend for all panels, above them, where no curve runs."""
    entries: dict[str, Any] = {}
    for a in axes:
        entries |= dict(zip(*reversed(a.get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns, frameon=False)


def spread(values: Sequence[float], *, percent: bool = True) -> str:
    """The mean with lowest and highest, for a sentence."""
    scale, unit, digits = (100, "%", 1) if percent else (1, "", 2)
    mean, low, high = (scale * f(values) for f in (np.mean, np.min, np.max))
    return f"{mean:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"
