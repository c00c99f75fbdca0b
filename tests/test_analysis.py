"""What runs show, in figures worked out by hand."""

import numpy as np
import pytest

from goldiprox.analysis import coverage_over_time, share_over_time, speedup


def evaluations(*accuracies: float, flops: int = 10, seconds: float = 1.0) -> list[dict]:
    return [
        {"step": n, "accuracy": a, "flops": flops * n, "seconds": seconds * n}
        for n, a in enumerate(accuracies, start=1)
    ]


UNIFORM = evaluations(0.2, 0.4, 0.6, 0.8)
PAID_ONCE = {"flops": 20, "seconds": 1.0}


def test_speedup_shares_what_is_paid_once_among_models():
    found = speedup(UNIFORM, evaluations(0.5, 0.9, 0.9, 0.9), evaluations(0, 0, 0, 0, flops=5), paid_once=PAID_ONCE)
    assert found["steps"] == 2
    assert found["replay"] == {"flops": 2, "seconds": 2}
    # Uniform paid 40 FLOPs, 4 seconds; the model 20 and 2, the proxy up to there 10 and 2, the holdout model 20 and 1.
    assert found["flops"] == pytest.approx(40 / 50)
    assert found["seconds"] == pytest.approx(4 / 5)
    assert found["amortised"]["1"] == {unit: found[unit] for unit in ("flops", "seconds")}
    assert found["amortised"]["5"] == pytest.approx({"flops": 40 / 26, "seconds": 4 / 2.6})
    assert found["amortised"]["20"] == pytest.approx({"flops": 40 / 21.5, "seconds": 4 / 2.15})


def test_what_is_not_known_or_not_reached_is_none():
    uncounted = [{**e, "flops": None} for e in evaluations(0.9)]
    found = speedup(UNIFORM, evaluations(0.9), uncounted, paid_once=PAID_ONCE)
    assert found["flops"] is found["replay"]["flops"] is found["amortised"]["20"]["flops"] is None
    assert found["seconds"] == pytest.approx(4 / 3)
    never = speedup(UNIFORM, evaluations(0.1), evaluations(0.1), paid_once=PAID_ONCE)
    assert never["steps"] is None
    assert never["amortised"] == {n: {"flops": None, "seconds": None} for n in ("1", "5", "20")}


def test_shares_and_coverage_over_time_are_those_of_a_plain_loop():
    ids = np.random.default_rng(0).integers(0, 50, 120)
    flags = np.arange(50) % 3 == 0
    steps = [1, 5, 30]
    seen = [len(set(ids[: 4 * s].tolist())) / 50 for s in steps]
    assert coverage_over_time(ids, num_train=50, keep=4, steps=steps) == pytest.approx(seen)
    expected = [np.mean([flags[i] for i in ids[4 * a : 4 * b]]) for a, b in ((0, 1), (1, 5), (5, 30))]
    assert share_over_time(ids, flags, keep=4, steps=steps) == pytest.approx(expected)
