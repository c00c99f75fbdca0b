"""The runs behind figures 1 and 2: a tenth of the training labels drawn at random."""

from collections.abc import Sequence

import numpy as np

from goldiprox.paper.lab import Lab
from goldiprox.paper.selections import Selection
from goldiprox.paper.worlds import World
from goldiprox.prepare import DataConfig
from goldiprox.store import Runs

NOISE = 0.1
METHODS = ("uniform", "loss", "ordered_loss", "irreducible_loss", "reducible_loss")
USES_HOLDOUT = ("irreducible_loss", "reducible_loss")
HOLDOUTS = {"clean": 0.0, "noisy": NOISE}
TITLES = {"clean": "clean holdout", "noisy": "holdout as noisy"}


def label_noise_runs(lab: Lab) -> dict[str, dict[str, Runs]]:
    """Every method's runs, for a clean holdout and for one with as many wrong labels as the training side."""
    plan = lab.plan
    found: dict[str, dict[str, Runs]] = {}
    for name, holdout_noise in HOLDOUTS.items():
        found[name] = {}
        for method in METHODS:
            # What looks at no holdout trains on the same data in both cases: one run serves both.
            if method not in USES_HOLDOUT and name != "clean":
                found[name][method] = found["clean"][method]
                continue
            world = World(DataConfig(plan.data, plan.data_dir, noise=NOISE, holdout_noise=holdout_noise))
            found[name][method] = lab.select(world, Selection(plan.model, method, plan.noisy_epochs))
    return found


def final_accuracy(runs: Runs) -> list[float]:
    """Each seed's accuracy, as the mean of the evaluations in the last tenth of training."""
    return [float(np.mean(run.numbers["accuracy"][-max(1, len(run.numbers["accuracy"]) // 10) :])) for run in runs]


def overall(runs: Runs, what: str) -> list[float]:
    """Each seed's share of such picks over all of training."""
    return [run.numbers[f"{what}_overall"] for run in runs]


def seconds_of(found: dict[str, dict[str, Runs]]) -> float:
    unique = {id(runs): runs for by_method in found.values() for runs in by_method.values()}
    return sum(run.numbers["wall_seconds"] for runs in unique.values() for run in runs)


def is_above(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the lowest of one is above the highest of the other."""
    return min(a) > max(b)
