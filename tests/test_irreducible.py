import numpy as np
import pytest
import torch
from torch import nn

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox import crossfit
from goldiprox.artifacts import Header, TableWriter
from goldiprox.assessment import score, sharpness
from goldiprox.crossfit import JUDGES
from goldiprox.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    FingerprintMismatch,
    MissingIrreducible,
    ModelMismatch,
    NonFiniteError,
    OutputExists,
    UnknownName,
)
from goldiprox.forward import call, cross_entropy
from goldiprox.irreducible import Rivals, describe
from goldiprox.prepare import DataConfig, prepare
from goldiprox.suspects import average_precision
from test_artifacts import rewrite_header


def fast(checkpoint="inner", **options) -> gp.HoldoutConfig:
    options = {"max_epochs": 6, "patience": 3, "batch_size": 32} | options
    return gp.HoldoutConfig(checkpoint=checkpoint, training=gp.TrainingConfig(lr=1e-2), **options)


@pytest.fixture
def split(blobs):
    return gp.holdout_split(len(blobs), blobs.labels, seed=0)


def test_the_training_side_is_scored_by_a_model_that_learnt_the_holdout(blobs, split, global_state):
    table, models, reports, cost = gp.irreducible_losses(make_mlp, blobs, split, config=fast())
    assert np.array_equal(table.ids, split.train)
    assert table.values[split.holdout].isnan().all()
    models[0].eval()
    with torch.no_grad():
        by_hand = nn.functional.cross_entropy(models[0](blobs.x[split.train]), blobs.y[split.train], reduction="none")
    torch.testing.assert_close(table.values[split.train], by_hand)
    assert reports[0].figures["accuracy"] > 0.85
    inner, forward = 20, reports[0].rate.forward  # a tenth of the holdout chooses the checkpoint, every epoch
    assert cost.examples_scored == len(split.train) + inner * reports[0].epochs
    assert cost.examples_trained == reports[0].epochs * 160  # five batches of 32 out of 180
    assert cost.flops == cost.examples_scored * forward + cost.examples_trained * reports[0].rate.training
    assert global_state()


def test_is_the_same_twice_and_with_loading_processes(blobs, split):
    digests = {
        gp.irreducible_losses(make_mlp, blobs, split, config=fast(), num_workers=workers)[0].digest
        for workers in (None, None, 0, 2)
    }
    assert len(digests) == 1


def test_the_checkpoint_is_the_best_epoch_on_the_inner_split(blobs, split):
    seen = []

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_mlp()

        def forward(self, x):
            if not self.training and len(x) == 20:  # the inner split: 10% of 200
                seen.append(x)
            return self.inner(x)

    model = Watch()
    report = gp.train_holdout_model(model, blobs, split.holdout, config=fast())
    assert report.epoch <= report.epochs <= 6
    inner = seen[0]
    assert all(torch.equal(inner, other) for other in seen)
    holdout = {tuple(row.tolist()) for row in blobs.x[split.holdout]}
    assert {tuple(row.tolist()) for row in inner} <= holdout


def test_checkpoint_rules_differ(blobs, split):
    noisy = blobs.replace(y=blobs.y.clone())
    noisy.y[split.train] = (noisy.y[split.train] + torch.arange(200) % 2) % 4  # half of the training side is wrong
    config = {"max_epochs": 30, "patience": 29}
    epochs = {
        rule: gp.train_holdout_model(
            make_mlp(), noisy, split.holdout, config=fast(rule, **config), training_side=split.train
        ).epoch
        for rule in ("inner", "last", "training_side")
    }
    assert epochs["last"] == 30
    assert epochs["training_side"] < epochs["inner"]
    with pytest.raises(ConfigError, match="needs the ids of the training side"):
        gp.train_holdout_model(make_mlp(), noisy, split.holdout, config=fast("training_side"))
    with pytest.raises(UnknownName, match="Did you mean 'inner'"):
        fast("iner")


