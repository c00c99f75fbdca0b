import hashlib
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import goldiprox as gp
from conftest import make_blobs
from goldiprox.artifacts import TableWriter
from goldiprox.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    FingerprintMismatch,
    OutputNotWritable,
    UnsupportedFormat,
)
from goldiprox.inspection import statistics, verify
from goldiprox.irreducible import describe
from goldiprox.prepare import DataConfig, prepare
from test_artifacts import rewrite_header

STEPS, KEEP = 25, 8
DATA_10 = {"fingerprint": "sha256:0", "length": 10}


def picks(steps: int = STEPS, keep: int = KEEP) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.choice(400, keep, replace=False) for _ in range(steps)])


def write(path, ids=None, *, flush_rows=24, **options):
    ids = picks() if ids is None else ids
    options.setdefault("data", describe(make_blobs()))
    with gp.SequenceWriter(path, keep=ids.shape[1], flush_rows=flush_rows, **options) as writer:
        for step in ids:
            writer.append(torch.as_tensor(step))
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "s.arrow")


def test_roundtrip(path, blobs):
    sequence = gp.Sequence.open(path, data=blobs)
    assert len(sequence) == STEPS
    assert np.array_equal(sequence.ids.reshape(STEPS, KEEP), picks())
    assert list(sequence) == picks().tolist()
    assert sequence[3].tolist() == picks()[3].tolist()
    assert sequence[-1].tolist() == picks()[-1].tolist()
    with pytest.raises(IndexError):
        sequence[STEPS]


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 50))
def test_the_digest_does_not_depend_on_chunks(tmp_path_factory, steps, keep, flush_rows):
    ids = picks(steps, keep)
    path = write(tmp_path_factory.mktemp("s") / "s.arrow", ids, flush_rows=flush_rows)
    sequence = gp.Sequence.open(path)
    assert sequence.digest == f"sha256:{hashlib.sha256(ids.astype('<i8').tobytes()).hexdigest()}"
    assert list(sequence) == ids.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_takes_it_as_its_batch_sampler(path, blobs, num_workers):
    sequence = gp.Sequence.open(path, data=blobs)
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=sequence, num_workers=num_workers)
    assert len(loader) == STEPS
    for _ in range(2):  # a second pass starts at the beginning
        assert [batch.ids.tolist() for batch in loader] == picks().tolist()


