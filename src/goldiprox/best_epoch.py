"""The epoch whose weights a holdout model returns to."""

import copy
from typing import Any

import numpy as np
from torch import Tensor, nn

from goldiprox.errors import NonFiniteError
from goldiprox.loop import Evaluate


class BestEpoch:
    """Evaluates a model once an epoch and remembers the state to return to.

    Args:
        evaluate: Gives the figures of an epoch, their ``loss`` among them.
        patience: Epochs without a new best after which it has converged; None: never.
        last: Return to the last epoch, whichever was the best.
    """

    def __init__(self, evaluate: Evaluate, *, patience: int | None, last: bool):
        self.evaluate, self.patience, self.last = evaluate, patience, last
        self.epoch = 0
        self.best: tuple[float, int, dict[str, float], dict[str, Tensor]] | None = None
        self.latest: dict[str, float] = {}

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.epoch += 1
        self.latest = dict(self.evaluate(model))
        value = self.latest["loss"]
        if not np.isfinite(value):
            raise NonFiniteError(
                f"the holdout model's loss is {value} after epoch {self.epoch}: it diverged; lower its learning rate"
            )
        if self.best is None or value < self.best[0]:
            self.best = (value, self.epoch, self.latest, copy.deepcopy(model.state_dict()))
        return self.latest

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "best": self.best, "latest": self.latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.best, self.latest = state["epoch"], state["best"], state["latest"]

    @property
    def converged(self) -> bool:
        return self.patience is not None and self.best is not None and self.epoch - self.best[1] >= self.patience

    def restore(self, model: nn.Module) -> tuple[int, dict[str, float]]:
        """The epoch that was taken and its figures; the model has its weights."""
        assert self.best is not None, "fit evaluates at its end"
        if self.last:
            return self.epoch, self.latest
        _, epoch, figures, state = self.best
        model.load_state_dict(state)
        return epoch, figures
