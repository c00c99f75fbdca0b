"""How often, and when: lists in which examples take turns by a plan, to see what of a proxy's list is worth something.

    PYTHONPATH=benchmarks python benchmarks/turns.py --world clean --seeds 0 1 2 --out turns.jsonl \
        --plans uniform default often=default first=default begin=random:0.5 skew=0.8

A plan gives every example its number of turns (`often`), the moment of the first one (`begin`, `first`) and how the
others lie between that and the end (`skew`); within this, chance decides. `default` is the list of the default rule, by
a proxy. A JSON line for each, as `ideas.py` writes them.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ideas import HOLDOUTS, KEEP, WORLDS, Idea, Wanted, World, chosen, write_trials
from ideas import parsed as idea_of

from goldiprox.data import load
from goldiprox.rules import RULE


@dataclass(frozen=True)
class Plan:
    """When every example has its turns.

    Attributes:
        often: ``flat`` (all alike), ``default`` (as in the default's list), ``class`` (as often as its class there),
            ``less:A`` (the fifth of the highest irreducible losses less often: down to 1 - A times, in proportion to
            the rank), ``rest`` (in proportion to what is left of the run when turns begin).
        begin: ``ORDER:SHARE``: turns begin over this share of the run, in the order ``random``, ``easy`` (low
            irreducible losses first) or ``hard``; an example has them all between its beginning and the end.
            ``ORDER:SHARE:POWER``: this power of the place in that order, so that most begin early.
        first: ``default``: they begin when they do in the default's list.
        shift: Turns are those of the default's list, moved: as ``begin``, but for the order.
        skew: Above zero, what has a high irreducible loss comes late rather than early; below, the other way round.
    """

    often: str = "flat"
    begin: str = ""
    first: str = ""
    shift: str = ""
    skew: float = 0.0


def planned(plan: Plan, world: World, losses: np.ndarray, default: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """The list of a plan, a row for each step."""
    ids, draw, total = np.asarray(world.train), np.random.default_rng(seed), steps * KEEP
    rank = losses[ids].argsort().argsort() / len(ids)
    times = np.bincount(default.reshape(-1), minlength=len(world.data))[ids]
    labels = world.data.labels[ids]
    kind, _, setting = plan.often.partition(":")
    if kind == "default":
        often = times.astype(float)
    elif kind == "class":
        often = np.array([times[labels == label].mean() for label in range(labels.max() + 1)])[labels]
    elif kind == "less":
        often = 1 - float(setting) * np.clip(5 * (rank - 0.8), 0, 1)
    else:
        often = np.ones(len(ids))
    begin = np.zeros(len(ids))
    if plan.begin or plan.shift:
        order, share, power = (*(plan.begin or f"easy:{plan.shift}").split(":"), "1")[:3]
        place = {"random": draw.permutation(len(ids)) / len(ids), "easy": rank, "hard": 1 - rank}[order]
        begin = float(share) * place ** float(power)
    if kind == "rest":
        often = 1 - begin
    if plan.shift:
        where = np.empty(len(world.data), int)
        where[ids] = np.arange(len(ids))
        flat, start = default.reshape(-1), begin[where[default.reshape(-1)]]
        moment = start + np.arange(total) / total * (1 - start)
        return without_doubles(flat[moment.argsort(kind="stable")], steps)
    turns = spread_out(often, total, draw)
    if plan.first:
        flat = default.reshape(-1)
        seen, where = np.unique(flat, return_index=True)
        moment = np.ones(len(world.data))
        moment[seen] = where / len(flat)
        begin = moment[ids]
    which = np.repeat(np.arange(len(ids)), turns)
    number = np.arange(total) - np.repeat(np.cumsum(turns) - turns, turns)
    moment = (number + draw.random(total)) / turns[which]
    if plan.skew:
        lean = plan.skew * (2 * rank[which] - 1)
        lean = np.where(np.abs(lean) < 1e-6, 1e-6, lean)
        # Moments with a density of 1 + lean (2 t - 1).
        moment = ((lean - 1) + np.sqrt((1 - lean) ** 2 + 4 * lean * moment)) / (2 * lean)
    moment = begin[which] + moment * (1 - begin[which])
    return without_doubles(ids[which[moment.argsort()]], steps)


def spread_out(often: np.ndarray, total: int, draw: np.random.Generator) -> np.ndarray:
    """Whole numbers of turns, in proportion to `often`, that sum up to `total`."""
    ends = np.cumsum(often[order := draw.permutation(len(often))])
    ends = np.floor(ends / ends[-1] * total + 0.5).astype(int)
    turns = np.empty(len(often), int)
    turns[order] = np.diff(ends, prepend=0)
    return turns


def without_doubles(flat: np.ndarray, steps: int) -> np.ndarray:
    """As batches; an example that a batch holds twice changes places with one of a batch nearby."""
    rows, draw = flat.reshape(steps, -1).copy(), np.random.default_rng(0)
    for step in range(steps):
        while len(extra := np.setdiff1d(np.arange(rows.shape[1]), np.unique(rows[step], return_index=True)[1])):
            other, place = int(np.clip(step + draw.integers(-200, 200), 0, steps - 1)), draw.integers(rows.shape[1])
            if rows[other, place] not in rows[step] and rows[step, extra[0]] not in rows[other]:
                rows[step, extra[0]], rows[other, place] = rows[other, place], rows[step, extra[0]]
    return rows


def parsed(text: str) -> Plan:
    values: dict[str, Any] = dict(setting.split("=", 1) for setting in text.split(","))
    given: dict[str, Any] = {name: float(value) if name == "skew" else value for name, value in values.items()}
    return Plan(**given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--world", choices=WORLDS, default="clean")
    parser.add_argument("--plans", nargs="+", default=["uniform", "default"])
    parser.add_argument("--holdout", choices=HOLDOUTS, default="TCA", metavar="LETTERS", help="as in ideas.py")
    parser.add_argument("--il-model", help="in place of the one that the letters name")
    parser.add_argument("--proxy", default="small_cnn")
    parser.add_argument("--also", action="append", default=[], metavar="SETTINGS", help="a list as in ideas.py")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-seed", type=int, default=0, help="of split and damage")
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--lists", type=Path, help="keep the default's lists here, or take them from here")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    world = World(a.data, a.world, load(a.data), a.precision, a.data_seed)
    kept = dict(np.load(a.lists)) if a.lists and a.lists.exists() else {}
    holdout = HOLDOUTS[a.holdout] | ({"il_model": a.il_model} if a.il_model else {})
    base = Idea(a.proxy, rule=RULE, holdout=holdout, gate="fair", window=0)
    more = {text: idea_of(text) for text in a.also}
    with a.out.open("a") as out:
        for seed in a.seeds:
            if f"default {seed}" not in kept:
                ((_, made),) = chosen(world, [Wanted("default", base, seed)], a.steps, a.at_once)
                kept |= {f"losses {seed}": world.table_of(base, seed).values.numpy(), f"default {seed}": made}
            losses, default = kept[f"losses {seed}"], kept[f"default {seed}"].astype(np.int64)
            others = [Wanted(name, idea, seed) for name, idea in ({"uniform": Idea()} | more).items()]
            made = chosen(world, others, a.steps, a.at_once)
            lists = {"default": default} | {one.name: ids for one, ids in made}
            for text in a.plans:
                if text not in lists:
                    lists[text] = planned(parsed(text), world, losses, default, a.steps, seed)
            wanted = [(Wanted(text, Idea(), seed), lists[text]) for text in (*a.plans, *more)]
            write_trials(world, wanted, a.model, a.at_once, out)
            if a.lists:
                np.savez_compressed(a.lists, **kept)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
