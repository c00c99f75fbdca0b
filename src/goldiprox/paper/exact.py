"""Bayesian models whose predictive distributions are exact, and the quantities of section 5 under them.

A model here is a belief: `given` data it becomes another belief, and it gives probabilities to labels. All in
float64, so that identities hold to rounding.
"""

import functools
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from goldiprox.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Points:
    """Inputs (n, d) and their labels (n,); equal only to itself."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | np.ndarray) -> "Points":
        return Points(self.x[rows], self.y[rows])


class Belief(Protocol):
    """What is believed about labels, given the data so far."""

    def given(self, points: Points) -> "Belief":
        """The belief after these points were seen too."""
        ...

    def log_joint(self, points: Points) -> float:
        """``log p(y_1, ..., y_n | x_1, ..., x_n)``."""
        ...

    def log_each(self, points: Points) -> np.ndarray:
        """``log p(y_i | x_i)``, for each point alone."""
        ...

    def log_each_by_point_estimate(self, points: Points) -> np.ndarray:
        """The same under one parameter, the mean of those believed in: what a network that is not Bayesian has."""
        ...


@dataclass(frozen=True)
class GaussianBelief:
    """Linear regression with known noise variance and a Gaussian over the weights.

    Attributes:
        mean: Of the weights.
        covariance: Of the weights.
        noise: The variance of a label around its mean.
    """

    mean: np.ndarray
    covariance: np.ndarray
    noise: float

    def __post_init__(self):
        if self.noise <= 0:
            raise ConfigError(f"a noise variance of {self.noise} gives no density; give a positive one")

    def given(self, points: Points) -> "GaussianBelief":
        if not len(points):
            return self
        cross = self.covariance @ points.x.T
        gain = np.linalg.solve(points.x @ cross + self.noise * np.eye(len(points)), cross.T).T
        # Joseph's form stays symmetric and positive where the short one loses digits.
        kept = np.eye(len(self.mean)) - gain @ points.x
        covariance = kept @ self.covariance @ kept.T + self.noise * gain @ gain.T
        return replace(self, mean=self.mean + gain @ (points.y - points.x @ self.mean), covariance=covariance)

    def log_joint(self, points: Points) -> float:
        covariance = points.x @ self.covariance @ points.x.T + self.noise * np.eye(len(points))
        factor = np.linalg.cholesky(covariance)
        residual = np.linalg.solve(factor, points.y - points.x @ self.mean)
        return float(-0.5 * residual @ residual - np.log(np.diag(factor)).sum() - 0.5 * len(points) * np.log(2 * np.pi))

    def log_each(self, points: Points) -> np.ndarray:
        variance = np.einsum("nd,de,ne->n", points.x, self.covariance, points.x) + self.noise
        return _log_normal(points.y - points.x @ self.mean, variance)

    def log_each_by_point_estimate(self, points: Points) -> np.ndarray:
        return _log_normal(points.y - points.x @ self.mean, np.full(len(points), self.noise))


def _log_normal(residual: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return -0.5 * (residual**2 / variance + np.log(2 * np.pi * variance))


class Hypotheses:
    """A finite set of classifiers, one of which is right.

    Each gives class probabilities ``softmax(x @ weights)``, of which a known share is spread evenly over the
    classes: labels that are wrong by chance.

    Args:
        weights: (hypotheses, inputs, classes).
        label_noise: The share of labels drawn evenly.
    """

    def __init__(self, weights: np.ndarray, label_noise: float = 0.1):
        self.weights, self.label_noise = weights, label_noise
        # The holdout is looked at again after every candidate.
        self.log_likelihood = functools.lru_cache(maxsize=8)(self._log_likelihood)

    def _log_likelihood(self, points: Points) -> np.ndarray:
        """(hypotheses, n)"""
        num_classes = self.weights.shape[2]
        logits = np.einsum("nd,kdc->knc", points.x, self.weights, optimize=True)
        chosen = logits[:, np.arange(len(points)), points.y] - _log_sum_exp(logits, 2)
        return np.log((1 - self.label_noise) * np.exp(chosen) + self.label_noise / num_classes)

    def prior(self) -> "DiscreteBelief":
        """Every hypothesis equally probable."""
        return DiscreteBelief(self, np.full(len(self.weights), -np.log(len(self.weights))))


@dataclass(frozen=True)
class DiscreteBelief:
    """How probable each of finitely many hypotheses is.

    Attributes:
        hypotheses: The set.
        log_probability: Of each.
    """

    hypotheses: Hypotheses
    log_probability: np.ndarray

    def given(self, points: Points) -> "DiscreteBelief":
        unnormalised = self.log_probability + self.hypotheses.log_likelihood(points).sum(1)
        return replace(self, log_probability=unnormalised - _log_sum_exp(unnormalised, 0))

    def log_joint(self, points: Points) -> float:
        return float(_log_sum_exp(self.log_probability + self.hypotheses.log_likelihood(points).sum(1), 0))

    def log_each(self, points: Points) -> np.ndarray:
        return _log_sum_exp(self.log_probability[:, None] + self.hypotheses.log_likelihood(points), 0)

    def log_each_by_point_estimate(self, points: Points) -> np.ndarray:
        mean = np.einsum("k,kdc->dc", np.exp(self.log_probability), self.hypotheses.weights)
        return Hypotheses(mean[None], self.hypotheses.label_noise).log_likelihood(points)[0]


def _log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    return torch.logsumexp(torch.as_tensor(values), axis).numpy()


def gain_by_definition(belief: Belief, points: Points, holdout: Points) -> np.ndarray:
    """What each point tells about the holdout's labels: ``h[y_val | D_t] - h[y_val | D_t, x, y]``, jointly.

    Eq. 3 of the paper, as it stands: learn the point, look at the whole holdout again.
    """
    before = belief.log_joint(holdout)
    rows = (slice(row, row + 1) for row in range(len(points)))
    return np.array([belief.given(points[row]).log_joint(holdout) - before for row in rows])


def gain_by_symmetry(belief: Belief, points: Points, holdout: Points) -> np.ndarray:
    """The same from the other side: ``h[y | x, D_t] - h[y | x, D_val, D_t]`` (eq. 7)."""
    return belief.given(holdout).log_each(points) - belief.log_each(points)


def drop_in_holdout_loss(belief: Belief, points: Points, holdout: Points) -> np.ndarray:
    """How much the summed loss of the holdout's labels, each predicted alone, falls when a point is learnt.

    This is what section 5 sets out to minimise. It is not the joint gain: holdout labels tell about each other.
    """
    before = belief.log_each(holdout).sum()
    rows = (slice(row, row + 1) for row in range(len(points)))
    return np.array([belief.given(points[row]).log_each(holdout).sum() - before for row in rows])


def approximations(prior: Belief, seen: Points, points: Points, holdout: Points) -> dict[str, np.ndarray]:
    """Scores for points, from the exact gain's two approximations to the baselines.

    Args:
        prior: Before any data.
        seen: D_t.
        points: Candidates.
        holdout: D_val.
    """
    current, from_holdout = prior.given(seen), prior.given(holdout)
    both = current.given(holdout)
    loss = -current.log_each(points)
    estimated_loss = -current.log_each_by_point_estimate(points)
    estimated_irreducible = -from_holdout.log_each_by_point_estimate(points)
    return {
        "point estimates": estimated_loss + both.log_each_by_point_estimate(points),
        "D_t left out": loss + from_holdout.log_each(points),
        "reducible_loss": estimated_loss - estimated_irreducible,
        "loss": estimated_loss,
        "irreducible_loss": -estimated_irreducible,
    }
