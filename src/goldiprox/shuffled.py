"""A sequence in another order: what was chosen in a window of steps, dealt anew to the steps of that window.

A proxy answers its own weaknesses of the moment, which another model does not share. Dealt anew, a window keeps what
was chosen, and how often; which examples meet in a batch, and when, is left to chance.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from goldiprox.artifacts import Table

# SplitMix64 (Steele, Lea, Flood 2014), as `randomness` has it for tensors: reading a sequence loads no torch.
# A generator of NumPy's may draw otherwise in another release.
_INCREMENT, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _hash(values: np.ndarray, seed: int, window: int) -> np.ndarray:
    """64 well-mixed bits per value, other ones for every seed and window."""
    x = values.astype(np.uint64)
    for part in (np.uint64(seed & (1 << 64) - 1), np.uint64(window)):
        x = x * _INCREMENT + part
        x = (x ^ x >> np.uint64(30)) * _FIRST
        x = (x ^ x >> np.uint64(27)) * _SECOND
        x ^= x >> np.uint64(31)
    return x


def deal(ids: np.ndarray, steps: int, seed: int, window: int) -> np.ndarray:
    """An order of these ids for so many steps of one size, in which no step holds an id twice if none did before.

    Ids are sorted by their hash, so that the same ones lie side by side, and dealt to the steps like cards, one each
    round; the seats are drawn as well.

    Args:
        ids: Of all steps of a window, one step after another.
        steps: How many these are.
        seed: Of the order.
        window: The number of the window.

    Returns:
        For every place, one step after another, which of the ids goes there.
    """
    order = np.lexsort((ids, _hash(ids, seed, 2 * window)))
    seats = np.argsort(_hash(np.arange(steps), seed, 2 * window + 1), kind="stable")
    dealt = np.empty((steps, len(ids) // steps), np.int64)
    dealt[seats] = order.reshape(-1, steps).T
    return dealt.reshape(-1)


class ShuffledTable(Table):
    """The rows of a sequence's table, dealt anew window by window. Of a growing file, as soon as a window is there.

    Args:
        table: As it was recorded.
        wait: Waits for so many steps of it (None: all), and checks them.
        keep: Rows per step.
        window: Steps among which rows are dealt; the last window may have fewer.
        seed: Of the order.
    """

    def __init__(self, table: Table, wait: Callable[[int | None], Any], *, keep: int, window: int, seed: int):
        self._table, self._wait, self._keep, self._window, self._seed = table, wait, keep, window, seed
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))
        self._dealt: dict[str, tuple[int, np.ndarray]] = {}
        self.path, self.parts = table.path, []
        # Whoever is given this order, or continues in it, has to know it from the one that was recorded.
        config, own = table.header.config, {"window": int(window), "seed": int(seed)}
        before = config.get("shuffled")
        shuffled = [*before, own] if isinstance(before, list) else [own]
        self.header = replace(table.header, config={**config, "shuffled": shuffled})

    @property
    def grows(self) -> bool:  # type: ignore[override]
        return self._table.grows

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return self._table.complete

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        rows = self._table.num_rows
        return rows - rows % (self._keep * (self._window if self.grows else 1))

    def wait(self, num_rows: int | None = None) -> None:
        self._table.on_wait = self.on_wait
        self._wait(None if num_rows is None else -(-num_rows // (self._keep * self._window)) * self._window)

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        found = []
        while first < end:
            window, offset = divmod(first, self._keep * self._window)
            found.append(self._values(name, window)[offset : offset + end - first])
            first += len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.header.columns[name]), *found])

    def column(self, name: str) -> np.ndarray:
        return self.rows(name, 0, self.num_rows)

    def _values(self, name: str, window: int) -> np.ndarray:
        """A column of a window in the new order; the latest is kept, because steps ask for it one by one."""
        number, values = self._dealt.get(name, (-1, np.empty(0)))
        if number != window:
            first = window * self._keep * self._window
            end = min(first + self._keep * self._window, self.num_rows)
            if self._order[0] != window:
                ids = self._table.rows("id", first, end)
                self._order = window, deal(ids, len(ids) // self._keep, self._seed, window)
            values = self._table.rows(name, first, end)[self._order[1]]
            values.flags.writeable = False  # it is given again
            self._dealt[name] = window, values
        return values
