"""What a run of the paper selects by."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from goldiprox.acquisition import ACQUISITIONS, NEEDS_TABLE, Acquisition, Candidates, bald, uniform
from goldiprox.holdout import Checkpoint


@dataclass(frozen=True)
class Selection:
    """A model that trains on what it selects.

    Attributes:
        model: Its name.
        acquisition: Scores candidates.
        epochs: Passes over the candidates.
        rule: Turns scores into a choice.
        dropout: Of the model.
        lr: Its learning rate.
        schedule: Of the learning rate.
        num_samples: Of BALD: dropout masks.
        warm_up: Epochs of uniform choice before the acquisition decides.
        il_model: The holdout model; by default of the model's kind.
        checkpoint: Of the holdout model.
        compares: Keep reducible losses of a fixed set of candidates, and the sequence.
    """

    model: str
    acquisition: str
    epochs: int
    rule: str = "top_k"
    dropout: float = 0.0
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    num_samples: int = 10
    warm_up: int = 0
    il_model: str | None = None
    checkpoint: Checkpoint = "inner"
    compares: bool = False

    @property
    def needs_table(self) -> bool:
        return self.acquisition in NEEDS_TABLE or self.compares


class Warmed:
    """An acquisition that chooses uniformly during the first steps.

    Args:
        acquisition: Decides afterwards.
        steps: How many are uniform.
    """

    def __init__(self, acquisition: Acquisition, steps: int):
        self.acquisition, self.steps = acquisition, steps
        self.__name__ = getattr(acquisition, "__name__", "acquisition")

    def __call__(self, c: Candidates) -> Tensor:
        step = torch.as_tensor(c.step, device=c.ids.device)  # a CUDA graph counts on the device
        return torch.where(step < self.steps, uniform(c), self.acquisition(c))


def acquisition_of(selection: Selection, per_epoch: int) -> Acquisition:
    """What scores candidates, with its settings."""
    acquisition = ACQUISITIONS[selection.acquisition]
    if acquisition is bald:
        acquisition = functools.update_wrapper(functools.partial(bald, num_samples=selection.num_samples), bald)
    return Warmed(acquisition, selection.warm_up * per_epoch) if selection.warm_up else acquisition
