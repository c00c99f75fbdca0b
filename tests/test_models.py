import pytest
import torch

import goldiprox as gp
from goldiprox.errors import UnknownName
from goldiprox.loop import rate_of
from goldiprox.models import count_parameters

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "mega_macs"),
    [
        ("mlp128", GREY, 134_794, 0.134),
        ("mlp512", GREY, 932_362, 0.931),
        ("small_cnn", COLOUR, 537_610, 18.9),
        ("thin_resnet18", COLOUR, 701_466, 35.2),
        ("resnet18", COLOUR, 11_173_962, 557),
    ],
)
def test_how_large_they_are(name, shape, parameters, mega_macs):
    model = gp.build(name, shape, 10)
    assert count_parameters(model) == parameters
    batch = gp.Batch(torch.arange(2), torch.randn(2, *shape), torch.zeros(2, dtype=torch.int64))
    rate = rate_of(model, batch)
    assert rate is not None
    assert rate.forward / 2e6 == pytest.approx(mega_macs, rel=0.005)
    assert 2 * rate.forward < rate.training < 3.01 * rate.forward
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", list(gp.models.MODELS))
@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_all_models_take_grey_and_colour_images(name, shape):
    assert gp.build(name, shape, 7)(torch.randn(2, *shape)).shape == (2, 7)


def test_weights_come_from_the_seed_alone(global_state):
    a, b, c = (gp.build("mlp128", GREY, 10, seed=s) for s in (0, 0, 1))
    weights = [next(m.parameters()) for m in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert global_state()


def test_unknown_models_name_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown model 'resnet81'. Did you mean 'resnet18'\?"):
        gp.build("resnet81", COLOUR, 10)
    with pytest.raises(UnknownName, match="no module 'no_such_package.models'"):
        gp.build("no_such_package.models:Net", COLOUR, 10)
    with pytest.raises(UnknownName, match="Did you mean 'Linear'"):
        gp.build("torch.nn:Linaer", COLOUR, 10)