def test_cross_fitting_scores_each_example_by_a_model_that_never_saw_it(blobs):
    split = gp.holdout_split(len(blobs), blobs.labels, holdout=0.0)
    learnt: list[set[float]] = []

    class Watch(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.inner = make_mlp(seed)
            learnt.append(set())

        def forward(self, x):
            if self.training:
                learnt[-1].update(x[:, 0].tolist())
            return self.inner(x)

    table, models, _, _ = gp.irreducible_losses(Watch, blobs, split, num_folds=3, config=fast())
    assert len(models) == 3
    assert np.array_equal(table.ids, np.arange(400))
    values = blobs.x[:, 0].tolist()
    for number, model in enumerate(models):
        losses = score(model, blobs, np.arange(400))
        scored_by_it = (losses == table.values).nonzero().flatten().tolist()
        assert 130 <= len(scored_by_it) <= 140
        assert not {values[i] for i in scored_by_it} & learnt[number]


@pytest.mark.parametrize("num_folds", [0, 4])
def test_wrong_labels_are_left_out_of_what_is_learnt_from(num_folds):
    config = DataConfig(noise=0.3, noise_kind="class", holdout=0.0 if num_folds else 0.5, holdout_noise=0.3)
    prepared = prepare(config)
    data, wrong, split = prepared.data, prepared.truth.mislabelled, prepared.split
    made = []

    def make(number):
        made.append(number)
        return gp.build("mlp128", (1, 28, 28), 10, seed=number)

    held, judged = {}, {}
    for cleaned in (False, True):
        table, models, _, cost = gp.irreducible_losses(
            make, data, split, num_folds=num_folds, config=gp.HoldoutConfig(max_epochs=4, cleaned=cleaned)
        )
        assert len(models) == max(num_folds, 1)
        judged[cleaned] = average_precision(wrong[gp.find_suspects(table, data).ids])
        held[cleaned] = cost.flops, table.config.get("left_out")
    assert judged[True] > judged[False] + 0.02
    assert held[False][1] is None
    assert 1.5 * held[False][0] < held[True][0] < 2.1 * held[False][0]
    size = len(split.train if num_folds else split.holdout)
    assert 0.15 * size < held[True][1] < 0.45 * size
    models = [*range(max(num_folds, 1))]
    assert made == [*models, *(JUDGES + number for number in models), *models]


def test_blends_are_of_neighbours_in_one_proportion():
    model, x, y = make_mlp(), torch.randn(6, 2), torch.tensor([0, 1, 2, 3, 0, 1])
    torch.manual_seed(5)
    share = torch.rand(())
    torch.manual_seed(5)
    losses = gp.TrainingConfig().losses(cross_entropy, call, mixed=True)(model, x, y)
    for n in range(6):
        output = model(share * x[n] + (1 - share) * x[n - 1])[None]
        both = [nn.functional.cross_entropy(output, y[k, None]) for k in (n, n - 1)]
        torch.testing.assert_close(losses[n], share * both[0] + (1 - share) * both[1])


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0])
def test_sharpness_finds_what_logits_were_divided_by(factor):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    data = gp.TensorData(logits / factor, labels)
    found, missed = sharpness(nn.Identity(), data, np.arange(20_000), forward=lambda m, x: m(x))
    assert found == pytest.approx(factor, rel=0.05)
    best, *others = (nn.functional.cross_entropy(f * found * data.x, labels) for f in (1.0, 0.9, 1.1))
    assert best < min(others)
    assert missed.tolist() == (logits.argmax(1) != labels).tolist()


def test_few_examples_say_little_about_sharpness():
    """All of them right, so that no sharpness is sharp enough; and no harm is done to a factor that many agree on."""
    logits = 3 * torch.eye(3).repeat(7, 1)
    data = gp.TensorData(logits, logits.argmax(1))
    found, _ = sharpness(nn.Identity(), data, np.arange(21))
    assert 1 < found < 2.5
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2_000, 5, generator=generator)
    labels = torch.multinomial((1.7 * logits).softmax(1), 1, generator=generator)[:, 0]
    free = min(torch.linspace(1.2, 2.4, 1201), key=lambda f: nn.functional.cross_entropy(f * logits, labels).item())
    found, _ = sharpness(nn.Identity(), gp.TensorData(logits, labels), np.arange(2_000))
    assert found == pytest.approx(free.item(), rel=5e-3)


