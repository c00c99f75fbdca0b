import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.errors import (
    ConfigError,
    DataError,
    FingerprintMismatch,
    GoldiproxError,
    MissingIrreducible,
    ModelMismatch,
    NonFiniteError,
    OutputExists,
    UnknownName,
)
from goldiprox.inspection import verify

SETTINGS = {"candidates": 40, "keep": 8, "steps": 30, "config": gp.TrainingConfig(lr=1e-2)}


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


class WithNorm(nn.Module):
    """Dropout and BatchNorm: what makes a replay go astray if scoring leaves a trace."""

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
            )

    def forward(self, x):
        return self.layers(x)


def test_record_trains_on_what_it_writes(blobs, irreducible, tmp_path, global_state):
    proxy = make_mlp()
    recording = gp.record(
        proxy, blobs, irreducible=irreducible, out=tmp_path / "s.arrow", evaluate=gp.evaluate_on(blobs), **SETTINGS
    )
    sequence = gp.Sequence.open(tmp_path / "s.arrow", data=blobs)
    assert sequence.digest == recording.digest
    assert np.array_equal(sequence.ids, recording.ids)
    assert len(sequence) == recording.steps == 30
    assert recording.history.final["accuracy"] > 0.7
    assert recording.history.cost.examples_scored == 30 * 40
    assert recording.history.cost.examples_trained == 30 * 8
    header = sequence.header
    assert header.parents["irreducible"] == irreducible.digest
    assert header.config["acquisition"] == "reducible_loss"
    assert global_state()


@pytest.mark.parametrize("make", [make_mlp, WithNorm, lambda: make_mlp(dropout=0.5)])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_proxy_replaying_its_own_sequence_ends_bit_identical(make, schedule, blobs, irreducible, tmp_path):
    settings = SETTINGS | {"config": gp.TrainingConfig(lr=1e-2, schedule=schedule)}
    proxy, again = make(), make()
    assert same_weights(proxy, again)
    gp.record(proxy, blobs, irreducible=irreducible, out=tmp_path / "s.arrow", seed=3, **settings)
    assert not same_weights(proxy, again)
    gp.replay(again, blobs, gp.Sequence.open(tmp_path / "s.arrow", data=blobs), config=settings["config"], seed=3)
    assert same_weights(proxy, again)


@pytest.mark.parametrize("rule", [gp.top_k(), gp.gumbel_top_k(1.0), gp.mix(0.5)])
def test_same_seed_same_digest_with_any_number_of_workers(rule, blobs, irreducible):
    def digest(seed=0, **options):
        return gp.record(
            make_mlp(dropout=0.2), blobs, irreducible=irreducible, rule=rule, seed=seed, **SETTINGS, **options
        ).digest

    assert digest() == digest() == digest(num_workers=0) == digest(num_workers=2)
    assert digest() != digest(seed=1)


