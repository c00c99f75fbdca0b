"""Large files: opened at once, checked part by part when they are read, in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import goldiprox as gp
from goldiprox import inspection, lazy
from goldiprox.bench.files import write_sequence
from goldiprox.bench.reading import step_ids
from goldiprox.buffered import GROWTH
from goldiprox.lazy import LazyTable, open_table
from goldiprox.messages import END

DATA = {"fingerprint": "sha256:0", "length": 1000}


@pytest.fixture
def late(monkeypatch):
    """Every file is treated as a large one."""
    monkeypatch.setattr(lazy, "EAGER_BYTES", 0)


def write(path, steps: list[list[int]], **settings):
    settings = {"data": DATA, "keep": 2, "flush_rows": 4, **settings}
    with gp.SequenceWriter(path, **settings) as writer:
        for number, ids in enumerate(steps):
            writer.append(torch.tensor(ids), {"score": torch.full((2,), float(number))})
    return path


STEPS = [[n, n + 100] for n in range(20)]


def test_a_large_file_gives_what_a_small_one_does(tmp_path, late):
    path = write(tmp_path / "a.arrow", STEPS, columns=("score",))
    opened = gp.Sequence.open(path)
    assert isinstance(opened._table, LazyTable)
    assert len(opened._table.parts) == 10
    assert list(opened) == STEPS
    assert [opened[step].tolist() for step in (13, 2, -1)] == [STEPS[13], STEPS[2], STEPS[-1]]
    assert opened.column("score").tolist() == [float(n) for n in range(20) for _ in range(2)]
    lazy.EAGER_BYTES = 2**24
    small = gp.Sequence.open(path)
    assert not isinstance(small._table, LazyTable)
    assert (small.digest, small.ids.tolist()) == (opened.digest, opened.ids.tolist())
    assert inspection.statistics(small) == inspection.statistics(opened)


def test_damage_is_found_when_its_part_is_read_and_nowhere_else(tmp_path, late):
    path = write(tmp_path / "a.arrow", STEPS)
    content = bytearray(path.read_bytes())
    first = gp.Sequence.open(path)._table.parts[4]._span
    content[first.starts["id"] + 1] ^= 1
    path.write_bytes(content)
    opened = gp.Sequence.open(path)
    assert opened[7].tolist() == STEPS[7]
    assert opened[10].tolist() == STEPS[10]
    for step in (8, 9, 8):
        with pytest.raises(gp.CorruptFile, match="checksum does not hold.*Rows 16 to 19 cannot be used.*partial=True"):
            opened[step]
    with pytest.raises(gp.CorruptFile, match="checksum"):
        _ = opened.digest
    with pytest.raises(gp.CorruptFile, match="checksum"):
        inspection.verify(opened)
    assert gp.Sequence.open(path, partial=True).ids.tolist() == sum(STEPS[:8], [])


def test_ids_beyond_the_data_are_found_when_their_part_is_read(tmp_path, late):
    path = write(tmp_path / "a.arrow", STEPS)
    content = path.read_bytes()
    assert content.count(b'"length": 1000') == 1
    from test_artifacts import rewrite_header

    rewrite_header(path, data={"fingerprint": "sha256:0", "length": 110})
    opened = gp.Sequence.open(path)
    assert opened[0].tolist() == STEPS[0]
    with pytest.raises(gp.CorruptFile, match="lists id 119, but its data set has 110 examples"):
        opened[19]


def test_a_part_of_another_file_is_found_when_it_is_read(tmp_path, late):
    one = write(tmp_path / "a.arrow", STEPS)
    other = write(tmp_path / "b.arrow", [[b, a] for a, b in STEPS])
    spans = [part._span for part in gp.Sequence.open(one)._table.parts]
    content = bytearray(one.read_bytes())
    content[spans[3].start : spans[3].end] = other.read_bytes()[spans[3].start : spans[3].end]
    one.write_bytes(content)
    opened = gp.Sequence.open(one)
    for step in (6, 7, 8, 9):  # its own rows, and those after it, which continue another seal
        with pytest.raises(gp.CorruptFile, match="checksum"):
            opened[step]
    assert opened[10].tolist() == STEPS[10]


def test_what_is_no_chain_of_parts_is_said_on_opening(tmp_path, late):
    path = write(tmp_path / "a.arrow", STEPS)
    content = path.read_bytes()
    spans = [part._span for part in gp.Sequence.open(path)._table.parts]
    path.write_bytes(content[: spans[3].start] + content[spans[4].start :])
    with pytest.raises(gp.CorruptFile, match="does not continue what lies before it"):
        gp.Sequence.open(path)
    path.write_bytes(content[:-8])
    with pytest.raises(gp.CorruptFile, match="the end mark is missing"):
        gp.Sequence.open(path)
    path.write_bytes(content + b"x")
    with pytest.raises(gp.CorruptFile, match="unexpected bytes"):
        gp.Sequence.open(path)


def test_record_batches_grow_with_the_file(tmp_path):
    path = tmp_path / "a.arrow"
    write_sequence(path, 2**21, keep=256, length=10**6)
    parts = open_table(path, kind="sequence").parts
    assert parts[0].num_rows == 8192
    assert parts[-2].num_rows > 0.9 * 2**21 / (GROWTH + 1)
    assert len(parts) < 120  # 256 of 8,192 otherwise
    assert path.stat().st_size <= 4.2 * 2**21


SCRIPT = """
import sys, time
import numpy as np
import goldiprox as gp
from goldiprox.bench.reading import megabytes, step_ids
gp.Sequence
start = time.perf_counter()
sequence = gp.Sequence.open(sys.argv[1])
opening = time.perf_counter() - start
before = megabytes("VmRSS")
keep, length = map(int, sys.argv[2:])
for step in np.random.default_rng(0).integers(len(sequence), size=2000):
    assert (sequence[step] == step_ids(step, keep, length)).all()
