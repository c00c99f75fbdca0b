"""Of two sequences the one is taken that teaches a model of the proxy's kind more, by what was held out."""

import json
from dataclasses import asdict, replace
from math import isfinite

import pytest
import torch

import goldiprox as gp
from conftest import make_mlp
from goldiprox import pipeline
from goldiprox.cli.compare import _taken
from goldiprox.cli.run import _why
from goldiprox.compare import lab as labs
from goldiprox.compare.lab import Lab
from goldiprox.compare.methods import Method
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import below_floor, compare
from goldiprox.errors import Interrupted
from goldiprox.ledger import Cost, Ledger, Rate
from goldiprox.loop import History, rate_of
from goldiprox.pipeline import run
from goldiprox.rehearsal import LISTS, acquisitions, best, judged, too_small
from goldiprox.report.collect import read_run
from goldiprox.report.page import _billed, make_page
from goldiprox.rules import RULE
from goldiprox.settings import RunConfig
from goldiprox.stages import Silent, Stages
from test_cli import QUICK, goldiprox  # noqa: F401
from test_compare import forbidden
from test_enough import config as config_of
from test_tracking import read_tensorboard


def config(**changes) -> RunConfig:
    return config_of("blobs", **{"il_model": "proxy", "noise": 0.2, "epochs": 2} | changes)


@pytest.fixture
def against_the_proxy(monkeypatch):
    """Small models learn more from the order by the holdout model."""
    monkeypatch.setattr(pipeline, "best", lambda missed: "predictability")


@pytest.mark.parametrize(
    ("name", "rule", "expected"),
    [
        ("auto", RULE, LISTS),
        ("auto", "top_k", ("reducible_loss",)),
        ("loss", RULE, ("loss",)),
        ("mine:score", "top_k", ("mine:score",)),
    ],
)
def test_what_sequences_are_recorded_by(name, rule, expected):
    assert acquisitions(name, rule) == expected


@pytest.mark.parametrize(("held_out", "expected"), [(29, LISTS[:1]), (30, LISTS)])
def test_a_few_examples_decide_nothing(held_out, expected):
    assert acquisitions("auto", RULE, held_out) == expected


@pytest.mark.parametrize(
    ("name", "underfit", "instead", "expected"),
    [
        ("small", 0.88, None, 0.88),
        ("small", 0.87, None, None),
        ("small", None, None, None),
        ("large", 0.88, None, None),  # nothing is known of small ones
        ("large", 0.5, {"of": "small", "underfit": 0.9}, 0.9),
        ("large", 0.9, {"of": "small", "underfit": 0.5}, None),
        ("large", 0.9, {"of": "another", "underfit": 0.9}, None),
    ],
)
def test_models_too_small_for_their_data_are_not_asked(name, underfit, instead, expected):
    assert too_small("small", {"name": name, "underfit": underfit, "instead": instead}) == expected
    moved = {"name": name, "underfit": underfit, "moved": True, "instead": None}
    assert too_small("small", moved) is None  # no model knows moved images by heart


@pytest.mark.parametrize(("fewer", "taken"), [(60, "other"), (10, "first"), (0, "first"), (-60, "first")])
def test_the_first_is_taken_unless_the_other_one_misses_clearly_fewer(fewer, taken):
    missed = (torch.arange(1_000) < 300).double()
    other = (torch.arange(1_000) < 300 - fewer).double()
    other[torch.arange(1_000) >= 900] = 1.0  # each misses a hundred that the other does not
    missed[(torch.arange(1_000) >= 500) & (torch.arange(1_000) < 600)] = 1.0
    assert best({"first": missed, "other": other}) == taken


def test_what_is_missed_and_what_it_cost_to_know(blobs):
    model, ids = make_mlp(), torch.arange(7).numpy()
    history = History(cost=Cost(examples_trained=10, flops=600, seconds=2.0, evaluation_seconds=0.5))
    missed, cost = judged(model, blobs, ids, history, Rate(forward=20, training=60))
    x, y = blobs.gather(torch.arange(7))
    assert missed.tolist() == (model.eval()(x).argmax(1) != y).double().tolist()
    assert (cost.examples_scored, cost.examples_trained, cost.flops) == (7, 10, 740)
    assert cost.seconds > 2.0
    assert history.cost.flops == 600
    assert judged(model, blobs, ids, history, None)[1].flops is None