@pytest.mark.parametrize(("worse", "better"), [(-0.2, "on"), (0.19, "on"), (0.21, "off")])
@pytest.mark.parametrize(("num_folds", "cleaned"), [(0, False), (3, False), (0, True)])
def test_blends_unless_the_inner_part_is_clearly_against(blobs, split, monkeypatch, worse, better, num_folds, cleaned):
    """How much more they miss on average; the standard error of that is 0.1."""
    calls = []

    def judged(model, data, ids, **settings):
        calls.append(ids)
        spread = torch.tensor([-1.0, 1.0]).repeat(50)
        return 2.0, 5 + (worse + 0.995 * spread if len(calls) == 2 else 0 * spread)

    monkeypatch.setattr(crossfit, "sharpness", judged)
    table, models, reports, _ = gp.irreducible_losses(
        make_mlp, blobs, split, num_folds=num_folds, config=fast(mixup="auto", cleaned=cleaned)
    )
    assert [r.mixup for r in reports] == [better] * len(models)
    assert len(calls) == len(models) + 1 + cleaned
    assert (table.config["mixup"], table.config["sharpness"]) == (better, [2.0] * len(models))
    if not num_folds:
        assert not set(calls[-1]) & set(split.train)
        twice = score(models[0], blobs, split.train, forward=lambda m, x: 2 * m(x))
        torch.testing.assert_close(table.values[split.train], twice)
        plain, *_ = gp.irreducible_losses(make_mlp, blobs, split, config=fast())
        same = torch.equal(plain.values[split.train], score(models[0], blobs, split.train))
        assert same == (better == "off" and not cleaned)


def test_calibrated_without_blends(blobs, split):
    config = fast(calibrated=True)
    table, (model,), (report,), cost = gp.irreducible_losses(make_mlp, blobs, split, config=config)
    factor, _ = sharpness(model, blobs, report.inner)
    assert table.config["sharpness"] == [factor] == [report.sharpness]
    assert factor != 1
    sharper = score(model, blobs, split.train, forward=lambda m, x: factor * m(x))
    torch.testing.assert_close(table.values[split.train], sharper)
    assert report.underfit is None
    plain, (same,), _, less = gp.irreducible_losses(make_mlp, blobs, split, config=fast())
    assert "sharpness" not in plain.config
    torch.testing.assert_close(plain.values[split.train], score(model, blobs, split.train))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert cost.examples_scored == less.examples_scored + len(report.inner)  # which is on the bill


def test_tokens_cannot_be_blended(split):
    tokens = gp.TensorData(torch.randint(0, 9, (400, 5)), torch.randint(0, 4, (400,)))

    def make(number):
        torch.manual_seed(number)
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 4))

    with pytest.raises(ConfigError, match=r"int64 cannot be blended.*mixup='off'"):
        gp.irreducible_losses(make, tokens, split, config=fast(mixup="on"))
    table, *_ = gp.irreducible_losses(make, tokens, split, config=fast(mixup="auto"))
    assert table.config["mixup"] == "off"


