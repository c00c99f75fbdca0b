"""Data that is no images, for ``goldiprox compare``: rows of figures, made here, with networks for them.

PYTHONPATH=benchmarks goldiprox compare --data figures:apart --proxy figures:small --model figures:large ...
"""

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification
from torch import nn

import goldiprox as gp


def apart() -> tuple[gp.TensorData, gp.TensorData]:
    """Six classes in eighteen clusters that lie well apart, in 40 dimensions: 20,000 to train on, 4,000 to test."""
    return made(class_sep=1.2, flip_y=0.0, seed=0)


def close() -> tuple[gp.TensorData, gp.TensorData]:
    """The same with clusters that overlap, a tenth of the labels drawn by chance, in the test part too."""
    return made(class_sep=0.6, flip_y=0.1, seed=1)


def digits() -> tuple[gp.TensorData, gp.TensorData]:
    """Scikit-learn's digits, 8 x 8 figures each: 1,400 to train on, 397 to test."""
    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(x))
    return parts(x[order] / 8 - 1, y[order], 1_400, num_classes=10)


def made(*, class_sep: float, flip_y: float, seed: int) -> tuple[gp.TensorData, gp.TensorData]:
    x, y = make_classification(
        24_000, 40, n_informative=12, n_redundant=8, n_classes=6, n_clusters_per_class=3,
        class_sep=class_sep, flip_y=flip_y, random_state=seed,
    )  # fmt: skip
    return parts(np.asarray(x), np.asarray(y), 20_000, num_classes=6)


def parts(x: np.ndarray, y: np.ndarray, num_train: int, *, num_classes: int) -> tuple[gp.TensorData, gp.TensorData]:
    rows, labels = torch.as_tensor(np.asarray(x, np.float32)), torch.as_tensor(y)
    sides = ((rows[:num_train], labels[:num_train]), (rows[num_train:], labels[num_train:]))
    train, test = (gp.TensorData(*side, num_classes=num_classes, name="figures") for side in sides)
    return train, test


def small(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return network(32, input_shape, num_classes)


def large(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return network(512, input_shape, num_classes)


def network(width: int, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
    )