@pytest.mark.parametrize("weight", [float("nan"), 0.0])
def test_a_model_that_diverged_or_tells_nothing_apart_misses_all(weight, blobs):
    model, ids = make_mlp(), torch.arange(50).numpy()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, weight)
    missed, _ = judged(model, blobs, ids, History(), None)
    assert missed.tolist() == [1.0] * 50
    assert best({"first": torch.zeros(50).double(), "other": missed}) == "first"


def missed_by_another(stages: Stages, sequence: gp.Sequence) -> torch.Tensor:
    """What a rehearsal is, by hand: weights of another seed, the order of the large model, what was held out."""
    config, held_out = stages.config, torch.as_tensor(stages.prepared.split.holdout)
    model = gp.build(config.proxy, (2,), 2, seed=config.seed + 1_000_003)
    gp.replay(model, stages.data, sequence.shuffled(seed=config.seed), config=config.training, seed=config.seed)
    x, y = stages.data.gather(held_out)
    with torch.no_grad():
        return (model.eval()(x).argmax(1) != y).double()


class TestRun:
    def test_it_takes_what_teaches_more_and_says_so(self, tmp_path):
        result = run(config(), str(tmp_path))
        by, rehearsed = result["sequence"]["by"], result["sequence"]["rehearsed"]
        assert list(rehearsed) == list(LISTS)
        stages = Stages(config())
        opened = {name: gp.Sequence.open(tmp_path / f"sequence-{name}.arrow", stages.data) for name in LISTS}
        missed = {name: missed_by_another(stages, sequence) for name, sequence in opened.items()}
        assert by == best(missed)
        assert rehearsed == {name: pytest.approx(1 - float(each.mean())) for name, each in missed.items()}
        taken = {name: gp.Sequence.open(tmp_path / f"sequence-{name}.arrow").digest for name in LISTS}
        assert taken["reducible_loss"] != taken["predictability"]
        assert result["sequence"]["digest"] == gp.Sequence.open(tmp_path / "sequence.arrow").digest == taken[by]

    def test_comparisons_rehearse_alike(self, tmp_path):
        settings = config(candidates=41, epochs=1)  # 48 steps
        result = run(settings, str(tmp_path / "r"))
        plan = Plan(settings, steps=result["sequence"]["steps"], schedules=("constant",), seeds=(0,))
        assert plan.method_steps == result["sequence"]["steps"]
        (recorded,) = Lab(plan, tmp_path / "runs", Silent()).recorded(plan.methods[0], "constant")
        assert recorded.numbers["digest"] == result["sequence"]["digest"]
        assert recorded.numbers["rehearsed"] == result["sequence"]["rehearsed"]

    def test_both_and_the_knowledge_of_which_are_paid_for(self, tmp_path, against_the_proxy):
        result = run(config(), str(tmp_path / "both"))
        alone = {name: run(config(acquisition=name), str(tmp_path / name)) for name in LISTS}
        flops = {name: alone[name]["ledger"]["select"]["flops"] for name in LISTS}
        ledger = result["ledger"]
        assert ledger["select"]["flops"] == flops["reducible_loss"] > 0
        assert ledger["select by predictability"]["flops"] == flops["predictability"] == 0
        assert ledger["select by predictability"]["seconds"] > 0
        stages = Stages(config())
        rate, held_out = (
            rate_of(stages.build("test_enough:line", "proxy", 0), stages.example),
            stages.prepared.split.holdout,
        )
        assert rate is not None
        each = stages.steps * 8 * rate.training + len(held_out) * rate.forward
        assert ledger["rehearsal"]["flops"] == 2 * each
        once = Ledger({name: Cost(**cost) for name, cost in ledger.items()}).paid_once(besides=False)
        assert once.flops == ledger["irreducible"]["flops"] + flops["reducible_loss"] + 2 * each
        replay = result["results"]["uniform"]["flops"] / result["speedup"]["replay"]["flops"]
        assert result["speedup"]["flops"] == pytest.approx(
            result["results"]["uniform"]["flops"] / (replay + once.flops)
        )
        assert all("rehearsal" not in one["ledger"] for one in alone.values())
        for name in LISTS:
            sequence = gp.Sequence.open(tmp_path / "both" / f"sequence-{name}.arrow")
            assert sequence.digest == alone[name]["sequence"]["digest"]
        assert result["speedup"]["replay"]["flops"] == alone["predictability"]["speedup"]["replay"]["flops"]

    def test_what_no_proxy_chose_is_shown_without_one(self, tmp_path, against_the_proxy):
        result = run(config(), str(tmp_path / "r"))
        assert result["proxy_accuracy"] is None
        assert not [name for name in ("proxy.safetensors", "losses.parquet") if (tmp_path / "r" / name).exists()]
        assert "rank_correlation" not in (tmp_path / "r" / "metrics.jsonl").read_text()
        shown = read_run(tmp_path / "r", data=Stages(config()).prepared.data)
        assert shown.methods[0].label == "the sequence (predictability)"
        page = make_page([shown])
        assert "The surest to the holdout model" in page
        assert "picks go by no proxy" in page
        assert "the proxy turns to those that are left" not in page

    @pytest.mark.parametrize("taken", LISTS)
    def test_the_page_bills_both_from_the_first_step_on(self, tmp_path, monkeypatch, taken):
        monkeypatch.setattr(pipeline, "best", lambda missed: taken)
        result = run(config(), str(tmp_path / "r"))
        shown = read_run(tmp_path / "r")
        assert shown.speedup == result["speedup"]
        once = sum(
            shown.ledger[n].flops or 0 for n in ("irreducible", "select", "select by predictability", "rehearsal")
        )
        billed = _billed(shown, shown.methods[0], "flops")
        assert billed == [once + e["flops"] for e in shown.methods[0].evaluations]
        with_proxy = run(config(acquisition="reducible_loss"), str(tmp_path / "followed"))
        first = _billed(read_run(tmp_path / "followed"), shown.methods[0], "flops")
        assert first is not None
        assert first[0] < with_proxy["ledger"]["irreducible"]["flops"] + with_proxy["ledger"]["select"]["flops"]

    @pytest.mark.parametrize(
        "sign",
        ["sequence-predictability.arrow.partial", ".checkpoint/rehearse-reducible_loss", ".checkpoint/train"],
    )
    def test_broken_off_anywhere_it_ends_the_same(self, tmp_path, sign, against_the_proxy):
        whole = run(config(), str(tmp_path / "whole"))
        asked, begun = iter(range(100)), tmp_path / "r" / sign
        with pytest.raises(Interrupted):
            run(config(), str(tmp_path / "r"), every=0.0, stop=lambda: begun.exists() and next(asked) > 3)
        again = run(config(), str(tmp_path / "r"))
        assert again["sequence"]["digest"] == whole["sequence"]["digest"]
        assert again["sequence"]["rehearsed"] == whole["sequence"]["rehearsed"]
        for name in ("select", "select by predictability", "rehearsal"):
            assert again["ledger"][name]["flops"] == whole["ledger"][name]["flops"]
        left = [{path.name for path in (tmp_path / folder).iterdir()} for folder in ("whole", "r")]
        assert left[0] == left[1]

    def test_the_one_that_was_taken_is_a_copy(self, tmp_path, against_the_proxy):
        result = run(config(), str(tmp_path))
        (tmp_path / "sequence.arrow").write_bytes(b"")
        assert gp.Sequence.open(tmp_path / "sequence-predictability.arrow").digest == result["sequence"]["digest"]

    def test_every_bill_is_tracked_once(self, tmp_path, against_the_proxy):
        pytest.importorskip("tensorboard")
        result = run(config(), str(tmp_path / "r"), track=["tensorboard"])
        found = read_tensorboard(tmp_path / "r" / "tracking", "r")
        for name in ("select", "select by predictability", "rehearsal"):
            ((_, flops),) = found[f"ledger/{name}/flops"]
            assert flops == pytest.approx(result["ledger"][name]["flops"])

    def test_it_says_which_and_why(self, capsys):
        sequence = {"by": "predictability", "rehearsed": {"reducible_loss": 0.5, "predictability": 0.625}}
        assert _why({"sequence": sequence | {"too_small": None}, "proxy": {"name": "small"}}) == (
            "The sequence was recorded by predictability: of what was held out, small is right on 62.5% having learnt "
            "from it, on 50.0% from the one by reducible_loss."
        )
        alone = {"by": "reducible_loss", "rehearsed": {}, "too_small": 0.94}
        assert _why({"sequence": alone, "proxy": {"name": "small"}}) == (
            "The sequence was recorded by reducible_loss: no second one was tried, since small could not tell which is "
            "better for a larger one: as a holdout model it misses 94% as much of what it learnt as of the rest."
        )
        assert _why({"sequence": alone | {"too_small": None}, "proxy": None}) is None

    def test_small_models_that_cannot_tell_are_not_asked(self, tmp_path, monkeypatch):
        monkeypatch.setattr(pipeline, "too_small", lambda proxy, il_model: 0.94 if proxy == il_model["name"] else None)
        result = run(config(), str(tmp_path / "r"))
        alone = run(config(acquisition="reducible_loss"), str(tmp_path / "alone"))
        assert (result["sequence"]["too_small"], result["sequence"]["rehearsed"]) == (0.94, {})
        assert result["sequence"]["digest"] == alone["sequence"]["digest"]
        assert result["ledger"].keys() == alone["ledger"].keys()
        assert result["speedup"]["flops"] == alone["speedup"]["flops"]
        assert not (tmp_path / "r" / "sequence-predictability.arrow").exists()
        assert alone["sequence"]["too_small"] is None  # one that was asked for needs no reason

    def test_a_second_run_takes_the_place_of_the_first(self, tmp_path, monkeypatch, against_the_proxy):
        first = run(config(), str(tmp_path / "r"))
        monkeypatch.setattr(pipeline, "best", lambda missed: "reducible_loss")
        second = run(config(), str(tmp_path / "r"), force=True)
        assert gp.Sequence.open(tmp_path / "r" / "sequence.arrow").digest == second["sequence"]["digest"]
        assert first["sequence"]["digest"] != second["sequence"]["digest"]

    def test_there_is_nothing_to_rehearse_for_where_nothing_is_held_out(self, tmp_path):
        cross_fitted = config(num_folds=2)
        cross_fitted = replace(cross_fitted, data=replace(cross_fitted.data, holdout=0.0))
        result = run(cross_fitted, str(tmp_path))
        assert (result["sequence"]["by"], result["sequence"]["rehearsed"]) == ("reducible_loss", {})
        assert not (tmp_path / "sequence-predictability.arrow").exists()

    def test_the_paper_has_one_sequence(self):
        assert Stages(replace(RunConfig.paper(), data=config().data)).acquisitions == ("reducible_loss",)


