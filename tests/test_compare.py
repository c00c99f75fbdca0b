"""Whether selection pays: the numerics, the runs and what is kept of them, the command."""

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import goldiprox as gp
from goldiprox.cli.compare import _chosen, _held_out, _overtaken, _too_good, _unlike
from goldiprox.compare import bench
from goldiprox.compare import lab as labs
from goldiprox.compare import plan as plans
from goldiprox.compare.figure import _short, draw
from goldiprox.compare.lab import Lab, identity
from goldiprox.compare.methods import Method, parse
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import below_floor, compare, foretold, told, trials
from goldiprox.compare.verdict import Bill, Frontier, Worth, below_uniform, interval, judge, t_value, verdict
from goldiprox.errors import ConfigError, NonFiniteError, UnknownName
from goldiprox.irreducible import describe
from goldiprox.loop import History
from goldiprox.prepare import DataConfig, prepare
from goldiprox.settings import RunConfig
from goldiprox.snapshots import compared_ids
from goldiprox.stages import Silent
from goldiprox.store import Kept
from goldiprox.suspects import trusted_ids
from test_cli import goldiprox  # noqa: F401

BUDGETS = (0.25, 0.5, 1.0, 2.0, 3.0)
EXAMPLES = Path(__file__).parent.parent / "examples"
shares = st.floats(0, 1)


def curves(num_seeds):
    row = st.lists(shares, min_size=len(BUDGETS), max_size=len(BUDGETS))
    return st.lists(row, min_size=num_seeds, max_size=num_seeds)


class TestFrontier:
    @given(curves(3), shares, shares)
    def test_a_better_method_is_worth_no_less(self, rows, a, b):
        frontier = Frontier(BUDGETS, rows)
        low, high = (frontier.worth([v] * 3) for v in sorted((a, b)))
        assert low.at_least <= high.at_least
        assert low.at_most <= high.at_most

    @given(curves(2), st.integers(0, len(BUDGETS) - 1))
    def test_uniform_is_worth_its_own_budget_or_a_smaller_one_that_is_as_good(self, rows, b):
        frontier = Frontier(BUDGETS, rows)
        worth = frontier.worth([row[b] for row in frontier.best])
        assert worth.budget <= BUDGETS[b] * (1 + 1e-9)
        np.testing.assert_allclose(frontier.at(worth.budget).mean(), np.mean([r[b] for r in frontier.best]), atol=1e-9)

    def test_is_linear_in_the_logarithm_and_never_falls(self):
        frontier = Frontier(BUDGETS, [[0.1, 0.2, 0.3, 0.25, 0.28]])
        assert frontier.worth([0.25]).budget == pytest.approx(math.sqrt(0.5 * 1.0))
        assert frontier.best[0].tolist() == [0.1, 0.2, 0.3, 0.3, 0.3]
        assert str(frontier.worth([0.3])) == "1.00x"  # the first budget that is as good

    def test_says_where_it_was_not_run(self):
        frontier = Frontier(BUDGETS, [[0.1, 0.2, 0.3, 0.4, 0.5]])
        assert str(frontier.worth([0.51])) == "> 3.00x"
        assert str(frontier.worth([0.09])) == "< 0.25x"
        assert frontier.worth([0.51]).at_most == math.inf
        assert frontier.worth([0.09]).at_least == 0
        assert frontier.interval([0.4]) is None  # one seed

    @given(curves(3), st.lists(shares, min_size=3, max_size=3))
    def test_the_interval_holds_the_estimate(self, rows, accuracies):
        frontier = Frontier(BUDGETS, rows)
        worth, ends = frontier.worth(accuracies), frontier.interval(accuracies)
        assert ends is not None
        assert ends[0].at_least <= worth.budget * (1 + 1e-9)
        assert ends[1].at_most >= worth.budget * (1 - 1e-9)
        assert ends[0].at_least <= ends[1].at_most

    def test_the_interval_is_where_seeds_cannot_tell_uniform_from_the_method(self):
        """Every seed is shifted by its own luck, which both share: only the rest of the spread counts."""
        luck = np.array([-0.05, 0.0, 0.05])
        rows = luck[:, None] + np.log(np.asarray(BUDGETS)) / 10
        tight = Frontier(BUDGETS, rows.tolist()).interval((luck + math.log(1.5) / 10).tolist())
        assert tight is not None
        assert tight[0].budget == pytest.approx(1.5, rel=0.01)
        assert tight[1].budget == pytest.approx(1.5, rel=0.01)
        loose = Frontier(BUDGETS, rows.tolist()).interval((luck[::-1] + math.log(1.5) / 10).tolist())
        assert loose is not None
        assert [w.side for w in loose] == ["<", ">"]

    def test_surely_beyond_either_end(self):
        rows = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.11, 0.21, 0.31, 0.41, 0.51]]
        frontier = Frontier(BUDGETS, rows)
        above, below = frontier.interval([0.9, 0.91]), frontier.interval([0.01, 0.02])
        assert [str(w) for w in above or ()] == ["> 3.00x", "> 3.00x"]
        assert [str(w) for w in below or ()] == ["< 0.25x", "< 0.25x"]

    def test_the_interval_covers_the_truth_nineteen_times_in_twenty(self):
        rng, hits, tries = np.random.default_rng(0), 0, 400
        truth = 0.5 + np.log(np.asarray(BUDGETS)) / 10
        for _ in range(tries):
            rows = truth + rng.normal(0, 0.002, (3, len(BUDGETS)))
            accuracies = 0.5 + math.log(1.4) / 10 + rng.normal(0, 0.004, 3)
            ends = Frontier(BUDGETS, rows.tolist()).interval(accuracies.tolist())
            assert ends is not None
            hits += ends[0].at_least <= 1.4 <= ends[1].at_most
        assert 0.92 < hits / tries < 0.99

    def test_budgets_out_of_order(self):
        with pytest.raises(ValueError, match="ascending"):
            Frontier([1, 1], [[0.1, 0.2]])


