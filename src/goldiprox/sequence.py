"""The sequence: for each step, the ids worth training on. One file, replayed by any loader."""

import functools
import hashlib
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from goldiprox.artifacts import Header, Table, TableWriter, id_type
from goldiprox.buffered import BufferedWriter
from goldiprox.divided import refuse_divided_again
from goldiprox.errors import ConfigError, CorruptFile, DataError, some
from goldiprox.follow import FollowedTable
from goldiprox.lazy import LazyTable, open_table
from goldiprox.shuffled import ShuffledTable

if TYPE_CHECKING:  # reading a sequence needs no torch, which takes ten times the memory of the rest
    from torch import Tensor

KIND = "sequence"
EXTRA_COLUMNS = ("score", "loss", "irreducible")
BLOCK = 2**20
STEPS_AT_ONCE = 64
"""Steps that a pass over a file turns into lists of ids together."""


class Digest:
    """A hash over ids in order, as 64-bit integers, however they are cut into parts."""

    def __init__(self):
        self._hash = hashlib.sha256()

    def update(self, ids: np.ndarray) -> None:
        self._hash.update(ids.astype("<i8").tobytes())

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def digest_of(parts: Iterable[np.ndarray]) -> str:
    """The digest of a sequence of these ids."""
    digest = Digest()
    for ids in parts:
        digest.update(ids)
    return str(digest)


