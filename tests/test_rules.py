"""Rules: contracts over every one of them, and what each does."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import goldiprox as gp
from conftest import make_mlp
from goldiprox.data import Batch
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.rules import make_rule

RULES = {
    "top_k": gp.top_k(),
    "gumbel_top_k": gp.gumbel_top_k(0.5),
    "discounted_top_k": lambda s, i, k, key: gp.discounted_top_k(0.5)(s, i, k, key, times=i % 3),
    "mix": gp.mix(0.5),
    "mix of gumbel": gp.mix(0.25, gp.gumbel_top_k(1.0)),
    "ranked": gp.ranked(),
    "mix of ranked": gp.mix(0.25, gp.ranked(gp.gumbel_top_k(0.5))),
    "floored": gp.floored(),
    "mix of floored": gp.mix(0.25, gp.floored(gp.gumbel_top_k(0.5))),
    "floored mix": gp.floored(gp.mix(0.25)),
    "floored at times": gp.floored(gp.top_k(), beyond=0.5),
    "annealed": partial(gp.gumbel_top_k(0.5, final=4.0, steps=100), step=30),
}


@st.composite
def scored(draw):
    n = draw(st.integers(1, 60))
    values = draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n))  # integers: many ties
    ids = draw(st.lists(st.integers(0, 10**12), min_size=n, max_size=n, unique=True))
    return torch.tensor(values).float(), torch.tensor(ids), draw(st.integers(1, n))


@pytest.mark.parametrize("name", RULES)
@given(scored(), st.integers(0, 2**62))
def test_every_rule_gives_distinct_rows_whatever_the_order(name, case, key):
    scores, ids, keep = case
    rows = RULES[name](scores, ids, keep, key)
    assert rows.shape == (keep,)
    assert rows.unique().numel() == keep
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    permuted = RULES[name](scores[order], ids[order], keep, key)
    assert ids[rows].tolist() == ids[order][permuted].tolist()


@given(scored())
def test_top_k_is_a_sort_with_ties_by_id(case):
    scores, ids, keep = case
    expected = sorted(zip((-scores).tolist(), ids.tolist(), strict=True))[:keep]
    assert ids[gp.top_k()(scores, ids, keep, 0)].tolist() == [i for _, i in expected]


def test_what_was_kept_waits_until_the_others_had_their_turns():
    ids, scores = torch.arange(6), torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    rule, std = gp.discounted_top_k(1.0), scores.std(correction=0)
    times, kept = torch.zeros(6), []
    for _ in range(60):
        rows = rule(scores, ids, 2, 0, times=times)
        assert set(rows.tolist()) == set((scores / std - times).argsort(descending=True, stable=True)[:2].tolist())
        times[rows] += 1
        kept += rows.tolist()
    counts = torch.bincount(torch.tensor(kept), minlength=6)
    assert kept[:2] == [0, 1]  # at first the best
    assert (counts.diff() <= 0).all()
    assert counts.max() - counts.min() <= 1 + int(5 / std)  # in the long run all of them
    never = torch.full((6,), 7)
    assert gp.discounted_top_k(0.0)(scores, ids, 2, 0, times=never).tolist() == [0, 1]
    assert gp.discounted_top_k(1.0)(torch.ones(6), ids, 2, 0, times=torch.tensor([1, 0, 1, 1, 0, 1])).tolist() == [1, 4]
    with pytest.raises(ConfigError, match="price of -1"):
        gp.discounted_top_k(-1.0)


def test_a_price_in_distances_of_quartiles():
    ids, scores = torch.arange(8), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0])
    rule, width = make_rule("discounted_top_k:0.5iqr"), 6.0 - 1.0
    assert rule.text == gp.discounted_top_k(0.5, unit="iqr").text == "discounted_top_k:0.5iqr"
    times = torch.tensor([0, 0, 0, 0, 0, 0, 1, 300])
    expected = (scores - 0.5 * width * times).argsort(descending=True, stable=True)
    assert rule(scores, ids, 8, 0, times=times).tolist() == expected.tolist() == [7, 5, 4, 6, 3, 2, 1, 0]
    assert rule(scores, ids, 2, 0, times=times * 2).tolist() == [5, 4]  # 1000 is worth 400 turns
    # Under a floor the width is that of all scores, not of what is left above zero.
    floored, plain = gp.floored(rule), scores - 4.5
    assert floored(plain, ids, 3, 0, times=torch.tensor([0, 0, 0, 0, 0, 1, 1, 400])).tolist() == [0, 1, 2]
    # Where half of the scores are alike their quartiles are too; the price must not vanish.
    alike, deviation = torch.tensor([0.0] * 7 + [8.0]), gp.discounted_top_k(0.5)
    for kept in (0, 1, 6, 7):
        times = torch.tensor([0] * 7 + [kept])
        assert rule(alike, ids, 1, 0, times=times).tolist() == deviation(alike, ids, 1, 0, times=times).tolist()
    with pytest.raises(ConfigError, match="'x' is not a number"):
        make_rule("discounted_top_k:xiqr")


def test_a_price_in_the_unit_of_the_score_itself():
    ids, scores = torch.arange(4), torch.tensor([0.9, 0.8, 0.45, 0.0])
    rule = make_rule("discounted_top_k:1/run", passes=4.0)
    for same in (gp.discounted_top_k(0.25, unit="own"), make_rule("discounted_top_k:0.25own", passes=4.0), rule):
        assert same.text == "discounted_top_k:0.25own"
        assert same(scores, ids, 4, 0, times=torch.tensor([2, 1, 0, 0])).tolist() == [1, 2, 0, 3]
        assert same(scores * 1000, ids, 2, 0, times=torch.tensor([9, 9, 0, 0])).tolist() == [0, 1]  # nothing is scaled
    with pytest.raises(ConfigError, match="'x' is not a number"):
        make_rule("discounted_top_k:x/run")


@pytest.mark.parametrize(
    "rule", [gp.discounted_top_k(0.5), gp.mix(0.5, gp.ranked(gp.floored(gp.discounted_top_k(0.5))))]
)
@pytest.mark.parametrize("table", [True, False])
def test_a_selector_counts_what_it_keeps_and_goes_on_from_there(blobs, rule, table):
    settings = {"keep": 4, "rule": rule}
    if table:
        settings["irreducible"] = gp.IrreducibleLosses(torch.zeros(len(blobs)))
    model, batches = make_mlp(), [Batch(i, *blobs.gather(i)) for i in torch.arange(len(blobs)).split(20)[:12]] * 3
    select = gp.Selector(gp.loss, **settings)
    kept = [select(model, batch).ids for batch in batches]
    expected = torch.bincount(torch.cat(kept), minlength=len(select.times))
    assert select.times.tolist() == expected.tolist()
    assert len(torch.cat(kept[::12]).unique()) > 4  # another choice when the same candidates come again
    first, again = gp.Selector(gp.loss, **settings), gp.Selector(gp.loss, **settings)
    for batch in batches[:17]:
        first(model, batch)
    again.load_state_dict(first.state_dict())
    assert [again(model, batch).ids.tolist() for batch in batches[17:]] == [ids.tolist() for ids in kept[17:]]
    with pytest.raises(ConfigError, match="how often examples were kept"):
        again.load_state_dict({"step": 3, "seed": 0})
    state = {"step": 3, "seed": 0, "times": torch.ones(30, dtype=torch.int32)}
    again.load_state_dict(state)
    again(model, batches[-1])  # ids above those that were counted
    assert state["times"].tolist() == [1] * 30
    if table:
        with pytest.raises(ConfigError, match="other data"):
            again.load_state_dict(state | {"times": torch.ones(len(blobs) + 1)})


def test_temperature_spans_from_top_k_to_uniform():
    scores, ids = torch.linspace(0, 1, 200), torch.arange(200)

    def mean_score(temperature):
        rule = gp.gumbel_top_k(temperature)
        return torch.cat([scores[rule(scores, ids, 20, key)] for key in range(200)]).mean().item()

    means = [mean_score(t) for t in (0.0, 0.1, 0.5, 1.0, 100.0)]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx(scores[-20:].mean().item())
    assert means[-1] == pytest.approx(0.5, abs=0.03)


def test_gumbel_top_k_draws_in_proportion_for_one_pick():
    """With one pick, the probabilities are softmax(score / (temperature * std))."""
    scores, ids = torch.tensor([0.0, 1.0, 2.0]), torch.arange(3)
    rule = gp.gumbel_top_k(2.0)
    counts = torch.zeros(3)
    for key in range(4_000):
        counts[rule(scores, ids, 1, key)] += 1
    expected = (scores.double() / (2.0 * scores.double().std(correction=0))).softmax(0)
    assert (counts / 4_000 - expected).abs().max() < 0.03


def test_gumbel_top_k_does_not_depend_on_the_scale_and_takes_equal_scores():
    scores, ids = torch.randn(100, generator=torch.Generator().manual_seed(0)), torch.arange(100)
    rule = gp.gumbel_top_k(1.0)
    assert torch.equal(rule(scores, ids, 10, 3), rule(1000 * scores + 7, ids, 10, 3))
    assert rule(torch.ones(100), ids, 10, 3).unique().numel() == 10


def test_mix_takes_the_best_and_fills_up_uniformly():
    scores, ids = torch.linspace(0, 1, 100), torch.arange(100)
    picks = torch.stack([gp.mix(0.5)(scores, ids, 10, key) for key in range(500)])
    assert (picks[:, :5] == torch.tensor([99, 98, 97, 96, 95])).all()
    uniform = picks[:, 5:]
    assert uniform.max() < 95
    assert abs(uniform.float().mean() - 47) < 2
    assert torch.equal(gp.mix(0.0)(scores, ids, 10, 1), gp.top_k()(scores, ids, 10, 1))


def test_ranked_sees_order_only():
    scores, ids = torch.randn(100, generator=torch.Generator().manual_seed(0)), torch.arange(100)
    rule, plain = gp.ranked(gp.gumbel_top_k(0.5)), gp.gumbel_top_k(0.5)
    assert torch.equal(rule(scores, ids, 10, 3), rule(scores.exp() ** 5, ids, 10, 3))
    assert not torch.equal(plain(scores, ids, 10, 3), plain(scores.exp() ** 5, ids, 10, 3))
    by_rank = scores.argsort().argsort().float()
    assert rule(scores, ids, 10, 3).tolist() == plain(by_rank, ids, 10, 3).tolist()
    assert torch.equal(gp.ranked(gp.top_k())(scores, ids, 10, 3), gp.top_k()(scores, ids, 10, 3))


@pytest.mark.parametrize("over", [lambda r: r, lambda r: gp.mix(0.0, r), lambda r: gp.floored(r)])
def test_below_zero_all_scores_are_alike(over):
    ids, times = torch.arange(8), torch.zeros(8)
    scores = torch.tensor([0.5, -9.0, -1.0, 0.0, 2.0, -3.0, 1.0, -0.1])
    rule, plain = gp.floored(over(gp.discounted_top_k(1.0))), gp.discounted_top_k(1.0)
    assert rule(scores, ids, 8, 0, times=times).tolist() == [4, 6, 0, 1, 2, 3, 5, 7]
    # A price still weighs what it does among all scores: here a standard deviation of 3.3, above the score of 2.0.
    times[4] = 1
    assert rule(scores, ids, 8, 0, times=times).tolist() == [6, 0, 1, 2, 3, 5, 7, 4]
    assert plain(scores.clamp(min=0), ids, 8, 0, times=times)[0] == 4
    assert torch.equal(rule(scores.abs(), ids, 8, 0, times=times), plain(scores.abs(), ids, 8, 0, times=times))
    assert gp.floored(gp.top_k())(scores, ids, 4, 0).tolist() == [4, 6, 0, 1]


def test_scores_stay_as_they_are_until_enough_lie_below_zero():
    ids, times = torch.arange(6), torch.zeros(6)
    rule, plain, always = (
        gp.floored(gp.discounted_top_k(1.0), beyond=0.5),
        gp.discounted_top_k(1.0),
        gp.floored(gp.discounted_top_k(1.0)),
    )
    half = torch.tensor([-3.0, -1.0, -2.0, 0.0, 1.0, 2.0])
    more = torch.tensor([-3.0, -1.0, -2.0, -0.5, 1.0, 2.0])
    assert rule(half, ids, 6, 0, times=times).tolist() == plain(half, ids, 6, 0, times=times).tolist()
    assert rule(half, ids, 6, 0, times=times).tolist() == [5, 4, 3, 1, 2, 0]
    assert rule(more, ids, 6, 0, times=times).tolist() == always(more, ids, 6, 0, times=times).tolist()
    assert rule(more, ids, 6, 0, times=times).tolist() == [5, 4, 0, 1, 2, 3]
    assert rule.text == "floored:0.5+discounted_top_k:1"


@pytest.mark.parametrize(
    ("acquisition", "text"),
    [
        (gp.reducible_loss, r"floored:0\.67\+discounted_top_k:\S+"),
        (gp.probability_gain, r"floored:0\.67\+discounted_top_k:\S+"),
        (gp.loss, r"discounted_top_k:\S+"),
        (lambda c: -c.loss, r"discounted_top_k:\S+"),
        (gp.uniform, "top_k"),
        (gp.irreducible_loss, "top_k"),
        (gp.predictability, r"discounted_top_k:\S+own"),
    ],
)
def test_the_default_has_a_floor_where_zero_means_one(acquisition, text, tmp_path, blobs, irreducible):
    settings = {"irreducible": irreducible, "candidates": 16, "keep": 4, "steps": 2, "out": tmp_path / "s.arrow"}
    gp.record(make_mlp(), blobs, acquisition=acquisition, **settings)
    rule = gp.Sequence.open(tmp_path / "s.arrow", data=blobs).header.config["rule"]
    assert re.fullmatch(text, rule), rule


@pytest.mark.parametrize("over", [lambda r: r, lambda r: gp.mix(0.5, r)])
def test_scores_that_all_lie_below_zero_are_not_floored(over, irreducible):
    rule = over(gp.floored(gp.discounted_top_k(1.0)))
    with pytest.raises(ConfigError, match="leave floored out"):
        gp.Selector(gp.irreducible_loss, irreducible=irreducible, keep=4, rule=rule)
    gp.Selector(gp.irreducible_loss, irreducible=irreducible, keep=4, rule=gp.ranked(rule))


def test_scores_of_ones_own_that_all_lie_below_zero_are_not_floored(blobs, irreducible):
    settings = {"irreducible": irreducible, "candidates": 16, "keep": 4, "steps": 2}
    rule = gp.floored(gp.discounted_top_k(1.0))
    with pytest.raises(ConfigError, match=r"no score of the first candidates is above zero \(the highest is -"):
        gp.record(make_mlp(), blobs, acquisition=lambda c: -1 - c.irreducible, rule=rule, **settings)
    assert gp.record(make_mlp(), blobs, rule=rule, **settings).steps == 2


def test_a_proxy_better_than_its_holdout_model_from_the_first_step_on_takes_turns(blobs):
    """No score is above zero then, and that is not refused: nothing is known of any of them."""
    table = gp.IrreducibleLosses(torch.full((len(blobs),), 50.0))
    ids = gp.record(make_mlp(), blobs, irreducible=table, candidates=16, keep=4, steps=2 * len(blobs) // 4).ids
    assert set(np.bincount(ids, minlength=len(blobs))) <= {1, 2, 3}


def test_a_temperature_changes_from_the_first_to_the_last_over_the_run():
    scores, ids = torch.randn(200, generator=torch.Generator().manual_seed(0)), torch.arange(200)
    rule = gp.gumbel_top_k(0.25, final=math.inf, steps=100)

    def mean_score(step):
        return torch.cat([scores[rule(scores, ids, 20, key, step=step)] for key in range(100)]).mean().item()

    means = [mean_score(step) for step in (0, 25, 50, 75, 100)]
    assert means == sorted(means, reverse=True)
    assert abs(means[-1] - scores.mean()) < 0.05
    for step, temperature in ((0, 0.5), (50, 0.8), (100, 2.0), (1000, 2.0)):  # 1/0.8 is half way from 1/0.5 to 1/2
        annealed = gp.gumbel_top_k(0.5, final=2.0, steps=100)(scores, ids, 20, 7, step=step)
        assert torch.equal(annealed, gp.gumbel_top_k(temperature)(scores, ids, 20, 7))
        on_device = gp.gumbel_top_k(0.5, final=2.0, steps=100)(scores, ids, 20, 7, step=torch.tensor(step))
        assert torch.equal(annealed, on_device)


def test_a_selector_tells_the_rule_its_step(blobs, irreducible):
    batch = next(iter(DataLoader(gp.WithIds(blobs), batch_size=64)))
    annealed = gp.mix(0.5, gp.ranked(gp.gumbel_top_k(0.01, final=math.inf, steps=2)))
    select = gp.Selector(gp.irreducible_loss, irreducible=irreducible, keep=8, rule=annealed)
    best = set(irreducible[batch.ids].topk(4, largest=False).indices.tolist())
    model = make_mlp()
    picks = [select.choose(model, batch, step)[0][:4].tolist() for step in (0, 2)]
    assert set(picks[0]) == best
    assert set(picks[1]) != best


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("top_k", gp.top_k()),
        ("gumbel_top_k", gp.gumbel_top_k(3.0)),
        ("gumbel_top_k:0.5", gp.gumbel_top_k(0.5)),
        ("gumbel_top_k:0.5..inf", partial(gp.gumbel_top_k(0.5, final=math.inf, steps=9), step=4)),
        ("gumbel_top_k:0.5/pass", gp.gumbel_top_k(0.5 * 1.5)),
        ("ranked+gumbel_top_k:0.5/pass..2", gp.ranked(partial(gp.gumbel_top_k(0.75, final=2.0, steps=9), step=4))),
        ("mix", gp.mix(0.3)),
        ("mix:0.25+gumbel_top_k:2", gp.mix(0.25, gp.gumbel_top_k(2.0))),
        ("floored+gumbel_top_k:2", gp.floored(gp.gumbel_top_k(2.0))),
        ("floored:0.5+gumbel_top_k:2", gp.floored(gp.gumbel_top_k(2.0), beyond=0.5)),
        ("floored+gumbel_top_k:0.5..inf", partial(gp.floored(gp.gumbel_top_k(0.5, final=math.inf, steps=9)), step=4)),
        ("mix:0.25+ranked+gumbel_top_k:2", gp.mix(0.25, gp.ranked(gp.gumbel_top_k(2.0)))),
    ],
)
def test_rules_as_text(text, expected):
    scores, ids = torch.randn(60, generator=torch.Generator().manual_seed(0)), torch.arange(60)
    rule = make_rule(text, temperature=3.0, fraction=0.3, steps=9, passes=1.5)
    step = {"step": 4} if getattr(rule, "needs_step", False) else {}
    assert torch.equal(rule(scores, ids, 10, 5, **step), expected(scores, ids, 10, 5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gumbel_top_k:warm", "'warm' is not a number"),
        ("gumbel_top_k:1/step", "'1/step' is not a number"),
        ("mix:0.5/pass", "'0.5/pass' is not a number"),
        ("gumbel_top_k:0..2", "both must be positive"),
        ("discounted_top_k:-1/run", "rule 'discounted_top_k:-1/run': a price of -1.0 is not zero or more"),
        ("top_k:3", "top_k has no setting"),
        ("floored:1", "floored beyond a share of 1"),
        ("top_k+mix", "only mix, ranked, floored go over another"),
        ("mix:0.5+topk", "Did you mean 'top_k'"),
    ],
)
def test_bad_rules_as_text(text, message):
    with pytest.raises((ConfigError, UnknownName), match=message):
        make_rule(text)


def test_bad_settings_of_rules():
    with pytest.raises(ConfigError, match="needs the number of steps"):
        gp.gumbel_top_k(1.0, final=2.0)
    with pytest.raises(ConfigError, match="temperature of -1"):
        gp.gumbel_top_k(-1.0)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        gp.mix(1.5)
    with pytest.raises(UnknownName, match="Did you mean 'top_k'"):
        make_rule("topk")
