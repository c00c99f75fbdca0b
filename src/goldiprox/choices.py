"""For each step of a recording, what is kept: made as Python asks, or by the device itself; and taking it down."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.acquisition import Acquisition, uniform
from goldiprox.checkpoint import Checkpoints
from goldiprox.data import Batch, TensorData, require_fingerprint, unwrap
from goldiprox.errors import ConfigError, CorruptFile, Interrupted
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.ledger import Cost
from goldiprox.loop import History, OnStep
from goldiprox.picks import Picks
from goldiprox.selection import CandidateSampler, Scored, Selector
from goldiprox.sequence import Digest, Sequence, SequenceWriter
from goldiprox.split import check_ids

Choices: TypeAlias = Iterable[tuple[Batch, Mapping[str, Tensor]]]
"""For each step, what is kept, with its scores and losses as far as they were computed."""
Choice: TypeAlias = tuple[Tensor, Mapping[str, Tensor]]
"""Of one step, likewise, by ids alone."""


def training_side(data: Any, irreducible: Any, acquisition: Acquisition, ids: np.ndarray | None) -> np.ndarray | range:
    """What is selected from: these ids, else those whose irreducible loss is known, else all; checked."""
    table = irreducible if isinstance(irreducible, IrreducibleLosses) else None
    if table is not None and len(table) != len(unwrap(data)):
        raise ConfigError(
            f"the irreducible losses are for {len(table):,} examples, the data set has {len(unwrap(data)):,}; "
            f"use the data they were made from, or make them again"
        )
    if table is not None and table.data is not None and acquisition is not uniform:
        require_fingerprint(data, table.data, "the irreducible table")
    if ids is None:
        return range(len(unwrap(data))) if table is None or table.is_complete else table.ids
    ids = check_ids(ids, what="the training side", length=len(unwrap(data)))
    if table is not None and acquisition is not uniform:
        table.require(ids)
    return ids


def choose(
    select: Selector, model: nn.Module, sampler: CandidateSampler, load: Callable[..., Iterator[Batch]]
) -> Choices:
    """Loads all candidates, from the selector's step on, and keeps some."""
    for batch in load(sampler.batches(select.step)):
        kept = select(model, batch)
        yield kept, {**select.chosen, "scores": select.scores}


def choose_by_id(select: Selector, model: nn.Module, sampler: CandidateSampler) -> Iterator[Choice]:
    """Chooses among ids alone, so that only what is kept need be loaded: in every step these ids, with what is known.

    Training on that costs what it costs with a plain loader: a fair baseline.
    """
    for ids in sampler.batches():
        yield select.choose_ids(model, ids), select.chosen


class Selecting:
    """A feed: the device takes the next candidates, scores them with the model in training, and keeps some.

    Args:
        data: Lies on the device.
        select: Keeps some.
        model: Scores.
        sampler: Gives candidates.
        eager: The same for steps that run one by one.
        columns: Which of the values known of the kept examples to write down.
        on_kept: Gets the ids kept at a step, and those values.
    """

    RING = 256
    """Steps whose choice a second model can still look up; more than one graph holds."""

    def __init__(
        self,
        data: TensorData,
        select: Selector,
        model: nn.Module,
        sampler: CandidateSampler,
        eager: Iterable[Batch],
        columns: tuple[str, ...],
        on_kept: Callable[[Tensor, Mapping[str, Tensor]], None],
    ):
        self.data, self.select, self.model, self.sampler = data, select, model, sampler
        self.eager, self.columns, self.on_kept = eager, columns, on_kept
        self.num_scored = 0
        self.chosen = torch.cuda.Event()
        self.kept: Tensor | None = None

    def window(self, first: int, count: int) -> Tensor:
        return self.sampler.window(first, count, self.data.x.device)

    def batch(self, ids: Tensor, step: Tensor) -> tuple[Batch, Mapping[str, Tensor]]:
        candidates = Batch(ids, *self.data.gather(ids))
        rows, scored = self.select.choose(self.model, candidates, step)
        self.num_scored = scored.num_scored
        kept = candidates.take(rows)
        self.select.count(kept.ids)
        self._tell(kept.ids, step)
        return kept, {"scores": scored.scores, **{name: scored.known[name][rows] for name in self.columns}}

    def _tell(self, ids: Tensor, step: Tensor) -> None:
        """Lets a second model know what was chosen."""
        if self.kept is not None:
            self.kept.index_copy_(0, (step % self.RING)[None], ids[None])
            self.chosen.record()

    def written(self, first: int, values: Mapping[str, Tensor]) -> None:
        values = {name: value.clone() for name, value in values.items()}  # their memory is used again
        finite = values["scores"].isfinite().all(1).tolist()
        for row, sound in enumerate(finite):
            if not sound:
                ids = self.sampler.window(first + row, 1, self.data.x.device)[0].cpu()
                table = self.select.irreducible
                known = table[ids] if isinstance(table, IrreducibleLosses) else None
                Scored(first + row, ids, values["scores"][row], None, known).check()
            self.on_kept(values["id"][row], {name: values[name][row] for name in ("scores", *self.columns)})
            self.select.step += 1
            self.select.num_scored += self.num_scored

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.eager)