def test_continues_in_the_middle(path):
    sequence = gp.Sequence.open(path)
    running = iter(sequence)
    for _ in range(7):
        next(running)
    state = sequence.state_dict()
    fresh = gp.Sequence.open(path)
    fresh.load_state_dict(state)
    assert list(fresh) == picks()[7:].tolist()
    assert list(fresh) == picks().tolist()
    fresh.load_state_dict({"step": STEPS})  # saved after the last step: the next pass
    assert list(fresh) == picks().tolist()
    with pytest.raises(ConfigError, match="step 26"):
        fresh.load_state_dict({"step": STEPS + 1})
    with pytest.raises(ConfigError, match="no position in a sequence: it holds nothing, and no step"):
        fresh.load_state_dict({})
    with pytest.raises(ConfigError, match="it holds epoch, and no step"):
        fresh.load_state_dict({"epoch": 1})
    with pytest.raises(ConfigError, match="another sequence"):
        fresh.load_state_dict({"step": 1, "digest": "sha256:0"})


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_every_step(path, world_size):
    ranks = [gp.Sequence.open(path, rank=r, world_size=world_size) for r in range(world_size)]
    assert all(s.batch_size == KEEP // world_size and s.drop_last for s in ranks)
    for step, slices in enumerate(zip(*ranks, strict=True)):
        assert sum(slices, []) == picks()[step].tolist()
    assert len({s.digest for s in ranks}) == 1


def test_impossible_ranks(path):
    with pytest.raises(ConfigError, match="8 examples per step cannot be divided among 3 ranks"):
        gp.Sequence.open(path, world_size=3)
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        gp.Sequence.open(path, rank=2, world_size=2)


def test_other_data(path):
    with pytest.raises(FingerprintMismatch, match="other data"):
        gp.Sequence.open(path, data=make_blobs(seed=1))


def test_every_prefix_and_a_flipped_bit(path, tmp_path):
    content, expected = path.read_bytes(), picks().tolist()
    damaged = tmp_path / "d.arrow"
    for end in range(0, len(content), 7):
        damaged.write_bytes(content[:end])
        with pytest.raises(CorruptFile):
            gp.Sequence.open(damaged)
        try:
            steps = list(gp.Sequence.open(damaged, partial=True))
        except CorruptFile:
            continue
        assert steps == expected[: len(steps)]
    middle = len(content) // 2
    damaged.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
    with pytest.raises(CorruptFile, match=r"truncated or damaged.*intact"):
        gp.Sequence.open(damaged)


def test_another_format_version(path):
    rewrite_header(path, format=2)
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        gp.Sequence.open(path)


def test_ids_outside_the_data_set(tmp_path):
    path = write(tmp_path / "s.arrow", np.array([[1, 299], [2, 300]]))
    rewrite_header(path, data={"fingerprint": "sha256:0", "length": 300})
    with pytest.raises(CorruptFile, match="lists id 300"):
        gp.Sequence.open(path)


@pytest.mark.parametrize("changes", [{"config": {}}, {"config": {"keep": 0}}, {"config": {"keep": "x"}}, {"data": {}}])
def test_headers_that_make_no_sense(path, changes):
    rewrite_header(path, **changes)
    with pytest.raises(CorruptFile, match="header"):
        gp.Sequence.open(path)


def test_an_error_keeps_the_steps_so_far(tmp_path):
    path = tmp_path / "s.arrow"
    with pytest.raises(ZeroDivisionError), gp.SequenceWriter(path, data=describe(make_blobs()), keep=KEEP) as writer:
        for step in picks()[:5]:
            writer.append(torch.as_tensor(step))
        1 / 0  # noqa: B018
    assert not path.exists()
    rescued = gp.Sequence.open(tmp_path / "s.arrow.partial", partial=True)
    assert list(rescued) == picks()[:5].tolist()
    assert not rescued.complete


def test_every_step_has_the_same_size(tmp_path):
    with pytest.raises(ConfigError, match="step 0 has 3 ids; every step of a sequence has 8"):
        write_three(tmp_path / "s.arrow")


def write_three(path):
    with gp.SequenceWriter(path, data=describe(make_blobs()), keep=8) as writer:
        writer.append(torch.tensor([1, 2, 3]))


def test_further_columns(tmp_path):
    path = tmp_path / "s.arrow"
    with gp.SequenceWriter(path, data=describe(make_blobs()), keep=2, columns=("score", "loss")) as writer:
        for step in range(3):
            values = {"score": torch.tensor([step, -step]), "loss": torch.tensor([0.5, 0.25])}
            writer.append(torch.tensor([step, step + 10]), values)
    sequence = gp.Sequence.open(path)
    assert sequence.column("score").tolist() == [0, 0, 1, -1, 2, -2]
    assert sequence.column("loss").tolist() == [0.5, 0.25] * 3
    with pytest.raises(ConfigError, match="no column 'irreducible', only id, score, loss"):
        sequence.column("irreducible")
    with pytest.raises(ConfigError, match="cannot record magic"):
        gp.SequenceWriter(tmp_path / "t.arrow", data=describe(make_blobs()), keep=2, columns=("magic",))
    assert not list(tmp_path.glob("t.arrow*"))


def test_statistics(tmp_path):
    path = write(tmp_path / "s.arrow", np.array([[0, 1], [0, 4], [0, 8]]), config={"num_train": 100})
    found = statistics(gp.Sequence.open(path))
    assert (found.steps, found.keep, found.seen, found.most_repeated) == (3, 2, 4, 3)
    assert found.coverage == pytest.approx(0.04)
    assert found.mean_repeats == pytest.approx(1.5)


def test_verify_finds_an_example_twice_in_a_step(tmp_path, path):
    verify(gp.Sequence.open(path))
    bad = write(tmp_path / "b.arrow", np.array([[0, 1], [2, 2]]))
    with pytest.raises(CorruptFile, match="1 steps train on an example twice: steps 1"):
        verify(gp.Sequence.open(bad))
    short = write(tmp_path / "c.arrow", config={"steps": 99})
    with pytest.raises(CorruptFile, match="promises 99 steps, the file holds 25"):
        verify(gp.Sequence.open(short))


def test_a_peek_loses_nothing(path, blobs):
    sequence = gp.Sequence.open(path)
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=sequence)
    next(iter(loader))
    assert [batch.ids.tolist() for batch in loader] == picks().tolist()


def test_ids_outside_the_data_set_are_never_written(tmp_path):
    for bad in (400, -1):
        with pytest.raises(DataError, match=f"ids {bad} are outside"):
            write(tmp_path / "s.arrow", np.array([[1, bad]]))
    assert list(tmp_path.iterdir()) == []


