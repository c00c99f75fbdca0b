"""Accelerate, with one process and with two: what it does to batches, and what comes of a sequence."""

from functools import cache

import numpy as np
import pytest

import goldiprox as gp
from frameworks_worker import CANDIDATES, KEEP, STEPS, picks, seen_by, write
from goldiprox.receipts import compare

WORLDS = [1, 2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the processes of a world saw, and their folder; each world is started once."""

    @cache
    def of(world_size: int):
        folder = tmp_path_factory.mktemp(f"accelerate-{world_size}")
        write(folder)
        return seen_by("accelerated", world_size, folder), folder

    return of


def together(ranks: list[dict], name: str) -> list[list[int]]:
    """The ids of every step, over all processes."""
    return [sum(parts, []) for parts in zip(*(rank[name] for rank in ranks), strict=True)]


def assert_parts_of_steps(ranks: list[dict]) -> None:
    """With gradients accumulated over two parts, each recorded step is still one update."""
    parts = [sorted(sum(pair, [])) for pair in zip(*[iter(together(ranks, "accumulated"))] * 2, strict=True)]
    assert parts == np.sort(picks()).tolist()
    assert {rank["updates, accumulated"] for rank in ranks} == {STEPS}


def test_the_trap_is_there(seen):
    """A batch sampler like ours, prepared as people do it: two recorded batches become one step."""
    ranks, _ = seen(2)
    assert together(ranks, "trap") == picks().reshape(STEPS // 2, 2 * KEEP).tolist()


@pytest.mark.parametrize("where", ["merging", "merging, with workers", "candidates", "dispatched", "twice"])
def test_what_would_change_batches_is_an_error(seen, where):
    ranks, _ = seen(2)
    said = "each batch would be divided a second time" if where == "twice" else "several batches would become one step"
    for rank in ranks[: 1 if where == "dispatched" else 2]:
        assert said in rank[where]
        assert "goldiprox.integrations.accelerate.loader(accelerator, data, batches)" in rank[where]
    if where != "dispatched":  # alone there is nothing to divide
        assert seen(1)[0][0][where] == ""


def test_a_sequence_that_was_divided_before_is_refused(seen):
    assert "opened for rank 1 of 2, and would be divided a second time" in seen(2)[0][1]["divided before"]


@pytest.mark.parametrize("world_size", WORLDS)
def test_split_batches_is_exact(seen, world_size):
    assert together(seen(world_size)[0], "split") == picks().tolist()


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_replay_is_the_sequence(seen, world_size):
    ranks, folder = seen(world_size)
    assert together(ranks, "replay, 1") == picks().tolist()
    assert together(ranks, "skipped, 1") == picks()[4:].tolist()
    assert {rank["updates, 1"] for rank in ranks} == {STEPS}
    if world_size == 1:
        assert compare(gp.Sequence.open(folder / "sequence.arrow"), folder / "receipt-1-0.arrow") == STEPS


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_accumulation_a_step_still_is_one_update(seen, world_size):
    ranks, _ = seen(world_size)
    parts = [sorted(sum(pair, [])) for pair in zip(*[iter(together(ranks, "replay, 2"))] * 2, strict=True)]
    assert parts == np.sort(picks()).tolist()
    assert {rank["updates, 2"] for rank in ranks} == {STEPS}
    (alone,), _ = seen(1)
    for rank in ranks:  # the model is that of whole batches, up to the order of sums
        np.testing.assert_allclose(rank["weights, 2"], alone["weights, 1"], rtol=1e-4, atol=1e-6)


def test_two_processes_train_the_model_of_one(seen):
    (alone,), _ = seen(1)
    for rank in seen(2)[0]:
        np.testing.assert_allclose(rank["weights, 1"], alone["weights, 1"], rtol=1e-4, atol=1e-6)


def test_two_processes_select_what_one_does(seen):
    (alone,), _ = seen(1)
    assert together(seen(2)[0], "kept") == alone["kept"]
    assert [len(ids) for ids in alone["kept"]] == [KEEP] * STEPS
    for step, candidates in enumerate(gp.CandidateSampler(range(400), CANDIDATES, seed=1, steps=STEPS)):
        assert set(alone["kept"][step]) < set(candidates)


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_loaded_state_goes_on_with_the_same_choices(seen, world_size):
    ranks, _ = seen(world_size)
    assert together(ranks, "resumed") == together(ranks, "kept")[2:]
