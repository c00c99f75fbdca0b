"""The data of the paper's experiments, with the variations that figure 3 tries."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from goldiprox.data.corruption import Truth
from goldiprox.prepare import DataConfig, Prepared, prepare
from goldiprox.randomness import derive

NoiseLabels = Literal["kept", "drawn", "one class"]


@dataclass(frozen=True)
class World:
    """Data and what is done to it.

    Attributes:
        data: Source, split and damage.
        noise_labels: Of inputs that are noise: those of the images they replace, drawn evenly, or all of one class.
        noise_range: Of the bytes that such an input is drawn from.
        normalised: Whether inputs are normalised, or used on the scale from 0 to 1.
    """

    data: DataConfig
    noise_labels: NoiseLabels = "kept"
    noise_range: tuple[int, int] = (0, 255)
    normalised: bool = True

    def prepare(self) -> Prepared:
        prepared = prepare(self.data)
        data, test, truth = prepared.data, prepared.test, prepared.truth
        if not self.normalised:
            data, test = (d.replace(mean=None, std=None) for d in (data, test))
        noisy = np.flatnonzero(truth.white_noise)
        rng = np.random.default_rng(derive("white noise variations", self.data.data_seed))
        if self.noise_range != (0, 255):
            low, high = self.noise_range
            x = data.x.clone()
            drawn = rng.integers(low, high + 1, (len(noisy), *data.input_shape), dtype=np.uint8)
            x[torch.as_tensor(noisy)] = torch.as_tensor(drawn)
            data = data.replace(x=x)
        if self.noise_labels != "kept":
            y = data.y.clone()
            num_classes = data.num_classes or 1
            drawn = rng.integers(0, num_classes, len(noisy)) if self.noise_labels == "drawn" else np.zeros(len(noisy))
            y[torch.as_tensor(noisy)] = torch.as_tensor(drawn.astype(np.int64))
            data = data.replace(y=y)
            # Such a label is neither right nor wrong: it becomes the truth about an input that shows nothing.
            truth = Truth(data.labels.copy(), truth.mislabelled, truth.white_noise, truth.duplicate_of)
        return Prepared(prepared.config, data, test, prepared.split, truth)
