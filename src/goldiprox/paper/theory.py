"""Section 5: the pointwise predictive information gain, made executable."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from goldiprox import plots
from goldiprox.data import fingerprint
from goldiprox.paper import theory_exact, theory_real
from goldiprox.paper.outcome import Outcome
from goldiprox.prepare import DataConfig, prepare
from goldiprox.store import Kept, Store

CLAIM = (
    "reducible loss is the information that a point gives about the holdout's labels, in a symmetric form and with two "
    "approximations that are reasonable while D_t is small against the holdout"
)
STYLES = {
    "D_t left out": {"color": "#CC79A7", "ls": "-", "label": "exact posteriors, $D_t$ left out (eq. 8)"},
    "point estimates": {"color": "#0072B2", "ls": "-", "label": "point estimates, $D_t$ kept (eq. 7)"},
    "D_t kept": {"color": "#0072B2", "ls": "-", "label": "loss minus that with $D_t$ and holdout learnt (eq. 7)"},
    "reducible_loss": {"color": "#D55E00", "ls": "-", "label": "reducible loss (both approximations)"},
    "loss": {"color": "#009E73", "ls": "--", "label": "loss"},
    "gradient_norm": {"color": "#E69F00", "ls": "--", "label": "gradient norm"},
    "irreducible_loss": {"color": "#56B4E9", "ls": "--", "label": "minus irreducible loss"},
    "drop in the holdout's loss": {"color": "#000000", "ls": ":", "label": "fall of the holdout's summed loss"},
}
LIMIT = 1e-10


def theory(store: Store, data: DataConfig, seeds: Sequence[int], *, quick: bool) -> Outcome:
    """The identity, what its approximations cost where all is exact, and what brute force says on real images."""
    num_holdout, num_points = (30, 40) if quick else (100, 200)
    ratios = (0.1, 1.0) if quick else theory_exact.RATIOS
    exact: dict[str, list[dict[str, Any]]] = {}
    seconds = 0.0
    for name in theory_exact.PROBLEMS:
        run = functools.partial(theory_exact.study, name, num_holdout=num_holdout, num_points=num_points, ratios=ratios)
        exact[name] = []
        for seed in seeds:
            settings = {"study": name, "seed": seed, **run.keywords}
            kept = _made(store, settings, functools.partial(run, seed))
            exact[name].append(kept["result"])
            seconds += kept["seconds"]
    sizes = theory_real.QUICK if quick else theory_real.Sizes()
    prepared = prepare(data)
    real = []
    for seed in seeds:
        settings = {"study": "real", "seed": seed, "sizes": asdict(sizes), "data": fingerprint(prepared.data)}
        kept = _made(store, settings, functools.partial(theory_real.study, prepared, seed, sizes))
        real.append(kept["result"])
        seconds += kept["seconds"]
    return _outcome(exact, real, list(ratios), data, seconds)


def _made(store: Store, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    key = store.key("theory", settings)
    found = store.get(key)
    if found is None:
        start = time.perf_counter()
        found = Kept({"result": make(), "seconds": time.perf_counter() - start})
        store.put(key, settings, found)
    return found.numbers


def _outcome(
    exact: dict[str, list[dict[str, Any]]],
    real: list[dict[str, Any]],
    ratios: list[float],
    data: DataConfig,
    seconds: float,
) -> Outcome:
    error = max(run["identity_error"] for runs in exact.values() for run in runs)

    def mean(runs: list[dict[str, Any]], score: str) -> np.ndarray:
        return np.mean([run["correlation"][score] for run in runs], 0)

    left_out = {name: mean(runs, "D_t left out") for name, runs in exact.items()}
    reducible = {name: mean(runs, "reducible_loss") for name, runs in exact.items()}
    way = {
        name: {
            score: np.mean([run[name]["correlation with holdout"][score] for run in real], 0)
            for score in ("reducible_loss", "loss", "gradient_norm")
        }
        for name in ("refit", "step")
    }
    small, large = f"{ratios[0]:g}", f"{ratios[-1]:g}"
    checks = {
        f"definition and symmetric form agree to {LIMIT:g}": error < LIMIT,
        "leaving D_t out ranks best where D_t is smallest": all(v[0] == v.max() for v in left_out.values()),
        "reducible loss correlates with the exact gain at every size of D_t": all(
            (v > 0).all() for v in reducible.values()
        ),
        "on images, reducible loss foretells the holdout's loss better than loss and gradient norm do": all(
            (w["reducible_loss"] > w[other]).all() for w in way.values() for other in ("loss", "gradient_norm")
        ),
    }
    shown = "; ".join(
        f"{name}: {left_out[name][0]:.2f} to {left_out[name][-1]:.2f} for leaving D_t out, "
        f"{reducible[name][0]:.2f} to {reducible[name][-1]:.2f} for reducible loss as computed"
        for name in exact
    )
    found = (
        f"definition and symmetric form differ by at most {error:.1e}; rank correlation with the exact gain from "
        f"|D_t| / |D_val| = {small} to {large}, {shown}; on {data.data}, learning one point more changes the holdout's "
        f"loss in rank correlation {way['refit']['reducible_loss'].mean():.2f} with reducible loss, "
        f"{way['refit']['loss'].mean():.2f} with loss and {way['refit']['gradient_norm'].mean():.2f} with gradient "
        f"norm (fitted again; after one gradient step {way['step']['reducible_loss'].mean():.2f}, "
        f"{way['step']['loss'].mean():.2f} and {way['step']['gradient_norm'].mean():.2f})"
    )
    numbers = {"identity_error": error, "ratios": ratios, "exact": exact, "real": real}
    return Outcome(
        "theory",
        CLAIM,
        found,
        checks,
        numbers,
        {
            "theory-exact": lambda: _draw_exact(exact, ratios),
            "theory-real": lambda: _draw_real(real, data.data),
        },
        seconds=seconds,
    )


def _draw_exact(exact: dict[str, list[dict[str, Any]]], ratios: list[float]) -> Any:
    figure, axes = plots.panels(len(exact), width=5, height=4.2)
    titles = {"gaussian": "Bayesian linear regression", "discrete": "finite set of classifiers"}
    for a, (name, runs) in zip(axes, exact.items(), strict=True):
        for score in runs[0]["correlation"]:
            plots.band(a, ratios, [run["correlation"][score] for run in runs], **STYLES[score])
        _rank_axes(a, f"{titles[name]}: seen against held out, $|D_t| / |D_{{val}}|$", "the exact information gain")
    plots.legend(figure, axes, 3)
    return figure


def _draw_real(real: list[dict[str, Any]], data: str) -> Any:
    figure, axes = plots.panels(2, width=5, height=4.2)
    for a, way, x in zip(axes, ("refit", "step"), (real[0]["seen"], real[0]["steps"]), strict=True):
        for score in real[0][way]["correlation with holdout"]:
            plots.band(a, x, [run[way]["correlation with holdout"][score] for run in real], **STYLES[score])
    _rank_axes(
        axes[0], f"logistic regression fitted again ({data}): $|D_t| / |D_{{val}}|$", "the fall of the holdout's loss"
    )
    _rank_axes(axes[1], f"one gradient step of mlp128 ({data}): after step", "the fall of the holdout's loss")
    plots.legend(figure, axes, 3)
    return figure


def _rank_axes(axes: Any, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.axhline(0, color="grey", lw=0.8)
    axes.set_ylim(-0.6, 1.03)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(f"rank correlation with\n{y}", fontsize=9)