class TestIntervals:
    def test_student(self):
        made = interval([0.1, 0.2, 0.6])
        assert made.mean == pytest.approx(0.3)
        assert (made.low, made.high) == (0.1, 0.6)
        error = np.std([0.1, 0.2, 0.6], ddof=1) / math.sqrt(3)
        assert made.interval == pytest.approx((0.3 - 4.303 * error, 0.3 + 4.303 * error))
        assert interval([0.5]).interval is None
        assert t_value(31) > t_value(32) > t_value(1000) > 1.96

    def test_below_uniform_by_more_than_a_standard_error(self):
        method = [[0.5, 0.5, 0.70], [0.5, 0.4, 0.72]]
        uniform = [[0.4, 0.5, 0.80], [0.4, 0.45, 0.80]]
        assert below_uniform(method, uniform) == [2]
        assert below_uniform(method[:1], uniform[:1]) is None
        assert below_uniform(uniform, uniform) == []


class TestBill:
    @given(*[st.floats(0.1, 10)] * 4, st.integers(1, 50))
    def test_pays_from_the_first_replay_that_is_cheaper(self, worth, step, each, once, replays):
        bill = Bill(step, 10, 10 * each, 10 * once)
        first = bill.pays_from(worth)
        cheaper = [n for n in range(1, 2000) if bill.speedup(worth, n) > 1 + 1e-9]
        if first is None:
            assert not cheaper
        elif first < 1900 and cheaper:
            assert abs(first - cheaper[0]) <= 1  # the two round differently at a tie
        assert bill.speedup(worth, replays) <= bill.speedup(worth, replays + 1)
        assert (bill.pays_from(bill.break_even * 1.001) or 1) >= 1
        assert bill.pays_from(bill.break_even * 0.999) is None

    def test_counts_everything(self):
        bill = Bill(uniform_step=2.0, method_steps=100, each=250.0, once=150.0)
        assert bill.speedup(3.0, 1) == pytest.approx(600 / 400)
        assert bill.speedup(3.0, 5) == pytest.approx(600 / 280)

    @pytest.mark.parametrize(
        ("ends", "word", "said"),
        [
            ((Worth(1.2), Worth(2.0)), "pays", "pays from the 4th replay on"),
            ((Worth(3.0, ">"), Worth(3.0, ">")), "pays", "pays from the 1st replay on"),
            ((Worth(0.25, "<"), Worth(0.9)), "does not pay", "however often"),
            ((Worth(0.25, "<"), Worth(1.5)), "too close", "too close to call with 3 seeds (best estimate: it pays"),
            ((Worth(0.9), Worth(3.0, ">")), "too close", "too close to call with 3 seeds"),
            (None, "too close", "one seed"),
        ],
    )
    def test_verdicts(self, ends, word, said):
        bill = Bill(uniform_step=1.0, method_steps=100, each=100.0, once=70.0)
        made = verdict(Worth(1.1), ends, bill, 3)
        assert made[0] == word
        assert said in made[1]

    def test_a_verdict_says_when_budgets_end_too_early(self):
        bill = Bill(uniform_step=1.0, method_steps=100, each=430.0, once=0.0)
        word, said = verdict(Worth(2.0), (Worth(1.0), Worth(3.0, ">")), bill, 3)
        assert word == "too close"
        assert "must be worth more than 4.3x, and uniform was run up to 3x" in said

    def test_all_that_is_said(self):
        rows = [[0.1, 0.2, 0.5, 0.4, 0.45], [0.1, 0.2, 0.3, 0.4, 0.5]]
        bills = {"flops": Bill(1.0, 100, 100.0, 50.0), "seconds": None}
        said = judge([0.55, 0.45], Frontier(BUDGETS, rows), rows, bills, (1, 5))
        assert said["minus_uniforms_best"]["values"] == pytest.approx([0.05, -0.05])
        assert set(said["speedup"]) == set(said["verdict"]) == {"flops"}
        worth = said["worth"]["steps"]["times"]
        assert said["speedup"]["flops"]["5"]["times"] == pytest.approx(worth * 100 / 110)
        json.dumps(said)


