"""The next choice is made while the current one is trained on: scores one step old, and less waiting."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldiprox.choices import Choices, Selecting
from goldiprox.data import Batch
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.selection import CandidateSampler, Selector


class Pending:
    """The choice that is made but not yet trained on, which a checkpoint must hold.

    Args:
        saved: What `state` gave, of a run to be continued.
    """

    def __init__(self, saved: Mapping[str, Tensor] | None = None):
        self.values: dict[str, Tensor] | None = dict(saved) if saved else None

    def state(self) -> dict[str, Tensor] | None:
        return None if self.values is None else {name: value.cpu() for name, value in self.values.items()}


def choose_ahead(
    select: Selector,
    model: nn.Module,
    sampler: CandidateSampler,
    load: Callable[..., Iterator[Batch]],
    pending: Pending,
    start: int,
) -> Choices:
    """As `goldiprox.choices.choose`, but every choice is made before the one before it is handed out."""
    waiting = None
    for batch in load(sampler.batches(start)):
        if waiting is None and pending.values is not None:
            values = {name: v.to(batch.ids.device) for name, v in pending.values.items()}
            rows = (batch.ids[None, :] == values.pop("id")[:, None]).int().argmax(1)
            made = batch.take(rows), values
            select.count(made[0].ids)
        else:
            kept = select(model, batch)
            made = kept, {**select.chosen, "scores": select.scores}
            pending.values = {"id": kept.ids, **made[1]}
        if waiting is not None:
            yield waiting
        waiting = made
    pending.values = None
    if waiting is not None:
        yield waiting


class SelectingAhead(Selecting):
    """A feed: the device scores the next candidates beside the step that trains on what was chosen before.

    The update waits for the scores, so that these come from the weights before it.
    """

    def __init__(self, *parts: Any, pending: Pending, start: int):
        super().__init__(*parts)
        self._pending, self._start = pending, start
        # Beside training only what training does not change: weights (until the update), nothing else.
        batch_norm = nn.modules.batchnorm._BatchNorm
        others = any(m._buffers for m in self.model.modules() if not isinstance(m, batch_norm))
        self._overlaps = (
            self.select.mode == "train_frozen_stats"
            and not others
            and (self.select.irreducible is None or isinstance(self.select.irreducible, IrreducibleLosses))
        )
        self._side = torch.cuda.Stream(self.data.x.device)
        self._read: Tensor | None = None
        self._has_begun = False

    def window(self, first: int, count: int) -> Tensor:
        """The candidates after those of these steps; the last step has none, and scores its own once more."""
        last = self.sampler.steps - 1
        return super().window(first + 1, count) if first < last else super().window(first, min(count, 1))

    def batch(self, ids: Tensor, step: Tensor) -> tuple[Batch, Mapping[str, Tensor]]:
        if not self._has_begun:
            self._begin(step)
        assert self._pending.values is not None
        values = {name: value.clone() for name, value in self._pending.values.items()}
        main = torch.cuda.current_stream()
        if self._overlaps:
            self._read = ids  # until `join`: its memory must not be given to somebody else
            self._side.wait_stream(main)
            with torch.cuda.stream(self._side):
                self._choose(ids, step + 1)
        else:
            self._choose(ids, step + 1)
        chosen = values.pop("id")
        self._tell(chosen, step)
        return Batch(chosen, *self.data.gather(chosen)), values

    def join(self) -> None:
        """Called when gradients are there: the update must not begin before the scores are."""
        if self._overlaps:
            torch.cuda.current_stream().wait_stream(self._side)
            self._read = None

    def _begin(self, step: Tensor) -> None:
        """The choice of the first step: from a checkpoint, or with the weights as they are."""
        device = self.data.x.device
        ids = self.sampler.window(self._start, 1, device)[0]
        made = self._made(ids, step)
        saved = self._pending.values or {}
        for name in saved.keys() & made.keys():
            made[name].copy_(saved[name])
        self.select.count(made["id"])
        self._pending.values, self._has_begun = made, True

    def _made(self, ids: Tensor, step: Tensor) -> dict[str, Tensor]:
        candidates = Batch(ids, *self.data.gather(ids))
        rows, scored = self.select.choose(self.model, candidates, step)
        self.num_scored = scored.num_scored
        columns = {name: scored.known[name][rows] for name in self.columns}
        return {"id": ids[rows], "scores": scored.scores.clone(), **columns}

    def _choose(self, ids: Tensor, step: Tensor) -> None:
        assert self._pending.values is not None
        made = self._made(ids, step)
        self.select.count(made["id"])
        for name, value in made.items():
            self._pending.values[name].copy_(value)
