"""How often and when, by a holdout model alone: many shapes of a list by chance, and what each is worth.

    PYTHONPATH=src:benchmarks python benchmarks/shapes.py --shapes 120 --out shapes.jsonl
    PYTHONPATH=src:benchmarks python benchmarks/shapes.py --fit shapes.jsonl

Few shapes with many seeds each tell what these few are worth; many shapes with one seed each, and a smooth surface
through all of them, tell which way to go. An example's turns are taken by its ease, less a price that grows with the
turns it had; the list has all turns of all examples in the order of what is left.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import torch
from ideas import DECAYED, HOLDOUTS, KEEP, WORLDS, Idea, Wanted, World, arranged, trained
from too_good import Judging

import goldiprox as gp
from goldiprox.data import load


@dataclass(frozen=True)
class Shape:
    """A way to make a list of a table.

    Attributes:
        table: The holdout models: ``T`` of width 16, ``T4`` the mean of four, ``R`` a `resnet18`; or one for all
            seeds, as in `too_good.py`: ``S30a``.
        price: Of as many turns as the run has passes, in units of ease.
        power: Of the turns in the price: above 1, what came often waits the longer.
        rank: The share of an example's rank in its ease, beside the probability of its label.
        blur: The standard deviation of what is added to its ease by chance.
        less: How much more the price of the hard is than that of the easy.
        gone: The share of the hardest that never comes.
        fair: The share of what the classes' mean eases differ by that is taken off, so that none comes earlier or more
            often than another: with 1 an example is easy or hard for its class.
    """

    table: str
    price: float
    power: float
    rank: float
    blur: float
    less: float
    gone: float
    fair: float


DRAWN = "drawn"
"""What lines of shapes by chance are called."""
DEFAULT = {"price": 1.0, "power": 1.0, "rank": 0.0, "blur": 0.0, "less": 0.0, "gone": 0.0, "fair": 0.0}
LOWEST = {"price": 0.6, "power": 0.5, "rank": 0.0, "blur": 0.0, "less": -0.6, "gone": 0.0, "fair": 0.0}
HIGHEST = {"price": 4.0, "power": 3.0, "rank": 1.0, "blur": 0.3, "less": 1.0, "gone": 0.15, "fair": 1.0}


def drawn(seed: int, names: Sequence[str], kinds: Sequence[str]) -> Shape:
    """Any shape, the default's but for what is drawn: its price and power by their logarithms."""
    draw = np.random.default_rng([7, seed])
    kind = kinds[int(draw.integers(len(kinds)))]
    return Shape(kind, **DEFAULT | {n: round(float(unplaced(n, 2 * draw.random() - 1)), 3) for n in names})


def placed(name: str, value: float) -> float:
    """Where a value lies between the lowest and the highest, from -1 to 1."""
    low, high = LOWEST[name], HIGHEST[name]
    if name in ("price", "power"):
        low, high, value = np.log(low), np.log(high), np.log(value)
    return 2 * (value - low) / (high - low) - 1


def unplaced(name: str, at: float) -> float:
    """The value at such a place."""
    low, high, share = LOWEST[name], HIGHEST[name], (at + 1) / 2
    return low * (high / low) ** share if name in ("price", "power") else low + share * (high - low)


