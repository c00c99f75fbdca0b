"""`goldiprox inspect` and `verify`: looking at files."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from goldiprox import inspection, receipts
from goldiprox.artifacts import Header, read_header
from goldiprox.cli import options as o
from goldiprox.cli.console import facts, failure, out, print_json, readable, success
from goldiprox.cli.suspects import show
from goldiprox.data.fingerprint import short
from goldiprox.errors import ConfigError, CorruptFile, GoldiproxError, WrongKind
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.prepare import DataConfig
from goldiprox.sequence import KIND, Sequence
from goldiprox.settings import RunConfig
from goldiprox.stages import Stages

Files = Annotated[list[Path], typer.Argument(help="Sequences and irreducible tables.")]


def _open(path: Path, *, partial: bool = False) -> Sequence | IrreducibleLosses:
    kind = read_header(path).kind
    if kind == KIND:
        return Sequence.open(path, partial=partial)
    if kind == "irreducible":
        return IrreducibleLosses.open(path)
    if kind == receipts.KIND:
        raise WrongKind(f"{path} is a receipt; compare it with its sequence: verify SEQUENCE --receipt {path}")
    raise CorruptFile(f"{path} is of kind {kind!r}, which this release does not know")


@o.configured(o.DATA, data="")
def inspect(
    config: RunConfig,
    file: Annotated[Path, typer.Argument(help="A sequence or an irreducible table.")],
    suspects: Annotated[
        int | None,
        typer.Option(help="Of a table: list so many labels that are probably wrong; needs --data, with its flags."),
    ] = None,
    csv: Annotated[str | None, typer.Option(help="With --suspects: write them to this file (-: to stdout).")] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show what a file holds and what it was made from; with --suspects, which labels are probably wrong."""
    header = read_header(file)
    opened = _open(file, partial=True)
    if suspects is not None:
        return show(file, opened, config, count=suspects, csv=csv, force=force, json=json)
    if csv is not None or config.data != DataConfig(data=""):
        raise ConfigError("--csv and flags about data belong to --suspects N; add it")
    figures: dict[str, Any] = {"path": str(file), "kind": header.kind, "digest": opened.digest}
    if isinstance(opened, Sequence):
        figures |= {"complete": opened.complete, **asdict(inspection.statistics(opened))}
    else:
        losses = opened.values.numpy()[opened.ids]
        quantiles = np.quantile(losses, [0, 0.5, 0.9, 1]).tolist() if len(losses) else [0.0] * 4
        names = ("lowest", "median", "90% below", "highest")
        figures |= {
            "examples": len(losses),
            "mean": float(losses.mean()) if len(losses) else 0.0,
            **dict(zip(names, quantiles, strict=True)),
        }
    if json:
        return print_json({**figures, "header": asdict(header)})
    rows = [[name, readable(value)] for name, value in figures.items()]
    rows += [[f"data {name}", readable(value)] for name, value in header.data.items()]
    rows += [[f"parent: {name}", short(value)] for name, value in header.parents.items()]
    rows += [[name, readable(value)] for name, value in header.config.items() if name not in figures]
    rows += [["made with", ", ".join(f"{k} {v}" for k, v in header.versions.items())]]
    return out.print(facts(str(file), rows))


@o.configured(o.DATA, o.ORDER, data="")
def verify(
    config: RunConfig,
    file: Files,
    receipt: Annotated[
        Path | None, typer.Option(help="What a training run consumed (gp.receipt): compared with the sequence.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Check files: structure, checksums, end mark, ids, repetitions within a step, parents; with --data, the data."""
    if not config.data.data and config.data != DataConfig(data=""):
        raise ConfigError("flags about data, but no data to compare with: add --data NAME")
    if receipt is None and config.window != RunConfig().window:
        raise ConfigError("--window says in which order a receipt was made: add --receipt FILE")
    stages = Stages(config) if config.data.data else None
    opened: dict[str, Sequence | IrreducibleLosses] = {}
    headers: dict[str, Header] = {}
    problems: dict[str, str] = {}
    for path in file:
        try:
            opened[str(path)] = checked = _open(path)
            headers[str(path)] = header = read_header(path)
            if isinstance(checked, Sequence):
                inspection.verify(checked)
            if stages:
                stages.require_same_data(str(path), header.data, header.config, header.parents)
        except GoldiproxError as e:
            problems[str(path)] = str(e)
    problems = _disagreements(opened, headers) | problems
    files = [str(path) for path in file]
    if receipt is not None:
        files.append(str(receipt))
        sequences = [s for s in opened.values() if isinstance(s, Sequence)]
        if problem := _receipt_problem(receipt, sequences, window=config.window, seed=config.seed):
            problems[str(receipt)] = problem
    if json:
        print_json({"files": [{"path": f, "ok": f not in problems, "problem": problems.get(f)} for f in files]})
    for name in [] if json else files:
        if name in problems:
            failure(problems[name], label="bad")
        else:
            success(f"{name}  {short(opened[name].digest) if name in opened else 'agrees with the sequence'}")
    if problems:
        raise typer.Exit(1)


def _disagreements(opened: Mapping[str, Sequence | IrreducibleLosses], headers: Mapping[str, Header]) -> dict[str, str]:
    """Files given together that were not made from each other, or from the same data."""
    problems: dict[str, str] = {}
    first, reference = next(iter(headers.items()), ("", None))
    for name, header in headers.items():
        splits = {h.parents["split"] for h in (header, reference) if h is not None and "split" in h.parents}
        if reference is not None and header.data != reference.data:
            problems[name] = f"{name} and {first} were made from different data; give files of one run"
        elif len(splits) > 1:
            problems[name] = f"{name} and {first} were made for different training sides; give files of one run"
    tables = {t.digest for t in opened.values() if isinstance(t, IrreducibleLosses)}
    for name, checked in opened.items():
        parent = checked.header.parents.get("irreducible") if isinstance(checked, Sequence) else None
        if parent and tables and parent not in tables:
            problems[name] = f"{name} was not made from the irreducible table given with it (parent {short(parent)})"
    return problems


def _receipt_problem(path: Path, given: list[Sequence], *, window: int, seed: int) -> str | None:
    if len(given) != 1:
        raise ConfigError(f"--receipt is compared with one sequence; {len(given)} sound ones were given")
    problem = ""
    for steps in (window,) if window else (1, None):  # as recorded, or as `train` shuffles by default
        try:
            receipts.compare(given[0].shuffled(steps, seed=seed), path)
            return None
        except GoldiproxError as e:
            problem = problem or str(e)
    return problem if window else f"{problem} Nor is it the order of sequence.shuffled(); for others give --window"
