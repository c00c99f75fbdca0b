"""What a page says in words and figures: the verdict, classes, coverage, the bill, settings."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from goldiprox.analysis import REPLAYS
from goldiprox.artifacts import flat
from goldiprox.ledger import Cost
from goldiprox.rehearsal import LISTS
from goldiprox.report.collect import Method, Run

MAX_CLASSES = 20
MAX_ROWS = 12
OFTEN = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, None))
STAGES = {
    "irreducible": "holdout model, irreducible losses",
    "select": "the sequence",
    "select by predictability": "the sequence by predictability",
    "rehearsal": "small models, on either sequence",
    "train": "model, on the sequence",
    "train uniform": "model, uniform",
    "train loss": "model, high loss",
}


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\N{NARROW NO-BREAK SPACE}%"


def times(factor: float | None) -> str:
    if factor is None:
        return "not known"
    return f"{factor:.2g}\N{MULTIPLICATION SIGN}" if factor < 10 else f"{factor:.0f}\N{MULTIPLICATION SIGN}"


def amount(value: float | None, unit: str = "") -> str:
    """A number with an SI prefix."""
    if value is None:
        return "not known"
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g}\N{NARROW NO-BREAK SPACE}{prefix}{unit}"
    return f"{value:,.0f}\N{NARROW NO-BREAK SPACE}{unit}" if unit else f"{value:,.0f}"


def seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


@dataclass(frozen=True)
class Card:
    """One figure to remember, with what it is to be compared with."""

    title: str
    value: str
    note: str


def by_role(run: Run, role: str) -> Method:
    """The method of a role; the one on the sequence where there is none."""
    return next((m for m in run.methods if m.role == role), run.methods[0])


def final(method: Method) -> float:
    return method.evaluations[-1]["accuracy"]


def cards(run: Run) -> list[Card]:
    sequence, uniform = run.methods[0], by_role(run, "uniform")
    made = [
        Card("Test accuracy", percent(final(sequence)), f"on the sequence; uniform ends at {percent(final(uniform))}"),
        Card(
            "Fewer steps",
            times(run.speedup["steps"]) if run.speedup["steps"] else "n/a",
            "to uniform's final accuracy" if run.speedup["steps"] else "uniform's final accuracy was not reached",
        ),
    ]
    if run.truth is not None:
        flags = run.truth.corrupted
        made.append(
            Card(
                "Damaged picks",
                percent(float(flags[run.ids].mean())),
                f"{run.damage}; the data has {percent(float(flags[run.train].mean()))}",
            )
        )
    made.append(
        Card("Coverage", percent(coverage(run), 0), f"of {len(run.train):,} training examples were kept at least once")
    )
    return made


def coverage(run: Run) -> float:
    return len(np.unique(run.ids)) / max(len(run.train), 1)


def verdict(run: Run) -> str:
    """What this run shows, in two or three sentences."""
    sequence, uniform, factors = run.methods[0], by_role(run, "uniform"), run.speedup
    model = run.result["model"]["name"]
    gap = 100 * (final(sequence) - final(uniform))
    said = [
        f"Trained on the sequence, {model} ends at {percent(final(sequence))} on the test set: {abs(gap):.1f} points "
        f"{'above' if gap >= 0 else 'below'} the same model on uniformly drawn examples."
    ]
    if factors["steps"] is None:
        said.append("It did not reach uniform's final accuracy, so there is no speed-up to speak of.")
    else:
        said.append(
            f"It reached uniform's final accuracy in {times(factors['steps'])} fewer steps."
            if factors["steps"] > 1
            else "It needed all of its steps to reach uniform's final accuracy."
        )
        # Where FLOPs are known: they do not depend on what else the machine did.
        unit, name = ("flops", "FLOPs") if factors["flops"] is not None else ("seconds", "seconds")
        alone, given = factors[unit], factors["replay"][unit]
        if alone is not None and given is not None:
            said.append(
                f"In {name}, whoever is given the sequence pays {_compared(given)} uniform training. A single "
                f"model, with all that is paid once on its bill, pays {_compared(alone)} uniform."
            )
    seed = run.result["seed"]
    said.append(f"One seed ({seed}), on {run.result['device']}: another seed gives somewhat other figures.")
    return " ".join(said)


def _compared(factor: float) -> str:
    """Uniform's cost divided by another, as the other's part of a comparison."""
    if 0.95 < factor < 1.05:
        return "about as much as"
    return f"{times(factor)} less than" if factor > 1 else f"{times(1 / factor)} more than"


def curve_rows(method: Method) -> list[dict[str, str]]:
    """A few evaluations, evenly spread, the last among them."""
    evaluations = method.evaluations
    chosen = np.unique(np.linspace(0, len(evaluations) - 1, min(MAX_ROWS, len(evaluations))).round().astype(int))
    return [
        {
            "step": f"{e['step']:,}",
            "flops": amount(e["flops"]),
            "seconds": seconds(e["seconds"]),
            "accuracy": percent(e["accuracy"]),
            "corrupted": percent(method.corrupted[number]),
            "coverage": "" if method.coverage is None else percent(method.coverage[number]),
        }
        for number, e in ((int(i), evaluations[i]) for i in chosen)
    ]


@dataclass(frozen=True)
class ClassRow:
    """A class: its share of the training side, and of what each method trained on."""

    name: str
    data: float
    picks: list[tuple[Method, float]]


def class_rows(run: Run) -> tuple[list[ClassRow], int]:
    """The classes (those that selection changed most, where there are many), and how many there are."""
    if run.given is None:
        return [], 0
    num_classes = int(run.given.max()) + 1
    counted = [m for m in run.methods if m.classes is not None and len(m.classes) == num_classes]
    mine = np.bincount(run.given[run.ids], minlength=num_classes)
    shares = [(m, m.classes / max(m.classes.sum(), 1)) for m in counted if m.classes is not None]
    if not shares:
        shares = [(run.methods[0], mine / max(mine.sum(), 1))]
    data = np.bincount(run.given[run.train], minlength=num_classes) / len(run.train)
    change = np.abs(shares[0][1] - data)
    shown = np.sort(np.argsort(-change, kind="stable")[:MAX_CLASSES])
    rows = [ClassRow(run.class_name(int(c)), float(data[c]), [(m, float(s[c])) for m, s in shares]) for c in shown]
    return rows, num_classes


def repetition_rows(run: Run) -> list[tuple[str, int, float]]:
    """How many training examples were kept never, once, two or three times, and so on."""
    counts = run.counts[run.train]
    rows = []
    for low, high in OFTEN:
        found = int(((counts >= low) & (counts <= (high if high is not None else counts.max(initial=0)))).sum())
        name = "never" if low == 0 else "once" if high == 1 else f"{low} to {high}" if high else f"{low} or more"
        if found or low <= 1:
            rows.append((name, found, found / len(counts)))
    return rows


def ledger_rows(run: Run) -> list[tuple[str, Cost]]:
    names = STAGES | ({"select": f"the sequence by {LISTS[0]}"} if "rehearsal" in run.ledger else {})
    return [(names.get(name, name), cost) for name, cost in run.ledger.items()]


def speedup_rows(run: Run) -> list[tuple[str, ...]]:
    factors = run.speedup
    steps = times(factors["steps"])
    rows = [
        (
            "one model" if models == 1 else f"{models} models",
            steps,
            *(times(factors["amortised"][str(models)][unit]) for unit in ("flops", "seconds")),
        )
        for models in REPLAYS
    ]
    return [*rows, ("given the sequence", steps, *(times(factors["replay"][u]) for u in ("flops", "seconds")))]


def finding(run: Run) -> dict[str, Any] | None:
    """How well the highest irreducible losses find damaged examples; None where that is not known."""
    if run.truth is None:
        return None
    flags = run.truth.corrupted[run.train]
    order = np.argsort(-run.irreducible[run.train], kind="stable")
    hits = np.cumsum(flags[order])
    looked = np.arange(1, len(order) + 1)
    total = int(hits[-1])
    precision, recall = hits / looked, hits / total
    points = np.unique(np.geomspace(1, len(order), 160).round().astype(int)) - 1
    shown = sorted({max(1, total // 4), max(1, total // 2), total, min(2 * total, len(order))})
    return {
        "what": run.damage,
        "total": total,
        "share": total / len(order),
        "average": float(precision[flags[order]].mean()),
        "rows": [(k, float(precision[k - 1]), float(recall[k - 1])) for k in shown],
        "chart": {
            "looked": looked[points].tolist(),
            "precision": precision[points].round(4).tolist(),
            "recall": recall[points].round(4).tolist(),
        },
    }


def fingerprint_rows(run: Run) -> list[tuple[str, str]]:
    rows = [("data set", run.header.data["fingerprint"]), ("sequence (ids in order)", run.result["sequence"]["digest"])]
    rows += [("irreducible losses", run.irreducible_digest)]
    rows += [(f"made from: {name}", digest) for name, digest in run.header.parents.items() if name != "irreducible"]
    versions = run.result["versions"]
    return [*rows, ("made with", ", ".join(f"{name} {version}" for name, version in versions.items()))]


def setting_rows(runs: list[Run]) -> list[tuple[str, list[str], bool]]:
    """Every setting of every run, and whether it differs among them; but not where data lies on this machine."""
    tables = [flat({k: v for k, v in run.config.items() if k != "versions"}) for run in runs]
    names = [n for n in dict.fromkeys(name for table in tables for name in table) if n != "data.data_dir"]
    rows = [(name, [table.get(name, "n/a").strip('"') for table in tables]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in rows]
