"""Is a small holdout model enough? Where it is not, one of the large model's kind takes its place, on the bill too."""

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

import goldiprox as gp
from goldiprox import assessment, crossfit, enough, holdout
from goldiprox.assessment import sharpness, underfit
from goldiprox.cli.compare import _made_by
from goldiprox.compare import lab as labs
from goldiprox.compare.lab import Lab
from goldiprox.compare.methods import Method
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import compare
from goldiprox.enough import UNDERFIT, Attempt, Signs, attempts
from goldiprox.errors import Interrupted, UnknownName
from goldiprox.irreducible import Rivals
from goldiprox.ledger import Cost
from goldiprox.pipeline import run
from goldiprox.prepare import DataConfig
from goldiprox.settings import RunConfig
from goldiprox.stages import Silent, Stages
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


def pictures() -> tuple[gp.TensorData, gp.TensorData]:
    """Crosses, painted: two classes by whether both halves are of one brightness, or not; a third is bright above."""
    paint = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1)) + 0.5

    def painted(part: gp.TensorData) -> gp.TensorData:
        halves = part.x[:, :, None, None, None].expand(-1, -1, 4, 8, 1).reshape(-1, 1, 8, 8)
        y = torch.where(part.x[:, 0] > 0.3, 2, part.y)
        return gp.TensorData(halves * paint, y, num_classes=3, name="pictures")

    return tuple(map(painted, crosses()))  # type: ignore[return-value]


def flat(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def thin(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *network((64,), num_classes))


def large(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, num_classes))


