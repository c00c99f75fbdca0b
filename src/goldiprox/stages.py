"""The stages of one configuration: what the command line's commands and `run` are made of."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.acquisition import ACQUISITIONS, Acquisition, needs_proxy, needs_table
from goldiprox.checkpoint import Checkpoints
from goldiprox.crossfit import irreducible_losses
from goldiprox.data import iterate, require_fingerprint
from goldiprox.engine import EngineName
from goldiprox.enough import Attempt, Signs, attempts, until_enough
from goldiprox.errors import ConfigError, FingerprintMismatch, UnknownName
from goldiprox.forward import call, check_model, in_precision
from goldiprox.holdout import HoldoutConfig, HoldoutReport
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.ledger import Cost, Ledger, Rate
from goldiprox.loop import Evaluate, History, OnRecord, OnStep, evaluate_on, rate_of
from goldiprox.models import build
from goldiprox.moments import KEY, watching
from goldiprox.prepare import Prepared, differences, fitting_sizes, prepare
from goldiprox.probe import Probe
from goldiprox.recording import Recording, record
from goldiprox.rehearsal import OR_BOTH, OTHER, acquisitions, judged
from goldiprox.resolve import resolve
from goldiprox.rules import Rule, make_rule, top_k, usual_rule
from goldiprox.selection import Selector
from goldiprox.sequence import Sequence
from goldiprox.settings import RunConfig
from goldiprox.suspects import check_odds, trusted_ids, usual_odds
from goldiprox.tracking import Tracker, curves, numbers
from goldiprox.training import replay
from goldiprox.watch import pick_device

EVALUATIONS = 50
SMALL_FLOPS = 1e9  # for scoring the candidates of one step: tens of milliseconds on one core


class Progress(Protocol):
    """What shows progress: one stage at a time."""

    def stage(self, title: str, total: int | None) -> AbstractContextManager[OnStep | None]: ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[OnStep | None]:  # noqa: ARG002
        yield None


class Stages:
    """The stages of one configuration, each usable alone.

    Settings that cannot work are refused on construction, models and selection when they are first built or tried.
    With `checkpoints`, a stage goes on from where it was broken off, and one that was finished is not repeated.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        progress: Progress | None = None,
        checkpoints: Checkpoints | None = None,
        track: Tracker | None = None,
    ):
        self.config = config
        self.checkpoints, self.track = checkpoints, track
        self.progress = progress or Silent()
        self.device = pick_device(config.device)
        self.steps, self.passes = 0, 0.0  # until the data is known
        self.acquisitions = acquisitions(config.acquisition, config.rule)
        self.acquisition: Acquisition = resolve("acquisition", self.acquisitions[0], ACQUISITIONS, OR_BOTH)
        self.rule_for(self.acquisition)  # so that a wrong name is known before data is loaded
        if config.engine not in get_args(EngineName):
            hint = "ray is for `goldiprox irreducible` alone." if config.engine == "ray" else ""
            raise UnknownName("engine", config.engine, get_args(EngineName), hint)
        for name in ("keep", "candidates", "epochs"):
            if getattr(config, name) < 1:
                raise ConfigError(f"--{name} {getattr(config, name)}: at least 1 is needed")
        if config.window < 0:
            raise ConfigError(
                f"--window {config.window}: give a number of steps; 1 for the order recorded, 0 for one pass"
            )
        if config.trusted:
            check_odds(config.trusted)
        if not 0 <= config.dropout < 1:
            raise ConfigError(f"--dropout {config.dropout} is not in [0, 1)")
        if config.num_workers is not None and config.num_workers < 0:
            raise ConfigError(f"--workers {config.num_workers}: give 0 or more")
        if config.num_threads is not None and config.num_threads < 1:
            raise ConfigError(f"--threads {config.num_threads}: give 1 or more")
        if config.keep > config.candidates:
            raise ConfigError(
                f"cannot keep {config.keep} of {config.candidates} candidates; lower --keep or raise --candidates"
            )
        self.prepared: Prepared = prepare(config.data)
        data, split = self.prepared.data, self.prepared.split
        self.acquisitions = acquisitions(config.acquisition, config.rule, held_out=len(split.holdout))
        if data.num_classes is None:
            raise ConfigError(f"the command line trains classifiers; {config.data.data} has no integer labels")
        self.data, self.test = data, self.prepared.test
        # What convolutions on a GPU are fastest with; for everything else it makes no difference.
        self.channels_last = self.device.type == "cuda" and data.x.ndim == 4
        if self.channels_last:
            self.data, self.test = self.data.channels_last(), self.test.channels_last()
        self.example = next(iterate(self.data, [split.train[:2]], device=self.device))
        self.steps = config.epochs * (len(split.train) // config.candidates)
        self.passes = self.steps * config.keep / max(len(split.train), 1)
        self.eval_every = max(1, self.steps // EVALUATIONS)
        self.ledger = Ledger()

    def rule_for(self, acquisition: Acquisition) -> Rule:
        """The rule, or what of it fits an acquisition."""
        config, text = self.config, usual_rule(self.config.rule, acquisition)
        settings = {"temperature": config.temperature, "fraction": config.mix_fraction}
        return make_rule(text, **settings, steps=max(1, self.steps), passes=self.passes or 1.0)

    def require_same_data(
        self, path: str, data: Mapping[str, Any], config: Mapping[str, Any], parents: Mapping[str, str]
    ) -> None:
        """Raises where a file was made from other data or another split, and says which flags differ."""
        changed = differences(config.get("data", {}), self.config.data)
        require_fingerprint(self.data, data, path, hint=f"The flags differ: {changed}. " if changed else "")
        if parents.get("split", self.prepared.split.digest) != self.prepared.split.digest:
            raise FingerprintMismatch(
                f"{path} was made for another division into training and holdout side: "
                f"{changed or 'settings unknown'}. Use the same flags, or make it again"
            )

    def check_candidates(self) -> None:
        if self.config.candidates > (num_train := len(self.prepared.split.train)):
            fitting = " ".join(f"--{name} {value}" for name, value in fitting_sizes(num_train).items())
            raise ConfigError(
                f"{self.config.candidates} candidates per step, but the training side has only "
                f"{num_train:,} examples; lower --candidates: {fitting}"
            )

    def build(self, name: str, role: str, seed: int) -> nn.Module:
        """A model, tried on the data."""
        options = {"dropout": self.config.dropout} if self.config.dropout and ":" not in name else {}
        num_classes = self.data.num_classes or 0
        model = build(name, self.data.input_shape, num_classes, seed=seed, device=self.device, **options)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        check_model(model, self.example, data=self.data, role=role)
        return model

    @contextmanager
    def threads(self, model: nn.Module | None) -> Iterator[None]:
        """The CPU threads for work with this model, or with none: one where its steps are small, else torch's choice.

        Several threads wait for each other many times a step. For small models that gains little, and where
        something else runs on the same cores it makes a step up to a hundred times slower. The choice depends on the
        model alone, so that the same command gives the same sums.
        """
        before = torch.get_num_threads()
        rate = Rate(0, 0) if model is None else rate_of(model, self.example)
        small = rate is not None and rate.forward * self.config.candidates < SMALL_FLOPS
        torch.set_num_threads(self.config.num_threads or (1 if small and self.device.type == "cpu" else before))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def try_selection(
        self, proxy: nn.Module, acquisition: Acquisition | str | None = None, rule: Rule | None = None
    ) -> set[str]:
        """One selection without a trace, so that a long run does not fail at its second stage.

        Returns:
            What is computed on the way, and so can be recorded beside ids.
        """
        config, train = self.config, torch.as_tensor(self.prepared.split.train)
        batch = next(iterate(self.data, [train[: config.candidates]], device=self.device))
        nothing = IrreducibleLosses(torch.zeros(len(self.data)))
        if acquisition is None or isinstance(acquisition, str):
            acquisition = self._acquisition(acquisition)
        rule = rule or self.rule_for(acquisition)
        select = Selector(acquisition, keep=config.keep, irreducible=nothing, rule=rule)
        return set(select.check(proxy, batch))

    def _checkpoints(self, stage: str) -> Checkpoints | None:
        return self.checkpoints and self.checkpoints.part(stage.replace(" ", "-"))

    def evaluate(self, watched: np.ndarray | None = None) -> Evaluate:
        """Figures on the test set; with `watched`, beside them the losses of these training examples."""
        forward = in_precision(call, self.config.training.precision)
        evaluate = evaluate_on(self.test, forward=forward)
        return evaluate if watched is None else watching(evaluate, self.data, watched, forward=forward)

    def probe(self, watched: np.ndarray, proxy: History, table: IrreducibleLosses) -> Probe:
        """What compares the model, while it trains, with a proxy that was evaluated with `watched`."""
        forward = in_precision(call, self.config.training.precision)
        return Probe(self.data, watched, [e[KEY] for e in proxy.evaluations], table, forward=forward)

    def irreducible(
        self, group: Any = None, scoring: Callable[..., Tensor] | None = None
    ) -> tuple[IrreducibleLosses, list[nn.Module], dict[str, Any]]:
        """Stage 2: the irreducible losses, the model(s) behind them, and how that went."""
        if not self.config.num_folds:
            self.prepared.split.require_holdout()
        total, made = Cost(), []

        def make(attempt: Attempt, how: HoldoutConfig, instead: dict[str, Any] | None) -> Signs:
            table, models, reports, cost = self._irreducible(attempt, how, instead, group=group, scoring=scoring)
            total.merge(cost)
            signs = Signs.of(table, reports[0])
            made[:] = table, models, reports, attempt, how, instead, signs
            return signs

        until_enough(self.holdout_models, self.config.holdout, make)
        table, models, reports, attempt, how, instead, signs = made
        self.bill("irreducible", total, 0)
        accuracy = sum(r.figures["accuracy"] for r in reports) / len(reports)
        summary = {"name": attempt.name, "accuracy": accuracy, "cleaned": how.cleaned, **asdict(signs)}
        summary |= {field: getattr(reports[0], field) for field in ("epoch", "epochs", "mixup", "augment")}
        return table, models, summary | {"shortcoming": None if instead else signs.shortcoming, "instead": instead}

    @cached_property
    def holdout_models(self) -> list[Attempt]:
        """Which are to be tried, in order; each has been tried on the data."""
        config = self.config
        judged = config.holdout.cleaned and (bool(config.trusted) or needs_table(self.acquisitions[0]))
        given = (config.il_model, config.proxy, config.model)
        return attempts(*given, judged=judged, moving=config.holdout.augment == "auto", flops=self.flops)

    def flops(self, name: str) -> float | None:
        """Of a pass of a holdout model; None where they cannot be counted."""
        rate = rate_of(self.build(name, "holdout model", self.config.seed), self.example)
        return None if rate is None else rate.forward

    def _irreducible(
        self, attempt: Attempt, how: HoldoutConfig, instead: dict[str, Any] | None, **where: Any
    ) -> tuple[IrreducibleLosses, list[nn.Module], list[HoldoutReport], Cost]:
        config, name, stage = self.config, attempt.name, "irreducible"
        if instead:
            stage += " moved" if attempt.moved else " again"
        title = f"again, by {name}{', moved images' * attempt.moved}" if instead else "irreducible losses"
        recorded = {"il_model": name, "data": config.data.recorded()} | ({"instead": instead} if instead else {})
        model = self.build(name, "holdout model", config.seed)
        with self.threads(model), self.progress.stage(title, None) as on_step:
            return irreducible_losses(
                lambda fold: self.build(name, "holdout model", config.seed + 7919 * (fold + 1)),
                self.data,
                self.prepared.split,
                num_folds=config.num_folds,
                config=how,
                seed=config.seed,
                num_workers=config.num_workers,
                engine=config.engine,
                on_step=on_step,
                checkpoints=self._checkpoints(stage),
                extra_config=recorded,
                **where,
            )

    def select(
        self,
        table: IrreducibleLosses | None,
        out: Path | None,
        *,
        force: bool = False,
        columns: tuple[str, ...] = (),
        watched: np.ndarray | None = None,
        on_record: OnRecord | None = None,
        by: str | None = None,
        **together: Any,
    ) -> tuple[Recording, nn.Module | None]:
        """Stage 3: the proxy selects and records, `by` another acquisition where there are two; `together` is what
        `record` needs for several processes. There is no proxy where none is asked.
        """
        self.check_candidates()
        stage, acquisition = self.selecting(by), self._acquisition(by)
        settings: dict[str, Any] = {"ids": self.pool(table), **together}
        proxy = None
        if needs_proxy(acquisition, together.get("scope", "global")):
            proxy = self.build(self.config.proxy, "proxy", self.config.seed)
            settings["evaluate"] = self.evaluate(watched)
        return self._record(stage, proxy, table, acquisition, out, force, columns, on_record, **settings), proxy

    def selecting(self, by: str | None) -> str:
        """The name of the stage in which a sequence is recorded by one of the acquisitions."""
        return "select" if by in (None, self.acquisitions[0]) else f"select by {by}"

    def _acquisition(self, by: str | None) -> Acquisition:
        return self.acquisition if by in (None, self.acquisitions[0]) else ACQUISITIONS[by]

    def rehearse(self, sequence: Sequence, by: str) -> tuple[Tensor, Cost]:
        """Which of what was held out another model of the proxy's kind misses that learnt from a sequence, and what it
        cost to know.
        """
        config, held_out, stage = self.config, self.prepared.split.holdout, f"rehearse {by}"
        model, seed = self.build(config.proxy, "proxy", config.seed + OTHER), config.seed + OTHER
        forward = in_precision(call, config.training.precision)
        with self.threads(model), self.progress.stage(stage.replace("_", " "), len(sequence)) as on_step:
            history = replay(
                model,
                self.data,
                self.ordered(sequence),
                config=config.training,
                seed=seed,
                num_workers=config.num_workers,
                engine=config.engine,
                on_step=on_step,
                checkpoints=self._checkpoints(stage),
            )
            how = {"forward": forward, "num_workers": config.num_workers}
            return judged(model, self.data, held_out, history, rate_of(model, self.example), **how)

    def pool(self, table: IrreducibleLosses | None) -> np.ndarray:
        """What is selected from: the training side, or what is trusted of it."""
        train, odds = self.prepared.split.train, self._odds(table)
        if not odds:
            return train
        if table is None:
            raise ConfigError(
                f"--trusted needs irreducible losses to judge labels by, which {self.acquisitions[0]} does without; "
                f"leave it out, or give --irreducible FILE"
            )
        trusted = trusted_ids(table, self.data, train, odds=odds)
        if self.config.candidates > len(trusted):
            raise ConfigError(
                f"--trusted {odds:g} leaves {len(trusted):,} of {len(train):,} examples, too few for "
                f"{self.config.candidates} candidates per step; lower --candidates, or select from everything "
                f"(--trusted 0)"
            )
        return trusted

    def _odds(self, table: IrreducibleLosses | None) -> float:
        return usual_odds(self.config.trusted, self.acquisitions[0], table)

    def baseline(self, acquisition: Acquisition, *, on_record: OnRecord | None = None) -> tuple[Recording, nn.Module]:
        """The large model on the same candidates, choosing for itself, and without irreducible losses."""
        model = self.build(self.config.model, "model", self.config.seed)
        name = f"train {acquisition.__name__}"
        settings = {"evaluate": self.evaluate(), "ids": self.prepared.split.train}
        return self._record(name, model, None, acquisition, None, False, (), on_record, **settings), model

    def _record(
        self,
        stage: str,
        model: nn.Module | None,
        table: IrreducibleLosses | None,
        acquisition: Acquisition,
        out: Path | None,
        force: bool,
        columns: tuple[str, ...],
        on_record: OnRecord | None,
        **settings: Any,
    ) -> Recording:
        config, corrupted, selects = self.config, self.prepared.truth.corrupted, stage.startswith("select")
        if model is not None:
            settings |= {"eval_every": self.eval_every, "on_record": curves(self.track, stage, on_record)}
            settings |= {"corrupted": corrupted if corrupted.any() else None}
        with self.threads(model), self.progress.stage(stage, self.steps) as on_step:
            recording = record(
                model,
                self.data,
                irreducible=table,
                acquisition=acquisition,
                rule=self.rule_for(acquisition) if selects else top_k(),
                ahead=config.ahead and selects,
                candidates=config.candidates,
                keep=config.keep,
                steps=self.steps,
                out=out,
                columns=columns,
                force=force,
                config=config.training,
                seed=config.seed,
                num_workers=config.num_workers,
                engine=config.engine,
                on_step=on_step,
                checkpoints=self._checkpoints(stage),
                extra_config={
                    **({} if model is None else {"proxy": config.proxy, "training": asdict(config.training)}),
                    "temperature": config.temperature,
                    "mix_fraction": config.mix_fraction,
                    "trusted": self._odds(table) if selects else 0.0,
                    "data": config.data.recorded(),
                },
                parents={"split": self.prepared.split.digest},
                **settings,
            )
        self.bill(stage, recording.history.cost, recording.steps)
        return recording

    def bill(self, stage: str, cost: Cost, steps: int) -> None:
        self.ledger.stages[stage] = cost
        if self.track is not None:
            self.track.log(f"ledger/{stage}", steps, numbers(asdict(cost)))

    def ordered(self, sequence: Sequence) -> Sequence:
        """A sequence in the order that `window` says."""
        return sequence.shuffled(self.config.window or None, seed=self.config.seed)

    def train(
        self, sequence: Sequence, *, on_record: OnRecord | None = None, probe: Probe | None = None
    ) -> tuple[History, nn.Module]:
        """Stage 4: the large model on the sequence, in the order that `window` says."""
        config, evaluate = self.config, self.evaluate()
        sequence = self.ordered(sequence)
        if probe:
            evaluate, on_record = probe.of_model(evaluate, on_record)
        model = self.build(config.model, "model", config.seed)
        with self.threads(model), self.progress.stage("train on the sequence", len(sequence)) as on_step:
            history = replay(
                model,
                self.data,
                sequence,
                config=config.training,
                seed=config.seed,
                num_workers=config.num_workers,
                engine=config.engine,
                evaluate=evaluate,
                eval_every=max(1, len(sequence) // EVALUATIONS),
                on_record=curves(self.track, "train", on_record),
                on_step=on_step,
                checkpoints=self._checkpoints("train"),
            )
        self.bill("train", history.cost, history.steps)
        return history, model