def test_replay_is_the_same_with_any_number_of_workers(blobs, irreducible, tmp_path):
    gp.record(make_mlp(), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
    models = []
    for workers in (None, 0, 2):
        models.append(make_mlp(5, dropout=0.2))
        gp.replay(models[-1], blobs, gp.Sequence.open(tmp_path / "s.arrow"), num_workers=workers)
    assert same_weights(models[0], models[1])
    assert same_weights(models[0], models[2])


def test_several_replays_leave_what_each_would_alone(blobs, irreducible, tmp_path):
    sequences = []
    for seed in range(2):
        path = tmp_path / f"{seed}.arrow"
        gp.record(make_mlp(), blobs, irreducible=irreducible, out=path, seed=seed, **SETTINGS)
        sequences.append(gp.Sequence.open(path, data=blobs))
    models, alone = ([make_mlp(seed) for seed in range(2)] for _ in range(2))
    evaluate = gp.evaluate_on(blobs)
    each = [{"seed": seed, "evaluate": evaluate} for seed in range(2)]
    histories = gp.replay_many(models, blobs, sequences, each=each, eval_every=10)
    for model, other, sequence, history in zip(models, alone, sequences, histories, strict=True):
        one = gp.replay(other, blobs, sequence, evaluate=evaluate, eval_every=10)
        assert same_weights(model, other)
        assert [e["accuracy"] for e in history.evaluations] == [e["accuracy"] for e in one.evaluations]
    with pytest.raises(ConfigError, match="2 models, 1 sequences"):
        gp.replay_many(models, blobs, sequences[:1])
    longer = tmp_path / "longer.arrow"
    gp.record(make_mlp(), blobs, irreducible=irreducible, out=longer, **(SETTINGS | {"steps": SETTINGS["steps"] + 1}))
    with pytest.raises(ConfigError, match="same number"):
        gp.replay_many(models, blobs, [sequences[0], gp.Sequence.open(longer, data=blobs)])


def test_replay_trains_on_the_recorded_ids_in_order(blobs, irreducible, tmp_path):
    recording = gp.record(make_mlp(), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
    consumed = []

    class Recorded(Dataset):
        labels = blobs.labels

        def __len__(self):
            return len(blobs)

        def __getitem__(self, id):
            consumed.append(id)
            return blobs[id]

        def fingerprint(self):
            return gp.fingerprint(blobs)

    gp.replay(make_mlp(), Recorded(), gp.Sequence.open(tmp_path / "s.arrow", data=Recorded()))
    assert consumed[-len(recording.ids) :] == recording.ids.tolist()


def test_uniform_sees_the_same_candidates_and_pays_for_no_scoring(blobs, irreducible):
    seen = {}

    def watching(acquisition):
        def watch(c):
            seen.setdefault(acquisition.__name__, []).append(c.ids.tolist())
            return acquisition(c)

        return watch

    for acquisition in (gp.uniform, gp.reducible_loss):
        gp.record(make_mlp(), blobs, irreducible=irreducible, acquisition=watching(acquisition), **SETTINGS)
    assert seen["uniform"] == seen["reducible_loss"]
    assert gp.record(make_mlp(), blobs, acquisition=gp.uniform, **SETTINGS).history.cost.examples_scored == 0


@pytest.mark.parametrize("acquisition", [gp.uniform, gp.irreducible_loss])
@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_choosing_by_id_gives_what_loading_all_candidates_gives(acquisition, num_workers, blobs, irreducible, tmp_path):
    """A wrapper is not recognised as needing ids only, and goes the long way."""
    loaded: list[int] = []

    class Watched(Dataset):
        targets = blobs.y.tolist()

        def __len__(self):
            return 400

        def __getitem__(self, id):
            loaded.append(id)
            return blobs[id]

        def fingerprint(self):
            return gp.fingerprint(blobs)

    options = SETTINGS | {"irreducible": irreducible, "columns": ("score",), "num_workers": num_workers}
    options |= {"rule": gp.top_k()}
    short, long = (
        gp.record(make_mlp(), Watched(), acquisition=a, out=tmp_path / f"{number}.arrow", **options)
        for number, a in enumerate((acquisition, lambda c: acquisition(c)))
    )
    assert short.digest == long.digest
    scores = [gp.Sequence.open(tmp_path / f"{number}.arrow").column("score").tolist() for number in range(2)]
    assert scores[0] == scores[1]
    if num_workers == 0:
        assert loaded[40 : 40 + 30 * 8] == short.ids.tolist()  # after the 40 of the check beforehand


class TestWithoutAProxy:
    """A table, or chance, decides: nothing is trained."""

    @pytest.mark.parametrize("acquisition", [gp.uniform, gp.irreducible_loss, gp.predictability])
    def test_the_sequence_is_that_which_is_recorded_beside_a_proxy(self, acquisition, blobs, irreducible, tmp_path):
        options = SETTINGS | {"irreducible": irreducible, "acquisition": acquisition, "columns": ("score",)}
        told = []
        beside = gp.record(make_mlp(), blobs, out=tmp_path / "beside.arrow", **options)
        alone = gp.record(
            None, blobs, out=tmp_path / "alone.arrow", on_step=lambda step, _: told.append(step), **options
        )
        assert alone.digest == beside.digest
        assert alone.steps == alone.history.steps == 30
        assert told == [*range(1, 31)]
        opened = [gp.Sequence.open(tmp_path / f"{name}.arrow", blobs) for name in ("alone", "beside")]
        verify(opened[0])
        assert opened[0].column("score").tolist() == opened[1].column("score").tolist()
        assert opened[0].header == opened[1].header
        cost = alone.history.cost
        assert (cost.examples_scored, cost.examples_trained, cost.flops) == (0, 0, 0)
        assert cost.seconds > 0
        in_memory = gp.record(None, blobs, **options)
        assert in_memory.ids.tolist() == alone.ids.tolist()

    def test_several_with_and_without(self, blobs, irreducible):
        each = [{"acquisition": a} for a in (gp.predictability, gp.reducible_loss, gp.uniform)]
        proxies = [None, make_mlp(), None]
        found = gp.record_many(proxies, blobs, each=each, irreducible=irreducible, **SETTINGS)
        for recording, proxy, own in zip(found, [None, make_mlp(), None], each, strict=True):
            assert recording.digest == gp.record(proxy, blobs, irreducible=irreducible, **own, **SETTINGS).digest
        assert [r.history.cost.examples_trained for r in found] == [0, 30 * 8, 0]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, "what to keep depends on one; give a proxy"),
            ({"acquisition": gp.loss}, "what to keep depends on one"),
            ({"acquisition": gp.uniform, "irreducible": lambda batch: batch.y.float()}, "candidates are not loaded"),
            ({"acquisition": gp.predictability, "scope": "local"}, "scope='local'"),
            ({"acquisition": gp.uniform, "evaluate": lambda model: {"accuracy": 1.0}}, "leave out evaluate"),
            ({"acquisition": gp.predictability, "irreducible": None}, "needs irreducible losses"),
            ({"acquisition": gp.predictability, "columns": ("loss",)}, "leave the column out"),
            ({"acquisition": gp.predictability, "ids": [0, 1, 400]}, "400"),
        ],
    )
    def test_what_asks_for_one_is_refused(self, changes, said, blobs, irreducible, tmp_path):
        options = SETTINGS | {"irreducible": irreducible, "out": tmp_path / "s.arrow"} | changes
        with pytest.raises(GoldiproxError, match=said):
            gp.record(None, blobs, **options)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(("begun", "continued"), [(None, make_mlp), (make_mlp, None)])
    def test_it_is_not_continued_with_one_nor_the_other_way_round(self, begun, continued, blobs, irreducible, tmp_path):
        options = SETTINGS | {"irreducible": irreducible, "acquisition": gp.predictability, "out": tmp_path / "s.arrow"}
        asked = iter(range(100))
        with (
            pytest.raises(gp.Interrupted),
            gp.Checkpoints(tmp_path / "c", every=0, stop=lambda: next(asked) == 10) as checkpoints,
        ):
            gp.record(begun and begun(), blobs, checkpoints=checkpoints, **options)
        with (
            pytest.raises(gp.ConfigError, match="--without-proxy"),
            gp.Checkpoints(tmp_path / "c") as checkpoints,
        ):
            gp.record(continued and continued(), blobs, checkpoints=checkpoints, **options)

    def test_broken_off_it_is_made_anew(self, blobs, irreducible, tmp_path):
        options = SETTINGS | {"irreducible": irreducible, "acquisition": gp.predictability}
        asked, out = iter(range(100)), tmp_path / "s.arrow"
        with (
            pytest.raises(gp.Interrupted),
            gp.Checkpoints(tmp_path / "c", stop=lambda: next(asked) == 10) as checkpoints,
        ):
            gp.record(None, blobs, out=out, checkpoints=checkpoints, **options)
        assert not out.exists()
        with gp.Checkpoints(tmp_path / "c") as checkpoints:
            again = gp.record(None, blobs, out=out, checkpoints=checkpoints, **options)
        assert again.digest == gp.record(None, blobs, **options).digest
        verify(gp.Sequence.open(out, blobs))
        assert [path.name for path in tmp_path.iterdir()] == ["s.arrow"]