class Sequence:
    """A recorded sequence; give it to a loader: ``DataLoader(data, batch_sampler=sequence)``.

    Iterating gives the ids of one step after another. `state_dict` and `load_state_dict` continue in the
    middle. Opened with a rank, it gives that rank's contiguous slice of every step.

    Attributes:
        header: What the file says about itself.
        keep: Ids per step, over all ranks.
        batch_size: Ids per step of this rank (what frameworks ask a batch sampler for).
        complete: Whether the file has its end mark (of a followed file: whether it was read).
    """

    drop_last = True

    def __init__(self, table: Table, *, rank: int = 0, world_size: int = 1, **injected: Any):
        if injected:  # Lightning calls the type of a batch sampler with a sampler of its own
            raise ConfigError(
                f"a sequence cannot be made anew from another sampler ({some(injected)}), which is what Lightning does "
                f"with a batch sampler where several processes train; use goldiprox.integrations.lightning.DataModule("
                f"data, sequence), or open it with rank= and world_size= and set Trainer(use_distributed_sampler=False)"
            )
        self._table = table
        self.header = table.header
        keep = self.header.config.get("keep")
        if type(keep) is not int or keep < 1:
            raise CorruptFile(f"{table.path}: the header says keep={keep!r}, which is not a number of ids per step")
        self.keep = keep
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} of {world_size} does not exist")
        if self.keep % world_size:
            raise ConfigError(
                f"{self.keep} examples per step cannot be divided among {world_size} ranks; record with a keep that is "
                f"a multiple of it, or replay on a number of ranks that divides {self.keep}"
            )
        self.rank, self.world_size = rank, world_size
        self.batch_size = self.keep // world_size
        steps = self.header.config.get("steps")
        self._promised = steps if type(steps) is int and 0 < steps * keep < 2**63 and table.grows else None
        self._num_checked = 0
        self._table.check_part = self._check_part
        self._check_ids()
        self._start = self._next_step = 0
        self._checked: Any = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        data: Any = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        partial: bool = False,
        follow: bool = False,
        timeout: float = 60.0,
    ) -> "Sequence":
        """Opens a sequence and checks it: format, checksums, end mark, ids, and that it was made from this data.

        Of a file above 16 MiB, checksums and ids are checked part by part, when a part is first read.

        Args:
            path: The file.
            data: The data set it is to be used with; None skips the comparison.
            rank: Of this process, where several train together.
            world_size: How many they are.
            partial: Accept a file that was broken off, and replay its intact steps.
            follow: Accept a file that another process is writing, and wait for steps that are not there yet.
            timeout: With `follow`, seconds to wait for a writer where there is none.
        """
        if follow and partial:
            raise ConfigError("follow waits for the end of a file, partial does without it; choose one")
        if follow:
            table = FollowedTable(Path(path), kind=KIND, timeout=timeout)
        else:
            table = open_table(path, kind=KIND, partial=partial)
        sequence = cls(table, rank=rank, world_size=world_size)
        if data is not None:
            sequence.require(data)
        return sequence

    def push_to_hub(self, repo_id: str, *, made_from: str, **settings: Any) -> str:
        """Shares the ids, without the data, as a data set repository of the Hugging Face hub; gives its address.

        Args:
            repo_id: ``name/of-the-repository``; made where it does not exist.
            made_from: Name or address of the data set that the ids refer to, for the card.
            settings: ``licence``, ``private``, ``token``, ``endpoint``, ``revision``:
                `goldiprox.integrations.hub.push`.
        """
        return importlib.import_module("goldiprox.integrations.hub").push(
            self, repo_id, made_from=made_from, **settings
        )

    @classmethod
    def from_hub(
        cls, repo_id: str, data: Any = None, *, rank: int = 0, world_size: int = 1, **settings: Any
    ) -> "Sequence":
        """Downloads a sequence from the Hugging Face hub and opens it; what it was made from is checked as by `open`.

        Args:
            repo_id: ``name/of-the-repository``.
            data: The data set it is to be used with; None skips the comparison.
            rank: Of this process, where several train together.
            world_size: How many they are.
            settings: ``out``, ``token``, ``endpoint``, ``revision``: `goldiprox.integrations.hub.pull`.
        """
        path = importlib.import_module("goldiprox.integrations.hub").pull(repo_id, **settings)
        return cls.open(path, data, rank=rank, world_size=world_size)

    def require(self, data: Any) -> None:
        """Raises unless the sequence was made from this data."""
        if data is not self._checked:
            from goldiprox.data import damage_in_words, require_fingerprint

            require_fingerprint(data, self.header.data, str(self._table.path), damage_in_words(self.header.config))
            self._checked = data

    def _check_ids(self) -> None:
        """Looks at what has come since it was last called; a large file looks at its parts when they are read."""
        path, parts = self._table.path, self._table.parts
        for part in () if isinstance(self._table, LazyTable) else parts[self._num_checked :]:
            self._check_part(part)
        self._num_checked = len(parts)
        rows = self._table.num_rows
        if self._table.complete and rows % self.keep:
            raise CorruptFile(f"{path} holds {rows:,} ids, not a multiple of {self.keep} per step")
        promised = rows if self._promised is None else self._promised * self.keep
        if rows > promised or (self._table.complete and rows < promised):
            raise CorruptFile(f"{path} promised {self._promised:,} steps and holds {rows // self.keep:,}")

    def _check_part(self, part: Any) -> None:
        length = int(self.header.data["length"])
        for first in range(0, part.num_rows, BLOCK):
            highest = int(part.values("id", first, first + BLOCK).max())
            if highest >= length:
                raise CorruptFile(f"{self._table.path} lists id {highest:,}, but its data set has {length:,} examples")

    def __repr__(self) -> str:
        data, path = self.header.data, self._table.path
        part = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"<Sequence {path}: {len(self):,} steps of {self.keep} ids, of {data['length']:,} examples{part}>"

    @property
    def complete(self) -> bool:
        return self._table.complete

    def on_wait(self, call: Callable[[], None]) -> None:
        """Has something called while steps of a followed file are waited for; it may raise to end that."""
        self._table.on_wait = call

    def _wait(self, steps: int | None = None) -> int:
        """Waits for the first steps (None: all) of a file that grows; how many are there."""
        if self._table.grows:
            self._table.wait(None if steps is None else steps * self.keep)
            self._check_ids()
        return self._table.num_rows // self.keep

    def __len__(self) -> int:
        """The number of steps: of a followed file those that it promises, or if it promises none, at its end."""
        return self._wait() if self._promised is None else self._promised

    def __getitem__(self, step: int) -> np.ndarray:
        """The ids of one step (this rank's slice); of a followed file, as soon as it is there."""
        position = step + len(self) if step < 0 else step
        if position < 0 or position >= (self._promised or self._wait(position + 1)):
            raise IndexError(f"step {step} of a sequence of {len(self):,} steps")
        self._wait(position + 1)
        first = position * self.keep + self.rank * self.batch_size
        return self._table.rows("id", first, first + self.batch_size).astype(np.int64)

    def blocks(self, end: int | None = None) -> Iterator[np.ndarray]:
        """All ids in order (the first `end` of them), over all ranks, a million at a time: in bounded memory."""
        self._wait(None if end is None else -(-end // self.keep))
        end = len(self) * self.keep if end is None else end
        for first in range(0, end, BLOCK):
            yield self._table.rows("id", first, min(first + BLOCK, end)).astype(np.int64)

    def step_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Some steps at a time: the number of the first, and their ids over all ranks, a row each."""
        steps, count = len(self), max(1, BLOCK // self.keep)
        for first in range(0, steps, count):
            rows = slice(first * self.keep, min(first + count, steps) * self.keep)
            yield first, self._table.rows("id", rows.start, rows.stop).astype(np.int64).reshape(-1, self.keep)

    def __iter__(self) -> Iterator[list[int]]:
        """The ids of every step, from where `load_state_dict` put it; the next pass starts at the beginning."""
        refuse_divided_again(whole=self.world_size == 1)
        start, self._start, self._next_step = self._start, 0, self._start
        at_once = 1 if self._table.grows else STEPS_AT_ONCE
        for first in itertools.count(start, at_once):
            there = self._wait(first + 1)
            if first >= there:
                return
            rows = self._table.rows("id", first * self.keep, min(first + at_once, there) * self.keep)
            mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
            for ids in rows.reshape(-1, self.keep)[:, mine].tolist():
                self._next_step += 1
                yield ids

    def shuffled(self, window: int | None = None, *, seed: int = 0) -> "Sequence":
        """The same choice in another order: examples change places among the steps of a window.

        For a model other than the proxy: an order that answered the proxy's weaknesses of the moment does not answer
        another model's. Everything else is as with this sequence; its digest is that of the new order, and the header
        says how it was made (``config["shuffled"]``). A window is held in memory; of a file that grows, its first step
        comes when its last one is there.

        Args:
            window: How many steps; 1 changes nothing. By default as many as train on as many examples as were selected
                from, or an eighth of all where that is less.
            seed: Of the new order.
        """
        if window is None:
            planned = self.header.config.get("steps")
            steps = planned if type(planned) is int and planned > 0 else len(self)
            window = max(1, min(pool_of(self.header) // self.keep, steps // 8))
        if window < 1:
            raise ConfigError(f"a window of {window} steps cannot be shuffled; give 1 to leave the order as it is")
        if window == 1:
            return self
        table = ShuffledTable(self._table, self._wait, keep=self.keep, window=window, seed=seed)
        return Sequence(table, rank=self.rank, world_size=self.world_size)

    def state_dict(self) -> dict[str, Any]:
        """The next step to give.

        A loader with worker processes reads ahead: there, put the number of steps you have trained on.
        """
        if self._table.grows:
            return {"step": self._next_step}
        return {"step": self._next_step % max(len(self), 1), "digest": self.digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "step" not in state:
            raise ConfigError(
                f"this is no position in a sequence: it holds {some(sorted(state)) or 'nothing'}, and no step"
            )
        step = int(state["step"])
        if not 0 <= step <= len(self):
            raise ConfigError(f"cannot continue at step {step:,} of a sequence of {len(self):,} steps")
        if "digest" in state and not self._table.grows and state["digest"] != self.digest:
            raise ConfigError("the saved position belongs to another sequence (its digest differs); open that one")
        self._start = self._next_step = step % len(self) if len(self) else 0

    @property
    def ids(self) -> np.ndarray:
        """All ids in order, over all ranks."""
        self._wait()
        return self._table.column("id")[: len(self) * self.keep].astype(np.int64)

    def column(self, name: str) -> np.ndarray:
        """All values of a recorded column, in the order of `ids`."""
        if name not in self.header.columns:
            raise ConfigError(
                f"this sequence has no column {name!r}, only {', '.join(self.header.columns)}; "
                f"record it with columns=({name!r},)"
            )
        self._wait()
        return self._table.column(name)[: len(self) * self.keep]

    @functools.cached_property
    def digest(self) -> str:
        """A hash over the ids in order: independent of how and where the file was written."""
        return digest_of(self.blocks())


def pool_of(header: Header) -> int:
    """How many examples were selected from; those of the data set, where the file does not say."""
    pool = header.config.get("num_train")
    return pool if type(pool) is int and pool > 0 else int(header.data["length"])


def check_columns(columns: Iterable[str], values: Mapping[str, "Tensor"]) -> None:
    """Raises where a column is to be recorded that is not computed."""
    missing = sorted(set(columns) - set(values))
    if missing:
        raise ConfigError(
            f"the acquisition computes no {', '.join(map(repr, missing))}, so that cannot be recorded; "
            f"leave the column out"
        )


class SequenceWriter:
    """Writes a sequence step by step.

    Use it as a context manager: leaving it normally completes the file; leaving it through an error keeps what
    was written under ``<name>.partial``.

    Args:
        path: Where the finished file goes.
        data: Fingerprint and length of the data set (`goldiprox.irreducible.describe`).
        keep: Ids per step.
        config: Recorded in the header.
        parents: Digests of what it was made from.
        columns: Which of `EXTRA_COLUMNS` to record.
        force: Replace an existing file, once the new one is complete.
        flush_rows: Ids per record batch.
        flush_seconds: Steps reach the disk at least this often, so that whoever follows sees them soon.
        resume_at: Continue the unfinished file after this many steps, and drop what follows them. Everything else
            must be as it was when the file was begun.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        data: Mapping[str, Any],
        keep: int,
        config: Mapping[str, Any] | None = None,
        parents: Mapping[str, str] | None = None,
        columns: tuple[str, ...] = (),
        force: bool = False,
        flush_rows: int = 8192,
        flush_seconds: float = 1.0,
        resume_at: int | None = None,
    ):
        unknown = set(columns) - set(EXTRA_COLUMNS)
        if unknown:
            raise ConfigError(f"cannot record {', '.join(sorted(unknown))}; columns are {', '.join(EXTRA_COLUMNS)}")
        header = Header(
            kind=KIND,
            data=dict(data),
            config={**(config or {}), "keep": keep},
            parents=dict(parents or {}),
            columns={"id": id_type(int(data["length"])), **dict.fromkeys(columns, "float32")},
        )
        self.keep, self.steps, self._length = keep, resume_at or 0, int(data["length"])
        rows = None if resume_at is None else resume_at * keep
        table = TableWriter(Path(path), header, force=force, resume_at=rows)
        self._file = BufferedWriter(table, flush_rows=flush_rows, flush_seconds=flush_seconds)

    @property
    def path(self) -> Path:
        return self._file.table.path

    def blocks_before(self) -> Iterator[np.ndarray]:
        """The ids that were there when the file was continued, in order, up to a million at a time."""
        return (ids.astype(np.int64) for ids in self._file.table.rows_before("id"))

    def append(self, ids: "Tensor", values: Mapping[str, "Tensor"] | None = None) -> None:
        """Adds one step."""
        row, values = ids.cpu().numpy(), values or {}
        if len(row) != self.keep:
            raise ConfigError(f"step {self.steps} has {len(row)} ids; every step of a sequence has {self.keep}")
        bad = row[(row < 0) | (row >= self._length)]
        if len(bad):
            raise DataError(f"ids {some(bad.tolist())} are outside the data set of {self._length:,} examples")
        extra = self._file.table.header.columns.keys() - {"id"}
        check_columns(extra, values)
        self._file.append({"id": row, **{name: values[name].detach().float().cpu().numpy() for name in extra}})
        self.steps += 1

    def flush(self) -> None:
        """Waits until every step so far is on the disk."""
        self._file.flush()

    def __enter__(self) -> "SequenceWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)
