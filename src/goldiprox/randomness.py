"""Random numbers that depend on what they are for, not on when or where they are drawn.

Every draw is a hash of (purpose, seed, step, example id). So it is the same on every device, in every process
and after a resume, there is no state to save, and no global generator is involved.
"""

import contextlib
import contextvars
import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea, Flood 2014).
_INCREMENT, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# From 64 things on, 8 rounds cannot be told from chance (benchmarks/permutation.py); fewer things need more of them.
_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 24, 64
ORDER = 2
"""The version of the orders that come of a key: raise it with every change of `permuted`, and unfinished runs that
were begun with others are refused. (Version 1 sorted ids by their hashes.)"""


def derive(purpose: str, *parts: int) -> int:
    """A 63-bit seed for one purpose, different for every combination of parts."""
    text = ":".join([purpose, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


Key: TypeAlias = int | Tensor
"""64 bits that choose a stream of random numbers: a number, or a 0-d tensor where the device counts the steps."""


@overload
def subkey(key: int, position: int) -> int: ...
@overload
def subkey(key: Key, position: Key) -> Key: ...
def subkey(key: Key, position: Key) -> Key:
    """The key at this position (a step, a layer, a sample) of the stream `key`.

    Made on the host from numbers and on the device from tensors, it is the same.
    """
    if isinstance(key, Tensor) or isinstance(position, Tensor):
        return _hash(position, key)
    x = (position * _INCREMENT + key) & _MASK
    x = (x ^ x >> 30) * _FIRST & _MASK
    x = (x ^ x >> 27) * _SECOND & _MASK
    return x ^ x >> 31


def _signed(value: Key) -> Any:
    if isinstance(value, Tensor):
        return value
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _hash(positions: Key, key: Key) -> Tensor:
    far = positions * (_signed(_INCREMENT) if isinstance(positions, Tensor) else _INCREMENT)
    x = _signed(far) + _signed(key)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def hash_ids(ids: Int[Tensor, " n"], key: Key) -> Int[Tensor, " n"]:
    """64 well-mixed bits per id (SplitMix64 at position `id` of the stream `key`)."""
    return _hash(ids.long(), key)


def uniforms(ids: Int[Tensor, " n"], key: Key) -> Float[Tensor, " n"]:
    """One number in the open interval (0, 1) per id."""
    if ids.device.type == "mps":  # which has no float64
        return (_shift(hash_ids(ids, key), 41).float() + 0.5) * 2.0**-23
    return (_shift(hash_ids(ids, key), 12).double() + 0.5) * 2.0**-52


def permuted(positions: Int[Tensor, " n"], length: int, keys: Int[Tensor, " k"]) -> Int[Tensor, "k n"]:
    """What stands at these positions of random orders of ``range(length)``, one for each key, without making them.

    A Feistel network over a grid of rows and columns with at least `length` cells: each half of a cell's address in
    turn moves on by a hash of the other, around the grid. A cell beyond `length` is sent through again until it
    falls inside (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"). Only tables of the size of a row
    are made, and no value is looked at, so a GPU need not be waited for.
    """
    # An even number of columns: were both odd, every move would be an even permutation, and so would be the order.
    columns = math.isqrt(max(length - 1, 0)) + 1
    columns += columns % 2
    rows = max(-(-length // columns), 1)
    device = positions.device
    rounds = torch.arange(_ROUNDS if length >= _FEW else _ROUNDS_OF_FEW, device=device)
    hashed = _shift(_hash(torch.arange(columns, device=device), _hash(rounds[:, None], keys)[..., None]), 1)
    cells = torch.cat([positions, torch.arange(length, rows * columns, device=device)]).expand(len(keys), -1)
    row, column = cells // columns, cells % columns
    for by_row, by_column in zip(hashed[::2] % columns, hashed[1::2] % rows, strict=True):
        column = by_row.gather(1, row).add_(column).remainder_(columns)
        row = by_column.gather(1, column).add_(row).remainder_(rows)
    cells = row.mul_(columns).add_(column)
    inside, beyond = cells[:, : len(positions)], cells[:, len(positions) :]
    if not beyond.shape[1]:
        return inside

    def sent_again(cells: Tensor) -> Tensor:
        return torch.where(cells < length, cells, beyond.gather(1, (cells - length).clamp_(min=0)))

    for _ in range(beyond.shape[1].bit_length()):  # twice as far each time; no way is longer than through all of them
        beyond = sent_again(beyond)
    return sent_again(inside)


def shuffle(ids: Int[Tensor, " n"], key: int) -> Int[Tensor, " n"]:
    """The ids in a random order that depends only on the ids and the key."""
    positions = torch.arange(len(ids), device=ids.device)
    return ids[permuted(positions, len(ids), torch.tensor([key], device=ids.device))[0]]


_BACKENDS: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.mps}
_unguarded = contextvars.ContextVar("_unguarded", default=False)


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Lets `preserved` do nothing inside: reading a generator is impossible while a CUDA graph is captured."""
    token = _unguarded.set(True)
    try:
        yield
    finally:
        _unguarded.reset(token)


@contextlib.contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Leaves torch's global generators as they were, whatever runs inside (dropout, initialisation)."""
    if _unguarded.get():
        yield
        return
    backend = _BACKENDS.get(device.type)
    state = torch.get_rng_state()
    device_state = backend.get_rng_state() if backend else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if backend and device_state is not None:
            backend.set_rng_state(device_state)


def host_generators() -> tuple[Any, ...]:
    """The states of the global generators of torch, NumPy and Python on the host, to see whether something drew."""
    _, numpy_keys, numpy_position, *_ = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), numpy_keys.tobytes(), numpy_position, random.getstate()  # type: ignore[union-attr]


def generator_states(device: torch.device) -> dict[str, Any]:
    """The states of all global generators that a run may draw from, as plain numbers and tensors."""
    backend = _BACKENDS.get(device.type)
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "device": backend.get_rng_state() if backend else None,
        "numpy": (name, keys.tolist(), *rest),  # type: ignore[union-attr]
        "python": random.getstate(),
    }


def set_generator_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Puts all global generators where `generator_states` found them."""
    torch.set_rng_state(states["torch"])
    backend = _BACKENDS.get(device.type)
    if backend and states["device"] is not None:
        backend.set_rng_state(states["device"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds the global generators of torch, NumPy and Python for the code inside, then puts them back.

    So a model's dropout and a data set's augmentation draw from our seed, and the user's own draws go on as if
    nothing had happened.
    """
    device = torch.device(device)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with preserved(device):
        torch.default_generator.manual_seed(seed)
        if device.type in _BACKENDS:
            _BACKENDS[device.type].manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