class Behind:
    """A feed for a second model in the same graph: what the first one has just chosen."""

    priority = -1  # first in line on the device: its steps are the longer ones

    def __init__(self, leader: Selecting, steps: int):
        self.leader, self.steps, self.device = leader, steps, leader.data.x.device
        leader.kept = torch.zeros(leader.RING, leader.select.keep, dtype=torch.int64, device=self.device)

    def window(self, first: int, count: int) -> Tensor:
        return torch.zeros(min(count, self.steps - first), 1, dtype=torch.int64, device=self.device)

    def batch(self, ids: Tensor, step: Tensor) -> tuple[Batch, Mapping[str, Tensor]]:
        assert self.leader.kept is not None
        torch.cuda.current_stream().wait_event(self.leader.chosen)
        ids = self.leader.kept.index_select(0, (step % self.leader.RING)[None])[0]
        return Batch(ids, *self.leader.data.gather(ids)), {}

    def written(self, first: int, values: Mapping[str, Tensor]) -> None:
        pass

    def __iter__(self) -> Iterator[Batch]:
        raise NotImplementedError("without a graph, models train one after another")


@dataclass
class Recording:
    """What `record` leaves: the sequence's file and digest, every id in order, and how training went."""

    path: Path | None
    digest: str
    steps: int
    history: History
    in_memory: np.ndarray | None = field(default=None, repr=False)

    @cached_property
    def ids(self) -> np.ndarray:
        """Every id in order; read from the file where there is one."""
        return Sequence.open(self.path).ids if self.path else self.in_memory  # type: ignore[return-value]


class Recorder:
    """Takes down what is kept, step by step; on a GPU several steps late, so that it is not waited for.

    Args:
        keep: How many ids a step keeps.
        in_memory: How many ids there will be, where they are to be held in memory; else None.
        every: Steps between two looks at the device.
        picks: Figures of what is kept.
    """

    def __init__(self, keep: int, in_memory: int | None, *, every: int, picks: Picks | None = None):
        self.keep, self.every, self.picks = keep, every, picks
        self._held = None if in_memory is None else np.empty(in_memory, np.int64)
        self._num_held = 0
        self.writer: SequenceWriter | None = None
        self._hash = Digest()
        self._waiting: list[tuple[Tensor, Mapping[str, Tensor]]] = []

    def append(self, ids: Tensor, values: Mapping[str, Tensor]) -> None:
        self._waiting.append((ids, values))
        if len(self._waiting) >= self.every:
            self.flush()

    def take(self, chosen: Iterable[Choice], checkpoints: Checkpoints | None, on_step: OnStep | None) -> Cost:
        """Takes down choices that no model learns from; where it is asked to stop, the file stays unfinished."""
        cost = Cost()
        with cost.timed():
            for step, (ids, values) in enumerate(chosen, 1):
                if checkpoints and checkpoints.stop():
                    raise Interrupted(f"stopped after step {step - 1:,} of a list, which is begun anew: nothing learns")
                self.append(ids, values)
                if on_step:
                    on_step(step, {})
        return cost

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ids, values in waiting:
            ids = ids.cpu()
            self._hash.update(ids.numpy())
            self._hold(ids.numpy())
            if self.picks:
                self.picks.add(ids, values)
            if self.writer:
                self.writer.append(ids, values)

    def _hold(self, ids: np.ndarray) -> None:
        if self._held is not None:
            self._held[self._num_held : self._num_held + len(ids)] = ids
            self._num_held += len(ids)

    @property
    def in_memory(self) -> np.ndarray | None:
        return None if self._held is None else self._held[: self._num_held]

    def figures(self) -> dict[str, float]:
        """Of what was taken down."""
        self.flush()
        return self.picks.figures() if self.picks else {}

    @property
    def digest(self) -> str:
        return str(self._hash)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to hold; all steps so far are on the disk then."""
        self.flush()
        if self.writer:
            self.writer.flush()
        ids = None if self.in_memory is None else torch.from_numpy(self.in_memory)
        return {"digest": self.digest, "ids": ids, "picks": self.picks.state() if self.picks else {}}

    def restore(self, blocks: Iterable[np.ndarray], state: Mapping[str, Any]) -> None:
        """Goes on after these ids, some at a time, which must be those of a checkpoint with this state."""
        for ids in blocks:
            self._hash.update(ids)
            self._hold(ids)
            if self.picks:
                self.picks.restore([ids], state.get("picks", {}))
        if self.digest != state["digest"]:
            raise CorruptFile(
                "the sequence so far is not the one that the checkpoint belongs to; "
                "add --force (force=True) to start over"
            )


def given(chosen: list[Choice], eager: Iterator[Batch], recorder: Recorder) -> tuple[Any, ...]:
    """Choices made beforehand, as the parts of a feed."""

    def rows(first: int, count: int) -> Tensor:
        taken = [ids for ids, _ in chosen[first : first + count]]
        return torch.stack(taken) if taken else torch.empty(0, recorder.keep)

    def written(first: int, values: Mapping[str, Tensor]) -> None:
        for ids, figures in chosen[first : first + len(values["id"])]:
            recorder.append(ids, figures)

    return rows, eager, written