def test_only_the_training_side_is_selected_from(blobs):
    irreducible = make_irreducible(blobs, np.arange(100, 300))
    recording = gp.record(make_mlp(), blobs, irreducible=irreducible, **SETTINGS)
    assert recording.ids.min() >= 100
    assert recording.ids.max() < 300
    assert set(gp.record(make_mlp(), blobs, irreducible=irreducible, ids=np.arange(150, 200), **SETTINGS).ids) <= set(
        range(150, 200)
    )


def test_evaluations_follow_their_schedule_and_are_written(blobs, irreducible, tmp_path):
    from goldiprox.outputs import JsonLines

    with JsonLines(tmp_path / "m.jsonl") as metrics:
        recording = gp.record(
            make_mlp(), blobs, irreducible=irreducible, evaluate=gp.evaluate_on(blobs), eval_every=12,
            on_record=metrics, **SETTINGS,
        )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines == recording.history.evaluations
    assert [line["step"] for line in lines] == [12, 24, 30]
    assert lines[-1]["examples"] == 240
    assert lines[0]["seconds"] < lines[-1]["seconds"]


def test_evaluation_changes_nothing(blobs, irreducible):
    digests = {
        gp.record(WithNorm(), blobs, irreducible=irreducible, evaluate=evaluate, eval_every=1, **SETTINGS).digest
        for evaluate in (None, gp.evaluate_on(blobs))
    }
    assert len(digests) == 1