def test_the_robust_way_tells_wrong_labels_better_and_takes_more_epochs_of_few():
    prepared = prepare(DataConfig(noise=0.2, noise_kind="class", holdout_noise=0.2))
    found = {}
    for name, config in {"plain": gp.HoldoutConfig(), "robust": gp.HoldoutConfig.robust()}.items():
        table, _, reports, _ = gp.irreducible_losses(
            lambda n: gp.build("mlp128", (1, 28, 28), 10, seed=n), prepared.data, prepared.split, config=config
        )
        wrong = prepared.truth.mislabelled[gp.find_suspects(table, prepared.data).ids]
        found[name] = average_precision(wrong)
    assert found["robust"] > found["plain"] + 0.02
    learnt = len(prepared.split.holdout) - table.config["left_out"] - len(reports[0].inner)
    assert reports[0].epochs == -(-300 // (learnt // 128)) > 10


def test_what_has_no_labels_cannot_be_cleaned(blobs, split):
    unlabelled = gp.TensorData(blobs.x, blobs.x)
    with pytest.raises(ConfigError, match="cleaned=False"):
        gp.irreducible_losses(make_mlp, unlabelled, split, config=gp.HoldoutConfig(cleaned=True))


def test_a_model_instead_of_a_function_that_makes_one(blobs, split):
    with pytest.raises(ConfigError, match="function of the fold number"):
        gp.irreducible_losses(make_mlp(), blobs, split)


def test_settings_that_cannot_work():
    for name in ("max_epochs", "patience", "batch_size"):
        with pytest.raises(ConfigError, match="at least 1"):
            gp.HoldoutConfig(**{name: 0})
    with pytest.raises(ConfigError, match="inner share"):
        gp.HoldoutConfig(inner=1.0)


def test_an_empty_holdout(blobs):
    with pytest.raises(ConfigError, match="holdout is empty"):
        gp.irreducible_losses(make_mlp, blobs, gp.holdout_split(400, holdout=0.0))
    with pytest.raises(ConfigError, match="too small"):
        gp.train_holdout_model(make_mlp(), blobs, np.array([1, 2]), config=fast())


def test_a_model_that_does_not_fit_is_refused_before_training(blobs, split):
    with pytest.raises(ModelMismatch, match="holdout model does not accept the inputs"):
        gp.train_holdout_model(nn.Linear(5, 4), blobs, split.holdout)


def test_what_makes_models_gets_the_number_of_a_fold(blobs, split):
    with pytest.raises(ConfigError, match="lambda fold: Model"):
        gp.irreducible_losses(lambda: make_mlp(), blobs, split)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="not a model"):
        gp.irreducible_losses(make_mlp(), blobs, split)  # type: ignore[arg-type]


class Renumbered(torch.utils.data.Dataset):
    """Labels at hand count from 1, those of items from 0."""

    def __init__(self, blobs):
        self.blobs, self.targets = blobs, (blobs.labels + 1).tolist()

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, id):
        x, y = self.blobs[id]
        return x, int(y)


def test_labels_at_hand_that_are_not_those_of_items(blobs, split):
    data = Renumbered(blobs)
    same, *_ = gp.irreducible_losses(make_mlp, blobs, split, config=fast())
    table, *_ = gp.irreducible_losses(make_mlp, data, split, config=fast())
    assert torch.equal(table.values.nan_to_num(), same.values.nan_to_num())  # four outputs are enough for four classes
    with pytest.raises(DataError, match=r"example \d+ has label \d at hand .* and gives \d as an item"):
        gp.irreducible_losses(make_mlp, data, split, config=fast(cleaned=True))
    with pytest.raises(DataError, match="as an item"):
        gp.find_suspects(table, data)
    data.targets = blobs.labels.tolist()
    assert len(gp.find_suspects(table, data)) == len(table.ids)


def test_what_judges_cannot_judge_is_refused_before_they_are_trained(blobs, split):
    def made(fold):
        raise AssertionError("a model was made")

    def squared(output, y):
        return (output[:, 0] - y).square()

    with pytest.raises(ConfigError, match="use cleaned=False"):
        gp.irreducible_losses(made, blobs, split, config=fast(cleaned=True), loss=squared)
    one = blobs.replace(y=torch.zeros(400, dtype=torch.int64))
    with pytest.raises(ConfigError, match="single class"):
        gp.irreducible_losses(made, one, split, config=fast(cleaned=True))


def test_a_holdout_of_which_too_little_is_left(blobs, monkeypatch):
    split = gp.holdout_split(400, blobs.labels, holdout=0.04)
    monkeypatch.setattr(crossfit, "contradicted", lambda table, labels: np.arange(len(table.ids)) > 2)
    with pytest.raises(ConfigError, match="of 16 labels to learn from, .* contradict 13: 3 are too few"):
        gp.irreducible_losses(make_mlp, blobs, split, config=fast(cleaned=True))


def test_a_holdout_model_that_has_learnt_nothing_is_named(blobs, split, caplog):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.bias.expand(len(x), 4)

    gp.irreducible_losses(make_mlp, blobs, split, config=fast(inner=0.2))
    assert not caplog.records
    gp.irreducible_losses(lambda fold: Constant(), blobs, split, config=fast(inner=0.2))
    assert "learnt nothing" in caplog.text


