"""torchdata's stateful loader, which needs nothing from us: a sequence has the state that it asks for."""

import json

import pytest
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import goldiprox as gp
from conftest import make_irreducible, make_mlp
from goldiprox.receipts import compare
from test_sequence import STEPS, picks, write

# torchdata calls a function of torch that is going away.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
WORKERS = [0, 2]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "s.arrow")


def trained(model: nn.Module, batch: gp.Batch) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(batch.x), batch.y).backward()
    optimizer.step()


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("every", [1, 3])
def test_it_goes_on_in_the_middle_twice(path, blobs, num_workers, every):
    seen, state, model, straight = [], None, make_mlp(0), make_mlp(0)
    for stop in (7, 5, STEPS, STEPS):  # broken off twice; then the rest, then another pass
        loader = StatefulDataLoader(
            gp.WithIds(blobs),
            batch_sampler=gp.Sequence.open(path, data=blobs),
            num_workers=num_workers,
            snapshot_every_n_steps=every,
        )
        if state is not None:
            loader.load_state_dict(state)
        for count, batch in enumerate(loader, 1):
            trained(model, gp.Batch(*batch))
            seen.append(batch[0].tolist())
            if count == stop:
                state = loader.state_dict()
                break
        else:
            state = loader.state_dict()
    assert seen == [*picks().tolist(), *picks().tolist()]
    for ids in (*picks(), *picks()):
        rows = torch.from_numpy(ids)
        trained(straight, gp.Batch(rows, *blobs.gather(rows)))
    assert all(map(torch.equal, model.state_dict().values(), straight.state_dict().values()))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_ranks_go_on_with_their_slices(path, blobs, num_workers):
    halves = []
    for rank in range(2):
        seen, state = [], None
        for stop in (4, STEPS):
            sequence = gp.Sequence.open(path, data=blobs, rank=rank, world_size=2)
            loader = StatefulDataLoader(gp.WithIds(blobs), batch_sampler=sequence, num_workers=num_workers)
            if state is not None:
                loader.load_state_dict(state)
            for count, batch in enumerate(loader, 1):
                seen.append(batch[0].tolist())
                if count == stop:
                    state = loader.state_dict()
                    break
        halves.append(seen)
    assert [left + right for left, right in zip(*halves, strict=True)] == picks().tolist()


def test_a_receipt_of_it(path, blobs, tmp_path):
    sequence = gp.Sequence.open(path, data=blobs)
    for batch in gp.receipt(StatefulDataLoader(gp.WithIds(blobs), batch_sampler=sequence), tmp_path / "r.arrow"):
        trained(make_mlp(0), batch)
    assert compare(sequence, tmp_path / "r.arrow") == STEPS


def test_a_state_of_another_sequence_is_refused(path, blobs, tmp_path):
    loader = StatefulDataLoader(gp.WithIds(blobs), batch_sampler=gp.Sequence.open(path))
    next(iter(loader))
    other = gp.Sequence.open(write(tmp_path / "other.arrow", picks()[::-1]))
    resumed = StatefulDataLoader(gp.WithIds(blobs), batch_sampler=other)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(gp.ConfigError, match="belongs to another sequence"):
        next(iter(resumed))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_selection_goes_on_in_the_middle(blobs, num_workers):
    table = make_irreducible(blobs)

    def run(stops: list[int]) -> list[list[int]]:
        kept, states, model = [], None, make_mlp(0)
        for stop in stops:
            side = gp.CandidateSampler(table.ids, 80, steps=12)  # two epochs and a half
            loader = StatefulDataLoader(gp.WithIds(blobs), batch_sampler=side, num_workers=num_workers)
            select = gp.Selector(gp.reducible_loss, irreducible=table, keep=8, rule=gp.gumbel_top_k(1.0))
            if states is not None:
                loader.load_state_dict(states["loader"])
                select.load_state_dict(states["select"])
            for count, batch in enumerate(loader, 1):
                batch = select(model, batch)
                trained(model, batch)
                kept.append(batch.ids.tolist())
                if count == stop:
                    states = {"loader": loader.state_dict(), "select": select.state_dict()}
                    json.dumps(states["select"])
                    break
        return kept

    assert run([3, 4, 12]) == run([12])
