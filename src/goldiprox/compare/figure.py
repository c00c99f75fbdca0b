"""A comparison as a picture: uniform's frontier with the methods on it, and the curves of runs of equal length."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from goldiprox import plots

# Colours that stay apart for colour-blind readers (Okabe & Ito 2008); uniform has its own.
METHOD_COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Draws into ``compare.png`` and ``compare.pdf``, a row for every schedule."""
    schedules = result["schedules"]
    figure, axes = plots.panels(2, rows=len(schedules), width=4.8, height=3.8)
    for number, (schedule, found) in enumerate(schedules.items()):
        _frontier(axes[2 * number], schedule, found, result)
        _curves(axes[2 * number + 1], schedule, found, result)
    longest = max(len(label) for axis in axes for label in axis.get_legend_handles_labels()[1])
    plots.legend(figure, axes, 3 if longest < 32 else 2)
    figure.supxlabel(_caption(result), fontsize=6.5, color="dimgrey")
    files = []
    for suffix in ("png", "pdf"):
        files.append(folder / f"compare.{suffix}")
        # Without a date in it, drawing the same numbers again gives the same file.
        figure.savefig(files[-1], dpi=160, metadata={"CreationDate": None} if suffix == "pdf" else {})
    return files


def _frontier(axes: Any, schedule: str, found: dict[str, Any], result: dict[str, Any]) -> None:
    uniform = found["uniform"]
    budgets = uniform["budgets"]
    runs = np.asarray([a["values"] for a in uniform["accuracy"]]).T
    plots.band(axes, budgets, 100 * runs, color=plots.COLOURS["uniform"], label="uniform", marker="o", ms=4)
    shown, names = [runs.ravel()], _short(found["methods"])
    if both := uniform.get("everything"):
        values = 100 * np.asarray(both["values"])
        style = {"color": plots.COLOURS["uniform"], "marker": "s", "mfc": "white", "ms": 5, "ls": "", "capsize": 2}
        spread = [[values.mean() - values.min()], [values.max() - values.mean()]]
        axes.errorbar([1], [values.mean()], yerr=spread, label="uniform, on the holdout too", **style)
        shown.append(values / 100)
    for number, (name, method) in enumerate(found["methods"].items()):
        colour = _colours(found)[number]
        for kind, marker, label in _kinds(method, names[name]):
            accuracy, worth = method[kind]["accuracy"], method[kind]["worth"]["steps"]
            mean, low, high = (100 * accuracy[k] for k in ("mean", "low", "high"))
            beside = 1.025 ** (number - (len(found["methods"]) - 1) / 2)  # so that methods do not hide each other
            axes.plot([beside, worth["times"]], [mean, mean], color=colour, lw=0.9, ls=":")
            if worth["side"]:  # it leaves the range of budgets
                arrow = ">" if worth["side"] == ">" else "<"
                axes.plot([worth["times"]], [mean], color=colour, marker=arrow, ms=4, ls="")
            style = {"color": colour, "marker": marker, "ms": 6, "ls": "", "capsize": 2, "elinewidth": 1}
            axes.errorbar([beside], [mean], yerr=[[mean - low], [high - mean]], label=label, **style)
            shown.append(np.asarray(accuracy["values"]))
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{b:g}x" for b in budgets])
    axes.minorticks_off()
    _limits(axes, np.concatenate(shown))
    axes.set_ylabel("final test accuracy (%)", fontsize=9)
    axes.set_xlabel(f"budget: multiples of {result['steps']:,} steps of {result['keep']} ({schedule} rate)", fontsize=8)


def _curves(axes: Any, schedule: str, found: dict[str, Any], result: dict[str, Any]) -> None:
    uniform = found["uniform"]
    equal = uniform["curves"][uniform["steps"].index(result["steps"])]
    later, names = [], _short(found["methods"])
    curves = [("uniform", equal, plots.COLOURS["uniform"], "-")]
    for colour, (name, method) in zip(_colours(found), found["methods"].items(), strict=True):
        for kind, _, label in _kinds(method, names[name]):
            curves.append((label, method[kind]["curve"], colour, "-" if kind == "sequence" else "--"))
    for _, curve, colour, line in curves:
        values = 100 * np.asarray(curve["accuracy"])
        plots.band(axes, curve["steps"], values.tolist(), color=colour, ls=line)
        later.append(values[:, values.shape[1] // 4 :].ravel() / 100)  # the beginning would squeeze the rest
    _limits(axes, np.concatenate(later))
    axes.set_xlabel(f"training step, runs of equal length ({schedule} rate)", fontsize=8)
    axes.set_ylabel("test accuracy (%)", fontsize=9)


def _short(names: Iterable[str]) -> dict[str, str]:
    """For the legend: long names without their middle; where that does not tell them apart, without what is common."""
    short = {name: name if len(name) <= 40 else f"{name[:19]}…{name[-20:]}" for name in names}
    told = {}
    for name, text in short.items():
        alike = [set(other.split(",")[1:]) for other in short if short[other] == text]
        common = set.intersection(*alike) if len(alike) > 1 else set()
        apart = ",".join([*(part for part in name.split(",") if part not in common), *"…"])
        told[name] = text if len(alike) == 1 else apart if common else name
    return told


def _kinds(method: dict[str, Any], name: str) -> list[tuple[str, str, str]]:
    kinds = [("sequence", "D", f"{name}: its sequence"), ("itself", "^", f"{name}: selecting for itself")]
    return [kind for kind in kinds if kind[0] in method]


def _colours(found: dict[str, Any]) -> list[str]:
    return [METHOD_COLOURS[n % len(METHOD_COLOURS)] for n in range(len(found["methods"]))]


def _limits(axes: Any, accuracies: np.ndarray) -> None:
    low, high = 100 * float(accuracies.min()), 100 * float(accuracies.max())
    margin = max(0.5, 0.08 * (high - low))
    axes.set_ylim(low - margin, min(100.0, high + margin))


def _caption(result: dict[str, Any]) -> str:
    data, wrong = result["data"], result["corrupted"]
    holdout = "none held out" if wrong["holdout"] is None else f"{100 * wrong['holdout']:.1f}% of the holdout"
    made_with = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{data['data']}, {result['proxy']} to {result['model']}; corrupted: {100 * wrong['training side']:.1f}% of "
        f"the training side, {holdout}. Mean, lowest and highest of seeds {', '.join(map(str, result['seeds']))}.\n"
        f"Dotted: to the uniform budget that reaches the same accuracy. {result['hardware']}, {made_with}."
    )
