"""Lightning, with one process and with two: what it does to batches, and what comes of a sequence."""

from functools import cache

import numpy as np
import pytest

from frameworks_worker import KEEP, STEPS, picks, seen_by, write
from test_accelerate import WORLDS, assert_parts_of_steps, together


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the processes of a world saw; each world is started once."""

    @cache
    def of(world_size: int) -> list[dict]:
        folder = tmp_path_factory.mktemp(f"lightning-{world_size}")
        write(folder)
        return seen_by("trained_by_lightning", world_size, folder)

    return of


def test_the_trap_is_there(seen):
    """A loader that does not shuffle, over the examples in order: two processes get them shuffled."""
    (alone,) = seen(1)
    assert alone["trap"] == picks().tolist()
    shuffled = together(seen(2), "trap")
    assert shuffled != picks().tolist()
    assert sorted(sum(shuffled, [])) == sorted(picks().ravel().tolist())


def test_shuffling_is_an_error(seen):
    assert seen(1)[0]["shuffled"] == ""
    for rank in seen(2):
        assert "not a recorded batch of 4 in order: it shuffles" in rank["shuffled"]


def test_a_sampler_that_would_be_made_anew_is_an_error(seen):
    assert seen(1)[0]["made anew"] == ""
    for rank in seen(2):
        assert "goldiprox.integrations.lightning.DataModule(data, sequence)" in rank["made anew"]


def test_the_way_that_error_names_is_exact(seen):
    assert together(seen(2), "own sampler") == picks().tolist()


def test_other_ways_to_train_on_something_else_are_refused(seen):
    for rank in [*seen(1), *seen(2)]:
        assert "overfit_batches=2" in rank["overfit"]
    assert "opened for rank 0 of 2" in seen(2)[0]["divided before"]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_a_replay_is_the_sequence(seen, world_size, use_distributed_sampler):
    ranks = seen(world_size)
    assert together(ranks, f"replay, {use_distributed_sampler}") == [*picks().tolist()] * 2  # two passes
    assert {rank[f"updates, {use_distributed_sampler}"] for rank in ranks} == {2 * STEPS}
    for rank in ranks:
        np.testing.assert_allclose(rank["weights"], seen(1)[0]["weights"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_accumulation_a_step_still_is_one_update(seen, world_size):
    assert_parts_of_steps(seen(world_size))


def test_two_processes_select_what_one_does(seen):
    (alone,) = seen(1)
    assert [len(ids) for ids in alone["kept"]] == [KEEP] * STEPS
    assert together(seen(2), "kept") == alone["kept"]


def test_a_checkpoint_within_an_epoch_goes_on_with_the_same_choices(seen):
    (alone,) = seen(1)
    assert alone["resumed"] == alone["kept"]


def test_a_selection_that_no_trainer_knows_says_so(seen):
    assert "Trainer(callbacks=[selection])" in seen(1)[0]["not begun"]
