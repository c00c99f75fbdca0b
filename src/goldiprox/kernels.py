"""Triton kernels: imported only where there is a GPU and Triton with it."""
# pyright: reportMissingImports=false, reportIndexIssue=false

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.cuda import device_of
from triton.language.extra import libdevice

_BLOCK = 512


@triton.jit
def _adamw(
    p,
    g,
    m,
    v,
    low,
    lr_at,
    step_at,
    n,
    log1,
    log2,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    decay,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    lr = tl.load(lr_at)
    # In float64: 1 - beta2 ** step cancels for small steps.
    step = tl.load(step_at).to(tl.float64)
    correction1 = (1 - tl.exp(step * log1)).to(tl.float32)
    correction2 = (1 - tl.exp(step * log2)).to(tl.float32)
    gradient = tl.load(g + i, inside).to(tl.float32)
    weight = tl.load(p + i, inside) * (1 - lr * decay)
    mean = beta1 * tl.load(m + i, inside) + rest1 * gradient
    square = beta2 * tl.load(v + i, inside) + rest2 * gradient * gradient
    weight -= lr / correction1 * mean / (tl.sqrt(square / correction2) + eps)
    tl.store(p + i, weight, inside)
    if LOW:
        tl.store(low + i, weight.to(tl.bfloat16), inside)
    tl.store(m + i, mean, inside)
    tl.store(v + i, square, inside)


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, low: Tensor | None, step: Tensor, group: dict[str, Any]) -> None:
    """One step of AdamW (Loshchilov & Hutter 2019) on flat tensors, in place.

    Learning rate and step count are on the device. `low` gets the new parameters too, in its own precision.
    """
    beta1, beta2 = group["betas"]
    # Triton takes numbers as float32, in which 1 - 0.999 would be off in its fifth digit: hand over both.
    betas = (math.log(beta1), math.log(beta2), beta1, 1 - beta1, beta2, 1 - beta2)
    grid = (triton.cdiv(p.numel(), _BLOCK),)
    rest = (p.numel(), *betas, group["eps"], group["weight_decay"])
    copy = p if low is None else low
    with device_of(p):
        _adamw[grid](p, g, m, v, copy, group["lr"], step, *rest, LOW=low is not None, BLOCK=_BLOCK)


@triton.jit
def _highest(scores, ids, rows, n, keep, BLOCK: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + i, i < n, other=0.0)
    score = tl.where(score != score, float("inf"), score)
    id = tl.load(ids + i, i < n, other=0)
    rank = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, n, TILE):
        j = start + tl.arange(0, TILE)
        other = tl.load(scores + j, j < n, other=0.0)
        other = tl.where(other != other, float("inf"), other)
        other_id = tl.load(ids + j, j < n, other=0)
        equal = other[None, :] == score[:, None]
        same = equal & (other_id[None, :] == id[:, None])
        ahead = (
            (other[None, :] > score[:, None])
            | (equal & (other_id[None, :] < id[:, None]))
            | (same & (j[None, :] < i[:, None]))
        )
        rank += tl.sum((ahead & (j < n)[None, :]).to(tl.int32), axis=1)
    tl.store(rows + rank, i.to(tl.int64), (i < n) & (rank < keep))


def highest(scores: Tensor, ids: Tensor, keep: int) -> Tensor:
    """The rows of the `keep` highest scores, highest first, ties by id; what is not a number counts as infinite.

    Every row counts how many are ahead of it: quadratic, but for a candidate batch quicker than sorting, and one
    kernel instead of several.
    """
    rows = torch.empty(keep, dtype=torch.int64, device=scores.device)
    grid = (triton.cdiv(len(scores), 16),)
    with device_of(scores):
        _highest[grid](scores.contiguous(), ids.contiguous(), rows, len(scores), keep, BLOCK=16, TILE=128)
    return rows


