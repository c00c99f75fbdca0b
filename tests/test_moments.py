"""The proxy's losses at a few moments: recorded without changing anything, and whole after an interruption."""

import numpy as np
import pytest
import torch

import goldiprox as gp
from conftest import make_blobs, make_mlp
from goldiprox.errors import CorruptFile, Interrupted
from goldiprox.forward import cross_entropy
from goldiprox.moments import KEY, NUM_MOMENTS, Moments, watched_ids, watching
from goldiprox.pipeline import run
from goldiprox.prepare import DataConfig
from goldiprox.settings import RunConfig
from goldiprox.stages import Stages

SMALL = RunConfig(
    data=DataConfig(data="test_moments:source", noise=0.1),
    candidates=40,
    keep=4,
    epochs=4,
    device="cpu",
    acquisition="reducible_loss",
)


def source():
    return make_blobs(400), make_blobs(80, seed=1)


def test_evaluations_carry_the_losses_of_what_is_watched(blobs):
    model, ids = make_mlp(), np.array([3, 1, 200])
    figures = watching(gp.evaluate_on(blobs), blobs, ids)(model)
    x, y = blobs.gather(torch.as_tensor(ids))
    assert torch.allclose(figures.pop(KEY), cross_entropy(model(x), y))
    assert figures == gp.evaluate_on(blobs)(model)


def test_at_most_so_many_moments_the_first_and_the_last_among_them(tmp_path):
    ids = watched_ids(np.arange(10, 5000), seed=0)
    assert len(ids) == len(set(ids)) == 2000
    assert ids.min() >= 10
    by_step = {step: torch.full((len(ids),), float(step)) for step in range(5, 500, 5)}
    moments = Moments.of(ids, by_step)
    assert len(moments.steps) == NUM_MOMENTS
    assert (moments.steps[0], moments.steps[-1]) == (5, 495)
    assert (moments.losses == moments.steps[:, None]).all()
    moments.save(tmp_path / "losses.parquet")
    again = Moments.open(tmp_path / "losses.parquet")
    for name in ("ids", "steps", "losses"):
        assert np.array_equal(getattr(again, name), getattr(moments, name))
    assert len(Moments.of(ids, {}).steps) == 0
    (tmp_path / "losses.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptFile, match=r"losses\.parquet"):
        Moments.open(tmp_path / "losses.parquet")


def test_a_run_that_is_continued_has_them_all_and_selects_as_without(tmp_path):
    whole = run(SMALL, str(tmp_path / "whole"))
    asked = iter(range(100))
    with pytest.raises(Interrupted):  # in the middle of selecting
        run(
            SMALL,
            str(tmp_path / "r"),
            every=0.0,
            stop=lambda: (tmp_path / "r/sequence.arrow.partial").exists() and next(asked) > 9,
        )
    assert not (tmp_path / "r" / "losses.parquet").exists()
    continued = run(SMALL, str(tmp_path / "r"))
    assert continued["sequence"]["digest"] == whole["sequence"]["digest"]
    assert (tmp_path / "r" / "losses.parquet").read_bytes() == (tmp_path / "whole" / "losses.parquet").read_bytes()
    table = gp.IrreducibleLosses.open(tmp_path / "whole" / "irreducible.arrow")
    plain, _ = Stages(SMALL).select(table, None)
    assert plain.digest == whole["sequence"]["digest"]
