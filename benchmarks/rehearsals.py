"""Does a small model tell which of two sequences is the better one for a large model? Models of several sizes on both.

    PYTHONPATH=src:benchmarks python benchmarks/rehearsals.py FOLDER --models unseen:tiny_reader unseen:small_reader

FOLDER is what ``goldiprox compare --method default ...`` left, with its ``runs``. Every model learns, for each seed,
from the sequence by `reducible_loss`, from that by `predictability` and from uniform batches, as a rehearsal does; what
counts is how often it is right on what was held out, by its labels as they are, and on what was on its list. A JSON
line for each in ``--out``.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import goldiprox as gp
from goldiprox.assessment import assess, missed
from goldiprox.data import load
from goldiprox.optim import TrainingConfig
from goldiprox.prepare import DataConfig, Prepared, prepare
from goldiprox.rehearsal import LISTS, OTHER
from goldiprox.rules import RULE, usual_rule


def sequences(folder: Path, prepared: Prepared) -> dict[tuple[str, int], gp.Sequence]:
    """By acquisition and seed, those that the default chose between."""
    found = {}
    for path in sorted((folder / "runs").glob("select-proxy-*.json")):
        settings = json.loads(path.read_text())["settings"]
        for name in LISTS:
            if (settings["acquisition"], settings["rule"]) == (name, usual_rule(RULE, getattr(gp, name))):
                found[name, settings["seed"]] = gp.Sequence.open(path.with_suffix(".arrow"), prepared.data)
    return found


def uniform(folder: Path, prepared: Prepared, like: gp.Sequence, seed: int) -> gp.Sequence:
    ids, keep = prepared.split.train, like.keep
    recording = gp.record(
        None, prepared.data, acquisition=gp.uniform, ids=ids, candidates=keep, keep=keep, steps=len(like), seed=seed,
        out=folder / "runs" / f"uniform-{seed}.arrow", force=True,
    )  # fmt: skip
    return gp.Sequence.open(str(recording.path), prepared.data)


def right(model: torch.nn.Module, prepared: Prepared, ids: np.ndarray) -> float:
    return 1 - float(missed(assess(model, prepared.data, ids)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("rehearsals.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)

    result = json.loads((args.folder / "compare.json").read_text())
    prepared = prepare(DataConfig(**result["data"]), load(result["data"]["data"]))
    data = prepared.data
    recorded, found = sequences(args.folder, prepared), defaultdict(list)
    for name in args.models:
        for seed in sorted({seed for _, seed in recorded}):
            lists = {by: recorded[by, seed].shuffled(seed=seed) for by in LISTS}
            lists["uniform"] = uniform(args.folder, prepared, recorded[LISTS[0], seed], seed)
            for by, sequence in lists.items():
                model = gp.build(name, data.input_shape, data.num_classes or 0, seed=seed + OTHER)
                config = TrainingConfig(lr=args.lr, schedule="cosine")
                gp.replay(model, data, sequence, config=config, seed=seed + OTHER)
                sides = {"held out": prepared.split.holdout, "learnt": np.unique(sequence.ids)}
                line = {"folder": args.folder.name, "model": name, "by": by, "seed": seed}
                line |= {side: right(model, prepared, ids) for side, ids in sides.items()}
                with args.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                found[name, by].append(line)
    for (name, by), lines in found.items():
        means = {side: np.mean([line[side] for line in lines]) for side in ("held out", "learnt")}
        each = " ".join(f"{100 * line['held out']:.1f}" for line in lines)
        less = (1 - means["learnt"]) / (1 - means["held out"])
        print(
            f"{name:24} {by:16} right on {100 * means['held out']:.1f} ({each}) of what was held out, on "
            f"{100 * means['learnt']:.1f} of what it learnt: misses {less:.2f} as much"
        )


if __name__ == "__main__":
    main()