def test_a_table_in_a_line(blobs):
    assert (
        repr(make_irreducible(blobs, np.array([0, 1]))) == "<IrreducibleLosses of 2 of 400 examples, 0.185 on average>"
    )
    empty = gp.IrreducibleLosses(torch.full((3,), torch.nan), data=describe(blobs))
    assert repr(empty) == "<IrreducibleLosses of 0 of 3 examples>"


def test_a_diverging_holdout_model(blobs, split):
    config = gp.HoldoutConfig(training=gp.TrainingConfig(lr=1e30), max_epochs=3)
    with pytest.raises(NonFiniteError):
        gp.train_holdout_model(make_mlp(), blobs, split.holdout, config=config)


def test_from_any_callable(blobs):
    table = gp.IrreducibleLosses.from_callable(lambda batch: batch.ids * 0.5, blobs, ids=np.array([4, 2, 8]))
    assert table.ids.tolist() == [2, 4, 8]
    assert table[torch.tensor([8, 2])].tolist() == [4.0, 1.0]
    with pytest.raises(ModelMismatch, match="one value per example"):
        gp.IrreducibleLosses.from_callable(lambda batch: batch.ids.sum() * 0.5, blobs)
    with pytest.raises(NonFiniteError, match=r"ids 0 are not finite"):
        gp.IrreducibleLosses.from_callable(lambda batch: 1 / batch.ids, blobs)


def test_tables_of_several_models_combined(blobs):
    known = np.arange(0, 100)
    tables = []
    for losses in (torch.full((400,), torch.nan), torch.full((400,), torch.nan)):
        losses[known] = torch.rand(100, generator=torch.Generator().manual_seed(len(tables)))
        tables.append(gp.IrreducibleLosses(losses, data=gp.describe(blobs)))
    a, b = (t.values[known] for t in tables)
    mean, probability = (gp.IrreducibleLosses.combined(tables, of) for of in ("losses", "probabilities"))
    torch.testing.assert_close(mean.values[known], (a + b) / 2)
    torch.testing.assert_close(probability.values[known], -(((-a).exp() + (-b).exp()) / 2).log())
    assert mean.ids.tolist() == known.tolist()
    assert mean.parents == {"table 0": tables[0].digest, "table 1": tables[1].digest}
    assert mean.rivals is None
    for n, table in enumerate(tables):
        table.rivals = Rivals(torch.full((400,), float(n)), torch.linspace(-1, 1, 400) * (1 - 3 * n))
    against = gp.IrreducibleLosses.combined(tables).rivals
    assert against is not None
    torch.testing.assert_close(against.margin, torch.linspace(-1, 1, 400) * -0.5)
    assert against.rival.tolist() == [1.0] * 200 + [0.0] * 200
    with pytest.raises(ConfigError, match="different training sides"):
        gp.IrreducibleLosses.combined([tables[0], make_irreducible(blobs)])
    with pytest.raises(UnknownName, match="way to combine"):
        gp.IrreducibleLosses.combined(tables, "medians")  # type: ignore[arg-type]


def test_generalised_cross_entropy():
    logits, y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 4
    p = logits.softmax(1)[torch.arange(50), y]
    torch.testing.assert_close(gp.generalised_cross_entropy(0.7)(logits, y), (1 - p**0.7) / 0.7)
    torch.testing.assert_close(gp.generalised_cross_entropy(1e-6)(logits, y), -p.log(), rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match="not in"):
        gp.generalised_cross_entropy(0.0)


def test_a_holdout_model_may_learn_by_another_loss_than_it_is_scored_by(blobs, split):
    def table(**options):
        config = gp.HoldoutConfig(max_epochs=20, training=gp.TrainingConfig(lr=1e-2))
        return gp.irreducible_losses(lambda fold: make_mlp(), blobs, split, config=config, **options)

    robust, models, reports, _ = table(training_loss=gp.generalised_cross_entropy(0.7))
    model = models[0].eval()
    x, y = blobs.gather(torch.as_tensor(split.train))
    expected = torch.nn.functional.cross_entropy(model(x), y, reduction="none").detach()
    torch.testing.assert_close(robust.values[split.train], expected)
    assert reports[0].figures["accuracy"] > 0.8
    assert robust.digest != table()[0].digest