most, in_all = megabytes("VmHWM") - before, megabytes("VmHWM")
assert "torch" not in sys.modules
from goldiprox.inspection import statistics, verify
verify(sequence)
statistics(sequence)
print(opening, most, in_all, megabytes("VmHWM") - before)
"""


def read_elsewhere(path, keep, length):
    """What `SCRIPT` measures in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(path), str(keep), str(length)]
    return map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_ten_million_ids_are_read_at_random_in_bounded_memory(tmp_path):
    num_ids, keep, length = 10**7, 250, 3 * 10**6
    path = write_sequence(tmp_path / "large.arrow", num_ids, keep=keep, length=length)
    opened = gp.Sequence.open(path)
    assert isinstance(opened._table, LazyTable)
    assert len(opened) == num_ids // keep
    _, reading, in_all, counting = read_elsewhere(path, keep, length)
    assert reading < 20  # megabytes; the file has 40
    assert in_all < 150  # interpreter and imports included: some 80, and 300 with torch
    assert counting < 70  # all ids as int64 take 80
    figures = inspection.statistics(opened)
    counts = np.bincount(np.concatenate(list(opened.blocks())), minlength=length)
    assert figures.exact
    assert (figures.seen, figures.most_repeated) == (int((counts > 0).sum()), int(counts.max()))


CONTINUE = """
import sys
from goldiprox.bench.reading import megabytes
from goldiprox.sequence import SequenceWriter, digest_of
before = megabytes("VmRSS")
keep, length, steps = map(int, sys.argv[2:])
writer = SequenceWriter(sys.argv[1], data={"fingerprint": "sha256:0", "length": length}, keep=keep, resume_at=steps)
print(digest_of(writer.blocks_before()), megabytes("VmHWM") - before)
writer.__exit__(None, None, None)
"""


@pytest.mark.parametrize("steps", [40_000, 39_999])  # all that is there; and cut inside a part
def test_an_unfinished_file_is_continued_in_bounded_memory(tmp_path, steps):
    num_ids, keep, length = 10**7, 250, 3 * 10**6
    path = write_sequence(tmp_path / "large.arrow", num_ids, keep=keep, length=length)
    path.rename(tmp_path / "large.arrow.partial")
    with open(tmp_path / "large.arrow.partial", "r+b") as file:
        file.truncate(path.with_name("large.arrow.partial").stat().st_size - len(END))
    command = [sys.executable, "-c", CONTINUE, *map(str, (path, keep, length, steps))]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    digest, megabytes = ran.stdout.split()
    whole = gp.Sequence.open(path)
    assert len(whole) == steps
    assert whole.digest == digest
    assert all((whole[step] == step_ids(step, keep, length)).all() for step in (0, 17_000, steps - 1))
    assert float(megabytes) < 80  # Arrow itself takes 30; the file has 40, its ids as they were read before 120 more


def test_a_batch_sampler_of_ones_own_needs_no_torch(tmp_path):
    path = write(tmp_path / "a.arrow", STEPS)
    code = "import sys, goldiprox as gp; print(len(list(gp.Sequence.open(sys.argv[1]))), 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["20", "False"]


def test_statistics_of_more_examples_than_can_be_counted_are_estimated(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "MAX_COUNTED", 2**14)
    path = write_sequence(tmp_path / "a.arrow", 200_000, keep=100, length=10**6)
    figures = inspection.statistics(gp.Sequence.open(path))
    distinct = len(np.unique(gp.Sequence.open(path).ids))
    assert not figures.exact
    assert abs(figures.seen - distinct) < 0.05 * distinct


@pytest.mark.slow
def test_a_billion_ids(tmp_path):
    keep, length = 1000, 10**9
    path = write_sequence(tmp_path / "huge.arrow", 10**9, keep=keep, length=length)
    assert path.stat().st_size <= 4.2e9
    seconds, reading, in_all, _ = read_elsewhere(path, keep, length)
    assert seconds < 1  # 0.05 on a machine that does nothing else; `goldiprox bench files` reports it
    assert reading < 50
    assert in_all < 200
