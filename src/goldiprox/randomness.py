"""Random numbers that depend on what they are for, not on when or where they are drawn.

Every draw is a hash of (purpose, seed, step, example id). So it is the same on every device, in every process
and after a resume, there is no state to save, and no global generator is involved.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea, Flood 2014).
_INCREMENT, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def derive(purpose: str, *parts: int) -> int:
    """A 63-bit seed for one purpose, different for every combination of parts."""
    text = ":".join([purpose, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_ids(ids: Int[Tensor, " n"], key: int) -> Int[Tensor, " n"]:
    """64 well-mixed bits per id (SplitMix64 at position `id` of the stream `key`)."""
    x = ids.long() * _signed(_INCREMENT) + _signed(key)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def uniforms(ids: Int[Tensor, " n"], key: int) -> Float[Tensor, " n"]:
    """One number in the open interval (0, 1) per id."""
    if ids.device.type == "mps":  # which has no float64
        return (_shift(hash_ids(ids, key), 41).float() + 0.5) * 2.0**-23
    return (_shift(hash_ids(ids, key), 12).double() + 0.5) * 2.0**-52


def shuffle(ids: Int[Tensor, " n"], key: int) -> Int[Tensor, " n"]:
    """The ids in a random order that depends only on the ids and the key."""
    return ids[torch.argsort(hash_ids(ids, key), stable=True)]


@contextlib.contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Leaves torch's global generators as they were, whatever runs inside (dropout, initialisation)."""
    cuda = device.type == "cuda"
    state = torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state(device) if cuda else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds torch's global generators for the code inside, then puts them back."""
    device = torch.device(device)
    with preserved(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
