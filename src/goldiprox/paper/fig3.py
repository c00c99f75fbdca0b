"""Figure 3: whether inputs of white noise are picked, and under which conditions."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from goldiprox import plots
from goldiprox.data.sources import CIFAR10_STATS, MNIST_STATS
from goldiprox.paper.lab import Lab
from goldiprox.paper.label_noise import is_above
from goldiprox.paper.outcome import Outcome
from goldiprox.paper.selections import Selection
from goldiprox.paper.settings import DIGITS, Plan
from goldiprox.paper.worlds import World
from goldiprox.prepare import DataConfig
from goldiprox.store import Runs

SHARE = 0.2
NEAR = 0.05
CLAIM = (
    "with 20% white-noise inputs, they make up about 20% of what BALD picks after a warm-up, and fewer of what "
    "reducible loss picks"
)


@dataclass(frozen=True)
class Condition:
    """One line of the grid: data, and how BALD and the holdout model are trained there."""

    world: World
    bald: Selection
    reducible: Selection


def conditions(plan: Plan) -> dict[str, Condition]:
    """The paper's setting, and each of its unstated or doubtful parts changed alone."""
    data = DataConfig(plan.data, plan.data_dir, white_noise=SHARE)
    warm_up = 1 if plan.white_epochs < 10 else 2
    bald = Selection(plan.model, "bald", plan.white_epochs, dropout=0.5, lr=5e-3, warm_up=0 if plan.quick else warm_up)
    base = Condition(World(data), bald, Selection(plan.model, "reducible_loss", plan.white_epochs))
    mean, std = ((MNIST_STATS if plan.data in DIGITS else CIFAR10_STATS)[k][0] for k in ("mean", "std"))
    unit = (round(255 * mean), min(255, round(255 * (mean + std))))
    grid = {
        "as in the paper": base,
        "noise labelled at random": replace(base, world=replace(base.world, noise_labels="drawn")),
        "noise all of one class": replace(base, world=replace(base.world, noise_labels="one class")),
        "inputs from 0 to 1": replace(base, world=replace(base.world, normalised=False)),
        "noise from 0 to 1 after normalising": replace(base, world=replace(base.world, noise_range=unit)),
        "dropout 0.1": replace(base, bald=replace(bald, dropout=0.1)),
        "learning rate 0.001": replace(base, bald=replace(bald, lr=1e-3)),
        "no warm-up": replace(base, bald=replace(bald, warm_up=0)),
        "warm-up 5 epochs": replace(base, bald=replace(bald, warm_up=5)),
        "30 dropout masks": replace(base, bald=replace(bald, num_samples=30)),
        "holdout model converged": replace(base, reducible=replace(base.reducible, checkpoint="last")),
        "holdout model chosen on the training side": replace(
            base, reducible=replace(base.reducible, checkpoint="training_side")
        ),
        "reducible loss trained as BALD": replace(base, reducible=replace(base.reducible, dropout=0.5, lr=5e-3)),
    }
    kept_short = ("as in the paper", "noise all of one class", "reducible loss trained as BALD")
    if plan.quick:
        return {name: grid[name] for name in kept_short}
    if plan.data not in DIGITS:  # the paper's figure is about digits; ten forward passes of a CNN a step add up
        kept = (*kept_short, "noise from 0 to 1 after normalising", "holdout model converged")
        return {name: c for name, c in grid.items() if name in kept}
    return grid


