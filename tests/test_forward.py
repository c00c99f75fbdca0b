import itertools

import pytest
import torch
from torch import nn

import goldiprox as gp
from conftest import make_blobs, make_mlp
from goldiprox.errors import ConfigError, ModelMismatch, UnknownName
from goldiprox.forward import Augmentation, augmented, both_ways
from goldiprox.holdout import HoldoutConfig


def seen(x: torch.Tensor, how: Augmentation, *, seed: int = 0, training: bool = True) -> torch.Tensor:
    """What a model gets."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return augmented(lambda model, x: x, how)(nn.Identity().train(training), x)


def moved(image: torch.Tensor, down: int, across: int, mirror: bool) -> torch.Tensor:
    """One image, pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for row, column in itertools.product(range(height), range(width)):
        to_row, to_column = row + down, (width - 1 - column if mirror else column) + across
        if 0 <= to_row < height and 0 <= to_column < width:
            out[:, to_row, to_column] = image[:, row, column]
    return out


def images(count: int = 600) -> torch.Tensor:
    return torch.rand(count, 2, 8, 16, generator=torch.Generator().manual_seed(1)) + 0.1


@pytest.mark.parametrize(
    ("how", "downs", "acrosses", "mirrors"),
    [
        ("shift", (-1, 0, 1), (-2, -1, 0, 1, 2), (False,)),
        ("mirror", (0,), (0,), (False, True)),
        ("shift+mirror", (-1, 0, 1), (-2, -1, 0, 1, 2), (False, True)),
    ],
)
def test_every_image_is_moved_by_its_own_draw_by_an_eighth_at_most(how, downs, acrosses, mirrors):
    x = images()
    ways = {way: torch.stack([moved(i, *way) for i in x]) for way in itertools.product(downs, acrosses, mirrors)}
    got = seen(x, how)
    same = torch.stack([(got == each).flatten(1).all(1) for each in ways.values()])
    assert (same.sum(0) == 1).all()
    often = same.float().mean(1)
    torch.testing.assert_close(often, torch.full_like(often, 1 / len(ways)), atol=0.06, rtol=0)


def test_only_a_model_that_learns_sees_them():
    x = images(4)
    assert torch.equal(seen(x, "shift+mirror", training=False), x)
    assert not torch.equal(seen(x, "shift+mirror"), x)
    assert torch.equal(seen(x, "shift+mirror"), seen(x, "shift+mirror"))
    assert not torch.equal(seen(x, "shift+mirror", seed=1), seen(x, "shift+mirror"))
    assert torch.equal(seen(x, "off"), x)
    with pytest.raises(UnknownName, match="augmentation"):
        augmented(lambda model, x: x, "rotate")  # type: ignore[arg-type]


def test_who_learnt_mirrored_images_is_asked_about_both():
    x = images(4)

    def first_column(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)[:, 0, 0, :1]

    assert torch.equal(both_ways(first_column)(nn.Identity(), x), (x[:, 0, 0, :1] + x[:, 0, 0, -1:]) / 2)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_memory_stays_as_it_was_laid_out(layout):
    x = images(5).contiguous(memory_format=layout)
    assert seen(x, "shift+mirror").is_contiguous(memory_format=layout)


def test_a_holdout_model_learns_them_and_its_table_says_so(global_state):
    blobs = make_blobs()
    data = gp.TensorData(blobs.x[:, :, None, None].repeat(1, 1, 8, 8), blobs.y, num_classes=4, name="squares")
    split = gp.holdout_split(len(data), data.labels)

    def make(number):
        return nn.Sequential(nn.Flatten(), make_mlp(number, num_inputs=128))

    def table(augment, **changes):
        config = HoldoutConfig(max_epochs=3, augment=augment, **changes)
        return gp.irreducible_losses(make, data, split, config=config)

    (plain, *_), (same, *_), (other, _, (report,), _) = table("off"), table("off"), table("shift", mixup="auto")
    assert plain.digest == same.digest != other.digest == table("shift", mixup="auto")[0].digest
    assert (plain.config["holdout"]["augment"], other.config["holdout"]["augment"]) == ("off", "shift")
    assert (report.augment, report.mirrored) == ("shift", None)
    (unmoved,) = table("auto", mixup="auto")[2]  # which only asks
    assert unmoved.augment == "off"
    assert unmoved.underfit is not None
    assert table("auto", mixup="auto")[0].digest == table("off", mixup="auto")[0].digest
    assert table("off", mixup="auto")[2][0].mirrored is None
    shifted, mirrored = (table(how, calibrated=True) for how in ("shift", "mirror"))
    more = mirrored[3].examples_scored - shifted[3].examples_scored
    # The training side; and the inner part, for its odds and for whether it is too small.
    assert more == len(split.train) + 2 * len(mirrored[2][0].inner)
    assert mirrored[0].digest != shifted[0].digest


