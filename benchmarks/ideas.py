"""Ideas for sequences that transfer, many runs at once on one GPU: a JSON line for each, for the lab notes.

    python benchmarks/ideas.py --worlds clean uniform10 class20 instance20 --out ideas.jsonl
    python benchmarks/ideas.py --worlds clean --seeds 0 1 --ideas "S g1 R" "S g1 R, one pass" uniform --out ideas.jsonl
    python benchmarks/ideas.py --data mnist --small mlp128 --model mlp512 --steps 1200 --out ideas.jsonl \
        --ideas uniform --also "proxy=mlp128,score=gain,rule=gumbel_top_k:0.25,gate=0,window=100"

`goldiprox compare` judges a method; this compares raw ideas, also some that the library does not offer because they did
not survive. Every idea is a list of ids, made by a proxy or by chance from what a gate lets through; the large model
trains on several lists in one CUDA graph (``--at-once``). Accuracy is that of the test set after the last step; the
learning rate decays.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from proxies import thin16, thin20, thin32
from torch import Tensor, nn

import goldiprox as gp
from goldiprox.data import iterate, load
from goldiprox.engine import Given
from goldiprox.forward import call, cross_entropy, in_precision
from goldiprox.irreducible import contradicted, rivals
from goldiprox.loop import Task, evaluate_on, fit_together, outputs
from goldiprox.models import MODELS, build
from goldiprox.prepare import DataConfig, prepare
from goldiprox.randomness import uniforms
from goldiprox.recording import record_many
from goldiprox.rules import OVERTAKEN, Rule, discounted_top_k, highest, make_rule
from goldiprox.shuffled import deal
from goldiprox.suspects import ODDS, suspected

WORLDS: dict[str, dict[str, Any]] = {
    "clean": {},
    "clean, nothing held out": {"holdout": 0.0},
    "uniform10": {"noise": 0.1},
    "uniform10, holdout too": {"noise": 0.1, "holdout_noise": 0.1},
    "class20": {"noise": 0.2, "noise_kind": "class", "holdout_noise": 0.2},
    "class20, a fifth held out": {"noise": 0.2, "noise_kind": "class", "holdout_noise": 0.2, "holdout": 0.2},
    "instance20": {"noise": 0.2, "noise_kind": "instance", "holdout_noise": 0.2},
}
KEEP = 32
OUT = -1e4
"""The score of what a gate leaves out."""

SMALL: dict[str, Any] = {}
"""The holdout model is of the proxy's kind, its rate constant, its checkpoint that of the lowest inner loss."""
LAST: dict[str, Any] = {"checkpoint": "last"}
LARGE: dict[str, Any] = {"il_model": "resnet18", "schedule": "cosine", "max_epochs": 10}
DECAYED: dict[str, Any] = {"il_model": "small_cnn", "schedule": "cosine", "max_epochs": 10}
CLEANED: dict[str, Any] = DECAYED | {"cleaned": True}
BOTH: dict[str, Any] = LARGE | {"cleaned": True}
MIXED: dict[str, Any] = {"mixup": "on"}
TWO: dict[str, Any] = LARGE | {"models": 2}
THREE: dict[str, Any] = DECAYED | {"il_model": "thin16", "models": 3}


@dataclass(frozen=True)
class Idea:
    """A way to make a list of ids.

    Attributes:
        proxy: Chooses; without one, chance does.
        score: What the proxy goes by; ``averaged:D`` is the reducible loss by a running average of its weights, a share
            D of which is kept at every step; ``bounded:Q`` has ``(1 - p ** Q) / Q`` in place of the loss, so that
            far from learnt counts little more than not learnt; ``ramped:A:B`` takes A times the irreducible loss off at
            the beginning of the run and B times at its end; ``easy`` goes by the irreducible loss alone, ``sure`` by
            the probability of the label that it stands for; ``capped:B`` has a loss of B at most.
        rule: As on the command line; ``counted:L`` takes L standard deviations off a score for each time that an
            example was kept (``counted:L/N``: with Gumbel noise N times as large), ``absolute:T`` is Gumbel top-k at a
            temperature that is not in standard deviations, ``priced:A:B`` is ``discounted_top_k`` at a price that
            goes from A to B distances of quartiles, ``nats:C`` at C units of the loss for as many turns as there are
            passes. ``heavy:W:P`` has its own score: P distances of quartiles, the irreducible loss counting W times
            until, by the plain reducible loss, the proxy has overtaken its holdout model; from then on the default.
            ``worn:C:P`` likewise: a time of being kept costs P distances of quartiles and C times the irreducible loss.
            ``fading:A:P``: the proxy's loss counts ``(1 + times) ** -A``, what is left is the irreducible loss.
        holdout: How the holdout model is made.
        gate: What is left out: ``wrong`` (what was really damaged), ``confident`` (contradicted so), ``fair`` (the
            default), ``second`` (of that, what a second model contradicts at 10 to 1 as well: one of the holdout
            model's kind, which learnt the rest of the training side), or a margin as text; nothing if "".
        until: The share of the run in which nothing is left out yet.
        window: Steps among which the list is shuffled, as `goldiprox.Sequence.shuffled` does; 0 for those of one pass,
            an eighth of the run at most.
        deal: How: by chance, or so that batches are alike in labels (``class``), in irreducible losses too (``loss``).
        late: The share of the run at its end that is drawn by chance instead, from what the gate lets through.
        other: Added to the proxy's seed. With 0 a proxy of the large model's kind begins with that model's weights, and
            its list in its own order is that model selecting for itself.
        proxies: How many choose, from other seeds; every place of the list is that of one of them, by chance.
        members: How many networks a proxy is made of; its loss is the mean of theirs, each learns by its own.
        pace: The proxy keeps, and learns from, so many times what the list holds; with 2 that is every second one.
        rate: The proxy's learning rate at the beginning; with 1e-9 it never learns.
        spread: Without a proxy, how unevenly often examples come: from ``1 - spread`` times the mean for the lowest
            irreducible loss to ``1 + spread`` times for the highest tenth, without the last 3%.
        weight: Losses are weighted with this power of how often an example is in the list.
        soft: The share of the holdout model's prediction in the target.
        smooth: The share of all classes alike in the target.
    """

    proxy: str = ""
    score: str = "reducible"
    rule: str = "gumbel_top_k:1"
    holdout: dict[str, Any] = field(default_factory=dict)
    gate: str = ""
    until: float = 0.0
    window: int = 1
    deal: str = "chance"
    late: float = 0.0
    other: int = 0
    proxies: int = 1
    members: int = 1
    pace: int = 1
    rate: float = 1e-3
    spread: float = 0.0
    weight: float = 0.0
    soft: float = 0.0
    smooth: float = 0.0


