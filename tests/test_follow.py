import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import goldiprox as gp
from conftest import make_mlp
from goldiprox.artifacts import partial_path
from goldiprox.errors import ConfigError, CorruptFile, MissingFile, WriterGone
from goldiprox.follow import FollowedTable
from goldiprox.irreducible import describe
from test_artifacts import rewrite_header
from test_sequence import KEEP, STEPS, picks

LONG, SHORT = 300.0, 0.05


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.arrow"


def begin(path, blobs, *, resume_at=None, steps=STEPS, **options):
    config = {"steps": steps} if steps else {}
    options = {"flush_rows": 1, "config": config} | options  # every step at once
    return gp.SequenceWriter(path, data=describe(blobs), keep=KEEP, resume_at=resume_at, **options)


def add(writer, steps):
    for step in steps:
        writer.append(torch.as_tensor(step))


def die(writer):
    """Ends a writer as a crash does: without the end mark, and without its lock."""
    writer._file.table._file.close()


def test_steps_are_there_as_soon_as_they_are_written(path, blobs):
    with begin(path, blobs) as writer:
        add(writer, picks()[:3])
        followed = gp.Sequence.open(path, data=blobs, follow=True)
        running = iter(followed)
        assert [next(running) for _ in range(3)] == picks()[:3].tolist()
        assert len(followed) == STEPS
        assert not followed.complete
        add(writer, picks()[3:5])
        assert followed[4].tolist() == picks()[4].tolist()
        assert followed.state_dict() == {"step": 3}
        with pytest.raises(IndexError):
            followed[STEPS]
        add(writer, picks()[5:])
    assert [*running] == picks()[3:].tolist()
    assert followed.complete
    whole = gp.Sequence.open(path)
    assert followed.digest == whole.digest
    assert followed.state_dict() == {"step": 0, "digest": whole.digest}
    assert list(followed) == list(whole)


@pytest.mark.parametrize("steps", [STEPS, None])
def test_waits_for_a_writer_in_another_thread(path, blobs, steps):
    def write():
        with begin(path, blobs, steps=steps) as writer:
            for step in picks():
                add(writer, [step])
                time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        followed = gp.Sequence.open(path, data=blobs, follow=True, timeout=LONG)  # perhaps before the file is there
        loader = DataLoader(gp.WithIds(blobs), batch_sampler=followed)
        assert [batch.ids.tolist() for batch in loader] == picks().tolist()
        assert len(followed) == STEPS
    finally:
        thread.join()
    assert followed.digest == gp.Sequence.open(path).digest  # which has its name a moment after its end mark


def test_at_every_byte_of_its_growth_the_rows_are_right(path, blobs):
    with begin(path, blobs, flush_rows=24) as writer:
        add(writer, picks()[:7])
    content, ids = path.read_bytes(), picks()[:7].ravel().tolist()
    path.unlink()
    partial = partial_path(path)
    begins = next(n for n in range(len(content)) if _readable(partial, content[:n]))
    partial.write_bytes(content[:begins])
    table = FollowedTable(path, kind="sequence", timeout=SHORT)
    seen = set()
    for end in range(begins, len(content) + 1):
        partial.write_bytes(content[:end])  # truncated and written again: all that may happen to it
        table._has(None)
        assert table.column("id").tolist() == ids[: table.num_rows]
        assert table.complete == (end == len(content))
        seen.add(table.num_rows)
    assert seen == {0, 24, 48, 56}


def _readable(path, content):
    path.write_bytes(content)
    try:
        gp.Sequence.open(path, partial=True)
    except CorruptFile:
        return False
    return True


def test_a_dead_writer_is_noticed_and_a_resumed_one_is_followed(path, blobs):
    writer = begin(path, blobs)
    add(writer, picks()[:9])
    followed = gp.Sequence.open(path, follow=True, timeout=SHORT)
    running = iter(followed)
    for step in range(9):
        assert next(running) == picks()[step].tolist()
    die(writer)
    with pytest.raises(WriterGone, match="holds 9 steps and no end mark, and nobody has been writing"):
        followed[9]
    with begin(path, blobs, resume_at=4, flush_rows=3 * KEEP) as writer:  # cut back, and written in other pieces
        assert path.with_name("s.arrow.partial").stat().st_size < followed._table._position
        assert followed[8].tolist() == picks()[8].tolist()
        add(writer, picks()[4:])
    assert [followed[step].tolist() for step in range(STEPS)] == picks().tolist()
    assert followed.digest == gp.Sequence.open(path).digest


def test_a_writer_that_lives_is_waited_for_beyond_the_timeout(path, blobs):
    with begin(path, blobs) as writer:
        add(writer, picks()[:1])
        followed = gp.Sequence.open(path, follow=True, timeout=0)
        late = threading.Timer(0.5, add, [writer, picks()[1:2]])
        late.start()
        assert followed[1].tolist() == picks()[1].tolist()
        late.join()
        add(writer, picks()[2:])


