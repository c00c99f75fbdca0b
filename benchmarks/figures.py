"""Data that is no images, for ``goldiprox compare``: rows of figures, made here, with networks for them.

PYTHONPATH=benchmarks goldiprox compare --data figures:apart --proxy figures:small --model figures:large ...
"""

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import nn

import goldiprox as gp


def apart() -> tuple[gp.TensorData, gp.TensorData]:
    """Six classes in eighteen clusters that lie well apart, in 40 dimensions: 20,000 to train on, 4,000 to test."""
    return made(class_sep=1.2, flip_y=0.0, seed=0)


def close() -> tuple[gp.TensorData, gp.TensorData]:
    """The same with clusters that overlap, a tenth of the labels drawn by chance, in the test part too."""
    return made(class_sep=0.6, flip_y=0.1, seed=1)


def made(*, class_sep: float, flip_y: float, seed: int) -> tuple[gp.TensorData, gp.TensorData]:
    x, y = make_classification(
        24_000, 40, n_informative=12, n_redundant=8, n_classes=6, n_clusters_per_class=3,
        class_sep=class_sep, flip_y=flip_y, random_state=seed,
    )  # fmt: skip
    rows, labels = torch.as_tensor(np.asarray(x, np.float32)), torch.as_tensor(y)
    parts = ((rows[:20_000], labels[:20_000]), (rows[20_000:], labels[20_000:]))
    train, test = (gp.TensorData(*part, num_classes=6, name="figures") for part in parts)
    return train, test


def small(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return network(32, input_shape, num_classes)


def large(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return network(512, input_shape, num_classes)


def network(width: int, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
    )
