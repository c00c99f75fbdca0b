"""Where the runs of a comparison are made: each is looked up first, and kept when it is done."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from goldiprox.acquisition import ACQUISITIONS, Acquisition, needs_proxy, needs_table
from goldiprox.analysis import share
from goldiprox.compare.bench import Bench, Pools
from goldiprox.compare.kept import figures, identity, summed, table_of
from goldiprox.compare.methods import Method
from goldiprox.compare.plan import Plan
from goldiprox.crossfit import irreducible_losses
from goldiprox.enough import Attempt, Signs, attempts, until_enough
from goldiprox.errors import ConfigError
from goldiprox.forward import call, generalised_cross_entropy, in_precision
from goldiprox.holdout import HoldoutConfig
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.loop import Evaluate, rate_of
from goldiprox.optim import Schedule
from goldiprox.recording import record_many
from goldiprox.rehearsal import OTHER, acquisitions, best, judged, too_small
from goldiprox.resolve import resolve
from goldiprox.rules import Rule, make_rule, usual_rule
from goldiprox.sequence import Sequence as Recorded
from goldiprox.snapshots import Snapshots, compared_ids, taken
from goldiprox.split import digest_ids
from goldiprox.stages import Progress
from goldiprox.store import Kept, Runs
from goldiprox.suspects import trusted_ids, usual_odds
from goldiprox.training import replay_many


class Lab(Bench):
    """Makes runs for every seed of a plan, or finds them.

    Settings, models and every method are tried before the first run.

    Args:
        plan: What is compared.
        folder: Where finished runs are kept.
        progress: Shows what is not finished.
    """

    def __init__(self, plan: Plan, folder: Path, progress: Progress):
        super().__init__(plan, folder, progress)
        self._flops = cache(self.stages.flops)
        for method in plan.methods:
            self._try(method)

    def _try(self, method: Method) -> None:
        """Everything about a method that can fail, on a few examples."""
        if (method.candidates or 0) > len(self.train):
            raise ConfigError(
                f"method {method.name}: {method.candidates} candidates per step, but the training side has only "
                f"{len(self.train):,} examples"
            )
        if self.needs_table(method):
            if not self._folds(method):
                self.stages.prepared.split.require_holdout()
            self._il_models(method)
        proxy = self.stages.build(self._proxy(method), "proxy", self.plan.seeds[0])
        for by in self.acquisitions(method):
            self.stages.try_selection(proxy, self._acquisition(by), self._rule(method, by))

    def chance(self, method: Method, schedule: Schedule) -> Runs | None:
        """The large model on shuffled passes over what a method selects from: what it is worth without a proxy.

        None where that is the whole training side.
        """
        pools = self.pools(method)
        if all(len(pool) == len(self.train) for pool in pools.values()):
            return None
        return self._uniform(schedule, self.plan.method_steps, self.plan.unit, pools=pools)

    def tables(self, method: Method) -> tuple[list[IrreducibleLosses], list[dict[str, Any]]]:
        """For every seed the irreducible losses, and of all models behind them the cost, which it was, and why."""
        members = [self._tables(method, OTHER * number) for number in range(method.il_models)]
        tables, costs = [], []
        for runs in zip(*members, strict=True):
            each = [table_of(run) for run in runs]
            tables.append(IrreducibleLosses.combined(each, method.combine) if len(each) > 1 else each[0])
            costs.append({unit: summed(run.numbers[unit] for run in runs) for unit in ("flops", "seconds")})
            costs[-1]["made_by"] = "+".join(dict.fromkeys(run.numbers["il_model"] for run in runs))
            costs[-1]["accuracy"] = float(np.mean([run.numbers["accuracy"] for run in runs]))
            costs[-1]["augment"] = runs[0].numbers["augment"]
            costs[-1]["cleaned"] = all(run.numbers["cleaned"] for run in runs)
            costs[-1]["instead"] = next((why for run in runs if (why := run.numbers.get("instead"))), None)
        return tables, costs

    def _tables(self, method: Method, offset: int) -> Runs:
        """Of the first holdout model; where that falls short, of the next."""
        how, found = self._holdout(method), []
        for seed in self.plan.seeds:
            made: list[Kept] = []

            def make(
                attempt: Attempt, how: HoldoutConfig, instead: dict[str, Any] | None, seed=seed, made=made
            ) -> Signs:
                (run,) = self._tables_of(attempt.name, how, method, offset, [seed])
                made.append(replace(run, numbers=run.numbers | {"instead": instead}))
                return Signs(**run.numbers["signs"])

            until_enough(self._il_models(method), how, make)
            costs = {unit: summed(run.numbers[unit] for run in made) for unit in ("flops", "seconds")}
            found.append(replace(made[-1], numbers=made[-1].numbers | costs))
        return found

    def _holdout(self, method: Method) -> HoldoutConfig:
        base = self.plan.config.holdout
        return replace(
            base,
            checkpoint=method.checkpoint or base.checkpoint,
            max_epochs=method.holdout_epochs or base.max_epochs,
            min_steps=0 if method.holdout_epochs else base.min_steps,
            mixup=method.mixup or base.mixup,
            augment=method.augment or base.augment,
            cleaned=self._cleaned(method),
            calibrated=base.calibrated if method.calibrated is None else bool(method.calibrated),
            training=replace(base.training, schedule=method.il_schedule or base.training.schedule),
        )

    def _tables_of(self, name: str, config: HoldoutConfig, method: Method, offset: int, seeds: Sequence[int]) -> Runs:
        folds = self._folds(method)
        training_loss = generalised_cross_entropy(method.robust) if method.robust else None

        def settings(seed: int) -> dict[str, Any]:
            given = {"il_model": identity(name), "dropout": self.plan.config.dropout, "folds": folds}
            return {**self._data, **given, **asdict(config), "robust": method.robust, "seed": seed + offset}

        def make(seeds: Sequence[int]) -> Runs:
            made = []
            for seed in (s + offset for s in seeds):
                with self._stage(f"holdout model {name}, seed {seed}", name, None) as on_step:
                    table, _, reports, cost = irreducible_losses(
                        lambda fold, s=seed: self.stages.build(name, "holdout model", s + 7919 * (fold + 1)),
                        self.stages.data,
                        self.stages.prepared.split,
                        num_folds=folds,
                        config=config,
                        training_loss=training_loss,
                        seed=seed,
                        num_workers=self.plan.config.num_workers,
                        engine=self.plan.config.engine,
                        on_step=on_step,
                    )
                accuracy = float(np.mean([r.figures["accuracy"] for r in reports]))
                numbers = {
                    "accuracy": accuracy,
                    "epoch": reports[0].epoch,
                    "mixup": reports[0].mixup,
                    "augment": reports[0].augment,
                    "cleaned": config.cleaned,
                    "signs": asdict(Signs.of(table, reports[0])),
                    "il_model": name,
                    "flops": cost.flops,
                    "seconds": cost.seconds,
                }
                arrays = {"values": table.values.numpy()}
                if table.rivals is not None:
                    arrays |= {field: value.numpy() for field, value in table.rivals._asdict().items()}
                made.append(Kept(numbers, arrays))
            return made

        return self._runs("holdout", settings, make, 1, seeds)

    def recorded(self, method: Method, schedule: Schedule) -> Runs:
        """The proxy's recordings, with their sequences; where there are two, for every seed the one that the rehearsals
        are for, at the cost of both and of knowing which, or the first where rehearsals would not tell.
        """
        own, seeds = method.proxy_schedule or schedule, self.plan.seeds
        first, *others = self.acquisitions(method)
        recordings = (self._proxy(method), "proxy", own, self.plan.proxies_at_once)

        def selected(by: str) -> dict[int, Kept]:
            runs = self._selecting(method, by, *recordings)
            return {seed: replace(run, numbers=run.numbers | {"by": by}) for seed, run in zip(seeds, runs, strict=True)}

        found = {first: selected(first)}
        if not others:
            return list(found[first].values())
        small = self._too_small(method)
        asked = [seed for seed in seeds if small[seed] is None]
        found |= {by: selected(by) for by in others if asked}
        rehearsed = {
            by: self._rehearsed(method, {seed: runs[seed] for seed in asked}, by, schedule)
            for by, runs in found.items()
        }
        return [
            _taken({by: runs[seed] for by, runs in found.items()}, {by: runs[seed] for by, runs in rehearsed.items()})
            if seed in asked
            else replace(found[first][seed], numbers=found[first][seed].numbers | {"too_small": small[seed]})
            for seed in seeds
        ]

    def _too_small(self, method: Method) -> dict[int, float | None]:
        """For every seed, as `goldiprox.rehearsal.too_small` says."""
        made = [run.numbers for run in self._tables(method, 0)]
        models = [
            numbers["signs"] | {"name": numbers["il_model"], "instead": numbers.get("instead")} for numbers in made
        ]
        return {s: too_small(self._proxy(method), il) for s, il in zip(self.plan.seeds, models, strict=True)}

    def _rehearsed(
        self, method: Method, recordings: Mapping[int, Kept], by: str, schedule: Schedule
    ) -> dict[int, Kept]:
        """Another model of the proxy's kind on every sequence, and what it misses of what was held out."""
        plan, name, held_out = self.plan, self._proxy(method), self.stages.prepared.split.holdout
        config = plan.training(schedule)

        def settings(seed: int) -> dict[str, Any]:
            given = {"proxy": identity(name), "dropout": plan.config.dropout, "window": self._window(method)}
            given |= {"sequence": recordings[seed].numbers["digest"]}
            return {**self._data, **given, **asdict(config), "seed": seed + OTHER}

        def make(seeds: Sequence[int]) -> Runs:
            models = [self.stages.build(name, "proxy", seed + OTHER) for seed in seeds]
            with self._stage(f"rehearsal, {by.replace('_', ' ')}", name, plan.method_steps) as on_step:
                histories = replay_many(
                    models,
                    self.stages.data,
                    [self._ordered(method, recordings[seed], seed) for seed in seeds],
                    engine=plan.config.engine,
                    each=[{"seed": s + OTHER} | ({"on_step": on_step} if n == 0 else {}) for n, s in enumerate(seeds)],
                    config=config,
                    num_workers=plan.config.num_workers,
                )
                made = []
                how = {"forward": in_precision(call, config.precision), "num_workers": plan.config.num_workers}
                for model, history in zip(models, histories, strict=True):
                    rate = rate_of(model, self.stages.example)
                    missed, cost = judged(model, self.stages.data, held_out, history, rate, **how)
                    made.append(Kept({"flops": cost.flops, "seconds": cost.seconds}, {"missed": missed.bool().numpy()}))
            return made

        runs = self._runs("rehearsal", settings, make, plan.proxies_at_once, list(recordings))
        return dict(zip(recordings, runs, strict=True))

    def _ordered(self, method: Method, run: Kept, seed: int) -> Recorded:
        """A recorded sequence in the order that the method says."""
        return Recorded.open(str(run.sequence), self.stages.data).shuffled(self._window(method) or None, seed=seed)

    def itself(self, method: Method, schedule: Schedule) -> Runs:
        """The large model, selecting for itself."""
        by = self.acquisitions(method)[0]
        return self._selecting(method, by, self.plan.config.model, "model", schedule, self.plan.at_once)

    def _selecting(self, method: Method, by: str, name: str, role: str, schedule: Schedule, at_once: int) -> Runs:
        plan = self.plan
        config = plan.training(schedule)
        mine, pools = self._tables_by_seed(method), self.pools(method)
        candidates, steps = method.candidates or plan.config.candidates, plan.method_steps
        trains = role == "model" or needs_proxy(self._acquisition(by))

        def settings(seed: int) -> dict[str, Any]:
            table = mine[seed]
            given = {
                "acquisition": identity(by),
                "rule": self._rule_text(method, by),
                "candidates": candidates,
                "keep": plan.config.keep,
                "table": "" if table is None else table.digest,
                "pool": digest_ids(pools[seed]),
            }
            if trains:
                given |= {role: identity(name), "dropout": plan.config.dropout, **asdict(config), "every": plan.unit}
                given |= {"compared": plan.compared if table is not None and role == "proxy" else 0}
            return {**self._data, **given, "steps": steps, "seed": seed}

        def make(seeds: Sequence[int]) -> Runs:
            watchers = [self._watcher(mine[s] if role == "proxy" else None) if trains else None for s in seeds]
            paths = [self.store.path(self.store.key(f"select-{role}", settings(s)), ".arrow") for s in seeds]
            title = f"{role}, {method.name}" if trains else f"list, {method.name}, by {by}"
            with self._stage(title, name, steps) as on_step:
                recordings = record_many(
                    [self.stages.build(name, role, seed) if trains else None for seed in seeds],
                    self.stages.data,
                    engine=plan.config.engine,
                    each=[
                        {"seed": seed, "irreducible": mine[seed], "evaluate": watcher}
                        | {"ids": pools[seed]}
                        | ({"out": path, "force": True} if role == "proxy" else {})
                        | ({"on_step": on_step} if n == 0 else {})
                        for n, (seed, watcher, path) in enumerate(zip(seeds, watchers, paths, strict=True))
                    ],
                    acquisition=self._acquisition(by),
                    rule=self._rule(method, by),
                    candidates=candidates,
                    keep=plan.config.keep,
                    steps=steps,
                    config=config,
                    num_workers=plan.config.num_workers,
                    eval_every=plan.unit if trains else None,
                )
            return [
                Kept(figures(r.history) | self._picks(r.ids) | {"digest": r.digest}, taken(w) if w else {}, r.path)
                for r, w in zip(recordings, watchers, strict=True)
            ]

        return self._runs(f"select-{role}", settings, make, at_once)

    def replayed(self, method: Method, schedule: Schedule) -> Runs:
        """The large model on the proxy's sequences, seed by seed."""
        plan, name = self.plan, self.plan.config.model
        proxies = dict(zip(plan.seeds, self.recorded(method, schedule), strict=True))
        mine = self._tables_by_seed(method)
        config = plan.training(schedule)

        def settings(seed: int) -> dict[str, Any]:
            table = mine[seed]
            given = {
                "model": identity(name),
                "dropout": plan.config.dropout,
                "sequence": proxies[seed].numbers["digest"],
                "window": self._window(method),
                "table": "" if table is None else table.digest,
                "compared": [plan.compared, plan.config.candidates] if table is not None else 0,
            }
            return {**self._data, **given, **asdict(config), "every": plan.unit, "seed": seed}

        def make(seeds: Sequence[int]) -> Runs:
            sequences = [self._ordered(method, proxies[seed], seed) for seed in seeds]
            watchers = [self._watcher(mine[s]) for s in seeds]
            with self._stage(f"sequence, {method.name}", name, plan.method_steps) as on_step:
                histories = replay_many(
                    [self.stages.build(name, "model", seed) for seed in seeds],
                    self.stages.data,
                    sequences,
                    engine=plan.config.engine,
                    each=[
                        {"seed": seed, "evaluate": watcher} | ({"on_step": on_step} if n == 0 else {})
                        for n, (seed, watcher) in enumerate(zip(seeds, watchers, strict=True))
                    ],
                    config=config,
                    num_workers=plan.config.num_workers,
                    eval_every=plan.unit,
                )
            return [Kept(figures(h), taken(w)) for h, w in zip(histories, watchers, strict=True)]

        return self._runs("replay", settings, make, plan.at_once)

    def acquisitions(self, method: Method) -> tuple[str, ...]:
        """What its proxies record by."""
        name, held_out = method.acquisition or self.plan.config.acquisition, len(self.stages.prepared.split.holdout)
        return acquisitions(name, self._given_rule(method), held_out)

    def _given_rule(self, method: Method) -> str:
        return self.plan.config.rule if method.rule == "default" else method.rule

    def _rule(self, method: Method, by: str) -> Rule:
        steps = self.plan.method_steps
        passes = steps * self.plan.config.keep / len(self.train)
        return make_rule(self._rule_text(method, by), steps=steps, passes=passes)

    def _rule_text(self, method: Method, by: str) -> str:
        return usual_rule(self._given_rule(method), self._acquisition(by))

    def _window(self, method: Method) -> int:
        return self.plan.config.window if method.window is None else method.window

    def _tables_by_seed(self, method: Method) -> dict[int, IrreducibleLosses | None]:
        if not self.needs_table(method):
            return dict.fromkeys(self.plan.seeds)
        return dict(zip(self.plan.seeds, self.tables(method)[0], strict=True))

    def _odds(self, method: Method, table: IrreducibleLosses | None) -> float:
        given = self.plan.config.trusted if method.trusted is None else method.trusted
        return usual_odds(given, self.acquisitions(method)[0], table)

    def pools(self, method: Method) -> Pools:
        """What a method selects from, for every seed."""
        tables = self._tables_by_seed(method)
        pools = dict.fromkeys(tables, self.train)
        for seed, table in tables.items():
            if table and (odds := self._odds(method, table)):
                pools[seed] = trusted_ids(table, self.stages.data, self.train, odds=odds)
        return pools

    def needs_table(self, method: Method) -> bool:
        return bool(method.trusted) or needs_table(self.acquisitions(method)[0])

    def _watcher(self, table: IrreducibleLosses | None) -> Evaluate:
        on_test, config = self.stages.evaluate(), self.plan.config
        if table is None or not self.plan.compared:
            return on_test
        ids = compared_ids(self.train, config.candidates, self.plan.compared)
        return Snapshots(on_test, self.stages.data, ids, config.candidates, table, config.training.precision)

    def _picks(self, ids: np.ndarray) -> dict[str, float]:
        """What was kept after a quarter of the run, and at its end."""
        wrong, quarter = self.stages.prepared.truth.corrupted, ids[: len(ids) // 4]
        return {
            "coverage": len(np.unique(ids)) / len(self.train),
            "coverage_at_quarter": len(np.unique(quarter)) / len(self.train),
            "distinct_at_quarter": len(np.unique(quarter)) / len(quarter),
            "corrupted": share(ids, wrong),
            "corrupted_at_quarter": share(quarter, wrong),
        }

    def _acquisition(self, by: str) -> Acquisition:
        return resolve("acquisition", by, ACQUISITIONS)

    def _proxy(self, method: Method) -> str:
        return method.proxy or self.plan.config.proxy

    def _il_models(self, method: Method) -> list[Attempt]:
        name, judged = method.il_model or self.plan.config.il_model, self._cleaned(method)
        given = (name, self._proxy(method), self.plan.config.model)
        moving = self._holdout(method).augment == "auto"
        return attempts(*given, judged=judged, moving=moving, flops=self._flops)

    def _cleaned(self, method: Method) -> bool:
        return self.plan.config.holdout.cleaned if method.cleaned is None else bool(method.cleaned)

    def _folds(self, method: Method) -> int:
        return self.plan.config.num_folds if method.folds is None else method.folds


def _taken(found: Mapping[str, Kept], rehearsed: Mapping[str, Kept]) -> Kept:
    """Of a seed's recordings the one that its rehearsals are for, with the bill for all of them."""
    missed = {by: torch.from_numpy(run.arrays["missed"]).double() for by, run in rehearsed.items()}
    accuracies = {by: float((1 - each).mean()) for by, each in missed.items()}
    runs = [*found.values(), *rehearsed.values()]
    costs = {unit: summed(run.numbers[unit] for run in runs) for unit in ("flops", "seconds")}
    chosen = found[best(missed)]
    return replace(chosen, numbers=chosen.numbers | costs | {"rehearsed": accuracies})
