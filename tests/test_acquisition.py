import pytest
import torch
from torch import nn

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.acquisition import ACQUISITIONS, NEEDS_TABLE, ORDERED_SGD_STAGES, consistent_dropout, scoring
from goldiprox.errors import ConfigError, MissingIrreducible, ModelMismatch, UnknownName

IDS = torch.arange(5, 105)


def candidates(model=None, *, keep=10, **options) -> gp.Candidates:
    blobs = make_blobs()
    options.setdefault("irreducible", make_irreducible(blobs))
    batch = gp.Batch(IDS, *blobs.gather(IDS))
    return gp.Candidates(model or make_mlp(dropout=0.5), batch, keep=keep, **options)


class Counting(nn.Module):
    """A model that counts its forward passes."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


FORWARD_PASSES = {"uniform": 0, "irreducible_loss": 0, "predictability": 0, "bald": 10}


@pytest.mark.parametrize("name", ACQUISITIONS)
class TestContract:
    """What holds for every acquisition."""

    def test_one_finite_float_per_candidate(self, name):
        scores = ACQUISITIONS[name](candidates())
        assert scores.shape == (100,)
        assert scores.is_floating_point()
        assert scores.isfinite().all()
        assert not scores.requires_grad

    def test_is_pure_and_repeatable(self, name, global_state):
        model = nn.Sequential(make_mlp(dropout=0.5), nn.BatchNorm1d(4))
        before = {k: v.clone() for k, v in model.state_dict().items()}
        model.eval()
        first, second = (ACQUISITIONS[name](candidates(model)) for _ in range(2))
        if name in ("uniform", "irreducible_loss", "bald"):  # the others see fresh dropout, as in training
            assert torch.equal(first, second)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert not any(m.training for m in model.modules())
        assert all(p.grad is None for p in model.parameters())
        assert global_state()

    def test_pays_only_for_what_it_uses(self, name):
        model = Counting(make_mlp(dropout=0.5))
        ACQUISITIONS[name](candidates(model))
        assert model.calls == FORWARD_PASSES.get(name, 1)

    def test_needs_a_table_or_does_without(self, name):
        if name in NEEDS_TABLE:
            with pytest.raises(MissingIrreducible):
                ACQUISITIONS[name](candidates(irreducible=None))
        else:
            assert len(ACQUISITIONS[name](candidates(irreducible=None))) == 100


def reference():
    """Everything by hand, in evaluation mode."""
    model = make_mlp()
    c = candidates(model, mode="eval")
    model.eval()
    with torch.no_grad():
        logits = model(c.x)
    return c, logits, nn.functional.cross_entropy(logits, c.y, reduction="none")


def test_reducible_loss_is_loss_minus_irreducible_loss():
    c, _, losses = reference()
    expected = [losses[row].item() - (int(i) * 0.37) % 1.0 for row, i in enumerate(c.ids)]
    torch.testing.assert_close(gp.reducible_loss(c), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_probability_gain_is_a_difference_of_probabilities():
    c, logits, _ = reference()
    probability = logits.softmax(-1)[torch.arange(len(c)), c.y]
    torch.testing.assert_close(gp.probability_gain(c), (-((c.ids.float() * 0.37) % 1.0)).exp() - probability)


def test_loss_and_irreducible_loss():
    c, _, losses = reference()
    torch.testing.assert_close(gp.loss(c), losses)
    torch.testing.assert_close(gp.irreducible_loss(c), -((c.ids.float() * 0.37) % 1.0))
    torch.testing.assert_close(gp.predictability(c), (-((c.ids.float() * 0.37) % 1.0)).exp())


def test_entropy():
    c, logits, _ = reference()
    torch.testing.assert_close(gp.entropy(c), torch.distributions.Categorical(logits=logits).entropy())


def test_gradient_norm_is_that_of_softmax_minus_one_hot():
    c, logits, _ = reference()
    by_hand = (logits.softmax(1) - nn.functional.one_hot(c.y, 4)).norm(dim=1)
    torch.testing.assert_close(gp.gradient_norm(c), by_hand)


def test_gradient_norm_bounds_the_last_layers_gradient():
    """Up to the norm of the layer's input, it is the gradient's norm exactly for that layer."""
    model = make_mlp()
    c = candidates(model, mode="eval")
    scores = gp.gradient_norm(c)
    model.eval()
    for row in range(5):
        model.zero_grad()
        nn.functional.cross_entropy(model(c.x[row : row + 1]), c.y[row : row + 1]).backward()
        assert model[3].bias.grad.norm().item() == pytest.approx(scores[row].item(), rel=1e-4)


def test_bald_is_the_mutual_information_of_the_samples():
    c = candidates(make_mlp(dropout=0.5))
    p = c.mc_log_probs(10).exp().double()
    mean = p.mean(0)
    by_hand = -(mean * mean.log()).sum(-1) + (p * p.log()).sum(-1).mean(0)
    torch.testing.assert_close(gp.bald(c).double(), by_hand, atol=1e-5, rtol=1e-4)
    assert gp.bald(c).min() > -1e-6


def test_dropout_masks_are_the_same_for_all_candidates_and_new_at_every_step():
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    x = torch.ones(6, 40)
    batch = gp.Batch(torch.arange(6), x, torch.zeros(6, dtype=torch.int64))

    def masks(step):
        c = gp.Candidates(model, batch, keep=2, step=step)
        return c.mc_log_probs(3) > c.mc_log_probs(3).mean()

    first, second = masks(0), masks(1)
    assert (first == first[:, :1]).all()  # equal over candidates
    assert not torch.equal(first[0], first[1])  # different over samples
    assert not torch.equal(first, second)  # and over steps
    spatial = nn.Dropout2d(0.5)
    with consistent_dropout(spatial, 0):
        out = spatial(torch.ones(4, 30, 5, 5))
    assert (out == out[:1, :, :1, :1]).all()
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_bald_needs_dropout():
    with pytest.raises(ConfigError, match="needs a model with dropout layers"):
        gp.bald(candidates(nn.Linear(2, 4)))


def test_uniform_depends_on_id_step_and_seed_only():
    a = gp.uniform(candidates())
    assert torch.equal(a, gp.uniform(candidates(make_mlp(5))))
    assert not torch.equal(a, gp.uniform(candidates(step=1)))
    assert not torch.equal(a, gp.uniform(candidates(seed=1)))


@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.9, 0.95, 1.0])
def test_ordered_loss_raises_the_pressure_with_accuracy(accuracy):
    n, keep = 400, 20
    y = torch.zeros(n, dtype=torch.int64)
    logits = torch.stack([torch.linspace(1, 3, n), torch.zeros(n)], 1)
    logits[: round((1 - accuracy) * n)] *= -1
    batch = gp.Batch(torch.arange(n), logits, y)
    c = gp.Candidates(nn.Identity(), batch, keep=keep)
    scores = gp.ordered_loss(c)
    factor = max([1, *(f for threshold, f in ORDERED_SGD_STAGES if accuracy >= threshold)])
    pool = (scores == c.loss).nonzero().flatten()
    assert len(pool) == min(n, factor * keep)
    chosen = gp.top_k()(scores, c.ids, keep, 0)
    by_hand = pool[c.loss[pool].argsort(descending=True, stable=True)[:keep]]
    assert set(chosen.tolist()) == set(by_hand.tolist())


class TestScoringModes:
    def model(self):
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))

    def test_frozen_stats_score_as_training_does_but_leave_the_statistics(self):
        model = self.model()
        model[2].p = 0.0
        x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
        before = model[1].running_mean.clone()
        with scoring(model, "train_frozen_stats"):
            frozen = model(x)
        assert torch.equal(before, model[1].running_mean)
        assert int(model[1].num_batches_tracked) == 0
        with scoring(model, "train"):
            moving = model(x)
        assert torch.equal(frozen, moving)
        assert not torch.equal(before, model[1].running_mean)
        with scoring(model, "eval"):
            assert not torch.equal(frozen, model(x))

    def test_dropout_follows_the_mode(self):
        model = self.model()
        seen = {}
        for mode in ("train", "train_frozen_stats", "eval"):
            with scoring(model, mode):
                seen[mode] = model[2].training
        assert seen == {"train": True, "train_frozen_stats": True, "eval": False}

    def test_instance_norm_is_frozen_too(self):
        norm = nn.InstanceNorm1d(3, track_running_stats=True)
        with scoring(norm, "train_frozen_stats"):
            norm(torch.randn(2, 3, 5))
        assert norm.running_mean.abs().max() == 0
        assert norm.momentum == 0.1

    def test_an_unknown_mode_names_the_nearest(self):
        with pytest.raises(UnknownName, match="Did you mean 'train'"), scoring(self.model(), "trian"):
            pass


def test_missing_irreducible_losses_say_how_to_get_them():
    with pytest.raises(MissingIrreducible, match="goldiprox irreducible"):
        gp.reducible_loss(candidates(irreducible=None))


def test_irreducible_losses_may_be_a_live_function():
    live = candidates(irreducible=lambda batch: batch.ids * 2.0)
    assert torch.equal(live.irreducible, IDS * 2.0)


def test_a_reduced_loss_is_refused():
    c = candidates(loss=nn.functional.cross_entropy)
    with pytest.raises(ModelMismatch, match="reduction='none'"):
        gp.loss(c)


@pytest.mark.parametrize("name", ["entropy", "ordered_loss", "bald"])
def test_what_goes_by_classes_refuses_a_regression(name):
    c = candidates(make_mlp(num_outputs=1, dropout=0.5), loss=lambda output, y: (output[:, 0] - y).square())
    with pytest.raises(ModelMismatch, match=r"probabilities of classes, and the model gave \(100, 1\)"):
        ACQUISITIONS[name](c)
