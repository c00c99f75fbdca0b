"""What a run shows: when an accuracy was reached, at which cost, and what was picked."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Evaluations = Sequence[Mapping[str, Any]]
REPLAYS = (1, 5, 20)
"""Over how many models the cost of a sequence is shared, in tables."""


def first_reaching(evaluations: Evaluations, accuracy: float) -> Mapping[str, Any] | None:
    """The first evaluation at which this accuracy was reached."""
    return next((e for e in evaluations if e["accuracy"] >= accuracy), None)


def speedup(
    uniform: Evaluations,
    model: Evaluations,
    proxy: Evaluations,
    *,
    paid_once: Mapping[str, float | None],
) -> dict[str, Any]:
    """How much cheaper the model reached the final accuracy of uniform training.

    ``flops`` and ``seconds`` count everything: what is paid once, the proxy up to that step, where the model may follow
    it, and the model up to that step. ``replay`` counts the model alone, as for anyone who was given the sequence.
    ``amortised`` is between the two: what is paid once is shared by so many models. All are None where the accuracy was
    not reached.

    Args:
        uniform: Evaluations of the model trained uniformly.
        model: Evaluations of the model trained on the sequence.
        proxy: Evaluations of the proxy that recorded it; none where the whole recording is among what is paid once.
        paid_once: FLOPs and seconds of the irreducible losses and, where there were two sequences, of both and of the
            rehearsals: none can be trained on before it is known which.
    """
    target = uniform[-1]
    reached = first_reaching(model, target["accuracy"])
    if reached is None:
        unknown = {"flops": None, "seconds": None}
        amortised = {str(models): dict(unknown) for models in REPLAYS}
        return {"steps": None, **unknown, "replay": dict(unknown), "amortised": amortised}
    selecting = next(e for e in proxy if e["step"] >= reached["step"]) if proxy else {"flops": 0, "seconds": 0.0}

    def factors(models: float) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for unit in ("flops", "seconds"):
            costs = [target[unit], reached[unit], selecting[unit], paid_once[unit]]
            known = [c for c in costs if c is not None]
            total = known[1] + sum(known[2:]) / models if len(known) == len(costs) else 0
            found[unit] = known[0] / total if total else None
        return found

    amortised = {str(models): factors(models) for models in REPLAYS}
    return {
        "steps": target["step"] / reached["step"],
        **factors(1),
        "replay": factors(math.inf),
        "amortised": amortised,
    }


def share(ids: np.ndarray, flags: np.ndarray) -> float:
    """The share of picks that are flagged."""
    return float(flags[ids].mean()) if len(ids) else 0.0


def share_over_time(ids: np.ndarray, flags: np.ndarray, *, keep: int, steps: Sequence[int]) -> list[float]:
    """The share of flagged picks since the step before, at each of these steps."""
    ends = [0, *steps]
    return [share(ids[a * keep : b * keep], flags) for a, b in itertools.pairwise(ends)]


def coverage_over_time(ids: np.ndarray, *, num_train: int, keep: int, steps: Sequence[int]) -> list[float]:
    """The share of the training side that has been picked at least once, after each of these steps."""
    first = np.sort(np.unique(ids, return_index=True)[1])  # where each example comes up for the first time
    return (np.searchsorted(first, np.asarray(steps) * keep) / max(num_train, 1)).tolist()


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The rank correlation of two lists of numbers; NaN where one of them is constant."""
    first, second = (ranks(np.asarray(v, np.float64)) for v in (a, b))
    first, second = first - first.mean(), second - second.mean()
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    return float(first @ second / scale) if scale > 0 else float("nan")


def share_of_best(scores: np.ndarray, truth: np.ndarray, fraction: float = 0.1) -> float:
    """Which share of the truly best is among the best by score: what counts where only the best are kept."""
    count = max(1, round(fraction * len(truth)))
    best = (set(np.argsort(-np.asarray(v), kind="stable")[:count].tolist()) for v in (scores, truth))
    return len(set.intersection(*best)) / count
