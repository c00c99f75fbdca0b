"""Examples that one process has loaded and another is to train on."""

import torch
from jaxtyping import Int
from torch import Tensor

from goldiprox.data.batch import Batch, map_tensors
from goldiprox.errors import DataError
from goldiprox.ranks import Ranks


def exchange(ranks: Ranks, batch: Batch, kept: Int[Tensor, " k"], part: slice) -> Batch:
    """The examples of a part of the kept ids, each of which lies in the batch of one rank.

    Args:
        ranks: Every one of them calls this.
        batch: What this one has loaded.
        kept: Ids, the same on every rank.
        part: Which of them this rank gets.
    """
    place = {id: row for row, id in enumerate(batch.ids.tolist())}
    mine = [(position, place[id]) for position, id in enumerate(kept.tolist()) if id in place]
    positions, rows = torch.tensor(mine, dtype=torch.int64).view(-1, 2).to(batch.ids.device).T

    def send(values: Tensor) -> Tensor:
        whole = values.new_zeros(len(kept), *values.shape[1:])
        whole[positions] = values[rows]
        return ranks.combine(whole)[part]

    _require_tensors(batch.x)
    _require_tensors(batch.y)
    return Batch(kept[part], map_tensors(send, batch.x), map_tensors(send, batch.y))


def _require_tensors(value: object) -> None:
    """Raises where there is something that is not a tensor."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for inner in value:
            _require_tensors(inner)
    elif not isinstance(value, Tensor):
        raise DataError(
            f"ranks send one another tensors, and the batch holds {type(value).__name__}; give the Selector fetch=, a "
            f"function that loads the batch of some ids"
        )
