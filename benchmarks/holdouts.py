"""Which holdout model tells wrong labels best: AUCs of its log-odds, a JSON line for every model on the way.

    python benchmarks/holdouts.py --worlds class20 instance20 --model resnet18 --out holdouts.jsonl
    python benchmarks/holdouts.py --worlds class20 --model small_cnn --ways plain blends --epochs 2 --out holdouts.jsonl
    python benchmarks/holdouts.py --worlds class20 --model proxies:half16 --ways inner --seeds 0 1 2 --out inner.jsonl
    python benchmarks/holdouts.py --worlds class20 --runs results/compare-cifar10/runs --out holdouts.jsonl

Beyond what `HoldoutConfig` offers it cleans several times over (models of the two sides judge in turn what the next one
learns from), and takes the last of more epochs. The way ``inner`` learns plainly and from blends, and says how far
apart these are on the inner part, which is what ``mixup="auto"`` goes by. ``--runs`` looks at what `goldiprox compare`
kept.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ideas import WORLDS, World, auc

import goldiprox as gp
from goldiprox.assessment import assess, sharpness
from goldiprox.data import load
from goldiprox.forward import call, in_precision
from goldiprox.holdout import train_holdout_model
from goldiprox.irreducible import Rivals, contradicted
from goldiprox.suspects import ODDS, fair_odds, wrong_share

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "blends": {"mixup": "on"},
    "blends, twice the epochs, the last": {"mixup": "on", "epochs": 2, "checkpoint": "last"},
    "cleaned 3 times": {"rounds": 3},
    "blends, cleaned twice": {"mixup": "on", "rounds": 2},
    "2 folds": {"folds": 2},
}


def opinions(world: World, model: str, seed: int, learn: np.ndarray, ids: np.ndarray, **settings: Any) -> torch.Tensor:
    """What a model that learnt these examples thinks of those: losses, rivals, log-odds; NaN for all others."""
    training = gp.TrainingConfig(precision=world.precision, schedule="cosine")
    made, values = world.build(model, seed), torch.full((len(world.data), 3), torch.nan)
    train_holdout_model(made, world.data, learn, config=gp.HoldoutConfig(training=training, **settings), seed=seed)
    values[torch.as_tensor(ids)] = assess(made, world.data, ids, forward=in_precision(call, world.precision))
    return values


def table_of(values: torch.Tensor) -> gp.IrreducibleLosses:
    return gp.IrreducibleLosses(values[:, 0], rivals=Rivals(values[:, 1], values[:, 2]))


def tables(
    world: World,
    model: str,
    seed: int,
    *,
    max_epochs: int,
    rounds: int = 0,
    folds: int = 0,
    epochs: int = 1,
    **way: Any,
) -> list[gp.IrreducibleLosses]:
    """The tables of one way, the last being that of a model of the holdout; those before it cleaned for it."""
    settings, split = {"max_epochs": epochs * max_epochs, **way}, world.prepared.split
    if folds:
        parts = np.array_split(np.random.default_rng(seed).permutation(split.train), folds)
        rest = [np.union1d(np.setdiff1d(split.train, part), split.holdout) for part in parts]
        found = [opinions(world, model, seed + n, rest[n], np.sort(parts[n]), **settings) for n in range(folds)]
        return [table_of(torch.stack(found).nan_to_num(0).sum(0).where(~torch.stack(found).isnan().all(0), torch.nan))]
    made, sides = [], {True: split.holdout, False: split.train}
    whole = dict(sides)
    for number in range(rounds + 1):
        holdout = (rounds - number) % 2 == 0
        other = whole[not holdout]
        made.append(table_of(opinions(world, model, seed + 100 * number, sides[holdout], other, **settings)))
        sides[not holdout] = np.setdiff1d(other, made[-1].ids[contradicted(made[-1], world.data.labels)])
    return made


def inner(world: World, model: str, seed: int, max_epochs: int) -> dict[str, Any]:
    """Judges that learnt the training side, plainly and from blends: what they miss inside, and AUCs beyond."""
    split, missed, line = world.prepared.split, {}, {}
    forward = in_precision(call, world.precision)
    for way in ("off", "on"):
        made = world.build(model, seed)
        training = gp.TrainingConfig(precision=world.precision)
        config = gp.HoldoutConfig.robust(training, max_epochs=max_epochs, cleaned=False, mixup=way)
        report = train_holdout_model(made, world.data, split.train, config=config, seed=seed)
        missed[way] = sharpness(made, world.data, report.inner, forward=forward)[1]
        line[f"accuracy, mixup {way}"] = round(report.figures["accuracy"], 4)
        if (wrong := world.wrong[split.holdout]).any():
            margin = assess(made, world.data, split.holdout, forward=forward)[:, 2].numpy()
            line[f"auc, mixup {way}"] = round(auc(wrong, margin), 4)
    worse = missed["on"] - missed["off"]
    return line | {"worse": round(float(worse.mean()), 4), "error": round(float(worse.std()) / len(worse) ** 0.5, 4)}


def of_runs(world: World, folder: Path) -> Iterator[dict[str, Any]]:
    """How well the tables of kept runs tell wrong labels, and what is left out at 10 to 1 and by default."""
    train = world.prepared.split.train
    wrong = world.wrong[train]
    for path in sorted(folder.glob("holdout-*.json")):
        run, kept = json.loads(path.read_text()), np.load(path.with_suffix(".npz"))
        arrays = {name: torch.from_numpy(kept[name]) for name in kept.files}
        table = gp.IrreducibleLosses(arrays["values"], rivals=Rivals(arrays["rival"], arrays["margin"]))
        margin, odds = arrays["margin"].numpy()[train], fair_odds(table)
        found = {name: run["settings"][name] for name in ("il_model", "seed")} | run["numbers"]
        found |= {"auc": round(auc(wrong, margin), 4)} if wrong.any() else {}
        found |= {"wrong share": round(wrong_share(table), 4), "odds": odds if np.isfinite(odds) else None}
        for name, cut in ((f"{ODDS:g} to 1", margin > np.log(ODDS)), ("by default", margin > np.log(odds))):
            shares = [round(float(cut[kind].mean()), 3) if kind.any() else None for kind in (~wrong, wrong)]
            found[f"left out {name}, of right and wrong"] = shares
        yield found


def lines(world: World, a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if a.runs:
        yield from of_runs(world, a.runs)
        return
    for seed in a.seeds:
        for way in a.ways:
            if way == "inner":
                yield {"way": way, "seed": seed} | inner(world, a.model, seed, a.epochs)
                continue
            for number, table in enumerate(tables(world, a.model, seed, max_epochs=a.epochs, **WAYS[way])):
                assert table.rivals is not None
                found = auc(world.wrong[table.ids], table.rivals.margin.numpy()[table.ids])
                yield {"way": way, "seed": seed, "model": number, "auc": round(found, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["class20", "instance20"])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, "inner"], default=list(WAYS))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=Path, help="a folder of kept runs, in place of training")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    source, precision = load(a.data), "bf16" if torch.cuda.is_available() else "fp32"
    with a.out.open("a") as out:
        for world in (World(a.data, name, source, precision) for name in a.worlds):
            for line in ({"world": world.name} | found for found in lines(world, a)):
                print(json.dumps(line), flush=True)
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
