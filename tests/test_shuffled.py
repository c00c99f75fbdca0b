import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import goldiprox as gp
from conftest import make_mlp
from goldiprox import receipts
from goldiprox.data import WithIds
from goldiprox.errors import ConfigError, FingerprintMismatch, Interrupted, ReceiptMismatch
from goldiprox.inspection import statistics, verify
from goldiprox.integrations.replayed import Replayed
from goldiprox.integrations.slices import Slices
from goldiprox.lazy import LazyTable
from goldiprox.shuffled import deal
from test_follow import add, begin, path  # noqa: F401
from test_sequence import KEEP, STEPS, picks

WINDOW = 3


@pytest.fixture
def recorded(path, blobs):  # noqa: F811
    with begin(path, blobs) as writer:
        add(writer, picks())
    return gp.Sequence.open(path, data=blobs)


def test_a_window_keeps_what_was_chosen_and_how_often(recorded):
    shuffled = recorded.shuffled(WINDOW)
    assert len(shuffled) == STEPS
    for first in range(0, STEPS, WINDOW):
        before = np.concatenate([recorded[s] for s in range(first, min(first + WINDOW, STEPS))])
        after = np.concatenate([shuffled[s] for s in range(first, min(first + WINDOW, STEPS))])
        assert sorted(before) == sorted(after)
    assert statistics(shuffled) == statistics(recorded)
    assert shuffled.digest != recorded.digest
    assert shuffled.ids.tolist() == [i for step in shuffled for i in step]
    assert shuffled.ids.tolist() == np.concatenate([shuffled[s] for s in reversed(range(STEPS))][::-1]).tolist()


def test_seeds_and_windows_give_other_orders_and_the_same_ones_again(recorded):
    orders = {recorded.shuffled(w, seed=s).digest for w in (WINDOW, STEPS) for s in (0, 1)}
    assert len(orders) == 4
    assert recorded.shuffled(WINDOW, seed=1).digest in orders
    assert recorded.shuffled(1) is recorded


def mixed(value, seed, window):
    """SplitMix64 twice, with Python's integers."""
    for part in (seed, window):
        value = (value * 0x9E3779B97F4A7C15 + part) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        value ^= value >> 31
    return value


def test_the_order_is_the_same_on_every_machine():
    ids, steps, seed, window = [i % 6 for i in range(12)], 4, 7, 5
    cards = sorted(range(12), key=lambda i: (mixed(ids[i], seed, 2 * window), ids[i]))
    seats = sorted(range(steps), key=lambda s: mixed(s, seed, 2 * window + 1))
    dealt = {step: [] for step in range(steps)}
    for number, card in enumerate(cards):
        dealt[seats[number % steps]].append(card)
    assert deal(np.array(ids), steps, seed=seed, window=window).tolist() == [c for s in range(steps) for c in dealt[s]]


@pytest.mark.parametrize(("steps", "keep"), [(1, 5), (7, 1), (50, 8), (200, 32)])
def test_no_step_gets_an_example_twice(steps, keep):
    rng = np.random.default_rng(0)
    # A few examples in nearly every step, as a proxy that comes back to them would choose.
    ids = np.stack([rng.choice(2 * keep, keep, replace=False) for _ in range(steps)])
    dealt = ids.reshape(-1)[deal(ids.reshape(-1), steps, seed=3, window=1)].reshape(steps, keep)
    assert all(len(set(step)) == keep for step in dealt.tolist())
    assert sorted(dealt.reshape(-1)) == sorted(ids.reshape(-1))


def test_every_example_may_come_at_any_time():
    steps, keep, draws = 8, 4, 2_000
    counts = np.zeros((steps * keep, steps))
    for seed in range(draws):
        place = deal(np.arange(steps * keep), steps, seed=seed, window=0).reshape(steps, keep)
        for step, ids in enumerate(place):
            counts[ids, step] += 1
    # Binomial: five standard deviations.
    expected = draws / steps
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected * (1 - 1 / steps))
    together = sum(
        len({0, 1} & set(ids)) == 2
        for seed in range(draws)
        for ids in deal(np.arange(steps * keep), steps, seed=seed, window=1).reshape(steps, keep).tolist()
    )
    chance = (keep - 1) / (steps * keep - 1)
    assert abs(together - draws * chance) < 5 * np.sqrt(draws * chance)


