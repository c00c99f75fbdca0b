"""A run that was broken off and continued ends as one that never was."""

import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import goldiprox as gp
from conftest import NUM_CLASSES, make_blobs, make_irreducible, make_mlp
from goldiprox.checkpoint import _pack, _unpack
from goldiprox.holdout import HoldoutConfig
from goldiprox.loop import evaluate_on
from goldiprox.randomness import ORDER

STEPS = 24


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What these tests break off is Python, not the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


class Killed(BaseException):
    """What no code catches: the nearest thing to SIGKILL within one process."""


def killer(at: int):
    def on_step(step, latest):
        if step >= at:
            raise Killed

    return on_step


class BatchNormed(nn.Module):
    """Buffers that are saved with the weights, and one that is not."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, NUM_CLASSES)
            )
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.layers(x) * (1 + self.calls / 1000)


def dropout_mlp():
    return make_mlp(dropout=0.5)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Augmented(torch.utils.data.Dataset):
    """Draws while it is read."""

    def __init__(self, data):
        self.data, self.targets = data, data.y

    def __len__(self):
        return len(self.data)

    def __getitem__(self, id):
        x, y = self.data[id]
        return x + 0.1 * torch.randn(2) + np.random.normal(), y  # noqa: NPY002

    def fingerprint(self):
        return "blobs, augmented"


CASES = {
    "plain": {},
    "dropout": {"model": dropout_mlp},
    "batch norm, a buffer of its own, scored in training mode": {"model": BatchNormed, "mode": "train"},
    "cosine": {"config": gp.TrainingConfig(schedule="cosine")},
    "another optimiser": {"optimizer": momentum},
    "two loading processes": {"num_workers": 2},
    "augmented": {"data": Augmented(make_blobs()), "acquisition": gp.loss, "irreducible": None},
    "augmented in two loading processes": {
        "data": Augmented(make_blobs()),
        "acquisition": gp.loss,
        "irreducible": None,
        "num_workers": 2,
    },
    "loss and columns": {"acquisition": gp.loss, "columns": ("score", "loss")},
    "top_k": {"rule": gp.top_k()},
    "gumbel": {"rule": gp.gumbel_top_k(1.0)},
    "by id, with counts": {"acquisition": gp.irreducible_loss, "rule": gp.discounted_top_k(0.3)},
    "bald": {"model": dropout_mlp, "acquisition": gp.bald},
    "uniform": {"acquisition": gp.uniform},
    "ahead": {"ahead": True, "columns": ("score",)},
    "ahead, augmented in two loading processes": {
        "data": Augmented(make_blobs()),
        "acquisition": gp.loss,
        "irreducible": None,
        "num_workers": 2,
        "ahead": True,
    },
}


def record(data, out, folder, *, model=make_mlp, every=0.0, stop=lambda: False, **settings):
    """A recording with checkpoints: (recording, weights, evaluations as they were handed out)."""
    proxy, lines = model(), []
    given = {"irreducible": make_irreducible(make_blobs()), "candidates": 32, "keep": 8, "steps": STEPS, **settings}
    with gp.Checkpoints(folder, every=every, stop=stop) as checkpoints:
        recording = gp.record(
            proxy,
            data,
            out=out,
            evaluate=evaluate_on(make_blobs()),
            eval_every=7,
            on_record=lines.append,
            checkpoints=checkpoints,
            **given,
        )
    return recording, weights(proxy), lines


def weights(model):
    return {k: v.clone() for k, v in [*model.state_dict().items(), *model.named_buffers()]}


def without_seconds(value):
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if "seconds" not in k}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def assert_same(one, other):
    (first, first_weights, first_lines), (second, second_weights, second_lines) = one, other
    assert first.digest == second.digest
    assert np.array_equal(first.ids, second.ids)
    assert first_weights.keys() == second_weights.keys()
    for name, value in first_weights.items():
        assert torch.equal(value, second_weights[name]), name
    assert without_seconds(first_lines) == without_seconds(second_lines)
    assert without_seconds(first.history.evaluations) == without_seconds(second.history.evaluations)
    assert without_seconds(vars(first.history.cost)) == without_seconds(vars(second.history.cost))


@pytest.mark.parametrize(("name", "in_memory"), [*((name, False) for name in CASES), ("dropout", True)])
def test_a_recording_goes_on_as_if_nothing_had_happened(name, in_memory, tmp_path):
    case = CASES[name].copy()
    data = case.pop("data", make_blobs())
    paths = [None, None] if in_memory else [tmp_path / "whole.arrow", tmp_path / "broken.arrow"]
    whole = record(data, paths[0], tmp_path / "whole.checkpoint", **case)
    for at in (5, 5, 17, STEPS):
        with pytest.raises(Killed):
            record(data, paths[1], tmp_path / "c", on_step=killer(at), **case)
        assert (tmp_path / "c").is_dir()
    again = record(data, paths[1], tmp_path / "c", **case)
    assert_same(whole, again)
    assert not (tmp_path / "c").exists()
    if not in_memory:
        a, b = (gp.Sequence.open(path, data=data) for path in paths)
        assert a.digest == b.digest == again[0].digest
        for column in case.get("columns", ()):
            assert np.array_equal(a.column(column), b.column(column))


def test_a_finished_recording_is_not_repeated(tmp_path, blobs):
    """Killed after the file was complete and before anything was done with it."""
    out, folder = tmp_path / "s.arrow", tmp_path / "c"
    with gp.Checkpoints(folder) as checkpoints:
        proxy = make_mlp()
        first = gp.record(
            proxy, blobs, acquisition=gp.loss, candidates=32, keep=8, steps=9, out=out, checkpoints=checkpoints
        )
        shutil.copytree(folder, tmp_path / "kept")
    (tmp_path / "kept").rename(folder)
    proxy_again = make_mlp(seed=1)
    with gp.Checkpoints(folder) as checkpoints:
        second = gp.record(
            proxy_again,
            blobs,
            acquisition=lambda c: pytest.fail("selected again") if int(c.step) else c.loss,
            candidates=32,
            keep=8,
            steps=9,
            out=out,
            checkpoints=checkpoints,
            extra_config={"acquisition": "loss"},
        )
    assert first.digest == second.digest
    assert all(torch.equal(a, b) for a, b in zip(proxy.parameters(), proxy_again.parameters(), strict=True))


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_what_was_killed_before_its_first_checkpoint_begins_anew(every, tmp_path, blobs):
    whole = record(blobs, tmp_path / "w.arrow", tmp_path / "w")
    with pytest.raises(Killed):
        record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(1), every=every)
    assert_same(whole, record(blobs, tmp_path / "s.arrow", tmp_path / "c"))


def test_stopping_saves_the_step_and_says_where(tmp_path, blobs):
    whole = record(blobs, tmp_path / "w.arrow", tmp_path / "w")
    asked = iter([False] * 12 + [True])
    with pytest.raises(gp.Interrupted, match="stopped after step 12"):
        record(blobs, tmp_path / "s.arrow", tmp_path / "c", every=1e9, stop=lambda: next(asked))
    assert [p.name for p in (tmp_path / "c").glob("step-*")] == ["step-12"]
    assert_same(whole, record(blobs, tmp_path / "s.arrow", tmp_path / "c"))


def replay(data, sequence, folder, *, model=dropout_mlp, **settings):
    net, lines = model(), []
    with gp.Checkpoints(folder, every=0) as checkpoints:
        history = gp.replay(
            net,
            data,
            sequence,
            evaluate=evaluate_on(data),
            eval_every=7,
            on_record=lines.append,
            checkpoints=checkpoints,
            **settings,
        )
    return without_seconds(vars(history.cost)), weights(net), without_seconds(lines)


@pytest.mark.parametrize("num_workers", [None, 2])
def test_a_replay_goes_on_as_if_nothing_had_happened(num_workers, tmp_path, blobs):
    record(blobs, tmp_path / "s.arrow", tmp_path / "w")
    sequence = gp.Sequence.open(tmp_path / "s.arrow")
    whole = replay(blobs, sequence, tmp_path / "w", num_workers=num_workers)
    for at in (1, 13, 13, STEPS):
        with pytest.raises(Killed):
            replay(blobs, sequence, tmp_path / "c", num_workers=num_workers, on_step=killer(at))
    again = replay(blobs, sequence, tmp_path / "c", num_workers=num_workers)
    assert again[0] == whole[0]
    assert again[2] == whole[2]
    assert all(torch.equal(whole[1][k], again[1][k]) for k in whole[1])


def test_a_replay_of_another_sequence_is_refused(tmp_path, blobs):
    for name, seed in (("a", 0), ("b", 1)):
        record(blobs, tmp_path / f"{name}.arrow", tmp_path / name, seed=seed)
    a, b = (gp.Sequence.open(tmp_path / f"{name}.arrow") for name in "ab")
    with pytest.raises(Killed):
        replay(blobs, a, tmp_path / "c", on_step=killer(9))
    with pytest.raises(gp.FingerprintMismatch, match=r"the sequence changed.*--force"):
        replay(blobs, b, tmp_path / "c")
    b.header = a.header
    with pytest.raises(gp.FingerprintMismatch, match=r"differs in its first 8 steps"):
        replay(blobs, b, tmp_path / "c")


@pytest.mark.parametrize("num_folds", [0, 2])
@pytest.mark.parametrize(
    "settings", [{}, {"checkpoint": "last"}, {"cleaned": True}, {"cleaned": True, "mixup": "auto"}]
)
def test_irreducible_losses_go_on_as_if_nothing_had_happened(settings, num_folds, tmp_path, blobs):
    split = gp.holdout_split(len(blobs), blobs.labels)
    config = HoldoutConfig(max_epochs=6, patience=2, batch_size=16, **settings)

    def make(folder, on_step=None, every=0.0):
        with gp.Checkpoints(folder, every=every) as checkpoints:
            table, models, reports, cost = gp.irreducible_losses(
                lambda fold: make_mlp(fold, dropout=0.2),
                blobs,
                split,
                num_folds=num_folds,
                config=config,
                on_step=on_step,
                checkpoints=checkpoints,
            )
        figures = [(r.epoch, r.epochs, r.figures) for r in reports]
        return table.digest, [weights(m) for m in models], figures, without_seconds(vars(cost))

    whole = make(tmp_path / "w")
    calls = iter(range(10**9))

    def killed_at(number):
        def on_step(step, latest):
            if next(calls) == number:
                raise Killed

        return on_step

    for number in (3, 20, 45):
        with pytest.raises(Killed):
            make(tmp_path / "c", killed_at(number))
            raise Killed  # it was through before
    again = make(tmp_path / "c")
    assert again[0] == whole[0]
    assert again[2:] == whole[2:]
    for one, other in zip(whole[1], again[1], strict=True):
        assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mixup": "on"}, "--mixup"),
        ({"max_epochs": 3}, "--holdout-epochs 2 there, 3 here"),
    ],
)
def test_irreducible_losses_learnt_otherwise_are_not_mixed(changed, said, tmp_path, blobs):
    split, seen = gp.holdout_split(len(blobs), blobs.labels), []

    def second_fold(fold):
        seen.append(fold)
        if len(seen) == 2:
            raise Killed
        return make_mlp(fold)

    config = HoldoutConfig(max_epochs=2, batch_size=16)
    with pytest.raises(Killed), gp.Checkpoints(tmp_path / "c", every=0.0) as checkpoints:
        gp.irreducible_losses(second_fold, blobs, split, num_folds=2, config=config, checkpoints=checkpoints)
    with pytest.raises(gp.ConfigError, match=said), gp.Checkpoints(tmp_path / "c", every=0.0) as checkpoints:
        config = replace(config, **changed)
        gp.irreducible_losses(make_mlp, blobs, split, num_folds=2, config=config, checkpoints=checkpoints)


class TestRefused:
    def broken_off(self, tmp_path, data, **settings):
        with pytest.raises(Killed):
            record(data, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(9), **settings)

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"seed": 1}, r"--seed 0 there, 1 here"),
            ({"keep": 4}, r"--keep 8 there, 4 here"),
            ({"config": gp.TrainingConfig(lr=0.5)}, r"--lr 0.001 there, 0.5 here"),
            ({"steps": 50}, r"--steps 24 there, 50 here"),
            ({"rule": gp.mix(0.25)}, r"--rule .floored:0.67\+discounted_top_k:\S+. there, .mix:0.25\+top_k. here"),
            ({"ahead": True}, r"--ahead not set there, true here"),
        ],
    )
    def test_other_settings(self, changed, said, tmp_path, blobs):
        self.broken_off(tmp_path, blobs)
        before = (tmp_path / "s.arrow.partial").read_bytes()
        with pytest.raises(gp.ConfigError, match=rf"unfinished run with other settings: .*{said}.*--force"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", **changed)
        assert (tmp_path / "s.arrow.partial").read_bytes() == before
        assert_same(
            record(blobs, tmp_path / "s.arrow", tmp_path / "c"), record(blobs, tmp_path / "w.arrow", tmp_path / "w")
        )

    def test_other_kernels(self, tmp_path, blobs, monkeypatch):
        """A run begun with deterministic kernels may not go on with others."""
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        self.broken_off(tmp_path, blobs)
        monkeypatch.undo()
        with pytest.raises(gp.ConfigError, match="--deterministic true there, not set here"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c")
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        record(blobs, tmp_path / "s.arrow", tmp_path / "c")

    @pytest.mark.parametrize("there", [None, 1])
    def test_another_order_of_candidates(self, there, tmp_path, blobs):
        """As begun by a version that knew no other order, or an older one."""
        self.broken_off(tmp_path, blobs)
        begun = tmp_path / "c" / "stage.json"
        settings = json.loads(begun.read_text())
        assert settings.pop("order") == ORDER
        begun.write_text(json.dumps(settings if there is None else settings | {"order": there}))
        with pytest.raises(gp.ConfigError, match=r"another version of goldiprox.*another order.*--force"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c")

    def test_other_data(self, tmp_path, blobs):
        self.broken_off(tmp_path, blobs)
        with pytest.raises(gp.FingerprintMismatch, match="the data and the irreducible losses changed"):
            other = make_blobs(seed=1)
            record(
                other,
                tmp_path / "s.arrow",
                tmp_path / "c",
                irreducible=gp.IrreducibleLosses(torch.rand(len(other))),
            )

    def test_another_training_side(self, tmp_path, blobs):
        self.broken_off(tmp_path, blobs, ids=np.arange(200))
        with pytest.raises(gp.FingerprintMismatch, match="the split changed"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", ids=np.arange(100, 300))

    def test_another_model(self, tmp_path, blobs):
        self.broken_off(tmp_path, blobs)
        with pytest.raises(gp.ConfigError, match=r"was saved from another model"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", model=BatchNormed)

    def test_force_starts_over(self, tmp_path, blobs):
        self.broken_off(tmp_path, blobs)
        with gp.Checkpoints(tmp_path / "c", force=True) as checkpoints:
            assert not checkpoints.continues
            given = {"candidates": 32, "keep": 8, "steps": 9, "acquisition": gp.loss, "force": True}
            gp.record(make_mlp(), blobs, out=tmp_path / "s.arrow", checkpoints=checkpoints, **given)
        assert len(gp.Sequence.open(tmp_path / "s.arrow")) == 9

    def test_two_at_once(self, tmp_path):
        with gp.Checkpoints(tmp_path / "c"), pytest.raises(gp.OutputInUse, match="another process"):
            gp.Checkpoints(tmp_path / "c").__enter__()

    def test_several_models_at_once(self, tmp_path, blobs):
        with gp.Checkpoints(tmp_path / "c") as checkpoints, pytest.raises(gp.ConfigError, match=r"use gp.record, then"):
            gp.record_and_train(make_mlp(), make_mlp(), blobs, checkpoints=checkpoints)

    def test_not_opened(self, tmp_path, blobs):
        given = {"acquisition": gp.loss, "steps": 3, "candidates": 32, "keep": 8}
        with pytest.raises(gp.ConfigError, match="with gp.Checkpoints"):
            gp.record(make_mlp(), blobs, checkpoints=gp.Checkpoints(tmp_path / "c"), **given)

    def test_a_negative_interval(self, tmp_path):
        with pytest.raises(gp.ConfigError, match="give 0"):
            gp.Checkpoints(tmp_path / "c", every=-1)


def test_an_error_before_the_first_checkpoint_leaves_no_folder(tmp_path, blobs):
    def failing(step, latest):
        raise gp.DataError("no")

    with pytest.raises(gp.DataError):
        record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=failing, every=1e9)
    assert not (tmp_path / "c").exists()


def test_a_folder_that_vanishes_does_not_hide_the_error(tmp_path, blobs):
    def vanishing(step, latest):
        shutil.rmtree(tmp_path / "c")
        raise gp.DataError("no")

    with pytest.raises(gp.DataError, match="no"):
        record(blobs, None, tmp_path / "c", on_step=vanishing)


class TestDamaged:
    @pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
    @pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
    def test_a_damaged_checkpoint_is_noticed(self, name, how, tmp_path, blobs, caplog):
        whole = record(blobs, tmp_path / "w.arrow", tmp_path / "w")
        with pytest.raises(Killed):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(15))
        (path,) = (tmp_path / "c").glob(f"step-*/{name}")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink() if how == "gone" else path.write_bytes(content if how == "flipped" else content[:-10])
        with caplog.at_level(logging.WARNING):
            again = record(blobs, tmp_path / "s.arrow", tmp_path / "c")
        assert "is damaged" in caplog.text
        assert "step-14" in caplog.text
        assert_same(whole, again)

    def test_the_one_before_is_used_where_it_is_there(self, tmp_path, blobs, caplog):
        whole = record(blobs, tmp_path / "w.arrow", tmp_path / "w")
        with pytest.raises(Killed):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(15))
        shutil.copytree(tmp_path / "c" / "step-14", tmp_path / "c" / "step-20")
        (tmp_path / "c" / "step-30.partial").mkdir()
        again = record(blobs, tmp_path / "s.arrow", tmp_path / "c")
        assert "it is of step 14" in caplog.text
        assert_same(whole, again)

    def test_a_file_that_lost_steps(self, tmp_path, blobs):
        with pytest.raises(Killed):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(15))
        partial = tmp_path / "s.arrow.partial"
        partial.write_bytes(partial.read_bytes()[: partial.stat().st_size // 2])
        with pytest.raises(gp.CorruptFile, match=r"intact rows, and is to be continued after"):
            record(blobs, tmp_path / "s.arrow", tmp_path / "c")

    def test_settings_that_cannot_be_read(self, tmp_path):
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "run.json").write_text("{")
        with pytest.raises(gp.CorruptFile, match="--force"):
            gp.Checkpoints(tmp_path / "c").__enter__()


class TestDivergence:
    def diverge(self, tmp_path, data, every):
        settings = {"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=1e30), "acquisition": gp.uniform}
        with pytest.raises(gp.NonFiniteError) as e:
            record(data, tmp_path / "s.arrow", tmp_path / "c", every=every, **settings)
        return e.value

    def test_it_names_step_ids_and_the_last_good_checkpoint(self, tmp_path, blobs):
        error = self.diverge(tmp_path, blobs, every=0)
        (last,) = (tmp_path / "c").glob("step-*")
        assert error.checkpoint == last
        assert error.ids
        assert f"The last good checkpoint is {last} (step {int(last.name[5:])})" in str(error)
        assert "lower the learning rate" in str(error)
        assert int(last.name[5:]) <= error.step
        assert len(gp.Sequence.open(tmp_path / "s.arrow.partial", partial=True)) == error.step + 1
        from safetensors.torch import load_file

        saved = load_file(last / "state.safetensors")
        assert all(bool(v.isfinite().all()) for v in saved.values() if v.is_floating_point())

    def test_before_the_first(self, tmp_path, blobs):
        error = self.diverge(tmp_path, blobs, every=1e9)
        assert error.checkpoint is None
        assert "before the first checkpoint" in str(error)


def test_what_a_checkpoint_holds_comes_back_as_it_was():
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    shared = torch.arange(12.0)
    value = {
        "a": [1, 2.5, float("inf"), None, True, "x"],
        3: (images, shared[:6], shared[3:], torch.tensor(7), torch.zeros(0, 3), torch.arange(6).view(2, 3).t()),
        "nested": {"b": {"c": ()}},
    }
    tensors = {}
    packed = json.loads(json.dumps(_pack(value, tensors)))
    again = _unpack(packed, tensors, torch.device("cpu"))
    assert again["a"] == value["a"]
    assert again["nested"] == value["nested"]
    for one, other in zip(value[3], again[3], strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.dtype == other.dtype


def test_what_a_checkpoint_cannot_hold_is_refused(tmp_path):
    with pytest.raises(gp.ConfigError, match="not object"):
        _pack({"a": object()}, {})


def test_the_generators_of_the_user_are_left_alone(tmp_path, blobs, global_state):
    with pytest.raises(Killed):
        record(blobs, tmp_path / "s.arrow", tmp_path / "c", on_step=killer(9), model=dropout_mlp)
    record(blobs, tmp_path / "s.arrow", tmp_path / "c", model=dropout_mlp)
    assert global_state()
