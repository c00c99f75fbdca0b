"""Several processes, started as torchrun starts them: gloo, on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch

import goldiprox as gp
import ranks_worker
from goldiprox.inspection import verify

WORKER = Path(__file__).parent / "ranks_worker.py"
CANDIDATES, KEEP, STEPS = ranks_worker.CANDIDATES, ranks_worker.KEEP, ranks_worker.STEPS


def start(world_size: int, *command: str, **environment: str) -> list[subprocess.Popen]:
    """The ranks of a command, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **shared, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def seen_by(world_size: int, scenario: str, folder: Path, **environment: str) -> list[dict]:
    """What every rank of a scenario wrote, once all have ended well."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = start(world_size, str(WORKER), scenario, str(folder), **environment)
    ended = [rank.communicate(timeout=300) for rank in ranks]
    for rank, (_, errors) in zip(ranks, ended, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads((folder / f"rank-{n}.json").read_text()) for n in range(world_size)]


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """What the ranks of a world saw, and the folder with their sequences; each world is started once."""

    @cache
    def of(world_size: int) -> tuple[list[dict], Path]:
        folder = tmp_path_factory.mktemp(f"world-{world_size}")
        return seen_by(world_size, "select_all", folder), folder

    return of


def test_a_process_that_ends_takes_its_pulse_along(tmp_path):
    assert seen_by(2, "ends_while_beating", tmp_path) == [{"ranks": 8}, {"ranks": 8}]


WORLDS = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_sequence_does_not_depend_on_the_number_of_ranks(selected, world_size):
    (alone,), _ = selected(1)
    together, folder = selected(world_size)
    assert set(alone["digests"]) == {*ranks_worker.RULES, "batch_norm", "uniform", "without a proxy"}
    assert alone["digests"]["without a proxy"] == alone["digests"]["uniform"]
    assert len(set(alone["digests"].values())) == 6
    for seen in together:
        assert seen["digests"] == alone["digests"]
        for rule in ranks_worker.RULES:  # to the last bit, although each rank came with other weights
            assert seen["weights"][rule] == alone["weights"][rule]
    sequence = gp.Sequence.open(folder / "top_k.arrow", data=ranks_worker.make_blobs())
    verify(sequence)
    assert sequence.digest == alone["digests"]["top_k"]


def test_one_rank_selects_what_a_plain_recording_does(selected, tmp_path):
    """Not promised to the last bit: a pass over all candidates may round otherwise than one over a piece."""
    (alone,), _ = selected(1)
    plain, _ = ranks_worker.recorded(tmp_path / "plain.arrow", rule=gp.top_k())
    assert plain.digest == alone["digests"]["top_k"]


@pytest.mark.parametrize("world_size", WORLDS)
def test_averaged_gradients_agree_as_far_as_sums_do(selected, world_size):
    (alone,), _ = selected(1)
    together, _ = selected(world_size)
    for seen in together:
        assert seen["weights"]["sharded"] == together[0]["weights"]["sharded"]
        ours, theirs = (torch.tensor(s["weights"]["sharded"]) for s in (seen, alone))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world_size", WORLDS)
def test_communication_is_what_the_page_says(selected, world_size):
    """docs/scale.md: 12 bytes for each of min(keep, candidates / ranks) rows, or of all where a rule needs all."""
    together, _ = selected(world_size)
    share = CANDIDATES // world_size
    for seen in together:
        assert seen["bytes"] == {
            "top_k": 12 * min(KEEP, share),
            "discounted_top_k": 12 * share,
            "floored": 12 * share,
            "gumbel_top_k": 12 * share,
            "mix": 12 * share,
            "local": 12 * KEEP / world_size,
        }


@pytest.mark.parametrize("world_size", WORLDS)
def test_local_selection_keeps_the_best_of_every_share(selected, world_size):
    """Another choice than the best of all, sooner or later."""
    (alone,), _ = selected(1)
    together, folder = selected(world_size)
    data, sampler = ranks_worker.make_blobs(), gp.CandidateSampler(range(400), CANDIDATES, steps=1)
    (candidates,) = sampler.batches()
    select = gp.Selector(keep=KEEP // world_size, irreducible=ranks_worker.make_irreducible(data))
    expected = []
    for ids in candidates.chunk(world_size):
        expected += select(ranks_worker.make_mlp(0), gp.Batch(ids, *data.gather(ids))).ids.tolist()
    assert sum((seen["in a loop"]["local"][0] for seen in together), []) == expected
    assert gp.Sequence.open(folder / "local.arrow")[0].tolist() == expected
    best = gp.Sequence.open(folder / "top_k.arrow")
    assert set(best[0]) == set(alone["in a loop"]["kept"][0])
    assert gp.Sequence.open(folder / "local.arrow").digest != best.digest
    assert len(gp.Sequence.open(folder / "local-uniform.arrow")) == STEPS


def test_local_selection_by_one_process_is_refused():
    with pytest.raises(gp.ConfigError, match="scope='local' is for several processes"):
        gp.Selector(keep=2, scope="local")


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_loop_of_ones_own_gets_slices_of_the_same_choice(selected, world_size):
    (alone,), _ = selected(1)
    together, _ = selected(world_size)
    for step, kept in enumerate(alone["in a loop"]["kept"]):
        assert sum((seen["in a loop"]["kept"][step] for seen in together), []) == kept
    for seen in together:
        assert seen["in a loop"]["scores"] == alone["in a loop"]["scores"]
    uneven = sum((seen["in a loop"]["uneven"] for seen in together), [])
    assert len(uneven) == len(set(uneven)) == KEEP


@pytest.mark.parametrize("world_size", WORLDS)
def test_irreducible_losses_are_those_of_one_process(selected, world_size):
    together, _ = selected(world_size)
    alone = ranks_worker.table(None)
    assert [seen["irreducible"] for seen in together] == [alone] * world_size


def test_recorded_columns_are_those_of_all_ranks(selected):
    (_, one), (_, two) = selected(1), selected(2)
    alone, together = (gp.Sequence.open(folder / "norm.arrow") for folder in (one, two))
    assert alone.column("loss").tolist() == together.column("loss").tolist()
    assert alone.column("score").tolist() == together.column("score").tolist()


def test_what_cannot_work_is_refused_on_every_rank(selected):
    together, folder = selected(2)
    for rank, messages in enumerate(seen["refusals"] for seen in together):
        assert "ranks [1] were started with other settings" in messages["seed"]
        assert "3 pieces cannot be divided among 2 ranks" in messages["pieces"]
        assert "80 candidates cannot be cut into 6 pieces" in messages["candidates"]
        assert "unknown update 'shared'" in messages["update"]
        assert "mode='train' changes BatchNorm's running statistics" in messages["mode"]
        whose = "ids 7: the model's loss" if rank == 1 else "scores of another rank are not finite at step 0"
        assert whose in messages["nan"]
        assert "ranks send one another tensors, and the batch holds str" in messages["text"]
    assert not list((folder / "refused").glob("*.arrow*"))


def test_a_group_needs_a_process_group():
    with pytest.raises(gp.ConfigError, match="init_process_group"):
        gp.Selector(keep=2, group=object())


def broken_off(folder: Path, how: str, *, world_size: int = 2, timeout: str = "60", **settings: str) -> list[dict]:
    """What the surviving ranks saw of a run whose last rank dies or hangs at step 12."""
    folder.mkdir()
    settings |= {"BREAKS": how, "BREAKS_AT": "12", "TIMEOUT": timeout}
    began = time.monotonic()
    *others, last = start(world_size, str(WORKER), "breaks", str(folder), **settings)
    for rank in others:
        rank.communicate(timeout=120)
        assert rank.returncode == 1
    assert time.monotonic() - began < 90  # starting included; from the failure on it is less than 60
    last.kill()
    last.communicate()
    return [json.loads((folder / f"rank-{n}.json").read_text()) for n in range(len(others))]


@pytest.mark.parametrize(("how", "timeout", "why"), [("dies", "60", "died"), ("hangs", "5", "hangs")])
def test_a_rank_that_dies_or_hangs_is_named_and_the_run_goes_on_later(selected, tmp_path, how, timeout, why):
    (alone,), undisturbed = selected(1)
    (saw,) = broken_off(tmp_path / "broken", how, timeout=timeout)
    assert saw["ranks"] == [1]
    assert f"rank 1 of 2 {why}" in saw["error"]
    assert "--resume" in saw["error"]
    assert saw["seconds"] < 60
    partial = gp.Sequence.open(tmp_path / "broken" / "sequence.arrow.partial", partial=True)
    whole = gp.Sequence.open(undisturbed / "discounted_top_k.arrow")
    assert len(partial) >= 12
    assert partial.ids.tolist() == whole.ids[: len(partial) * KEEP].tolist()
    world_size = 2 if how == "dies" else 1  # as many, and fewer
    for seen in seen_by(world_size, "breaks", tmp_path / "broken"):
        assert seen["digest"] == alone["digests"]["discounted_top_k"]
        assert seen["weights"] == alone["weights"]["discounted_top_k"]


def test_without_a_proxy_no_rank_completes_a_file_alone(selected, tmp_path):
    (alone,), _ = selected(1)
    (saw,) = broken_off(tmp_path / "broken", "dies", ALONE="1")
    assert saw["ranks"] == [1]
    assert not (tmp_path / "broken" / "sequence.arrow").exists()
    for seen in seen_by(2, "breaks", tmp_path / "broken", ALONE="1"):
        assert seen["digest"] == alone["digests"]["uniform"]
    assert gp.Sequence.open(tmp_path / "broken" / "sequence.arrow").digest == alone["digests"]["uniform"]


@pytest.mark.slow
def test_three_of_four_ranks_name_the_fourth_and_two_go_on(selected, tmp_path):
    (alone,), _ = selected(1)
    for saw in broken_off(tmp_path / "broken", "dies", world_size=4, timeout="20"):
        assert saw["ranks"] == [3]
    for seen in seen_by(2, "breaks", tmp_path / "broken"):
        assert seen["digest"] == alone["digests"]["discounted_top_k"]


@pytest.mark.parametrize("loop", ["record", "own"])
def test_a_rank_that_dies_while_gradients_are_averaged_is_named(tmp_path, loop):
    first, last = start(2, str(WORKER), "lost_in_training", str(tmp_path), LOOP=loop)
    for rank in (first, last):
        rank.communicate(timeout=120)
    assert (first.returncode, last.returncode) == (1, 9)
    saw = json.loads((tmp_path / "rank-0.json").read_text())
    assert saw["ranks"] == [1]
    assert "rank 1 of 2 died" in saw["error"]
    assert saw["seconds"] < 60


def replayed_alone(path: Path, folder: Path) -> torch.Tensor:
    """The weights that one process ends with; the sequence is put where ranks look for it."""
    model = ranks_worker.make_mlp(3)
    optimizer = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2)  # noqa: E731
    gp.replay(model, ranks_worker.make_blobs(), gp.Sequence.open(path), optimizer=optimizer)
    (folder / "sequence.arrow").write_bytes(path.read_bytes())
    return torch.tensor(ranks_worker.weights(model))


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_large_model_replays_on_several_ranks_as_on_one(selected, tmp_path, world_size):
    alone = replayed_alone(selected(1)[1] / "gumbel_top_k.arrow", tmp_path)
    for seen in seen_by(world_size, "train", tmp_path):
        for kind in ("ddp", "fsdp"):
            torch.testing.assert_close(torch.tensor(seen[kind]["weights"]), alone, rtol=1e-4, atol=1e-5)


def test_a_large_model_on_slices_saved_by_two_ranks_and_continued_by_one(selected, tmp_path):
    alone = replayed_alone(selected(1)[1] / "top_k.arrow", tmp_path)
    halfway = seen_by(2, "train", tmp_path, STOP="15")
    (end,) = seen_by(1, "train", tmp_path)
    for kind in ("ddp", "fsdp"):
        assert [seen[kind]["start"] for seen in (*halfway, end)] == [0, 0, 15]
        assert halfway[0][kind]["weights"] == halfway[1][kind]["weights"]
        torch.testing.assert_close(torch.tensor(end[kind]["weights"]), alone, rtol=1e-4, atol=1e-5)
        assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(kind)) == [kind]


def test_a_checkpoint_of_another_sequence_or_model_is_refused(tmp_path, blobs):
    def sequence(name: str, last: int) -> gp.Sequence:
        with gp.SequenceWriter(tmp_path / name, data=gp.describe(blobs), keep=2) as writer:
            for ids in ([1, 2], [3, last]):
                writer.append(torch.tensor(ids))
        return gp.Sequence.open(tmp_path / name)

    model, one, other = ranks_worker.make_mlp(0), sequence("a.arrow", 4), sequence("b.arrow", 5)
    optimizer = torch.optim.AdamW(model.parameters())
    assert gp.load_training(tmp_path / "none", model, optimizer, one) == 0
    gp.save_training(tmp_path / "saved", model, optimizer, one, step=2)
    assert gp.load_training(tmp_path / "saved", model, optimizer, one) == 2
    with pytest.raises(gp.ConfigError, match="belongs to another sequence: its first 2 steps differ"):
        gp.load_training(tmp_path / "saved", model, optimizer, other)
    larger = torch.nn.Linear(5, 5)
    with pytest.raises(gp.CorruptFile, match="no checkpoint of this model"):
        gp.load_training(tmp_path / "saved", larger, torch.optim.AdamW(larger.parameters()), one)


def test_the_command_line_under_torchrun(tmp_path):
    """Two ranks write the sequence that one writes; one of them speaks."""
    common = ["select", "--acquisition", "loss", "--epochs", "1", "--json", "--device", "cpu"]
    plain = ["-m", "goldiprox", *common, "--out"]
    digests = {}
    for world_size in (1, 2):
        ranks = start(world_size, *plain, str(tmp_path / f"{world_size}.arrow"))
        said = [rank.communicate(timeout=300) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size, said
        digests[world_size] = json.loads(said[0][0])["sequence"]["digest"]
        assert all(not output for output, _ in said[1:])
    assert digests[1] == digests[2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.arrow", "2.arrow"]
