"""Figure 1: what is picked when a tenth of the labels is wrong."""

from typing import Any

from goldiprox import plots
from goldiprox.paper.lab import Lab
from goldiprox.paper.label_noise import METHODS, TITLES, is_above, label_noise_runs, overall, seconds_of
from goldiprox.paper.outcome import Outcome
from goldiprox.store import Runs

CLAIM = (
    "with 10% uniform label noise, high-loss picks are overwhelmingly corrupted, and reducible and irreducible loss "
    "avoid corrupted points"
)


def fig1(lab: Lab) -> Outcome:
    """The share of corrupted picks over training, method by method."""
    found = label_noise_runs(lab)
    in_data = found["clean"]["uniform"][0].numbers["mislabelled_in_data"]
    shares = {h: {m: overall(found[h][m], "mislabelled") for m in METHODS} for h in found}
    checks = {}
    for name, by_method in shares.items():
        loss, reducible, irreducible = (by_method[m] for m in ("loss", "reducible_loss", "irreducible_loss"))
        checks |= {
            f"{TITLES[name]}: high loss picks more wrong labels than the data has": min(loss) > in_data,
            f"{TITLES[name]}: reducible loss picks fewer than the data has": max(reducible) < in_data,
            f"{TITLES[name]}: irreducible loss picks fewest": is_above(reducible, irreducible),
        }
    checks["high-loss picks are mostly wrong labels"] = min(shares["clean"]["loss"]) > 0.5
    clean = shares["clean"]
    listed = ", ".join(f"{plots.LABELS[m]} {plots.spread(clean[m])}" for m in METHODS)
    noisy = plots.spread(shares["noisy"]["reducible_loss"])
    came_out = f"wrong labels are {100 * in_data:.1f}% of the data, and among the picks of {listed} ({TITLES['clean']})"
    came_out += f"; reducible loss with a {TITLES['noisy']} {noisy}"
    return Outcome(
        "fig1",
        CLAIM,
        f"{lab.plan.model} on {lab.plan.data}: {came_out}",
        checks,
        {"in_data": in_data, "overall": shares, "curves": curves(found)},
        {"fig1": lambda: _draw(found, in_data, lab)},
        lab.plan.notes,
        seconds_of(found),
    )


def curves(found: dict[str, dict[str, Runs]]) -> dict[str, Any]:
    """Everything that figures 1 and 2 show, seed by seed."""
    names = ("epochs", "accuracy", "mislabelled", "coverage")
    return {
        h: {m: [{n: r.numbers[n] for n in names} for r in runs] for m, runs in by.items()} for h, by in found.items()
    }


def _draw(found: dict[str, dict[str, Runs]], in_data: float, lab: Lab) -> Any:
    figure, axes = plots.panels(len(found))
    for a, (name, by_method) in zip(axes, found.items(), strict=True):
        for method, runs in by_method.items():
            values = [[100 * v for v in run.numbers["mislabelled"]] for run in runs]
            plots.band(a, runs[0].numbers["epochs"], values, color=plots.COLOURS[method], label=plots.LABELS[method])
        plots.level(a, 100 * in_data, "in the\ndata")
        plots.from_zero(a)
        a.set_xlabel(f"epoch ({lab.plan.data}, {lab.plan.model}, {TITLES[name]})", fontsize=9)
    axes[0].set_ylabel("corrupted points among the picks (%)", fontsize=9)
    plots.legend(figure, axes)
    return figure
