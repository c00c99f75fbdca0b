"""The runs of a comparison and what they say, as one JSON object."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from goldiprox.analysis import REPLAYS, spearman
from goldiprox.artifacts import check_folder, versions
from goldiprox.compare.lab import Lab
from goldiprox.compare.methods import Method
from goldiprox.compare.plan import EVALUATIONS, Plan
from goldiprox.compare.verdict import Bill, Frontier, below_uniform, interval, judge
from goldiprox.errors import NonFiniteError
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.optim import Schedule
from goldiprox.outputs import write_json
from goldiprox.snapshots import compared_ids
from goldiprox.stages import Progress, Silent
from goldiprox.store import Runs, hardware
from goldiprox.suspects import average_precision, find_suspects

QUARTER = EVALUATIONS // 4 - 1
"""The evaluation after a quarter of the run."""
SIGNALS = ("ahead_of_uniform", "rank_correlation", "distinct", "corrupted", "wrong_labels_told")


def compare(plan: Plan, out: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Makes or finds every run, judges the methods, and writes ``compare.json``.

    Args:
        plan: What is compared.
        out: The folder; finished runs are kept in ``out/runs``, so that a call that was broken off goes on.
        progress: Shows it.

    Returns:
        What ``goldiprox compare --json`` prints.
    """
    check_folder(out)
    lab = Lab(plan, out / "runs", progress or Silent())
    result = describe(lab) | {"schedules": {s: _of_schedule(lab, s) for s in plan.schedules}, "out": str(out)}
    write_json(out / "compare.json", result)
    return json.loads((out / "compare.json").read_text())


def describe(lab: Lab) -> dict[str, Any]:
    """What the figures were measured on."""
    plan, prepared = lab.plan, lab.stages.prepared
    wrong = prepared.truth.corrupted
    return {
        "data": plan.config.data.recorded(),
        "num_train": len(lab.train),
        "corrupted": {
            "training side": float(wrong[lab.train].mean()),
            "holdout": float(wrong[prepared.split.holdout].mean()) if len(prepared.split.holdout) else None,
        },
        "model": plan.config.model,
        "proxy": plan.config.proxy,
        "il_model": plan.config.il_model,
        "uniform_on": plan.uniform_on,
        "steps": plan.method_steps,
        "keep": plan.config.keep,
        "candidates": plan.config.candidates,
        "training": asdict(plan.config.training) | {"schedule": list(plan.schedules)},
        "seeds": list(plan.seeds),
        "replays": list(REPLAYS),
        "at_once": plan.at_once if lab.device.type == "cuda" else 1,
        "hardware": hardware(lab.device) + (", small models on one" if lab.device.type == "cpu" else ""),
        "versions": versions(),
    }


def _of_schedule(lab: Lab, schedule: Schedule) -> dict[str, Any]:
    uniform = Uniform(lab, schedule)
    methods = {m.name: of_method(lab, m, schedule, uniform) for m in lab.plan.methods}
    return {"uniform": uniform.as_dict(), "methods": methods, "signals": foretold(methods)}


class Uniform:
    """The uniform runs under one schedule, which every method is held against."""

    def __init__(self, lab: Lab, schedule: Schedule):
        self.steps = lab.plan.uniform_steps
        self.budgets = [s / lab.plan.method_steps for s in self.steps]
        self.runs = lab.uniform(schedule)
        of_budgets = [_final(runs) for runs in self.runs]
        self.accuracies = [[accuracies[seed] for accuracies in of_budgets] for seed in range(len(lab.plan.seeds))]
        self.frontier = Frontier(self.budgets, self.accuracies)
        self.equal = self.runs[self.steps.index(lab.plan.method_steps)]
        """Those as long as the methods'."""
        self.everything = lab.everything(schedule)
        """Likewise, on the holdout too; None where that is what all of them train on."""

    def step_cost(self, unit: str) -> float | None:
        """Of the large model, per uniform step."""
        cost = _mean([run.numbers[unit] for run in self.runs[-1]])
        return None if cost is None else cost / self.steps[-1]

    def as_dict(self) -> dict[str, Any]:
        return {
            "budgets": self.budgets,
            "steps": self.steps,
            "accuracy": [asdict(interval(_final(runs))) for runs in self.runs],
            "everything": None if self.everything is None else asdict(interval(_final(self.everything))),
            "frontier": self.frontier.best.mean(0).tolist(),
            "per_step": {unit: self.step_cost(unit) for unit in ("flops", "seconds")},
            "curves": [{"steps": runs[0].numbers["steps"], "accuracy": _curves(runs)} for runs in self.runs],
            "together": sorted({run.numbers["together"] for runs in self.runs for run in runs}),
        }