def fig3(lab: Lab) -> Outcome:
    """The share of white noise among the picks over training, and after the warm-up in every condition."""
    grid = conditions(lab.plan)
    base = grid["as in the paper"]
    others = {m: replace(base.reducible, acquisition=m) for m in ("uniform", "loss", "entropy")}
    found = {
        m: lab.select(base.world, s) for m, s in {"bald": base.bald, "reducible_loss": base.reducible, **others}.items()
    }
    shares, seconds = {}, sum(r.numbers["wall_seconds"] for runs in found.values() for r in runs)
    for name, c in grid.items():
        bald, reducible = lab.select(c.world, c.bald), lab.select(c.world, c.reducible)
        shares[name] = {"bald": after(bald, c.bald.warm_up), "reducible_loss": after(reducible, c.bald.warm_up)}
        if c is not base:
            changed = [
                runs
                for runs, s, b in ((bald, c.bald, base.bald), (reducible, c.reducible, base.reducible))
                if (c.world, s) != (base.world, b)
            ]
            seconds += sum(r.numbers["wall_seconds"] for runs in changed for r in runs)
    holds = {name: _holds(values) for name, values in shares.items()}
    first = shares["as in the paper"]
    checks = {
        "BALD's share is near 20% after the warm-up": _is_near(first["bald"]),
        "reducible loss picks less white noise than BALD": is_above(first["bald"], first["reducible_loss"]),
    }
    listed = ", ".join(f"{plots.LABELS[m]} {plots.spread(after(runs, base.bald.warm_up))}" for m, runs in found.items())
    yes = [name for name, both in holds.items() if both]
    fewer = [name for name, v in shares.items() if is_above(v["bald"], v["reducible_loss"])]
    came_out = (
        f"{lab.plan.model} on {lab.plan.data}, white noise among the picks after the warm-up: {listed}; of {len(grid)} "
        f"conditions the whole claim holds in {len(yes)}{': ' + ', '.join(yes) if yes else ''}, and its second half "
        f"(reducible loss picks less than BALD) in {len(fewer)}{': ' + ', '.join(fewer) if fewer else ''}"
    )
    fifths = {m: [_fifths(r.numbers["white_noise"]) for r in runs] for m, runs in found.items()}
    names = ("epochs", "accuracy", "white_noise")
    curves = {m: [{n: r.numbers[n] for n in names} for r in runs] for m, runs in found.items()}
    return Outcome(
        "fig3",
        CLAIM,
        came_out,
        checks,
        {"conditions": shares, "holds": holds, "fifths": fifths, "curves": curves},
        {"fig3": lambda: _draw(found, base, lab), "fig3-grid": lambda: _draw_grid(shares, lab)},
        lab.plan.notes,
        seconds,
    )


def after(runs: Runs, epoch: float) -> list[float]:
    """Each seed's share of white noise among what was picked after an epoch."""
    return [
        float(np.mean([s for e, s in zip(r.numbers["epochs"], r.numbers["white_noise"], strict=True) if e > epoch]))
        for r in runs
    ]


def _is_near(shares: list[float]) -> bool:
    return all(abs(s - SHARE) <= NEAR for s in shares)


def _holds(values: dict[str, list[float]]) -> bool:
    return _is_near(values["bald"]) and is_above(values["bald"], values["reducible_loss"])


def _fifths(curve: list[float]) -> list[float]:
    return [float(part.mean()) for part in np.array_split(np.asarray(curve), min(5, len(curve)))]


def _draw(found: dict[str, Runs], base: Condition, lab: Lab) -> Any:
    figure, (axes,) = plots.panels(1)
    for method, runs in found.items():
        values = [[100 * v for v in run.numbers["white_noise"]] for run in runs]
        colour = "#CC79A7" if method == "loss" else plots.COLOURS[method]  # BALD has the paper's blue here
        plots.band(axes, runs[0].numbers["epochs"], values, color=colour, label=plots.LABELS[method])
    plots.level(axes, 100 * SHARE, "in the\ndata")
    if base.bald.warm_up:
        axes.axvline(base.bald.warm_up, color="grey", lw=0.8, ls=":")
        axes.annotate("end of BALD's warm-up", (base.bald.warm_up, 1), xycoords=("data", "axes fraction"),
                      xytext=(3, -8), textcoords="offset points", fontsize=7, color="dimgrey")  # fmt: skip
    plots.from_zero(axes)
    axes.set_xlabel(f"epoch ({lab.plan.data}, {lab.plan.model})", fontsize=9)
    axes.set_ylabel("white noise among the picks (%)", fontsize=9)
    plots.legend(figure, [axes])
    return figure


def _draw_grid(shares: dict[str, dict[str, list[float]]], lab: Lab) -> Any:
    figure, (axes,) = plots.panels(1, width=7.2, height=1.2 + 0.3 * len(shares))
    names = list(shares)[::-1]
    for method, offset in (("bald", 0.12), ("reducible_loss", -0.12)):
        for row, name in enumerate(names):
            values = [100 * v for v in shares[name][method]]
            label = {"label": plots.LABELS[method]} if row == 0 else {}
            axes.plot([min(values), max(values)], [row + offset] * 2, color=plots.COLOURS[method], lw=2)
            axes.plot([np.mean(values)], [row + offset], "o", color=plots.COLOURS[method], ms=5, **label)
    axes.axvline(100 * SHARE, color="grey", lw=0.8, ls=":")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"white noise among the picks after BALD's warm-up (%, {lab.plan.data})", fontsize=8)
    axes.annotate("in the data", (100 * SHARE, 1), xycoords=("data", "axes fraction"), fontsize=7, color="dimgrey")
    plots.legend(figure, [axes])
    return figure
