"""Sequences on the Hugging Face hub: a data set repository with ids in Parquet and a card; never the data itself."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from goldiprox.artifacts import Header, TableWriter, check_output
from goldiprox.data.parquet import MAX_EXPANSION, SMALL
from goldiprox.errors import ConfigError, CorruptFile, MissingExtra, MissingFile, UnsupportedFormat
from goldiprox.inspection import statistics
from goldiprox.messages import TYPES
from goldiprox.sequence import BLOCK, KIND, Digest, Sequence
from goldiprox.storage import publish

try:
    from huggingface_hub import CommitOperationAdd, DatasetCard, HfApi, cached_assets_path, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
except ImportError as e:
    raise MissingExtra("huggingface_hub", "hf", "goldiprox.integrations.hub") from e

FILE = "sequence.parquet"
KEY = b"goldiprox"
MAX_HEADER = 2**20


def push(
    sequence: Sequence,
    repo_id: str,
    *,
    made_from: str,
    licence: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    revision: str | None = None,
) -> str:
    """Uploads a sequence with a card that says what it is; see `Sequence.push_to_hub`.

    Args:
        sequence: Complete, and opened for all ranks.
        repo_id: ``name/of-the-repository``; made where it does not exist.
        made_from: Name or address of the data set that the ids refer to: without it they mean nothing to others.
        licence: Of the list of ids, as the hub names it (``cc0-1.0``). That of the data is not touched.
        private: Whether the repository is, where it is made.
        token: Of the hub; by default the one that is stored.
        endpoint: Of another hub than ``HF_ENDPOINT`` says.
        revision: The branch.

    Returns:
        The address of the commit.
    """
    if not sequence.complete or not len(sequence):
        raise ConfigError("the sequence is not complete; share it when it is")
    if sequence.world_size != 1:
        raise ConfigError(f"the sequence was opened for rank {sequence.rank} only; open it without rank=")
    api = HfApi(endpoint=endpoint, token=token)
    api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        _write_parquet(sequence, path)
        text = str(card(sequence, repo_id, made_from=made_from, licence=licence)).encode()
        done = api.create_commit(
            repo_id,
            [CommitOperationAdd(FILE, path), CommitOperationAdd("README.md", text)],
            commit_message=f"Sequence of {len(sequence)} steps, {sequence.digest}",
            repo_type="dataset",
            revision=revision,
        )
    return str(done.commit_url)


def pull(
    repo_id: str,
    *,
    out: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    revision: str | None = None,
) -> Path:
    """Downloads a sequence and writes it as the file that `goldiprox.Sequence.open` reads; see `Sequence.from_hub`.

    What comes is checked as any file of a stranger: header, types, number of ids, and that they are those that were
    uploaded (the digest).

    Args:
        repo_id: The repository.
        out: Where to write it; by default into the hub's cache.
        token: Of the hub; by default the one that is stored.
        endpoint: Of another hub than ``HF_ENDPOINT`` says.
        revision: A branch, tag or commit.
    """
    try:
        source = hf_hub_download(repo_id, FILE, repo_type="dataset", revision=revision, token=token, endpoint=endpoint)
    except (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError) as e:
        raise MissingFile(
            f"the hub has no {FILE} in the data set repository {repo_id!r}"
            f"{f' at {revision!r}' if revision else ''}: {str(e).strip().splitlines()[-1]}"
        ) from e
    header, digest, file = _read_header(Path(source))
    if out is not None:
        return _write_arrow(file, header, digest, check_output(out), repo_id)
    # Named by header and digest, so by all that it says; and by a hash of them, not by what a stranger wrote there.
    name = hashlib.sha256(json.dumps([asdict(header), digest]).encode()).hexdigest()
    kept = cached_assets_path("goldiprox", namespace=repo_id, subfolder="sequences") / f"{name}.arrow"
    return kept if kept.exists() else _write_arrow(file, header, digest, kept, repo_id)


def card(sequence: Sequence, repo_id: str, *, made_from: str, licence: str | None) -> DatasetCard:
    """The card of a sequence: what it was made from, by which method, and how to use it."""
    about, config = statistics(sequence), _without_paths(sequence.header.config)
    fields: dict[str, Any] = {
        "tags": ["goldiprox", "data-selection"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": FILE}]}],
    }
    if licence is not None:
        fields["license"] = licence
    front = json.dumps(fields, indent=2)  # which is YAML too
    method = "\n".join(f"| {name} | `{json.dumps(value)}` |" for name, value in sorted(config.items()))
    parents = "\n".join(f"| {name} | `{digest}` |" for name, digest in sorted(sequence.header.parents.items()))
    return DatasetCard(f"""---
{front}
---

# Which examples to train on, in which order: a GoldiProx sequence

{about.steps:,} steps of {about.keep} ids; {about.seen:,} distinct examples. Ids are positions in the data set below,
counted from 0. **The data itself is not here.**

| made from | {_line(made_from)} |
|---|---|
| examples | {sequence.header.data["length"]:,} |
| fingerprint | `{sequence.header.data["fingerprint"]}` |
| digest of the ids | `{sequence.digest}` |
{parents}

## Use

