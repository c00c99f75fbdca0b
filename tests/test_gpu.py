"""What must hold on a CUDA device too. `make test-all` on a machine that has one."""

import pytest
import torch
from torch import nn

import goldiprox as gp
import test_checkpoint as checkpoint_tests
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.compare.plan import Plan
from goldiprox.compare.result import compare
from goldiprox.engine.feeds import on_device
from goldiprox.optim import FlatAdamW
from goldiprox.prepare import DataConfig
from goldiprox.settings import RunConfig

if torch.cuda.is_available():
    from goldiprox.kernels import highest, put_rows
from test_training import SETTINGS, WithNorm, same_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def on_gpu():
    return make_blobs().to("cuda")


def test_a_proxy_replaying_its_own_sequence_ends_bit_identical(on_gpu, tmp_path):
    proxy, again = WithNorm().cuda(), WithNorm().cuda()
    before = torch.cuda.get_rng_state()
    gp.record(proxy, on_gpu, irreducible=make_irreducible(on_gpu), out=tmp_path / "s.arrow", **SETTINGS)
    gp.replay(again, on_gpu, gp.Sequence.open(tmp_path / "s.arrow", data=on_gpu), config=SETTINGS["config"])
    assert same_weights(proxy, again)
    assert torch.equal(before, torch.cuda.get_rng_state())


