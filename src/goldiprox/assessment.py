"""What a model thinks of examples that it never saw: their losses, and what it holds against their labels."""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from goldiprox.data import Batch, iterate
from goldiprox.forward import Forward, PerExampleLoss, call, check_losses, cross_entropy, device_of, is_image
from goldiprox.irreducible import rivals
from goldiprox.loop import outputs
from goldiprox.ranks import Ranks

T = TypeVar("T")
PRIOR = 4.0
"""Of the logarithm of the sharpness: the inverse of its variance."""
MISSED = 30
"""Of fewer examples than this a share is too uncertain: by a fifth and more."""


def score(il_model: nn.Module, data: Any, ids: np.ndarray, **settings: Any) -> Float[Tensor, " n"]:
    """The losses of these ids under a model in evaluation mode; arguments as for `assess`."""
    return assess(il_model, data, ids, **settings)[:, 0]


def assess(
    il_model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    batch_size: int | None = None,
    num_workers: int | None = None,
) -> Float[Tensor, "n 3"]:
    """For each of these ids its loss under a model in evaluation mode, and beside it the `rivals` of its label.

    These are NaN where the output is not class logits.

    Args:
        il_model: The model.
        data: The base data set.
        ids: The examples to score.
        loss: One loss per example.
        forward: How the model is called.
        batch_size: Examples per pass. None: as many as fit on a GPU, up to 8,192.
        num_workers: Loading processes, for data that is not resident.
    """
    settings: dict[str, Any] = {"forward": forward, "batch_size": batch_size, "num_workers": num_workers}
    parts = list(
        _passes(lambda batch, output: _losses_and_rivals(loss, output, batch), il_model, data, ids, **settings)
    )
    return torch.cat(parts).cpu() if parts else torch.empty(0, 3)


def _passes(
    each: Callable[[Batch, Any], T],
    il_model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    batch_size: int | None = None,
    **settings: Any,
) -> Iterator[T]:
    """What `each` makes of batches and outputs; where no size is given, of smaller ones when memory runs out."""
    size, done = batch_size or passes_of(device_of(il_model)), 0
    while done < len(ids):
        try:
            for batch, output in outputs(il_model, data, ids[done:], batch_size=size, **settings):
                yield each(batch, output)
                done += batch.num_examples
        except torch.cuda.OutOfMemoryError:
            if batch_size is not None or size == 1:
                raise
            size //= 2


