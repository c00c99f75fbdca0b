"""Logistic regression fitted to the optimum, and fitted again with one point more: no noise of training in between."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from goldiprox.errors import NonFiniteError

TOLERANCE = 1e-7
MAX_ITERATIONS = 100


@dataclass(frozen=True)
class Examples:
    """Features (n, d) in float64, labels (n,)."""

    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor | slice) -> "Examples":
        return Examples(self.x[rows], self.y[rows])

    def and_also(self, other: "Examples") -> "Examples":
        return Examples(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]))


def losses(weights: Tensor, examples: Examples) -> Float[Tensor, "... n"]:
    """The loss of each example under weights (d, classes), or under each of several (m, d, classes)."""
    logits = examples.x @ weights
    labels = examples.y.expand(logits.shape[:-1])
    return cross_entropy(logits.movedim(-1, 1) if logits.ndim == 3 else logits, labels, reduction="none")


def fit(
    examples: Examples, num_classes: int, penalty: float = 1.0, *, start: Tensor | None = None
) -> Float[Tensor, "d c"]:
    """The weights that minimise the summed loss plus half of `penalty` times their squared norm.

    By Newton's method with halved steps; convex, so there is one answer.
    """
    weights = torch.zeros(examples.x.shape[1], num_classes, dtype=torch.float64) if start is None else start

    def objective(w: Tensor) -> Tensor:
        return losses(w, examples).sum() + penalty / 2 * (w**2).sum()

    for _ in range(MAX_ITERATIONS):
        gradient = _gradient(weights, examples) + penalty * weights
        if gradient.abs().max() < TOLERANCE:
            return weights
        direction = torch.linalg.solve(hessian(weights, examples, penalty), gradient.flatten()).view_as(weights)
        step, now = 1.0, objective(weights)
        while objective(weights - step * direction) > now and step > 1e-6:
            step /= 2
        weights = weights - step * direction
    raise NonFiniteError(f"logistic regression did not converge in {MAX_ITERATIONS} steps; raise penalty={penalty}")


def fit_with_each(
    weights: Float[Tensor, "d c"], examples: Examples, points: Examples, penalty: float = 1.0
) -> Float[Tensor, "m d c"]:
    """The optimum for the examples and one point more, for each of the points.

    Args:
        weights: The optimum for the examples alone, to start from.
        examples: What it was fitted to.
        points: Each is added alone.
        penalty: As for `fit`.
    """
    one_more = (examples.and_also(points[slice(row, row + 1)]) for row in range(len(points)))
    return torch.stack([fit(both, weights.shape[1], penalty, start=weights) for both in one_more])


def _gradient(weights: Tensor, examples: Examples) -> Tensor:
    num_classes = weights.shape[-1]
    probabilities = (examples.x @ weights).softmax(-1)
    return examples.x.T @ (probabilities - one_hot(examples.y, num_classes))


def hessian(weights: Float[Tensor, "d c"], examples: Examples, penalty: float) -> Float[Tensor, "p p"]:
    """Of the objective, with weights in row-major order."""
    probabilities = (examples.x @ weights).softmax(-1)
    size = weights.numel()
    # (sum over examples of x x^T p_a) on the diagonal of classes, minus the outer products p_a p_b.
    scaled = (examples.x[:, :, None] * probabilities[:, None, :]).flatten(1)
    whole = -scaled.T @ scaled
    blocks = whole.view(weights.shape * 2)
    for c in range(weights.shape[1]):
        blocks[:, c, :, c] += (examples.x * probabilities[:, c : c + 1]).T @ examples.x
    return whole + penalty * torch.eye(size, dtype=torch.float64)