@pytest.mark.parametrize("rule", [gp.top_k(), gp.gumbel_top_k(1.0), gp.mix(0.5)])
def test_the_digest_does_not_depend_on_how_data_is_loaded(on_gpu, rule):
    def digest(data, **options):
        table = make_irreducible(make_blobs())
        return gp.record(make_mlp().cuda(), data, irreducible=table, rule=rule, **SETTINGS, **options).digest

    assert digest(on_gpu) == digest(on_gpu) == digest(make_blobs()) == digest(on_gpu, num_workers=2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch says so once in a process
@pytest.mark.parametrize("length", [7, 50, 2_500, 30_000, 10**7])
def test_candidates_agree_with_the_cpu_and_are_not_waited_for(length):
    device = torch.device("cuda", 0)
    for ids in (range(length), torch.arange(length) * 3):
        here, there = (gp.CandidateSampler(ids, min(320, length), steps=300) for _ in range(2))
        there.window(0, 1, device)  # copies the ids, once
        try:
            torch.cuda.set_sync_debug_mode("error")
            windows = [there.window(first, 64, device) for first in (250, 0)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for first, window in zip((250, 0), windows, strict=True):
            assert torch.equal(window.cpu(), here.window(first, len(window), torch.device("cpu")))


def test_what_is_made_of_ids_and_the_seed_agrees_with_the_cpu(on_gpu):
    def digest(model, data, acquisition, rule=None):
        table = make_irreducible(make_blobs())
        return gp.record(model, data, irreducible=table, acquisition=acquisition, rule=rule, **SETTINGS).digest

    for acquisition, rule in ((gp.uniform, None), (gp.irreducible_loss, gp.gumbel_top_k(0.5))):
        assert digest(make_mlp().cuda(), on_gpu, acquisition, rule) == digest(
            make_mlp(), make_blobs(), acquisition, rule
        )


def test_fingerprints_do_not_depend_on_the_device(on_gpu):
    assert gp.fingerprint(on_gpu) == gp.fingerprint(make_blobs())


def test_a_diverging_run_names_its_step(on_gpu):
    config = gp.TrainingConfig(lr=1e30)
    with pytest.raises(gp.NonFiniteError, match="not finite at step"):
        gp.record(make_mlp().cuda(), on_gpu, acquisition=gp.uniform, **(SETTINGS | {"config": config}))


class Images(nn.Sequential):
    """A small network of convolutions with BatchNorm."""

    def __init__(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(
                nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
            )


def make_images(length=600):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (length,), generator=generator)
    x = (
        torch.randint(0, 128, (length, 3, 8, 8), dtype=torch.uint8, generator=generator)
        + (30 * y).byte()[:, None, None, None]
    )
    return gp.TensorData(x, y, num_classes=4, mean=(0.4,) * 3, std=(0.3,) * 3).to("cuda")


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def recorded(make_model, data, *, engine, **settings):
    settings = {"candidates": 40, "keep": 8, "steps": 200, "irreducible": make_irreducible(data.to("cpu"))} | settings
    model = make_model().cuda()
    return gp.record(model, data, engine=engine, **settings), model


STEP_SETTINGS = {
    "default": {},
    "top_k": {"rule": gp.top_k()},
    "discounted_top_k, ahead": {"rule": gp.discounted_top_k(0.4), "ahead": True},
    "gumbel_top_k": {"rule": gp.gumbel_top_k(0.7)},
    "mix": {"rule": gp.mix(0.5)},
    "ranked": {"rule": gp.ranked(gp.gumbel_top_k(0.7))},
    "floored": {"rule": gp.floored(gp.discounted_top_k(0.4))},
    "discounted_top_k, iqr": {"rule": gp.discounted_top_k(1.5, unit="iqr")},
    "discounted_top_k, own": {"rule": gp.discounted_top_k(0.2, unit="own")},
    "floored at times": {"rule": gp.floored(gp.discounted_top_k(0.4), beyond=0.3)},
    "annealed": {"rule": gp.gumbel_top_k(0.3, final=float("inf"), steps=200)},
    "mix of annealed": {"rule": gp.mix(0.25, gp.ranked(gp.gumbel_top_k(0.3, final=4.0, steps=200)))},
    "probability_gain": {"acquisition": gp.probability_gain},
    "cosine": {"config": gp.TrainingConfig(schedule="cosine", lr=3e-3)},
    "eval mode": {"mode": "eval"},
    "train mode": {"mode": "train"},
    "momentum": {"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)},
    "torch's AdamW": {"optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)},
    "loss": {"acquisition": gp.loss},
    "irreducible_loss": {"acquisition": gp.irreducible_loss},
    "predictability": {"acquisition": gp.predictability},
    "uniform": {"acquisition": gp.uniform},
    "entropy": {"acquisition": gp.entropy},
    "gradient_norm": {"acquisition": gp.gradient_norm},
    "ordered_loss": {"acquisition": gp.ordered_loss},
    "ahead": {"ahead": True},
    "ahead, cosine, Gumbel": {
        "ahead": True,
        "config": gp.TrainingConfig(schedule="cosine", lr=3e-3),
        "rule": gp.gumbel_top_k(0.7),
    },
    "ahead, eval mode": {"ahead": True, "mode": "eval"},
    "ahead, torch's AdamW": {"ahead": True, "optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)},
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("settings", STEP_SETTINGS.values(), ids=STEP_SETTINGS.keys())
def test_a_graph_chooses_and_learns_what_separate_steps_do(settings, caplog, tmp_path):
    data = make_images()
    one_by_one, model = recorded(Images, data, engine="eager", **settings)
    graphed, other = recorded(Images, data, engine="graph", out=tmp_path / "s.arrow", columns=("score",), **settings)
    assert not caplog.records
    assert graphed.digest == one_by_one.digest == gp.Sequence.open(tmp_path / "s.arrow", data=data).digest
    assert same_weights(model, other)
    assert graphed.history.cost.examples_scored == one_by_one.history.cost.examples_scored


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", ["mlp128", "small_cnn", "resnet18"])
def test_the_built_in_models_choose_the_same_for_500_steps(name, caplog):
    data = (
        make_images()
        if name == "mlp128"
        else gp.TensorData(
            torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
            torch.arange(2000) % 10,
            num_classes=10,
        )
        .to("cuda")
        .channels_last()
    )
    shape = data.input_shape

    def make():
        return gp.build(name, shape, 10).to(memory_format=torch.channels_last)

    settings = {"steps": 500, "candidates": 64, "keep": 8}
    one_by_one, model = recorded(make, data, engine="eager", **settings)
    graphed, other = recorded(make, data, engine="graph", **settings)
    assert not caplog.records
    assert graphed.digest == one_by_one.digest
    assert same_weights(model, other)


@pytest.mark.usefixtures("deterministic")
def test_replay_with_dropout_in_a_graph_is_the_replay_of_separate_steps(tmp_path):
    data = make_images()
    recorded(Images, data, engine="eager", out=tmp_path / "s.arrow")
    models = []
    for engine in ("eager", "graph"):
        model = nn.Sequential(*list(Images())[:5], nn.Dropout(0.3), Images()[5]).cuda()
        gp.replay(model, data, gp.Sequence.open(tmp_path / "s.arrow", data=data), engine=engine)
        models.append(model)
    assert same_weights(*models)


class Counting(Images):
    """Does something else at every step, on the host."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls % 3)


def looks_at_values(c):
    return c.loss * (2.0 if c.loss.mean().item() > 0.5 else 1.0)


REFUSED = {
    "dropout while scoring": (lambda: nn.Sequential(Images(), nn.Dropout(0.3)), {}, "scoring draws"),
    "an acquisition that looks at values": (Images, {"acquisition": looks_at_values}, "capturing failed"),
    "a model that counts on the host": (Counting, {}, "on the host"),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(("make", "settings", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_graph_cannot_hold_runs_step_by_step_and_says_so(make, settings, reason, caplog):
    data = make_images()
    expected, model = recorded(make, data, engine="eager", **settings)
    one, other = recorded(make, data, engine="auto", **settings)
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert one.digest == expected.digest
    assert same_weights(model, other)


@pytest.mark.usefixtures("deterministic")
def test_several_recordings_at_once_are_what_each_is_alone(tmp_path):
    data = make_images()
    settings = {"candidates": 40, "keep": 8, "steps": 150, "irreducible": make_irreducible(data.to("cpu"))}
    alone = [gp.record(Images().cuda(), data, seed=seed, **settings) for seed in range(3)]
    models = [Images().cuda() for _ in range(3)]
    each = [{"seed": seed, "out": tmp_path / f"{seed}.arrow"} for seed in range(3)]
    together = gp.record_many(models, data, each=each, **settings)
    assert [r.digest for r in together] == [r.digest for r in alone]
    assert len({r.digest for r in together}) == 3


@pytest.mark.usefixtures("deterministic")
def test_several_replays_at_once_leave_what_each_would_alone(tmp_path):
    data = make_images()
    sequences = []
    for seed in range(3):
        recorded(Images, data, engine="graph", out=tmp_path / f"{seed}.arrow", seed=seed)
        sequences.append(gp.Sequence.open(tmp_path / f"{seed}.arrow", data=data))
    models, alone = ([gp.build("resnet18", (3, 8, 8), 4, seed=s).cuda() for s in range(3)] for _ in range(2))
    gp.replay_many(models, data, sequences)
    for model, other, sequence in zip(models, alone, sequences, strict=True):
        gp.replay(other, data, sequence)
        assert same_weights(model, other)


@pytest.mark.usefixtures("deterministic")
def test_a_model_trained_at_once_with_its_proxy_ends_as_a_replay_would(tmp_path):
    data = make_images()
    settings = {"candidates": 40, "keep": 8, "steps": 150, "irreducible": make_irreducible(data.to("cpu"))}
    model, again = (gp.build("resnet18", (3, 8, 8), 4).cuda() for _ in range(2))
    recording, history = gp.record_and_train(Images().cuda(), model, data, out=tmp_path / "s.arrow", **settings)
    assert recording.digest == gp.record(Images().cuda(), data, **settings).digest
    gp.replay(again, data, gp.Sequence.open(tmp_path / "s.arrow", data=data))
    assert history.steps == 150
    assert same_weights(model, again)


def test_the_flat_adamw_is_adamw():
    ours, theirs = (gp.build("mlp128", (1, 8, 8), 10).cuda() for _ in range(2))
    optimizers: list[torch.optim.Optimizer] = [FlatAdamW(ours, lr=1e-2, weight_decay=0.1)]
    optimizers.append(torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1))
    x = torch.randn(64, 1, 8, 8, device="cuda")
    for _ in range(50):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    state = optimizers[0].state_dict()
    fresh = FlatAdamW(gp.build("mlp128", (1, 8, 8), 10).cuda(), lr=1.0, weight_decay=0.0)
    fresh.load_state_dict(state)
    assert float(fresh.state_dict()["state"][0]["step"]) == 50
    optimizers[0].release()
    assert len({p.untyped_storage().data_ptr() for p in ours.parameters()}) == len(list(ours.parameters()))


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("augment", ["off", "shift+mirror"])
def test_holdout_models_profit_too(augment, caplog):
    data, config = make_images(), gp.HoldoutConfig(augment=augment)
    split = gp.holdout_split(len(data), data.labels, holdout=0.5)
    tables = [
        gp.irreducible_losses(lambda fold: Images().cuda(), data, split, engine=engine, config=config)[0]
        for engine in ("eager", "graph")
    ]
    assert not caplog.records
    torch.testing.assert_close(tables[0].values, tables[1].values, equal_nan=True)


def test_a_diverging_graph_names_its_step():
    data = make_images()
    with pytest.raises(gp.NonFiniteError, match="not finite at step"):
        recorded(Images, data, engine="graph", config=gp.TrainingConfig(lr=1e30))


def test_the_graph_engine_is_refused_where_it_cannot_be():
    with pytest.raises(gp.ConfigError, match="needs a CUDA device"):
        gp.record(make_mlp(), make_blobs(), acquisition=gp.uniform, engine="graph", **SETTINGS)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_trains(precision):
    data, config = make_images(), gp.TrainingConfig(precision=precision, lr=1e-2)
    result, model = recorded(Images, data, engine="graph", config=config, rule=gp.top_k())
    assert gp.evaluate_on(data)(model)["accuracy"] > 0.9


def test_a_device_without_its_number_is_the_current_one(on_gpu):
    for data in (on_gpu, make_blobs()):
        assert on_device(data, torch.device("cuda"), None).x.is_cuda


def blobs():
    return make_blobs(2_000), make_blobs(seed=1)


def test_all_runs_of_a_comparison_are_graphs(tmp_path, monkeypatch):
    def one_by_one(*args, **kwargs):
        raise AssertionError("steps would run one by one")

    monkeypatch.setattr("goldiprox.loop.Eager", one_by_one)
    config = RunConfig(DataConfig("test_gpu:blobs"), holdout=gp.HoldoutConfig.robust(max_epochs=1))
    result = compare(Plan(config, steps=24, budgets=(0.5, 1), seeds=(0, 1), at_once=2), tmp_path)
    assert set(result["schedules"]["cosine"]["methods"]) == {"default"}


@pytest.mark.parametrize("keep", [1, 7, 300])
def test_the_kernel_for_the_highest_scores_is_a_sort(keep):
    generator = torch.Generator().manual_seed(keep)
    scores = torch.randint(-5, 5, (300,), generator=generator).float()
    ids = torch.randperm(2**20, generator=generator)[:300] + 2**40
    rows = highest(scores.cuda(), ids.cuda(), keep).cpu()
    expected = sorted(zip((-scores).tolist(), ids.tolist(), strict=True))[:keep]
    assert ids[rows].tolist() == [i for _, i in expected]
    scores[3], scores[5] = float("nan"), float("inf")
    assert set(highest(scores.cuda(), ids.cuda(), 2).tolist()) == {3, 5}
    twice = highest(torch.zeros(40).cuda(), torch.zeros(40, dtype=torch.int64).cuda(), 40)
    assert sorted(twice.tolist()) == list(range(40))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_the_kernel_that_takes_examples_gives_what_the_cpu_gives(dtype, normalised, last):
    x = torch.randint(0, 256, (50, 3, 7, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    options = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.7, 0.9)} if normalised else {}
    data = gp.TensorData(x, torch.arange(50), **options)
    data = data.channels_last() if last else data
    ids = torch.tensor([49, 0, 3, 3])
    on_gpu = data.to("cuda")
    assert on_gpu.is_channels_last == last
    assert torch.equal(on_gpu.gather(ids)[0].cpu(), data.gather(ids)[0])


@pytest.mark.parametrize("last", [True, False])
def test_the_kernel_that_takes_rows_gives_what_indexing_gives(last):
    x = torch.randn(320, 3, 9, 7, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    batch = gp.Batch(torch.arange(320, device="cuda") * 3, x, torch.randint(0, 10, (320,), device="cuda"))
    rows = torch.randperm(320, device="cuda")[:32]
    for taken, part in zip(batch.take(rows), batch, strict=True):
        assert torch.equal(taken, part[rows])
        assert taken.stride() == part[rows].stride()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_the_kernel_that_puts_rows_puts_each_into_its_place_alone(count):
    values = [torch.rand(5 * n + 1, device="cuda") + 1 for n in range(count)]
    targets = [torch.zeros(8, *value.shape, device="cuda") for value in values]
    put_rows(values, targets, torch.tensor([6], device="cuda"))
    for value, target in zip(values, targets, strict=True):
        assert torch.equal(target[6], value)
        assert target.count_nonzero() == value.numel()


def test_the_table_of_irreducible_losses_knows_nothing_beyond_its_end():
    table = gp.IrreducibleLosses(torch.arange(10.0))
    found = table[torch.tensor([9, 0, 10, 10**6], device="cuda")].tolist()
    assert found[:2] == [9, 0]
    assert all(value != value for value in found[2:])


@pytest.mark.usefixtures("deterministic")
def test_bf16_copies_of_the_weights_are_what_autocast_would_make():
    data = make_images()
    config = gp.TrainingConfig(precision="bf16")
    # What is kept must not hang on the last bit of a score: that alone is no reason to differ for all steps after it.
    settings = {"config": config, "acquisition": gp.uniform}
    one_by_one, model = recorded(Images, data, engine="eager", **settings)
    graphed, other = recorded(Images, data, engine="graph", **settings)
    assert graphed.digest == one_by_one.digest
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", ["plain", "dropout", "cosine", "gumbel", "another optimiser", "uniform", "ahead"])
def test_a_recording_on_a_gpu_goes_on_as_if_nothing_had_happened(name, tmp_path):
    case = dict(checkpoint_tests.CASES[name])
    make = case.pop("model", make_mlp)
    case["model"] = lambda: make().cuda()
    data = make_blobs().to("cuda")
    whole = checkpoint_tests.record(data, tmp_path / "whole.arrow", tmp_path / "whole.checkpoint", steps=200, **case)
    for at in (5, 90):
        with pytest.raises(checkpoint_tests.Killed):
            checkpoint_tests.record(
                data, tmp_path / "s.arrow", tmp_path / "c", steps=200, on_step=checkpoint_tests.killer(at), **case
            )
    again = checkpoint_tests.record(data, tmp_path / "s.arrow", tmp_path / "c", steps=200, **case)
    checkpoint_tests.assert_same(whole, again)
