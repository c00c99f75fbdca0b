"""Your own data set and your own model, in Python: from nothing to a sequence.

The same from the command line, in the folder of this file:

    goldiprox run --data own_data_and_model:load --proxy own_data_and_model:small --model own_data_and_model:large
"""

from functools import partial

import numpy as np
from torch import nn
from torch.utils.data import Dataset

import goldiprox as gp


class Rings(Dataset):
    """Three rings in the plane; a tenth of the labels is wrong."""

    def __init__(self, length: int, seed: int, noise: float = 0.1):
        rng = np.random.default_rng(seed)
        self.targets = rng.integers(0, 3, length)
        angle, radius = rng.uniform(0, 2 * np.pi, length), 1 + self.targets + rng.normal(0, 0.2, length)
        self.points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)
        wrong = rng.uniform(size=length) < noise
        self.targets[wrong] = rng.integers(0, 3, wrong.sum())

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, id: int):
        return self.points[id], int(self.targets[id])


def load():
    return Rings(6_000, seed=0), Rings(1_000, seed=1, noise=0.0)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


small, large = partial(mlp, 32), partial(mlp, 256)


def main() -> None:
    train_set, test_set = load()
    split = gp.holdout_split(len(train_set), train_set.targets, holdout=0.5)
    irreducible, *_ = gp.irreducible_losses(lambda fold: small(), train_set, split)
    gp.record(small(), train_set, irreducible=irreducible, steps=300, out="rings.arrow", force=True)

    model = large()
    gp.replay(model, train_set, gp.Sequence.open("rings.arrow", data=train_set))
    print(gp.evaluate_on(test_set)(model))


if __name__ == "__main__":
    main()