def test_a_cosine_schedule_ends_at_zero(blobs):
    rates = []

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=1.0)
        made.register_step_post_hook(lambda opt, *_: rates.append(opt.param_groups[0]["lr"]))
        return made

    gp.record(
        make_mlp(), blobs, acquisition=gp.uniform, candidates=40, keep=8, steps=20,
        config=gp.TrainingConfig(schedule="cosine"), optimizer=optimizer,
    )  # fmt: skip
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01


class TestAnyTask:
    """Nothing in the core assumes images, classes or one input."""

    def test_regression(self, tmp_path):
        x = torch.linspace(-2, 2, 300)[:, None]
        y = x.sin() + 0.1 * torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, y)

        def squared_error(output, target):
            return (output - target).square().mean(1)

        split = gp.holdout_split(300, seed=0)
        config = gp.HoldoutConfig(max_epochs=3, batch_size=16)
        table, *_ = gp.irreducible_losses(
            lambda fold: make_mlp(9, num_inputs=1, num_outputs=1), data, split, loss=squared_error, config=config
        )
        model = make_mlp(num_inputs=1, num_outputs=1)
        evaluate = gp.evaluate_on(data, loss=squared_error)
        before = evaluate(model)["loss"]
        recording = gp.record(
            model, data, irreducible=table, loss=squared_error, evaluate=evaluate, out=tmp_path / "s.arrow",
            candidates=40, keep=8, steps=60, config=gp.TrainingConfig(lr=1e-2),
        )  # fmt: skip
        assert recording.history.final["loss"] < before / 2
        assert "accuracy" not in recording.history.final
        again = make_mlp(num_inputs=1, num_outputs=1)
        gp.replay(
            again, data, gp.Sequence.open(tmp_path / "s.arrow", data=data), loss=squared_error,
            config=gp.TrainingConfig(lr=1e-2),
        )  # fmt: skip
        assert same_weights(model, again)

    @pytest.mark.parametrize("num_workers", [None, 2])
    def test_inputs_of_any_length(self, num_workers, tmp_path):
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 12, (200,), generator=draw).tolist()
        items = [(x, x.mean(0)) for x in (torch.randn(n, 4, generator=draw) for n in lengths)]

        def pad(items):
            x, y = zip(*items, strict=True)
            mask = nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in x], batch_first=True)
            return nn.utils.rnn.pad_sequence(list(x), batch_first=True), mask, torch.stack(y)

        def forward(model, inputs):
            x, mask = inputs
            return (model(x) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

        def squared_error(output, target):
            return (output - target).square().mean(1)

        data, options = gp.WithIds(items, collate=pad), {"loss": squared_error, "forward": forward}
        table, *_ = gp.irreducible_losses(
            lambda fold: nn.Linear(4, 4), data, gp.holdout_split(200), config=gp.HoldoutConfig(max_epochs=2), **options
        )
        model, evaluate = make_mlp(num_inputs=4), gp.evaluate_on(data, **options)
        before = evaluate(model)["loss"]
        recording = gp.record(
            model, data, irreducible=table, evaluate=evaluate, out=tmp_path / "s.arrow", num_workers=num_workers,
            candidates=40, keep=8, steps=60, config=gp.TrainingConfig(lr=1e-2), **options,
        )  # fmt: skip
        assert recording.history.final["loss"] < before / 2
        again, sequence = make_mlp(num_inputs=4), gp.Sequence.open(tmp_path / "s.arrow", data=data)
        gp.replay(again, data, sequence, config=gp.TrainingConfig(lr=1e-2), **options)
        assert recording.history.final["loss"] == pytest.approx(evaluate(again)["loss"], rel=1e-3)

        select = gp.Selector(irreducible=table, keep=8, **options)
        sampler = gp.CandidateSampler(table.ids, 40, steps=2)
        for batch in DataLoader(data, batch_sampler=sampler, collate_fn=data.collate):
            kept = select(again, batch)
            assert all(
                torch.equal(x[: lengths[id]], items[id][0]) for id, x in zip(kept.ids.tolist(), kept.x[0], strict=True)
            )

    @pytest.mark.parametrize("acquisition", [gp.loss, gp.gradient_norm, gp.reducible_loss])
    def test_two_towers(self, acquisition):
        class Pairs(Dataset):
            """Dictionaries of two inputs, without labels."""

            def __init__(self):
                self.left = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))

            def __len__(self):
                return 200

            def __getitem__(self, id):
                return {"left": self.left[id], "right": self.left[id].flip(0)}

        class Towers(nn.Module):
            def __init__(self):
                super().__init__()
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    self.left, self.right = nn.Linear(3, 8), nn.Linear(3, 8)

            def forward(self, left, right):
                return self.left(left) @ self.right(right).T

        def contrastive(similarity, _):
            target = torch.arange(len(similarity), device=similarity.device)
            return nn.functional.cross_entropy(similarity, target, reduction="none")

        options = {"loss": contrastive, "forward": lambda model, x: model(**x)}
        data, model = Pairs(), Towers()
        table = gp.IrreducibleLosses.from_callable(lambda batch: batch.ids * 0.001, data)
        evaluate = gp.evaluate_on(data, **options)
        before = evaluate(model)["loss"]
        recording = gp.record(
            model, data, irreducible=table, acquisition=acquisition, evaluate=evaluate,
            candidates=40, keep=8, steps=40, config=gp.TrainingConfig(lr=1e-2), **options,
        )  # fmt: skip
        assert recording.history.final["loss"] < before
        assert recording.digest == gp.record(
            Towers(), data, irreducible=table, acquisition=acquisition,
            candidates=40, keep=8, steps=40, config=gp.TrainingConfig(lr=1e-2), num_workers=2, **options,
        ).digest  # fmt: skip


