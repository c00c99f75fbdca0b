"""Triton kernels: imported only where there is a GPU and Triton with it."""
# pyright: reportMissingImports=false, reportIndexIssue=false

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


@triton.jit
def _adamw(p, g, m, v, lr_at, step_at, n, log1, log2, beta1, rest1, beta2, rest2, eps, decay, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    lr = tl.load(lr_at)
    # In float64: 1 - beta2 ** step cancels for small steps.
    step = tl.load(step_at).to(tl.float64)
    correction1 = (1 - tl.exp(step * log1)).to(tl.float32)
    correction2 = (1 - tl.exp(step * log2)).to(tl.float32)
    gradient = tl.load(g + i, inside)
    weight = tl.load(p + i, inside) * (1 - lr * decay)
    mean = beta1 * tl.load(m + i, inside) + rest1 * gradient
    square = beta2 * tl.load(v + i, inside) + rest2 * gradient * gradient
    weight -= lr / correction1 * mean / (tl.sqrt(square / correction2) + eps)
    tl.store(p + i, weight, inside)
    tl.store(m + i, mean, inside)
    tl.store(v + i, square, inside)


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor, group: dict[str, Any]) -> None:
    """One step of AdamW (Loshchilov & Hutter 2019) on flat tensors, in place.

    Learning rate and step count are on the device.
    """
    beta1, beta2 = group["betas"]
    # Triton takes numbers as float32, in which 1 - 0.999 would be off in its fifth digit: hand over both.
    betas = (math.log(beta1), math.log(beta2), beta1, 1 - beta1, beta2, 1 - beta2)
    grid = (triton.cdiv(p.numel(), _BLOCK),)
    _adamw[grid](p, g, m, v, group["lr"], step, p.numel(), *betas, group["eps"], group["weight_decay"], BLOCK=_BLOCK)
