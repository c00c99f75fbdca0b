"""Several processes record one sequence: each scores a share of the candidates, rank 0 writes."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

from torch import nn

from goldiprox.choices import Recorder
from goldiprox.data import Batch, iterate
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import Forward, device_of
from goldiprox.ranks import Ranks
from goldiprox.selection import CandidateSampler, Selector

Update = Literal["replicated", "sharded"]
"""
* ``replicated``: every rank trains on all that is kept, so that all stay equal to the last bit.
* ``sharded``: each on its slice, gradients averaged; faster for a large `keep`, and rounded otherwise for another
  number of ranks.
"""


class Together:
    """What is each rank's, and what is all ranks'.

    Args:
        ranks: The processes.
        proxy: Of this process; it gets the weights of rank 0's.
        settings: What must be the same on every rank.
        candidates: Per step, over all ranks.
        keep: Likewise.
        pieces: How many passes candidates are scored in, over all ranks.
        update: How the proxy trains.
    """

    def __init__(
        self, ranks: Ranks, proxy: nn.Module, settings: str, candidates: int, keep: int, pieces: int, update: Update
    ):
        if update not in get_args(Update):
            raise UnknownName("update", update, get_args(Update))
        if candidates % pieces:
            raise ConfigError(
                f"{candidates} candidates cannot be cut into {pieces} pieces of one size; choose other --pieces, a "
                f"multiple of the number of ranks ({ranks.size})"
            )
        self._ranks, self._proxy, self._sharded = ranks, proxy, update == "sharded"
        self._scored = ranks.part(candidates)
        self._trained = ranks.part(keep) if self._sharded else slice(None)
        ranks.require_same(settings)
        ranks.same_weights(proxy)

    def forward(self, forward: Forward) -> Forward:
        """How the proxy is called in training."""
        if not self._sharded:
            return forward
        averaged = nn.parallel.DistributedDataParallel(self._proxy, process_group=self._ranks.group)
        return lambda model, x: forward(averaged, x)  # noqa: ARG005

    def batches(
        self,
        select: Selector,
        sampler: CandidateSampler,
        recorder: Recorder,
        load: Callable[..., Iterator[Batch]],
        source: Any,
    ) -> Iterator[Batch]:
        """What this rank trains on, step by step; what all keep is taken down.

        Args:
            select: Keeps some.
            sampler: Gives the candidates of all ranks.
            recorder: Takes down.
            load: Gives batches for ids.
            source: Gives what is kept.
        """
        device, seed = device_of(self._proxy), sampler.seed
        for batch in load(ids[self._scored] for ids in sampler.batches(select.step)):
            kept = select.choose_together(self._proxy, batch)
            recorder.append(kept, select.chosen)
            yield from iterate(source, [kept[self._trained]], device=device, seed=seed)