def test_ranks_share_the_steps(recorded, path, blobs):  # noqa: F811
    shuffled = recorded.shuffled(WINDOW)
    parts = [gp.Sequence.open(path, data=blobs, rank=r, world_size=2).shuffled(WINDOW) for r in range(2)]
    for step in range(STEPS):
        assert np.concatenate([part[step] for part in parts]).tolist() == shuffled[step].tolist()


def test_it_goes_on_in_the_middle_and_only_in_its_own_order(recorded):
    shuffled = recorded.shuffled(WINDOW)
    running = iter(shuffled)
    before = [next(running) for _ in range(4)]
    state = shuffled.state_dict()
    again = recorded.shuffled(WINDOW)
    again.load_state_dict(state)
    assert before + list(again) == [step.tolist() for step in map(shuffled.__getitem__, range(STEPS))]
    with pytest.raises(ConfigError, match="another sequence"):
        recorded.load_state_dict(state)


def test_columns_move_with_their_ids(path, blobs):  # noqa: F811
    with begin(path, blobs, columns=("score",)) as writer:
        for ids in picks():
            writer.append(torch.as_tensor(ids), {"score": torch.as_tensor(ids) * 0.5})
    shuffled = gp.Sequence.open(path, data=blobs).shuffled(WINDOW)
    assert (shuffled.column("score") == shuffled.ids * 0.5).all()


def test_a_growing_file_gives_a_window_as_soon_as_it_is_whole(path, blobs):  # noqa: F811
    with begin(path, blobs) as writer:
        add(writer, picks()[:WINDOW])
        followed = gp.Sequence.open(path, data=blobs, follow=True, timeout=60).shuffled(WINDOW)
        first = [followed[s].tolist() for s in range(WINDOW)]
        assert sorted(np.concatenate(first)) == sorted(picks()[:WINDOW].reshape(-1))
        waited = []

        def write_on() -> None:
            if not waited:
                waited.append(True)
                add(writer, picks()[WINDOW : 2 * WINDOW])

        followed.on_wait(write_on)
        followed[WINDOW]
        assert waited
        add(writer, picks()[2 * WINDOW :])
    whole = gp.Sequence.open(path, data=blobs).shuffled(WINDOW)
    assert list(followed) == list(whole)


def test_what_was_broken_off_is_shuffled_as_far_as_it_goes(path, blobs):  # noqa: F811
    writer = begin(path, blobs)
    add(writer, picks()[: WINDOW + 1])
    writer.flush()
    shuffled = gp.Sequence.open(f"{path}.partial", data=blobs, partial=True).shuffled(WINDOW)
    assert len(shuffled) == WINDOW + 1
    assert sorted(shuffled[WINDOW]) == sorted(picks()[WINDOW])


def test_the_default_window_is_one_pass_over_what_was_selected_from(path, blobs):  # noqa: F811
    with begin(path, blobs, config={"steps": STEPS, "num_train": WINDOW * KEEP + 1}) as writer:
        add(writer, picks())
    recorded = gp.Sequence.open(path, data=blobs)
    assert recorded.shuffled().digest == recorded.shuffled(WINDOW).digest


@pytest.mark.parametrize("window", [0, -1])
def test_windows_that_do_not_exist(recorded, window):
    with pytest.raises(ConfigError, match=f"window of {window} steps"):
        recorded.shuffled(window)


def test_a_replay_of_it_verifies_against_its_receipt(recorded, blobs, tmp_path):
    shuffled = recorded.shuffled(WINDOW)
    verify(shuffled)
    loader = torch.utils.data.DataLoader(WithIds(blobs), batch_sampler=shuffled)
    for _ in gp.receipt(loader, tmp_path / "receipt.arrow"):
        pass
    assert receipts.compare(shuffled, tmp_path / "receipt.arrow") == STEPS
    with pytest.raises(ReceiptMismatch):
        receipts.compare(recorded, tmp_path / "receipt.arrow")


