"""Section 5 where everything is exact: the identity, and what each approximation of it costs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from goldiprox.analysis import share_of_best, spearman
from goldiprox.paper.exact import (
    Belief,
    GaussianBelief,
    Hypotheses,
    Points,
    approximations,
    drop_in_holdout_loss,
    gain_by_definition,
    gain_by_symmetry,
)
from goldiprox.randomness import derive

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
NUM_RELEVANT, NUM_IRRELEVANT = 10, 5
Problem = tuple[Belief, Callable[[int], Points], Callable[[int], Points]]
"""(prior, what draws training points, what draws holdout points)"""


def gaussian_problem(seed: int) -> Problem:
    """Linear regression. A tenth of the training labels is far off; a fifth of the inputs never occur in the holdout.

    Those that do not occur lie along directions of their own, so that they tell nothing about the holdout.
    """
    rng = np.random.default_rng(derive("gaussian problem", seed))
    width = NUM_RELEVANT + NUM_IRRELEVANT
    truth, noise = rng.normal(size=width), 0.5
    prior = GaussianBelief(np.zeros(width), np.eye(width), noise)

    def inputs(n: int, irrelevant: float) -> np.ndarray:
        is_irrelevant = rng.random(n) < irrelevant
        mask = np.where(is_irrelevant[:, None], np.arange(width) >= NUM_RELEVANT, np.arange(width) < NUM_RELEVANT)
        return rng.normal(size=(n, width)) * mask

    def labels(x: np.ndarray, wrong: float) -> np.ndarray:
        scale = np.where(rng.random(len(x)) < wrong, 4.0, np.sqrt(noise))
        return x @ truth + scale * rng.normal(size=len(x))

    def training(n: int) -> Points:
        x = inputs(n, 0.2)
        return Points(x, labels(x, 0.1))

    def holdout(n: int) -> Points:
        x = inputs(n, 0.0)
        return Points(x, labels(x, 0.0))

    return prior, training, holdout


def discrete_problem(seed: int, num_hypotheses: int = 4_000) -> Problem:
    """Two classes told apart by one of many classifiers, a tenth of the labels drawn evenly.

    A fifth of the training inputs lie along a direction of their own, which the holdout does not have. There are
    few inputs, so that the hypotheses lie close and the data never settles on a single one.
    """
    rng = np.random.default_rng(derive("discrete problem", seed))
    width = 4
    weights = 1.5 * rng.normal(size=(num_hypotheses, width, 2))
    truth, label_noise = int(rng.integers(num_hypotheses)), 0.1

    def draw(n: int, irrelevant: float) -> Points:
        is_irrelevant = rng.random(n) < irrelevant
        mask = np.where(is_irrelevant[:, None], np.arange(width) == width - 1, np.arange(width) < width - 1)
        x = rng.normal(size=(n, width)) * mask
        gumbel = -np.log(-np.log(rng.random((n, 2))))
        y = (x @ weights[truth] + gumbel).argmax(1)
        return Points(x, np.where(rng.random(n) < label_noise, rng.integers(0, 2, n), y))

    return Hypotheses(weights, label_noise).prior(), lambda n: draw(n, 0.2), lambda n: draw(n, 0.0)


PROBLEMS: dict[str, Callable[[int], Problem]] = {"gaussian": gaussian_problem, "discrete": discrete_problem}


def study(
    name: str, seed: int, *, num_holdout: int, num_points: int, ratios: Sequence[float] = RATIOS
) -> dict[str, Any]:
    """How well each approximation ranks points against the exact gain, as D_t grows against the holdout.

    Args:
        name: Of the problem.
        seed: Of everything in it.
        num_holdout: The size of the holdout.
        num_points: How many candidates are ranked.
        ratios: Sizes of D_t, relative to the holdout.
    """
    prior, training, draw_holdout = PROBLEMS[name](seed)
    holdout, points = draw_holdout(num_holdout), training(num_points)
    pool = training(round(max(ratios) * num_holdout))
    error, correlation, best = 0.0, {}, {}
    for ratio in ratios:
        seen = pool[slice(0, round(ratio * num_holdout))]
        belief = prior.given(seen)
        exact = gain_by_definition(belief, points, holdout)
        error = max(error, float(np.abs(exact - gain_by_symmetry(belief, points, holdout)).max()))
        scores = approximations(prior, seen, points, holdout)
        scores["drop in the holdout's loss"] = drop_in_holdout_loss(belief, points, holdout)
        for score, values in scores.items():
            correlation.setdefault(score, []).append(spearman(values, exact))
            best.setdefault(score, []).append(share_of_best(values, exact))
    return {"identity_error": error, "correlation": correlation, "share_of_best": best}
