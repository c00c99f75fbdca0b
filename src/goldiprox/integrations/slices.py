"""What of every batch a process takes, and in how many parts: the same in every framework."""

from collections.abc import Iterator
from typing import TypeAlias

from goldiprox.errors import ConfigError
from goldiprox.selection import CandidateSampler
from goldiprox.sequence import Sequence

Batches: TypeAlias = Sequence | CandidateSampler
"""For each step the ids of all processes: recorded, or candidates to select from."""


class Slices:
    """A batch sampler: this process's contiguous part of every batch.

    Args:
        batches: The ids of all processes.
        rank: Of this process.
        world_size: How many there are.
        accumulate: Over how many batches gradients are accumulated. A step of a sequence is one update, so each is
            divided into as many; candidates are selected from batch by batch, and are not.
    """

    drop_last = True

    def __init__(self, batches: Batches, rank: int, world_size: int, *, accumulate: int = 1):
        if isinstance(batches, Sequence):
            if batches.world_size != 1:
                raise ConfigError(
                    f"the sequence was opened for rank {batches.rank} of {batches.world_size}, and would be divided a "
                    f"second time here; open it without rank= and world_size="
                )
            size, what, self.parts = batches.keep, "examples per step", accumulate
        elif isinstance(batches, CandidateSampler):
            size, what, self.parts = batches.candidates, "candidates per step", 1
        else:
            raise ConfigError(
                f"batches come from a gp.Sequence (replay) or a gp.CandidateSampler (to select from), not from "
                f"{type(batches).__name__}"
            )
        if size % (world_size * self.parts):
            raise ConfigError(
                f"{size} {what} cannot be divided among {world_size} processes"
                + (f", each accumulating gradients over {self.parts} batches" if self.parts > 1 else "")
                + f"; choose a multiple of {world_size * self.parts}, or other numbers of processes and batches"
            )
        self.batches, self.rank, self.world_size = batches, rank, world_size
        self.batch_size = size // world_size // self.parts

    def __len__(self) -> int:
        return len(self.batches) * self.parts

    def __iter__(self) -> Iterator[list[int]]:
        size = self.batch_size
        for ids in self.batches:
            first = self.rank * size * self.parts
            for part in range(self.parts):
                yield ids[first + part * size : first + (part + 1) * size]