def append_all(path, ids, **options):
    options = {"data": describe(make_blobs()), "keep": KEEP, "flush_rows": 24} | options
    with gp.SequenceWriter(path, **options) as writer:
        for step in ids:
            writer.append(torch.as_tensor(step))


@pytest.mark.parametrize("step", [0, 1, 3, 7, 9])
def test_an_unfinished_sequence_is_continued_at_any_step(tmp_path, step, path):
    again = tmp_path / "t.arrow"
    with pytest.raises(KeyboardInterrupt):
        append_all(again, interrupted(picks()[:9]))
    append_all(again, picks()[step:], resume_at=step)
    assert gp.Sequence.open(again).digest == gp.Sequence.open(path).digest
    assert list(gp.Sequence.open(again)) == picks().tolist()


def interrupted(steps):
    yield from steps
    raise KeyboardInterrupt


def test_continuing_with_other_settings_is_refused(tmp_path):
    path = tmp_path / "s.arrow"
    with pytest.raises(KeyboardInterrupt):
        append_all(path, interrupted(picks()[:9]), config={"seed": 0})
    with pytest.raises(ConfigError, match="config.seed 0 there, 1 here"):
        append_all(path, [], config={"seed": 1}, resume_at=3)
    with pytest.raises(ConfigError, match="data.fingerprint"):
        append_all(path, [], config={"seed": 0}, data=describe(make_blobs(seed=1)), resume_at=3)
    with pytest.raises(CorruptFile, match="72 intact rows, and is to be continued after 80"):
        append_all(path, [], config={"seed": 0}, resume_at=10)


def test_steps_reach_the_disk_by_time_too(tmp_path):
    path = tmp_path / "s.arrow"
    with gp.SequenceWriter(path, data=describe(make_blobs()), keep=KEEP, flush_seconds=0) as writer:
        writer.append(torch.as_tensor(picks()[0]))
        assert len(gp.Sequence.open(f"{path}.partial", partial=True)) == 1
        writer._file.flush_seconds = 1e9
        writer.append(torch.as_tensor(picks()[1]))
        assert len(gp.Sequence.open(f"{path}.partial", partial=True)) == 1


def test_what_ended_the_loop_is_what_is_reported(tmp_path, monkeypatch):
    def full(*_):
        raise OutputNotWritable("the disk is full")

    monkeypatch.setattr(TableWriter, "append", full)
    writing = gp.SequenceWriter(tmp_path / "s.arrow", data=DATA_10, keep=1)
    with pytest.raises(ZeroDivisionError), writing as writer:
        writer.append(torch.tensor([9]))
        1 / 0  # noqa: B018
    writing = gp.SequenceWriter(tmp_path / "s.arrow", data=DATA_10, keep=1)
    with pytest.raises(OutputNotWritable), writing as writer:
        writer.append(torch.tensor([9]))


def test_sizes_in_a_header_allocate_nothing(path):
    rewrite_header(path, data={"fingerprint": "sha256:0", "length": 2**62}, config={"keep": KEEP, "num_train": "many"})
    sequence = gp.Sequence.open(path)
    assert statistics(sequence).coverage < 1e-9
    rewrite_header(path, data={"fingerprint": "sha256:0", "length": 2**62}, config={"keep": 2**62})
    with pytest.raises(CorruptFile, match="not a multiple"):
        gp.Sequence.open(path)


def test_what_was_damaged_on_purpose_is_named_with_the_way_to_the_same(tmp_path):
    settings = DataConfig(noise=0.1, holdout=0.2)
    damaged, config = prepare(settings).data, {"data": settings.recorded()}
    table = gp.IrreducibleLosses(torch.rand(len(damaged)), data=describe(damaged), config=config)
    table.save(tmp_path / "i.arrow")
    write(tmp_path / "s.arrow", data=describe(damaged), config=config)
    for kind, name in ((gp.IrreducibleLosses, "i.arrow"), (gp.Sequence, "s.arrow")):
        with pytest.raises(FingerprintMismatch, match=r"damaged on purpose \(noise 0.1\)") as found:
            kind.open(tmp_path / name, gp.load("mnist5k").train)
        way = re.search(r"prepare\(DataConfig\(.*?\)\)\.data", str(found.value))
        assert way
        kind.open(tmp_path / name, eval(way[0], {"prepare": prepare, "DataConfig": DataConfig}))


def test_a_sequence_in_a_line(path):
    assert repr(gp.Sequence.open(path)) == f"<Sequence {path}: {STEPS} steps of {KEEP} ids, of 400 examples>"
    assert "rank 1 of 2>" in repr(gp.Sequence.open(path, rank=1, world_size=2))
