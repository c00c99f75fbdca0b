"""Which candidates come up, and which of them are kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from goldiprox.acquisition import (
    IDS_ONLY,
    ZERO_IS_LEARNT,
    Acquisition,
    Candidates,
    ScoringMode,
    irreducible_loss,
    reducible_loss,
)
from goldiprox.data import Batch, as_batch, exchange
from goldiprox.divided import refuse_divided_again
from goldiprox.errors import ConfigError, MissingIrreducible, NonFiniteError, UnknownName, some
from goldiprox.forward import (
    Forward,
    PerExampleLoss,
    call,
    check_model,
    cross_entropy,
    device_of,
    require_no_running_stats,
)
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.randomness import derive, hash_ids, permuted, preserved, subkey
from goldiprox.ranks import Ranks
from goldiprox.rules import Rule, check_rule, highest, text_of, top_k
from goldiprox.watch import Watch

Scope = Literal["global", "local"]
"""
* ``global``: what is kept is chosen among the candidates of all ranks.
* ``local``: each rank keeps its share of `keep` among its own, whatever the others have.
"""


class Selector:
    """Keeps the best examples of a batch: ``batch = select(model, batch)``.

    Args:
        acquisition: Scores candidates.
        keep: How many to keep.
        irreducible: Irreducible losses, or a function of a `Batch` that gives them (a live holdout model).
        rule: Turns scores into a choice; by default `top_k`, the paper's, for a model that selects for itself. The
            default of `record`, for sequences that other models replay, is another.
        loss: One loss per example.
        forward: How the model is called.
        mode: BatchNorm's and dropout's mode while scoring, see `goldiprox.acquisition.scoring`.
        seed: Of everything random in the choice.
        losses: (model, inputs, targets) -> losses at one go, for acquisitions that ask for nothing else; a compiled
            function, say. By default `loss` of what `forward` gives.
        group: Of ``torch.distributed``: batches are this rank's share of the candidates, `keep` of all of them are
            chosen, and every rank gets its slice of those. See docs/scale.md.
        pieces: With a group, how many passes the candidates of all ranks are scored in. Where that is fixed, scores do
            not depend on the number of ranks, to the last bit. By default one pass a rank.
        scope: With a group, among whose candidates a rank chooses, see `Scope`. ``local`` exchanges nothing.
        fetch: With a group, gives the batch of these ids. By default ranks send one another what is kept.
        columns: With a group, which of ``loss`` and ``irreducible`` `chosen` holds beside scores.
        num_examples: How many ids there are, for rules that count; by default as many as the table has, else found out.

    Attributes:
        step: How many batches were selected from.
        num_scored: How many examples went through the model for that.
        times: For rules that ask for it, how often each id was kept; with ``scope="local"``, by this rank.

    `state_dict` holds what a continued run needs.
    """

    def __init__(
        self,
        acquisition: Acquisition = reducible_loss,
        *,
        keep: int,
        irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None,
        rule: Rule | None = None,
        loss: PerExampleLoss = cross_entropy,
        forward: Forward = call,
        mode: ScoringMode = "train_frozen_stats",
        seed: int = 0,
        losses: Callable[[nn.Module, Any, Any], Tensor] | None = None,
        group: Any = None,
        pieces: int | None = None,
        scope: Scope = "global",
        fetch: Callable[[Tensor], Batch] | None = None,
        columns: tuple[str, ...] = (),
        num_examples: int | None = None,
    ):
        if keep < 1:
            raise ConfigError(f"keep={keep}: at least one example must be kept")
        self.acquisition, self.keep, self.irreducible = acquisition, keep, irreducible
        self.rule = check_rule(rule or top_k())
        self.loss, self.forward, self.losses, self.seed = loss, forward, losses, seed
        self.mode: ScoringMode = mode
        if mode not in get_args(ScoringMode):
            raise UnknownName("scoring mode", mode, get_args(ScoringMode))
        if not callable(acquisition):
            raise ConfigError(
                f"an acquisition is a function of candidates, such as gp.reducible_loss; got {acquisition!r}"
            )
        if acquisition is irreducible_loss and getattr(self.rule, "floors", False):
            raise ConfigError(
                f"{text_of(self.rule)}: all scores of irreducible_loss are below zero, and could not be told "
                f"apart; leave floored out"
            )
        if irreducible is not None and not isinstance(irreducible, IrreducibleLosses) and not callable(irreducible):
            raise ConfigError(
                f"irreducible is a table or a function, not {irreducible!r}; open a file with "
                f"gp.IrreducibleLosses.open(path, data=...)"
            )
        self.step = self.num_scored = 0
        self.times: Tensor | None = None
        self._length = len(irreducible) if isinstance(irreducible, IrreducibleLosses) else num_examples
        self._chosen: tuple[Tensor, Mapping[str, Tensor]] | None = None
        self._watch: Watch | None = None
        self.ranks, self._fetch, self._columns = Ranks.of(group), fetch, columns
        self._passes = self._num_passes(pieces) if self.ranks else 1
        self._rows = 0
        if scope not in get_args(Scope):
            raise UnknownName("scope", scope, get_args(Scope))
        if scope == "local" and not self.ranks:
            raise ConfigError("scope='local' is for several processes: start them with torchrun and give their group")
        self._local = scope == "local"
        if self.ranks and self._local:
            self.ranks.part(keep)  # raises where it does not divide

    def _num_passes(self, pieces: int | None) -> int:
        size = self.ranks.size if self.ranks else 1
        if pieces is None:
            return 1
        if pieces < 1 or pieces % size:
            raise ConfigError(
                f"{pieces} pieces cannot be divided among {size} ranks; choose a multiple of {size} (--pieces)"
            )
        return pieces // size

    def __call__(self, model: nn.Module, batch: Any) -> Batch:
        """The kept part of a batch from a loader over `WithIds`, on the model's device."""
        batch = as_batch(batch).to(device_of(model))
        if self.ranks is None or self._local:
            return batch.take(self._advance(model, batch))
        kept = self.choose_together(model, batch)
        part = self.ranks.part(self.keep)
        return self._fetch(kept[part]) if self._fetch else exchange(self.ranks, batch, kept, part)

    def choose_together(self, model: nn.Module, batch: Batch) -> Int[Tensor, " k"]:
        """The ids kept of all ranks' candidates, of which this batch holds a share; the same on every rank."""
        assert self.ranks is not None
        require_no_running_stats(model, self.mode)
        parts = []
        for rows in torch.arange(batch.num_examples, device=batch.ids.device).chunk(self._passes):
            parts.append(self.score(model, batch.take(rows), self.step))
            self.num_scored += parts[-1].num_scored
        names = ("score", *(name for name in self._columns if name != "score"))
        values = {name: torch.cat([part.known[name] for part in parts]) for name in names}
        ids, sound = batch.ids, bool(values["score"].isfinite().all())
        if self._local or getattr(self.rule, "needs_only_best", False):
            score, few = values["score"], min(self.keep, len(ids))
            best = self._keep(score, ids, self.step) if self._local else highest(score, ids, few)
            ids, values = ids[best], {name: v[best] for name, v in values.items()}
        if not sound:  # so that no rank goes on
            values["score"] = torch.full_like(values["score"], torch.nan)
        self._rows = self._rows or int(self.ranks.gather(torch.tensor(len(ids), device=ids.device)).max())
        ids, pooled = self.ranks.pool(ids, values, self._rows)
        for part in parts:
            Scored.of(part).check()
        if not bool(pooled["score"].isfinite().all()):
            raise NonFiniteError(
                f"scores of another rank are not finite at step {self.step}; its own message says which",
                step=self.step,
            )
        rows = torch.arange(len(ids), device=ids.device) if self._local else self._keep(pooled["score"], ids, self.step)
        self._chosen = rows, pooled
        self.step += 1
        self.count(ids[rows])
        return ids[rows]

    def choose_ids(self, model: nn.Module, ids: Int[Tensor, " n"]) -> Int[Tensor, " k"]:
        """The kept ones of these ids, for acquisitions that look at nothing else (`acquisition.IDS_ONLY`)."""
        return ids[self._advance(model, Batch(ids, (), ()))]

    def _advance(self, model: nn.Module, batch: Batch) -> Tensor:
        try:
            rows, candidates = self.choose(model, batch, self.step)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            if self.step == 0 and self.acquisition not in IDS_ONLY:
                check_model(model, batch, loss=self.loss, forward=self.forward)  # says what does not fit, if it is that
            raise
        self._chosen = rows, candidates.known
        self._watch = self._watch or Watch(batch.ids.device)
        self._watch(Scored.of(candidates).check)
        self.step += 1
        self.num_scored += candidates.num_scored
        self.count(batch.ids[rows])
        return rows

    def check(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Tries a selection without a trace, so that what cannot work is known before training.

        Returns:
            What was computed on the way: what can be recorded beside ids.
        """
        mode = "train_frozen_stats" if self.mode == "train" else self.mode
        _, candidates = self.choose(model, batch, self.step, mode=mode)
        Scored.of(candidates).check()
        doubtful = self.acquisition not in ZERO_IS_LEARNT and self.step == 0 and getattr(self.rule, "floors", False)
        if doubtful and not bool((candidates.scores > 0).any()):
            raise ConfigError(
                f"{text_of(self.rule)}: no score of the first candidates is above zero (the highest is "
                f"{float(candidates.scores.max()):.3g}), so they could not be told apart; leave floored out"
            )
        return candidates.known

    def choose(
        self, model: nn.Module, batch: Batch, step: int | Tensor, *, mode: ScoringMode | None = None
    ) -> tuple[Tensor, Candidates]:
        """The rows to keep at a step, and the scored candidates.

        Changes nothing here and looks at no value, so that a GPU need not be waited for and a CUDA graph can
        hold it.
        """
        candidates = self.score(model, batch, step, mode=mode)
        return self._keep(candidates.scores, batch.ids, step), candidates

    def _keep(self, scores: Tensor, ids: Tensor, step: int | Tensor) -> Tensor:
        keep = self.keep // self.ranks.size if self.ranks and self._local else self.keep
        if keep > len(ids):
            raise ConfigError(
                f"cannot keep {keep} of {len(ids)} candidates; lower keep or load larger batches "
                f"(drop_last=True avoids a short last one)"
            )
        key = 0 if getattr(self.rule, "draws_nothing", False) else subkey(derive("selection rule", self.seed), step)
        needed: dict[str, Any] = {"step": step} if getattr(self.rule, "needs_step", False) else {}
        if self.counts:
            needed["times"] = self._times(ids).index_select(0, ids)
        return self.rule(scores, ids, keep, key, **needed)

    @property
    def counts(self) -> bool:
        """Whether the rule asks how often an example was kept."""
        return getattr(self.rule, "needs_times", False)

    def count(self, ids: Int[Tensor, " k"]) -> None:
        """Takes down that these ids were kept; looks at no value where it is known how many ids there can be."""
        if self.counts:
            times = self._times(ids)
            times.index_add_(0, ids.to(times.device), torch.ones_like(ids, dtype=times.dtype, device=times.device))

    def share_counts(self, device: torch.device) -> None:
        """Gives every rank what rank 0 has counted."""
        if self.counts and self.ranks:
            self.times = self.ranks.share(self._times(torch.zeros(1, dtype=torch.int64, device=device)))

    def _times(self, ids: Tensor) -> Tensor:
        if self.times is None or self.times.device != ids.device or self._length is None:
            length = self._length or max(int(ids.max()) + 1, 0 if self.times is None else len(self.times))
            times = torch.zeros(length, dtype=torch.int32, device=ids.device)
            if self.times is not None:
                times[: len(self.times)] = self.times.to(ids.device)
            self.times = times
        return self.times

    def score(
        self, model: nn.Module, batch: Batch, step: int | Tensor, *, mode: ScoringMode | None = None
    ) -> Candidates:
        """The candidates with their scores."""
        n = batch.num_examples
        candidates = Candidates(
            model,
            batch,
            keep=self.keep,
            irreducible=self.irreducible,
            loss=self.loss,
            forward=self.forward,
            mode=mode or self.mode,
            seed=self.seed,
            step=step,
            losses=self.losses,
        )
        with preserved(device_of(model)):  # acquisitions and live holdout models are users' code
            candidates.scores = scores = self.acquisition(candidates)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (n,):
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ConfigError(f"an acquisition must give one score per candidate, shape ({n},); it gave {shape}")
        return candidates

    @property
    def chosen(self) -> dict[str, Tensor]:
        """Scores, losses and irreducible losses of the last choice, as far as they were computed."""
        rows, known = self._chosen or (None, {})
        return {name: values[rows] for name, values in known.items()}

    @property
    def scores(self) -> Tensor:
        """Of all candidates of the last choice."""
        assert self._chosen is not None, "nothing was chosen yet"
        return self._chosen[1]["score"]

    def state_dict(self) -> dict[str, Any]:
        """What a continued run needs; the rule's counts among it, where it keeps some."""
        times = {} if self.times is None else {"times": self.times.cpu().clone()}
        return {"step": self.step, "seed": self.seed, **times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.counts and state["step"] and "times" not in state:
            raise ConfigError(
                f"the state of step {state['step']} does not say how often examples were kept, which "
                f"{text_of(self.rule)} goes by; restore one that was saved with this rule, or start over"
            )
        times = state.get("times")
        if times is not None and self._length is not None:
            if len(times) > self._length:
                raise ConfigError(
                    f"the state counts {len(times):,} examples, but there are {self._length:,}; it is of other data"
                )
            times = nn.functional.pad(times, (0, self._length - len(times)))
        self.step, self.seed = int(state["step"]), int(state["seed"])
        self.times = None if times is None else times.clone()


class Scored(NamedTuple):
    """What is needed to say why scores cannot be ranked."""

    step: int
    ids: Tensor
    scores: Tensor
    loss: Tensor | None = None
    irreducible: Tensor | None = None

    @classmethod
    def of(cls, c: Candidates) -> "Scored":
        return cls(int(c.step), c.ids, c.known["score"], c.known.get("loss"), c.known.get("irreducible"))

    def check(self) -> None:
        """Raises for scores that are not finite, and names the likely cause."""
        finite = self.scores.isfinite()
        if bool(finite.all()):
            return
        bad = self.ids[~finite].tolist()
        if self.irreducible is not None and bool(self.irreducible.isnan().any()):
            unknown = self.ids[self.irreducible.isnan()].tolist()
            raise MissingIrreducible(
                f"{len(unknown)} candidates of step {self.step} have no irreducible loss (ids {some(unknown)}): "
                f"holdout examples, or a table of another split. Draw candidates from the training "
                f"side only: DataLoader(gp.WithIds(data), batch_sampler=gp.CandidateSampler(irreducible.ids, ...))"
            )
        if self.loss is None or not bool(self.loss.isfinite().all()):
            cause = (
                "the model's loss on them is not finite: it diverged (lower the learning rate), their inputs are not "
                "finite, the loss is a mean over nothing (all tokens masked, say); or the table's is far below zero"
            )
        else:
            cause = "look at the acquisition function"
        raise NonFiniteError(
            f"{len(bad)} scores are not finite at step {self.step}, ids {some(bad)}: {cause}", step=self.step, ids=bad
        )


class CandidateSampler:
    """The candidates of every step: without replacement within an epoch, reshuffled between epochs.

    Any step can be asked for without those before it: where an id stands in an epoch's order is computed from
    (seed, epoch, its place in `ids`), a few hundred steps at a time, so memory does not grow with the number of ids.
    What does not fill a batch at an epoch's end is left out of that epoch, another part each time: `candidates`
    never varies.

    Args:
        ids: What candidates are drawn from. A ``range`` takes no memory.
        candidates: How many per step.
        seed: Of the order.
        steps: How many steps to give.
    """

    AT_ONCE = 2**16
    """Candidates that are computed together: many, so that a GPU is not busy with starting small computations."""

    def __init__(self, ids: Sequence[int] | np.ndarray | Tensor, candidates: int, *, seed: int = 0, steps: int):
        if candidates > len(ids):
            raise ConfigError(
                f"{candidates} candidates per step, but the training side has only {len(ids)} examples; "
                f"lower --candidates"
            )
        if candidates < 1 or steps < 1:
            raise ConfigError(f"candidates={candidates}, steps={steps}: both must be at least 1")
        self.ids = ids if isinstance(ids, range) else torch.as_tensor(np.asarray(ids), dtype=torch.int64)
        self.candidates, self.seed, self.steps = candidates, seed, steps
        self.steps_per_epoch = len(ids) // candidates
        self._placed: Tensor | None = None
        self._computed = torch.device("cpu"), 0, torch.empty(0, candidates, dtype=torch.int64)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        refuse_divided_again(whole=True)
        for batch_ids in self.batches():
            yield batch_ids.tolist()

    def window(self, first: int, count: int, device: torch.device) -> Int[Tensor, "steps n"]:
        """The candidates of the steps from `first` on, on a device: of `count` steps at most, of none at the end."""
        count = max(min(count, self.steps - first), 0)
        place, begin, ids = self._computed
        if count and not (place == device and begin <= first < begin + len(ids)):
            self._computed = place, begin, ids = device, *self._compute(first, device)
        return ids[first - begin : first - begin + count] if count else ids[:0]

    def _compute(self, step: int, device: torch.device) -> tuple[int, Tensor]:
        """The candidates of many steps, this one among them, and which is their first: part of an epoch, or several."""
        many, per_epoch = max(self.AT_ONCE // self.candidates, 1), self.steps_per_epoch
        epoch, row = divmod(step, per_epoch)
        if many < per_epoch:
            end, num_epochs = min(row + many, per_epoch), 1
        else:
            row, end, num_epochs = 0, per_epoch, min(many // per_epoch, -(-self.steps // per_epoch) - epoch)
        positions = torch.arange(row * self.candidates, end * self.candidates, device=device)
        epochs = torch.arange(epoch, epoch + num_epochs, device=device)
        places = permuted(positions, len(self.ids), hash_ids(epochs, derive("candidates", self.seed)))
        return epoch * per_epoch + row, self._ids_at(places.flatten()).view(-1, self.candidates)

    def _ids_at(self, places: Tensor) -> Tensor:
        if isinstance(self.ids, range):
            return places * self.ids.step + self.ids.start
        if self._placed is None or self._placed.device != places.device:
            # On a GPU for the whole run, so in half the space where that is enough.
            small = places.is_cuda and int(self.ids.max()) < 2**31
            self._placed = self.ids.to(places.device, torch.int32 if small else torch.int64)
        return self._placed.index_select(0, places).long()

    def batches(self, start: int = 0) -> Iterator[Int[Tensor, " n"]]:
        """The candidates from a step on, as tensors."""
        while start < self.steps:
            window = self.window(start, self.steps, torch.device("cpu"))
            for row in range(len(window)):
                yield window[row]
            start += len(window)


def num_steps(steps: int | None, epochs: int | None, num_train: int, candidates: int) -> int:
    """How many steps there are, from their number or that of passes over the candidates."""
    if (steps is None) == (epochs is None):
        raise ConfigError("say how long to select: give either steps or epochs")
    return steps if steps is not None else (epochs or 0) * (num_train // candidates)
