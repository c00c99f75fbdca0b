r"""A few lists, many seeds: what three or six of them cannot tell apart.

    PYTHONPATH=src:benchmarks python benchmarks/many_seeds.py --worlds clean --seeds 10 34 --out many.jsonl \
        --lists uniform weight=0 rule=worn:0.2:1.5 rate=1e-9

Lists are described as in `ideas.py`, by what is not as in the default; ``weight=0`` is the default. A few holdout
models serve all seeds in turn (``--shared``), and models of different seeds train in one CUDA graph; with several
``--models`` each learns from every list. Seeds are finished one after another, so that a run that is broken off leaves
all lists with as many. A JSON line for each, as `ideas.py`
writes them; in the end a table of means, and of differences from the second list, by seed, with their standard errors.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ideas import WORLDS, Idea, Wanted, World, chosen, parsed, write_trials

import goldiprox as gp
from goldiprox.data import load
from goldiprox.rules import RULE

USUAL = {"rule": RULE, "gate": "fair", "window": "0"}


class Shared(World):
    """A world of a few holdout models, kept in a folder."""

    def __init__(self, *args: Any, shared: int, folder: Path):
        super().__init__(*args)
        self.shared, self.folder = shared, folder
        folder.mkdir(parents=True, exist_ok=True)

    def table_of(self, idea: Idea, seed: int) -> gp.IrreducibleLosses:
        return super().table_of(idea, seed % self.shared)

    def _table(self, il_model: str, seed: int, **more: Any) -> gp.IrreducibleLosses:  # type: ignore[override]
        settings = "-".join(map(str, (self.name, self.data_seed, self.precision, il_model, seed, *more.values())))
        path = self.folder / f"{settings.replace(' ', '_')}.arrow"
        if not path.exists():
            super()._table(il_model, seed, **more).save(path)
        return gp.IrreducibleLosses.open(path, data=self.data)


def idea_of(text: str, **usual: str) -> Idea:
    if text == "uniform":
        return Idea()
    given = USUAL | usual | dict(setting.split("=", 1) for setting in text.split(","))
    return parsed(",".join(f"{name}={value}" for name, value in given.items()))


def lists_of(world: Shared, wanted: list[Wanted], steps: int, at_once: int) -> list[tuple[Wanted, np.ndarray]]:
    """The list of every idea and seed, kept for another call; ideas that differ only in how their list is trained on
    share it.
    """
    bare = [one._replace(name="", idea=replace(one.idea, weight=0.0, smooth=0.0)) for one in wanted]
    by_text = {repr(one): one for one in bare}
    made = f"{world.name} {world.data_seed} {world.shared} {world.precision} {steps}"
    paths = {text: world.folder / f"{sha256(f'{made} {text}'.encode()).hexdigest()}.npy" for text in by_text}
    missing = [one for text, one in by_text.items() if not paths[text].exists()]
    for one, ids in chosen(world, missing, steps, at_once):
        path = paths[repr(one)]
        np.save(path.with_suffix(".partial.npy"), ids)
        path.with_suffix(".partial.npy").replace(path)
    return [(one, np.load(paths[repr(b)])) for one, b in zip(wanted, bare, strict=True)]


def summary(path: Path, model: str, world: str, against: str) -> str:
    """Means over seeds, and differences from one of the lists."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for line in map(json.loads, path.read_text().splitlines()):
        if (line["world"], line.get("model")) == (world, model):
            found[line["idea"]][line["seed"]] = 100 * line["accuracy"]
    rows = []
    for name, by_seed in found.items():
        values = np.array(list(by_seed.values()))
        both = sorted(by_seed.keys() & found.get(against, {}).keys())
        apart = np.array([by_seed[seed] - found[against][seed] for seed in both])
        error, own = (x.std(ddof=1) / len(x) ** 0.5 if len(x) > 1 else np.nan for x in (apart, values))
        rows.append(
            f"{world}, {model}: {values.mean():.2f} ({own:.2f}), {apart.mean():+.2f} ({error:.2f}), "
            f"{len(values)} seeds: {name}"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["clean"])
    parser.add_argument("--lists", nargs="+", required=True)
    parser.add_argument("--holdout", default="RK", metavar="LETTERS", help="as in ideas.py")
    parser.add_argument("--il-model", help="in place of the one that the letters name")
    parser.add_argument("--proxy", default="small_cnn")
    parser.add_argument("--shared", type=int, default=4, help="holdout models")
    parser.add_argument("--tables", type=Path, default=Path("runs/tables"), help="where their losses are kept")
    parser.add_argument("--models", nargs="+", default=["resnet18"], help="that learn from every list")
    parser.add_argument("--seeds", type=int, nargs=2, default=[10, 34], metavar=("FIRST", "END"))
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--evaluations", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so many")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    begun, source = time.perf_counter(), load(a.data)
    ideas = {text: idea_of(text, proxy=a.proxy, holdout=a.holdout) for text in a.lists}
    if a.il_model:
        ideas = {name: replace(i, holdout=i.holdout | {"il_model": a.il_model}) for name, i in ideas.items()}
    # As many seeds as fill the graphs of the large model.
    together = max(1, a.at_once // len(ideas))
    for title in a.worlds:
        world = Shared(a.data, title, source, a.precision, shared=a.shared, folder=a.tables / a.data)
        for first in range(a.seeds[0], a.seeds[1], together):
            if time.perf_counter() - begun > 60 * a.minutes:
                break
            seeds = range(first, min(first + together, a.seeds[1]))
            wanted = [Wanted(name, idea, seed) for seed in seeds for name, idea in ideas.items()]
            start = time.perf_counter()
            lists = lists_of(world, wanted, a.steps, a.at_once)
            print(f"{len(wanted)} lists in {time.perf_counter() - start:.1f} s", flush=True)
            for model in a.models:
                start = time.perf_counter()
                with a.out.open("a") as out:
                    write_trials(world, lists, model, a.at_once, out, evaluations=a.evaluations)
                print(f"{len(wanted)} {model} in {time.perf_counter() - start:.1f} s", flush=True)
        for model in a.models:
            print(summary(a.out, model, title, a.lists[min(1, len(a.lists) - 1)]), flush=True)


if __name__ == "__main__":
    main()
