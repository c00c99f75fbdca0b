import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import goldiprox as gp
from conftest import make_blobs, make_mlp
from goldiprox.artifacts import Header, TableWriter
from goldiprox.cli.files import _receipt_problem
from goldiprox.errors import ConfigError, CorruptFile, DataError, FingerprintMismatch, OutputExists, ReceiptMismatch
from goldiprox.irreducible import describe
from goldiprox.receipts import compare
from test_sequence import KEEP, STEPS, picks, write


@pytest.fixture
def sequence(tmp_path):
    return gp.Sequence.open(write(tmp_path / "s.arrow"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_on_the_sequence_is_proven(tmp_path, blobs, sequence, num_workers):
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=sequence, num_workers=num_workers)
    seen = []
    for batch in gp.receipt(loader, tmp_path / "r.arrow"):
        assert torch.equal(batch.y, blobs.y[batch.ids])
        seen.append(batch.ids.tolist())
    assert seen == picks().tolist()
    assert compare(sequence, tmp_path / "r.arrow") == STEPS


def test_verify_accepts_both_orders_that_are_nobodys_setting(tmp_path, blobs):
    recording = gp.record(make_mlp(), blobs, acquisition=gp.loss, candidates=20, keep=4, steps=40, out=tmp_path / "s")
    sequence = gp.Sequence.open(recording.path)
    orders = {"recorded": sequence, "default": sequence.shuffled(), "own": sequence.shuffled(3)}
    assert len({order.digest for order in orders.values()}) == 3
    for name, order in orders.items():
        list(gp.receipt(DataLoader(gp.WithIds(blobs), batch_sampler=order), tmp_path / name))
        problem = _receipt_problem(tmp_path / name, [sequence], window=0, seed=0)
        assert (problem is None) == (name != "own")
        assert problem is None or "give --window" in problem
    assert _receipt_problem(tmp_path / "own", [sequence], window=3, seed=0) is None
    assert "differ first" in str(_receipt_problem(tmp_path / "default", [sequence], window=1, seed=0))


def test_a_shuffled_loader_is_caught_at_its_first_differing_step(tmp_path, blobs, sequence):
    order = [*range(6), *reversed(range(6, STEPS))]
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=[sequence[step].tolist() for step in order])
    for _ in gp.receipt(loader, tmp_path / "r.arrow"):
        pass
    with pytest.raises(ReceiptMismatch, match="differ first at step 6: the run trained on ids") as caught:
        compare(sequence, tmp_path / "r.arrow")
    assert caught.value.step == 6
    first_of = [", ".join(map(str, picks()[step][:5])) for step in (STEPS - 1, 6)]
    assert all(ids in str(caught.value) for ids in first_of)


def test_other_batch_sizes_are_caught(tmp_path, blobs, sequence):
    ids = picks().ravel().tolist()
    batches = [ids[:KEEP], ids[KEEP : KEEP + 3], ids[KEEP + 3 : 2 * KEEP], *picks()[2:].tolist()]
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=batches)
    list(gp.receipt(loader, tmp_path / "r.arrow"))
    with pytest.raises(ReceiptMismatch) as caught:
        compare(sequence, tmp_path / "r.arrow")
    assert caught.value.step == 1


@pytest.mark.parametrize("how", ["break", "error"])
def test_a_run_that_stopped_early(tmp_path, blobs, sequence, how):
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=sequence)

    def train():
        for step, _ in enumerate(gp.receipt(loader, tmp_path / "r.arrow")):
            if step == 9:
                if how == "error":
                    raise ZeroDivisionError
                break

    if how == "error":
        with pytest.raises(ZeroDivisionError):
            train()
    else:
        train()
    with pytest.raises(ReceiptMismatch, match="holds 10 steps, the sequence 25; those that both have agree"):
        compare(sequence, tmp_path / "r.arrow")


def test_a_run_that_went_on(tmp_path, blobs, sequence):
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=[*sequence, [1, 2, 3]])
    list(gp.receipt(loader, tmp_path / "r.arrow"))
    with pytest.raises(ReceiptMismatch, match="holds 25 steps, the sequence 25"):
        compare(sequence, tmp_path / "r.arrow")


def test_what_cannot_be_compared(tmp_path, blobs, sequence):
    other = make_blobs(seed=1)
    list(gp.receipt(DataLoader(gp.WithIds(other), batch_sampler=sequence), tmp_path / "r.arrow"))
    with pytest.raises(FingerprintMismatch, match="other data"):
        compare(sequence, tmp_path / "r.arrow")
    header = Header(kind="receipt", data=describe(blobs), columns={"id": "uint16"})
    writer = TableWriter(tmp_path / "n.arrow", header)
    writer.append({"id": np.arange(3)})
    writer.close()
    with pytest.raises(CorruptFile, match="no step"):
        compare(sequence, writer.path)


def test_bad_use_is_refused_before_the_loop(tmp_path, blobs):
    with pytest.raises(ConfigError, match="give the base data set with data="):
        gp.receipt(iter([]), tmp_path / "r.arrow")
    (tmp_path / "r.arrow").write_text("")
    with pytest.raises(OutputExists):
        gp.receipt(DataLoader(gp.WithIds(blobs)), tmp_path / "r.arrow")
    plain = DataLoader(TensorDataset(blobs.x, blobs.y))
    with pytest.raises(DataError, match="a batch must carry ids"):
        next(gp.receipt(plain, tmp_path / "p.arrow"))
