import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.errors import ConfigError, MissingIrreducible, ModelMismatch, NonFiniteError


class TestSelector:
    def test_keeps_the_highest_reducible_losses(self, blobs, irreducible):
        model = make_mlp()
        select = gp.Selector(gp.reducible_loss, irreducible=irreducible, keep=8)
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        kept = select(model, batch)
        model.eval()
        losses = nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none") - irreducible[batch.ids]
        assert kept.ids.tolist() == batch.ids[losses.topk(8).indices].tolist()
        assert torch.equal(kept.x, blobs.x[kept.ids])
        assert torch.equal(kept.y, blobs.y[kept.ids])
        torch.testing.assert_close(select.chosen["score"], losses.topk(8).values.detach())
        assert set(select.chosen) == {"score", "loss", "irreducible"}

    def test_counts_steps_and_continues(self, blobs):
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        model = make_mlp()
        one = gp.Selector(gp.uniform, keep=8)
        first, second = one(model, batch), one(model, batch)
        assert first.ids.tolist() != second.ids.tolist()
        resumed = gp.Selector(gp.uniform, keep=8)
        resumed.load_state_dict({"step": 1, "seed": 0})
        assert resumed(model, batch).ids.tolist() == second.ids.tolist()
        assert resumed.state_dict() == one.state_dict() == {"step": 2, "seed": 0}

    def test_leaves_model_and_generators_alone(self, blobs, irreducible, global_state):
        model = make_mlp(dropout=0.3)
        gp.Selector(keep=8, irreducible=irreducible)(
            model, next(iter(gp.data.iterate(blobs, [range(64)], device="cpu")))
        )
        assert model.training
        assert global_state()

    def test_an_acquisition_of_the_users_own(self, blobs):
        def margin(c: gp.Candidates):
            top = c.logits.softmax(-1).topk(2).values
            return top[:, 1] - top[:, 0]

        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        assert gp.Selector(margin, keep=4)(make_mlp(), batch).num_examples == 4

    def test_scores_of_a_wrong_shape(self, blobs):
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        with pytest.raises(ConfigError, match=r"shape \(64,\); it gave \(64, 4\)"):
            gp.Selector(lambda c: c.logits, keep=4)(make_mlp(), batch)

    def test_keep_more_than_candidates(self, blobs, irreducible):
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=16)))
        with pytest.raises(ConfigError, match="cannot keep 32 of 16 candidates"):
            gp.Selector(keep=32, irreducible=irreducible)(make_mlp(), batch)
        with pytest.raises(ConfigError, match="at least one"):
            gp.Selector(keep=0)

    def test_a_holdout_example_among_the_candidates_is_named(self, blobs):
        irreducible = make_irreducible(blobs, np.arange(10, 400))
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        with pytest.raises(
            MissingIrreducible, match=r"10 candidates of step 0 .*ids 0, 1, 2, 3, 4, .*holdout examples"
        ):
            gp.Selector(keep=4, irreducible=irreducible)(make_mlp(), batch)

    def test_a_table_that_is_too_short(self, blobs):
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        with pytest.raises(MissingIrreducible, match="no irreducible loss"):
            gp.Selector(keep=4, irreducible=make_irreducible(make_blobs(50)))(make_mlp(), batch)

    def test_a_diverged_model_is_named(self, blobs):
        model = make_mlp()
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))
        batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
        with pytest.raises(NonFiniteError, match="64 scores are not finite at step 0.*diverged"):
            gp.Selector(gp.loss, keep=4)(model, batch)


