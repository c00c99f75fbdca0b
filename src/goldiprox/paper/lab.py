"""Where the figures' runs are made: each is looked up first, and kept when it is done."""

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from goldiprox.analysis import share, share_over_time
from goldiprox.crossfit import irreducible_losses
from goldiprox.data import TensorData, fingerprint
from goldiprox.forward import Precision, call, in_precision
from goldiprox.holdout import Checkpoint, HoldoutConfig
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.loop import Evaluate, History, evaluate_on
from goldiprox.models import build
from goldiprox.optim import TrainingConfig
from goldiprox.paper.selections import Selection, acquisition_of
from goldiprox.paper.settings import Plan
from goldiprox.paper.worlds import World
from goldiprox.prepare import Prepared
from goldiprox.recording import record_many
from goldiprox.rules import make_rule
from goldiprox.sequence import Sequence as Recorded
from goldiprox.snapshots import Snapshots, compared_ids, taken
from goldiprox.stages import Progress
from goldiprox.store import Kept, Runs, Store
from goldiprox.training import replay

SMALL = frozenset({"mlp128", "mlp512", "small_cnn"})
"""Models of which several seeds train at once on a GPU in little more than the time of one."""


class Lab:
    """Makes runs for every seed of a plan, or finds them.

    Args:
        plan: Sizes and seeds.
        store: Keeps what is finished.
        progress: Shows what is not.
    """

    def __init__(self, plan: Plan, store: Store, progress: Progress):
        self.plan, self.store, self.progress = plan, store, progress
        self.device = store.device
        self.precision: Precision = plan.precision if self.device.type == "cuda" else "fp32"

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def prepared(self, world: World) -> tuple[Prepared, TensorData, TensorData, str]:
        """The data of a world, ready to train on, its test set, and its fingerprint."""
        prepared = world.prepare()
        data, test = prepared.data, prepared.test
        if self.device.type == "cuda" and data.x.ndim == 4:
            data, test = data.channels_last(), test.channels_last()
        return prepared, data, test, fingerprint(prepared.data)

    def tables(self, world: World, il_model: str, checkpoint: Checkpoint = "inner") -> Runs:
        """A holdout model's losses for each seed: ``arrays["values"]``, and its accuracy."""
        config = HoldoutConfig(
            checkpoint=checkpoint,
            max_epochs=self.plan.holdout_epochs,
            training=TrainingConfig(precision=self.precision),
        )
        prepared, data, _, print_ = self.prepared(world)

        def settings(seed: int) -> dict[str, Any]:
            return {
                "data": print_,
                "split": prepared.split.digest,
                "il_model": il_model,
                **asdict(config),
                "seed": seed,
            }

        def make(seeds: Sequence[int]) -> Runs:
            made = []
            for seed in seeds:
                with self.progress.stage(f"holdout model, seed {seed}", None) as on_step:
                    table, _, reports, cost = irreducible_losses(
                        lambda fold, s=seed: self.build(data, il_model, s + 7919 * (fold + 1)),
                        data,
                        prepared.split,
                        config=config,
                        seed=seed,
                        on_step=on_step,
                    )
                numbers = {"accuracy": reports[0].figures["accuracy"], "epoch": reports[0].epoch}
                made.append(Kept(numbers | {"seconds": cost.seconds}, {"values": table.values.numpy()}))
            return made

        return self.store.found_or_made("holdout", self.plan.seeds, settings, make, together=1)

    def build(self, data: TensorData, name: str, seed: int, dropout: float = 0.0) -> nn.Module:
        options = {"dropout": dropout} if dropout else {}
        model = build(name, data.input_shape, data.num_classes or 0, seed=seed, device=self.device, **options)
        if data.is_channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def select(self, world: World, selection: Selection) -> Runs:
        """What a model reached and picked, for each seed.

        ``numbers``: ``epochs``, ``accuracy``, ``mislabelled`` and ``white_noise`` (shares since the evaluation
        before), the shares over all picks, ``coverage``.
        """
        prepared, _, _, print_ = self.prepared(world)
        tables: list[IrreducibleLosses | None] = [None] * len(self.plan.seeds)
        digests = [""] * len(tables)
        if selection.needs_table:
            known = self.tables(world, selection.il_model or selection.model, selection.checkpoint)
            values = [torch.from_numpy(k.arrays["values"]) for k in known]
            tables = [IrreducibleLosses(v) for v in values]
            digests = [t.digest for t in tables if t is not None]
        sizes = {"candidates": self.plan.candidates, "keep": self.plan.keep, "evaluations": self.plan.evaluations}

        def settings(seed: int) -> dict[str, Any]:
            given = {"data": print_, "split": prepared.split.digest, "table": digests[self.plan.seeds.index(seed)]}
            compared = {"compared": self.plan.compared} if selection.compares else {}
            return {**asdict(selection), **given, **sizes, **compared, "precision": self.precision, "seed": seed}

        def make(seeds: Sequence[int]) -> Runs:
            keys = [self.store.key("select", settings(s)) for s in seeds] if selection.compares else []
            mine = [tables[self.plan.seeds.index(s)] for s in seeds]
            return self._select(world, selection, seeds, mine, keys)

        return self.store.found_or_made("select", self.plan.seeds, settings, make, together=self._at_once(selection))

    def _at_once(self, selection: Selection) -> int:
        """How many seeds train side by side: all of a small model; one with dropout, since a graph draws for one."""
        is_light = selection.model in SMALL and not selection.dropout
        return len(self.plan.seeds) if is_light else 1

    def _select(
        self,
        world: World,
        selection: Selection,
        seeds: Sequence[int],
        tables: Sequence[IrreducibleLosses | None],
        keys: Sequence[str],
    ) -> Runs:
        plan = self.plan
        prepared, data, test, _ = self.prepared(world)
        per_epoch = len(prepared.split.train) // plan.candidates
        steps = selection.epochs * per_epoch
        watchers = [self._evaluate(data, test, t if selection.compares else None, prepared) for t in tables]
        models = [self.build(data, selection.model, seed, selection.dropout) for seed in seeds]
        title = f"{selection.model}, {selection.acquisition}"
        with self.progress.stage(title, steps) as on_step:
            recordings = record_many(
                models,
                data,
                each=[
                    {"seed": seed, "irreducible": t if selection.needs_table else None, "evaluate": w}
                    | ({"out": self.store.path(keys[n], ".arrow"), "force": True} if keys else {})
                    | ({"on_step": on_step} if n == 0 else {})
                    for n, (seed, t, w) in enumerate(zip(seeds, tables, watchers, strict=True))
                ],
                acquisition=acquisition_of(selection, per_epoch),
                rule=make_rule(selection.rule),
                candidates=plan.candidates,
                keep=plan.keep,
                steps=steps,
                ids=prepared.split.train,
                config=TrainingConfig(lr=selection.lr, schedule=selection.schedule, precision=self.precision),
                eval_every=max(1, steps // plan.evaluations),
            )
        made = []
        for recording, watcher in zip(recordings, watchers, strict=True):
            numbers = self._curve(recording.history, per_epoch) | {"digest": recording.digest}
            numbers |= _picks(recording.ids, prepared, [e["step"] for e in recording.history.evaluations], plan.keep)
            made.append(Kept(numbers, taken(watcher), recording.path))
        return made

    def train_on(self, world: World, chosen: Runs, selection: Selection, model: str) -> Runs:
        """Another model on the sequences that a selection recorded, seed by seed."""
        prepared, data, test, print_ = self.prepared(world)
        proxies = dict(zip(self.plan.seeds, chosen, strict=True))
        tables = self.tables(world, selection.il_model or selection.model, selection.checkpoint)
        known = dict(zip(self.plan.seeds, tables, strict=True))
        config = TrainingConfig(lr=selection.lr, schedule=selection.schedule, precision=self.precision)

        def settings(seed: int) -> dict[str, Any]:
            sequence = proxies[seed].numbers["digest"]
            sizes = {"evaluations": self.plan.evaluations, "compared": self.plan.compared}
            return {"data": print_, "model": model, "sequence": sequence, **asdict(config), **sizes, "seed": seed}

        def make(seeds: Sequence[int]) -> Runs:
            made = []
            for seed in seeds:
                path = proxies[seed].sequence
                assert path is not None, "a selection that compares keeps its sequence"
                sequence = Recorded.open(path, data)
                table = IrreducibleLosses(torch.from_numpy(known[seed].arrays["values"]))
                watcher = self._evaluate(data, test, table, prepared)
                with self.progress.stage(f"{model} on the sequence", len(sequence)) as on_step:
                    history = replay(
                        self.build(data, model, seed),
                        data,
                        sequence,
                        config=config,
                        seed=seed,
                        evaluate=watcher,
                        eval_every=max(1, len(sequence) // self.plan.evaluations),
                        on_step=on_step,
                    )
                per_epoch = len(prepared.split.train) // self.plan.candidates
                made.append(Kept(self._curve(history, per_epoch), taken(watcher)))
            return made

        return self.store.found_or_made("train", self.plan.seeds, settings, make, together=1)

    def _evaluate(
        self, data: TensorData, test: TensorData, table: IrreducibleLosses | None, prepared: Prepared
    ) -> Evaluate:
        on_test = evaluate_on(test, forward=in_precision(call, self.precision))
        if table is None:
            return on_test
        size = self.plan.candidates
        ids = compared_ids(prepared.split.train, size, self.plan.compared)
        return Snapshots(on_test, data, ids, size, table, self.precision)

    def _curve(self, history: History, per_epoch: int) -> dict[str, Any]:
        return {
            "epochs": [e["step"] / per_epoch for e in history.evaluations],
            "accuracy": [e["accuracy"] for e in history.evaluations],
            "seconds": history.cost.seconds + history.cost.evaluation_seconds,
            "flops": history.cost.flops,
        }


def _picks(ids: np.ndarray, prepared: Prepared, steps: Sequence[int], keep: int) -> dict[str, Any]:
    truth, train = prepared.truth, prepared.split.train
    numbers: dict[str, Any] = {"coverage": len(np.unique(ids)) / len(train)}
    for name, flags in {"mislabelled": truth.mislabelled, "white_noise": truth.white_noise}.items():
        numbers[name] = share_over_time(ids, flags, keep=keep, steps=steps)
        numbers[f"{name}_overall"] = share(ids, flags)
        numbers[f"{name}_in_data"] = share(train, flags)
    return numbers