class TestBadInput:
    """Refused before the first step, with nothing left on the disk."""

    def refused(self, error, match, tmp_path, model=None, data=None, **options):
        data = make_blobs() if data is None else data
        options = SETTINGS | {"irreducible": make_irreducible(make_blobs())} | options
        with pytest.raises(error, match=match):
            gp.record(model or make_mlp(), data, out=tmp_path / "s.arrow", **options)
        assert list(tmp_path.iterdir()) == []

    def test_keep_over_candidates(self, tmp_path):
        self.refused(ConfigError, "cannot keep 41 of 40 candidates", tmp_path, keep=41)

    def test_candidates_over_the_training_side(self, tmp_path):
        self.refused(ConfigError, "training side has only 400", tmp_path, candidates=401)

    def test_no_length_or_two(self, tmp_path):
        self.refused(ConfigError, "either steps or epochs", tmp_path, epochs=3)
        self.refused(ConfigError, "either steps or epochs", tmp_path, steps=None)

    def test_irreducible_losses_of_other_data(self, tmp_path):
        other = make_irreducible(make_blobs(seed=1))
        self.refused(FingerprintMismatch, "the irreducible table was made from other data", tmp_path, irreducible=other)

    def test_irreducible_losses_too_short(self, tmp_path):
        self.refused(
            ConfigError, "300 examples, the data set has 400", tmp_path, irreducible=make_irreducible(make_blobs(300))
        )

    def test_irreducible_losses_with_missing_entries(self, tmp_path):
        table = make_irreducible(make_blobs(), np.arange(200))
        self.refused(MissingIrreducible, "200 of 400", tmp_path, irreducible=table, ids=np.arange(400))

    def test_no_irreducible_losses(self, tmp_path):
        self.refused(MissingIrreducible, "goldiprox irreducible", tmp_path, irreducible=None)

    def test_a_model_for_other_inputs(self, tmp_path):
        self.refused(ModelMismatch, "proxy does not accept the inputs", tmp_path, model=make_mlp(num_inputs=3))

    def test_a_model_with_too_few_outputs(self, tmp_path):
        self.refused(ModelMismatch, "3 outputs, the labels have 4 classes", tmp_path, model=make_mlp(num_outputs=3))

    def test_a_loss_that_is_reduced(self, tmp_path):
        self.refused(ModelMismatch, "one value per example", tmp_path, loss=nn.functional.cross_entropy)

    def test_a_loss_that_averages_over_examples(self, tmp_path):
        data = TensorDataset(torch.zeros(400, 2), torch.zeros(400, 40))
        self.refused(
            ModelMismatch, r"shape \(2,\); it gave float32 \(40,\)", tmp_path, data=data,
            model=make_mlp(num_outputs=40), irreducible=lambda b: b.ids * 0.0,
            loss=lambda output, y: (output - y).square().mean(0),
        )  # fmt: skip

    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_a_loss_that_broadcasts(self, shape, tmp_path):
        data = TensorDataset(torch.randn(400, 2), torch.randn(400, *shape))
        options = {"model": make_mlp(num_outputs=1), "data": data, "irreducible": lambda b: b.ids * 0.0}
        if not shape:
            options["loss"] = lambda output, y: (output - y).square().mean(1)
        else:
            options |= {"forward": lambda model, x: model(x)[:, 0], "loss": lambda o, y: (o - y).square().mean(0)}
        self.refused(ModelMismatch, "depends on the others of its batch", tmp_path, **options)

    def test_items_without_a_target(self, tmp_path):
        data = [{"x": torch.zeros(2), "mood": 1} for _ in range(400)]
        options = {"data": data, "irreducible": lambda b: b.ids * 0.0, "forward": lambda model, x: model(x["x"])}
        self.refused(ModelMismatch, r"no target: .* labels, label, .*gp\.WithIds\(data, split=", tmp_path, **options)
        own = {"loss": lambda output, y: (output - y).sum(1), **options}
        self.refused(ModelMismatch, r"no target: .*gp\.WithIds\(data, split=", tmp_path, **own)

    def test_examples_that_cannot_be_stacked(self, tmp_path):
        data = [(torch.zeros(2 + id % 3), 0) for id in range(400)]
        self.refused(
            DataError, r"cannot be stacked: .*gp\.WithIds\(data, collate=", tmp_path, data=data,
            irreducible=lambda b: b.ids * 0.0,
        )  # fmt: skip

    def test_an_evaluation_that_does_not_fit(self, tmp_path, blobs, irreducible):
        evaluate = gp.evaluate_on(TensorDataset(torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64)))
        said = r"evaluate_on: .* does not accept the inputs .*\(evaluate_on takes loss= and forward="
        self.refused(ModelMismatch, said, tmp_path, evaluate=evaluate)
        gp.record(make_mlp(), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
        with pytest.raises(ModelMismatch, match=said):
            gp.replay(make_mlp(), blobs, gp.Sequence.open(tmp_path / "s.arrow"), evaluate=evaluate)
        with pytest.raises(ConfigError, match="nothing to evaluate on"):
            gp.evaluate_on(blobs, ids=np.arange(0))

    @pytest.mark.parametrize("rule", [gp.top_k, gp.floored])
    def test_what_makes_rules_is_no_rule(self, rule, tmp_path):
        self.refused(ConfigError, r"such as gp\.top_k\(\) gives; got gp\..* itself", tmp_path, rule=rule)

    def test_targets_that_are_no_labels(self, tmp_path):
        data = TensorDataset(torch.zeros(400, 2), torch.rand(400))
        self.refused(ModelMismatch, "integer label", tmp_path, data=data, irreducible=lambda b: b.ids * 0.0)

    def test_columns_that_are_not_computed(self, tmp_path):
        self.refused(ConfigError, "computes no 'irreducible'", tmp_path, acquisition=gp.loss, columns=("irreducible",))

    def test_an_existing_file_stays(self, tmp_path, blobs, irreducible):
        path = tmp_path / "s.arrow"
        gp.record(make_mlp(), blobs, irreducible=irreducible, out=path, **SETTINGS)
        before = path.read_bytes()
        with pytest.raises(OutputExists):
            gp.record(make_mlp(), blobs, irreducible=irreducible, out=path, **SETTINGS)
        assert path.read_bytes() == before

    def test_a_replay_with_a_model_that_does_not_fit(self, tmp_path, blobs, irreducible):
        gp.record(make_mlp(), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
        with pytest.raises(ModelMismatch):
            gp.replay(make_mlp(num_outputs=2), blobs, gp.Sequence.open(tmp_path / "s.arrow"))


class Exploding(nn.Module):
    """Gives NaN from a certain training step on."""

    def __init__(self, at: int):
        super().__init__()
        self.inner, self.at, self.updates = make_mlp(), at, 0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.updates += 1
        return self.inner(x) * (float("nan") if self.updates > self.at else 1.0)


def test_a_diverging_run_names_step_and_ids_and_keeps_what_was_written(tmp_path, blobs, irreducible):
    with pytest.raises(NonFiniteError, match=r"not finite at step 12 for ids .* lower the learning rate") as e:
        gp.record(Exploding(12), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
    assert e.value.step == 12
    assert len(e.value.ids) == 8
    assert not (tmp_path / "s.arrow").exists()
    rescued = gp.Sequence.open(tmp_path / "s.arrow.partial", data=blobs, partial=True)
    reference = gp.record(make_mlp(), blobs, irreducible=irreducible, **SETTINGS)
    assert len(rescued) == 13  # with the step that failed
    assert np.array_equal(rescued.ids[: 12 * 8], reference.ids[: 12 * 8])


def test_infinite_inputs_are_found(blobs, irreducible):
    bad = blobs.replace(x=blobs.x.clone())
    bad.x[7] = torch.inf
    with pytest.raises(NonFiniteError, match="inputs are not finite"):
        gp.record(make_mlp(), bad, irreducible=lambda b: b.ids * 0.0, candidates=400, keep=8, steps=3)


class TestUsersCodeLeavesNoTrace:
    """Whatever users' functions draw or switch, a replay stays bit-identical."""

    def replayed(self, tmp_path, blobs, **options):
        settings = SETTINGS | {"irreducible": make_irreducible(blobs)} | options
        proxy, again = WithNorm(), WithNorm()
        gp.record(proxy, blobs, out=tmp_path / "s.arrow", **settings)
        gp.replay(again, blobs, gp.Sequence.open(tmp_path / "s.arrow"), config=settings["config"])
        return same_weights(proxy, again)

    def test_an_evaluation_that_draws_and_forgets_the_mode(self, tmp_path, blobs):
        def evaluate(model):
            model.eval()
            loader = torch.utils.data.DataLoader(blobs, batch_size=100, shuffle=True)
            return {"mean": sum(model(x).mean().item() for x, _ in loader)}

        assert self.replayed(tmp_path, blobs, evaluate=evaluate, eval_every=3)

    def test_an_acquisition_that_draws(self, tmp_path, blobs):
        assert self.replayed(tmp_path, blobs, acquisition=lambda c: c.loss + torch.rand(len(c)))

    def test_a_live_holdout_model_in_training_mode(self, tmp_path, blobs):
        il_model = WithNorm(7)

        def live(batch):
            return nn.functional.cross_entropy(il_model(batch.x), batch.y, reduction="none")

        assert self.replayed(tmp_path, blobs, irreducible=live)

    def test_spectral_norm(self, tmp_path, blobs, irreducible):
        def make():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 8)), nn.Linear(8, 4))

        proxy, again = make(), make()
        gp.record(proxy, blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
        gp.replay(again, blobs, gp.Sequence.open(tmp_path / "s.arrow"), config=SETTINGS["config"])
        assert same_weights(proxy, again)

    def test_data_that_draws_while_it_is_read(self, blobs, global_state):
        class Augmented(Dataset):
            targets = blobs.y.tolist()

            def __len__(self):
                return 400

            def __getitem__(self, id):
                x, y = blobs[id]
                return x + 0.1 * torch.randn(2) + np.random.normal(), y  # noqa: NPY002

            def fingerprint(self):
                return "blobs, augmented"

        digests = {gp.record(make_mlp(), Augmented(), acquisition=gp.loss, **SETTINGS).digest for _ in range(2)}
        assert len(digests) == 1
        assert global_state()


def test_what_the_user_froze_stays_frozen(blobs, irreducible):
    model = WithNorm()
    norm = model.layers[1]
    norm.eval()
    before = norm.running_mean.clone()
    gp.record(model, blobs, irreducible=irreducible, evaluate=gp.evaluate_on(blobs), eval_every=5, **SETTINGS)
    assert not norm.training
    assert model.training
    assert torch.equal(norm.running_mean, before)


def test_a_failed_step_leaves_the_weights_of_the_last_good_one(blobs):
    model = Exploding(5)
    with pytest.raises(NonFiniteError):
        gp.record(model, blobs, acquisition=gp.uniform, **SETTINGS)
    good = make_mlp()
    gp.record(good, blobs, acquisition=gp.uniform, **(SETTINGS | {"steps": 5}))
    assert same_weights(model.inner, good)


def test_the_bill_counts_every_forward_pass(blobs, irreducible):
    def scored(acquisition, **options):
        cost = gp.record(make_mlp(dropout=0.5), blobs, acquisition=acquisition, **SETTINGS, **options).history.cost
        return cost.examples_scored / (30 * 40)

    assert scored(gp.uniform) == scored(gp.irreducible_loss, irreducible=irreducible) == 0
    assert scored(gp.loss) == 1
    assert scored(gp.bald) == 10
    assert scored(lambda c: c.ids.float()) == 0


def test_replay_compares_data_and_sequence_itself(tmp_path, blobs, irreducible):
    gp.record(make_mlp(), blobs, irreducible=irreducible, out=tmp_path / "s.arrow", **SETTINGS)
    sequence = gp.Sequence.open(tmp_path / "s.arrow")
    with pytest.raises(FingerprintMismatch):
        gp.replay(make_mlp(), make_blobs(seed=1), sequence)
    next(iter(sequence))  # a peek
    assert gp.replay(make_mlp(), blobs, sequence).steps == 30


@pytest.mark.parametrize("labels", [[9], [-1], [-100]])
def test_labels_outside_the_classes_of_any_data_set(labels, tmp_path):
    """Found beforehand where labels are at hand, and at the latest at the step that meets them."""
    x, y = make_blobs().gather(torch.arange(400))
    y[200:201] = torch.tensor(labels)
    with pytest.raises((ModelMismatch, DataError), match="outputs|negative"):
        gp.record(make_mlp(), TensorDataset(x, y), acquisition=gp.uniform, out=tmp_path / "s.arrow", **SETTINGS)
    assert list(tmp_path.iterdir()) == []

    class Unlabelled(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, id):
            return x[id], y[id]

    with pytest.raises((ModelMismatch, DataError), match=r"outputs|outside the model's 4 classes"):
        gp.record(make_mlp(), Unlabelled(), acquisition=gp.uniform, candidates=400, keep=400, steps=1)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (np.ones(400, bool), "must list ids"),
        (np.array([1, 1, 2] * 20), "twice"),
        (np.arange(-5, 100), "-5, -4"),
        (np.arange(350, 450), "400, 401"),
        (np.linspace(0, 1, 50), "must list ids"),
    ],
)
def test_ids_that_are_none(ids, said, blobs):
    with pytest.raises(ConfigError, match=said):
        gp.record(make_mlp(), blobs, acquisition=gp.uniform, ids=ids, **SETTINGS)


