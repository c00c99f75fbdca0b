"""Loss against irreducible loss while training goes on: counted and thinned out, so that a page stays small."""

import base64
from typing import Any

import numpy as np

from goldiprox.moments import Moments
from goldiprox.randomness import derive
from goldiprox.report.collect import Run

LOWEST, HIGHEST = -3.0, 2.0  # powers of ten
BINS = 48
NUM_PARTS = 8
MAX_POINTS = 400
SCALE = 65_535


def encode(values: np.ndarray) -> str:
    """The bytes of an array, as text."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def on_scale(losses: np.ndarray, top: float) -> np.ndarray:
    """Losses on a logarithmic scale, as whole numbers from 0 (at `LOWEST` or below) to `SCALE` (at `top`)."""
    logs = np.log10(np.clip(np.nan_to_num(losses), 10**LOWEST, 10**top))
    return np.round((logs - LOWEST) / (top - LOWEST) * SCALE).astype("<u2")


def make_cloud(run: Run) -> dict[str, Any] | None:
    """For several parts of training: how many picks fell where, some of them, and a sample of all that was there.

    None where the losses of the picks were not recorded.
    """
    if run.losses is None or not len(run.ids):
        return None
    moments = run.moments if run.moments is not None and len(run.moments.steps) else None
    irreducible = run.irreducible[run.ids]
    flags = run.truth.corrupted if run.truth is not None else np.zeros(len(run.irreducible), bool)
    highest = np.nanmax([np.nanmax(run.irreducible), np.nan_to_num(run.losses).max(), 10 ** (LOWEST + 1)])
    top = min(HIGHEST, np.ceil(4 * np.log10(highest)) / 4)
    x, y = on_scale(irreducible, top), on_scale(run.losses, top)
    num_steps = len(run.ids) // run.keep
    ends = _ends(moments, num_steps)
    rng = np.random.default_rng(derive("report"))
    parts = []
    for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        rows = slice(first * run.keep, end * run.keep)
        cells = _counts(x[rows], y[rows])
        chosen = rows.start + np.sort(rng.permutation(rows.stop - rows.start)[:MAX_POINTS])
        damaged = flags[run.ids[rows]]
        parts.append(
            {
                "first": first + 1,
                "end": end,
                "picks": rows.stop - rows.start,
                "damaged": float(damaged.mean()),
                "above": float((y[rows] > x[rows]).mean()),
                "cells": encode(np.round(255 * np.sqrt(cells / max(cells.max(), 1))).astype(np.uint8)),
                "x": encode(x[chosen]),
                "y": encode(y[chosen]),
                "flags": encode(flags[run.ids[chosen]].astype(np.uint8)),
                **({"step": int(moments.steps[number]), "all": _all(moments, number, top)} if moments else {}),
            }
        )
    cloud: dict[str, Any] = {"bins": BINS, "low": LOWEST, "high": float(top), "parts": parts}
    if moments is not None:
        cloud["allX"] = encode(on_scale(run.irreducible[moments.ids], top))
        cloud["allFlags"] = encode(flags[moments.ids].astype(np.uint8))
    return cloud


def _ends(moments: Moments | None, num_steps: int) -> list[int]:
    """Where parts of training end: half-way between moments, so that each moment lies within its part."""
    if moments is None:
        return np.unique(np.linspace(0, num_steps, min(NUM_PARTS, num_steps) + 1).astype(int))[1:].tolist()
    return [*((moments.steps[1:] + moments.steps[:-1]) // 2).tolist(), num_steps]


def _all(moments: Moments, number: int, top: float) -> str:
    return encode(on_scale(moments.losses[number], top))


def _counts(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    columns, rows = (np.minimum(v.astype(np.int64) * BINS // SCALE, BINS - 1) for v in (x, y))
    return np.bincount(rows * BINS + columns, minlength=BINS * BINS)
