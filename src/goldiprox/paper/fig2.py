"""Figure 2: how well each choice trains when a tenth of the labels is wrong."""

from typing import Any

from goldiprox import plots
from goldiprox.paper.fig1 import curves
from goldiprox.paper.lab import Lab
from goldiprox.paper.label_noise import METHODS, TITLES, final_accuracy, is_above, label_noise_runs, seconds_of
from goldiprox.paper.outcome import Outcome
from goldiprox.store import Runs

CLAIM = (
    "with 10% uniform label noise, high loss trains far worse than uniform, irreducible loss does not beat uniform, "
    "and reducible loss is best"
)


def fig2(lab: Lab) -> Outcome:
    """Test accuracy over training, method by method, from the runs of figure 1."""
    found = label_noise_runs(lab)
    final = {h: {m: final_accuracy(found[h][m]) for m in METHODS} for h in found}
    checks = {}
    for name, by_method in final.items():
        chance = by_method["uniform"]
        checks |= {
            f"{TITLES[name]}: high loss below uniform": is_above(chance, by_method["loss"]),
            f"{TITLES[name]}: irreducible loss not above uniform": not is_above(by_method["irreducible_loss"], chance),
            f"{TITLES[name]}: reducible loss above uniform": is_above(by_method["reducible_loss"], chance),
            f"{TITLES[name]}: reducible loss above Ordered SGD": is_above(
                by_method["reducible_loss"], by_method["ordered_loss"]
            ),
        }
    listed = ", ".join(f"{plots.LABELS[m]} {plots.spread(final['clean'][m])}" for m in METHODS)
    noisy = "; ".join(
        f"{plots.LABELS[m]} with a {TITLES['noisy']} {plots.spread(final['noisy'][m])}"
        for m in ("reducible_loss", "irreducible_loss")
    )
    return Outcome(
        "fig2",
        CLAIM,
        f"final accuracy of {lab.plan.model} on {lab.plan.data} ({TITLES['clean']}): {listed}; {noisy}",
        checks,
        {"final_accuracy": final, "curves": curves(found)},
        {"fig2": lambda: _draw(found, lab)},
        [*lab.plan.notes, "Final accuracy is the mean of the evaluations in the last tenth of training."],
        seconds_of(found),
    )


def _draw(found: dict[str, dict[str, Runs]], lab: Lab) -> Any:
    figure, axes = plots.panels(len(found))
    for a, (name, by_method) in zip(axes, found.items(), strict=True):
        for method, runs in by_method.items():
            values = [[100 * v for v in run.numbers["accuracy"]] for run in runs]
            plots.band(a, runs[0].numbers["epochs"], values, color=plots.COLOURS[method], label=plots.LABELS[method])
        a.set_xlabel(f"epoch ({lab.plan.data}, {lab.plan.model}, {TITLES[name]})", fontsize=9)
    low = max(0, min(min(r.numbers["accuracy"][-1] for r in runs) for by in found.values() for runs in by.values()))
    best = max(max(r.numbers["accuracy"]) for by in found.values() for runs in by.values() for r in runs)
    for a in axes:
        # The first steps, at chance, would squeeze what is to be seen.
        a.set_ylim(100 * max(0, low - 0.08), min(100, 100 * best + 2))
    axes[0].set_ylabel("test accuracy (%)", fontsize=9)
    plots.legend(figure, axes)
    return figure
