"""The examples of a sequence as a data set, for frameworks that insist on making batches themselves."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from goldiprox.errors import ConfigError, some
from goldiprox.sequence import Sequence


class Replayed(Dataset):
    """The kept examples in order, one after another: position p is example ``p % keep`` of step ``p // keep``.

    Whoever loads it must take it in order, in batches of one size. A loader that shuffles, or that makes batches of
    another size, gets an error instead of a training run on something else.

    Args:
        data: What the sequence was made from.
        sequence: Opened for all ranks.
        batch_size: Examples that one process loads at a time.
        remedy: What to do where batches come out otherwise.
    """

    def __init__(self, data: Any, sequence: Sequence, batch_size: int, remedy: str):
        sequence.require(data)
        if sequence.world_size != 1 or sequence.keep % batch_size:
            raise ConfigError(
                f"batches of {batch_size} are no parts of the {sequence.keep} examples of a step, of which rank "
                f"{sequence.rank} of {sequence.world_size} has its share; open the sequence for all ranks"
            )
        self.data, self.sequence, self.batch_size, self._remedy = data, sequence, batch_size, remedy

    def __len__(self) -> int:
        return len(self.sequence) * self.sequence.keep

    def __getitem__(self, position: int) -> Any:
        step, row = divmod(range(len(self))[position], self.sequence.keep)
        return self.data[int(self.sequence[step][row])]

    def __getitems__(self, positions: list[int]) -> list[Any]:
        first = positions[0]
        if first % self.batch_size or positions != list(range(first, first + self.batch_size)):
            raise ConfigError(
                f"the loader asks for positions {some(positions)} of the sequence, which are not a recorded batch of "
                f"{self.batch_size} in order: it shuffles, or makes other batches. {self._remedy}"
            )
        step, row = divmod(first, self.sequence.keep)
        ids = self.sequence[step][row : row + self.batch_size].tolist()
        many: Callable[[list[int]], list[Any]] | None = getattr(self.data, "__getitems__", None)
        return many(ids) if many else [self.data[id] for id in ids]