@pytest.mark.parametrize("how", ["other rows", "other settings"])
def test_rows_that_change_after_they_were_given_are_an_error(path, blobs, how):
    writer = begin(path, blobs)
    add(writer, picks()[:6])
    followed = gp.Sequence.open(path, follow=True, timeout=SHORT)
    followed[5]
    die(writer)
    if how == "other settings":
        partial_path(path).unlink()
        with begin(path, blobs, steps=STEPS + 1) as writer:
            add(writer, picks())
        said = "begun anew while it was followed: config.steps"
    else:
        with begin(path, blobs, resume_at=3) as writer:
            add(writer, picks()[::-1][3:])
        said = "has changed in rows that were given already"
    with pytest.raises(CorruptFile, match=said):
        followed[6]


def test_a_new_run_under_the_same_name_does_not_distract(path, blobs):
    with begin(path, blobs) as writer:
        add(writer, picks()[:6])
        followed = gp.Sequence.open(path, follow=True, timeout=SHORT)
        add(writer, picks()[6:])
    with begin(path, blobs, steps=STEPS + 1, force=True):
        assert list(followed) == picks().tolist()
        assert followed.complete


def test_a_file_that_ends_before_what_it_promised(path, blobs):
    with begin(path, blobs) as writer:
        add(writer, picks()[:6])
        followed = gp.Sequence.open(path, follow=True)
    with pytest.raises(CorruptFile, match="promised 25 steps and holds 6"):
        list(followed)


def test_a_file_that_holds_more_than_it_promised(path, blobs):
    with begin(path, blobs, steps=1) as writer:  # found by fuzzing
        add(writer, picks()[:2])
        with pytest.raises(CorruptFile, match="promised 1 steps and holds 2"):
            list(gp.Sequence.open(path, follow=True, timeout=SHORT))


def test_nothing_to_follow(path, blobs):
    with pytest.raises(MissingFile, match="has appeared within 0.05 s; start `goldiprox select`"):
        gp.Sequence.open(path, follow=True, timeout=SHORT)
    with pytest.raises(ConfigError, match="choose one"):
        gp.Sequence.open(path, follow=True, partial=True)
    path.write_bytes(b"something else")
    with pytest.raises(CorruptFile, match="not a GoldiProx file"):
        gp.Sequence.open(path, follow=True, timeout=SHORT)


def test_a_finished_file_is_followed_to_its_end_at_once(path, blobs):
    with begin(path, blobs) as writer:
        add(writer, picks())
    for name in (path, partial_path(path)):
        followed = gp.Sequence.open(name, data=blobs, follow=True, timeout=SHORT)
        assert followed.complete
        assert list(followed) == picks().tolist()
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptFile, match="checksum"):
        list(gp.Sequence.open(path, follow=True, timeout=SHORT))


def test_hostile_promises_are_not_believed(path, blobs):
    writer = begin(path, blobs)
    add(writer, picks()[:2])
    die(writer)
    rewrite_header(partial_path(path), config={"keep": KEEP, "steps": 2**80})
    with pytest.raises(WriterGone):
        len(gp.Sequence.open(path, follow=True, timeout=SHORT))


def test_training_on_a_growing_file_ends_as_training_on_the_finished_one(path, blobs):
    def write():
        with begin(path, blobs) as writer:
            for step in picks():
                add(writer, [step])
                time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        models = [make_mlp(), make_mlp()]
        gp.replay(models[0], blobs, gp.Sequence.open(path, follow=True, timeout=LONG))
    finally:
        thread.join()
    gp.replay(models[1], blobs, gp.Sequence.open(path))
    for followed, replayed in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(followed, replayed)


WRITER = """
import sys, time
import numpy as np, torch, goldiprox as gp
path, ids, resume_at, stop_at = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
settings = {"keep": ids.shape[1], "config": {"steps": len(ids)}, "flush_rows": 1, "resume_at": resume_at or None}
with gp.SequenceWriter(path, data={"fingerprint": "x", "length": 400}, **settings) as writer:
    for step in range(resume_at, len(ids)):
        if step == stop_at:
            time.sleep(600)  # until it is killed
        writer.append(torch.as_tensor(ids[step]))
"""


def test_the_writer_is_killed_and_continued_while_it_is_followed(path, tmp_path):
    ids = picks(60)
    np.save(tmp_path / "ids.npy", ids)

    def start(resume_at, stop_at):
        arguments = [path, tmp_path / "ids.npy", str(resume_at), str(stop_at)]
        return subprocess.Popen([sys.executable, "-c", WRITER, *arguments])

    writer = start(0, stop_at=30)
    followed = gp.Sequence.open(path, follow=True, timeout=LONG)
    assert followed[20].tolist() == ids[20].tolist()
    writer.kill()
    writer.wait()
    writer = start(7, stop_at=-1)
    assert list(followed) == ids.tolist()
    assert writer.wait() == 0
    assert followed.digest == gp.Sequence.open(path).digest
