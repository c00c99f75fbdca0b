"""What a model makes of the same candidates."""

import numpy as np
import torch

import goldiprox as gp
from goldiprox.snapshots import Snapshots, compared_ids, taken

CPU = torch.device("cpu")


def test_snapshots_are_the_reducible_losses_of_the_same_candidates(blobs, irreducible):
    model, ids = gp.build("mlp128", (2,), 4), torch.tensor([5, 3, 8, 1])
    watcher = Snapshots(lambda m: {"accuracy": 1.0}, blobs, ids, 2, irreducible, "fp32")
    assert watcher(model) == {"accuracy": 1.0}
    batch = next(gp.data.iterate(blobs, [ids], device=CPU))
    expected = torch.nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none") - irreducible[ids]
    np.testing.assert_allclose(watcher.taken[0], expected.detach().numpy(), atol=1e-6)
    assert taken(watcher)["reducible"].shape == (1, 4)
    assert taken(lambda m: {}) == {}


def test_the_same_candidates_in_every_run():
    train = np.arange(100, 200)
    ids = compared_ids(train, 8, 30)
    assert torch.equal(ids, compared_ids(train, 8, 30))
    assert len(ids.unique()) == len(ids) == 24  # whole batches
    assert np.isin(ids.numpy(), train).all()
    assert len(compared_ids(train, 8, 3)) == 8