class TestFile:
    def test_roundtrip(self, blobs, tmp_path):
        table = make_irreducible(blobs, np.arange(100, 300))
        path = table.save(tmp_path / "i.arrow")
        opened = gp.IrreducibleLosses.open(path, data=blobs)
        assert torch.equal(opened.values.nan_to_num(-1), table.values.nan_to_num(-1))
        assert opened.digest == table.digest
        opened.require(np.arange(100, 300))

    def test_an_existing_file_is_refused(self, blobs, tmp_path):
        table = make_irreducible(blobs)
        path = table.save(tmp_path / "i.arrow")
        before = path.read_bytes()
        with pytest.raises(OutputExists):
            make_irreducible(blobs, np.arange(5)).save(path)
        assert path.read_bytes() == before
        table.save(path, force=True)

    def test_of_other_data(self, blobs, tmp_path):
        path = make_irreducible(blobs).save(tmp_path / "i.arrow")
        with pytest.raises(FingerprintMismatch, match="other data"):
            gp.IrreducibleLosses.open(path, data=make_blobs(seed=1))
        with pytest.raises(FingerprintMismatch, match="400 examples; this one has 300"):
            gp.IrreducibleLosses.open(path, data=make_blobs(300))

    def test_too_short_or_with_missing_entries(self, blobs):
        table = make_irreducible(blobs, np.arange(100))
        with pytest.raises(MissingIrreducible, match=r"200 of 300 examples have no irreducible loss \(ids 100, 101"):
            table.require(np.arange(300))
        with pytest.raises(MissingIrreducible, match="too short"):
            table.require(np.array([3, 400]))

    def test_truncated(self, blobs, tmp_path):
        path = make_irreducible(blobs).save(tmp_path / "i.arrow")
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(CorruptFile, match="truncated or damaged"):
            gp.IrreducibleLosses.open(path)

    def test_losses_that_are_not_finite_and_ids_that_do_not_exist(self, blobs, tmp_path):
        columns = {"id": "uint16", "irreducible": "float32"}
        for name, ids, losses, error in (
            ("nan", [1, 2], [0.1, np.nan], NonFiniteError),
            ("range", [1, 400], [0.1, 0.2], FingerprintMismatch),
        ):
            writer = TableWriter(tmp_path / name, Header(kind="irreducible", data=describe(blobs), columns=columns))
            writer.append({"id": np.array(ids), "irreducible": np.array(losses)})
            writer.close()
            with pytest.raises(error):
                gp.IrreducibleLosses.open(tmp_path / name)
        with pytest.raises(NonFiniteError, match="infinite"):
            gp.IrreducibleLosses(torch.tensor([1.0, torch.inf]))

    def test_a_header_without_a_data_set(self, blobs, tmp_path):
        path = make_irreducible(blobs).save(tmp_path / "i.arrow")
        rewrite_header(path, data={})
        with pytest.raises(CorruptFile, match="header"):
            gp.IrreducibleLosses.open(path)


def test_the_length_in_a_header_allocates_nothing(tmp_path, blobs, irreducible):
    path = irreducible.save(tmp_path / "i.arrow")
    rewrite_header(path, data={"fingerprint": "sha256:0", "length": 2**62})
    with pytest.raises(CorruptFile, match="open it with data="):
        gp.IrreducibleLosses.open(path)
    with pytest.raises(FingerprintMismatch):
        gp.IrreducibleLosses.open(path, data=blobs)


def test_ids_out_of_order_and_missing_columns(tmp_path):
    data = {"fingerprint": "sha256:0", "length": 10}
    for number, ids in enumerate(([3, 2], [2, 2], [2**64 - 1, 1])):
        header = Header(kind="irreducible", data=data, columns={"id": "uint64", "irreducible": "float32"})
        writer = TableWriter(tmp_path / f"{number}.arrow", header)
        writer.append({"id": np.array(ids, np.uint64), "irreducible": np.ones(2)})
        writer.close()
        with pytest.raises(CorruptFile, match="ascending"):
            gp.IrreducibleLosses.open(writer.path)
    writer = TableWriter(tmp_path / "n.arrow", Header(kind="irreducible", data=data, columns={"id": "uint8"}))
    writer.close()
    with pytest.raises(CorruptFile, match="no irreducible losses"):
        gp.IrreducibleLosses.open(writer.path)
