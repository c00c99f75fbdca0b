"""Figure 4: a large model on the sequence that a small one chose."""

from dataclasses import replace
from typing import Any

import numpy as np

from goldiprox import plots
from goldiprox.analysis import spearman
from goldiprox.paper.lab import Lab
from goldiprox.paper.label_noise import final_accuracy, is_above
from goldiprox.paper.outcome import Outcome
from goldiprox.paper.selections import Selection
from goldiprox.paper.worlds import World
from goldiprox.prepare import DataConfig
from goldiprox.store import Runs

CLAIM = (
    "a sequence chosen by a small proxy trains a larger model of another architecture faster than uniform, and the "
    "reducible losses of the two correlate in rank"
)
SETTINGS = {
    "paper": {"rule": "top_k", "schedule": "constant"},
    "practice": {"rule": "gumbel_top_k", "schedule": "cosine"},
}
TITLES = {"paper": "constant rate, top-k", "practice": "cosine rate, Gumbel top-k"}
STYLES = {
    "sequence": {"color": "#D55E00", "label": "on the proxy's sequence"},
    "itself": {"color": "#0072B2", "label": "selecting for itself"},
    "uniform": {"color": "#009E73", "label": "uniform"},
}


def fig4(lab: Lab) -> Outcome:
    """Accuracy of the large model on three sequences, and the rank correlation with its proxy, in two settings."""
    found = {name: _runs(lab, **settings) for name, settings in SETTINGS.items()}
    accuracy = {s: {m: final_accuracy(found[s][m]) for m in STYLES} for s in found}
    correlations = {s: _correlations(found[s]["proxy"], found[s]["sequence"]) for s in found}
    paying = {s: _paying(found[s]["sequence"], found[s]["uniform"]) for s in found}
    checks = {}
    for s in found:
        checks |= {
            f"{TITLES[s]}: the sequence reaches uniform's final accuracy in fewer steps": (paying[s]["speedup"] or 0)
            > 1,
            f"{TITLES[s]}: the sequence ends above uniform": is_above(accuracy[s]["sequence"], accuracy[s]["uniform"]),
            f"{TITLES[s]}: positive rank correlation throughout": min(map(min, correlations[s])) > 0,
        }
    parts = []
    for s in found:
        ends = ", ".join(f"{STYLES[m]['label']} {plots.spread(v)}" for m, v in accuracy[s].items())
        mean = [float(np.mean(run)) for run in correlations[s]]
        fewer = paying[s]["speedup"]
        reached = (
            f"{fewer:.1f}x fewer steps to uniform's final accuracy" if fewer else "uniform's final accuracy not reached"
        )
        last = paying[s]["last_epoch_ahead"]
        ahead = "never ahead of uniform" if last is None else f"last ahead of uniform at epoch {last:.1f}"
        parts.append(f"{TITLES[s]}: {ends}; {reached}, {ahead}; rank correlation {plots.spread(mean, percent=False)}")
    curves = {
        s: {m: [{n: r.numbers[n] for n in ("epochs", "accuracy")} for r in runs] for m, runs in found[s].items()}
        for s in found
    }
    plan = lab.plan
    return Outcome(
        "fig4",
        CLAIM,
        f"{plan.proxy} -> {plan.large} on {plan.data}. " + ". ".join(parts),
        checks,
        {"final_accuracy": accuracy, "rank_correlation": correlations, "paying": paying, "curves": curves},
        {"fig4": lambda: _draw(found, correlations, lab)},
        [*plan.notes, "Final accuracy is the mean of the evaluations in the last tenth of training. No label noise."],
        sum(r.numbers["wall_seconds"] for by in found.values() for runs in by.values() for r in runs),
    )


def _runs(lab: Lab, *, rule: str, schedule: Any) -> dict[str, Runs]:
    plan = lab.plan
    world = World(DataConfig(plan.data, plan.data_dir))
    chooses = Selection(
        plan.proxy, "reducible_loss", plan.transfer_epochs, rule=rule, schedule=schedule, il_model=plan.proxy
    )
    proxy = lab.select(world, replace(chooses, compares=True))
    return {
        "proxy": proxy,
        "sequence": lab.train_on(world, proxy, chooses, plan.large),
        "itself": lab.select(world, replace(chooses, model=plan.large)),
        "uniform": lab.select(world, Selection(plan.large, "uniform", plan.transfer_epochs, schedule=schedule)),
    }


def _correlations(proxy: Runs, large: Runs) -> list[list[float]]:
    """For each seed and evaluation: of the reducible losses of the same candidates under both models."""
    return [
        [spearman(a, b) for a, b in zip(p.arrays["reducible"], q.arrays["reducible"], strict=True)]
        for p, q in zip(proxy, large, strict=True)
    ]


def _paying(sequence: Runs, uniform: Runs) -> dict[str, float | None]:
    """How much earlier uniform's final accuracy was reached, and until when the sequence was ahead; of seeds' means."""
    epochs = uniform[0].numbers["epochs"]
    ours, theirs = (np.mean([r.numbers["accuracy"] for r in runs], 0) for runs in (sequence, uniform))
    reached = np.flatnonzero(ours >= np.mean(final_accuracy(uniform)))
    ahead = np.flatnonzero(ours > theirs)
    return {
        "speedup": epochs[-1] / epochs[reached[0]] if len(reached) else None,
        "last_epoch_ahead": epochs[ahead[-1]] if len(ahead) else None,
        "share_of_evaluations_ahead": float((ours > theirs).mean()),
    }


def _draw(found: dict[str, dict[str, Runs]], correlations: dict[str, list[list[float]]], lab: Lab) -> Any:
    figure, axes = plots.panels(len(found), width=5.2)
    final = [a for by in found.values() for m in STYLES for r in by[m] for a in _later(r.numbers["accuracy"])]
    rights = []
    for a, (name, by_method) in zip(axes, found.items(), strict=True):
        for method, style in STYLES.items():
            runs = by_method[method]
            values = [[100 * v for v in run.numbers["accuracy"]] for run in runs]
            plots.band(a, runs[0].numbers["epochs"], values, **style)
        a.set_ylim(100 * min(final) - 2, min(100, 100 * max(final) + 1))
        a.set_xlabel(f"epoch ({lab.plan.data}, {lab.plan.proxy} to {lab.plan.large}, {TITLES[name]})", fontsize=8)
        right = a.twinx()
        plots.band(right, by_method["proxy"][0].numbers["epochs"], correlations[name], color="#999999", ls="--",
                   label="rank correlation with the proxy (right)")  # fmt: skip
        right.set_ylim(-0.05, 1)
        right.spines["top"].set_visible(False)
        right.tick_params(labelsize=8, colors="dimgrey")
        rights.append(right)
    axes[0].set_ylabel("test accuracy (%)", fontsize=9)
    rights[-1].set_ylabel("rank correlation of reducible losses", fontsize=9, color="dimgrey")
    plots.legend(figure, [*axes, *rights], 4)
    return figure


def _later(curve: list[float]) -> list[float]:
    """Without its first quarter, near chance, which would squeeze what is to be seen."""
    return curve[len(curve) // 4 :]
