"""What every run of a comparison needs, and the runs that others are held against: uniform ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from goldiprox.compare.kept import beginning, figures, identity
from goldiprox.compare.plan import EVALUATIONS, Plan, UniformOn
from goldiprox.data import fingerprint, iterate
from goldiprox.engine import Given, on_device
from goldiprox.errors import ConfigError
from goldiprox.forward import device_of
from goldiprox.loop import OnStep, Task, fit_together, rate_of
from goldiprox.optim import Schedule, TrainingConfig
from goldiprox.selection import CandidateSampler
from goldiprox.split import digest_ids
from goldiprox.stages import Progress, Stages
from goldiprox.store import Kept, Runs, Store

Pools: TypeAlias = dict[int, np.ndarray]
"""For every seed the ids that are selected from."""


class Bench:
    """Data, models and the folder of finished runs; makes uniform runs for every seed of a plan, or finds them.

    Args:
        plan: What is compared.
        folder: Where finished runs are kept.
        progress: Shows what is not finished.
    """

    def __init__(self, plan: Plan, folder: Path, progress: Progress):
        self.plan, self.progress = plan, progress
        self.stages = Stages(plan.config)
        self.device = self.stages.device
        self.store = Store(folder, self.device)
        self.train = self.stages.prepared.split.train
        self._data = {
            "data": fingerprint(self.stages.prepared.data),
            "test": fingerprint(self.stages.prepared.test),
            "split": self.stages.prepared.split.digest,
        }
        self.stages.check_candidates()
        if plan.config.keep > len(self.train):
            raise ConfigError(f"--keep {plan.config.keep}: the training side has only {len(self.train):,} examples")
        self.stages.build(plan.config.model, "model", plan.seeds[0])

    def uniform(self, schedule: Schedule) -> list[Runs]:
        """The large model on shuffled passes, as a plain loader gives them: for every length of the plan and seed.

        With a constant learning rate a shorter run is the beginning of a longer one, and is not made again.
        """
        plan, lengths = self.plan, self.plan.uniform_steps
        if schedule == "constant":
            whole = self._uniform(schedule, lengths[-1], plan.unit)
            return [[beginning(run, steps) for run in whole] for steps in lengths]
        return [self._uniform(schedule, steps, max(plan.unit, steps // EVALUATIONS)) for steps in lengths]

    def everything(self, schedule: Schedule) -> Runs | None:
        """The large model on shuffled passes over both sides, for as many steps as methods train it.

        None where `uniform` gives that: what was held out for selection could have been trained on.
        """
        if self.plan.uniform_on == "everything" or not len(self.stages.prepared.split.holdout):
            return None
        return self._uniform(schedule, self.plan.method_steps, self.plan.unit, on="everything")

    def _uniform(
        self, schedule: Schedule, steps: int, every: int, on: UniformOn | None = None, pools: Pools | None = None
    ) -> Runs:
        config, name, on = self.plan.training(schedule), self.plan.config.model, on or self.plan.uniform_on
        ids = self.train if on == "train" else np.union1d(self.train, self.stages.prepared.split.holdout)
        which = ", trusted labels" if pools else ", all data" * (ids is not self.train)
        pools = pools or dict.fromkeys(self.plan.seeds, ids)

        def settings(seed: int) -> dict[str, Any]:
            given = {"model": identity(name), "dropout": self.plan.config.dropout, "keep": self.plan.config.keep}
            given |= {"on": on if pools[seed] is ids else digest_ids(pools[seed]), "steps": steps, "every": every}
            return {**self._data, **given, **asdict(config), "seed": seed}

        def make(seeds: Sequence[int]) -> Runs:
            with self._stage(f"uniform, {steps:,} steps{which}", name, steps) as on_step:
                models = [self.stages.build(name, "model", seed) for seed in seeds]
                tasks = [
                    self._plain(model, pools[seed], seed, steps, every, config, on_step if n == 0 else None)
                    for n, (model, seed) in enumerate(zip(models, seeds, strict=True))
                ]
                return [Kept(figures(h)) for h in fit_together(tasks, engine=self.plan.config.engine)]

        return self._runs("uniform", settings, make, self.plan.at_once)

    def _plain(
        self,
        model: nn.Module,
        ids: np.ndarray,
        seed: int,
        steps: int,
        every: int,
        config: TrainingConfig,
        on_step: OnStep | None,
    ) -> Task:
        data, num_workers, device = self.stages.data, self.plan.config.num_workers, device_of(model)
        sampler = CandidateSampler(ids, self.plan.config.keep, seed=seed, steps=steps)
        batches = iterate(data, sampler.batches(), device=device, num_workers=num_workers, seed=seed)
        resident = on_device(data, device, num_workers)

        def window(first: int, count: int) -> torch.Tensor:
            return sampler.window(first, count, device)

        return Task(
            model,
            batches if resident is None else Given(resident, window, batches),
            steps=steps,
            config=config,
            seed=seed,
            evaluate=self.stages.evaluate(),
            eval_every=every,
            rate=rate_of(model, self.stages.example),
            on_step=on_step,
        )

    @contextmanager
    def _stage(self, title: str, model: str, total: int | None) -> Iterator[OnStep | None]:
        """A progress bar, and as many threads as the model is worth."""
        threads = self.stages.threads(self.stages.build(model, "model", 0))
        with threads, self.progress.stage(title, total) as on_step:
            yield on_step

    def _runs(
        self,
        kind: str,
        settings: Callable[[int], dict[str, Any]],
        make: Callable[[Sequence[int]], Runs],
        at_once: int,
        seeds: Sequence[int] | None = None,
    ) -> Runs:
        # One after another where a graph cannot hold several: then each is kept as soon as it is done.
        together = at_once if self.device.type == "cuda" and not self.plan.config.dropout else 1
        chosen = self.plan.seeds if seeds is None else seeds
        return self.store.found_or_made(kind, chosen, settings, make, together=together)