@triton.jit
def _take(
    x,
    y,
    ids,
    out,
    out_y,
    scale,
    shift,
    size,
    inner,
    channels,
    scales: tl.constexpr,
    shifts: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    id = tl.load(ids + row)
    if tl.program_id(1) == 0:
        tl.store(out_y + row, tl.load(y + id))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    channel = (i // inner) % channels
    value = tl.load(x + id * size + i, inside).to(tl.float32)
    # Rounded twice, as torch does it: a fused multiply-add would differ from data that loading processes prepare.
    if scales:
        value = libdevice.mul_rn(value, tl.load(scale + channel))
    if shifts:
        value = value + tl.load(shift + channel)
    tl.store(out + row.to(tl.int64) * size + i, value, inside)


def take(
    x: Tensor, y: Tensor, ids: Tensor, scale: Tensor | None, shift: Tensor | None, *, channels_last: bool
) -> tuple[Tensor, Tensor]:
    """``x[ids] * scale + shift`` in float32, and ``y[ids]``, in one pass.

    Args:
        x: Contiguous, examples first.
        y: One number an example.
        ids: Which.
        scale: One number, or one a channel; None for 1.
        shift: One a channel; None for 0.
        channels_last: The channel is the last dimension, not the second.
    """
    out = torch.empty(len(ids), *x.shape[1:], device=x.device)
    out_y = torch.empty(len(ids), dtype=y.dtype, device=y.device)
    size = out[0].numel()
    channels = max(t.numel() for t in (scale, shift) if t is not None) if scale is not None or shift is not None else 1
    inner = 1 if channels_last else size // channels
    some = x if scale is None else scale
    affine = (some, some if shift is None else shift)
    flags = (scale is not None, shift is not None)
    grid = (len(ids), triton.cdiv(size, 1024))
    with device_of(x):
        _take[grid](x, y, ids, out, out_y, *affine, size, inner, channels, *flags, BLOCK=1024)
    return out, out_y


@triton.jit
def _lookup(table, ids, out, n, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    id = tl.load(ids + i, i < n, other=0)
    known = (i < n) & (id >= 0) & (id < length)
    tl.store(out + i, tl.load(table + id, known, other=float("nan")), i < n)


def lookup(table: Tensor, ids: Tensor) -> Tensor:
    """``table[ids]``, NaN for ids beyond the table."""
    out = torch.empty(len(ids), dtype=table.dtype, device=table.device)
    with device_of(table):
        _lookup[(triton.cdiv(len(ids), 128),)](table, ids.contiguous(), out, len(ids), len(table), BLOCK=128)
    return out


@triton.jit
def _rows(a, b, c, to_a, to_b, to_c, rows, size_a, size_b, size_c, INTO: tl.constexpr, BLOCK: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number)
    here = number if INTO else row
    there = row if INTO else number
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to_a + there * size_a + i, tl.load(a + here * size_a + i, i < size_a), i < size_a)
    tl.store(to_b + there * size_b + i, tl.load(b + here * size_b + i, i < size_b), i < size_b)
    tl.store(to_c + there * size_c + i, tl.load(c + here * size_c + i, i < size_c), i < size_c)


def _copy_rows(sources: Sequence[Tensor], targets: Sequence[Tensor], rows: Tensor, *, into: bool) -> None:
    """Copies rows of up to three tensors at once; a tensor that is given twice is copied twice, which does no harm."""
    a, b, c = (*sources, *sources, *sources)[:3]
    to_a, to_b, to_c = (*targets, *targets, *targets)[:3]
    sizes = [t[0].numel() for t in ((to_a, to_b, to_c) if into else (a, b, c))]
    grid = (len(rows), triton.cdiv(max(sizes), 512))
    with device_of(rows):
        _rows[grid](a, b, c, to_a, to_b, to_c, rows, *sizes, INTO=into, BLOCK=512)


def take_rows(tensors: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """``[t[rows] for t in tensors]`` for up to three dense tensors, which keep the order of their dimensions."""
    taken = [
        torch.empty_strided((len(rows), *t.shape[1:]), t.stride(), dtype=t.dtype, device=t.device) for t in tensors
    ]
    _copy_rows(tensors, taken, rows, into=False)
    return taken


def put_rows(values: Sequence[Tensor], targets: Sequence[Tensor], row: Tensor) -> None:
    """``target[row] = value`` for each, the row being a tensor of one number."""
    for first in range(0, len(values), 3):
        part = [v.contiguous() for v in values[first : first + 3]]
        _copy_rows(part, targets[first : first + 3], row, into=True)
