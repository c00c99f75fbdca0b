"""The paper's figures and tables: numerics, what is kept between calls, and the whole command at its quick size."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import goldiprox as gp
from goldiprox.analysis import ranks, share_of_best, spearman
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.paper import refit, tables, theory_exact
from goldiprox.paper.exact import (
    GaussianBelief,
    Hypotheses,
    Points,
    approximations,
    gain_by_definition,
    gain_by_symmetry,
)
from goldiprox.paper.experiments import NAMES, expand, make
from goldiprox.paper.fig3 import conditions
from goldiprox.paper.lab import Lab
from goldiprox.paper.label_noise import is_above
from goldiprox.paper.outcome import Outcome, publish
from goldiprox.paper.selections import Selection, Warmed
from goldiprox.paper.settings import make_plan
from goldiprox.paper.worlds import World
from goldiprox.prepare import DataConfig
from goldiprox.stages import Silent
from goldiprox.store import Store

CPU = torch.device("cpu")
SIZES = {"num_seen": st.integers(0, 20), "num_holdout": st.integers(1, 30), "seed": st.integers(0, 10**6)}


def gaussian(rng, width=4):
    root = rng.normal(size=(width, width))
    return GaussianBelief(rng.normal(size=width), root @ root.T + 0.1 * np.eye(width), float(rng.uniform(0.1, 2)))


def hypotheses(rng, width=3, num_classes=3):
    return Hypotheses(rng.normal(size=(20, width, num_classes)), float(rng.uniform(0.01, 0.5))).prior()


class TestInformationGain:
    @given(**SIZES)
    def test_definition_and_symmetric_form_agree_for_a_gaussian(self, num_seen, num_holdout, seed):
        rng = np.random.default_rng(seed)
        seen, holdout, points = (
            Points(rng.normal(size=(n, 4)), 3 * rng.normal(size=n)) for n in (num_seen, num_holdout, 5)
        )
        belief = gaussian(rng).given(seen)
        by_definition = gain_by_definition(belief, points, holdout)
        np.testing.assert_allclose(by_definition, gain_by_symmetry(belief, points, holdout), atol=1e-10, rtol=0)

    @given(**SIZES)
    def test_definition_and_symmetric_form_agree_for_finitely_many_classifiers(self, num_seen, num_holdout, seed):
        rng = np.random.default_rng(seed)
        seen, holdout, points = (
            Points(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in (num_seen, num_holdout, 5)
        )
        belief = hypotheses(rng).given(seen)
        by_definition = gain_by_definition(belief, points, holdout)
        np.testing.assert_allclose(by_definition, gain_by_symmetry(belief, points, holdout), atol=1e-10, rtol=0)

    def test_the_tests_above_can_fail(self):
        rng = np.random.default_rng(0)
        seen, holdout, points = (Points(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (10, 10, 5))
        prior = gaussian(rng)
        other = prior.given(holdout).log_each(points) - prior.given(seen).log_each(points)
        assert np.abs(other - gain_by_definition(prior.given(seen), points, holdout)).max() > 1e-3

    def test_a_gaussian_belief_is_the_textbook_posterior(self):
        rng = np.random.default_rng(1)
        prior, points = gaussian(rng), Points(rng.normal(size=(7, 4)), rng.normal(size=7))
        after = prior.given(points)
        precision = np.linalg.inv(prior.covariance) + points.x.T @ points.x / prior.noise
        mean = np.linalg.solve(
            precision, np.linalg.solve(prior.covariance, prior.mean) + points.x.T @ points.y / prior.noise
        )
        np.testing.assert_allclose(after.covariance, np.linalg.inv(precision), atol=1e-10)
        np.testing.assert_allclose(after.mean, mean, atol=1e-10)

    @pytest.mark.parametrize("make_belief", [gaussian, hypotheses])
    def test_the_joint_is_the_product_of_one_after_another(self, make_belief):
        rng = np.random.default_rng(2)
        belief = make_belief(rng)
        width = 4 if make_belief is gaussian else 3
        labels = rng.normal(size=6) if make_belief is gaussian else rng.integers(0, 3, 6)
        points = Points(rng.normal(size=(6, width)), labels)
        total, now = 0.0, belief
        for row in range(6):
            one = points[slice(row, row + 1)]
            total += now.log_each(one)[0]
            now = now.given(one)
        assert belief.log_joint(points) == pytest.approx(total, abs=1e-10)

    def test_probabilities_of_all_labels_sum_to_one(self):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(4, 3))
        belief = hypotheses(rng).given(Points(x, np.array([0, 1, 2, 0])))
        total = sum(np.exp(belief.log_each(Points(x, np.full(4, c)))) for c in range(3))
        np.testing.assert_allclose(total, 1, atol=1e-12)

    def test_leaving_out_no_data_changes_nothing(self):
        prior, training, holdout = theory_exact.gaussian_problem(0)
        nothing, points, held = training(0), training(20), holdout(30)
        scores = approximations(prior, nothing, points, held)
        np.testing.assert_allclose(scores["D_t left out"], gain_by_symmetry(prior, points, held), atol=1e-12)

    def test_inputs_that_never_occur_tell_nothing(self):
        prior, training, holdout = theory_exact.gaussian_problem(0)
        points, held = training(50), holdout(30)
        irrelevant = (points.x[:, : theory_exact.NUM_RELEVANT] == 0).all(1)
        gain = gain_by_definition(prior.given(training(40)), points, held)
        assert 0 < irrelevant.sum() < 50
        assert np.abs(gain[irrelevant]).max() < 1e-10 < np.abs(gain[~irrelevant]).min()

    def test_noise_must_be_positive(self):
        with pytest.raises(ConfigError, match="noise variance of 0"):
            GaussianBelief(np.zeros(1), np.eye(1), 0)


class TestRefit:
    def examples(self, n, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        return refit.Examples(x, torch.randint(0, 4, (n,), generator=generator))

    def test_the_optimum_is_the_one_that_an_optimiser_finds(self):
        examples = self.examples(40)
        weights = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weights], max_iter=300, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure():
            optimizer.zero_grad()
            total = refit.losses(weights, examples).sum() + (weights**2).sum() / 2
            total.backward()
            return total

        optimizer.step(closure)
        torch.testing.assert_close(refit.fit(examples, 4), weights.detach(), atol=1e-6, rtol=0)

    def test_one_point_more_is_a_fit_to_all_of_them(self):
        examples, points = self.examples(30), self.examples(3, seed=1)
        several = refit.fit_with_each(refit.fit(examples, 4), examples, points)
        for row in range(3):
            alone = refit.fit(examples.and_also(points[slice(row, row + 1)]), 4)
            torch.testing.assert_close(several[row], alone, atol=1e-7, rtol=0)

    def test_losses_of_several_weights_are_those_of_each(self):
        examples = self.examples(5)
        weights = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        both = refit.losses(weights, examples)
        torch.testing.assert_close(both, torch.stack([refit.losses(w, examples) for w in weights]))


class TestRanks:
    def test_equal_values_share_their_rank(self):
        assert ranks(np.array([3.0, 1.0, 3.0, 0.0])).tolist() == [2.5, 1, 2.5, 0]

    def test_only_the_order_counts(self):
        a = np.array([0.1, 5, 2, 9])
        assert spearman(a, np.exp(a)) == pytest.approx(1)
        assert spearman(a, -(a**3)) == pytest.approx(-1)
        assert np.isnan(spearman(a, np.ones(4)))

    def test_against_the_textbook_formula(self):
        rng = np.random.default_rng(0)
        a, b = rng.permutation(50), rng.permutation(50)
        expected = 1 - 6 * ((a - b) ** 2).sum() / (50 * (50**2 - 1))
        assert spearman(a, b) == pytest.approx(expected)

    def test_share_of_the_best(self):
        truth = np.arange(20.0)
        assert share_of_best(truth, truth) == 1
        assert share_of_best(-truth, truth) == 0
        assert share_of_best(np.where(truth == 19, 100, -truth), truth) == 0.5


class TestTables:
    @pytest.mark.parametrize("name", ["table1", "table2"])
    def test_parameters_equal_the_papers(self, name):
        outcome = tables.table(name)
        assert outcome.holds, outcome.sentence

    def test_another_model_would_not(self, monkeypatch):
        rows = [("mlp512", (1, 28, 28), (135, 136), (1e3, "k", 0, 0))] * 2
        monkeypatch.setitem(tables.ROWS, "table1", rows)
        assert not any(tables.table("table1").checks.values())


class TestWorlds:
    data = DataConfig(white_noise=0.2)

    def test_labels_and_range_of_noise(self):
        plain = World(self.data).prepare()
        varied = World(self.data, noise_labels="one class", noise_range=(33, 112), normalised=False).prepare()
        noisy = torch.as_tensor(plain.truth.white_noise)
        assert plain.data.y[noisy].unique().numel() == 10
        assert varied.data.y[noisy].unique().tolist() == [0]
        assert (varied.data.x[noisy].min(), varied.data.x[noisy].max()) == (33, 112)
        assert (plain.data.x[noisy].min(), plain.data.x[noisy].max()) == (0, 255)
        assert torch.equal(varied.data.x[~noisy], plain.data.x[~noisy])
        assert torch.equal(varied.data.y[~noisy], plain.data.y[~noisy])
        assert varied.data.gather(torch.arange(4))[0].min() == 0

    def test_labels_drawn_anew(self):
        plain, drawn = World(self.data).prepare(), World(self.data, noise_labels="drawn").prepare()
        noisy = torch.as_tensor(plain.truth.white_noise)
        agree = (plain.data.y == drawn.data.y)[noisy].float().mean()
        assert 0.02 < agree < 0.25
        assert not drawn.truth.mislabelled.any()


def test_a_warm_up_is_uniform_and_then_over(blobs):
    model = gp.build("mlp128", (2,), 4)
    batch = next(gp.data.iterate(blobs, [torch.arange(20)], device=CPU))
    scores = {
        step: Warmed(gp.loss, 3)(gp.Candidates(model, batch, keep=2, step=step)) for step in (0, 2, 3, torch.tensor(2))
    }
    plain = gp.Candidates(model, batch, keep=2, step=3)
    assert torch.equal(scores[3], plain.loss)
    assert torch.equal(scores[2], gp.uniform(gp.Candidates(model, batch, keep=2, step=2)))
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_holds_bald_and_its_warm_up(blobs, caplog):
    data = blobs.to("cuda")
    settings = {"candidates": 40, "keep": 8, "steps": 60, "acquisition": Warmed(gp.bald, 20)}
    digests = {
        gp.record(gp.build("mlp128", (2,), 4, dropout=0.5, device="cuda"), data, engine=engine, **settings).digest
        for engine in ("eager", "graph")
    }
    assert not caplog.records
    assert len(digests) == 1


class TestLab:
    selection = Selection("mlp128", "reducible_loss", epochs=1)
    world = World(DataConfig(noise=0.1))

    def lab(self, folder, seeds):
        return Lab(make_plan("mnist5k", None, seeds, quick=True), Store(folder, CPU), Silent())

    def test_finished_runs_are_not_made_again_and_missing_ones_are(self, tmp_path, monkeypatch):
        first = self.lab(tmp_path, 1).select(self.world, self.selection)
        made = []
        whole = Lab._select
        monkeypatch.setattr(
            Lab, "_select", lambda self, w, s, seeds, *a: made.extend(seeds) or whole(self, w, s, seeds, *a)
        )
        both = self.lab(tmp_path, 2).select(self.world, self.selection)
        assert made == [1]
        assert both[0].numbers == first[0].numbers
        self.lab(tmp_path, 2).select(self.world, self.selection)
        assert made == [1]

    def test_seeds_together_are_seeds_alone(self, tmp_path):
        together = self.lab(tmp_path / "a", 2).select(self.world, self.selection)
        self.lab(tmp_path / "b", 1).select(self.world, self.selection)
        alone = self.lab(tmp_path / "b", 2).select(self.world, self.selection)
        assert [r.numbers["digest"] for r in together] == [r.numbers["digest"] for r in alone]
        assert [r.numbers["accuracy"] for r in together] == [r.numbers["accuracy"] for r in alone]

    def test_a_proxy_on_its_own_sequence_is_itself(self, tmp_path):
        """Its accuracies and reducible losses at every evaluation are those it had while it chose."""
        lab = self.lab(tmp_path, 1)
        chosen = lab.select(self.world, Selection("mlp128", "reducible_loss", epochs=1, compares=True))
        again = lab.train_on(self.world, chosen, self.selection, "mlp128")
        assert again[0].numbers["accuracy"] == chosen[0].numbers["accuracy"]
        np.testing.assert_array_equal(again[0].arrays["reducible"], chosen[0].arrays["reducible"])


ABOUT = {"command": "c", "hardware": "h", "versions": {"torch": "2"}, "seeds": [0, 1]}


class TestOutcome:
    @pytest.mark.parametrize(
        ("checks", "verdict"),
        [
            ({"a": True, "b": True}, "Holds."),
            ({"a": True, "b": False}, "Holds in part. Not so here: b."),
            ({"a": False, "b": False}, "Does not hold. Not so here: a; b."),
        ],
    )
    def test_the_verdict_follows_from_the_checks(self, checks, verdict, tmp_path):
        outcome = Outcome("fig9", "it is so", "it was", checks, {"x": np.float64(1.5)}, notes=["n"])
        assert outcome.sentence == f"The paper: it is so. Here: it was. {verdict}"
        paths = publish(outcome, tmp_path, ABOUT)
        written = json.loads(paths[0].read_text())
        assert written["numbers"] == {"x": 1.5}
        assert written["holds"] is all(checks.values())
        assert "seeds 0, 1" in paths[1].read_text()

    def test_above_means_no_overlap(self):
        assert is_above([2, 3], [0, 1])
        assert not is_above([1, 3], [0, 1])


def test_names_and_plans():
    digits, images = make_plan("mnist", None, 3, quick=False), make_plan("cifar10", None, 3, quick=False)
    assert expand("all", digits) == list(NAMES)
    assert expand("all", images) == [n for n in NAMES if n != "theory"]
    assert "30,000 / 30,000" in digits.notes[0]
    assert (images.proxy, images.large) == ("small_cnn", "resnet18")
    assert {c.bald.num_samples for c in conditions(digits).values()} == {10, 30}
    assert {c.bald.num_samples for c in conditions(images).values()} == {10}
    with pytest.raises(UnknownName, match="Did you mean 'fig1'"):
        expand("figg1", digits)
    with pytest.raises(UnknownName, match="data set of the paper"):
        make_plan("imagenet", None, 3, quick=False)
    with pytest.raises(ConfigError, match="--seeds 0"):
        make_plan("mnist", None, 0, quick=False)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """`paper all --quick`, once: (folder, what --json printed)."""
    folder = tmp_path_factory.mktemp("paper")
    command = [
        sys.executable,
        "-m",
        "goldiprox",
        "paper",
        "all",
        "--quick",
        "--json",
        "--device",
        "cpu",
        "--out",
        folder,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return folder, json.loads(done.stdout)


class TestEverything:
    def test_all_of_it(self, everything, monkeypatch):
        """One test, so that processes that share the work make the runs once."""
        self.check_every_figure_and_table_is_there(everything)
        self.check_each_says_how_it_was_made(everything)
        self.check_what_does_not_depend_on_size_holds(everything)
        self.check_a_second_call_only_draws(everything, monkeypatch)
        self.check_picks_of_the_two_holdouts_differ_where_they_should(everything)

    def check_every_figure_and_table_is_there(self, everything):
        folder, printed = everything
        assert list(printed["results"]) == list(NAMES)
        pictures = ("fig1", "fig2", "fig3", "fig3-grid", "fig4", "theory-exact", "theory-real")
        for name in (f"{p}.{suffix}" for p in pictures for suffix in ("png", "pdf")):
            assert (folder / name).stat().st_size > 5_000, name

    def check_each_says_how_it_was_made(self, everything):
        folder, printed = everything
        for name, result in printed["results"].items():
            written = json.loads((folder / f"{name}.json").read_text())
            assert written["command"].startswith("goldiprox paper all --quick")
            assert written["seeds"] == [0, 1]
            assert {"torch", "python", "goldiprox"} <= written["versions"].keys()
            assert written["hardware"]
            assert written["sentence"] == result["sentence"]
            assert result["sentence"].startswith("The paper: ")

    def check_what_does_not_depend_on_size_holds(self, everything):
        _, printed = everything
        checks = printed["results"]["theory"]["checks"]
        assert checks["definition and symmetric form agree to 1e-10"]
        assert all(printed["results"]["fig1"]["checks"][f"{h}: high loss picks more wrong labels than the data has"]
                   for h in ("clean holdout", "holdout as noisy"))  # fmt: skip

    def check_a_second_call_only_draws(self, everything, monkeypatch):
        folder, printed = everything
        for place in ("record_many", "replay", "irreducible_losses"):
            monkeypatch.setattr(f"goldiprox.paper.lab.{place}", lambda *a, **k: pytest.fail("a run was made again"))
        monkeypatch.setattr("goldiprox.paper.theory_exact.study", lambda *a, **k: pytest.fail("made again"))
        plan = make_plan("mnist5k", None, 2, quick=True)
        names = ["fig1", "fig2", "fig3", "fig4"]
        drawn = make(names, plan, folder, device=CPU, command="c", progress=Silent())
        made = {outcome.name: outcome.sentence for outcome, _ in drawn}
        assert made == {n: printed["results"][n]["sentence"] for n in names}

    def check_picks_of_the_two_holdouts_differ_where_they_should(self, everything):
        folder, _ = everything
        curves = json.loads(Path(folder / "fig1.json").read_text())["numbers"]["curves"]
        assert curves["clean"]["loss"] == curves["noisy"]["loss"]
        assert curves["clean"]["reducible_loss"] != curves["noisy"]["reducible_loss"]
