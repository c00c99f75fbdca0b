"""Is a small holdout model enough? Where it is not, one of the large model's kind takes its place, on the bill too."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import goldiprox as gp
from goldiprox.assessment import sharpness, underfit
from goldiprox.compare import lab as labs
from goldiprox.compare.lab import Lab
from goldiprox.compare.methods import Method
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import compare
from goldiprox.enough import UNDERFIT, kinds, shortcoming
from goldiprox.irreducible import Rivals
from goldiprox.pipeline import run
from goldiprox.prepare import DataConfig
from goldiprox.stages import RunConfig, Silent, Stages
from test_cli import goldiprox  # noqa: F401
from test_compare import forbidden


def crosses() -> tuple[gp.TensorData, gp.TensorData]:
    """Two classes that no line divides: quarters of a square, in turns."""
    x = 2 * torch.rand(4_400, 2, generator=torch.Generator().manual_seed(0)) - 1
    y = (x[:, 0] * x[:, 1] > 0).long()
    train, test = (
        gp.TensorData(x[part], y[part], num_classes=2, name="crosses") for part in (slice(4_000), slice(4_000, 4_400))
    )
    return train, test


def blobs() -> tuple[gp.TensorData, gp.TensorData]:
    """Two classes that a line divides."""
    train, test = crosses()
    return tuple(part.replace(y=(part.x[:, 0] > 0).long()) for part in (train, test))  # type: ignore[return-value]


def line(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], num_classes)


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 64), nn.ReLU(), nn.Linear(64, num_classes))


HOLDOUT = gp.HoldoutConfig.robust(gp.TrainingConfig(lr=0.02), max_epochs=4, min_steps=60)


def config(data: str = "crosses", **changes) -> RunConfig:
    given = {"proxy": "test_enough:line", "model": "test_enough:network", "holdout": HOLDOUT, "device": "cpu"}
    data_config = DataConfig(f"test_enough:{data}", noise=changes.pop("noise", 0.0))
    return RunConfig(data_config, **given | {"candidates": 40, "keep": 8, "epochs": 1} | changes)


@pytest.mark.parametrize(
    ("il_model", "judged", "expected"),
    [
        ("auto", True, ["p", "m"]),
        ("auto", False, ["p"]),
        ("proxy", True, ["p"]),
        ("model", True, ["m"]),
        ("mine:net", True, ["mine:net"]),
    ],
)
def test_which_holdout_models_are_tried(il_model, judged, expected):
    assert kinds(il_model, "p", "m", judged) == expected
    assert kinds(il_model, "p", "p", judged)[1:] == []  # never one kind twice


class TestShortcoming:
    def table(self, wrong: float) -> gp.IrreducibleLosses:
        """A model that is as sure as it should be, of labels of which this share is wrong."""
        draw, confidence = torch.Generator().manual_seed(0), torch.linspace(0, 8, 4_000)
        contradicted = torch.rand(4_000, generator=draw) < (-confidence).sigmoid()
        margin = torch.where(contradicted ^ (torch.rand(4_000, generator=draw) < wrong), confidence, -confidence)
        return gp.IrreducibleLosses(nn.functional.softplus(margin), rivals=Rivals(torch.zeros(4_000), margin))

    def test_labels_that_look_wrong(self):
        assert shortcoming(self.table(0.0), None) is None
        assert shortcoming(self.table(0.005), None) is None
        assert (shortcoming(self.table(0.1), 0.5) or "").endswith("% of the labels look wrong")

    def test_a_model_too_small_for_its_data(self):
        assert shortcoming(self.table(0.0), UNDERFIT) is None
        assert "it is too small for this data" in (shortcoming(self.table(0.0), 0.95) or "")

    def test_what_cannot_be_told_apart_is_not(self):
        assert "look wrong, or it is too small" in (shortcoming(self.table(0.1), 0.95) or "")

    def test_a_table_that_does_not_say_what_is_predicted(self):
        assert shortcoming(gp.IrreducibleLosses(torch.ones(5)), None) is None


class TestUnderfit:
    def test_it_is_the_share_missed_of_what_was_learnt_by_the_share_missed_of_the_rest(self):
        data, _ = crosses()
        model = nn.Linear(2, 2)
        learnt, others = np.arange(400), np.arange(400, 600)
        missed = sharpness(model, data, others)[1]
        with torch.no_grad():
            wrong = (model(data.x).argmax(1) != data.y).double()
        own = wrong[:400:2]
        least = own.mean() - own.std(correction=0) / 200**0.5
        assert underfit(model, data, learnt, missed) == pytest.approx(float(least / wrong[400:600].mean()))

    def test_a_few_that_are_missed_prove_nothing(self):
        data, _ = blobs()
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
            model.bias.copy_(torch.tensor([0.0, 0.01]))  # a hair off
        missed = sharpness(model, data, np.arange(600, 1_200))[1]
        assert 0 < missed.sum() < 6
        assert underfit(model, data, np.arange(600), missed) < 0.8

    def test_nothing_missed(self):
        data, _ = blobs()
        assert underfit(nn.Linear(2, 2), data, np.arange(10), torch.zeros(20)) == 0

    @pytest.mark.parametrize(("data", "model", "small"), [(crosses, line, True), (blobs, line, False)])
    def test_a_line_is_too_small_for_crosses(self, data, model, small):
        train, _ = data()
        split = gp.holdout_split(len(train), train.labels)
        _, _, (report,), _ = gp.irreducible_losses(lambda fold: model((2,), 2), train, split, config=HOLDOUT)
        assert (report.underfit > UNDERFIT) == small

    def test_it_is_not_known_where_blends_are_not_tried(self):
        train, _ = blobs()
        split = gp.holdout_split(len(train), train.labels)
        plain = gp.HoldoutConfig(max_epochs=1)
        _, _, (report,), _ = gp.irreducible_losses(lambda fold: line((2,), 2), train, split, config=plain)
        assert report.underfit is None


class TestRun:
    def test_a_line_gives_way_to_a_network_and_both_are_paid(self):
        stages = Stages(config())
        table, _, summary = stages.irreducible()
        assert summary["name"] == "test_enough:network"
        assert summary["instead"]["of"] == "test_enough:line"
        assert "too small" in summary["instead"]["because"]
        assert (table.config["il_model"], table.config["instead"]) == (summary["name"], summary["instead"])
        large, small = (Stages(config(il_model=name)) for name in ("model", "proxy"))
        assert large.irreducible()[0].digest == table.digest
        assert small.irreducible()[2]["shortcoming"] == summary["instead"]["because"]
        bills = [s.ledger.stages["irreducible"] for s in (stages, large, small)]
        assert bills[0].flops == bills[1].flops + bills[2].flops
        assert bills[0].examples_trained == bills[1].examples_trained + bills[2].examples_trained

    def test_what_is_enough_stays(self):
        stages = Stages(config("blobs"))
        table, _, summary = stages.irreducible()
        assert (summary["name"], summary["instead"], summary["shortcoming"]) == ("test_enough:line", None, None)
        assert "instead" not in table.config

    def test_wrong_labels(self):
        _, _, summary = Stages(config("blobs", noise=0.3)).irreducible()
        assert summary["name"] == "test_enough:network"
        assert "of the labels look wrong" in summary["instead"]["because"]

    @pytest.mark.parametrize("changes", [{"acquisition": "loss"}, {"holdout": gp.HoldoutConfig(max_epochs=1)}])
    def test_nothing_is_asked_that_nothing_goes_by_or_that_cannot_be_told(self, changes):
        assert Stages(config(**changes)).holdout_models == ["test_enough:line"]

    def test_the_paper_has_one_holdout_model(self):
        paper = RunConfig.paper(data=DataConfig("test_enough:crosses"), proxy="test_enough:line")
        assert Stages(replace(paper, candidates=40, keep=8)).holdout_models == ["test_enough:line"]

    def test_a_run_says_so(self, tmp_path):
        result = run(config(), str(tmp_path / "r"))
        assert result["il_model"]["name"] == "test_enough:network"
        assert json.loads((tmp_path / "r" / "result.json").read_text())["il_model"] == result["il_model"]
        assert (
            gp.IrreducibleLosses.open(tmp_path / "r" / "irreducible.arrow").config["instead"]["of"]
            == "test_enough:line"
        )

    def test_a_large_model_that_does_not_fit_is_refused_before_anything_is_trained(self, monkeypatch, tmp_path):
        monkeypatch.setattr("goldiprox.stages.irreducible_losses", forbidden)
        with pytest.raises(gp.UnknownName, match="resnet81"):
            run(config(model="resnet81"), str(tmp_path / "r"))


class TestCompare:
    @pytest.fixture
    def plan(self):
        return Plan(config(), methods=(Method(),), steps=12, budgets=(1,), seeds=(0, 1), itself=False, compared=0)

    def test_seeds_whose_holdout_model_falls_short_get_a_larger_one(self, plan, tmp_path, monkeypatch):
        asked = []

        def only_the_first(table, missed):
            asked.append(missed)
            return "too small" if len(asked) == 1 else None

        monkeypatch.setattr(labs, "shortcoming", only_the_first)
        lab = Lab(plan, tmp_path, Silent())
        tables, costs = lab.tables(plan.methods[0])
        assert [c["il_model"] for c in costs] == ["test_enough:network", "test_enough:line"]
        assert costs[0]["flops"] > costs[1]["flops"]
        large, small = (lab.tables(Method(il_model=name)) for name in ("model", "proxy"))
        assert large[0][0].digest == tables[0].digest
        assert costs[0]["flops"] == large[1][0]["flops"] + small[1][0]["flops"]
        monkeypatch.setattr(labs, "irreducible_losses", forbidden)
        again, _ = Lab(plan, tmp_path, Silent()).tables(plan.methods[0])
        assert [t.digest for t in again] == [t.digest for t in tables]

    def test_the_result_names_them(self, plan, tmp_path):
        result = compare(replace(plan, methods=(Method(), Method("paper"), Method(acquisition="loss"))), tmp_path)
        found = result["schedules"]["cosine"]["methods"]
        assert result["il_model"] == "auto"
        assert found["default"]["il_models"] == ["test_enough:network"] * 2
        assert found["paper"]["il_models"] == ["test_enough:line"] * 2
        assert found["default,acquisition=loss"]["il_models"] == [None]


class TestCommand:
    NOISY = ("--noise", "0.3", "--device", "cpu")

    def test_without_a_large_model_it_says_that_one_would_help(self, goldiprox):  # noqa: F811
        code, out, err = goldiprox("irreducible", *self.NOISY)
        assert code == 0, err
        assert "(mlp128)" in out
        assert "It falls short:" in out
        assert "--model NAME --force" in out
        code, out, _ = goldiprox("irreducible", *self.NOISY, "--force", "--il-model", "proxy")
        assert code == 0
        assert "falls short" not in out  # it was asked for

    def test_with_one_it_is_asked(self, goldiprox):  # noqa: F811
        code, out, err = goldiprox("irreducible", *self.NOISY, "--model", "mlp512")
        assert code == 0, err
        assert "(mlp512)" in out
        assert "One of the proxy's kind, mlp128, falls short:" in out

    def test_of_a_kind_that_is_not_named(self, goldiprox):  # noqa: F811
        code, _, err = goldiprox("irreducible", "--il-model", "model")
        assert code == 2
        assert "name that too (--model NAME)" in err