class Wanted(NamedTuple):
    """A list to be made: an idea, the name it is written down under, and the seed of all that is random."""

    name: str
    idea: Idea
    seed: int


S, T = Idea("small_cnn"), Idea("thin16")
IDEAS: dict[str, Idea] = {
    "uniform": Idea(),
    "S g1": S,
    "S g1, last": replace(S, holdout=LAST),
    "S gain g0.5, gate 0": replace(S, score="gain", rule="gumbel_top_k:0.5", gate="0"),
    "T g1": T,
    "T g0.5": replace(T, rule="gumbel_top_k:0.5"),
    "T20 g0.5": replace(T, proxy="thin20", rule="gumbel_top_k:0.5"),
    "T gain g0.5": replace(T, score="gain", rule="gumbel_top_k:0.5"),
    "T gain g0.5, gate 0": replace(T, score="gain", rule="gumbel_top_k:0.5", gate="0"),
    "T g0.5, gate 0": replace(T, rule="gumbel_top_k:0.5", gate="0"),
    "T squared g0.5": replace(T, score="squared", rule="gumbel_top_k:0.5"),
    "S g1 R": replace(S, holdout=LARGE),
    "T g1 R": replace(T, holdout=LARGE),
    "T g1 to uniform R": replace(T, rule="gumbel_top_k:1..inf", holdout=LARGE),
    "true labels": Idea(gate="wrong"),
    "confident R": Idea(gate="confident", holdout=LARGE),
    "margin 1 R": Idea(gate="1", holdout=LARGE),
    "margin 0 R": Idea(gate="0", holdout=LARGE),
    "margin 1 R, late half": Idea(gate="1", holdout=LARGE, until=0.5),
    "margin 0 R, late half": Idea(gate="0", holdout=LARGE, until=0.5),
    "margin 0 R, late third": Idea(gate="0", holdout=LARGE, until=2 / 3),
    "S counted 1 R, gate 1": replace(S, rule="counted:1", holdout=LARGE, gate="1"),
    "S counted 2 R, gate 1": replace(S, rule="counted:2", holdout=LARGE, gate="1"),
    "T counted 1 R, gate 1": replace(T, rule="counted:1", holdout=LARGE, gate="1"),
    "S by class g1 R": replace(S, score="by class", holdout=LARGE),
    "S g1 R, 100 steps": replace(S, holdout=LARGE, window=100),
    "S g1 R, one pass": replace(S, holdout=LARGE, window=0),
    "S g1 R, whole run": replace(S, holdout=LARGE, window=1 << 30),
    "S g0.5 R, one pass": replace(S, rule="gumbel_top_k:0.5", holdout=LARGE, window=0),
    "S by class g1 R, one pass": replace(S, score="by class", holdout=LARGE, window=0),
    "T g1 R, one pass": replace(T, holdout=LARGE, window=0),
    "S g1 D, one pass": replace(S, holdout=DECAYED, window=0),
    "S g1 C, one pass": replace(S, holdout=CLEANED, window=0),
    "S g1 RC, one pass": replace(S, holdout=BOTH, window=0),
    "S g1 C, gate 1, one pass": replace(S, holdout=CLEANED, gate="1", window=0),
    "S g1 C, gate 2, one pass": replace(S, holdout=CLEANED, gate="2", window=0),
    "S g1 RC, gate 2, one pass": replace(S, holdout=BOTH, gate="2", window=0),
    "confident C": Idea(gate="confident", holdout=CLEANED),
    "margin 1 C": Idea(gate="1", holdout=CLEANED),
    "margin 2 C": Idea(gate="2", holdout=CLEANED),
    "margin 3 C": Idea(gate="3", holdout=CLEANED),
    "margin 1 RC": Idea(gate="1", holdout=BOTH),
    "margin 2 RC": Idea(gate="2", holdout=BOTH),
    "margin 3 RC": Idea(gate="3", holdout=BOTH),
    "S g1 R confident, one pass": replace(S, holdout=LARGE, gate="confident", window=0),
    "S g0.5 R confident, one pass": replace(S, rule="gumbel_top_k:0.5", holdout=LARGE, gate="confident", window=0),
    "S g2 R confident, one pass": replace(S, rule="gumbel_top_k:2", holdout=LARGE, gate="confident", window=0),
}
"""S: proxy `small_cnn` (1/29 of the FLOPs of `resnet18`), T: ResNet-18 of width 16 (1/16), T20: of width 20 (1/10).
g: the temperature of `gumbel_top_k`. R: the holdout model is a `resnet18`, ten epochs at a decaying rate. D: a
`small_cnn`, likewise; C: on a holdout that a model of the training side has cleaned. RC: both. R2: two R, T3: three T
at a decaying rate, their losses and margins averaged. M after any of these: learnt from blends (mixup). A: with or
without them, whatever does better. K: neither, but calibrated: what `auto` makes of a large one where the holdout looks
right."""


