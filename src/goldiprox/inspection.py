"""What a sequence holds, and whether it is whole."""

from dataclasses import dataclass

import numpy as np

from goldiprox.errors import CorruptFile, some
from goldiprox.sequence import Sequence, pool_of

MAX_COUNTED = 2**22


@dataclass(frozen=True)
class Statistics:
    """What a sequence holds.

    Attributes:
        seen: Distinct examples in it.
        coverage: Their share of what was selected from (of the data set, where that is not known).
        most_repeated: How often the most frequent example occurs.
        mean_repeats: Occurrences per distinct example.
        exact: Whether all examples were counted; else one in so many, and `most_repeated` is that among those.
    """

    steps: int
    keep: int
    seen: int
    coverage: float
    most_repeated: int
    mean_repeats: float
    exact: bool = True


def statistics(sequence: Sequence) -> Statistics:
    """Coverage and repetition in one pass, in bounded memory."""
    steps, rows, length = len(sequence), len(sequence) * sequence.keep, int(sequence.header.data["length"])
    # Counted by id only where the file itself is large: the length of the data set is what a file says, and may be
    # anything.
    share = 1
    if rows <= MAX_COUNTED:
        counts = np.unique(sequence.ids, return_counts=True)[1]
    elif length <= 16 * MAX_COUNTED:
        counts = np.zeros(length, np.uint32)
        for ids in sequence.blocks():
            np.add.at(counts, ids, np.uint32(1))
        counts = counts[counts > 0]
    else:
        import torch

        from goldiprox.randomness import hash_ids

        share = -(-rows // MAX_COUNTED)
        sample = [ids[hash_ids(torch.from_numpy(ids), 0).numpy() % share == 0] for ids in sequence.blocks()]
        counts = np.unique(np.concatenate(sample), return_counts=True)[1]
    seen = min(len(counts) * share, rows)
    return Statistics(
        steps=steps,
        keep=sequence.keep,
        seen=seen,
        coverage=seen / max(pool_of(sequence.header), 1),
        most_repeated=int(counts.max(initial=0)),
        mean_repeats=rows / max(seen, 1),
        exact=share == 1,
    )


def verify(sequence: Sequence) -> None:
    """What opening does not check: that all steps are there, that none repeats an example; and all of a large file."""
    promised = sequence.header.config.get("steps")
    if isinstance(promised, int) and promised != len(sequence):
        raise CorruptFile(f"the header promises {promised:,} steps, the file holds {len(sequence):,}")
    repeated: list[int] = []
    for first, ids in sequence.step_blocks():
        ids.sort(axis=1)
        repeated += (first + (ids[:, 1:] == ids[:, :-1]).any(1).nonzero()[0]).tolist()
    if repeated:
        raise CorruptFile(f"{len(repeated):,} steps train on an example twice: steps {some(repeated)}")
