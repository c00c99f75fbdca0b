"""MNIST with a long tail: a hundred times as many zeros as nines. ``PYTHONPATH=benchmarks``, then

goldiprox compare --data tailed:mnist --il-model mlp512 --steps 1200 --budgets 1,2 --seeds 3 --no-itself --noise 0
"""

import numpy as np
import torch

import goldiprox as gp
from goldiprox.data import TensorData


def mnist() -> tuple[TensorData, TensorData]:
    """The training images of each class fewer than those before, from 5,400 down to 54; the test set as it is."""
    train, test = gp.load("mnist")
    draw, labels = np.random.default_rng(0), np.asarray(train.labels)
    classes = [draw.permutation(np.flatnonzero(labels == c))[: int(5400 * 0.01 ** (c / 9))] for c in range(10)]
    ids = torch.from_numpy(np.sort(np.concatenate(classes)))
    return train.replace(x=train.x[ids], y=train.y[ids]), test