```py
import goldiprox as gp

sequence = gp.Sequence.from_hub({repo_id!r}, data=train_set)  # made from other data? A clear error
loader = DataLoader(train_set, batch_sampler=sequence)
```

## Method

Online selection by reducible loss and its relatives (Mindermann et al., https://arxiv.org/abs/2107.02565).

| setting | value |
|---|---|
{method}

## Licence

{f"Of this list of ids: {_line(licence)}." if licence else "None was stated for this list of ids."}
It gives no right to the data, whose own licence applies.
""")


def _write_parquet(sequence: Sequence, path: Path) -> None:
    columns = sequence.header.columns
    header = {**asdict(sequence.header), "config": _without_paths(sequence.header.config)}
    about = json.dumps({"header": header, "digest": sequence.digest})
    schema = pa.schema(
        [("step", pa.uint64()), *((name, pa.from_numpy_dtype(kind)) for name, kind in columns.items())],
        metadata={KEY: about},
    )
    extra = {name: sequence.column(name) for name in columns if name != "id"}
    with pq.ParquetWriter(path, schema) as writer:
        first = 0
        for ids in sequence.blocks():
            rows = slice(first, first + len(ids))
            values = {"id": ids.astype(columns["id"]), **{name: column[rows] for name, column in extra.items()}}
            steps = np.arange(rows.start, rows.stop, dtype=np.uint64) // np.uint64(sequence.keep)
            writer.write_table(pa.table([steps, *(values[name] for name in columns)], schema=schema))
            first = rows.stop


def _read_header(path: Path) -> tuple[Header, str, pq.ParquetFile]:
    try:
        file = pq.ParquetFile(path, pre_buffer=False, thrift_container_size_limit=MAX_HEADER)
        text = (file.schema_arrow.metadata or {}).get(KEY, b"")
        if not text or len(text) > MAX_HEADER:
            raise CorruptFile(f"{path} is no sequence: it does not say what it was made from")
        about = json.loads(text)
        header, digest = Header(**about["header"]), about["digest"]
        header.check()
        if header.format != 1:
            raise UnsupportedFormat(f"{path} has format {header.format}; this release reads 1")
        keep = header.config.get("keep")
        if header.kind != KIND or not isinstance(digest, str) or type(keep) is not int or keep < 1:
            raise TypeError("it describes something else than a sequence")
        if file.metadata.num_rows % keep:
            raise TypeError(f"{file.metadata.num_rows} ids are no whole steps of {keep}")
        if file.metadata.num_rows * 8 > max(SMALL, MAX_EXPANSION * path.stat().st_size):
            raise TypeError(f"{file.metadata.num_rows:,} ids would take more than {MAX_EXPANSION} times its size")
        expected = {"step": "uint64", **header.columns}
        found = {field.name: str(field.type) for field in file.schema_arrow}
        if {n: _numpy_name(t) for n, t in found.items()} != expected:
            raise TypeError(f"columns {found}")
    except (CorruptFile, UnsupportedFormat):
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError) as e:
        raise CorruptFile(f"{path} is no sequence of ours: {str(e).splitlines()[0] if str(e) else e!r}") from e
    return header, digest, file


def _numpy_name(arrow: str) -> str:
    name = {"float": "float32", "double": "float64"}.get(arrow, arrow)
    return name if name in TYPES else f"not {arrow}"


def _write_arrow(file: pq.ParquetFile, header: Header, digest: str, out: Path, repo_id: str) -> Path:
    """Block by block, so that neither size nor content of the file is believed; it gets its name when it is sound."""
    found = Digest()
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".from-hub-") as folder:
        writer = TableWriter(Path(folder) / out.name, header)
        try:
            for block in _blocks(file, repo_id):
                values = {name: block.column(name).to_numpy(zero_copy_only=False) for name in header.columns}
                if int(values["id"].max()) >= header.data["length"]:
                    raise CorruptFile(
                        f"{repo_id!r} lists ids beyond its data set of {header.data['length']:,} examples"
                    )
                found.update(values["id"])
                writer.append(values)
            if str(found) != digest:
                raise CorruptFile(f"the ids in {repo_id!r} are not those that were uploaded: their digest differs")
            writer.close()
        finally:
            writer.abandon()
        publish(writer.path, out)
    return out


def _blocks(file: pq.ParquetFile, repo_id: str) -> Iterator[pa.RecordBatch]:
    num_rows = 0
    try:
        for block in file.iter_batches(BLOCK, use_threads=False):
            num_rows += len(block)
            if num_rows > file.metadata.num_rows or any(column.null_count for column in block.columns):
                raise CorruptFile(f"{repo_id!r} has gaps where ids should be, or more of them than it says")
            if len(block):
                yield block
    except (pa.ArrowException, OSError) as e:
        raise CorruptFile(f"{FILE} of {repo_id!r} cannot be read: {str(e).splitlines()[0]}") from e


def _without_paths(value: Any) -> Any:
    """Settings as they may be shown to others: of a place on this machine, only the last part of its name."""
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(inner) for inner in value]
    if isinstance(value, str) and (Path(value).is_absolute() or value.startswith(("~", "."))):
        return Path(value).name
    return value


def _line(text: str) -> str:
    """Text in one cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")
