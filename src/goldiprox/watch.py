"""Looking at a GPU: whether there is one, what it can run, and at results without waiting for it."""

import functools
import importlib.util
from collections import deque
from collections.abc import Callable
from typing import Literal

import torch

from goldiprox.errors import ConfigError, UnknownName

Device = Literal["auto", "cuda", "mps", "cpu"]


@functools.cache
def has_triton() -> bool:
    """Whether our own kernels can run here."""
    return importlib.util.find_spec("triton") is not None


class Watch:
    """Runs checks of values: at once on the CPU; on a GPU some steps later, when looking no longer means waiting."""

    LAG = 16

    def __init__(self, device: torch.device):
        self._at_once = device.type != "cuda"
        self._waiting: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()

    def __call__(self, check: Callable[[], None]) -> None:
        """Hands over a check of what the device has been asked to compute so far."""
        if self._at_once:
            return check()
        done = torch.cuda.Event()
        done.record()
        self._waiting.append((done, check))
        while self._waiting and (len(self._waiting) > self.LAG or self._waiting[0][0].query()):
            self._run_oldest()
        return None

    def finish(self) -> None:
        """Runs the checks that are still waiting."""
        while self._waiting:
            self._run_oldest()

    def _run_oldest(self) -> None:
        done, check = self._waiting.popleft()
        done.synchronize()
        check()


def pick_device(name: Device) -> torch.device:
    """The device of this name; ``auto`` takes the first there is of CUDA, MPS, CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(d for d, available in there.items() if available))
    if name not in there:
        raise UnknownName("device", name, ["auto", *there])
    if not there[name]:
        raise ConfigError(f"device {name!r} is not available here; use --device auto")
    return torch.device(name)