def missed(found: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
    """Of what `assess` found, 1 for each label that is not the model's first choice."""
    return (~(found[:, 2] < 0)).double()


def _losses_and_rivals(loss: PerExampleLoss, output: Any, batch: Batch) -> Tensor:
    losses = loss(output, batch.y)
    check_losses(losses, batch.num_examples)
    losses = losses.float()
    if loss is not cross_entropy or output.shape[1] < 2:
        return torch.stack([losses, *[torch.full_like(losses, torch.nan)] * 2], 1)
    return torch.stack([losses, *rivals(output.float(), batch.y)], 1)


def assess_together(ranks: Ranks, il_model: nn.Module, data: Any, ids: np.ndarray, **settings: Any) -> Tensor:
    """What `assess` gives, each rank having scored a share: whole passes, so that every pass is one that it makes.

    Args:
        ranks: Every one of them calls this, with the same model.
        il_model: The model.
        data: The base data set.
        ids: The examples to score, over all ranks.
        settings: As for `assess`, without `batch_size`.
    """
    size = passes_of(device_of(il_model))
    num_passes = -(-len(ids) // size)
    ends = [size * (num_passes * (rank + 1) // ranks.size) for rank in range(ranks.size)]
    parts = np.split(ids, ends[:-1])
    rows = max(len(part) for part in parts)
    mine = assess(il_model, data, parts[ranks.rank], batch_size=size, **settings)
    everyone = ranks.gather(nn.functional.pad(mine, (0, 0, 0, rows - len(mine))).to(ranks.device)).cpu()
    return torch.cat([found[: len(part)] for found, part in zip(everyone, parts, strict=True)])


def passes_of(device: torch.device | str) -> int:
    """Examples per pass while scoring; on the CPU what a loss is rounded to depends on it."""
    return 8192 if torch.device(device).type == "cuda" else 2048


def sharpness(
    il_model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    forward: Forward = call,
    num_workers: int | None = None,
) -> tuple[float, Tensor]:
    """What logits are best multiplied with, judged by the cross-entropy of these ids; and which of these it misses.

    The inverse of their temperature (Guo, Pleiss, Sun & Weinberger 2017). Above 1 for a model that is not sure enough,
    such as one that learnt from blends. Few examples, or a handful that are all right, say little: they count against a
    prior around 1 that is worth a few of them.

    Args:
        il_model: Gives class logits.
        data: The base data set.
        ids: Examples that it did not learn from.
        forward: How the model is called.
        num_workers: Loading processes, for data that is not resident.
    """

    def on_host(batch: Batch, output: Tensor) -> tuple[Tensor, Tensor]:
        return output.cpu().double(), batch.y.cpu().long()

    found = _passes(on_host, il_model, data, ids, forward=forward, num_workers=num_workers)
    logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    own = logits.gather(1, labels[:, None])[:, 0]
    low, high = -4.0, 4.0  # of the logarithm
    for _ in range(50):  # where the slope of the summed cross-entropy and of the prior changes sign
        middle = (low + high) / 2
        expected = ((logits * math.exp(middle)).softmax(1) * logits).sum(1)
        slope = math.exp(middle) * float((expected - own).sum()) + PRIOR * middle
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp((low + high) / 2), (logits.argmax(1) != labels).double()


def misses_more(missed: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> bool:
    """Whether a model misses more than another, of the same examples, by more than two standard errors.

    Losses reward a model that learnt how labels go wrong; accuracy on noisy labels is the more reliable judge (Chen,
    Ye, Chen, Zhao & Heng 2021).
    """
    worse = missed - other
    error = worse.std() / len(worse) ** 0.5 if len(worse) > 1 else 0.0
    return bool(worse.mean() > 2 * error)


def underfit(il_model: nn.Module, data: Any, learnt: np.ndarray, others: Tensor, **settings: Any) -> float:
    """The share that a model misses of what it learnt, divided by the share that it misses of other examples.

    Near 0 where it knows by heart what it learnt: more examples are what it lacks. Near 1 where it is too small to
    learn more, or where there is nothing more to learn. 0 too where it misses too few to tell.

    Args:
        il_model: Gives class logits.
        data: The base data set.
        learnt: What it learnt; of these as many are tried as there are others.
        others: Which of these it misses, as `sharpness` says.
        settings: As for `assess`.
    """
    tried = learnt[np.linspace(0, len(learnt) - 1, min(len(learnt), len(others))).astype(int)]
    own = missed(assess(il_model, data, tried, **settings))
    enough = min(int(own.sum()), int(others.sum())) >= MISSED
    return float(own.mean() / others.double().mean()) if enough else 0.0


def mirrored(
    il_model: nn.Module, data: Any, others: np.ndarray, misses: Tensor, *, guess: float, **settings: Any
) -> float | None:
    """What a model that never saw mirrored images knows of such, divided by what it knows of others: how often it is
    right, beyond one answer for all.

    Near 1 where what is mirrored is of the same kind: animals, cars. Far below where it is not: digits. None for what
    is no image, where it knows nothing, and where it misses too few for more images to be worth much.

    Args:
        il_model: Gives class logits.
        data: The base data set.
        others: Examples that it did not learn from.
        misses: Which of these it misses, as `sharpness` says.
        guess: How often one answer for all would be right.
        settings: As for `assess`, with `forward`.
    """
    forward, known = settings.pop("forward"), 1 - float(misses.double().mean()) - guess
    if known <= 0 or misses.sum() < MISSED:
        return None
    if not is_image(next(iterate(data, [torch.as_tensor(others[:2])], device=torch.device("cpu"))).x):
        return None
    found = assess(il_model, data, others, forward=lambda model, x: forward(model, x.flip(-1)), **settings)
    return max(0.0, 1 - float(missed(found).mean()) - guess) / known


def sharpened(forward: Forward, by: float) -> Forward:
    """The same forward pass, its logits multiplied."""
    return forward if by == 1 else lambda model, x: forward(model, x) * by