class AsFloats(nn.Linear):
    """A line for whole numbers."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / 100)


HOLDOUT = gp.HoldoutConfig.robust(gp.TrainingConfig(lr=0.02), max_epochs=4, min_steps=60)
ONCE = replace(HOLDOUT, cleaned=False, mixup="off", calibrated=True)


def config(data: str = "crosses", **changes) -> RunConfig:
    given = {"proxy": "test_enough:line", "model": "test_enough:network", "holdout": HOLDOUT, "device": "cpu"}
    noise = {name: changes.pop(name, 0.0) for name in ("noise", "holdout_noise")}
    data_config = DataConfig(f"test_enough:{data}", **noise)
    return RunConfig(data_config, **given | {"candidates": 40, "keep": 8, "epochs": 1} | changes)


FLOPS = {"p": 10.0, "m": 100.0, "tiny": 1.0, "mine:net": None}


@pytest.mark.parametrize(
    ("il_model", "model", "judged", "expected"),
    [
        ("auto", "m", True, ["p", "m"]),
        (None, "m", True, ["p", "m"]),
        ("auto", "m", False, ["p"]),
        ("auto", "p", True, ["p"]),
        ("auto", "tiny", True, ["p"]),
        ("auto", "mine:net", True, ["p", "mine:net"]),
        ("proxy", "m", True, ["p"]),
        ("model", "m", True, ["m"]),
        ("model", "tiny", True, ["tiny"]),
        ("mine:net", "m", True, ["mine:net"]),
    ],
)
def test_which_holdout_models_are_tried(il_model, model, judged, expected):
    found = attempts(il_model, "p", model, judged=judged, flops=FLOPS.__getitem__)
    assert found == [Attempt(name) for name in expected]


@pytest.mark.parametrize(
    ("model", "il_model", "judged", "expected"),
    [
        ("m", "auto", True, [Attempt("p"), Attempt("t", moved=True), Attempt("m")]),  # a thin one is known
        ("mine:net", "auto", True, [Attempt("p"), Attempt("mine:net")]),
        ("tiny", "auto", True, [Attempt("p")]),
        ("m", "auto", False, [Attempt("p")]),
        ("m", "model", True, [Attempt("m")]),
    ],
)
def test_moved_images_are_tried_before_a_large_model(monkeypatch, model, il_model, judged, expected):
    monkeypatch.setattr(enough, "THIN", {"m": "t"})
    flops = (FLOPS | {"t": 5.0}).__getitem__
    assert attempts(il_model, "p", model, judged=judged, moving=True, flops=flops) == expected


def test_what_cannot_be_made_is_known_before_anything_is_trained():
    with pytest.raises(KeyError, match="typo"):
        attempts("auto", "p", "typo", judged=True, flops=FLOPS.__getitem__)


class TestShortcoming:
    def table(self, wrong: float) -> gp.IrreducibleLosses:
        """A model that is as sure as it should be, of labels of which this share is wrong."""
        draw, confidence = torch.Generator().manual_seed(0), torch.linspace(0, 8, 4_000)
        contradicted = torch.rand(4_000, generator=draw) < (-confidence).sigmoid()
        margin = torch.where(contradicted ^ (torch.rand(4_000, generator=draw) < wrong), confidence, -confidence)
        return gp.IrreducibleLosses(nn.functional.softplus(margin), rivals=Rivals(torch.zeros(4_000), margin))

    def shortcoming(self, table: gp.IrreducibleLosses, underfit: float | None = None) -> str:
        report = holdout.HoldoutReport(1, 1, {}, Cost(), None, np.arange(1), underfit=underfit)
        return Signs.of(table, report).shortcoming or ""

    def test_labels_that_look_wrong(self):
        assert self.shortcoming(self.table(0.0)) == ""
        assert self.shortcoming(self.table(0.005)) == ""
        assert self.shortcoming(self.table(0.1), 0.4).endswith("% of the labels look wrong")

    @pytest.mark.parametrize(
        ("underfit", "small"), [(0.0, False), (0.40, False), (0.46, True), (0.69, True), (1.02, True)]
    )
    def test_a_model_too_small_for_its_data(self, underfit, small):
        assert ("as if it were too small" in self.shortcoming(self.table(0.0), underfit)) == small

    def test_what_cannot_be_told_apart_is_not(self):
        assert "look wrong, or it is too small" in self.shortcoming(self.table(0.1), 0.95)

    def test_a_table_that_does_not_say_what_is_predicted(self):
        assert self.shortcoming(gp.IrreducibleLosses(torch.ones(5))) == ""

    @pytest.mark.parametrize(
        ("wrong", "of_holdout", "error", "right"),
        [
            (0.0, 0.0, 0.01, True),
            (0.0, 0.02, 0.01, True),
            (0.0, 0.04, 0.01, False),  # the holdout alone is wrong
            (0.1, 0.0, 0.01, True),
            (0.1, 0.04, 0.01, True),
            (0.1, 0.06, 0.01, False),
            (0.1, 0.04, 0.04, False),  # there is no telling
            (0.1, None, 0.0, False),
            (None, None, 0.0, False),
        ],
    )
    def test_does_the_holdout_look_right(self, wrong, of_holdout, error, right):
        assert Signs(wrong, 1.0, True, of_holdout, error).holdout_looks_right == right

    @pytest.mark.parametrize(
        ("wrong", "of_holdout", "blends_worse", "once"),
        [
            (0.0, 0.0, True, True),
            (0.0, 0.0, False, False),  # noise that a small model finds learnable looks so
            (0.0, 0.0, None, False),
            (0.0, 0.1, True, False),
            (0.1, 0.0, True, True),
            (0.1, 0.0, False, True),  # wrong labels are told, and the holdout has none
            (0.1, 0.0, None, True),
            (0.1, 0.1, True, False),
        ],
    )
    def test_the_larger_one_is_trained_once_where_the_holdout_looks_right(self, wrong, of_holdout, blends_worse, once):
        assert Signs(wrong, 1.0, blends_worse, of_holdout).then(Attempt("m"), HOLDOUT) == (ONCE if once else HOLDOUT)

    @pytest.mark.parametrize("once", [False, True])
    def test_one_by_moved_images_learns_them_for_longer_and_no_blends(self, once):
        how = Signs(0.1, 1.0, None, 0.0 if once else 0.1).then(Attempt("m", moved=True), HOLDOUT)
        longer = {"max_epochs": 3 * HOLDOUT.max_epochs, "min_steps": 3 * HOLDOUT.min_steps}
        assert how == replace(ONCE, cleaned=not once, augment="shift+mirror", **longer)

    def test_moved_images_must_be_of_the_same_kind(self):
        assert [Signs(0.0, 1.0, None, mirrored=share).alike for share in (None, 0.5, 0.95)] == [False, False, True]

    def test_wrong_labels_are_no_reason_for_a_large_one_after_moved_images(self):
        one, moved = Attempt("p"), Attempt("t", moved=True)
        assert "look wrong" in (one.falls_short(Signs(0.1, 0.1, None)) or "")
        assert "look wrong" in (one.falls_short(Signs(0.1, 0.1, None, moved=True)) or "")  # as `--augment` has it
        assert moved.falls_short(Signs(0.1, 0.6, None, moved=True)) is None
        assert "as if it were too small" in (moved.falls_short(Signs(0.1, 0.9, None, moved=True)) or "")
        assert "60% as much" in (one.falls_short(Signs(0.0, 0.6, None)) or "")

    @pytest.mark.parametrize("wrong", [0.0, 0.1, 0.4])
    def test_wrong_labels_do_not_make_a_model_too_small(self, wrong):
        """Of right labels it misses a tenth, and seven tenths as much of those that it learnt."""
        table = self.table(wrong)
        share = Signs.of(table, holdout.HoldoutReport(1, 1, {}, Cost(), None, np.arange(1))).wrong_share
        learnt, own = (1 - (1 - share) * (1 - missed) for missed in (0.07, 0.1))
        report = holdout.HoldoutReport(1, 1, {}, Cost(), None, np.arange(1), underfit=learnt / own)
        report.judged = holdout.Judged(own, own, 0.01)
        assert Signs.of(table, report).underfit == pytest.approx(0.7)
        report.judged = holdout.Judged(own, share, 0.01)  # all that it misses may be wrong
        assert Signs.of(table, report).underfit == 0
        report.underfit = None
        assert Signs.of(table, report).underfit is None

    @pytest.mark.parametrize("of_holdout", [0.0, 0.05, 0.1])
    def test_judges_miss_fewer_labels_of_a_holdout_that_has_fewer_wrong_ones(self, of_holdout):
        hard, table = 0.2, self.table(0.1)
        report = holdout.HoldoutReport(1, 1, {}, Cost(), None, np.arange(1))
        assert Signs.of(table, report).holdout_wrong_share is None
        wrong = Signs.of(table, report).wrong_share
        report.judged = holdout.Judged(1 - (1 - of_holdout) * (1 - hard), 1 - (1 - wrong) * (1 - hard), 0.01)
        signs = Signs.of(table, report)
        assert signs.holdout_wrong_share == pytest.approx(of_holdout, abs=1e-9)
        assert signs.holdout_error == pytest.approx(0.01 / (1 - hard))


class TestUnderfit:
    def test_it_is_the_share_missed_of_what_was_learnt_by_the_share_missed_of_the_rest(self):
        data, _ = crosses()
        model = nn.Linear(2, 2)
        learnt, others = np.arange(400), np.arange(400, 600)
        missed = sharpness(model, data, others)[1]
        with torch.no_grad():
            wrong = (model(data.x).argmax(1) != data.y).double()
        own = wrong[np.linspace(0, 399, 200).astype(int)]
        assert underfit(model, data, learnt, missed) == pytest.approx(float(own.mean() / wrong[400:600].mean()))

    @pytest.mark.parametrize(("num", "expected"), [(600, 0.0), (4_000, 1.0)])
    def test_a_few_that_are_missed_prove_nothing(self, num, expected):
        data, _ = blobs()
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
            model.bias.copy_(torch.tensor([0.0, 0.04]))  # a hair off: 2% are missed
        missed = sharpness(model, data, np.arange(num))[1]
        assert underfit(model, data, np.arange(num), missed) == expected

    def test_nothing_missed(self):
        data, _ = blobs()
        assert underfit(nn.Linear(2, 2), data, np.arange(10), torch.zeros(20)) == 0

    @pytest.mark.parametrize(("data", "model", "small"), [(crosses, line, True), (blobs, line, False)])
    def test_a_line_is_too_small_for_crosses(self, data, model, small):
        train, _ = data()
        split = gp.holdout_split(len(train), train.labels)

        def make(number: int) -> nn.Module:
            torch.manual_seed(number)
            return model((2,), 2)

        _, _, (report,), _ = gp.irreducible_losses(make, train, split, config=HOLDOUT)
        assert (report.underfit > UNDERFIT) == small

    def test_it_is_not_known_where_blends_are_not_tried(self):
        train, _ = blobs()
        split = gp.holdout_split(len(train), train.labels)
        plain = gp.HoldoutConfig(max_epochs=1)
        _, _, (report,), _ = gp.irreducible_losses(lambda fold: line((2,), 2), train, split, config=plain)
        assert report.underfit is None

    def test_ranks_go_by_what_the_first_one_found(self, monkeypatch):
        class Elsewhere:
            """The second of two processes; the first found 0.25."""

            device = torch.device("cpu")

            def same_weights(self, model):
                pass

            def share(self, values):
                return torch.cat([values[:1], values.new_tensor([0.25]), values[2:]])

        monkeypatch.setattr(crossfit.Ranks, "of", lambda group: Elsewhere())
        monkeypatch.setattr(crossfit, "assess_together", lambda ranks, *a, **k: crossfit.assess(*a, **k))
        train, _ = crosses()
        split = gp.holdout_split(len(train), train.labels)
        _, _, (report,), _ = gp.irreducible_losses(lambda fold: line((2,), 2), train, split, config=HOLDOUT)
        assert report.underfit == 0.25


class TestRun:
    def test_a_line_gives_way_to_a_network_and_both_are_paid(self, monkeypatch):
        monkeypatch.setattr(enough, "wrong_share", lambda table: 0.3)
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

    @pytest.mark.parametrize(("seed", "once"), [(0, False), (1, True)])
    def test_where_labels_look_right_and_blends_are_worse_the_larger_one_is_trained_once(self, monkeypatch, seed, once):
        monkeypatch.setattr(enough, "wrong_share", lambda table: 0.0)
        stages = Stages(config(seed=seed))
        table, _, summary = stages.irreducible()
        assert "as if it were too small" in summary["instead"]["because"]
        assert summary["instead"]["wrong_share"] == 0
        assert summary["instead"]["underfit"] > UNDERFIT
        assert summary["instead"]["blends_worse"] == once
        assert summary["cleaned"] == (not once)
        assert table.config["holdout"] == asdict(ONCE if once else HOLDOUT)
        large = Stages(config(il_model="model", seed=seed, holdout=ONCE if once else HOLDOUT))
        small = Stages(config(il_model="proxy", seed=seed))
        assert large.irreducible()[0].digest == table.digest
        small.irreducible()
        bills = [s.ledger.stages["irreducible"].flops for s in (stages, large, small)]
        assert bills[0] == bills[1] + bills[2]

    def test_what_cannot_be_blended_does_not_say_whether_labels_are_wrong(self):
        whole = crosses()[0].replace(x=(crosses()[0].x * 100).long())
        split = gp.holdout_split(len(whole), whole.labels)
        _, _, (report,), _ = gp.irreducible_losses(lambda fold: AsFloats(), whole, split, config=HOLDOUT)
        assert (report.mixup, report.blends_worse) == ("off", None)

    def test_what_is_enough_stays(self):
        stages = Stages(config("blobs"))
        table, _, summary = stages.irreducible()
        assert (summary["name"], summary["instead"], summary["shortcoming"]) == ("test_enough:line", None, None)
        assert "instead" not in table.config

    @pytest.mark.parametrize("holdout_noise", [0.0, 0.3])
    def test_wrong_labels(self, holdout_noise):
        table, _, summary = Stages(config("blobs", noise=0.3, holdout_noise=holdout_noise)).irreducible()
        assert summary["name"] == "test_enough:network"
        assert "of the labels look wrong" in summary["instead"]["because"]
        assert summary["instead"]["wrong_share"] == pytest.approx(0.15, abs=0.05)
        assert summary["instead"]["holdout_wrong_share"] == pytest.approx(holdout_noise / 2, abs=0.05)
        assert table.config["holdout"]["cleaned"] == bool(holdout_noise)  # where there is something to withstand

    @pytest.mark.parametrize("changes", [{"acquisition": "loss"}, {"holdout": gp.HoldoutConfig(max_epochs=1)}])
    def test_nothing_is_asked_that_nothing_goes_by_or_that_cannot_be_told(self, changes):
        assert Stages(config(**changes)).holdout_models == [Attempt("test_enough:line")]

    def test_labels_are_judged_where_some_are_to_be_left_out(self):
        stages = Stages(config(acquisition="loss", trusted=10.0))
        assert stages.holdout_models == [Attempt("test_enough:line"), Attempt("test_enough:network")]

    def test_the_paper_has_one_holdout_model(self):
        paper = RunConfig.paper(data=DataConfig("test_enough:crosses"), proxy="test_enough:line")
        assert Stages(replace(paper, candidates=40, keep=8)).holdout_models == [Attempt("test_enough:line")]

    def test_a_run_says_so(self, tmp_path):
        result = run(config(), str(tmp_path / "r"))
        assert result["il_model"]["name"] == "test_enough:network"
        assert json.loads((tmp_path / "r" / "result.json").read_text())["il_model"] == result["il_model"]
        assert (
            gp.IrreducibleLosses.open(tmp_path / "r" / "irreducible.arrow").config["instead"]["of"]
            == "test_enough:line"
        )

    def test_a_model_that_is_not_larger_than_its_proxy_is_not_asked(self):
        small = Stages(config(proxy="test_enough:network", model="test_enough:line"))
        assert small.holdout_models == [Attempt("test_enough:network")]

    def test_a_large_model_that_cannot_be_made_is_refused_before_anything_is_trained(self, monkeypatch):
        monkeypatch.setattr("goldiprox.stages.irreducible_losses", forbidden)
        with pytest.raises(UnknownName, match="resnet81"):
            Stages(config(model="resnet81")).irreducible()

    @pytest.mark.parametrize("once", [False, True])
    def test_a_run_that_is_broken_off_in_the_second_one_ends_the_same(self, tmp_path, monkeypatch, once):
        monkeypatch.setattr(enough, "wrong_share", lambda table: 0.0 if once else 0.3)
        seed = 1 if once else 0
        whole = run(config(seed=seed), str(tmp_path / "whole"))
        asked, second = iter(range(100)), tmp_path / "r" / ".checkpoint" / "irreducible-again"
        with pytest.raises(Interrupted):
            run(config(seed=seed), str(tmp_path / "r"), every=0.0, stop=lambda: second.exists() and next(asked) > 3)
        assert not (tmp_path / "r" / "irreducible.arrow").exists()
        again = run(config(seed=seed), str(tmp_path / "r"))
        assert again["il_model"] == whole["il_model"]
        assert again["il_model"]["cleaned"] != once
        assert again["sequence"]["digest"] == whole["sequence"]["digest"]
        bills = [result["ledger"]["irreducible"] for result in (again, whole)]
        assert bills[0]["flops"] == bills[1]["flops"]


class TestMovedImages:
    @pytest.fixture(autouse=True)
    def known(self, monkeypatch):
        monkeypatch.setattr(enough, "THIN", {"test_enough:large": "test_enough:thin"})

    def config(self, **changes) -> RunConfig:
        return config("pictures", **{"proxy": "test_enough:flat", "model": "test_enough:large"} | changes)

    def test_a_small_model_by_moved_images_comes_before_a_large_one(self):
        stages = Stages(self.config())
        table, _, summary = stages.irreducible()
        assert (summary["name"], summary["augment"], summary["moved"]) == ("test_enough:thin", "shift+mirror", True)
        assert summary["underfit"] < UNDERFIT < summary["instead"]["underfit"]
        assert summary["instead"]["of"] == "test_enough:flat"
        assert summary["instead"]["mirrored"] > enough.ALIKE
        how = HOLDOUT if summary["cleaned"] else ONCE
        longer = {"max_epochs": 12, "min_steps": 180, "mixup": "off", "calibrated": True, "augment": "shift+mirror"}
        alone = Stages(self.config(il_model="test_enough:thin", holdout=replace(how, **longer)))
        assert alone.irreducible()[0].digest == table.digest
        small = Stages(self.config(il_model="proxy"))
        small.irreducible()
        bills = [s.ledger.stages["irreducible"].flops for s in (stages, alone, small)]
        assert bills[0] == bills[1] + bills[2]

    def test_where_that_falls_short_too_a_large_one_follows_and_all_three_are_paid(self, monkeypatch):
        monkeypatch.setattr(enough, "UNDERFIT_MOVED", -1.0)
        stages = Stages(self.config())
        _, _, summary = stages.irreducible()
        assert (summary["name"], summary["augment"]) == ("test_enough:large", "off")
        said = enough.in_words(summary["instead"])
        assert said.startswith("test_enough:flat falls short: it misses ")
        assert "; so does test_enough:thin by moved images: it misses " in said
        without = Stages(self.config(holdout=replace(HOLDOUT, augment="off")))
        without.irreducible()
        assert stages.ledger.stages["irreducible"].flops > without.ledger.stages["irreducible"].flops

    def test_not_of_images_that_mirrored_are_others(self, monkeypatch):
        monkeypatch.setattr(enough, "ALIKE", 2.0)
        assert Stages(self.config()).irreducible()[2]["name"] == "test_enough:large"

    def test_not_where_they_are_ruled_out(self):
        stages = Stages(self.config(holdout=replace(HOLDOUT, augment="off")))
        assert stages.irreducible()[2]["name"] == "test_enough:large"

    @pytest.mark.parametrize(("augment", "asked"), [("off", False), ("auto", True)])
    def test_a_small_model_is_asked_about_mirrored_images_if_it_matters(self, monkeypatch, augment, asked):
        def report(**changes) -> holdout.HoldoutReport:
            stages = Stages(self.config(il_model="proxy", holdout=replace(HOLDOUT, augment=augment), **changes))
            return stages._irreducible(Attempt("test_enough:flat"), stages.config.holdout, None)[2][0]

        found = report()
        assert (found.augment, found.mirrored is not None) == ("off", asked)
        monkeypatch.setattr(assessment, "MISSED", 10_000)
        assert report().mirrored is None

    def test_not_of_what_is_no_image(self):
        _, _, summary = Stages(config()).irreducible()
        assert (summary["name"], summary["instead"]["mirrored"]) == ("test_enough:network", None)

    def test_a_comparison_does_the_same(self, tmp_path):
        plan = Plan(self.config(), methods=(Method(),), steps=12, budgets=(1,), seeds=(0,), itself=False, compared=0)
        (table,), (cost,) = Lab(plan, tmp_path, Silent()).tables(Method())
        own, _, summary = Stages(self.config()).irreducible()
        assert (cost["made_by"], cost["augment"]) == (summary["name"], summary["augment"])
        assert cost["instead"] == summary["instead"]
        assert torch.equal(table.values.nan_to_num(), own.values.nan_to_num())
        made = {"name": cost["made_by"], **cost}
        assert _made_by({"holdout_models": [made]}).startswith("by test_enough:thin by moved images")

    def test_a_run_that_is_broken_off_in_it_ends_the_same(self, tmp_path):
        whole = run(self.config(), str(tmp_path / "whole"))
        asked, moved = iter(range(100)), tmp_path / "r" / ".checkpoint" / "irreducible-moved"
        with pytest.raises(Interrupted):
            run(self.config(), str(tmp_path / "r"), every=0.0, stop=lambda: moved.exists() and next(asked) > 3)
        again = run(self.config(), str(tmp_path / "r"))
        assert again["il_model"] == whole["il_model"]
        assert again["sequence"]["digest"] == whole["sequence"]["digest"]


class TestCompare:
    @pytest.fixture
    def plan(self):
        return Plan(config(), methods=(Method(),), steps=12, budgets=(1,), seeds=(0, 1), itself=False, compared=0)

    def test_seeds_whose_holdout_model_falls_short_get_a_larger_one(self, plan, tmp_path, monkeypatch):
        answers = itertools.cycle(["too small", None])
        monkeypatch.setattr(Signs, "shortcoming", property(lambda signs: next(answers)))
        monkeypatch.setattr(enough, "wrong_share", lambda table: 0.3)
        lab = Lab(plan, tmp_path, Silent())
        tables, costs = lab.tables(plan.methods[0])
        assert [c["made_by"] for c in costs] == ["test_enough:network", "test_enough:line"]
        assert (costs[0]["instead"]["of"], costs[0]["instead"]["because"]) == ("test_enough:line", "too small")
        assert costs[1]["instead"] is None
        assert costs[0]["flops"] > costs[1]["flops"]
        large, small = (lab.tables(Method(il_model=name)) for name in ("model", "proxy"))
        assert large[0][0].digest == tables[0].digest
        assert costs[0]["flops"] == large[1][0]["flops"] + small[1][0]["flops"]
        monkeypatch.setattr(labs, "irreducible_losses", forbidden)
        again, _ = Lab(plan, tmp_path, Silent()).tables(plan.methods[0])
        assert [t.digest for t in again] == [t.digest for t in tables]

    def test_the_larger_one_is_trained_once_here_too(self, plan, tmp_path, monkeypatch):
        monkeypatch.setattr(enough, "wrong_share", lambda table: 0.0)
        lab = Lab(plan, tmp_path, Silent())
        tables, costs = lab.tables(Method())
        assert [cost["made_by"] for cost in costs] == ["test_enough:network"] * 2
        assert [cost["cleaned"] for cost in costs] == [True, False]  # blends are worse for the second seed
        once, own = lab.tables(Method(il_model="model", cleaned=0, mixup="off", calibrated=1))
        _, small = lab.tables(Method(il_model="proxy"))
        assert once[1].digest == tables[1].digest
        assert costs[1]["flops"] == own[1]["flops"] + small[1]["flops"]

    def test_the_result_names_them(self, plan, tmp_path):
        result = compare(replace(plan, methods=(Method(), Method("paper"), Method(acquisition="loss"))), tmp_path)
        found = result["schedules"]["cosine"]["methods"]
        assert result["il_model"] == "auto"
        made_by = {name: [made["name"] for made in method["holdout_models"]] for name, method in found.items()}
        assert made_by["default"] == ["test_enough:network"] * 2
        assert made_by["paper"] == ["test_enough:line"] * 2
        assert made_by["default,acquisition=loss"] == [None]
        said = _made_by(found["default"])
        assert said.startswith("by test_enough:network; test_enough:line falls short: ")
        assert _made_by(found["paper"]) == "by test_enough:line"
        assert _made_by(found["default,acquisition=loss"]) == ""
        mixed = {"holdout_models": [{"name": n, "cleaned": True, "instead": None} for n in ("a", "b", "a")]}
        assert _made_by(mixed) == "by a for 2 of 3 seeds, by b for 1 of 3 seeds"
        mixed["holdout_models"][1] |= {"cleaned": False, "instead": {"of": "a", "because": "it is small"}}
        assert (
            "; trained once, since the holdout's labels look right, for 1 of 3 seeds; a falls short: it is small"
            in _made_by(mixed)
        )


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
        assert "Not one of the proxy's kind, since mlp128 falls short:" in out

    def test_no_advice_that_does_nothing(self, goldiprox):  # noqa: F811
        code, out, err = goldiprox("irreducible", *self.NOISY, "--preset", "paper")
        assert code == 0, err
        assert "falls short" not in out

    def test_a_slip_in_the_name_of_the_model_is_known_at_once(self, goldiprox, monkeypatch):  # noqa: F811
        monkeypatch.setattr("goldiprox.stages.irreducible_losses", forbidden)
        for more in ((), ("--il-model", "proxy")):
            code, _, err = goldiprox("irreducible", "--model", "mlp521", *more)
            assert code == 2
            assert "Did you mean 'mlp512'?" in err

    def test_of_a_kind_that_is_not_named(self, goldiprox):  # noqa: F811
        code, _, err = goldiprox("irreducible", "--il-model", "model")
        assert code == 2
        assert "name that too (--model NAME)" in err