def by_class(c: Any) -> Tensor:
    """The reducible loss above its mean among candidates of the same label."""
    score, labels = gp.reducible_loss(c), nn.functional.one_hot(c.y.long()).float()
    return score - (labels @ ((labels.T @ score) / labels.sum(0).clamp(min=1)))


def averaged(model: nn.Module, kept: float) -> Callable[[Any], Tensor]:
    """The reducible loss by a running average of the model's weights; for models without running statistics."""
    average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def score(c: Any) -> Tensor:
        with torch.no_grad():
            now = {name: p.detach() for name, p in model.named_parameters()}
            for name, value in average.items():
                value.lerp_(now[name].float(), 1 - kept)
            used = {name: value.to(now[name].dtype) for name, value in average.items()}
            out = torch.func.functional_call(model, used, (c.x.to(next(iter(used.values())).dtype),)).float()
        return nn.functional.cross_entropy(out, c.y, reduction="none") - c.irreducible

    return score


def ramped(setting: str, steps: int) -> Callable[[Any], Tensor]:
    """The loss less the irreducible one, which counts more, or less, as the run goes on."""
    begin, end = (float(part) for part in setting.split(":"))
    return lambda c: c.loss - (begin + (end - begin) * (c.step / steps)) * c.irreducible


def bounded(q: float) -> Callable[[Any], Tensor]:
    """The generalised cross-entropy less the irreducible loss: however far from learnt, it is 1 / q at most."""
    return lambda c: (1 - (-q * c.loss).exp()) / q - c.irreducible


def capped(bound: float) -> Callable[[Any], Tensor]:
    """The loss, of ``bound`` at most, less the irreducible one."""
    return lambda c: c.loss.clamp(max=bound) - c.irreducible


SCORES: dict[str, Callable[[Any], Tensor]] = {
    "reducible": gp.reducible_loss,
    "clipped": lambda c: gp.reducible_loss(c).clamp(min=0),
    "eased": lambda c: torch.maximum(gp.reducible_loss(c), -c.loss),
    "gain": gp.probability_gain,
    "root": lambda c: 2 * ((-c.irreducible / 2).exp() - (-c.loss / 2).exp()),
    "loss": gp.loss,
    "weighted loss": lambda c: (-c.irreducible).exp() * c.loss,
    "weighted": lambda c: (-c.irreducible).exp() * (1 - (-c.loss).exp()),
    "squared": lambda c: (-2 * c.irreducible).exp() * (1 - (-c.loss).exp()),
    "by class": by_class,
    "easy": gp.irreducible_loss,
    "sure": gp.predictability,
}


def score_of(text: str, model: nn.Module, steps: int) -> Callable[[Any], Tensor]:
    name, _, setting = text.partition(":")
    if name == "averaged":
        return averaged(model, float(setting))
    if name == "bounded":
        return bounded(float(setting))
    if name == "capped":
        return capped(float(setting))
    return ramped(setting, steps) if name == "ramped" else SCORES[name]


HOLDOUTS = {"": SMALL, "last": LAST, "R": LARGE, "D": DECAYED, "C": CLEANED, "RC": BOTH, "R2": TWO, "T3": THREE}
HOLDOUTS |= {"RK": LARGE | {"calibrated": True}}
HOLDOUTS |= {"T": DECAYED | {"il_model": "thin16"}, "TC": CLEANED | {"il_model": "thin16"}}
HOLDOUTS |= {f"{letters}A": HOLDOUTS[letters] | {"mixup": "auto"} for letters in ("R", "RC", "D", "C", "T", "TC")}
HOLDOUTS |= {f"{letters}M": HOLDOUTS[letters] | MIXED for letters in ("R", "RC", "D", "C", "T", "TC")}
MODELS |= {"thin16": thin16, "thin20": thin20, "thin32": thin32}