def test_inputs_of_several_parts_that_a_model_does_not_take():
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, id):
            return {"input_ids": torch.ones(3), "attention_mask": torch.ones(3).bool(), "labels": id % 4}

    class Reads(nn.Module):
        def forward(self, x):
            return self.nothing

    for model in (Reads(), nn.Linear(3, 4)):
        with pytest.raises(ModelMismatch, match=r"inputs \(\{input_ids: .*attention_mask: .*forward="):
            gp.record(model, Texts(), acquisition=gp.loss, candidates=8, keep=2, steps=1)


def test_tokens_that_a_model_does_not_read():
    tokens = gp.TensorData(torch.randint(0, 9, (40, 5)), torch.arange(40) % 4, num_classes=4)
    with pytest.raises(ModelMismatch, match=r"int64 \(\d+, 5\).*name one that does"):
        gp.record(nn.Linear(5, 4), tokens, acquisition=gp.loss, candidates=8, keep=2, steps=1)


def test_what_is_no_image_is_not_augmented():
    blobs = make_blobs()
    split = gp.holdout_split(len(blobs), blobs.labels)
    with pytest.raises(ConfigError, match=r"augment='mirror' is for images.*are \(2,\)"):
        gp.irreducible_losses(make_mlp, blobs, split, config=HoldoutConfig(augment="mirror"))
    with pytest.raises(UnknownName, match="augmentation"):
        HoldoutConfig(augment="flip")  # type: ignore[arg-type]


def test_moved_images_take_the_place_of_blends():
    assert (HoldoutConfig.robust().mixup, HoldoutConfig.robust(augment="off").mixup) == ("auto", "auto")
    moved = HoldoutConfig.robust(augment="shift")
    assert (moved.mixup, moved.calibrated, moved.cleaned) == ("off", True, True)
    assert HoldoutConfig.robust(augment="shift", mixup="on").mixup == "on"


def test_outputs_that_are_no_logits_are_not_averaged():
    blobs = make_blobs()
    data = gp.TensorData(blobs.x[:, :, None, None].repeat(1, 1, 8, 8), blobs.y, num_classes=4, name="squares")
    split = gp.holdout_split(len(data), data.labels)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Flatten(), make_mlp(0, num_inputs=128))

        def forward(self, x):
            return {"logits": self.network(x)}

    def own(output, y):
        return nn.functional.cross_entropy(output["logits"], y, reduction="none")

    config = HoldoutConfig(max_epochs=2, augment="mirror")
    table, *_ = gp.irreducible_losses(lambda _: Named(), data, split, config=config, loss=own)
    assert table.values[table.ids].isfinite().all()


def test_how_often_a_model_is_right_counts_both_images():
    blobs = make_blobs()
    data = gp.TensorData(blobs.x[:, :, None, None].repeat(1, 1, 8, 8), blobs.y, num_classes=4, name="squares")
    split = gp.holdout_split(len(data), data.labels)
    config = HoldoutConfig(max_epochs=2, augment="mirror", calibrated=True)

    def make(number):
        return nn.Sequential(nn.Flatten(), make_mlp(number, num_inputs=128))

    _, (model,), (report,), _ = gp.irreducible_losses(make, data, split, config=config)
    right = gp.evaluate_on(data, ids=report.inner, forward=both_ways(lambda model, x: model(x)))(model)["accuracy"]
    assert report.figures["accuracy"] == pytest.approx(right)
