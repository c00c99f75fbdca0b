"""What we compare with: selection as one would write it down first, in plain PyTorch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CANDIDATES, KEEP = 320, 32


def lowered(device: torch.device, precision: str) -> Callable[[], AbstractContextManager]:
    """The context that a plain loop computes in."""
    if precision == "bf16":
        return lambda: torch.autocast(device.type, torch.bfloat16)
    return nullcontext


def selecting_loop(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    irreducible: Tensor,
    *,
    steps: int,
    precision: str,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Candidates of a shuffled epoch, their losses, the highest reducible ones, a training step on those.

    Data lies on the model's device already, normalised.
    """
    context = lowered(x.device, precision)
    order, position = torch.randperm(len(x), device=x.device), 0
    for _ in range(steps):
        if position + CANDIDATES > len(order):
            order, position = torch.randperm(len(x), device=x.device), 0
        ids = order[position : position + CANDIDATES]
        position += CANDIDATES
        inputs, labels = x[ids], y[ids]
        with torch.no_grad(), context():
            losses = cross_entropy(model(inputs), labels, reduction="none")
        rows = (losses - irreducible[ids]).topk(KEEP).indices
        with context():
            loss = cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
