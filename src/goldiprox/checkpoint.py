"""Checkpoints: how far a run is, saved so that it goes on from there as if nothing had happened.

A checkpoint is a folder ``step-<n>`` with ``state.json`` and ``state.safetensors``. It is written under another
name, synced and renamed; only then is the one before removed. Nothing in it can run code when it is read.
"""

import contextlib
import copy
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from goldiprox.artifacts import check_folder, flat
from goldiprox.errors import ConfigError, CorruptFile, FingerprintMismatch, Interrupted, RankLost
from goldiprox.ranks import Ranks
from goldiprox.storage import GrowingFile, sync, sync_folder, write_atomically, writing

SECONDS = 60.0
_TENSORS, _STATE = "state.safetensors", "state.json"
_RUN, _STAGE, _LOCK = "run.json", "stage.json", "lock"
_CONTENT = {
    "fingerprint": "the data",
    "split": "the split",
    "irreducible": "the irreducible losses",
    "sequence": "the sequence",
}
_FLAGS = {"num_folds": "folds", "num_workers": "workers", "num_threads": "threads", "max_epochs": "holdout_epochs"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: its folder, how many steps were done, and what is needed to go on."""

    path: Path
    step: int
    state: dict[str, Any]


class Checkpoints:
    """Where a run saves how far it is; run the same lines again, and it goes on from there.

    ::

        with gp.Checkpoints("sequence.checkpoint") as checkpoints:
            gp.record(proxy, data, ..., out="sequence.arrow", checkpoints=checkpoints)

    Leaving the context normally removes the folder; leaving it through an error keeps what was saved.

    Args:
        folder: For the checkpoints of this run alone.
        every: Seconds between checkpoints.
        settings: What must be the same for a run to be continued, beside what `record`, `replay` and
            `irreducible_losses` compare by themselves.
        force: Start over, whatever is there.
        stop: Asked before every step: whether to save, and to end with the error `Interrupted`.
        group: Of ``torch.distributed``, where several processes run together: rank 0 saves, all of them go on from
            what it saved, so the folder must be one that all can read.

    Attributes:
        continues: Whether an earlier process began this run.
        last: The folder and the step of the latest checkpoint.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: float = SECONDS,
        settings: Mapping[str, Any] | None = None,
        force: bool = False,
        stop: Callable[[], bool] = lambda: False,
        group: Any = None,
    ):
        if not every >= 0:
            raise ConfigError(f"checkpoints every {every} seconds: give 0 (after every step) or more")
        self.folder, self.every, self.stop = Path(folder), every, stop
        self._settings, self._force = dict(settings or {}), force
        self._lock: GrowingFile | None = None
        self._ranks = Ranks.of(group)
        self._saves = self._ranks is None or self._ranks.rank == 0
        self.continues = False
        self.last: tuple[Path, int] | None = None
        self._time = time.monotonic()

    def __enter__(self) -> "Checkpoints":
        if not self._saves:
            return self
        began = is_unfinished(self.folder)
        check_folder(self.folder)
        self._lock = GrowingFile(self.folder / _LOCK, create=True)
        try:
            shutil.rmtree(self._removed, ignore_errors=True)  # where the process was killed over it
            if self._force:
                self._clear()
            self.continues = began and not self._force
            self._require_same(self.folder / _RUN, self._settings)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._saves:
            return
        assert self._lock is not None
        failed = kind is not None and issubclass(kind, Exception) and not issubclass(kind, Interrupted | RankLost)
        # What failed before it was ever saved needs no continuing, and must not stand in the way of another try.
        if kind is None or (failed and not self.continues and not any(self.folder.rglob("step-*"))):
            with contextlib.suppress(OSError):  # where somebody has removed it
                self.folder.rename(self._removed)  # in one step: half a folder could be taken for another run's
            shutil.rmtree(self._removed, ignore_errors=True)
        self._lock.close()

    @property
    def _removed(self) -> Path:
        return self.folder.with_name(self.folder.name + ".removed")

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()

    def part(self, name: str) -> "Checkpoints":
        """Those of one stage, in a folder inside this one."""
        inner = copy.copy(self)
        inner.folder, inner.last = self.folder / name, None
        return inner

    def start(self, settings: Mapping[str, Any], device: torch.device) -> Saved | None:
        """The latest checkpoint of a run with these settings; None where there is none yet.

        Args:
            settings: What the run is made of. Where it differs from what was begun here, that is an error.
            device: Where tensors go that were saved from a device.
        """
        if self._ranks is None:
            return self._start(settings, device)
        saved = self._start(settings, device) if self._saves else None
        step = int(self._ranks.share(torch.tensor(saved.step if saved else -1, device=self._ranks.device)))
        if saved or step < 0:
            return saved
        path = self.folder / f"step-{step}"
        return Saved(path, step, _read(path, step, device))

    def _start(self, settings: Mapping[str, Any], device: torch.device) -> Saved | None:
        if self._lock is None:
            raise ConfigError("open checkpoints first: with gp.Checkpoints(folder) as checkpoints: ...")
        kernels = {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._require_same(self.folder / _STAGE, {**settings, **kernels})
        self._time = time.monotonic()
        found = {int(p.name[5:]): p for p in self.folder.glob("step-*") if p.name[5:].isdigit()}
        saved = None
        for step in sorted(found, reverse=True):
            try:
                saved = Saved(found[step], step, _read(found[step], step, device))
                break
            except CorruptFile as e:
                _log.warning("%s; going on from the one before it, or from the beginning", e)
        self.last = (saved.path, saved.step) if saved else None
        for path in self.folder.glob("step-*"):  # damaged, or left over by a kill while one was written
            if self.last is None or path != self.last[0]:
                shutil.rmtree(path)
        return saved

    def _require_same(self, path: Path, settings: Mapping[str, Any]) -> None:
        here = flat(json.loads(json.dumps(settings)))
        if not path.exists():
            write_atomically(path, json.dumps(settings, indent=2).encode())
            return
        try:
            there = flat(json.loads(path.read_bytes()))
        except ValueError as e:
            raise CorruptFile(f"{path} cannot be read ({e}); add --force (force=True) to start over") from e
        changed = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        content = [_CONTENT[leaf] for name in changed if (leaf := name.rpartition(".")[2]) in _CONTENT]
        # One flag may stand for several settings.
        # One that is not set on one side may be younger than the other.
        values = [(flag(name), there.get(name, "not set"), here.get(name, "not set")) for name in changed]
        flags = dict.fromkeys(f"{flag} {before} there, {now} here" for flag, before, now in values)
        if content:
            raise FingerprintMismatch(
                f"{self.folder} holds an unfinished run on something else: {' and '.join(content)} changed. "
                f"Use what it was begun with to continue it, or add --force (force=True) to start over"
            )
        if any(name.rpartition(".")[2] == "order" for name in changed):
            raise ConfigError(
                f"{self.folder} holds an unfinished run of another version of goldiprox, in which the same seed gives "
                f"examples in another order. Continue it with that version, or add --force (force=True) to start over"
            )
        if changed:
            raise ConfigError(
                f"{self.folder} holds an unfinished run with other settings: {'; '.join(flags)}. "
                f"Use the same to continue it, or add --force (force=True) to start over"
            )

    def check(self) -> None:
        """Raises where the run was asked to stop."""
        if self.stop():
            raise Interrupted("stopped after a whole step")

    @property
    def due(self) -> bool:
        return self._saves and time.monotonic() - self._time >= self.every

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Makes this the latest checkpoint; when it returns, that is on the disk."""
        if not self._saves or (self.last is not None and self.last[1] == step):
            return
        path = self.folder / f"step-{step}"
        partial = path.with_name(path.name + ".partial")
        tensors: dict[str, Tensor] = {}
        packed = _pack(state, tensors)
        with writing(path):
            partial.mkdir(exist_ok=True)
            try:
                save_file(tensors, partial / _TENSORS)
            except SafetensorError as e:
                raise OSError(str(e)) from e
            sync(partial / _TENSORS)
            content = {"step": step, "state": packed, "tensors": _hash(partial / _TENSORS)}
            text = json.dumps(content)
            checksum = hashlib.sha256(text.encode()).hexdigest()
            write_atomically(partial / _STATE, f"{checksum}\n{text}\n".encode())
            partial.rename(path)
            sync_folder(self.folder)
            before, self.last = self.last, (path, step)
            if before is not None:
                shutil.rmtree(before[0])
        self._time = time.monotonic()


def is_unfinished(folder: Path) -> bool:
    """Whether a folder of checkpoints is there: of a run that can be continued."""
    try:
        return folder.is_dir()
    except OSError:  # a name that no folder can have
        return False


def flag(name: str) -> str:
    """By which a setting is given on the command line, such as ``--folds`` for ``num_folds``."""
    leaf = name.rpartition(".")[2]
    return "--" + _FLAGS.get(leaf, leaf).replace("_", "-")


def _hash(path: Path) -> str:
    with path.open("rb") as f:
        digest = hashlib.sha256()
        while part := f.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _read(path: Path, step: int, device: torch.device) -> dict[str, Any]:
    try:
        checksum, _, text = (path / _STATE).read_text().rstrip("\n").partition("\n")
        if hashlib.sha256(text.encode()).hexdigest() != checksum:
            raise ValueError(f"the checksum of {_STATE} does not hold")
        content = json.loads(text)
        if content["tensors"] != _hash(path / _TENSORS):
            raise ValueError(f"the checksum of {_TENSORS} does not hold")
        if content["step"] != step:
            raise ValueError(f"it is of step {content['step']}")
        return _unpack(content["state"], load_file(path / _TENSORS), device)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as e:
        raise CorruptFile(f"the checkpoint {path} is damaged: {e}") from e


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A nested value as JSON, its tensors aside; tables keep keys that are not text, tuples stay tuples."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        # Layout and place are part of how a step runs; values alone would not repeat it.
        return {"tensor": name, "stride": list(value.stride()), "on_device": value.device.type != "cpu"}
    if isinstance(value, Mapping):
        return {"table": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_pack(v, tensors) for v in value]}
    if isinstance(value, list):
        return [_pack(v, tensors) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"a checkpoint holds tensors, numbers, text, lists and tables, not {type(value).__name__}; use a model and an "
        f"optimiser whose state_dict has nothing else, or leave out checkpoints"
    )


def _unpack(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors, device) for v in value]
    if not isinstance(value, dict):
        return value
    if "table" in value:
        return {_unpack(k, tensors, device): _unpack(v, tensors, device) for k, v in value["table"]}
    if "tuple" in value:
        return tuple(_unpack(v, tensors, device) for v in value["tuple"])
    saved = tensors[value["tensor"]]
    place = device if value["on_device"] else torch.device("cpu")
    return torch.empty_strided(saved.shape, value["stride"], dtype=saved.dtype, device=place).copy_(saved)
