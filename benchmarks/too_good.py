"""Can a holdout model be too good? Lists from holdout models of many qualities, the same for all seeds of a proxy.

    PYTHONPATH=benchmarks python benchmarks/too_good.py --world clean --seeds 0 1 2 3 4 5 --out too_good.jsonl \
        --lists R10 R10x4 S30a T30a R30a R30ac R30a,rule=heavy:1.5:1.5 uniform

A holdout model by its kind (R: `resnet18`, W: of width 32, T: of width 16, S: `small_cnn`), its epochs, and what is
done for it: ``a`` shifts and mirrors its images, ``c`` lets it learn half of the training side too (two models, each
judging the half that it did not see), ``p`` takes the mean of its predictions after every epoch (what it learns early
is easier), ``b32`` learns in batches of 32, ``x4`` takes the mean prediction of four. Another one behind a plus sign
says which labels are left out: ``R10+R30a``. Then settings as in `ideas.py`. A JSON line for each
list, as that writes them.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ideas import WORLDS, Idea, Wanted, World, augmented, chosen, write_trials
from torch import Tensor, nn

import goldiprox as gp
from goldiprox.data import iterate, load
from goldiprox.engine import Given
from goldiprox.forward import call, in_precision
from goldiprox.irreducible import Rivals, rivals
from goldiprox.loop import Task, fit_together
from goldiprox.rules import RULE

KINDS = {"R": "resnet18", "T": "thin16", "S": "small_cnn", "W": "thin32", "M": "mlp128", "L": "mlp512"}
SIZE = 128
FIRST = 900
"""The seed of the first model."""


@dataclass(frozen=True)
class Way:
    """How holdout models are made."""

    kind: str
    epochs: int
    augments: bool
    crosses: bool
    path: bool
    size: int
    count: int

    @classmethod
    def of(cls, text: str) -> "Way":
        found = re.fullmatch(r"([A-Z])(\d+)(a?)(c?)(p?)(?:b(\d+))?(?:x(\d+))?", text)
        assert found, f"{text} is not a way to make holdout models, such as R30a"
        kind, epochs, augments, crosses, path, size, count = found.groups()
        done = bool(augments), bool(crosses), bool(path)
        return cls(KINDS[kind], int(epochs), *done, int(size or SIZE), int(count or 1))


class Judging(World):
    """A world whose irreducible losses come from such models."""

    def table_of(self, idea: Idea, seed: int) -> gp.IrreducibleLosses:  # noqa: ARG002
        return self.table(idea.holdout["way"])

    def left_out(self, idea: Idea, seed: int) -> np.ndarray:
        other = idea.holdout.get("gate", idea.holdout.get("way"))
        return super().left_out(replace(idea, holdout={"way": other}), seed)

    def _table(self, text: str) -> gp.IrreducibleLosses:  # type: ignore[override]
        found, labels = self._predictions(Way.of(text)), torch.as_tensor(self.data.labels).long()
        values, rival, margin = (torch.full((len(labels),), torch.nan) for _ in range(3))
        known = torch.as_tensor(self.train)
        values[known] = -found[known].gather(1, labels[known, None])[:, 0]
        rival[known], margin[known] = rivals(found[known], labels[known])
        table = gp.IrreducibleLosses(values, data=gp.describe(self.data), rivals=Rivals(rival, margin))
        right = float((margin[known] < 0).double().mean())
        print(f"{self.name}, {text}: right on the training side {right:.4f}{self.search(table)}", flush=True)
        return table

    def _predictions(self, way: Way) -> Tensor:
        """Log-probabilities of all classes for every example of the training side."""
        draw = np.random.default_rng(5)
        holdout = draw.permutation(np.asarray(self.prepared.split.holdout))
        inner, learn = np.split(holdout, [len(holdout) // 20])
        parts = [(learn, np.asarray(self.train))]
        if way.crosses:
            mixed = draw.permutation(np.asarray(self.train))
            one, other = np.split(mixed, [len(mixed) // 2])
            parts = [(np.concatenate([learn, other]), one), (np.concatenate([learn, one]), other)]
        out = torch.full((len(self.data), self.data.num_classes or 0), torch.nan)
        labels = torch.as_tensor(self.data.labels[inner], device=self.device).long()
        for known, asked in parts:
            models = [self.build(way.kind, FIRST + number) for number in range(way.count)]
            both, seen = np.concatenate([inner, asked]), []
            self._learn(
                models, known, way, lambda model, both=both, seen=seen: seen.append(self._mean(model, both, way))
            )
            last = slice(None) if way.path else slice(-way.count, None)
            own, said = torch.stack(seen[last]).exp().mean(0).log().split([len(inner), len(asked)])
            sharpness = min(np.arange(0.5, 2.01, 0.05), key=lambda s: nn.functional.cross_entropy(s * own, labels))
            out[torch.as_tensor(asked)] = (sharpness * said).log_softmax(1).cpu()
        return out

    def _learn(self, models: list[nn.Module], ids: np.ndarray, way: Way, look: Callable[[nn.Module], object]) -> None:
        length, labels = len(self.data), torch.as_tensor(self.data.labels, device=self.device).long()
        x = augmented(self.data.x, way.epochs + 1) if way.augments else self.data.x
        numbers = torch.arange(length, device=self.device).repeat(len(x) // length)
        data, tasks = self.data.replace(x=x, y=numbers, num_classes=length), []
        for seed, model in enumerate(models):
            draw, steps = np.random.default_rng(1000 + seed), len(ids) // way.size
            passes = [
                draw.permutation(ids)[: steps * way.size].reshape(steps, way.size) + way.augments * length * (epoch + 1)
                for epoch in range(way.epochs)
            ]
            rows = torch.as_tensor(np.concatenate(passes)).to(self.device)
            batches = iterate(data, iter(rows.cpu()), device=self.device, seed=seed)
            feed = Given(data, lambda first, count, rows=rows: rows[first : first + count], batches)
            tasks.append(
                Task(
                    model,
                    feed if self.device.type == "cuda" else batches,
                    steps=len(rows),
                    config=gp.TrainingConfig(schedule="cosine", precision=self.precision),
                    loss=lambda output, y: nn.functional.cross_entropy(output.float(), labels[y], reduction="none"),
                    seed=seed,
                    evaluate=lambda model: {"seen": float(look(model) is None)},
                    eval_every=len(ids) // way.size if way.path else None,
                )
            )
        fit_together(tasks)

    @torch.no_grad()
    def _mean(self, model: nn.Module, ids: np.ndarray, way: Way) -> Tensor:
        """The logarithm of its probabilities; where it learnt so, of their mean over mirrored images."""
        forward, parts = in_precision(call, self.precision), []
        for rows in torch.as_tensor(ids, device=self.device).split(1000):
            x = self.data.gather(rows)[0]
            shown = [x, x.flip(-1)] if way.augments else [x]
            each = [forward(model.eval(), one).float().softmax(1) for one in shown]
            parts.append(torch.stack(each).mean(0).log())
        return torch.cat(parts)


def parsed(text: str, proxy: str) -> Idea:
    if text == "uniform":
        return Idea()
    ways, *settings = text.split(",")
    way, _, gate = ways.partition("+")
    idea = Idea(proxy, rule=RULE, gate="fair", window=0, holdout={"way": way} | ({"gate": gate} if gate else {}))
    given: dict[str, Any] = dict(setting.split("=", 1) for setting in settings)
    return replace(idea, **{name: type(getattr(idea, name))(value) for name, value in given.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--world", choices=WORLDS, default="clean")
    parser.add_argument("--lists", nargs="+", required=True)
    parser.add_argument("--proxy", default="small_cnn")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    world, ideas = Judging(a.data, a.world, load(a.data), a.precision), {t: parsed(t, a.proxy) for t in a.lists}
    with a.out.open("a") as out:
        for seed in a.seeds:
            wanted = [Wanted(name, idea, seed) for name, idea in ideas.items()]
            write_trials(world, list(chosen(world, wanted, a.steps, a.at_once)), a.model, a.at_once, out)


if __name__ == "__main__":
    main()
