"""`goldiprox compare`: does selection pay, on this data, for this model?"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from goldiprox import enough
from goldiprox.checkpoint import flag
from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, err, failure, next_command, out, percent, print_json, table
from goldiprox.compare import plan as plans
from goldiprox.compare.figure import draw
from goldiprox.compare.methods import PAPER, parse
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import compare as make
from goldiprox.errors import ConfigError, MissingExtra, UnknownName
from goldiprox.holdout import HoldoutConfig
from goldiprox.rehearsal import in_words, unasked_in_words
from goldiprox.rules import OVERTAKEN
from goldiprox.settings import RunConfig
from goldiprox.stages import Silent

DATA = [flag for flag in o.DATA if flag[0] != "holdout_noise"]
SIZES = [flag for flag in o.SELECTION if flag[0] in ("acquisition", "candidates", "keep")]
MACHINE = [flag for flag in o.MACHINE if flag[0] != "seed"]


@o.configured(DATA, o.PROXY, o.MODEL, o.HOLDOUT_MODEL, SIZES, o.OPTIMISER, MACHINE, noise=None)
def compare(
    config: RunConfig,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--rule",
            help="How to select; again for several side by side. default, paper, or a rule (top_k, gumbel_top_k:1, "
            "mix:0.25+gumbel_top_k:1, ...), and after commas what else differs: default,window=1,il_models=3.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="How long a method trains the large model.")] = 1200,
    budgets: Annotated[str, typer.Option(help="Uniform budgets, in multiples of --steps.")] = "0.25,0.5,1,2,3",
    seeds: Annotated[int, typer.Option(help="Runs of each kind: seeds 0, 1, ...")] = 3,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: cosine (the default), constant, or both.")
    ] = None,
    holdout_noise: Annotated[
        str, typer.Option(help="Of holdout labels: clean, equal (as on the training side), or a share.")
    ] = "clean",
    preset: Annotated[
        str | None, typer.Option(help="paper: top_k, constant rate, 320 candidates, 32 kept, as in the paper.")
    ] = None,
    uniform_on: Annotated[
        str, typer.Option(help="What uniform training sees: train, or everything (the holdout too).")
    ] = "train",
    itself: Annotated[bool, typer.Option(help="Also let the large model select for itself.")] = True,
    at_once: Annotated[int, typer.Option(help="Runs of the large model in one CUDA graph.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A few steps, to see that it runs.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="The folder (default: results/compare-DATA[-quick]).")
    ] = None,
    json: o.Json = False,
) -> None:
    """Test whether selection pays: a large model on selected batches against uniform ones on every budget.

    Uniform training gets 1/4 to 3 times the steps, on each budget with the whole schedule of the learning rate. What is
    paid once is on the bill. Finished runs are kept in OUT/runs: a call that was broken off goes on, and a
    second one only draws.
    """
    config = replace(config, data=replace(config.data, holdout_noise=_share(holdout_noise, config.data.noise)))
    plan = Plan(
        config,
        methods=tuple(parse(text) for text in method or ["default"]),
        steps=steps,
        budgets=_numbers(budgets),
        seeds=tuple(range(seeds)),
        schedules=("cosine", "constant") if schedule == "both" else (schedule or "cosine",),  # type: ignore[arg-type]
        uniform_on=uniform_on,  # type: ignore[arg-type]
        itself=itself,
        at_once=at_once,
    )
    if preset is not None:
        plan = _preset(preset, plan, given=[n for n, v in (("--method", method), ("--schedule", schedule)) if v])
    plan = plans.quick(plan) if quick else plan
    name = Path(config.data.data.replace(":", "-")).name
    target = folder or Path("results") / f"compare-{name}{'-quick' if quick else ''}"
    try:
        result = make(plan, target, progress=Silent() if json else Bars())
    except KeyboardInterrupt:
        failure(f"finished runs stay in {target / 'runs'}; the same command goes on from there", label="interrupted:")
        raise
    try:
        result["figures"] = [str(path) for path in draw(result, target)]
    except MissingExtra as e:
        result["figures"] = []
        err.print(f"no figures: {e}")
    if json:
        print_json(result)
        return
    for schedule_name, found in result["schedules"].items():
        _show(schedule_name, found, result)
    out.print(f"\n{_caution(result)}")
    out.print(f"Numbers and figures: {', '.join([str(target / 'compare.json'), *result['figures']])}")
    if quick:
        out.print("Quick: a few steps, to see that it runs; the verdict needs the full size.")
        next_command(shlex.join(a for a in sys.argv[1:] if a != "--quick"))


def _preset(name: str, plan: Plan, given: list[str]) -> Plan:
    if name != "paper":
        raise UnknownName("preset", name, ["paper"])
    default, config = RunConfig(), plan.config
    given += ["--acquisition"] if config.acquisition not in (default.acquisition, PAPER["acquisition"]) else []
    moved = HoldoutConfig.robust(augment=config.holdout.augment)  # which decides on blends
    decided = (
        (config, default, ("candidates", "keep", "dropout")),
        (config.training, default.training, ("lr", "weight_decay")),
        (config.holdout, default.holdout, ("checkpoint", "max_epochs", "augment", "cleaned")),
        (config.holdout, moved, ("mixup",)),
    )
    given += [flag(n) for mine, usual, names in decided for n in names if getattr(mine, n) != getattr(usual, n)]
    if given:
        raise ConfigError(f"--preset paper decides what {' and '.join(given)} would; leave out one or the other")
    return plans.as_in_the_paper(plan)


def _share(text: str, equal: float) -> float:
    known = {"clean": 0.0, "equal": equal}
    try:
        return known[text] if text in known else float(text)
    except ValueError:
        raise ConfigError(f"--holdout-noise {text}: give clean, equal, or a share such as 0.1") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--budgets {text}: give numbers with commas between them, such as 0.25,0.5,1,2,3") from None


def _show(schedule: str, found: dict[str, Any], result: dict[str, Any]) -> None:
    kinds = [
        (f"{name}{', for itself' if kind == 'itself' else ''}", method[kind])
        for name, method in found["methods"].items()
        for kind in ("sequence", "itself")
        if kind in method
    ]
    out.print()
    out.print(_accuracies(schedule, found, kinds, result))
    out.print(_costs(kinds, result))
    out.print(_signals(found))
    for name, judged in kinds:
        out.print(f"{name}:")
        for unit, verdict in judged["verdict"].items():
            out.print(f"  in {_UNITS[unit]}: {verdict['sentence']}")
        out.print(f"  on its way: {_below(judged)}")
        if judged["minus_everything"]:
            out.print(f"  the holdout: {_held_out(judged['minus_everything'])}")
        if judged.get("minus_chance"):
            out.print(f"  the choice: {_chosen(judged['minus_chance'])}")
        if name in found["methods"] and (taken := _taken(found["methods"][name])):
            out.print(f"  the sequence: {taken}")
        if name in found["methods"] and (made_by := _made_by(found["methods"][name])):
            out.print(f"  irreducible losses: {made_by}")
        if overtaken := _overtaken(judged.get("below_floor")):
            out.print(f"  the holdout model: {overtaken}")
        if unlike := _unlike(found["methods"].get(name), result):
            out.print(f"  the model: {unlike}")
        if too_good := _too_good(found["methods"].get(name), found["uniform"]):
            out.print(f"  the holdout model: {too_good}")


_UNITS = {"flops": "FLOPs", "seconds": "seconds"}


def _caution(result: dict[str, Any]) -> str:
    said = f"{result['hardware']}, torch {result['versions']['torch']}, seeds {', '.join(map(str, result['seeds']))}"
    if "CPU" in result["hardware"]:
        said += "; seconds depend on what else runs on this machine"
    sizes = set()
    for found in result["schedules"].values():
        sizes.update(found["uniform"]["together"])
        sizes.update(
            n
            for m in found["methods"].values()
            for k in ("sequence", "itself")
            for n in m.get(k, {}).get("together", ())
        )
    if len(sizes) > 1:
        numbers = ", ".join(map(str, sorted(sizes)))
        said += f"; runs of the large model were made {numbers} at a time, so their seconds do not compare"
    return said


def _below(judged: dict[str, Any]) -> str:
    steps = judged["below_uniform_at"]
    if steps is None:
        return "whether it is below uniform cannot be said from one seed"
    if not steps:
        return "never below uniform by more than one standard error"
    at = ", ".join(f"{s:,}" for s in steps)
    return f"below uniform by more than one standard error at steps {at}"


def _held_out(gap: dict[str, Any]) -> str:
    said = f"{_points(gap)} against uniform training on it too, for as many steps"
    if gap["mean"] >= -(gap["error"] or 0):
        return said
    return f"{said}; if you could train on it, cross-fit instead: --holdout 0 --folds 2"


def _chosen(gap: dict[str, Any]) -> str:
    said = f"{_points(gap)} against chance from the labels that it chose from"
    if gap["mean"] >= -(gap["error"] or 0):
        return said
    return f"{said}; leaving labels out is enough: train on gp.trusted_ids"


def _taken(method: dict[str, Any]) -> str | None:
    """Of two sequences, which was taken for how many seeds, and why; nothing where none other was thought of."""
    seeds = method["recorded_by"]
    small = [seed["too_small"] for seed in seeds if seed["too_small"]]
    if not small and not any(seed["rehearsed"] for seed in seeds):
        return None
    said = []
    for by in dict.fromkeys(seed["name"] for seed in seeds):
        own = [seed for seed in seeds if seed["name"] == by]
        rehearsed = [seed["rehearsed"] for seed in own if seed["rehearsed"]]
        said.append(f"by {by} for {len(own)} of {len(seeds)} seeds")
        if rehearsed:
            means = {name: sum(each[name] for each in rehearsed) / len(rehearsed) for name in rehearsed[0]}
            some = f"for {len(rehearsed)} of them " * (len(rehearsed) < len(own))
            said[-1] += f" ({some}{in_words(by, means, 'a small model')})"
    if small:
        some = f" (for {len(small)} of {len(seeds)})" * (len(small) < len(seeds))
        said.append(unasked_in_words(sum(small) / len(small), "a model of the proxy's kind") + some)
    return f"recorded {'; '.join(said)}"


def _made_by(method: dict[str, Any]) -> str:
    """Which holdout models there were, for how many seeds, and why; nothing where none was needed."""
    names = [enough.titled(made["name"], made.get("augment")) for made in method["holdout_models"] if made["name"]]
    parts = [
        f"by {n}" + f" for {names.count(n)} of {len(names)} seeds" * (len({*names}) > 1) for n in dict.fromkeys(names)
    ]
    replaced = [made for made in method["holdout_models"] if made["instead"]]
    if not replaced:
        return ", ".join(parts)
    why, once = replaced[0]["instead"], sum(not made["cleaned"] for made in replaced)
    how = f"; trained once, since the holdout's labels look right, for {once} of {len(names)} seeds" * bool(once)
    return f"{', '.join(parts)}{how}; {enough.in_words(why)}"


def _overtaken(floor: dict[str, Any] | None) -> str | None:
    if floor is None or floor["share"][-1] <= OVERTAKEN:
        return None
    before = max((n + 1 for n, share in enumerate(floor["share"]) if share <= OVERTAKEN), default=0)
    return (
        f"the proxy is better on {percent(floor['share'][-1])} of its candidates at the end (on more than "
        f"{percent(OVERTAKEN)} from step {floor['steps'][before]:,} on), so it has little left to choose by; try a "
        f"larger holdout, a larger --il-model or fewer steps"
    )


def _unlike(method: dict[str, Any] | None, result: dict[str, Any]) -> str | None:
    """Of a sequence that lost: that its proxy goes by something else than what the model has left to learn."""
    if method is None or sum(method["early"]["ended_ahead"]) >= 0:
        return None
    if all(made["name"] == result["model"] or made.get("augment", "off") != "off" for made in method["holdout_models"]):
        return None
    agreed = [found for found in method["early"]["rank_correlation"] if found is not None]
    if not agreed or sum(agreed) >= 0:
        return None
    return (
        f"it has other examples left to learn than its proxy (rank correlation {sum(agreed) / len(agreed):.2f} after a "
        f"quarter); what a small holdout model cannot learn looks unlearnable: try --il-model {result['model']}"
    )


TOO_GOOD = 0.65
"""Of what the model misses, what a holdout model misses at least that is not too good for it. On clean CIFAR-10 one at
0.73 still gained, and one at 0.57 nothing (docs/lab-notes.md).
"""


def _too_good(method: dict[str, Any] | None, uniform: dict[str, Any]) -> str | None:
    """Of a sequence that gained nothing: that its holdout model knows what the model will not learn in its time."""
    if method is None or sum(method["early"]["ended_ahead"]) > 0:
        return None
    if {recorded["name"] for recorded in method["recorded_by"]} == {"predictability"}:  # nothing says so of that
        return None
    right = [made["accuracy"] for made in method["holdout_models"] if made["accuracy"] is not None]
    by_length = dict(zip(uniform["budgets"], uniform["accuracy"], strict=True))
    if not right or 1.0 not in by_length:
        return None
    missed, own = 1 - sum(right) / len(right), 1 - by_length[1.0]["mean"]
    if missed >= TOO_GOOD * own:
        return None
    return (
        f"it misses {percent(missed)} of its holdout where the model, trained uniformly, ends by missing "
        f"{percent(own)}: what that will not learn in its time looks learnable; try one that is about as good as the "
        f"model will be"
    )


def _points(gap: dict[str, Any]) -> str:
    return f"{100 * gap['mean']:+.1f} points ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})"


def _accuracies(schedule: str, found: dict[str, Any], kinds: list[Any], result: dict[str, Any]) -> Any:
    rows = [
        [f"uniform, {budget:g}x", _spread(accuracy), "", ""]
        for budget, accuracy in zip(found["uniform"]["budgets"], found["uniform"]["accuracy"], strict=True)
    ]
    if found["uniform"]["everything"]:
        rows.append(["uniform on all, 1x", _spread(found["uniform"]["everything"]), "", ""])
    for name, judged in kinds:
        worth, gap = judged["worth"], judged["minus_uniforms_best"]
        rows.append(
            [
                name,
                _spread(judged["accuracy"]),
                f"{100 * gap['mean']:+.1f}\n({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})",
                f"{worth['steps']['text']}{_around(worth['interval'])}",
            ]
        )
    for name, method in found["methods"].items():
        if method["chance"]:
            rows.append([f"{name}, by chance", _spread(method["chance"]), "", ""])
    wrong = percent(result["corrupted"]["training side"])
    title = (
        f"{result['model']} on {result['data']['data']} ({wrong} corrupted), {result['steps']:,} steps of "
        f"{result['keep']}, {schedule} rate; mean of {len(result['seeds'])} seed(s) (lowest to highest) [95% interval]"
    )
    return table(title, ["trained on", "accuracy (%)", "against uniform's\nbest from 1x on", "uniform needs"], rows)


def _costs(kinds: list[Any], result: dict[str, Any]) -> Any:
    rows = []
    for name, judged in kinds:
        for unit, by_replays in judged["speedup"].items():
            cells = [by_replays[str(n)]["text"] + _around(by_replays[str(n)]["interval"]) for n in result["replays"]]
            rows.append([name if unit == "flops" else "", _UNITS[unit], *cells])
    title = "Uniform's cost to the same accuracy divided by all costs; what is paid once is shared by the replays"
    return table(title, ["trained on", "in", *(f"{n} replay{'s' if n > 1 else ''}" for n in result["replays"])], rows)


def _signals(found: dict[str, Any]) -> Any:
    def mean(values: list[float | None], form: str, scale: float = 100) -> str:
        known = [value for value in values if value is not None]
        return format(scale * sum(known) / len(known), form) if known else "?"

    rows = [
        [
            name,
            mean(early["ahead_of_uniform"], "+.1f"),
            mean(early["rank_correlation"], ".2f", 1),
            mean(early["distinct"], ".0f") + "%",
            mean(early["corrupted"], ".1f") + "%",
            mean(early["wrong_labels_told"], ".2f", 1),
            mean(early["ended_ahead"], "+.1f"),
        ]
        for name, early in ((name, method["early"]) for name, method in found["methods"].items())
    ]
    heads = [
        "sequence",
        "points\nahead",
        "rank\ncorr.",
        "distinct\npicks",
        "corrupted\npicks",
        "wrong\nlabels told",
        "ahead\nat end",
    ]
    return table("Early signals: after a quarter of the run, against uniform; and how it ended", heads, rows)


def _spread(figures: dict[str, Any]) -> str:
    return f"{100 * figures['mean']:.1f} ({100 * figures['low']:.1f}-{100 * figures['high']:.1f})"


def _around(interval: list[dict[str, Any]] | None) -> str:
    ends = [f"{end['side']}{end['times']:.2f}" for end in interval or ()]
    return f"\n[{', '.join(ends)}]" if ends else ""