class TestMethods:
    @pytest.mark.parametrize(
        "text",
        [
            "top_k",
            "gumbel_top_k:1,checkpoint=last,il_models=3,robust=0.7",
            "mix:0.5,folds=2",
            "top_k,trusted=1,window=0",
            "default",
            "default,cleaned=0,trusted=2.5",
        ],
    )
    def test_are_texts(self, text):
        assert parse(text).name == parse(text).text == text
        assert parse(f"{text},name=x") == replace(parse(text), name="x")

    def test_settings_have_types(self):
        made = parse("gumbel_top_k:1..inf, il_models=2, robust=0.5, proxy_schedule=constant")
        assert made == Method("gumbel_top_k:1..inf", il_models=2, robust=0.5, proxy_schedule="constant", name=made.name)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("topk", "Did you mean 'top_k'"),
            ("top_k,ilmodels=3", "Did you mean 'il_models'"),
            ("top_k,il_models=many", "not a number"),
            ("top_k,il_models=0", "at least 1"),
            ("top_k,folds", "has no value"),
            ("top_k,folds=1", "give 2 or more"),
            ("top_k,checkpoint=best", "checkpoint"),
            ("top_k,robust=2", "not in"),
            ("top_k,window=-1", "number of steps"),
            ("top_k,trusted=0.5", "give 1 or more"),
            ("top_k,mixup=some", "mixup"),
            ("top_k,augment=rotate", "augment"),
            ("top_k,cleaned=2", "0 or 1"),
            ("top_k,calibrated=2", "0 or 1"),
            ("top_k,il_schedule=linear", "il_schedule"),
            ("top_k,acquisition=lots", "acquisition"),
        ],
    )
    def test_that_cannot_be(self, text, message):
        with pytest.raises((ConfigError, UnknownName), match=message):
            parse(text)


class TestPlan:
    def test_lengths_are_multiples_of_the_evaluations(self):
        plan = Plan(steps=4680, budgets=(0.25, 0.5, 2, 3))
        assert plan.uniform_steps == [1170, 2340, 4680, 9360, 14040]
        odd = Plan(steps=101, budgets=(0.3, 1))
        assert odd.method_steps == 96
        assert odd.uniform_steps == [32, 96]

    def test_quick_is_short_for_all_methods(self):
        plan = plans.quick(Plan(methods=(Method(), Method("paper"), Method("top_k", holdout_epochs=2))))
        assert [m.holdout_epochs for m in plan.methods] == [None, 3, 2]
        assert [m.name for m in plan.methods] == ["default", "paper", "top_k,holdout_epochs=2"]
        assert plan.config.holdout.max_epochs == 3

    def test_as_in_the_paper(self):
        plan = plans.as_in_the_paper(
            Plan(RunConfig(candidates=100, training=gp.TrainingConfig(lr=0.1, precision="bf16")))
        )
        assert plan.methods == (Method("paper"),)
        assert plan.schedules == ("constant",)
        assert (plan.config.candidates, plan.config.keep) == (320, 32)
        assert plan.config.training == gp.TrainingConfig(precision="bf16")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"steps": 5}, "at least 12"),
            ({"budgets": (0, 1)}, "positive"),
            ({"budgets": (1, float("nan"))}, "--budgets 1,nan: give positive"),
            ({"budgets": (float("inf"),)}, "at most 1,000"),
            ({"config": RunConfig(keep=400)}, "cannot keep 400 of 320"),
            ({"seeds": ()}, "at least one"),
            ({"methods": ()}, "no method"),
            ({"methods": (Method("top_k"), Method("top_k"))}, "given twice"),
            ({"methods": (Method("top_k", candidates=4),)}, "cannot keep 32 of 4"),
            ({"schedules": ("linear",)}, "unknown schedule"),
            ({"at_once": 0}, "at least 1"),
            ({"uniform_on": "test"}, "everything"),
        ],
    )
    def test_that_cannot_be(self, settings, message):
        with pytest.raises((ConfigError, UnknownName), match=message):
            Plan(**settings)