def of_method(lab: Lab, method: Method, schedule: Schedule, uniform: Uniform) -> dict[str, Any]:
    """One method's runs, judged."""
    described = ("accuracy", "augment", "cleaned", "instead")
    nothing = {"flops": 0, "seconds": 0.0} | dict.fromkeys(("made_by", *described))
    tables, costs = lab.tables(method) if lab.needs_table(method) else ([], [nothing])
    proxy, replayed = lab.recorded(method, schedule), lab.replayed(method, schedule)
    holdout = {unit: _mean([c[unit] for c in costs]) for unit in ("flops", "seconds")}
    choosing = {unit: _mean([run.numbers[unit] for run in proxy]) for unit in holdout}
    accuracies = _final([run for run in proxy if run.numbers["accuracy"]])  # of seeds that go by a proxy
    chance = lab.chance(method, schedule)
    drawn = None if chance is None else _final(chance)
    found = {
        "settings": asdict(method),
        "sequence": _judged(lab, replayed, uniform, {unit: _plus(holdout[unit], choosing[unit]) for unit in holdout})
        | {"minus_chance": None if drawn is None else asdict(interval(_differences(_final(replayed), drawn)))}
        | {"below_floor": below_floor(lab, method, proxy)},
        "chance": None if drawn is None else asdict(interval(drawn)),
        "holdout_models": [{"name": c["made_by"]} | {k: c[k] for k in described} for c in costs],
        "cost": {"holdout": holdout, "proxy": choosing},
        "recorded_by": [
            {"name": r.numbers["by"]} | {key: r.numbers.get(key) for key in ("rehearsed", "too_small")} for r in proxy
        ],
        "proxy_accuracy": asdict(interval(accuracies)) if accuracies else None,
        "coverage": asdict(interval([run.numbers["coverage"] for run in proxy])),
        "corrupted": asdict(interval([run.numbers["corrupted"] for run in proxy])),
        "early": _early(proxy, replayed, uniform.equal) | {"wrong_labels_told": told(lab, tables)},
    }
    if lab.plan.itself:
        found["itself"] = _judged(lab, lab.itself(method, schedule), uniform, holdout)
    return found


def _judged(lab: Lab, runs: Runs, uniform: Uniform, once: dict[str, Any]) -> dict[str, Any]:
    bills: dict[str, Bill | None] = {}
    for unit in ("flops", "seconds"):
        step, each = uniform.step_cost(unit), _mean([run.numbers[unit] for run in runs])
        known = step is not None and each is not None and once[unit] is not None
        bills[unit] = Bill(step, lab.plan.method_steps, each, once[unit]) if known else None  # type: ignore[arg-type]
    steps = runs[0].numbers["steps"]
    below = below_uniform(_curves(runs), _curves(uniform.equal))
    both = None if uniform.everything is None else _final(uniform.everything)
    return judge(_final(runs), uniform.frontier, uniform.accuracies, bills, REPLAYS) | {
        "minus_everything": None if both is None else asdict(interval(_differences(_final(runs), both))),
        "curve": {"steps": steps, "accuracy": _curves(runs)},
        "below_uniform_at": None if below is None else [steps[i] for i in below],
        "together": sorted({run.numbers["together"] for run in runs}),
    }


