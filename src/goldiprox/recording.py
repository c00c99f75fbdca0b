"""Record a sequence with a proxy."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.acquisition import Acquisition, ScoringMode, needs_proxy, reducible_loss, require_no_model
from goldiprox.ahead import Pending, SelectingAhead, choose_ahead
from goldiprox.artifacts import check_output
from goldiprox.checkpoint import Checkpoints
from goldiprox.choices import Choices, Recorder, Recording, Selecting, choose, choose_by_id, given, training_side
from goldiprox.data import Batch, iterate, unwrap
from goldiprox.engine import EngineName, Feed, Given, loading_processes, on_device
from goldiprox.errors import ConfigError
from goldiprox.forward import Forward, PerExampleLoss, call, check_model, cross_entropy, device_of, in_precision
from goldiprox.irreducible import IrreducibleLosses, describe
from goldiprox.loop import Evaluate, History, OnRecord, OnStep, Task, check_evaluation, fit_together, rate_of
from goldiprox.optim import TrainingConfig
from goldiprox.picks import Picks
from goldiprox.randomness import ORDER, derive, seeded
from goldiprox.ranks import Ranks
from goldiprox.rules import RULE, Rule, make_rule, text_of, usual_rule
from goldiprox.selection import CandidateSampler, Scope, Selector, num_steps
from goldiprox.sequence import Sequence, SequenceWriter, check_columns
from goldiprox.split import digest_ids
from goldiprox.storage import partial_path
from goldiprox.together import Together, Update
from goldiprox.tracking import Tracker, curves


def record(
    proxy: nn.Module | None,
    data: Any,
    *,
    irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None,
    acquisition: Acquisition = reducible_loss,
    rule: Rule | None = None,
    candidates: int = 320,
    keep: int = 32,
    steps: int | None = None,
    epochs: int | None = None,
    ids: np.ndarray | None = None,
    out: str | os.PathLike[str] | None = None,
    columns: tuple[str, ...] = (),
    force: bool = False,
    config: TrainingConfig = TrainingConfig(),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    mode: ScoringMode = "train_frozen_stats",
    augmented: Any = None,
    ahead: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
    track: Tracker | None = None,
    corrupted: np.ndarray | None = None,
    checkpoints: Checkpoints | None = None,
    extra_config: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
    group: Any = None,
    pieces: int = 8,
    update: Update = "replicated",
    scope: Scope = "global",
) -> Recording:
    """Trains a model on what it selects, and writes down what that was.

    All that can be known beforehand is checked before the first step. If it fails later, the steps so far stay
    in ``<out>.partial``. With `checkpoints`, the same call goes on from the last one, and ends as if it had never
    been broken off.

    Args:
        proxy: Selects and trains, in place, on the device it is on. None, where the acquisition goes by ids or by a
            table of irreducible losses alone (`goldiprox.acquisition.IDS_ONLY`): then nothing is trained.
        data: The base data set: `TensorData` or any map-style data set.
        irreducible: Irreducible losses, or a function that gives them for a `Batch`.
        acquisition: Scores candidates.
        rule: Turns scores into a choice. By default `goldiprox.rules.RULE`, or what of it fits the acquisition, which
            transfers to other models; `top_k` is the paper's.
        candidates: How many examples are scored per step.
        keep: How many of them are trained on.
        steps: How many steps.
        epochs: Instead of `steps`: passes over the candidates.
        ids: The training side; by default the examples whose irreducible loss is known, else all.
        out: The file; None records in memory only.
        columns: What to record beside ids: ``score``, ``loss``, ``irreducible``.
        force: Replace an existing file.
        config: Learning rate, weight decay, schedule.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example.
        forward: How the model is called.
        mode: BatchNorm's and dropout's mode while scoring.
        augmented: The same examples with augmentation: candidates are scored as `data` gives them, and only those kept
            are loaded from here for training.
        ahead: Choose what the next step trains on before this step's update: scores are one step old, and on a GPU
            scoring and training run at the same time.
        seed: Of candidates, selection and dropout.
        num_workers: Loading processes. None: slice resident data, load other data in this process.
        engine: How steps run, see `goldiprox.loop.fit`.
        evaluate: Gives figures for the proxy as it is.
        eval_every: Steps between evaluations.
        on_record: Gets every evaluation; of a continued run, those before it first.
        on_step: Called after every step, or every few.
        track: Gets every evaluation under the name ``select``, see `goldiprox.tracking`.
        corrupted: One flag per id, where damage is known: evaluations then say how much of it was kept.
        checkpoints: Where to save how far it is.
        extra_config: Recorded in the file's header.
        parents: Digests of further files it was made from, for the header.
        group: Of ``torch.distributed``: every rank makes this call and scores its share of the candidates; rank 0
            writes. The sequence does not depend on how many ranks there are. See docs/scale.md.
        pieces: With a group, how many passes candidates are scored in, over all ranks; a multiple of their number.
        update: With a group, how the proxy trains, see `goldiprox.together.Update`.
        scope: With a group, among whose candidates a rank chooses, see `goldiprox.selection.Scope`.
    """
    job = Job(
        proxy,
        data,
        irreducible=irreducible,
        acquisition=acquisition,
        rule=rule,
        candidates=candidates,
        keep=keep,
        steps=steps,
        epochs=epochs,
        ids=ids,
        out=out,
        columns=columns,
        force=force,
        config=config,
        optimizer=optimizer,
        loss=loss,
        forward=forward,
        mode=mode,
        augmented=augmented,
        ahead=ahead,
        seed=seed,
        num_workers=loading_processes(engine, num_workers),
        evaluate=evaluate,
        eval_every=eval_every,
        on_record=on_record,
        on_step=on_step,
        track=track,
        corrupted=corrupted,
        checkpoints=checkpoints,
        extra_config=extra_config,
        parents=parents,
        group=group,
        pieces=pieces,
        update=update,
        scope=scope,
    )
    return record_jobs([job], engine)[0]


def record_many(
    proxies: Seq[nn.Module | None],
    data: Any,
    *,
    engine: EngineName = "auto",
    each: Seq[Mapping[str, Any]] | None = None,
    **settings: Any,
) -> list[Recording]:
    """Records with several proxies: on a GPU all at once, in the time of a few; else one after another.

    Every recording is what `record` alone would have made. For seeds, or settings to compare.

    Args:
        proxies: Each selects for itself.
        data: The base data set.
        engine: How steps run, see `goldiprox.loop.fit`.
        each: For every proxy, what differs from `settings`: ``[{"seed": 0}, {"seed": 1}]``.
        settings: As for `record`; the number of steps must be the same for all.
    """
    each = [{}] * len(proxies) if each is None else each
    if len(each) != len(proxies):
        raise ConfigError(
            f"{len(proxies)} proxies, but {len(each)} sets of settings in `each`; give one for every proxy"
        )
    settings["num_workers"] = loading_processes(engine, settings.get("num_workers"))
    return record_jobs(
        [Job(proxy, data, **{**settings, **own}) for proxy, own in zip(proxies, each, strict=True)], engine
    )


def record_jobs(jobs: Seq["Job"], engine: EngineName) -> list[Recording]:
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(job.writing())
            if job.ranks:
                stack.enter_context(job.ranks.named())
        training = [job.task() for job in jobs if job.proxy is not None]
        trained = iter(fit_together(training, engine=engine) if training else ())
        histories = [job.without_training() if job.proxy is None else next(trained) for job in jobs]
    return [job.result(history) for job, history in zip(jobs, histories, strict=True)]


@dataclass
class Job:
    """One recording: its settings checked, its candidates, its file. The arguments of `record` say what is what."""

    proxy: nn.Module | None
    data: Any
    irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None
    acquisition: Acquisition = reducible_loss
    rule: Rule | None = None
    candidates: int = 320
    keep: int = 32
    steps: int | None = None
    epochs: int | None = None
    ids: np.ndarray | None = None
    out: str | os.PathLike[str] | None = None
    columns: tuple[str, ...] = ()
    force: bool = False
    config: TrainingConfig = TrainingConfig()
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    loss: PerExampleLoss = cross_entropy
    forward: Forward = call
    mode: ScoringMode = "train_frozen_stats"
    augmented: Any = None
    ahead: bool = False
    seed: int = 0
    num_workers: int | None = None
    evaluate: Evaluate | None = None
    eval_every: int | None = None
    on_record: OnRecord | None = None
    on_step: OnStep | None = None
    track: Tracker | None = None
    corrupted: np.ndarray | None = None
    checkpoints: Checkpoints | None = None
    extra_config: Mapping[str, Any] | None = None
    parents: Mapping[str, str] | None = None
    group: Any = None
    pieces: int = 8
    update: Update = "replicated"
    scope: Scope = "global"

    def __post_init__(self):
        self.ranks = Ranks.of(self.group)
        if self.ahead and self.ranks:
            raise ConfigError("several processes cannot choose ahead; leave out ahead=True (--ahead)")
        self.writes = self.ranks is None or self.ranks.rank == 0
        self.train_ids = training_side(self.data, self.irreducible, self.acquisition, self.ids)
        self.by_id = not (needs_proxy(self.acquisition, self.scope, self.update) or callable(self.irreducible))
        if self.proxy is None:
            asked = {n: getattr(self, n) for n in ("evaluate", "eval_every", "on_record", "track", "corrupted")}
            require_no_model(self.acquisition, self.irreducible, self.scope, self.update, **asked)
        if self.keep > self.candidates:
            raise ConfigError(
                f"cannot keep {self.keep} of {self.candidates} candidates; lower --keep or raise --candidates"
            )
        self.num_steps = num_steps(self.steps, self.epochs, len(self.train_ids), self.candidates)
        self.sampler = CandidateSampler(self.train_ids, self.candidates, seed=self.seed, steps=self.num_steps)
        if self.rule is None:
            passes = self.num_steps * self.keep / len(self.train_ids)
            self.rule = make_rule(usual_rule(RULE, self.acquisition), passes=passes)
        self.model = nn.Identity() if self.proxy is None else self.proxy
        self.device = device_of(self.model)
        self.select = Selector(
            self.acquisition,
            keep=self.keep,
            irreducible=self.irreducible,
            rule=self.rule,
            loss=self.loss,
            forward=in_precision(self.forward, self.config.precision),
            losses=self.config.losses(self.loss, self.forward) if self.config.compile else None,
            mode=self.mode,
            seed=self.seed,
            group=self.ranks,
            pieces=self.pieces,
            scope=self.scope,
            columns=self.columns,
            num_examples=len(unwrap(self.data)),
        )
        self.header = self._header() if self.out is not None or self.checkpoints or self.ranks else {}
        self.together = None
        if self.ranks:
            settings, sizes = json.dumps(self._settings(), sort_keys=True), (self.candidates, self.keep, self.pieces)
            if self.proxy is None:
                self.ranks.require_same(settings)
            else:
                self.together = Together(self.ranks, self.proxy, settings, *sizes, self.update)
        self.saved = self.checkpoints.start(self._settings(), self.device) if self.checkpoints else None
        self.start = self.saved.step if self.saved else 0
        if self.out is not None and self.saved is None and self.writes:
            # What an earlier process left before its first checkpoint is begun anew.
            self.force = self.force or bool(self.checkpoints and self.checkpoints.continues)
            check_output(self.out, force=self.force)
        calls = {"loss": self.loss, "forward": self.forward}
        with seeded(derive("example", self.seed), self.device):
            if self.proxy is None:
                self.example = Batch(next(self.sampler.batches()), (), ())
            else:
                self.example = next(iterate(self.data, self.sampler.batches(), device=self.device))
                check_model(self.proxy, self.example, data=self.data, role="proxy", **calls)
                check_evaluation(self.evaluate, self.proxy)
                self.few = self.example.take(torch.arange(min(2, self.candidates)))
                self.rate = rate_of(self.proxy, self.few, **calls)
            check_columns(self.columns, self.select.check(self.model, self.example))
        if self.augmented is not None and len(self.augmented) != len(unwrap(self.data)):
            raise ConfigError(
                f"the augmented data has {len(self.augmented):,} examples, the data set {len(unwrap(self.data)):,}; "
                f"both must hold the same examples under the same ids"
            )
        sliced = self.augmented is None and self.ranks is None
        self.resident = on_device(self.data, self.device, self.num_workers) if sliced else None
        self.pending = Pending(self.saved.state["extra"].get("pending") if self.saved else None)
        picks = Picks(len(unwrap(self.data)), len(self.train_ids), self.corrupted) if self.evaluate else None
        in_memory = self.num_steps * self.keep if self.out is None else None
        self.recorder = Recorder(self.keep, in_memory, every=1 if self.device.type == "cpu" else 64, picks=picks)

    def without_training(self) -> History:
        """All choices, for which no model is needed."""
        chosen = choose_by_id(self.select, self.model, self.sampler)
        cost = self.recorder.take(chosen, self.checkpoints, self.on_step)
        if self.ranks:  # no file is completed where another rank was stopped
            self.ranks.gather(torch.zeros(1, device=self.ranks.device))
        return History(cost=cost, steps=self.num_steps)

    def task(self) -> Task:
        return Task(
            self.model,
            self._batches(),
            steps=self.num_steps,
            config=self.config,
            optimizer=self.optimizer,
            loss=self.loss,
            forward=self.together.forward(self.forward) if self.together else self.forward,
            seed=self.seed,
            evaluate=self.evaluate,
            eval_every=self.eval_every,
            rate=self.rate,
            figures=self.recorder.figures,
            num_scored=lambda: self.select.num_scored,
            on_record=curves(self.track, "select", self.on_record),
            on_step=self.on_step,
            checkpoints=self.checkpoints,
            saved=self.saved,
            state=lambda step: self.recorder.state() | {"pending": self.pending.state()},  # noqa: ARG005
        )

    def _batches(self) -> Iterable[Batch] | Feed:
        loading = {"num_workers": self.num_workers, "seed": self.seed, "first": self.start}
        load = partial(iterate, self.data, device=self.device, **loading)
        if self.by_id:
            chosen = list(choose_by_id(self.select, self.model, self.sampler))
            rest = chosen[self.start :]
            eager = self._recorded(zip(load(ids for ids, _ in rest), (values for _, values in rest), strict=True))
            return eager if self.resident is None else Given(self.resident, *given(chosen, eager, self.recorder))
        if self.saved:
            self.select.step, self.select.num_scored = self.start, self.saved.state["cost"]["examples_scored"]
        if self.together:
            source = self.data if self.augmented is None else self.augmented
            return self.together.batches(self.select, self.sampler, self.recorder, load, source)
        parts = (self.select, self.model, self.sampler)
        if self.ahead:
            self.select.step += self.pending.values is not None
            eager = self._recorded(choose_ahead(*parts, load, self.pending, self.start))
        else:
            eager = self._recorded(choose(*parts, load))
        if self.resident is None:
            return eager
        feed = (self.resident, *parts, eager, self.columns, self.recorder.append)
        return SelectingAhead(*feed, pending=self.pending, start=self.start) if self.ahead else Selecting(*feed)

    def _recorded(self, choices: Choices) -> Iterator[Batch]:
        for kept, values in choices:
            self.recorder.append(kept.ids, values)
            yield kept if self.augmented is None else next(iterate(self.augmented, [kept.ids], device=self.device))

    def _header(self) -> dict[str, Any]:
        settings = {
            "acquisition": getattr(self.acquisition, "__name__", type(self.acquisition).__name__),
            "rule": text_of(self.select.rule),
            "candidates": self.candidates,
            "steps": self.num_steps,
            "num_train": len(self.train_ids),
            "seed": self.seed,
            "mode": self.mode,
            **({"ahead": True} if self.ahead else {}),
            **({"pieces": self.pieces, "update": self.update, "scope": self.scope} if self.ranks else {}),
            **(self.extra_config or {}),
        }
        lineage = dict(self.parents or {})
        if isinstance(self.irreducible, IrreducibleLosses):
            lineage["irreducible"] = self.irreducible.digest
        described = {"data": describe(self.data), "config": settings, "parents": lineage}
        return {"keep": self.keep, "columns": self.columns, **described}

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a recording to be continued."""
        described = {"training": asdict(self.config), "order": ORDER, "split": digest_ids(self.train_ids)}
        alone = {"without_proxy": True} if self.proxy is None else {}
        return {**self.header, **described, **alone, "in_memory": self.out is None}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The file, open for what is recorded inside."""
        with ExitStack() as stack:
            if self.out is not None and self.writes and not self._is_written:
                resume_at = self.start if self.saved else None
                writer = SequenceWriter(self.out, force=self.force, resume_at=resume_at, **self.header)
                self.recorder.writer = stack.enter_context(writer)
            if self.saved and (self.writes or self.out is None):
                self.recorder.restore(self._counted(self._recorded_before()), self.saved.state["extra"])
            if self.saved and self.ranks:
                self.select.share_counts(self.device)
            try:
                yield
            finally:
                self.recorder.flush()

    def _counted(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """The same blocks, taken down for rules that count."""
        for ids in blocks:
            if not self.by_id:  # what is chosen beforehand is chosen again from the start
                self.select.count(torch.as_tensor(ids, device=self.device))
            yield ids

    @property
    def _is_written(self) -> bool:
        """Whether an earlier process has completed the file."""
        out = Path(self.out or "")
        return self.start == self.num_steps and out.is_file() and not partial_path(out).exists()

    def _recorded_before(self) -> Iterable[np.ndarray]:
        if self.recorder.writer:
            return self.recorder.writer.blocks_before()
        if self.out is None:
            assert self.saved is not None
            return [self.saved.state["extra"]["ids"].numpy()]
        return Sequence.open(self.out).blocks()

    def result(self, history: History) -> Recording:
        recorder, path = self.recorder, None if self.out is None else Path(self.out)
        digest = self.ranks.share_digest(recorder.digest) if self.ranks else recorder.digest
        return Recording(path, digest, self.num_steps, history, recorder.in_memory)