@pytest.mark.parametrize(
    "argument", ["'loss'", "gp.loss, mode='trian'", "gp.loss, irreducible='i.arrow'", "gp.loss, rule='top_k'"]
)
def test_acquisitions_and_modes_by_a_wrong_name(argument):
    """In a process of its own, where the tests' type checker does not step in first."""
    code = f"import goldiprox as gp\ntry: gp.Selector({argument}, keep=1)\nexcept gp.GoldiproxError as e: print(e)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    remedies = ("is a function of candidates", "Did you mean 'train'", "open a file with", "got the text 'top_k'")
    assert any(words in said for words in remedies)


def test_unknown_schedules():
    with pytest.raises(UnknownName, match="Did you mean 'cosine'"):
        gp.TrainingConfig(schedule="cosin")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="learning rate of 0"):
        gp.TrainingConfig(lr=0)


class Shifted(Dataset):
    """Every input moved by one, as an augmentation would; counts what was loaded."""

    def __init__(self, data):
        self.data, self.loaded = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, id):
        self.loaded.append(id)
        x, y = self.data[id]
        return x + 1, y


def test_only_kept_examples_are_augmented(blobs):
    augmented = Shifted(blobs)
    seen = []

    def forward(model, x):
        seen.append(x)
        return model(x)

    settings = {"irreducible": make_irreducible(blobs), "candidates": 40, "keep": 8, "steps": 5, "forward": forward}
    recording = gp.record(make_mlp(), blobs, augmented=augmented, **settings)
    assert augmented.loaded == recording.ids.tolist()
    trained = [x for x in seen if x.requires_grad is False and len(x) == 8][-1]
    torch.testing.assert_close(trained, blobs.gather(torch.as_tensor(recording.ids[-8:]))[0] + 1)
    with pytest.raises(ConfigError, match="the same examples"):
        gp.record(make_mlp(), blobs, augmented=make_blobs(10), **settings)


