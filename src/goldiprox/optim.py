"""How a model is optimised: settings, schedule, and an AdamW that is quick for small models on a GPU."""

import contextlib
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import Forward, Precision, in_precision

Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is optimised: AdamW, as in the paper.

    Attributes:
        lr: The (peak) learning rate.
        weight_decay: Decoupled.
        schedule: ``constant`` (the paper's), or ``cosine``: decayed to zero at the last step.
        precision: ``fp32``; ``tf32`` (matrix products on tensor cores); ``bf16`` (mixed, by autocast).
        compile: Use ``torch.compile``: ten seconds and more at the start, faster steps; sums in another order.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: Schedule = "constant"
    precision: Precision = "fp32"
    compile: bool = False

    def __post_init__(self):
        if self.schedule not in get_args(Schedule):
            raise UnknownName("schedule", self.schedule, get_args(Schedule))
        if self.precision not in get_args(Precision):
            raise UnknownName("precision", self.precision, get_args(Precision))
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"a learning rate of {self.lr} does not train; give a positive one")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"a weight decay of {self.weight_decay} is not zero or more")

    def forward(self, forward: Forward) -> Forward:
        """How the model is called in training and in scoring, made from how it is called at all."""
        forward = in_precision(forward, self.precision)
        return torch.compile(forward, dynamic=False) if self.compile else forward

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for p in model.parameters() if p.requires_grad]
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if FlatAdamW.fits(parameters):
            return FlatAdamW(parameters, **settings)
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        return torch.optim.AdamW(parameters, fused=fused, **settings)

    def factor(self, step: int, steps: int | None) -> float:
        """What the learning rate is multiplied with at a step."""
        if self.schedule == "constant":
            return 1.0
        if steps is None:
            raise ConfigError("a cosine schedule needs the number of steps")
        return 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))


class FlatAdamW(torch.optim.Optimizer):
    """AdamW over one flat tensor, in one kernel.

    torch's fused AdamW gives each thread block 65,536 numbers, so a model of 100,000 parameters keeps two of a
    GPU's hundred multiprocessors busy: a third of a small model's whole training step. This one spreads them out.
    While it exists, the parameters are views of one tensor; `release` gives each its own memory again.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        device = params[0].device
        rate = torch.tensor(lr, dtype=torch.float32, device=device)
        # "capturable" tells torch to keep `step` on the device when a saved state is loaded.
        super().__init__(
            params, {"lr": rate, "weight_decay": weight_decay, "betas": betas, "eps": eps, "capturable": True}
        )
        self._params = params
        self._flat = torch.cat([_dense(p.detach()) for p in params])
        self._gradient = torch.empty_like(self._flat)
        self._views(self._flat)
        self.state[params[0]] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(self._flat),
            "exp_avg_sq": torch.zeros_like(self._flat),
        }

    @staticmethod
    def fits(params: list[nn.Parameter]) -> bool:
        """Whether these parameters can be optimised so: float32 on one GPU, and Triton is there."""
        return (
            len({p.device for p in params}) == 1
            and all(p.is_cuda and p.dtype == torch.float32 and _is_dense(p) for p in params)
            and importlib.util.find_spec("triton") is not None
        )

    def _views(self, flat: Tensor) -> None:
        with torch.no_grad():
            for p, part in zip(self._params, flat.split([p.numel() for p in self._params]), strict=True):
                p.data = part.as_strided(p.shape, p.stride(), part.storage_offset())

    def release(self) -> None:
        """Gives every parameter memory of its own."""
        for p in self._params:
            p.data = p.data.clone(memory_format=torch.preserve_format)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        from goldiprox.kernels import adamw

        gradients = [_like(p, p.grad) for p in self._params]
        torch.cat(gradients, out=self._gradient)
        state, group = self.state[self._params[0]], self.param_groups[0]
        state["step"] += 1
        adamw(self._flat, self._gradient, state["exp_avg"], state["exp_avg_sq"], state["step"], group)


def _is_dense(t: Tensor) -> bool:
    return t.numel() == 0 or sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 == t.numel()


def _dense(t: Tensor) -> Tensor:
    """A tensor without gaps as the flat run of its memory."""
    return t.as_strided((t.numel(),), (1,))


def _like(p: Tensor, gradient: Tensor | None) -> Tensor:
    """A gradient as a flat run, in the order of its parameter's memory."""
    if gradient is None:
        return torch.zeros(p.numel(), dtype=p.dtype, device=p.device)
    if gradient.stride() != p.stride() or not _is_dense(gradient):
        gradient = torch.empty_like(p).copy_(gradient)
    return _dense(gradient)


@contextlib.contextmanager
def released(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Gives parameters their own memory again when the code inside is done."""
    try:
        yield
    finally:
        if isinstance(optimizer, FlatAdamW):
            optimizer.release()