def below_floor(lab: Lab, method: Method, proxy: Runs) -> dict[str, Any] | None:
    """The share of candidates on which a proxy is better than its holdout model, at every evaluation: of the compared
    ones that the method selects from, over all seeds whose sequence goes by a proxy. None where there are none.
    """
    by_proxies = ["reducible" in run.arrays for run in proxy]
    proxy = list(compress(proxy, by_proxies))
    if not proxy:
        return None
    ids = compared_ids(lab.train, lab.plan.config.candidates, lab.plan.compared).numpy()
    chosen_from = [np.isin(ids, pool) for pool in compress(lab.pools(method).values(), by_proxies)]
    if not all(among.any() for among in chosen_from):
        return None
    shares = [(run.arrays["reducible"][:, among] < 0).mean(1) for run, among in zip(proxy, chosen_from, strict=True)]
    return {"steps": proxy[0].numbers["steps"], "share": np.mean(shares, 0).tolist()}


def _early(proxy: Runs, replayed: Runs, uniform: Runs) -> dict[str, Any]:
    """What is known after a quarter of the run, for every seed, and how it ended: accuracy above uniform's.

    There is no rank correlation where a sequence has no proxy.
    """
    ahead = np.asarray(_curves(replayed)) - np.asarray(_curves(uniform))
    pairs = [[run.arrays.get("reducible") for run in pair] for pair in zip(proxy, replayed, strict=True)]
    return {
        "ahead_of_uniform": ahead[:, QUARTER].tolist(),
        "rank_correlation": [
            None if mine is None or theirs is None else spearman(mine[QUARTER], theirs[QUARTER])
            for mine, theirs in pairs
        ],
        "distinct": [run.numbers["distinct_at_quarter"] for run in proxy],
        "corrupted": [run.numbers["corrupted_at_quarter"] for run in proxy],
        "ended_ahead": ahead[:, -1].tolist(),
    }


def told(lab: Lab, tables: list[IrreducibleLosses]) -> list[float]:
    """For every seed, where the damage is known: how well its irreducible losses tell wrong labels (average precision
    of the order of suspects).
    """
    data, wrong = lab.stages.prepared.data, lab.stages.prepared.truth.mislabelled
    if data.num_classes is None or not wrong[lab.train].any():
        return []
    return [average_precision(wrong[find_suspects(table, data).ids]) or 0.0 for table in tables]


def foretold(methods: dict[str, Any]) -> dict[str, Any]:
    """How well each early signal ranks all runs (methods times seeds) by how far they ended ahead of uniform.

    A rank correlation over so few runs is itself uncertain; below six runs that have the signal it is not given.
    """
    ends = [e for found in methods.values() for e in found["early"]["ended_ahead"]]
    ranked: dict[str, Any] = {"runs": len(ends)}
    for signal in SIGNALS:
        known = [
            (value, end)
            for found in methods.values()
            for value, end in zip(found["early"][signal], found["early"]["ended_ahead"], strict=False)
            if value is not None and np.isfinite(value)
        ]
        ranked[signal] = spearman(*np.asarray(known).T) if len(known) >= 6 else None
    return ranked


def trials(plan: Plan, out: Path, *, progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """One method after another against the same uniform runs: a line each, as soon as it is known.

    A method that fails (its model diverges, say) leaves a line with the error, and the next one is tried.

    Args:
        plan: With the methods to try.
        out: Where finished runs are kept, in ``out/runs``.
        progress: Shows it.
    """
    lab = Lab(plan, out / "runs", progress or Silent())
    about = {"data": plan.config.data.recorded(), "steps": plan.method_steps, "seeds": list(plan.seeds)}
    about |= {"model": plan.config.model, "proxy": plan.config.proxy, "hardware": hardware(lab.device)}
    for schedule in plan.schedules:
        uniform = Uniform(lab, schedule)
        line = uniform.as_dict()
        yield {
            "trial": "uniform",
            "schedule": schedule,
            **about,
            **{k: line[k] for k in ("budgets", "accuracy", "everything")},
        }
        for method in plan.methods:
            try:
                found = of_method(lab, method, schedule, uniform)
            except NonFiniteError as e:
                found = {"settings": asdict(method), "error": str(e)}
            yield {"trial": method.name, "schedule": schedule, **about, **found}


def _final(runs: Runs) -> list[float]:
    return [run.numbers["accuracy"][-1] for run in runs]


def _differences(a: list[float], b: list[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _curves(runs: Runs) -> list[list[float]]:
    return [run.numbers["accuracy"] for run in runs]


def _mean(values: list[Any]) -> float | None:
    return None if any(v is None for v in values) else float(np.mean(values))


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