def test_recording_and_training_at_once_is_recording_and_then_replaying(tmp_path, blobs, irreducible):
    model, again = make_mlp(1), make_mlp(1)
    settings = {**SETTINGS, "irreducible": irreducible, "out": tmp_path / "s.arrow"}
    recording, history = gp.record_and_train(make_mlp(), model, blobs, **settings)
    assert history.steps == recording.steps == 30
    gp.replay(again, blobs, gp.Sequence.open(tmp_path / "s.arrow", data=blobs), config=SETTINGS["config"])
    assert same_weights(model, again)


def test_a_model_cannot_train_beside_a_proxy_that_is_not_there(blobs):
    with pytest.raises(ConfigError, match="no proxy"):
        gp.record_and_train(None, make_mlp(), blobs, acquisition=gp.uniform, candidates=8, keep=2, steps=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["record", "record_many", "record_and_train"])
def test_the_engine_loader_loads(how, blobs, irreducible, monkeypatch):
    used = []

    class Loader(DataLoader):
        def __init__(self, *args, **settings):
            used.append(settings["num_workers"])
            super().__init__(*args, **settings)

    monkeypatch.setattr("goldiprox.data.batch.DataLoader", Loader)
    settings = {**SETTINGS, "irreducible": irreducible, "engine": "loader"}
    calls = {
        "record": lambda: gp.record(make_mlp(), blobs, **settings),
        "record_many": lambda: gp.record_many([make_mlp()], blobs, **settings)[0],
        "record_and_train": lambda: gp.record_and_train(make_mlp(), make_mlp(), blobs, **settings)[0],
    }
    digest = calls[how]().digest
    assert set(used) == {0}
    assert digest == gp.record(make_mlp(), blobs, irreducible=irreducible, **SETTINGS).digest