class TestCandidateSampler:
    @given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 3))
    def test_no_example_twice_within_an_epoch_and_never_a_short_batch(self, length, candidates, seed):
        candidates = min(candidates, length)
        ids = np.arange(length) * 5
        per_epoch = length // candidates
        sampler = gp.CandidateSampler(ids, candidates, seed=seed, steps=3 * per_epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler) == 3 * per_epoch
        for epoch in range(3):
            seen = np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
            assert len(seen) == per_epoch * candidates == len(set(seen))
            assert set(seen) <= set(ids)

    def test_epochs_differ_and_can_be_entered_anywhere(self):
        sampler = gp.CandidateSampler(range(100), 10, seed=1, steps=35)
        batches = list(sampler)
        assert batches[:10] != batches[10:20]
        assert [b.tolist() for b in sampler.batches(start=23)] == batches[23:]

    @given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 70), st.integers(1, 200))
    def test_windows_of_any_size_hold_the_same_however_much_is_computed_at_once(self, length, candidates, size, much):
        candidates = min(candidates, length)
        steps = 5 * (length // candidates) // 2 + 1
        whole = torch.stack(list(gp.CandidateSampler(range(length), candidates, steps=steps).batches()))

        class Other(gp.CandidateSampler):
            AT_ONCE = much

        sampler, windows = Other(torch.arange(length), candidates, steps=steps), []
        while (first := sum(map(len, windows))) < steps:
            windows.append(sampler.window(first, size, torch.device("cpu")))
            assert 0 < len(windows[-1]) <= size
        assert torch.equal(torch.cat(windows), whole)
        assert len(sampler.window(steps, size, torch.device("cpu"))) == 0

    def test_ids_may_be_any(self):
        whole = torch.stack(list(gp.CandidateSampler(range(30), 7, steps=12).batches()))
        ids = np.random.default_rng(0).permutation(1_000)[:30]
        for side, expected in ((ids, torch.from_numpy(ids)[whole]), (range(5, 95, 3), 5 + 3 * whole)):
            assert torch.equal(torch.stack(list(gp.CandidateSampler(side, 7, steps=12).batches())), expected)

    @pytest.mark.parametrize("power", [4, 5, 6, 7, 8])
    def test_memory_and_computations_do_not_grow_with_the_data(self, power):
        class Watching(TorchDispatchMode):
            largest = number = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                made = func(*args, **(kwargs or {}))
                if isinstance(made, torch.Tensor):
                    self.largest, self.number = max(self.largest, made.numel()), self.number + 1
                return made

        sampler = gp.CandidateSampler(range(10**power), 320, steps=10**8)
        with Watching() as watched:
            sampler.window(10**power // 640, 64, torch.device("cpu"))
        assert watched.largest <= 1.3 * sampler.AT_ONCE
        assert watched.number < 200

    def test_works_as_a_batch_sampler(self, blobs):
        loader = DataLoader(gp.WithIds(blobs), batch_sampler=gp.CandidateSampler(range(400), 50, steps=3))
        assert [b.ids.tolist() for b in loader] == list(gp.CandidateSampler(range(400), 50, steps=3))

    def test_more_candidates_than_examples(self):
        with pytest.raises(ConfigError, match="training side has only 100"):
            gp.CandidateSampler(range(100), 101, steps=1)
        with pytest.raises(ConfigError, match="at least 1"):
            gp.CandidateSampler(range(100), 10, steps=0)


def test_golden_candidates_and_picks():
    """The very numbers: a refactoring that changes them changes every sequence ever recorded."""
    sampler = gp.CandidateSampler(range(1_000), 8, seed=0, steps=1)
    blobs = make_blobs(1_000)
    batch = next(iter(gp.data.iterate(blobs, sampler, device="cpu")))
    irreducible = make_irreducible(blobs)
    picks = {
        name: gp.Selector(acquisition, keep=3, irreducible=irreducible, rule=rule)(make_mlp(), batch).ids.tolist()
        for name, acquisition, rule in (
            ("uniform", gp.uniform, None),
            ("irreducible_loss", gp.irreducible_loss, None),
            ("gumbel", gp.irreducible_loss, gp.gumbel_top_k(1.0)),
            ("mix", gp.irreducible_loss, gp.mix(0.5)),
        )
    }
    assert batch.ids.tolist() == GOLDEN_CANDIDATES
    assert picks == GOLDEN_PICKS


GOLDEN_CANDIDATES = [498, 429, 946, 231, 457, 228, 559, 328]
GOLDEN_PICKS = {
    "uniform": [231, 946, 328],
    "irreducible_loss": [946, 457, 498],
    "gumbel": [498, 328, 946],
    "mix": [946, 559, 498],
}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"forward": lambda model, x: model(x, 1)}, "does not accept the inputs"),
        ({"forward": lambda model, x: {"logits": model(x)}}, "one row of logits"),
        ({"loss": nn.functional.cross_entropy}, "one value per example"),
    ],
)
def test_a_first_batch_that_does_not_fit_is_explained(settings, said):
    batch = next(iter(DataLoader(gp.WithIds(make_blobs()), batch_size=40)))
    select = gp.Selector(irreducible=make_irreducible(make_blobs()), keep=8, **settings)
    with pytest.raises(ModelMismatch, match=said):
        select(make_mlp(), batch)


def test_errors_of_a_users_own_scores_stay_what_they_are():
    def broken(c):
        raise ValueError("mine")

    batch = next(iter(DataLoader(gp.WithIds(make_blobs()), batch_size=40)))
    with pytest.raises(ValueError, match="mine"):
        gp.Selector(broken, keep=8)(make_mlp(), batch)