def listed(shape: Shape, sure: np.ndarray, labels: np.ndarray, ids: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """The list of a shape, a row for each step; ``sure`` is the probability of every label."""
    draw, total = np.random.default_rng([11, seed]), steps * KEEP
    means = np.bincount(labels, weights=sure) / np.bincount(labels)
    sure = sure - shape.fair * (means[labels] - sure.mean())
    rank = (sure + 1e-9 * draw.random(len(sure))).argsort().argsort() / len(sure)
    ease = (1 - shape.rank) * sure + shape.rank * rank + shape.blur * draw.standard_normal(len(sure))
    price = shape.price * (1 + shape.less * (1 - rank))
    ease = np.where(rank < shape.gone, -np.inf, ease)
    passes, most = total / len(ids), 40
    turn = np.arange(most) + draw.random((len(ids), most))
    left = ease[:, None] - price[:, None] * (turn / passes) ** shape.power
    order = np.argsort(-left.reshape(-1), kind="stable")[:total]
    return ids[order // most].reshape(steps, KEEP)


class Tables:
    """Irreducible losses of the training side, by some holdout models of each kind."""

    def __init__(self, world: World, judging: Judging, count: int, thin: str, large: str):
        self.world, self.judging, self.count, self.models = world, judging, count, {"T": thin, "R": large}

    @cache  # noqa: B019
    def one(self, kind: str, number: int) -> gp.IrreducibleLosses:
        config = (HOLDOUTS["RK"] if kind == "R" else DECAYED | {"calibrated": True}) | {"il_model": self.models[kind]}
        return self.world.table_of(Idea(holdout=config), 50 + number)

    @cache  # noqa: B019
    def of(self, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids that are selected from, and the probability of the label of each."""
        if kind not in ("T", "T4", "R"):
            table = self.judging.table(kind)
        elif kind == "T4":
            table = gp.IrreducibleLosses.combined([self.one("T", number) for number in range(4)])
        else:
            table = self.one(kind, seed % (4 if kind == "T" else self.count))
        ids = np.asarray(table.ids)[~self.world.cut(table, "fair")]
        return ids, np.exp(-table.values.numpy()[ids])


def fit(path: Path, names: Sequence[str]) -> str:
    """A quadratic surface, ridged, through all drawn shapes: its slopes, and the best places on it."""
    lines = [line for line in map(json.loads, path.read_text().splitlines()) if line["name"] == DRAWN]

    def features(at: np.ndarray) -> np.ndarray:
        return np.concatenate([at, [at[i] * at[j] for i in range(len(at)) for j in range(i, len(at))]])

    y = np.array([100 * line["accuracy"] for line in lines])
    found = sorted({line["shape"]["table"] for line in lines})
    kinds = np.array([[line["shape"]["table"] == kind for kind in found] for line in lines], float)
    x = np.stack([features(np.array([placed(n, line["shape"][n]) for n in names])) for line in lines])
    centre, out = x.mean(0), []
    for ridge in (3.0, 10.0):
        design = np.hstack([kinds, x - centre])
        inverse = np.linalg.inv(design.T @ design + np.diag([0.0] * len(found) + [ridge] * x.shape[1]))
        hat = inverse @ design.T
        weights, free = hat @ y, max(1.0, len(y) - np.trace(design @ hat))
        noise = (((y - design @ weights) ** 2).sum() / free) ** 0.5
        errors = noise * np.sqrt(np.diag(hat @ hat.T))
        out.append(f"ridge {ridge:g}, {len(y)} runs, left over {noise:.2f} of {y.std():.2f}")
        named = zip((*found, *names), weights, errors, strict=False)
        out.append("  " + ", ".join(f"{name} {weight:+.2f} ({error:.2f})" for name, weight, error in named))
        tried = np.random.default_rng(0).uniform(-1, 1, (20000, len(names)))
        usual = np.array([placed(name, DEFAULT[name]) for name in names])
        basis = np.stack([features(at) for at in [usual, *tried]]) - centre
        values = weights[: len(found)].mean() + basis @ weights[len(found) :]
        spread = noise * np.sqrt(((basis @ hat[len(found) :]) ** 2).sum(1))
        for row in [0, *(-values).argsort()[:5].tolist()]:
            at = [usual, *tried][row]
            where = ", ".join(f"{name} {unplaced(name, part):.2f}" for name, part in zip(names, at, strict=True))
            out.append(f"  {values[row]:.2f} ({spread[row]:.2f}): {where}{', the default' * (row == 0)}")
    return "\n".join(out)


def parsed(text: str) -> Shape:
    values = dict(setting.split("=", 1) for setting in text.split(",") if setting)
    kind = values.pop("table", "R")
    assert set(values) <= {f.name for f in fields(Shape)}, values
    return Shape(kind, **DEFAULT | {name: float(value) for name, value in values.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--world", choices=WORLDS, default="clean")
    parser.add_argument("--thin", default="thin16")
    parser.add_argument("--large", default="resnet18")
    parser.add_argument("--count", type=int, default=2, help="large holdout models")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--data-seed", type=int, default=1, help="of split and damage")
    parser.add_argument("--shapes", type=int, default=0, help="drawn by chance, one seed each")
    parser.add_argument("--draw", nargs="+", choices=DEFAULT, default=list(DEFAULT), help="what of a shape")
    parser.add_argument("--kinds", nargs="+", choices=("T", "T4", "R"), default=["T", "T4", "R"], help="of tables")
    parser.add_argument("--given", nargs="*", default=[], metavar="SETTINGS", help="with every seed of --seeds")
    parser.add_argument("--uniform", action="store_true", help="also train uniformly, with every seed of --seeds")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first drawn shape")
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 0], metavar=("FIRST", "END"))
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so many")
    parser.add_argument("--fit", type=Path, help="fit these lines, and train nothing")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if a.fit:
        print(fit(a.fit, a.draw))
        return
    begun = time.perf_counter()
    source = load(a.data)
    given = (a.data, a.world, source, a.precision, a.data_seed)
    world, judging = World(*given), Judging(*given)
    tables = Tables(world, judging, a.count, a.thin, a.large)
    wanted: list[tuple[str, Shape | None, int]] = [
        (DRAWN, drawn(s, a.draw, a.kinds), s) for s in range(a.first, a.first + a.shapes)
    ]
    for seed in range(*a.seeds):
        wanted += [(text, parsed(text), seed) for text in a.given]
        wanted += [("uniform", None, seed)] * a.uniform
    with a.out.open("a") as out:
        for first in range(0, len(wanted), a.at_once):
            if time.perf_counter() - begun > 60 * a.minutes:
                break
            part, lists = wanted[first : first + a.at_once], []
            for name, shape, seed in part:
                if shape:
                    ids, sure = tables.of(shape.table, seed)
                    made = listed(shape, sure, np.asarray(world.data.labels)[ids], ids, a.steps, seed)
                else:
                    made = world.drawn(np.zeros(len(world.data), bool), 0, a.steps, KEEP, seed)
                idea = Idea(window=0 if shape else 1)
                lists.append((Wanted(name, idea, seed), arranged(world, idea, made, len(world.train), seed)))
            curves = trained(world, lists, a.model, evaluations=1)
            for (name, shape, seed), (_, made), curve in zip(part, lists, curves, strict=True):
                line = {"name": name, "shape": asdict(shape) if shape else None, "seed": seed, "world": world.name}
                line |= {"model": a.model, "accuracy": curve[-1][1]} | world.figures(made)
                out.write(json.dumps(line) + "\n")
            out.flush()
            print(f"{first + len(part)} of {len(wanted)}, {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
