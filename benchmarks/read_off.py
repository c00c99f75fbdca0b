"""What comparisons with few uniform budgets are worth on the longer uniform runs of others, of the same seeds.

    PYTHONPATH=src python benchmarks/read_off.py results/compare/cifar10-clean-1x-two results/compare/cifar10-clean

Both folders must hold uniform training for as many steps as the methods', and agree on it in every digit of every
evaluation: then a machine that repeats runs would repeat the longer ones too, and they need not be paid again. A line
for each method of the first folder.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from goldiprox.compare.verdict import Bill, Frontier, verdict


def cosine(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "compare.json").read_text())["schedules"]["cosine"]


def as_long(uniform: dict[str, Any]) -> list[list[float]]:
    """The curves of uniform training for as many steps as the methods', by seed."""
    return uniform["curves"][uniform["budgets"].index(1.0)]["accuracy"]


def in_percent(values: Sequence[float]) -> str:
    """Their mean, and each."""
    return f"{100 * sum(values) / len(values):.2f} ({', '.join(f'{100 * v:.1f}' for v in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("short", type=Path, help="folder of the comparison")
    parser.add_argument("long", type=Path, help="folder with longer uniform runs")
    a = parser.parse_args()
    short, uniform = cosine(a.short), cosine(a.long)["uniform"]
    if as_long(short["uniform"]) != as_long(uniform):
        raise SystemExit(f"{a.short} and {a.long} disagree on uniform training: not the same data, seeds or machine")
    by_seed = list(zip(*(budget["values"] for budget in uniform["accuracy"]), strict=True))
    frontier = Frontier(uniform["budgets"], by_seed)
    longer = [number for number, budget in enumerate(uniform["budgets"]) if budget >= 1]
    for name, method in short["methods"].items():
        sequence, values = method["sequence"], method["sequence"]["accuracy"]["values"]
        above = [v - max(row[b] for b in longer) for v, row in zip(values, by_seed, strict=True)]
        worth, around = frontier.worth(values), frontier.interval(values)
        flops = sequence["speedup"]["flops"]
        bill = Bill(**{part: flops[part] for part in ("uniform_step", "method_steps", "each", "once")})
        shares = ", ".join(f"{worth.side}{bill.speedup(worth.budget, n):.2f}x over {n}" for n in (1, 5, 20))
        print(
            f"{name}: {in_percent(values)}",
            f"minus uniform's best: {in_percent(above)}",
            f"uniform needs {worth} the steps{f' ({around[0]} to {around[1]})' if around else ''}",
            f"uniform's FLOPs to that accuracy, by its own: {shares} replays",
            f"in FLOPs {verdict(worth, around, bill, len(values))[1]}; paid once: {bill.once / bill.each:.2f} runs",
            f"below uniform by more than a standard error at evaluations {sequence['below_uniform_at']}",
            sep="\n  ",
        )


if __name__ == "__main__":
    main()
