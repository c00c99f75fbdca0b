"""Learning curves and what was picked, as PNG files."""

import json
from pathlib import Path
from typing import Any

from goldiprox import plots


def draw_run(folder: Path, result: dict[str, Any]) -> list[Path]:
    """Draws a finished run's figures into its folder."""
    curves = json.loads((folder / "curves.json").read_text())
    title = f"{result['data']}, {result['model']['name']}, seed {result['seed']}"
    method = next(iter(curves))
    paths = []

    def panel() -> tuple[Any, Any]:
        figure, axes = plots.panels(1, width=7, height=3.6)
        return figure, axes[0]

    def draw(axes: Any, name: str, values: list[float]) -> None:
        label = plots.LABELS.get(name, name) + (" (sequence)" if name == method else "")
        steps = [e["step"] for e in curves[name]["evaluations"]]
        axes.plot(steps, [100 * v for v in values], label=label, color=plots.COLOURS.get(name), lw=1.8)

    def save(figure: Any, axes: Any, path: Path) -> None:
        plots.legend(figure, [axes], columns=4)
        figure.savefig(path, dpi=150)
        paths.append(path)

    figure, axes = panel()
    for name, curve in curves.items():
        draw(axes, name, [e["accuracy"] for e in curve["evaluations"]])
    target = 100 * result["results"]["uniform"]["accuracy"]
    plots.level(axes, target, "uniform,\nfinal")
    best = max(100 * e["accuracy"] for c in curves.values() for e in c["evaluations"])
    axes.set_ylim(max(0, min(target, best) - 45), min(100.5, best + 4))
    axes.set(xlabel=f"training step ({title})", ylabel="test accuracy (%)")
    save(figure, axes, folder / "accuracy.png")

    if result["corrupted"]["data"] > 0:
        figure, axes = panel()
        for name, curve in curves.items():
            draw(axes, name, curve["corrupted"])
        plots.level(axes, 100 * result["corrupted"]["data"], "in the\ndata")
        axes.set_ylim(bottom=0)
        axes.set(xlabel=f"training step ({title})", ylabel="corrupted examples among the picks (%)")
        save(figure, axes, folder / "corrupted.png")
    return paths
