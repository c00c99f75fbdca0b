"""How alike two rankings are."""

import numpy as np


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
