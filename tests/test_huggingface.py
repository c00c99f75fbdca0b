"""The Trainer of transformers, with one process and with two; `datasets`."""

from functools import cache

import numpy as np
import pytest

from frameworks_worker import CANDIDATES, KEEP, STEPS, make_numbered_text, picks, seen_by, write
from test_accelerate import WORLDS, assert_parts_of_steps, together


@pytest.fixture(scope="module")
def text():
    return make_numbered_text()


@pytest.fixture(scope="module")
def seen(tmp_path_factory, text):
    """What the processes of a world saw; each world is started once."""

    @cache
    def of(world_size: int) -> list[dict]:
        folder = tmp_path_factory.mktemp(f"transformers-{world_size}")
        write(folder, text[0])
        return seen_by("trained_by_transformers", world_size, folder)

    return of


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_trap_is_there(seen, world_size):
    """Examples in order, given to a Trainer as it is, come out shuffled; told to keep their order they are right."""
    ranks = seen(world_size)
    assert together(ranks, "trap") != picks().tolist()
    assert sorted(sum(together(ranks, "trap"), [])) == sorted(picks().ravel().tolist())
    assert together(ranks, "in order") == picks().tolist()


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("how", ["shuffled", "merged"])
def test_what_would_change_batches_is_an_error(seen, world_size, how):
    for rank in seen(world_size):
        assert f"not a recorded batch of {KEEP // world_size} in order" in rank[how]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("name", ["replay", "with workers"])
def test_a_replay_is_the_sequence(seen, world_size, name):
    assert together(seen(world_size), name) == picks().tolist()


def test_two_processes_train_the_model_of_one(seen):
    (alone,) = seen(1)
    for rank in seen(2):
        assert rank["updates, replay"] == STEPS
        np.testing.assert_allclose(rank["weights, replay"], alone["weights, replay"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_accumulation_a_step_still_is_one_update(seen, world_size):
    assert_parts_of_steps(seen(world_size))


def test_checkpoints_continue_exactly(seen):
    (alone,) = seen(1)
    assert alone["replay resumed"] == picks()[3:].tolist()
    assert alone["weights, resumed"] == alone["weights, replay"]
    assert alone["kept resumed"] == alone["kept"][3:]


def test_a_rule_that_counts_cannot_be_continued(seen):
    (alone,) = seen(1)
    assert len(alone["kept by turns"]) == len(alone["kept"])
    assert alone["kept by turns"] != alone["kept"]
    assert "does not hold how often" in alone["turns resumed"]


def test_two_processes_select_what_one_does(seen):
    (alone,) = seen(1)
    assert together(seen(2), "kept") == alone["kept"]
    assert alone["updates, kept"] == 2 * (400 // CANDIDATES)
    assert [len(set(ids)) for ids in alone["kept"]] == [KEEP] * 10
    for rank in seen(2):
        np.testing.assert_allclose(rank["weights, kept"], alone["weights, kept"], rtol=1e-3, atol=1e-5)


def test_with_accumulation_every_batch_has_candidates_of_its_own(seen):
    (alone,) = seen(1)
    assert [len(set(ids)) for ids in alone["kept accumulated"]] == [KEEP] * (2 * 400 // 40)


def test_any_data_set_of_dictionaries_will_do_and_workers_change_nothing(seen):
    (alone,) = seen(1)
    assert alone["kept of items"] == alone["kept of columns"]


@pytest.mark.parametrize(
    "kind", ["classes", "numbers", "several labels", "labels of tokens", "masked tokens", "next tokens"]
)
def test_the_loss_of_an_example_is_the_models_own(seen, kind):
    ours, own = seen(1)[0]["losses"][kind]
    assert len(set(ours)) == 4
    np.testing.assert_allclose(ours, own, rtol=1e-5)


def test_selecting_learns_and_leaves_wrong_labels_alone(seen):
    """A tiny transformer, text in which "not" turns the meaning round, a tenth of the labels wrong."""
    (alone,) = seen(1)
    assert alone["accuracy"] > 0.9
    assert 0.07 < alone["wrong"] < 0.13
    assert alone["wrong among kept"] < alone["wrong"] / 2


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("no data", "has no train_dataset"),
        ("other data", "made from a data set of 400 examples; this one has 300"),
        ("too many steps", "max_steps=7, but 1 passes over the sequence have 6"),
        ("batch size to be found", "auto_find_batch_size"),
        ("split batches", "split_batches=True"),
        (
            "does not divide",
            "8 examples per step cannot be divided among 1 processes, each accumulating gradients over 3",
        ),
        ("twice", "replays a sequence already"),
        ("too few candidates", "4 candidates to choose 8 from"),
        ("no labels", "logits and labels as tensors"),
        ("other floor", "made from other data"),
    ],
)
def test_what_cannot_work_is_said_before_training(seen, case, message):
    assert message in seen(1)[0]["refusals"][case]
