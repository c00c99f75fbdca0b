"""Runs are kept under a hash of all that decides them, so that figures share them and an interrupted call goes on."""

import hashlib
import io
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from goldiprox.artifacts import check_folder, versions
from goldiprox.outputs import write_json
from goldiprox.storage import write_atomically

FILES = (".npz", ".arrow")
"""What a run may leave beside its JSON file."""
RUNS = 9
"""The version of what a run does: raise it with every change there, and older runs are made again."""


def hardware(device: torch.device) -> str:
    """The machine in words, for figures and files."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"


@dataclass
class Kept:
    """What a run left.

    Attributes:
        numbers: As in its JSON file.
        arrays: What is too long for JSON.
        sequence: The file of the recorded sequence, where one was asked for.
    """

    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    sequence: Path | None = None


Runs: TypeAlias = list[Kept]
"""One for each seed."""


class Store:
    """A folder of finished runs.

    Args:
        folder: Made if it is missing.
        device: Part of every key: what another machine made is made again here, not passed off as this one's.
    """

    def __init__(self, folder: Path, device: torch.device):
        self.folder, self.device = folder, device

    def key(self, kind: str, settings: Mapping[str, Any]) -> str:
        """A name for a run with these settings on this machine."""
        decides = {
            "settings": settings,
            "runs": RUNS,
            "versions": versions(),
            "hardware": hardware(self.device),
        }
        text = json.dumps(decides, sort_keys=True, default=str)
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def path(self, key: str, suffix: str) -> Path:
        return check_folder(self.folder) / f"{key}{suffix}"

    def get(self, key: str) -> Kept | None:
        """The finished run of this name, or None."""
        about = self.folder / f"{key}.json"
        if not about.exists():
            return None
        arrays, sequence = (self.folder / f"{key}{suffix}" for suffix in FILES)
        content = json.loads(about.read_text())
        if not all((self.folder / f"{key}{suffix}").exists() for suffix in content.get("files", ())):
            return None  # somebody has removed some of it
        return Kept(
            content["numbers"],
            dict(np.load(arrays)) if arrays.exists() else {},
            sequence if sequence.exists() else None,
        )

    def put(self, key: str, settings: Mapping[str, Any], kept: Kept) -> None:
        """Keeps a finished run; its JSON file comes last, so that a run is either there as a whole or not at all."""
        if kept.arrays:
            content = io.BytesIO()
            np.savez_compressed(content, **kept.arrays)  # type: ignore[arg-type]
            write_atomically(self.path(key, ".npz"), content.getvalue())
        about = {"settings": settings, "hardware": hardware(self.device), "versions": versions()}
        about |= {"files": [suffix for suffix in FILES if self.path(key, suffix).exists()]}
        plain = json.loads(json.dumps(about, default=str))
        write_json(self.path(key, ".json"), plain | {"numbers": kept.numbers})

    def found_or_made(
        self,
        kind: str,
        seeds: Sequence[int],
        settings: Callable[[int], dict[str, Any]],
        make: Callable[[Sequence[int]], Runs],
        *,
        together: int,
    ) -> Runs:
        """One run for each seed: finished ones from here; the rest are made, and kept as soon as they are done.

        Args:
            kind: What the names of their files begin with.
            seeds: Which.
            settings: All that decides the run of a seed.
            make: Makes the runs of some seeds.
            together: Of how many at a time.
        """
        keys = {seed: self.key(kind, settings(seed)) for seed in seeds}
        missing = [seed for seed, key in keys.items() if self.get(key) is None]
        for first in range(0, len(missing), together):
            some = missing[first : first + together]
            start = time.perf_counter()
            made = make(some)
            for seed, kept in zip(some, made, strict=True):
                timing = {"wall_seconds": (time.perf_counter() - start) / len(some), "together": len(some)}
                self.put(keys[seed], settings(seed), replace(kept, numbers=kept.numbers | timing))
        return [kept for key in keys.values() if (kept := self.get(key)) is not None]