class World:
    """One data set with its damage, on the device."""

    def __init__(self, data: str, name: str, source: Any, precision: Any, data_seed: int = 0, copies: int = 0):
        self.name, self.precision, self.data_seed = name, precision, data_seed
        self.prepared = prepare(DataConfig(data, data_seed=data_seed, **WORLDS[name]), source)
        base, test = self.prepared.data, self.prepared.test
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.last = self.device.type == "cuda" and base.x.ndim == 4
        if self.last:
            base, test = base.channels_last(), test.channels_last()
        self.data, self.test = base.resident(self.device), test.resident(self.device)
        self.train, self.wrong = self.prepared.split.train, self.prepared.truth.mislabelled
        self.evaluate = evaluate_on(self.test, forward=in_precision(call, precision))
        self.table = cache(self._table)
        self.predicted: dict[str, Tensor] = {}
        """What the holdout model of a table (its digest) takes for the label: a row of probabilities for each."""
        self.copies = copies
        x = augmented(self.data.x, copies) if copies else self.data.x
        ids = torch.arange(len(self.data), device=self.device).repeat(max(1, copies))
        self.numbered = self.data.replace(x=x, y=ids, num_classes=len(self.data))
        """The same inputs, their ids for targets: the loss looks up the rest."""

    def build(self, name: str, seed: int) -> nn.Module:
        model = build(name, self.data.input_shape, self.data.num_classes or 0, seed=seed, device=self.device)
        return model.to(memory_format=torch.channels_last) if self.last else model  # type: ignore[call-overload]

    def proxy(self, idea: Idea, seed: int) -> nn.Module:
        members = [self.build(idea.proxy, seed + 10_000 * number) for number in range(idea.members)]
        return Members(members) if idea.members > 1 else members[0]

    def _table(self, il_model: str, seed: int, schedule: Any, max_epochs: int, **more: Any) -> gp.IrreducibleLosses:
        training = gp.TrainingConfig(precision=self.precision, schedule=schedule)
        patience = max_epochs if schedule == "cosine" else 5
        config = gp.HoldoutConfig(max_epochs=max_epochs, patience=patience, training=training, **more)
        split, model = self.prepared.split, lambda fold: self.build(il_model, seed + 7919 * (fold + 1))
        folds = 0 if len(split.holdout) else 2
        table, models, reports, cost = gp.irreducible_losses(
            model, self.data, split, num_folds=folds, config=config, seed=seed
        )
        if not folds:
            self.predicted[table.digest] = self._predicted(models[0], reports[0].sharpness)
        accuracy = reports[0].figures["accuracy"]
        print(
            f"{self.name}, {il_model}, seed {seed}{', cleaned' * config.cleaned}, mixup {reports[0].mixup}: accuracy "
            f"on the holdout {accuracy:.4f}, sharpness {reports[0].sharpness:.2f}, FLOPs {cost.flops:.3g}"
            f"{self.search(table)}",
            flush=True,
        )
        return table

    @torch.no_grad()
    def _predicted(self, model: nn.Module, sharpness: float) -> Tensor:
        forward, rows = in_precision(call, self.precision), torch.as_tensor(self.train, device=self.device)
        out = torch.zeros(len(self.data), self.data.num_classes or 0, device=self.device)
        model.eval()
        for ids in rows.split(1000):
            out[ids] = (sharpness * forward(model, self.data.gather(ids)[0]).float()).softmax(1)
        return out

    def search(self, table: gp.IrreducibleLosses) -> str:
        """How well the table tells wrong labels: AUCs, and for some cuts the share of wrong and of right ones above."""
        assert table.rivals is not None
        wrong, margin = self.wrong[table.ids], table.rivals.margin.numpy()[table.ids]
        if not wrong.any():
            return ""
        cuts = {kind: self.cut(table, kind) for kind in ("confident", "fair", "0", "1", "2", "3", "4")}
        shares = "; ".join(f"{n} {above[wrong].mean():.3f} {above[~wrong].mean():.3f}" for n, above in cuts.items())
        aucs = [auc(wrong, values) for values in (table.values.numpy()[table.ids], margin)]
        return f", AUC by loss {aucs[0]:.4f}, by margin {aucs[1]:.4f}; of wrong and of right labels above {shares}"

    def table_of(self, idea: Idea, seed: int) -> gp.IrreducibleLosses:
        given = {
            "il_model": idea.proxy,
            "schedule": "constant",
            "checkpoint": "inner",
            "max_epochs": 100,
            "cleaned": False,
            "mixup": "off",
            "calibrated": False,
            "models": 1,
        } | idea.holdout
        count = given.pop("models")
        tables = [self.table(seed=seed + 1_000_003 * number, **given) for number in range(count)]
        if count == 1:
            return tables[0]
        table = gp.IrreducibleLosses.combined(tables)
        print(f"{self.name}, {count} models{self.search(table)}", flush=True)
        return table

    def left_out(self, idea: Idea, seed: int) -> np.ndarray:
        """What the gate of an idea leaves out: a flag for every example of the data set."""
        out = np.zeros(len(self.data), bool)
        if idea.gate == "wrong":
            return self.wrong.copy()
        if idea.gate:
            table = self.table_of(idea, seed)
            assert table.rivals is not None
            out[table.ids] = self.cut(table, "fair" if idea.gate == "second" else idea.gate)
        if idea.gate == "second" and out.any():
            out[out] = self.contradicts(idea.holdout["il_model"], out, seed)
        return out

    def contradicts(self, kind: str, out: np.ndarray, seed: int) -> np.ndarray:
        """Whether a model that learnt the training side but for ``out``, in one pass, contradicts those at 10 to 1."""
        left, steps = np.flatnonzero(out), int((~out[self.train]).sum()) // KEEP
        model, rows = self.build(kind, seed + 55), torch.as_tensor(self.drawn(out, 0, steps, KEEP, seed + 5))
        config = gp.TrainingConfig(schedule="cosine", precision=self.precision)
        batches = iterate(self.data, iter(rows), device=self.device, seed=seed)
        fit_together([Task(model, batches, steps=steps, config=config, seed=seed)])
        judged = outputs(model, self.data, left, forward=in_precision(call, self.precision))
        margins = [rivals(output.float(), batch.y).margin.cpu() for batch, output in judged]
        both, wrong = torch.cat(margins).numpy() > np.log(ODDS), self.wrong[left]
        print(
            f"{self.name}, seed {seed}: of {wrong.sum()} wrong and {(~wrong).sum()} right labels left out, a second "
            f"model wants back {(~both & wrong).sum()} and {(~both & ~wrong).sum()}",
            flush=True,
        )
        return both

    def cut(self, table: gp.IrreducibleLosses, gate: str) -> np.ndarray:
        """Which labels of the table a gate leaves out."""
        if gate == "fair":
            return suspected(table, self.data)
        if gate == "confident":
            return contradicted(table, self.data.labels)
        assert table.rivals is not None
        return table.rivals.margin.numpy()[table.ids] > float(gate)

    def loss(self, idea: Idea, ids: np.ndarray, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss by ids: cross-entropy against labels, or against what an idea puts in their place."""
        labels, classes = torch.as_tensor(self.data.labels, device=self.device).long(), self.data.num_classes or 0
        target = nn.functional.one_hot(labels, classes).float()
        target = (1 - idea.smooth) * target + idea.smooth / classes
        if idea.soft:
            predicted = self.predicted[self.table_of(idea, seed).digest]
            target = (1 - idea.soft) * target + idea.soft * predicted
        times = torch.as_tensor(np.bincount(ids.reshape(-1), minlength=len(labels)), device=self.device).float()
        weight = times.clamp(min=1) ** idea.weight
        weight = weight / ((weight * times).sum() / times.sum())
        return lambda output, y: -weight[y] * (target[y] * output.float().log_softmax(1)).sum(1)

    def shown(self, ids: np.ndarray) -> np.ndarray:
        """The rows of `numbered` for a list: of an example that comes again, another of its copies."""
        if not self.copies:
            return ids
        flat = ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        first = np.searchsorted(flat[order], flat[order])
        again = np.empty_like(flat)
        again[order] = np.arange(len(flat)) - first
        begin = np.random.default_rng(3).integers(self.copies, size=len(self.data))
        return (flat + len(self.data) * ((begin[flat] + again) % self.copies)).reshape(ids.shape)

    def uneven(self, table: gp.IrreducibleLosses, spread: float, steps: int, keep: int, seed: int) -> np.ndarray:
        """By chance, one pass after another; what has a higher irreducible loss comes more often."""
        ids, draw = np.asarray(self.train), np.random.default_rng(seed)
        rank = table.values.numpy()[ids].argsort().argsort() / len(ids)
        often = 1 - spread + 2 * spread * np.minimum(rank / 0.9, 1)
        often[rank > 0.97] = 1
        passes, begin = keep * steps / len(ids), draw.random(len(ids))
        ends = np.minimum(np.arange(int(np.ceil(passes)) + 1), passes)
        turns = np.diff(np.floor(begin + often / often.mean() * ends[:, None]), axis=0).astype(int)
        rows = np.concatenate([draw.permutation(np.repeat(ids, n)) for n in turns] + [draw.permutation(ids)])
        return rows[: steps * keep].reshape(steps, keep)

    def figures(self, ids: np.ndarray) -> dict[str, float]:
        """What a list holds: wrong labels, the share of examples ever seen, how unevenly often those are, and how
        much more classes vary from batch to batch than in independent draws.
        """
        labels, classes = self.data.labels, self.data.num_classes or 1
        batches = np.stack([np.bincount(labels[batch], minlength=classes) for batch in ids])
        share = batches.sum(0) / batches.sum()
        times = np.unique(ids, return_counts=True)[1]
        return {
            "wrong": float(self.wrong[ids].mean()),
            "seen": len(times) / len(self.train),
            "times": float(times.mean()),
            "std of times": float(times.std()),
            "classes": float(batches.var(0).mean() / (ids.shape[1] * share * (1 - share)).mean()),
        }

    def drawn(self, out: np.ndarray, until: float, steps: int, keep: int, seed: int) -> np.ndarray:
        """By chance: at first from everything, then without what is left out."""
        first = round(until * steps)
        parts = [(self.train, first, seed), (self.train[~out[self.train]], steps - first, seed + 100)]
        if not out.any():
            parts = [(self.train, steps, seed)]
        return np.concatenate(
            [
                torch.stack(list(gp.CandidateSampler(i, keep, seed=s, steps=n).batches())).numpy()
                for i, n, s in parts
                if n
            ]
        )


def augmented(x: Tensor, copies: int) -> Tensor:
    """Images, then copies of all of them, each shifted by up to 4 pixels and half of them mirrored."""
    draw, (n, _, height, width) = torch.Generator().manual_seed(7), x.shape
    padded, parts = nn.functional.pad(x.contiguous(), (4, 4, 4, 4)), [x]
    which, rows, columns = (torch.arange(size, device=x.device) for size in (n, height, width))
    for _ in range(copies - 1):
        down, across = torch.randint(9, (2, n), generator=draw).to(x.device)
        mirrored = (torch.rand(n, generator=draw) < 0.5).to(x.device)
        taken = torch.where(mirrored[:, None], across[:, None] + width - 1 - columns, across[:, None] + columns)
        below = down[:, None] + rows
        shifted = padded.permute(0, 2, 3, 1)[which[:, None, None], below[:, :, None], taken[:, None, :]]
        parts.append(shifted.permute(0, 3, 1, 2))
    is_last = not x.is_contiguous()
    return torch.cat(parts).contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)


def auc(wrong: np.ndarray, values: np.ndarray) -> float:
    """How often a wrong one lies above a right one."""
    ranks, count = values.argsort().argsort() + 1, int(wrong.sum())
    return float((ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count)))


def parsed(text: str) -> Idea:
    """An idea from settings, ``proxy=mlp128,score=gain,rule=top_k``; the holdout model by its letters above, and its
    epochs after a slash: ``R/3``.
    """
    values: dict[str, Any] = dict(setting.split("=", 1) for setting in text.split(","))
    letters, _, epochs = values.get("holdout", "").partition("/")
    values["holdout"] = HOLDOUTS[letters] | ({"max_epochs": int(epochs)} if epochs else {})
    numbers: dict[str, Any] = dict.fromkeys(("window", "other", "proxies", "members", "pace"), int)
    numbers |= dict.fromkeys(("until", "late", "rate", "spread", "weight", "soft", "smooth"), float)
    return Idea(**{name: numbers.get(name, lambda v: v)(value) for name, value in values.items()})


def counted(length: int, setting: str, device: torch.device) -> Rule:
    """Gumbel top-k at one standard deviation of what is not left out, each time of being kept at a price."""
    price, amount = (float(part) for part in (*setting.split("/"), "1")[:2])
    times = torch.zeros(length, device=device)

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any) -> Tensor:
        inside = scores > OUT / 2
        count = inside.sum().clamp(min=1)
        mean = torch.where(inside, scores, 0.0).sum() / count
        std = (torch.where(inside, (scores - mean) ** 2, 0.0).sum() / count).sqrt().clamp(min=1e-9)
        noise = -amount * (-uniforms(ids, key).log()).log()
        scaled = torch.where(inside, (scores - mean) / std, OUT)
        rows = highest((scaled - price * times[ids] + noise).float(), ids, keep)
        times.index_add_(0, ids[rows], torch.ones(keep, device=device))
        return rows

    rule.text = f"counted:{setting}"  # type: ignore[attr-defined]
    return rule


def priced(setting: str, steps: int) -> Rule:
    """`discounted_top_k` in distances of quartiles, at a price that changes over the run."""
    begin, end = (float(part) for part in setting.split(":"))
    now = discounted_top_k(1.0, unit="iqr")

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any, *, times: Tensor, step: Any) -> Tensor:
        return now(scores, ids, keep, key, times=(begin + (end - begin) * (step / steps)) * times)

    rule.needs_times = rule.needs_step = True  # type: ignore[attr-defined]
    rule.text = f"priced:{setting}"  # type: ignore[attr-defined]
    return rule


def in_nats(setting: str, passes: float) -> Rule:
    """`discounted_top_k` at a price in units of the loss: so many for as many turns as there are passes."""
    whole = discounted_top_k(float(setting) / passes)

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any, *, times: Tensor) -> Tensor:
        return whole(scores, ids, keep, key, times=times, spread=torch.ones((), dtype=torch.float64, device=ids.device))

    rule.needs_times = True  # type: ignore[attr-defined]
    rule.text = f"nats:{setting}"  # type: ignore[attr-defined]
    return rule


def heavy(setting: str) -> tuple[Callable[[Any], Tensor], Rule]:
    """A score in which the irreducible loss counts more, with a floor that goes by the plain reducible loss."""
    weight, price = (float(part) for part in setting.split(":"))
    now = discounted_top_k(price, unit="iqr")
    spread: list[Tensor] = []

    def score(c: Any) -> Tensor:
        plain = gp.reducible_loss(c)
        overtaken = (plain < 0).sum() > OVERTAKEN * len(plain)
        scores = torch.where(overtaken, plain, c.loss - weight * c.irreducible)
        spread[:] = [now.in_spreads(scores)]  # type: ignore[attr-defined]
        return torch.where(overtaken, plain.clamp(min=0), scores)

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any, *, times: Tensor) -> Tensor:
        return now(scores, ids, keep, key, times=times, spread=spread[0])

    rule.needs_times = True  # type: ignore[attr-defined]
    rule.text = f"heavy:{setting}"  # type: ignore[attr-defined]
    return score, rule


def worn(setting: str) -> tuple[Callable[[Any], Tensor], Rule]:
    """Coming back to an example costs the more the less of it can be learnt."""
    rising, price = (float(part) for part in setting.split(":"))
    now = discounted_top_k(price, unit="iqr")
    hard: list[Tensor] = []

    def score(c: Any) -> Tensor:
        hard[:] = [c.irreducible]
        return gp.reducible_loss(c)

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any, *, times: Tensor) -> Tensor:
        overtaken = (scores < 0).sum() > OVERTAKEN * len(scores)
        later = torch.where(overtaken, scores.clamp(min=0), scores - rising * times * hard[0])
        spread = now.in_spreads(torch.where(overtaken, scores, later))  # type: ignore[attr-defined]
        return now(later, ids, keep, key, times=times, spread=spread)

    rule.needs_times = True  # type: ignore[attr-defined]
    rule.text = f"worn:{setting}"  # type: ignore[attr-defined]
    return score, rule


def fading(setting: str) -> tuple[Callable[[Any], Tensor], Rule]:
    """The more often an example was kept, the less the proxy has to say about it."""
    power, price = (float(part) for part in setting.split(":"))
    now = discounted_top_k(price, unit="iqr")
    hard: list[Tensor] = []

    def score(c: Any) -> Tensor:
        hard[:] = [c.irreducible]
        return c.loss

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any, *, times: Tensor) -> Tensor:
        return now(scores * (1 + times) ** -power - hard[0], ids, keep, key, times=times)

    rule.needs_times = True  # type: ignore[attr-defined]
    rule.text = f"fading:{setting}"  # type: ignore[attr-defined]
    return score, rule


def absolute(temperature: float) -> Rule:
    def rule(scores: Tensor, ids: Tensor, keep: int, key: Any) -> Tensor:
        return highest((scores / temperature - (-uniforms(ids, key).log()).log()).float(), ids, keep)

    rule.text = f"absolute:{temperature:g}"  # type: ignore[attr-defined]
    return rule


def gated(score: Callable[[Any], Tensor], out: Tensor) -> Callable[[Any], Tensor]:
    return lambda c: torch.where(out[c.ids], torch.full_like(c.loss, OUT), score(c))


def chosen(world: World, wanted: Sequence[Wanted], steps: int, at_once: int) -> Iterator[tuple[Wanted, np.ndarray]]:
    """The ids of every list, a row for each step; some proxies at once."""
    for one in wanted:
        idea, seed = one.idea, one.seed
        if not idea.proxy:
            ids = world.drawn(world.left_out(idea, seed), idea.until, steps, KEEP, seed)
            if idea.spread:
                ids = world.uneven(world.table_of(idea, seed), idea.spread, steps, KEEP, seed)
            yield one, arranged(world, idea, ids, len(world.train), seed)
    by_proxies = [one for one in wanted if one.idea.proxy]
    for first in range(0, len(by_proxies), at_once):
        yield from chosen_by_proxies(world, by_proxies[first : first + at_once], steps)


def chosen_by_proxies(world: World, wanted: Sequence[Wanted], steps: int) -> Iterator[tuple[Wanted, np.ndarray]]:
    each, models, passes = [], [], KEEP * steps / len(world.train)
    for _, idea, seed in wanted:
        out = world.left_out(idea, seed)
        for number in range(idea.proxies):
            own = seed + idea.other + 100 * number
            model, pool = world.proxy(idea, own), world.train[~out[world.train]]
            score = score_of(idea.score, model, steps)
            kind, _, setting = idea.rule.partition(":")
            if kind == "counted":
                rule, pool = counted(len(world.data), setting, world.device), world.train
                score = gated(score, torch.as_tensor(out, device=world.device))
            elif kind == "absolute":
                rule = absolute(float(setting))
            elif kind == "priced":
                rule = priced(setting, steps)
            elif kind == "nats":
                rule = in_nats(setting, passes)
            elif kind in ("heavy", "worn", "fading"):
                score, rule = {"heavy": heavy, "worn": worn, "fading": fading}[kind](setting)
            else:
                rule = make_rule(idea.rule, steps=steps, passes=passes)
            given = {"irreducible": world.table_of(idea, seed), "acquisition": score, "rule": rule, "ids": pool}
            loss = mean_of_members if idea.members > 1 else cross_entropy
            config = gp.TrainingConfig(lr=idea.rate, schedule="cosine", precision=world.precision)
            each.append(given | {"seed": own, "keep": KEEP * idea.pace, "loss": loss, "config": config})
            models.append(model)
    recordings = iter(record_many(models, world.data, each=each, steps=steps))
    pools = iter(len(given["ids"]) for given in each)
    for one in wanted:
        idea, seed = one.idea, one.seed
        made = [next(recordings).ids.reshape(steps, -1)[:, :: idea.pace] for _ in range(idea.proxies)]  # type: ignore[union-attr]
        lists = np.stack(made)
        mixed = np.choose(np.random.default_rng(seed).integers(len(lists), size=lists[0].shape), lists)
        pool, *_ = (next(pools) for _ in range(idea.proxies))
        yield one, arranged(world, idea, mixed, pool, seed)


class Members(nn.Module):
    """Several networks side by side."""

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members], 2)


def mean_of_members(output: Tensor, y: Tensor) -> Tensor:
    """The mean of the losses of `Members`."""
    return nn.functional.cross_entropy(output, y[:, None].expand(-1, output.shape[2]), reduction="none").mean(1)


def arranged(world: World, idea: Idea, ids: np.ndarray, pool: int, seed: int) -> np.ndarray:
    """A list in the order of its idea, its end drawn uniformly where the idea says so."""
    steps = len(ids)
    window = idea.window or max(1, min(pool // KEEP, steps // 8))
    assert idea.deal in ("chance", "class", "loss"), idea.deal
    if window > 1:
        losses = world.table_of(idea, seed).values.numpy() if idea.deal == "loss" else np.zeros(len(world.data))
        parts = enumerate(ids[first : first + window] for first in range(0, steps, window))
        ids = np.concatenate(
            [
                dealt(part, seed, number)
                if idea.deal == "chance"
                else alike(part, world.data.labels, losses, seed + number)
                for number, part in parts
            ]
        )
    if not (late := round(idea.late * steps)):
        return ids
    uniform = world.drawn(world.left_out(idea, seed), 0, late, KEEP, seed + 77)
    return np.concatenate([ids[: steps - late], uniform])


def dealt(part: np.ndarray, seed: int, number: int) -> np.ndarray:
    order = deal(part.reshape(-1), len(part), seed, number)
    return part.reshape(-1)[order].reshape(part.shape)


def alike(part: np.ndarray, labels: np.ndarray, losses: np.ndarray, seed: int) -> np.ndarray:
    """What lies side by side in the order of labels, then losses, goes to different batches."""
    draw, ids = np.random.default_rng(seed), part.reshape(-1)
    chance = draw.random(len(labels))
    order = ids[np.lexsort((chance[ids], losses[ids], labels[ids]))]
    return np.stack([block[draw.permutation(len(part))] for block in order.reshape(KEEP, len(part))], 1)


def trained(
    world: World, lists: Sequence[tuple[Wanted, np.ndarray]], model: str, evaluations: int = 12
) -> list[list[tuple[int, float]]]:
    """The accuracies of the large model, on each list, as it is trained."""
    config, tasks = gp.TrainingConfig(schedule="cosine", precision=world.precision), []
    for (_, idea, seed), ids in lists:
        rows = torch.as_tensor(np.ascontiguousarray(world.shown(ids))).to(world.device)
        batches = iterate(world.numbered, iter(rows.cpu()), device=world.device, seed=seed)
        feed = Given(world.numbered, lambda first, count, rows=rows: rows[first : first + count], batches)
        tasks.append(
            Task(
                world.build(model, seed),
                feed if world.device.type == "cuda" else batches,
                steps=len(ids),
                config=config,
                loss=world.loss(idea, ids, seed),
                seed=seed,
                evaluate=world.evaluate,
                eval_every=max(1, len(ids) // evaluations),
            )
        )
    return [[(e["step"], round(e["accuracy"], 4)) for e in h.evaluations] for h in fit_together(tasks)]


def write_trials(
    world: World, lists: Sequence[tuple[Wanted, np.ndarray]], model: str, at_once: int, out: IO[str], **more: int
) -> None:
    """Trains the large model on every list, some at a time: a line for each, to look at and to keep."""
    for first in range(0, len(lists), at_once):
        part = lists[first : first + at_once]
        for ((name, idea, seed), ids), curve in zip(part, trained(world, part, model, **more), strict=True):
            line = {"idea": name, "world": world.name, "model": model, "data seed": world.data_seed, "seed": seed}
            line |= {"accuracy": curve[-1][1]}
            line |= world.figures(ids)
            print(", ".join(f"{k} {v:.4f}" if isinstance(v, float) else str(v) for k, v in line.items()))
            out.write(json.dumps(line | {"curve": curve, "settings": asdict(idea)}) + "\n")
            out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["clean", "uniform10", "class20", "instance20"])
    parser.add_argument("--ideas", nargs="*", choices=IDEAS, metavar="NAME", default=list(IDEAS))
    parser.add_argument("--also", action="append", default=[], metavar="SETTINGS", help="an idea by its settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-seed", type=int, default=0, help="of split and damage")
    parser.add_argument("--copies", type=int, default=0, help="of every image, shifted and mirrored, to train on")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--small", help="in place of small_cnn and the thin ones, for data of another kind")
    parser.add_argument("--steps", type=int, default=4680)
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    ideas = {name: IDEAS[name] for name in a.ideas} | {text: parsed(text) for text in a.also}
    if a.small:
        ideas = {
            name: replace(i, proxy=a.small if i.proxy else "", holdout=i.holdout | {"il_model": a.small})
            for name, i in ideas.items()
        }
    source = load(a.data)
    with a.out.open("a") as out:
        for title in a.worlds:
            world = World(a.data, title, source, a.precision, a.data_seed, a.copies)
            for seed in a.seeds:
                wanted = [Wanted(name, idea, seed) for name, idea in ideas.items()]
                write_trials(world, list(chosen(world, wanted, a.steps, a.at_once)), a.model, a.at_once, out)


if __name__ == "__main__":
    main()
