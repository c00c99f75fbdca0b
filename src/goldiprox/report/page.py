"""The page: one file, everything inside it, nothing asked of the network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from goldiprox._version import __version__
from goldiprox.errors import ConfigError
from goldiprox.report import tables
from goldiprox.report.cloud import make_cloud
from goldiprox.report.collect import Method, Run
from goldiprox.report.galleries import make_galleries
from goldiprox.storage import write_atomically

NAME = "report.html"
MAX_RUNS = 8


def write_page(runs: Sequence[Run], path: Path) -> Path:
    """Writes the page of these runs, under its name when it is whole."""
    write_atomically(path, make_page(runs).encode())
    return path


def is_page(path: Path) -> bool:
    """Whether a file is such a page, which may be replaced by another."""
    if not path.is_file():
        return False
    with path.open("rb") as f:
        return b'<meta name="generator" content="goldiprox ' in f.read(4096)


def make_page(runs: Sequence[Run]) -> str:
    """The page of these runs, side by side."""
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"a page shows 1 to {MAX_RUNS} runs, not {len(runs)}; leave some out")
    names = _distinct([run.name for run in runs])
    clouds, findings = [make_cloud(run) for run in runs], [tables.finding(run) for run in runs]
    payload = {
        "runs": [
            {
                "name": name,
                "methods": _curves(run),
                "cloud": cloud,
                "finding": found and found["chart"],
                "damagedShare": found and found["share"],
            }
            for name, run, cloud, found in zip(names, runs, clouds, findings, strict=True)
        ]
    }
    scripts = [_asset("uplot/uPlot.iife.min.js"), _asset("charts.js")]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"percent": tables.percent, "amount": tables.amount, "seconds": tables.seconds}
    shown = [
        {
            "name": name,
            "run": run,
            "cards": tables.cards(run),
            "verdict": tables.verdict(run),
            "rows": [(m, tables.curve_rows(m)) for m in run.methods],
            "cloud": cloud,
            "galleries": make_galleries(run),
            "finding": found,
            "classes": tables.class_rows(run),
            "repetitions": tables.repetition_rows(run),
            "coverage": tables.coverage(run),
            "ledger": tables.ledger_rows(run),
            "speedups": tables.speedup_rows(run),
            "fingerprints": tables.fingerprint_rows(run),
        }
        for name, run, cloud, found in zip(names, runs, clouds, findings, strict=True)
    ]
    return environment.from_string(_asset("template.html")).render(
        shown=shown,
        settings=tables.setting_rows(list(runs)),
        version=__version__,
        payload=_inert(payload),
        styles=[_asset("uplot/uPlot.min.css"), _asset("style.css")],
        licence=_asset("uplot/LICENSE"),
        scripts=scripts,
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
    )


def _asset(name: str) -> str:
    return (files("goldiprox.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _inert(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends that element or begins another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _distinct(names: list[str]) -> list[str]:
    repeated = {name for name in names if names.count(name) > 1}
    return [f"{name} ({number})" if name in repeated else name for number, name in enumerate(names, 1)]


def _curves(run: Run) -> list[dict[str, Any]]:
    return [_curve(run, method) for method in run.methods]


def _curve(run: Run, method: Method) -> dict[str, Any]:
    evaluations = method.evaluations
    costs = {unit: [e[unit] for e in evaluations] for unit in ("flops", "seconds")}
    return {
        "role": method.role,
        "label": method.label,
        "step": [e["step"] for e in evaluations],
        **costs,
        "billed": {unit: _billed(run, method, unit) for unit in costs},
        "accuracy": [round(100 * e["accuracy"], 4) for e in evaluations],
        "corrupted": [round(100 * s, 4) for s in method.corrupted] if run.truth is not None else None,
        "coverage": [round(100 * s, 4) for s in method.coverage] if method.coverage is not None else None,
    }


def _billed(run: Run, method: Method, unit: str) -> list[float] | None:
    """What training up to each evaluation cost with everything that it needed; None where that is not known."""
    own = [e[unit] for e in method.evaluations]
    if method.role != "sequence":
        return None if None in own else own
    once, proxy = getattr(run.once, unit), run.proxy
    if once is None or None in own or any(e[unit] is None for e in proxy):
        return None
    selecting = [next(p[unit] for p in proxy if p["step"] >= e["step"]) if proxy else 0 for e in method.evaluations]
    return [once + chosen + trained for chosen, trained in zip(selecting, own, strict=True)]