def test_replay_trains_on_the_new_order(recorded, blobs):
    weights = []
    for sequence in (recorded, recorded.shuffled(WINDOW), recorded.shuffled(WINDOW)):
        model = make_mlp()
        gp.replay(model, blobs, sequence)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])


def test_it_says_how_it_was_made(recorded):
    shuffled = recorded.shuffled(WINDOW, seed=5)
    assert shuffled.header.config["shuffled"] == [{"window": WINDOW, "seed": 5}]
    assert [made["window"] for made in shuffled.shuffled(2).header.config["shuffled"]] == [WINDOW, 2]
    assert "shuffled" not in recorded.header.config


def test_columns_cannot_be_changed_by_whoever_looks_at_them(path, blobs):  # noqa: F811
    with begin(path, blobs, columns=("score",)) as writer:
        for ids in picks():
            writer.append(torch.as_tensor(ids), {"score": torch.as_tensor(ids) * 0.5})
    shuffled = gp.Sequence.open(path, data=blobs).shuffled(STEPS)
    with pytest.raises(ValueError, match="read-only"):
        shuffled.column("score")[:] = 0


@pytest.mark.parametrize("other", [{"window": STEPS}, {"seed": 1}, None])
def test_a_replay_is_continued_in_no_other_order(recorded, blobs, tmp_path, other):
    num_asked = []

    def checkpoints(stop):
        return gp.Checkpoints(tmp_path / "checkpoint", every=0, stop=stop)

    settings = {"window": WINDOW, "seed": 0}
    with pytest.raises(Interrupted), checkpoints(lambda: num_asked.append(1) or len(num_asked) > 2) as saved:
        gp.replay(make_mlp(), blobs, recorded.shuffled(**settings), checkpoints=saved)
    changed = recorded.shuffled(**(settings | other)) if other else recorded
    with pytest.raises(FingerprintMismatch, match="the sequence changed"), checkpoints(lambda: False) as saved:
        gp.replay(make_mlp(), blobs, changed, checkpoints=saved)
    models = [make_mlp(), make_mlp()]
    with checkpoints(lambda: False) as saved:
        gp.replay(models[0], blobs, recorded.shuffled(**settings), checkpoints=saved)
    gp.replay(models[1], blobs, recorded.shuffled(**settings))
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))


def test_waiting_for_the_first_window_can_be_stopped(path, blobs, tmp_path):  # noqa: F811
    with begin(path, blobs) as writer:
        add(writer, picks()[:1])
        followed = gp.Sequence.open(path, data=blobs, follow=True, timeout=60).shuffled(WINDOW)
        stopped = gp.Checkpoints(tmp_path / "checkpoint", stop=lambda: True)
        with pytest.raises(Interrupted), stopped as checkpoints:
            gp.replay(make_mlp(), blobs, followed, checkpoints=checkpoints)
        assert not followed.complete
        add(writer, picks()[1:])


def test_a_large_file_is_shuffled_window_by_window(recorded, path, blobs, monkeypatch):  # noqa: F811
    monkeypatch.setattr("goldiprox.lazy.EAGER_BYTES", 0)
    large = gp.Sequence.open(path, data=blobs)
    assert isinstance(large._table, LazyTable)
    assert list(large.shuffled(WINDOW)) == list(recorded.shuffled(WINDOW))


def test_integrations_keep_the_order(recorded, blobs, tmp_path):
    shuffled = recorded.shuffled(WINDOW)
    parts = [list(Slices(shuffled, rank, 2)) for rank in range(2)]
    assert [a + b for a, b in zip(*parts, strict=True)] == list(shuffled)
    replayed = Replayed(gp.WithIds(blobs), shuffled, KEEP, "")
    assert [int(replayed[p][0]) for p in range(STEPS * KEEP)] == shuffled.ids.tolist()
    files = gp.materialize(shuffled, blobs, tmp_path / "examples")
    assert np.concatenate([pq.read_table(f)["id"].to_numpy() for f in files]).tolist() == shuffled.ids.tolist()
