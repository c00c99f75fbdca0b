"""Can a model choose by the losses of its own training, as old as they are? They cost nothing. For the lab notes.

    PYTHONPATH=benchmarks python benchmarks/old_losses.py --seeds 0 1 --out old.jsonl
    PYTHONPATH=benchmarks python benchmarks/old_losses.py --data mnist --small mlp128 --model mlp512 --steps 1200 ...

At every step the model takes the next candidates, by chance or of a proxy's list, and trains on some of them: what it
has not seen yet counts as a loss of 4, everything else as what it was when it was last trained on.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from ideas import HOLDOUTS, KEEP, Idea, Wanted, World, chosen_by_proxies
from torch import Tensor, nn

import goldiprox as gp
from goldiprox.data import Batch, load
from goldiprox.loop import Task, fit_together
from goldiprox.rules import TURNS, make_rule

UNSEEN = 4.0
WAYS = (
    ("chance", 64, "loss", "gumbel_top_k:1"),
    ("chance", 320, "loss", "gumbel_top_k:1"),
    ("chance", 64, "loss", "top_k"),
    ("chance", 128, "doubt", "gumbel_top_k:1"),
    ("chance", 64, "reducible", "gumbel_top_k:1"),
    ("chance", 320, "reducible", "gumbel_top_k:1"),
    ("chance", 320, "reducible", TURNS),
    ("list", 64, "reducible", "gumbel_top_k:1"),
)
"""Where candidates come from, how many, what is kept of them: by old loss, 1 - probability, or old reducible loss."""


class Remembering:
    """A feed of the engine: candidates by id, chosen by a table of old losses."""

    def __init__(self, world: World, model: nn.Module, rows: Tensor, select: gp.Selector):
        self.data, self.model, self.rows, self.select = world.numbered, model, rows, select

    def window(self, first: int, count: int) -> Tensor:
        return self.rows[first : first + count]

    def batch(self, ids: Tensor, step: int | Tensor) -> tuple[Batch, Mapping[str, Tensor]]:
        rows, _ = self.select.choose(self.model, Batch(ids, ids, ids), step)
        kept = ids[rows]
        self.select.count(kept)
        return Batch(kept, *self.data.gather(kept)), {}

    def written(self, first: int, values: Mapping[str, Tensor]) -> None:
        pass

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(ids, step)[0] for step, ids in enumerate(self.rows))


def task(world: World, way: tuple[str, int, str, str], lists: np.ndarray, args: argparse.Namespace, seed: int) -> Task:
    source, count, by, text = way
    by_chance = torch.stack(list(gp.CandidateSampler(world.train, count, seed=seed, steps=args.steps).batches()))
    rows = by_chance if source == "chance" else torch.as_tensor(lists.reshape(args.steps, count))
    old = torch.full((len(world.data),), UNSEEN, device=world.device)
    floor = world.table_of(idea(args), seed).values.to(world.device)
    labels = torch.as_tensor(world.data.labels, device=world.device).long()
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "loss": lambda ids: old[ids],
        "doubt": lambda ids: 1 - (-old[ids]).exp(),
        "reducible": lambda ids: old[ids] - floor[ids],
    }

    def loss(output: Tensor, ids: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(output.float(), labels[ids], reduction="none")
        old.index_copy_(0, ids, losses.detach())
        return losses

    model = world.build(args.model, seed)
    rule = make_rule(text, steps=args.steps, passes=KEEP * args.steps / len(world.train))
    length, score = len(world.data), scores[by]
    select = gp.Selector(lambda c: score(c.ids), keep=KEEP, rule=rule, seed=seed, num_examples=length)
    feed = Remembering(world, model, rows.to(world.device), select)
    return Task(
        model,
        feed if world.device.type == "cuda" else iter(feed),
        steps=args.steps,
        config=gp.TrainingConfig(schedule="cosine", precision=world.precision),
        loss=loss,
        seed=seed,
        evaluate=world.evaluate,
    )


def idea(args: argparse.Namespace) -> Idea:
    holdout = HOLDOUTS["TCA"] | ({"il_model": args.small} if args.small else {})
    return Idea(args.small or "small_cnn", rule=TURNS, holdout=holdout, gate="fair", window=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--small", help="in place of small_cnn and the thin ResNet, for data of another kind")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    world = World(args.data, "clean", load(args.data), "bf16" if torch.cuda.is_available() else "fp32", args.data_seed)
    for seed in args.seeds:
        ((_, lists),) = chosen_by_proxies(world, [Wanted("list", idea(args), seed)], 2 * args.steps)
        histories = fit_together([task(world, way, lists, args, seed) for way in WAYS])
        for way, history in zip(WAYS, histories, strict=True):
            line = {"way": way, "seed": seed, "accuracy": history.final["accuracy"]}
            print(line, flush=True)
            with args.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
