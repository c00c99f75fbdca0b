"""Processes that select together: what they tell one another, and which of them is gone.

Everything goes through collectives of ``torch.distributed`` on tensors, never on objects. A rank that died or hangs
is named: each puts a count that rises every second into the process group's store, where the others look when a
collective fails.
"""

import atexit
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from goldiprox.errors import ConfigError, DataError, RankLost

# What gloo and NCCL say of a connection that closed and of a time-out.
_FAILED = re.compile(r"gloo|nccl|connection|peer|timed? ?out|socket", re.IGNORECASE)
BEAT_SECONDS = 1.0
LINGER_SECONDS = 45.0
STOP_SECONDS = 5.0


class Ranks:
    """A process group: this process's place in it, and the few things that its ranks exchange.

    Args:
        group: Of ``torch.distributed``; its time-out bounds how long a rank is waited for.

    Attributes:
        rank: The number of this process in the group.
        size: How many there are.
        device: Where tensors lie that it can send.
        bytes_sent: What this process has given to collectives so far.
    """

    _made = 0

    def __init__(self, group: Any):
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "a group needs torch.distributed: start with torchrun and call torch.distributed.init_process_group"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError("this process is not a member of the group; let only its members take part")
        self.device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        self.bytes_sent = 0
        Ranks._made += 1  # every rank makes its groups in the same order
        self._pulse = _Pulse(self.rank, self.size, f"goldiprox/{Ranks._made}") if self.size > 1 else None

    @classmethod
    def of(cls, group: Any) -> "Ranks | None":
        """The ranks of a group, or of what was made from one before."""
        return group if group is None or isinstance(group, Ranks) else cls(group)

    def part(self, length: int) -> slice:
        """This rank's contiguous share of so many things; they must divide."""
        if length % self.size:
            raise ConfigError(
                f"{length} examples cannot be divided among {self.size} ranks; choose a multiple of {self.size}"
            )
        each = length // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def gather(self, values: Tensor) -> Tensor:
        """The values of every rank, in the order of ranks, along a new first dimension; of one shape everywhere."""
        if self._pulse is None:
            return values[None]
        out = values.new_empty(self.size, *values.shape)
        self._collect(lambda: dist.all_gather(list(out), values.contiguous(), group=self.group), values)
        return out

    def share(self, values: Tensor) -> Tensor:
        """What rank 0 has, on every rank; of one shape everywhere."""
        if self._pulse is not None:
            values = values.clone()
            self._collect(lambda: dist.broadcast(values, group=self.group, group_src=0), values)
        return values

    def share_digest(self, digest: str) -> str:
        """Rank 0's digest: others may have begun in the middle. None returns before its file is complete."""
        text = torch.frombuffer(bytearray(digest.encode()), dtype=torch.uint8).to(self.device)
        return bytes(self.share(text).tolist()).decode()

    def combine(self, values: Tensor) -> Tensor:
        """Byte by byte what one rank has where all others have zeros; of one shape everywhere."""
        if self._pulse is None:
            return values
        total = values.contiguous().clone()
        whole = total.view(-1).view(torch.uint8)  # as bytes: adding zero changes nothing, whatever the type
        self._collect(lambda: dist.all_reduce(whole, group=self.group), values)
        return total

    def same_weights(self, model: nn.Module) -> None:
        """Gives every rank's model the weights of rank 0's."""
        for value in (*model.parameters(), *model.buffers()):
            value.data.copy_(self.share(value.data))

    def require_same(self, settings: str) -> None:
        """Raises unless this text is the same on every rank."""
        digest = torch.frombuffer(bytearray(hashlib.sha256(settings.encode()).digest()), dtype=torch.uint8)
        differ = (self.gather(digest.to(self.device)) != self.share(digest.to(self.device))).any(1)
        others = differ.nonzero().flatten().tolist()
        if others:
            raise ConfigError(
                f"ranks {others} were started with other settings, data or irreducible losses than rank 0; start all "
                f"of them with the same"
            )

    def _collect(self, collective: Any, values: Tensor) -> None:
        assert self._pulse is not None
        self.bytes_sent += values.nbytes
        self._pulse.begun += 1
        try:
            collective()
        except RuntimeError as e:  # what torch raises for a closed connection and for a time-out
            raise RankLost(self._pulse.missing(), self.size, str(e).partition(". ")[0].splitlines()[0]) from e

    @contextmanager
    def named(self) -> Iterator[None]:
        """Names the rank that is gone where another's collective fails inside: DDP's, say, or FSDP's."""
        try:
            yield
        except RuntimeError as e:
            if self._pulse is None or not _FAILED.search(str(e)):
                raise
            raise RankLost(self._pulse.missing(), self.size, str(e).partition(". ")[0].splitlines()[0]) from e

    def pool(self, ids: Tensor, values: Mapping[str, Tensor], rows: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The ids of every rank and what is known of them, one after another.

        Args:
            ids: Of this rank, int64, at most `rows`.
            values: float32, one each.
            rows: How many each rank has room for, the same everywhere.
        """
        room = rows - len(ids)
        if room < 0:
            raise DataError(
                f"a batch of {len(ids)} candidates, where the first one had {rows}; load batches of one size"
            )
        pad = torch.nn.functional.pad
        all_ids = self.gather(pad(ids, (0, room), value=-1)).flatten()
        there = all_ids >= 0
        pooled = {name: self.gather(pad(v.float(), (0, room))).flatten()[there] for name, v in values.items()}
        return all_ids[there], pooled


@contextmanager
def name_lost_ranks(group: Any) -> Iterator[None]:
    """Around a training loop of one's own: where a rank dies, the others end with `RankLost`, which names it.

    A rank that hangs is given up after the group's time-out, and not named: it lives.

    Args:
        group: Of ``torch.distributed``; every rank enters this.
    """
    with Ranks(group).named():
        yield


class _Pulse:
    """Shows the other ranks that this one lives, and how many collectives it has begun."""

    def __init__(self, rank: int, size: int, name: str):
        store: Any = distributed_c10d._get_default_store()
        self._store = distributed_c10d.PrefixStore(name, store.clone())  # a connection of its own, for its thread
        self.rank, self.size, self.begun = rank, size, 0
        self._put(0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="goldiprox-pulse", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _beat(self) -> None:
        count = 0
        while not self._stopped.wait(BEAT_SECONDS):
            count += 1
            try:
                self._put(count)
            except RuntimeError:  # the store is gone: its host has ended, and so will this process
                return

    def _stop(self) -> None:
        """Ends the beat. A thread that the end of Python finds inside the store would take the process down with it."""
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def _put(self, count: int) -> None:
        self._store.set(str(self.rank), f"{count} {self.begun}")

    def missing(self) -> dict[int, str]:
        """The ranks that hold up the others, and why; empty where none of those that answer does."""
        self._stop()  # from now on -1 stands there: this rank waits in vain, and may soon be gone itself
        try:
            self._put(-1)
            before = self._read()
            time.sleep(3 * BEAT_SECONDS)
            now = self._read()
        except RuntimeError:
            return {0: "died (the store that it kept is gone)"}
        found = {}
        for rank, (count, begun) in now.items():
            if rank == self.rank:
                continue
            if count == before[rank][0] and count >= 0:
                found[rank] = "died, or was stopped"
            elif begun < self.begun:
                found[rank] = "hangs"
        if self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            self._keep_store(set(range(1, self.size)) - found.keys())
        return found

    def _keep_store(self, others: set[int]) -> None:
        """Waits until the others have looked too: the store is in this process, and ends with it."""
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline:
            now = self._read()
            if all(now[rank][0] < 0 for rank in others):
                time.sleep(4 * BEAT_SECONDS if others else 0)  # they look twice
                return
            time.sleep(BEAT_SECONDS)

    def _read(self) -> dict[int, tuple[int, int]]:
        texts = [self._store.get(str(rank)).decode().split() for rank in range(self.size)]
        return {rank: (int(count), int(begun)) for rank, (count, begun) in enumerate(texts)}
