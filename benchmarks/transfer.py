"""Which way of selecting transfers best: many trials against the same uniform runs, a JSON line each.

python benchmarks/transfer.py --data cifar10 --proxy small_cnn --model resnet18 --precision bf16 \
    --steps 4680 --seeds 2 --noise 0.1 --holdout-noise equal --out transfer

Writes OUT/trials.jsonl as trials finish, and keeps every run in OUT/runs: the same call goes on where it was broken
off, and further trials (--trials, or --method with a text as for `goldiprox compare`) find the uniform runs there.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from goldiprox import HoldoutConfig, TrainingConfig
from goldiprox.artifacts import check_folder
from goldiprox.cli.console import Bars
from goldiprox.compare.methods import Method, parse
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import trials
from goldiprox.outputs import JsonLines
from goldiprox.prepare import DataConfig
from goldiprox.settings import RunConfig

GUMBEL = Method("gumbel_top_k:1")
TRIALS: dict[str, Method] = {
    "top-k": Method("top_k"),
    "Gumbel 0.5": Method("gumbel_top_k:0.5"),
    "Gumbel 1": GUMBEL,
    "Gumbel 2": Method("gumbel_top_k:2"),
    "Gumbel 0.5 to uniform": Method("gumbel_top_k:0.5..inf"),
    "Gumbel 1 to uniform": Method("gumbel_top_k:1..inf"),
    "Gumbel 4 to 0.5": Method("gumbel_top_k:4..0.5"),
    "ranked 0.5": Method("ranked+gumbel_top_k:0.5"),
    "ranked 1": Method("ranked+gumbel_top_k:1"),
    "half uniform": Method("mix:0.5"),
    "quarter uniform, Gumbel 1": Method("mix:0.25+gumbel_top_k:1"),
    "probability gain": replace(GUMBEL, acquisition="probability_gain"),
    "ranked probability gain": Method("ranked+gumbel_top_k:0.5", acquisition="probability_gain"),
    "converged": replace(GUMBEL, checkpoint="last"),
    "short holdout training": replace(GUMBEL, checkpoint="last", holdout_epochs=5),
    "3 holdout models": replace(GUMBEL, il_models=3),
    "3 holdout models, probabilities": replace(GUMBEL, il_models=3, combine="probabilities"),
    "3 converged holdout models": replace(GUMBEL, il_models=3, checkpoint="last"),
    "cross-fit 2": replace(GUMBEL, folds=2),
    "cross-fit 5": replace(GUMBEL, folds=5),
    "robust": replace(GUMBEL, robust=0.7),
    "3 robust holdout models": replace(GUMBEL, robust=0.7, il_models=3),
    "robust, probability gain": replace(GUMBEL, robust=0.7, acquisition="probability_gain"),
    "half the candidates": replace(GUMBEL, candidates=160),
    "twice the candidates": replace(GUMBEL, candidates=640),
    "constant proxy": replace(GUMBEL, proxy_schedule="constant"),
}
"""Beside these, "large holdout model" and "large proxy" take the model's own kind."""


def named(model: str) -> dict[str, Method]:
    """All trials, for a large model of this name."""
    large = {"large holdout model": replace(GUMBEL, il_model=model), "large proxy": replace(GUMBEL, proxy=model)}
    return {name: replace(method, name=name) for name, method in (TRIALS | large).items()}


def make_plan(a: argparse.Namespace) -> Plan:
    known = {"clean": 0.0, "equal": a.noise}
    holdout_noise = known[a.holdout_noise] if a.holdout_noise in known else float(a.holdout_noise)
    data = DataConfig(a.data, a.data_dir, noise=a.noise, noise_kind=a.noise_kind, holdout_noise=holdout_noise)
    training = TrainingConfig(precision=a.precision)
    config = RunConfig.paper(
        data=data, proxy=a.proxy, model=a.model, holdout=HoldoutConfig(training=training), training=training
    )
    of_name = named(a.model)
    chosen = [of_name[name] for name in (a.trials if a.trials is not None else ([] if a.method else of_name))]
    return Plan(
        config,
        methods=(*chosen, *map(parse, a.method)),
        steps=a.steps,
        budgets=tuple(a.budgets),
        seeds=tuple(range(a.seeds)),
        schedules=tuple(a.schedules),
        itself=a.itself,
        at_once=a.at_once,
    )


def summary(line: dict[str, Any]) -> str:
    if "error" in line:
        return f"{line['trial']}: failed: {line['error']}"
    if line["trial"] == "uniform":
        points = zip(line["budgets"], line["accuracy"], strict=True)
        return "uniform: " + ", ".join(f"{b:g}x {100 * a['mean']:.2f}" for b, a in points)
    judged = line["sequence"]
    accuracy, gap, worth = judged["accuracy"], judged["minus_uniforms_best"], judged["worth"]["steps"]["text"]
    return (
        f"{line['trial']}: {100 * accuracy['mean']:.2f} ({100 * accuracy['low']:.2f} to {100 * accuracy['high']:.2f}), "
        f"{100 * gap['mean']:+.2f} against uniform's best, worth {worth}, ever kept {line['coverage']['mean']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--data-dir")
    parser.add_argument("--proxy", default="mlp128")
    parser.add_argument("--model", default="mlp512")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 1, 2, 3])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--noise-kind", default="uniform")
    parser.add_argument("--holdout-noise", default="clean", help="clean, equal, or a share")
    parser.add_argument("--schedules", nargs="+", default=["cosine"])
    parser.add_argument("--trials", nargs="+", choices=sorted(named("")), metavar="NAME", help="default: all")
    parser.add_argument("--method", action="append", default=[], help="a further trial, as for goldiprox compare")
    parser.add_argument("--itself", action="store_true", help="the large model also selects for itself")
    parser.add_argument("--at-once", type=int, default=1, help="runs of the large model in one CUDA graph")
    parser.add_argument("--out", type=Path, default=Path("transfer"))
    arguments = parser.parse_args()
    plan = make_plan(arguments)
    check_folder(arguments.out)
    with JsonLines(arguments.out / "trials.jsonl") as write:
        for line in trials(plan, arguments.out, progress=Bars()):
            write(line)
            print(summary(line), flush=True)


if __name__ == "__main__":
    main()
