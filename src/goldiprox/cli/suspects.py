"""`goldiprox inspect --suspects`: labels that are probably wrong."""

import math
import sys
from pathlib import Path
from typing import Any

from goldiprox.artifacts import check_output
from goldiprox.cli.console import out, percent, print_json, printable, table
from goldiprox.errors import ConfigError, WrongKind
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.sequence import Sequence
from goldiprox.settings import RunConfig
from goldiprox.stages import Stages
from goldiprox.storage import write_atomically
from goldiprox.suspects import as_csv, fair_odds, find_suspects, judge, rows, suspected, wrong_share


def show(
    file: Path,
    opened: Sequence | IrreducibleLosses,
    config: RunConfig,
    *,
    count: int,
    csv: str | None,
    force: bool,
    json: bool,
) -> None:
    """Prints the first suspects, or writes them as CSV."""
    if not isinstance(opened, IrreducibleLosses):
        raise WrongKind(
            f"--suspects needs a table of irreducible losses; {file} is a sequence. Give the table that `goldiprox "
            f"irreducible` wrote (irreducible.arrow)"
        )
    if not config.data.data:
        raise ConfigError("--suspects needs the data that the table was made from: add --data NAME, and its flags")
    if count < 1:
        raise ConfigError(f"--suspects {count}: at least 1 is needed")
    if csv == "-" and json:
        raise ConfigError("--csv - and --json both want stdout; choose one, or write the CSV to a file")
    if csv and csv != "-":
        check_output(csv, force=force)
    stages = Stages(config)
    stages.require_same_data(str(file), opened.data or {}, opened.config, opened.parents)
    damaged = bool(config.data.noise or config.data.holdout_noise)
    truth = stages.prepared.truth if damaged else None
    found = find_suspects(opened, stages.data)
    records = list(rows(found, stages.data, count=count, truth=truth))
    known = bool((found.predicted >= 0).all())
    share, odds = (wrong_share(opened), fair_odds(opened)) if known else (None, math.inf)
    doubted = (int(suspected(opened, stages.data, odds=odds).sum()) if math.isfinite(odds) else 0) if known else None
    judged = judge(truth.mislabelled[found.ids], count) if truth else None
    if csv == "-":
        sys.stdout.write(as_csv(records))
        return
    if csv:
        write_atomically(Path(csv), as_csv(records).encode())
    if json:
        cut = {"contradicted": doubted, "odds": odds if math.isfinite(odds) else None, "wrong_share": share}
        print_json({"path": str(file), "suspects": records, **cut, "judged": judged, "csv": csv})
        return
    if not csv:
        out.print(_table(records, len(found)))
    if doubted is not None and share is not None:
        cut = f"contradicted at {odds:,.0f} to 1: {doubted:,} of {len(found):,} labels"
        seen = f"At least about {percent(share)} of the labels look wrong; selection leaves out what is {cut}"
        none = "What is contradicted looks hard, not wrong: selection leaves nothing out"
        out.print(f"{seen if math.isfinite(odds) else none} (--trusted).")
    if judged and judged["average_precision"] is not None:
        out.print(
            f"Known to be wrong: {judged['wrong']:,} of {judged['of']:,} labels. Of these {judged['listed']:,}, "
            f"{percent(judged['precision'])} are, which is {percent(judged['recall'])} of all; average precision of "
            f"the whole order {judged['average_precision']:.3f}."
        )
    out.print(f"Wrote {csv}: {len(records):,} suspects." if csv else "All of them: --suspects N --csv FILE.")


def _table(records: list[dict[str, Any]], total: int) -> Any:
    known = bool(records) and "wrong" in records[0]
    filed = bool(records) and "file" in records[0]
    headers = ["id", *(["file"] if filed else []), "label", "predicted", "probability", "irreducible", "score"]
    headers += ["true label"] if known else []

    def name(row: dict[str, Any], key: str) -> str:
        number, text = row[key], row.get(f"{key}_name")
        if number is None:
            return "?"
        return str(number) if text in (None, str(number)) else f"{number} {printable(text)}"

    cells = []
    for row in records:
        probability = "?" if row["probability"] is None else f"{row['probability']:.3f}"
        cells.append([str(row["id"]), *([printable(row["file"])] if filed else [])])
        cells[-1] += [name(row, "label"), name(row, "predicted"), probability]
        cells[-1] += [f"{row['irreducible']:.2f}", f"{row['score']:.2f}"]
        if known:
            cells[-1].append(str(row["true_label"]) if row["wrong"] else "as labelled")
    return table(f"The {len(records):,} most suspect of {total:,} labels", headers, cells)
