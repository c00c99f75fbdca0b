import pytest
import torch
from torch import nn

import goldiprox as gp
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import call, cross_entropy
from goldiprox.optim import _divided, _joined, _lowerable, _padded_size


def test_cosine_ends_at_zero_and_constant_stays():
    cosine = gp.TrainingConfig(schedule="cosine")
    assert [round(cosine.factor(step, 100), 6) for step in (0, 50, 100)] == [1, 0.5, 0]
    assert gp.TrainingConfig().factor(7, None) == 1
    with pytest.raises(ConfigError, match="needs the number of steps"):
        cosine.factor(1, None)


def test_an_unknown_precision_is_refused_by_name():
    with pytest.raises(UnknownName, match="bf16"):
        gp.TrainingConfig(precision="bf61")  # type: ignore[arg-type]


def test_every_compiled_function_has_its_own_cache(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or f)
    config = gp.TrainingConfig(compile=True)
    model, x, y = nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    first, second = (config.losses(cross_entropy, call) for _ in range(2))
    assert compiled[0].__code__ is not compiled[1].__code__
    plain = gp.TrainingConfig().losses(cross_entropy, call)
    assert torch.equal(first(model, x, y), plain(model, x, y))
    assert torch.equal(second(model, x, y), plain(model, x, y))


def test_bf16_computes_low_and_gives_float32():
    model, x = nn.Linear(64, 8), torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(16, dtype=torch.int64)
    low = gp.TrainingConfig(precision="bf16").losses(cross_entropy, call)(model, x, y)
    full = gp.TrainingConfig().losses(cross_entropy, call)(model, x, y)
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=0.05, atol=0.05)


def test_only_what_autocast_lowers_is_lowered():
    tied = nn.Linear(8, 20, bias=False)
    embedding = nn.Embedding(20, 8)
    embedding.weight = tied.weight
    model = nn.Sequential(embedding, nn.Linear(8, 8), nn.LayerNorm(8), tied)
    assert set(_lowerable(model)) == {model[1].weight, model[1].bias}


def test_joined_runs_are_aligned_and_come_apart_again():
    runs = [torch.arange(n, dtype=torch.float32) for n in (3, 64, 65, 1)]
    flat = _joined(runs, torch.zeros(64))
    assert len(flat) == _padded_size(runs) == 64 + 64 + 128 + 64
    parts = list(_divided(flat, runs))
    assert all(torch.equal(a, b) for a, b in zip(parts, runs, strict=True))
    assert all(p.storage_offset() % 64 == 0 for p in parts)