@pytest.fixture
def own(monkeypatch):
    """Data and models of the user's own: small enough for many runs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    name = "own_data_and_model"
    config = RunConfig(
        DataConfig(f"{name}:load"),
        proxy=f"{name}:small",
        model=f"{name}:large",
        candidates=40,
        keep=8,
        holdout=gp.HoldoutConfig(max_epochs=1),
        device="cpu",
    )
    return Plan(config, steps=24, budgets=(0.5, 1, 2), seeds=(0, 1), compared=80)


def describe_of(folder):
    return json.loads((folder / "compare.json").read_text())


def forbidden(*args, **kwargs):
    raise AssertionError("nothing is to be trained again")


class TestRuns:
    def test_a_second_call_finds_every_run_and_says_the_same(self, own, tmp_path, monkeypatch):
        first = compare(own, tmp_path)
        for name in ("record_many", "replay_many", "irreducible_losses"):
            monkeypatch.setattr(labs, name, forbidden)
        monkeypatch.setattr(bench, "fit_together", forbidden)
        assert compare(own, tmp_path) == first
        longer = replace(own, budgets=(0.5, 1, 2, 4))
        with pytest.raises(AssertionError, match="trained again"):
            compare(longer, tmp_path)

    def test_a_call_that_was_broken_off_goes_on(self, own, tmp_path, monkeypatch):
        with monkeypatch.context() as m:
            m.setattr(labs, "replay_many", forbidden)
            with pytest.raises(AssertionError):
                compare(own, tmp_path / "a")
        monkeypatch.setattr(bench, "fit_together", forbidden)  # what was done before
        monkeypatch.setattr(labs, "irreducible_losses", forbidden)
        assert compare(own, tmp_path / "a")["schedules"]["cosine"]["methods"]

    def test_what_a_result_holds(self, own, tmp_path):
        plan = replace(own, methods=(Method("top_k"), Method("gumbel_top_k:1"), Method("mix:0.5")))
        result = compare(plan, tmp_path)
        found = result["schedules"]["cosine"]
        assert found["uniform"]["steps"] == [12, 24, 48]
        assert [len(a["values"]) for a in found["uniform"]["accuracy"]] == [2, 2, 2]
        assert found["signals"]["runs"] == 6
        for method in found["methods"].values():
            bill = method["sequence"]["speedup"]["flops"]
            assert bill["once"] == method["cost"]["holdout"]["flops"] + method["cost"]["proxy"]["flops"] > 0
            assert bill["each"] == 24 * bill["uniform_step"]  # a replay costs what uniform costs
            assert method["itself"]["speedup"]["flops"]["each"] > 2 * bill["each"]  # scoring is on the bill
            assert method["itself"]["speedup"]["flops"]["once"] == method["cost"]["holdout"]["flops"]
            assert len(method["early"]["rank_correlation"]) == 2
            assert len(method["early"]["wrong_labels_told"]) == (2 if result["corrupted"]["training side"] else 0)
            assert method["sequence"]["curve"]["steps"] == method["sequence"]["below_floor"]["steps"]
            assert method["sequence"]["curve"]["steps"] == list(range(2, 25, 2))
        files = draw(result, tmp_path)
        assert [f.name for f in files] == ["compare.png", "compare.pdf"]
        assert all(f.stat().st_size > 10_000 for f in files)

    def test_with_a_constant_rate_a_shorter_run_is_the_beginning_of_a_longer(self, own, tmp_path):
        plan = replace(own, schedules=("constant",))
        runs = Lab(plan, tmp_path / "a", Silent()).uniform("constant")
        alone = Lab(replace(plan, budgets=(1,)), tmp_path / "b", Silent()).uniform("constant")
        assert [r.numbers["accuracy"] for r in runs[1]] == [r.numbers["accuracy"] for r in alone[0]]
        assert [r.numbers["flops"] for r in runs[1]] == [r.numbers["flops"] for r in alone[0]]
        assert len(list((tmp_path / "a").glob("uniform-*.json"))) == 2

    def test_uniform_is_every_example_once_a_pass(self, own, tmp_path, monkeypatch):
        seen = []
        monkeypatch.setattr(bench, "fit_together", lambda tasks, engine: [seen.append(t) or History() for t in tasks])
        lab = Lab(replace(own, steps=400, budgets=(1,), seeds=(0,)), tmp_path, Silent())
        monkeypatch.setattr(bench, "figures", lambda h: {"accuracy": [0.5], "steps": [1], "flops": 1, "seconds": 1.0})
        lab.uniform("cosine")
        ids = [i for batch in seen[0].batches for i in batch.ids.tolist()][: len(lab.train)]
        assert sorted(ids) == sorted(lab.train.tolist())
        lab.plan = replace(lab.plan, steps=1200, uniform_on="everything")
        lab.uniform("cosine")
        ids = [i for batch in seen[1].batches for i in batch.ids.tolist()]
        assert set(ids) == set(range(len(lab.stages.data)))

    def test_what_was_held_out_could_have_been_trained_on(self, own, tmp_path):
        plan = replace(own, itself=False, compared=0)
        held = compare(plan, tmp_path / "held")["schedules"]["cosine"]
        everything = compare(replace(plan, uniform_on="everything"), tmp_path / "all")["schedules"]["cosine"]
        assert held["uniform"]["everything"] == everything["uniform"]["accuracy"][1]  # as many steps
        (sequence,) = (m["sequence"] for m in held["methods"].values())
        gaps = zip(sequence["accuracy"]["values"], held["uniform"]["everything"]["values"], strict=True)
        assert sequence["minus_everything"]["values"] == pytest.approx([a - b for a, b in gaps])
        config = replace(own.config, data=replace(own.config.data, holdout=0.0), num_folds=2)
        folds = compare(replace(plan, config=config), tmp_path / "folds")["schedules"]["cosine"]
        for found in (everything, folds):  # all of it is what uniform trains on
            assert found["uniform"]["everything"] is None
            assert all(m["sequence"]["minus_everything"] is None for m in found["methods"].values())
            assert draw({**describe_of(tmp_path / "held"), "schedules": {"cosine": found}}, tmp_path)

    def test_what_is_left_out_can_be_left_out_without_a_proxy(self, own, tmp_path, monkeypatch):
        """As many steps of chance from what the method selects from; not run where that is everything."""
        trained, plain = [], bench.CandidateSampler
        monkeypatch.setattr(bench, "CandidateSampler", lambda ids, *a, **k: trained.append(ids) or plain(ids, *a, **k))
        pool = {0: 0.5, 1: 0.7}
        monkeypatch.setattr(
            Lab, "pools", lambda lab, *_: {s: lab.train[: round(pool[s] * len(lab.train))] for s in lab.plan.seeds}
        )
        plan = replace(own, itself=False, compared=0, seeds=(0, 1))
        (found,) = compare(plan, tmp_path / "some")["schedules"]["cosine"]["methods"].values()
        lab = Lab(plan, tmp_path / "some" / "runs", Silent())
        runs = lab.chance(plan.methods[0], "cosine")
        assert runs is not None
        assert [run.numbers["steps"][-1] for run in runs] == [plan.method_steps] * 2
        assert found["chance"]["values"] == [run.numbers["accuracy"][-1] for run in runs]
        gaps = zip(found["sequence"]["accuracy"]["values"], found["chance"]["values"], strict=True)
        assert found["sequence"]["minus_chance"]["values"] == pytest.approx([a - b for a, b in gaps])
        sizes = {round(share * len(lab.train)) for share in pool.values()}
        assert sizes <= {len(ids) for ids in trained}  # each seed by what is its own
        monkeypatch.setattr(Lab, "pools", lambda lab, *_: dict.fromkeys(lab.plan.seeds, lab.train))
        (found,) = compare(plan, tmp_path / "all")["schedules"]["cosine"]["methods"].values()
        assert found["chance"] is found["sequence"]["minus_chance"] is None

    def test_how_often_a_proxy_is_better_than_its_holdout_model(self, own, monkeypatch, tmp_path):
        """Counted among what it selects from, at every evaluation."""
        plan = replace(own, seeds=(0, 1))
        lab = Lab(plan, tmp_path, Silent())
        ids = compared_ids(lab.train, plan.config.candidates, plan.compared).numpy()
        scores = np.tile(np.arange(len(ids)) - 0.5 * len(ids), (3, 1))  # half of them below zero
        scores[1:] = 1.0
        runs = [Kept({"steps": [5, 10, 15], "by": "reducible_loss"}, {"reducible": scores})] * 2
        pools = {0: lab.train, 1: ids[: len(ids) // 2]}
        monkeypatch.setattr(Lab, "pools", lambda *_: pools)
        assert below_floor(lab, plan.methods[0], runs) == {"steps": [5, 10, 15], "share": [0.75, 0, 0]}
        pools[1] = np.setdiff1d(lab.train, ids)
        assert below_floor(lab, plan.methods[0], runs) is None
        assert below_floor(lab, plan.methods[0], [Kept({"by": "reducible_loss"}, {})]) is None

    def test_a_legend_tells_methods_apart(self):
        long = [f"default,candidates={n},il_model=my_models:resnet_of_width_16" for n in (32, 64)]
        other = "default,il_model=my_models:resnet,holdout_epochs=3"
        short = _short([*long, other, "default"])
        assert [short[name] for name in long] == ["default,candidates=32,…", "default,candidates=64,…"]
        assert short["default"] == "default"
        assert len(short[other]) == 40
        short = _short([f"default,il_model=thin_resnet18,holdout_epochs={n},augment=shift+mirror" for n in (20, 30)])
        assert list(short.values()) == ["default,holdout_epochs=20,…", "default,holdout_epochs=30,…"]
        assert list(_short([*short, "default"]).values()) == [*short.values(), "default"]

    def test_tables_of_several_models_differ_from_one_and_cost_as_many(self, own, tmp_path):
        lab = Lab(own, tmp_path, Silent())
        one, costs = lab.tables(Method("top_k"))
        three, more = lab.tables(Method("top_k", il_models=3))
        robust, _ = lab.tables(Method("top_k", robust=0.7))
        folds, _ = lab.tables(Method("top_k", folds=2))
        assert len({t.digest for t in (one[0], one[1], three[0], robust[0], folds[0])}) == 5
        assert more[0]["flops"] == pytest.approx(3 * costs[0]["flops"])

    def test_a_method_that_trusts_selects_from_less(self, own, tmp_path):
        lab = Lab(own, tmp_path, Silent())
        for method in (Method("top_k", acquisition="loss", trusted=1), Method("top_k", trusted=1, il_models=2)):
            tables, _ = lab.tables(method)
            recordings = lab.recorded(method, "cosine")
            for table, recording in zip(tables, recordings, strict=True):
                trusted = trusted_ids(table, lab.stages.data, lab.train, odds=1)
                kept = gp.Sequence.open(recording.sequence).ids
                assert set(kept) <= set(trusted.tolist()) < set(lab.train.tolist())

    def test_a_window_changes_the_order_and_nothing_else(self, own, tmp_path, monkeypatch):
        seen = []
        monkeypatch.setattr(labs, "replay_many", lambda models, data, sequences, **_: seen.extend(sequences) or [])
        lab = Lab(replace(own, seeds=(0,)), tmp_path, Silent())
        for window in (1, 4, 0):
            with pytest.raises(ValueError, match="zip"):  # no histories
                lab.replayed(Method("top_k", window=window), "cosine")
        digests = [s.digest for s in seen]
        assert len(set(digests)) == 3
        assert sorted(seen[0].ids) == sorted(seen[1].ids) == sorted(seen[2].ids)

    def test_a_holdout_models_rate_may_decay_over_all_of_its_epochs(self, own, tmp_path, monkeypatch):
        seen = []
        plain = labs.irreducible_losses
        monkeypatch.setattr(labs, "irreducible_losses", lambda *a, **k: seen.append(k["config"]) or plain(*a, **k))
        lab = Lab(replace(own, seeds=(0,)), tmp_path, Silent())
        constant, _ = lab.tables(Method("top_k", holdout_epochs=3))
        decayed, _ = lab.tables(Method("top_k", holdout_epochs=3, il_schedule="cosine"))
        assert constant[0].digest != decayed[0].digest
        assert [(c.max_epochs, c.training.schedule) for c in seen] == [(3, "constant"), (3, "cosine")]

    def test_what_a_method_leaves_open_the_comparison_says(self, own, tmp_path, monkeypatch):
        seen = []
        plain = labs.irreducible_losses
        monkeypatch.setattr(labs, "irreducible_losses", lambda *a, **k: seen.append(k["config"]) or plain(*a, **k))
        robust = gp.HoldoutConfig.robust(max_epochs=2)
        config = replace(own.config, rule="mix:0.5", window=3, trusted=4.0, holdout=robust, il_model="proxy")
        lab = Lab(replace(own, config=config, seeds=(0,), methods=(Method(), Method("paper"))), tmp_path, Silent())
        default, paper = lab.plan.methods
        (table,), _ = lab.tables(default)
        lab.tables(paper)
        assert seen[0] == robust
        assert seen[1] == gp.HoldoutConfig()
        assert tuple(lab._rule(m, "reducible_loss").text for m in (default, paper)) == ("mix:0.5+top_k", "top_k")
        assert (lab._window(default), lab._window(paper)) == (3, 1)
        assert (lab._odds(default, table), lab._odds(paper, table)) == (4, 0)

    def test_trials_are_lines_against_one_uniform(self, own, tmp_path):
        plan = replace(own, methods=(Method("top_k", name="a"), Method("mix:0.5", name="b")), itself=False)
        lines = list(trials(plan, tmp_path))
        assert [line["trial"] for line in lines] == ["uniform", "a", "b"]
        assert "itself" not in lines[1]
        json.dumps(lines)

    def test_a_trial_that_diverges_leaves_its_error(self, own, tmp_path, monkeypatch):
        def diverges(*args, **kwargs):
            raise NonFiniteError("it diverged")

        monkeypatch.setattr(labs, "record_many", diverges)
        lines = list(trials(replace(own, budgets=(1,)), tmp_path))
        assert [line.get("error") for line in lines] == [None, "it diverged"]

    def test_the_script_of_trials(self, tmp_path):
        script = EXAMPLES.parent / "benchmarks" / "transfer.py"
        flags = ["--steps", "12", "--seeds", "1", "--budgets", "1", "--out", tmp_path]
        flags += ["--trials", "short holdout training"]
        flags += ["--method", "ranked+gumbel_top_k:1,holdout_epochs=1", "--holdout-noise", "equal"]
        done = subprocess.run([sys.executable, script, *map(str, flags)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
        named = ["uniform", "short holdout training", "ranked+gumbel_top_k:1,holdout_epochs=1"]
        assert [line["trial"] for line in lines] == named
        assert lines[0]["data"]["holdout_noise"] == 0.1
        assert "short holdout training: " in done.stdout

    def test_the_script_of_ideas(self, tmp_path):
        script, ideas = EXAMPLES.parent / "benchmarks" / "ideas.py", ["uniform", "margin 1 C", "S counted 1 R, gate 1"]
        flags = ["--data", "mnist5k", "--small", "mlp128", "--model", "mlp128", "--steps", "12", "--worlds", "class20"]
        flags += ["--ideas", *ideas, "--out", str(tmp_path / "ideas.jsonl")]
        done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (tmp_path / "ideas.jsonl").read_text().splitlines()]
        assert [line["idea"] for line in lines] == ideas
        assert max(line["wrong"] for line in lines[1:]) < lines[0]["wrong"] < 0.25
        assert [step for step, _ in lines[0]["curve"]] == list(range(1, 13))

    def test_signals_are_ranked_by_how_runs_ended(self):
        early = {"ended_ahead": [1, 2, 3], "ahead_of_uniform": [3, 2, 1], "rank_correlation": [], "distinct": [1, 5, 6]}
        early["wrong_labels_told"] = [0.2, 0.3, 0.9]
        told = foretold({"a": {"early": early | {"corrupted": [1, 1, 1]}}})
        assert told["runs"] == 3
        assert told["distinct"] is None
        both = {n: {"early": early | {"corrupted": [0, 1, 2]}} for n in "ab"}
        assert foretold(both)["ahead_of_uniform"] == pytest.approx(-1)
        assert foretold(both)["distinct"] == pytest.approx(1)
        assert foretold(both)["rank_correlation"] is None
        some = {n: {"early": both["a"]["early"] | {"rank_correlation": [0.1, None, 0.3]}} for n in "cde"}
        assert foretold(both | some)["rank_correlation"] == pytest.approx(1)
        assert foretold(both | {n: some[n] for n in "cd"})["rank_correlation"] is None  # four runs have it

    def test_wrong_labels_are_told_as_well_as_the_table_orders_them(self):
        prepared = prepare(DataConfig(noise=0.2))
        lab = SimpleNamespace(stages=SimpleNamespace(prepared=prepared), train=prepared.split.train)
        wrong, values = prepared.truth.mislabelled, torch.full((len(prepared.data),), torch.nan)
        values[lab.train] = torch.from_numpy(wrong[lab.train]).float()
        share = wrong[lab.train].mean()
        tables = [gp.IrreducibleLosses(v, data=describe(prepared.data)) for v in (values, -values, 0 * values)]
        best, worst, chance = told(lab, tables)
        assert best == 1
        assert worst < chance == pytest.approx(share, abs=0.03)
        lab.stages.prepared = prepare(DataConfig())
        assert told(lab, tables) == []

    def test_methods_are_tried_before_anything_is_trained(self, own, tmp_path):
        with pytest.raises(ConfigError, match="no integer labels|dropout layers"):
            Lab(replace(own, methods=(Method("top_k", acquisition="bald"),)), tmp_path, Silent())
        with pytest.raises(ConfigError, match="only 3,000 examples"):
            Lab(replace(own, methods=(Method("top_k", candidates=5000),)), tmp_path, Silent())

    def test_runs_of_changed_code_are_made_again(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "changing_model.py").write_text("def make(): ...\n")
        before = identity("changing_model:make")
        (tmp_path / "changing_model.py").write_text("def make(): pass\n")
        assert identity("changing_model:make") != before
        assert identity("mlp128") == "mlp128"


class TestCommand:
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ([0.01, 0.03], "+2.0 points (+1.0 to +3.0) against uniform training on it too, for as many steps"),
            ([-0.01, 0.005], "-0.2 points (-1.0 to +0.5) against uniform training on it too, for as many steps"),
            ([-0.02, -0.01], "for as many steps; if you could train on it, cross-fit instead: --holdout 0 --folds 2"),
            ([-0.02], "--holdout 0 --folds 2"),
        ],
    )
    def test_what_holding_out_cost(self, values, said):
        """Level with uniform on everything is not called below it."""
        assert _held_out(asdict(interval(values))).endswith(said)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ([0.01, 0.03], "+2.0 points (+1.0 to +3.0) against chance from the labels that it chose from"),
            ([-0.02, -0.01], "chose from; leaving labels out is enough: train on gp.trusted_ids"),
        ],
    )
    def test_what_the_proxy_is_worth(self, values, said):
        assert _chosen(asdict(interval(values))).endswith(said)

    def test_a_proxy_better_than_its_holdout_model(self):
        assert _overtaken(None) is None
        assert _overtaken({"steps": [1000, 2000, 3000], "share": [0.5, 0.8, 0.67]}) is None
        said = _overtaken({"steps": [1000, 2000, 3000], "share": [0.5, 0.68, 0.9]})
        assert "on 90.0% of its candidates at the end (on more than 67.0% from step 2,000 on)" in said
        assert "from step 3,000 on" in _overtaken({"steps": [1000, 2000, 3000], "share": [0.7, 0.6, 0.9]})

    @pytest.mark.parametrize(
        ("ahead", "agreed", "il_models"),
        [
            ([0.01, -0.005], [-0.3, -0.2], ["small_cnn", "small_cnn"]),
            ([-0.03, -0.05], [-0.3, 0.4], ["small_cnn", "small_cnn"]),
            ([-0.03], [], ["small_cnn"]),
            ([-0.03], [None], ["small_cnn"]),
            ([-0.03], [-0.3], ["resnet18"]),
        ],
    )
    def test_no_word_of_a_holdout_model_that_did_not_fail(self, ahead, agreed, il_models):
        method = {"early": {"ended_ahead": ahead, "rank_correlation": agreed}}
        method["holdout_models"] = [{"name": name} for name in il_models]
        assert _unlike(method, {"model": "resnet18"}) is None
        assert _unlike(None, {"model": "resnet18"}) is None  # for itself: there is no proxy

    def test_a_proxy_that_goes_by_something_else(self):
        early = {"ended_ahead": [-0.07, 0.01], "rank_correlation": [-0.3, -0.2]}
        method = {"early": early, "holdout_models": [{"name": "resnet18"}, {"name": "small_cnn"}]}
        said = _unlike(method, {"model": "resnet18"})
        assert "rank correlation -0.25 after a quarter" in said
        assert said.endswith("try --il-model resnet18")
        assert _unlike(method | {"holdout_models": [{"name": "resnet18"}]}, {"model": "resnet18"}) is None
        moved = [{"name": "thin_resnet18", "augment": "shift+mirror"}]
        assert _unlike(method | {"holdout_models": moved}, {"model": "resnet18"}) is None

    @pytest.mark.parametrize(
        ("ahead", "right", "said"),
        [
            ([-0.01, 0.005], [0.9, 0.88], True),
            ([0.02, -0.01], [0.9, 0.88], False),
            ([-0.01, 0.005], [0.82, 0.84], False),
            ([-0.01, 0.005], [None, None], False),
        ],
    )
    def test_a_holdout_model_that_is_too_good(self, ahead, right, said):
        method = {"early": {"ended_ahead": ahead}, "holdout_models": [{"accuracy": share} for share in right]}
        method["recorded_by"] = [{"name": "predictability"}, {"name": "reducible_loss"}]
        uniform = {"budgets": [0.5, 1.0], "accuracy": [{"mean": 0.5}, {"mean": 0.8}]}
        found = _too_good(method, uniform)
        assert (found is not None) == said
        if said:
            assert "it misses 11.0% of its holdout where the model, trained uniformly, ends by missing 20.0%" in found
        assert _too_good(method, {"budgets": [0.5], "accuracy": [{"mean": 0.5}]}) is None
        assert _too_good(None, uniform) is None
        assert _too_good(method | {"recorded_by": [{"name": "predictability"}] * 2}, uniform) is None

    def test_labels_of_ones_own_are_not_damaged(self, tmp_path, goldiprox, monkeypatch):  # noqa: F811
        (tmp_path / "own_pairs.py").write_text(
            "import numpy as np, torch\n"
            "def load():\n"
            "    y = np.arange(300) % 2\n"
            "    x = (y[:, None] + 0.1 * np.arange(300)[:, None] / 300).astype('float32').repeat(4, 1)\n"
            "    pairs = list(zip(torch.tensor(x), y.tolist()))\n"
            "    return pairs, pairs[:50]\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        flags = [
            "--data",
            "own_pairs:load",
            "--seeds",
            "1",
            "--no-itself",
            "--candidates",
            "20",
            "--keep",
            "5",
            "--json",
        ]
        shares = {}
        for name, more in (("mine", []), ("damaged", ["--noise", "0.2"])):
            code, out, err = goldiprox("compare", "--quick", *flags, *more, "--out", tmp_path / name)
            assert code == 0, err
            shares[name] = json.loads(out)["corrupted"]["training side"]
        assert shares["mine"] == 0 < shares["damaged"]
        sys.modules.pop("own_pairs", None)

    def test_quick(self, tmp_path, goldiprox):  # noqa: F811
        code, out, _ = goldiprox("compare", "--quick", "--out", tmp_path / "c", "--json")
        assert code == 0
        result = json.loads(out)
        assert result["model"] == "mlp512"
        assert Path(result["figures"][0]).is_file()
        code, shown, _ = goldiprox("compare", "--quick", "--noise", "0.1", "--out", tmp_path / "c")
        assert code == 0
        assert "one seed" in goldiprox("compare", "--quick", "--seeds", "1", "--out", tmp_path / "c")[1]
        left_out = goldiprox("compare", "--quick", "--method", "default,trusted=2", "--out", tmp_path / "c")[1]
        for said in ("by chance", "the choice: "):
            assert said in left_out
        again = f"Next: goldiprox compare --noise 0.1 --out {tmp_path / 'c'}"
        for said in (
            "uniform, 2x",
            "uniform on all, 1x",
            "the holdout: ",
            "default",
            "in FLOPs: ",
            "on its way: ",
            again,
        ):
            assert said in shown

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--method", "topk"], "Did you mean 'top_k'"),
            (["--budgets", "a,b"], "give numbers"),
            (["--holdout-noise", "some"], "clean, equal, or a share"),
            (["--preset", "paper", "--method", "top_k"], "leave out one or the other"),
            (["--preset", "paper", "--mixup", "on"], "what --mixup would"),
            (["--preset", "paper", "--augment", "shift"], "what --augment would"),
            (["--augment", "rotate"], "augmentation"),
            (["--preset", "paper", "--holdout-epochs", "3"], "what --holdout-epochs would"),
            (["--preset", "paper", "--acquisition", "loss"], "what --acquisition would"),
            (["--preset", "paper", "--acquisition", "reducible_loss", "--steps", "1"], "at least 12"),
            (["--preset", "paper", "--keep", "16", "--lr", "0.1"], "what --keep and --lr would"),
            (["--preset", "practice"], "preset"),
            (["--schedule", "linear"], "schedule"),
            (["--seeds", "0"], "at least one"),
        ],
    )
    def test_bad_usage(self, flags, said, goldiprox, tmp_path):  # noqa: F811
        code, _, err = goldiprox("compare", *flags, "--out", tmp_path / "c")
        assert code == 2
        assert said in err
        assert not (tmp_path / "c").exists()
