"""`goldiprox materialize`: the examples of a sequence, for readers that only stream."""

from pathlib import Path
from typing import Annotated

import typer

from goldiprox.cli import options as o
from goldiprox.cli.console import Bars, out, print_json
from goldiprox.materialized import materialize as write_examples
from goldiprox.sequence import Sequence
from goldiprox.settings import RunConfig
from goldiprox.stages import Silent, Stages


@o.configured(o.DATA, o.ORDER)
def materialize(
    config: RunConfig,
    sequence: Annotated[Path, typer.Argument(help="The sequence whose examples to write.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder to write to.")],
    shard_rows: Annotated[int, typer.Option(help="Rows per file, at most; a step is never divided.")] = 65_536,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Write the examples of a sequence in its order, as Parquet files, for readers that only stream."""
    opened = Sequence.open(sequence)
    stages = Stages(config)
    header = opened.header
    stages.require_same_data(str(sequence), header.data, header.config, header.parents)
    opened = stages.ordered(opened)
    with (Silent() if json else Bars()).stage("materialize", len(opened)) as on_step:
        files = write_examples(
            opened,
            stages.data,
            out_folder,
            shard_rows=shard_rows,
            force=force,
            on_step=(lambda step: on_step(step, {})) if on_step else None,
        )
    size = sum(f.stat().st_size for f in files)
    result = {"out": str(out_folder), "files": len(files), "rows": len(opened) * opened.keep, "bytes": size}
    if json:
        return print_json(result)
    return out.print(f"Wrote {out_folder}: {result['rows']:,} examples in {len(files):,} files, {size:,} bytes.")