class TestCompare:
    @pytest.fixture
    def plan(self):
        return Plan(config(), methods=(Method(),), steps=48, budgets=(1,), seeds=(0, 1), itself=False, compared=40)

    def test_seed_by_seed_with_the_bill_for_both(self, plan, tmp_path, monkeypatch):
        lab, method = Lab(plan, tmp_path, Silent()), plan.methods[0]
        answers = iter(["predictability", "reducible_loss"])
        monkeypatch.setattr(labs, "best", lambda missed: next(answers))
        taken = lab.recorded(method, "cosine")
        alone = {name: lab.recorded(Method(acquisition=name), "cosine") for name in LISTS}
        assert [run.numbers["by"] for run in taken] == ["predictability", "reducible_loss"]
        for n, by in enumerate(("predictability", "reducible_loss")):
            assert taken[n].numbers["digest"] == alone[by][n].numbers["digest"]
            both = sum(runs[n].numbers["flops"] for runs in alone.values())
            assert taken[n].numbers["flops"] > both == alone["reducible_loss"][n].numbers["flops"] > 0
            assert taken[n].numbers["rehearsed"].keys() == set(LISTS)
            assert "rehearsed" not in alone[by][n].numbers

    def test_a_rehearsal_is_kept_like_every_run(self, plan, tmp_path, monkeypatch):
        before = Lab(plan, tmp_path, Silent()).recorded(plan.methods[0], "cosine")
        monkeypatch.setattr(labs, "replay_many", forbidden)
        again = Lab(plan, tmp_path, Silent()).recorded(plan.methods[0], "cosine")
        assert [run.numbers for run in again] == [run.numbers for run in before]

    def test_recordings_kept_by_an_earlier_version_do(self, plan, tmp_path):
        lab, method = Lab(plan, tmp_path, Silent()), Method(acquisition="reducible_loss")
        (before, *_) = lab.recorded(method, "cosine")
        assert before.numbers["by"] == "reducible_loss"
        paths = list(tmp_path.glob("select-proxy-*.json"))
        assert len(paths) == 2
        for path in paths:  # another name or one more would be another key, and all recordings would be made again
            kept = json.loads(path.read_text())
            assert "by" not in kept["numbers"]
            assert kept["settings"].keys() == {
                *("data", "test", "split", "proxy", "dropout", "acquisition", "rule", "candidates", "keep", "table"),
                *("pool", "compared", "steps", "every", "seed", *asdict(plan.training("cosine"))),
            }

    def test_the_result_names_what_was_taken(self, plan, tmp_path):
        result = compare(replace(plan, methods=(Method(), Method("top_k"))), tmp_path)
        methods = result["schedules"]["cosine"]["methods"]
        for seed in methods["default"]["recorded_by"]:
            assert seed["rehearsed"].keys() == set(LISTS)
            assert seed["name"] in LISTS
        alone = {"name": "reducible_loss", "rehearsed": None, "too_small": None}
        assert methods["top_k"]["recorded_by"] == [alone] * 2
        assert _taken(methods["top_k"]) is None

    def test_in_words(self):
        seeds = [("predictability", 0.5, 0.7), ("reducible_loss", 0.6, 0.5), ("predictability", 0.4, 0.6)]
        rehearsed = [{"name": n, "rehearsed": {"reducible_loss": a, "predictability": b}} for n, a, b in seeds]
        made = [each | {"too_small": None} for each in rehearsed]
        assert _taken({"recorded_by": made}) == (
            "recorded by predictability for 2 of 3 seeds (of what was held out, a small model is right on 65.0% having "
            "learnt from it, on 45.0% from the one by reducible_loss); by reducible_loss for 1 of 3 seeds (of what was "
            "held out, a small model is right on 60.0% having learnt from it, on 50.0% from the one by predictability)"
        )
        small = {"name": "reducible_loss", "rehearsed": None, "too_small": 0.9}
        why = (
            "no second one was tried, since a model of the proxy's kind could not tell which is better for a larger "
            "one: as a holdout model it misses 90% as much of what it learnt as of the rest"
        )
        assert _taken({"recorded_by": [small] * 2}) == f"recorded by reducible_loss for 2 of 2 seeds; {why}"
        mixed = _taken({"recorded_by": [made[1], small, small]})
        assert mixed
        assert mixed.startswith("recorded by reducible_loss for 3 of 3 seeds (for 1 of them of what was held out")
        assert mixed.endswith(f"from the one by predictability); {why} (for 2 of 3)")

    def test_seeds_whose_small_models_cannot_tell_go_by_the_first(self, plan, tmp_path, monkeypatch):
        lab, method = Lab(plan, tmp_path, Silent()), plan.methods[0]
        answers = iter([None, 0.9])
        monkeypatch.setattr(labs, "too_small", lambda proxy, il_model: next(answers))
        monkeypatch.setattr(labs, "best", lambda missed: "predictability")
        asked, unasked = lab.recorded(method, "cosine")
        alone = lab.recorded(Method(acquisition="reducible_loss"), "cosine")[1]
        assert asked.numbers["by"] == "predictability"
        assert len(asked.numbers["rehearsed"]) == 2
        assert unasked.numbers == alone.numbers | {"too_small": 0.9}
        assert len(list(tmp_path.glob("rehearsal-*.json"))) == 2  # of one seed

    def test_a_floor_is_spoken_of_only_where_scores_have_one(self, plan, tmp_path):
        methods = (Method(acquisition="predictability"), Method(acquisition="reducible_loss"))
        found = compare(replace(plan, methods=methods), tmp_path)["schedules"]["cosine"]["methods"]
        by_proxy, by_table = (found[f"default,acquisition={name}"] for name in LISTS)
        assert by_proxy["sequence"]["below_floor"]["share"]
        assert by_proxy["proxy_accuracy"]["mean"] > 0.5
        assert by_proxy["cost"]["proxy"]["flops"] > 0
        assert by_table["sequence"]["below_floor"] is None
        assert by_table["proxy_accuracy"] is None
        assert by_table["cost"]["proxy"]["flops"] == 0
        assert by_table["early"]["rank_correlation"] == [None] * 2
        assert all(isfinite(found) for found in by_proxy["early"]["rank_correlation"])

    def test_it_is_that_of_the_seeds_which_go_by_a_proxy(self, plan, tmp_path, monkeypatch):
        lab, method = Lab(plan, tmp_path, Silent()), plan.methods[0]
        by_the_proxy = lab.recorded(Method(acquisition="reducible_loss"), "cosine")
        by_the_table = lab.recorded(Method(acquisition="predictability"), "cosine")
        alone = below_floor(Lab(replace(plan, seeds=(1,)), tmp_path, Silent()), method, [by_the_proxy[1]])
        assert alone is not None
        assert below_floor(lab, method, [by_the_table[0], by_the_proxy[1]]) == alone


