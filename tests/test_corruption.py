import numpy as np
import pytest
import torch

import goldiprox as gp
from conftest import make_blobs
from goldiprox.data.corruption import Truth, add_white_noise, corrupt_labels, duplicate
from goldiprox.errors import ConfigError, UnknownName

IDS = np.arange(0, 400, 2)  # every second example; the others must not be touched


def untouched(before: gp.TensorData, after: gp.TensorData) -> bool:
    others = torch.arange(1, 400, 2)
    return torch.equal(before.x[others], after.x[others]) and torch.equal(before.y[others], after.y[others])


@pytest.mark.parametrize("kind", ["uniform", "class", "instance"])
def test_label_noise_is_recorded_seeded_and_confined(kind, blobs, global_state):
    data, truth = corrupt_labels(blobs, Truth.of(blobs), IDS, 0.2, kind=kind, seed=3)
    again, _ = corrupt_labels(blobs, Truth.of(blobs), IDS, 0.2, kind=kind, seed=3)
    other, _ = corrupt_labels(blobs, Truth.of(blobs), IDS, 0.2, kind=kind, seed=4)
    assert torch.equal(data.y, again.y)
    assert not torch.equal(data.y, other.y)
    assert untouched(blobs, data)
    assert np.array_equal(truth.mislabelled, data.labels != blobs.labels)
    assert np.array_equal(truth.labels, blobs.labels)
    wrong = int(truth.mislabelled.sum())
    # 40 of 200 are drawn; uniform leaves about a quarter of them right by chance.
    assert wrong == 40 if kind != "uniform" else 20 <= wrong < 40
    assert global_state()


def test_class_noise_goes_to_the_neighbouring_class(blobs):
    data, truth = corrupt_labels(blobs, Truth.of(blobs), IDS, 0.5, kind="class")
    assert ((data.labels - truth.labels) % 4)[truth.mislabelled].tolist() == [1] * 100


def test_instance_noise_prefers_what_a_weak_model_confuses():
    blobs = make_blobs(4_000)
    _, truth = corrupt_labels(blobs, Truth.of(blobs), np.arange(4_000), 0.1, kind="instance")
    to_border = blobs.x.abs().min(1).values.numpy()  # the borders between the four classes are the axes
    assert to_border[truth.mislabelled].mean() < 0.8 * to_border[~truth.mislabelled].mean()


def test_white_noise_replaces_inputs_only(blobs):
    data, truth = add_white_noise(blobs, Truth.of(blobs), IDS, 0.25, seed=1)
    changed = (data.x != blobs.x).any(1).numpy()
    assert changed.sum() == truth.white_noise.sum() == 50
    assert np.array_equal(changed, truth.white_noise)
    assert torch.equal(data.y, blobs.y)
    assert untouched(blobs, data)
    assert np.array_equal(truth.corrupted, truth.white_noise)
    images = gp.TensorData(torch.zeros(400, 1, 8, 8, dtype=torch.uint8), blobs.y, num_classes=4)
    noisy, truth = add_white_noise(images, Truth.of(images), IDS, 1.0)
    pixels = noisy.x[torch.as_tensor(truth.white_noise)].float()
    assert abs(pixels.mean() - 127.5) < 3
    assert pixels.min() == 0
    assert pixels.max() == 255


def test_duplicates_copy_inputs_labels_and_damage(blobs):
    data, truth = corrupt_labels(blobs, Truth.of(blobs), IDS, 0.5, kind="class")
    data, truth = duplicate(data, truth, IDS, 0.3, seed=2)
    copies = (truth.duplicate_of >= 0).nonzero()[0]
    sources = truth.duplicate_of[copies]
    assert len(copies) == 60
    assert set(copies) <= set(IDS)
    assert not set(copies) & set(sources)
    assert torch.equal(data.x[copies], data.x[sources])
    assert torch.equal(data.y[copies], data.y[sources])
    assert np.array_equal(truth.mislabelled, data.labels != truth.labels)


def test_bad_shares_and_kinds(blobs):
    for bad in (-0.1, 1.5):
        with pytest.raises(ConfigError, match="not between 0 and 1"):
            corrupt_labels(blobs, Truth.of(blobs), IDS, bad)
    with pytest.raises(UnknownName, match="Did you mean 'uniform'"):
        corrupt_labels(blobs, Truth.of(blobs), IDS, 0.1, kind="unifrom")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing left to copy"):
        duplicate(blobs, Truth.of(blobs), IDS, 1.0)
