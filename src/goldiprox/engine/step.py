"""One training step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from goldiprox.data import Batch
from goldiprox.errors import NonFiniteError, some
from goldiprox.forward import Forward, PerExampleLoss, call, cross_entropy, device_of
from goldiprox.optim import FlatAdamW, TrainingConfig
from goldiprox.randomness import derive


class Trainer:
    """A model with its optimiser, its loss and its schedule.

    Args:
        model: Trained in place, on the device it is on.
        steps: How many there will be, for the schedule.
        config: Learning rate, weight decay, schedule, precision.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example; a step minimises their mean.
        forward: How the model is called.
        seed: Of everything random in the model.
        mixed: Train on blends of two examples, see `TrainingConfig.losses`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int | None,
        config: TrainingConfig = TrainingConfig(),
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
        loss: PerExampleLoss = cross_entropy,
        forward: Forward = call,
        seed: int = 0,
        mixed: bool = False,
    ):
        self.seed = derive("training", seed)
        self.model, self.steps, self.config = model, steps, config
        self._losses = config.losses(loss, forward, mixed=mixed)
        self.device = device_of(model)
        self.optimizer = optimizer(model) if optimizer else config.optimizer(model)
        if self.device.type == "cuda":
            for group in self.optimizer.param_groups:
                if "capturable" in group:  # whatever the engine, so that all compute the same
                    group["capturable"] = True
        self._base = [float(group["lr"]) for group in self.optimizer.param_groups]

    def rates(self, step: int) -> list[float]:
        """The learning rate of every parameter group at a step."""
        factor = self.config.factor(step, self.steps)
        return [rate * factor for rate in self._base]

    def set_rates(self, step: int) -> None:
        if self.config.schedule == "constant":
            return
        for group, rate in zip(self.optimizer.param_groups, self.rates(step), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def lowered(self) -> AbstractContextManager[None]:
        """For the code inside, bf16 copies of the weights where the precision asks for them; see `FlatAdamW`."""
        if self.config.precision == "bf16" and isinstance(self.optimizer, FlatAdamW):
            return self.optimizer.lowered()
        return nullcontext()

    def losses(self, batch: Batch) -> Tensor:
        return self._losses(self.model, batch.x, batch.y)

    def update(self, losses: Tensor, ready: Callable[[], None] = lambda: None) -> None:
        """Takes a step against the mean of these losses; `ready` is called before weights change. Waits for nothing."""
        self.optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        ready()
        self.optimizer.step()


def check_finite(step: int, ids: Tensor, losses: Tensor) -> None:
    """Raises where a training loss is not finite."""
    finite = torch.isfinite(losses)
    if bool(finite.all()):
        return
    bad = ids[~finite].tolist()
    raise NonFiniteError(
        f"the training loss is not finite at step {step} for ids {some(bad)}. Likely the model diverged: "
        f"lower the learning rate or clip gradients; if it happens at step 0, look at these inputs",
        step=step,
        ids=bad,
    )
