"""Whole steps as one CUDA graph: candidates, scores, choice and update without the host.

The host fills a window of ids, starts the steps of that window, and meanwhile looks at what the window before
wrote down. It never waits for the step it has just started.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Int
from torch import Tensor, nn

from goldiprox.data import Batch
from goldiprox.engine.step import Trainer, check_finite
from goldiprox.randomness import host_generators, unguarded
from goldiprox.watch import has_triton

log = logging.getLogger(__name__)

WINDOW = 64
"""Steps between two looks of the host."""
UNROLLED = 8
"""Steps in one graph."""
WARM_UP = 3
"""Steps run before capture, so that libraries have chosen their algorithms."""


class Feed(Protocol):
    """Batches that the device can make by itself from ids that are known beforehand."""

    def window(self, first: int, count: int, /) -> Int[Tensor, "steps n"]:
        """The ids that the next steps start from: at most `count` rows, fewer at a natural end, none at the last."""
        ...

    def batch(self, ids: Int[Tensor, " n"], step: Tensor) -> tuple[Batch, Mapping[str, Tensor]]:
        """What a step trains on, and what is to be written down about it. Must not look at values."""
        ...

    def written(self, first: int, values: Mapping[str, Tensor], /) -> None:
        """Gets what the steps from `first` on wrote down, on the host, in order; raises where it is not sound."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """The same batches, made one by one as Python asks."""
        ...


class Lane:
    """One model in a graph: its ids, its steps, what they write down. Several run side by side on the device."""

    def __init__(self, trainer: Trainer, feed: Feed, device: torch.device, start: int):
        self.trainer, self.feed, self.device = trainer, feed, device
        # Where in the window a step reads and writes, and its number: one tensor, so that one kernel counts both.
        self.counters = torch.tensor([0, start], dtype=torch.int64, device=device)
        self.slot, self.step_number = self.counters[:1], self.counters[1]
        self.ids = torch.empty(0)
        self.written: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor] = {}
        self.stream = torch.cuda.Stream(device, priority=getattr(feed, "priority", 0))
        self.decays = trainer.config.schedule != "constant"
        groups = trainer.optimizer.param_groups
        if self.decays:
            for group in groups:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        self.rates = torch.empty(2 * WINDOW, len(groups), device=device)
        self._rates_host = torch.empty(2 * WINDOW, len(groups)).pin_memory()
        self._ids_host = torch.empty(0, dtype=torch.int64)

    def fill(self, ids: Tensor, base: int, first: int) -> None:
        """Puts the ids and learning rates of the next steps where the graph looks for them."""
        count = len(ids)
        if not self.ids.numel():
            self.ids = torch.empty(2 * WINDOW, ids.shape[1], dtype=torch.int64, device=self.device)
        if not ids.is_cuda:  # from pinned memory, so that the copy does not wait
            if not self._ids_host.numel():
                self._ids_host = torch.empty(2 * WINDOW, ids.shape[1], dtype=torch.int64).pin_memory()
            ids = self._ids_host[base : base + count].copy_(ids)
        self.ids[base : base + count].copy_(ids, non_blocking=True)
        if self.decays:
            for row in range(count):
                self._rates_host[base + row] = torch.tensor(self.trainer.rates(first + row))
            self.rates[base : base + count].copy_(self._rates_host[base : base + count], non_blocking=True)
        self.slot.fill_(base)

    def step(self, generator: torch.Generator | None = None) -> bool:
        """One step; nothing in here looks at a value, so that it can be captured.

        Args:
            generator: Given outside a capture: notice whether making the batch draws from it, and take that back.
        """
        if self.decays:
            for number, group in enumerate(self.trainer.optimizer.param_groups):
                group["lr"].copy_(self.rates[:, number].index_select(0, self.slot)[0])
        with self.trainer.lowered():
            draws = self._train(generator)
        self.counters += 1
        return draws

    def _train(self, generator: torch.Generator | None) -> bool:
        ids = self.ids.index_select(0, self.slot)[0]
        drawn = generator.get_offset() if generator else 0
        bare = generator is not None or torch.cuda.is_current_stream_capturing()
        with unguarded() if bare else contextlib.nullcontext():
            batch, values = self.feed.batch(ids, self.step_number)
        draws = generator is not None and generator.get_offset() != drawn
        if generator:
            generator.set_offset(drawn)
        losses = self.trainer.losses(batch)
        self._write({"id": batch.ids, **values, "training loss": losses.detach()})
        self.trainer.update(losses, getattr(self.feed, "join", lambda: None))
        return draws

    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            if name not in self.written:
                shape = (2 * WINDOW, *value.shape)
                self.written[name] = torch.empty(shape, dtype=value.dtype, device=self.device)
                self.copies[name] = torch.empty(shape, dtype=value.dtype).pin_memory()
        if has_triton():
            from goldiprox.kernels import put_rows

            put_rows(list(values.values()), [self.written[name] for name in values], self.slot)
        else:
            for name, value in values.items():
                self.written[name].index_copy_(0, self.slot, value[None])

    def fetch(self, base: int, count: int) -> None:
        for name, written in self.written.items():
            self.copies[name][base : base + count].copy_(written[base : base + count], non_blocking=True)

    def look(self, base: int, count: int, first: int) -> None:
        """Hands over what the steps of a window wrote down; raises at the first that is not sound."""
        values = {name: copy[base : base + count] for name, copy in self.copies.items()}
        losses = values.pop("training loss")
        bad = (~losses.isfinite()).any(1).nonzero()
        sound = int(bad[0]) + 1 if len(bad) else count  # the step itself was chosen well, so it counts
        self.feed.written(first, {name: value[:sound] for name, value in values.items()})
        if len(bad):
            check_finite(first + sound - 1, values["id"][sound - 1], losses[sound - 1])


class _Begun(NamedTuple):
    """A window whose steps were started."""

    first: int
    steps: int
    base: int
    done: torch.cuda.Event


class Graph:
    """Trains one or several models, each step of all of them in one CUDA graph.

    The first steps run one by one; then the step is captured. If that is impossible (an acquisition or model that
    looks at values, or draws random numbers while scoring), steps go on one by one, and the log says why.

    Args:
        trainers: The models.
        feeds: What each is trained on.
        start: Steps done before.
    """

    def __init__(self, trainers: Sequence[Trainer], feeds: Sequence[Feed], *, start: int = 0):
        self.device = trainers[0].device
        self.lanes = [Lane(t, f, self.device, start) for t, f in zip(trainers, feeds, strict=True)]
        self.done, self.trained = start, [0] * len(self.lanes)
        self.reason: str | None = None
        self._warm = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._begun: list[_Begun] = []
        self._base = 0
        self._states: dict[int, Tensor] = {}

    @property
    def captured(self) -> bool:
        return bool(self._graphs)

    def advance(self, limit: int) -> int:
        """Starts up to `limit` steps, and gives how many; none at the end."""
        if self._warm == WARM_UP and not self._graphs and self.reason is None:
            self._capture()
        windows = [lane.feed.window(self.done, min(limit, WINDOW if self._graphs else 1)) for lane in self.lanes]
        count = min(map(len, windows))
        if not count:
            return 0
        base, self._base = self._base, WINDOW - self._base
        for lane, ids in zip(self.lanes, windows, strict=True):
            lane.fill(ids[:count], base, self.done)
        self._run(count)
        for lane in self.lanes:
            lane.fetch(base, count)
        done = torch.cuda.Event()
        done.record()
        self._begun.append(_Begun(self.done, count, base, done))
        self.done += count
        for number, lane in enumerate(self.lanes):
            self.trained[number] += count * lane.written["id"].shape[1]
        while len(self._begun) > 1:
            self._look()
        return count

    def drain(self) -> None:
        """Waits for what was begun, and looks at it."""
        while self._begun:
            self._look()

    def close(self) -> None:
        """Gives back the memory of the graphs."""
        for lane in self.lanes:
            lane.trainer.optimizer.zero_grad(set_to_none=True)
        self._graphs.clear()

    def _look(self) -> None:
        begun = self._begun.pop(0)
        begun.done.synchronize()
        for lane in self.lanes:
            lane.look(begun.base, begun.steps, begun.first)

    def _run(self, count: int) -> None:
        if not self._graphs:
            for _ in range(count):
                self._one_by_one()
            return
        for _ in range(count // UNROLLED):
            self._graphs[UNROLLED].replay()
        for _ in range(count % UNROLLED):
            self._graphs[1].replay()

    def _one_by_one(self) -> None:
        """A step outside a graph."""
        main = torch.cuda.current_stream()
        for number, lane in enumerate(self.lanes):
            lane.stream.wait_stream(main)
            with self._own_draws(number), torch.cuda.stream(lane.stream):
                self._try(lane) if self.reason is None else lane.step()
            main.wait_stream(lane.stream)
        self._warm += 1

    def _try(self, lane: Lane) -> None:
        """A step that finds out whether a graph can hold it."""
        generator = torch.cuda.default_generators[self.device.index or 0]
        before, drawn = _host_state(lane.trainer.model), generator.get_offset()
        scoring_draws = lane.step(generator)
        if _host_state(lane.trainer.model) != before:
            self._refuse("a step draws random numbers, or counts something, on the host; a graph would repeat one draw")
        elif scoring_draws:
            self._refuse("scoring draws random numbers (dropout); score in mode 'eval' to avoid that")
        elif len(self.lanes) > 1 and generator.get_offset() != drawn:
            self._refuse("several models at once draw random numbers (dropout)")

    @contextlib.contextmanager
    def _own_draws(self, number: int) -> Iterator[None]:
        """Outside a graph, each of several models draws from its own seed, as it would alone."""
        if len(self.lanes) == 1:
            yield
            return
        if number not in self._states:
            torch.cuda.manual_seed(self.lanes[number].trainer.seed)
        else:
            torch.cuda.set_rng_state(self._states[number])
        yield
        self._states[number] = torch.cuda.get_rng_state()

    def _refuse(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            log.warning("steps run one by one, not as a CUDA graph: %s", reason)

    def _capture(self) -> None:
        self.drain()
        torch.cuda.synchronize(self.device)
        pool = torch.cuda.graph_pool_handle()
        try:
            for count in (1, UNROLLED):
                for lane in self.lanes:
                    lane.trainer.optimizer.zero_grad(set_to_none=True)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self._record(count)
                self._graphs[count] = graph
        except RuntimeError as e:
            self._graphs.clear()
            torch.cuda.synchronize(self.device)
            self._refuse(f"capturing failed ({str(e).splitlines()[0]})")

    def _record(self, count: int) -> None:
        if len(self.lanes) == 1:
            for _ in range(count):
                self.lanes[0].step()
            return
        main = torch.cuda.current_stream()
        for lane in self.lanes:
            lane.stream.wait_stream(main)
        for _ in range(count):
            for lane in self.lanes:
                with torch.cuda.stream(lane.stream):
                    lane.step()
        for lane in self.lanes:
            main.wait_stream(lane.stream)


def _host_state(model: nn.Module) -> tuple[Any, ...]:
    """What Python would have to do anew at every step, where it does: host generators and counters in the model."""
    counters = [
        (name, key, value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, int | float | str)
    ]
    return host_generators(), counters