class TestSelect:
    def test_it_records_one_sequence(self, goldiprox):  # noqa: F811
        code, _, err = goldiprox("select", *QUICK, "--acquisition", "auto")
        assert code == 2
        assert "which run and compare do" in err

    def test_a_name_that_is_none_is_told_of_both(self, goldiprox):  # noqa: F811
        for command in (["run", "--acquisition", "autoo"], ["compare", "--method", "default,acquisition=autoo"]):
            code, _, err = goldiprox(*command)
            assert code == 2
            assert "Or auto, in run and compare: two sequences." in " ".join(err.split())

    def test_without_a_proxy_it_says_so(self, goldiprox):  # noqa: F811
        code, out, err = goldiprox("select", *QUICK, "--acquisition", "uniform")
        assert code == 0, err
        assert "by uniform, for which no proxy is needed." in out
        code, out, _ = goldiprox("select", *QUICK, "--acquisition", "uniform", "--json", "--out", "again.arrow")
        assert json.loads(out)["proxy"] is None
        assert json.loads(out)["ledger"]["select"]["flops"] == 0
        assert gp.Sequence.open("again.arrow").digest == gp.Sequence.open("sequence.arrow").digest
        assert "proxy" not in gp.Sequence.open("again.arrow").header.config
        code, _, err = goldiprox(
            "select", *QUICK, "--acquisition", "uniform", "--save-proxy", "p.safetensors", "--force"
        )
        assert code == 2
        assert "uniform needs no proxy; leave out --save-proxy p.safetensors" in err


def test_turns_by_predictability_are_as_the_method_card_says():
    """As many as the run has passes, times one and what the label is likelier than on average; the surest first."""
    draw = torch.Generator().manual_seed(0)
    data = gp.TensorData(torch.zeros(600, 2), torch.zeros(600, dtype=torch.long), num_classes=2)
    sure = torch.rand(600, generator=draw) ** 0.3
    table, steps, keep = gp.IrreducibleLosses(-sure.log()), 600, 10
    recording = gp.record(
        None,
        data,
        irreducible=table,
        acquisition=gp.predictability,
        steps=steps,
        candidates=600,
        keep=keep,
    )
    passes, ids = steps * keep / 600, torch.as_tensor(recording.ids)
    times = torch.bincount(ids, minlength=600)
    assert (times - passes * (1 + sure - sure.mean())).abs().max() < 1
    first = torch.tensor([(ids == i).nonzero()[0, 0].item() for i in range(600)]) / len(ids)
    assert first[sure < 0.3].min() > first[sure > 0.9].max()
