"""How a model is optimised: settings, schedule, and an AdamW that is quick for small models on a GPU."""

import contextlib
import itertools
import math
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import Forward, PerExampleLoss, Precision, in_precision
from goldiprox.watch import has_triton

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

    def losses(
        self, loss: PerExampleLoss, forward: Forward, *, mixed: bool = False
    ) -> Callable[[nn.Module, Any, Any], Tensor]:
        """(model, inputs, targets) -> one loss per example, in this precision; compiled where that is asked for.

        Args:
            loss: One loss per example.
            forward: How the model is called.
            mixed: The model sees each example blended with its neighbour in the batch and answers for both, in one
                proportion per batch that is drawn evenly from 0 to 1 (mixup: Zhang, Cisse, Dauphin & Lopez-Paz 2018).
        """
        forward = in_precision(forward, self.precision)

        def losses(model: nn.Module, x: Any, y: Any) -> Tensor:
            if not mixed:
                return loss(forward(model, x), y)
            share = torch.rand((), device=x.device)
            output = forward(model, share * x + (1 - share) * x.roll(1, 0))
            return share * loss(output, y) + (1 - share) * loss(output, y.roll(1, 0))

        return torch.compile(_own_code(losses), dynamic=False) if self.compile else losses

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if FlatAdamW.fits(model):
            return FlatAdamW(model, **settings)
        parameters = list(model.parameters())
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        return torch.optim.AdamW(parameters, fused=fused, **settings)

    def factor(self, step: int, steps: int | None) -> float:
        """What the learning rate is multiplied with at a step."""
        if self.schedule == "constant":
            return 1.0
        if steps is None:
            raise ConfigError("a cosine schedule needs the number of steps")
        return 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))


def _own_code(function: types.FunctionType) -> types.FunctionType:
    """The same function with a code object of its own.

    torch keeps at most eight compiled variants per code object, and falls back in silence after that; functions made
    by one factory share theirs.
    """
    code = function.__code__.replace()
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


class FlatAdamW(torch.optim.Optimizer):
    """AdamW over one flat tensor, in one kernel.

    torch's fused AdamW gives each thread block 65,536 numbers, so a model of 100,000 parameters keeps two of a
    GPU's hundred multiprocessors busy: a third of a small model's whole training step. This one spreads them out.
    While it is in use, the parameters are views of one tensor; `release` gives each its own memory again.

    Args:
        model: Its parameters are optimised.
        lr: The learning rate; kept on the device.
        weight_decay: Decoupled.
        betas: Of the averages of gradient and square.
        eps: Keeps the division finite.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        lowerable = _lowerable(model)
        # Those that `lowered` replaces come first, so that each kind is one run of memory.
        params = [*lowerable, *(p for p in model.parameters() if p.requires_grad and p not in lowerable)]
        device = params[0].device
        rate = torch.tensor(lr, dtype=torch.float32, device=device)
        # "capturable" tells torch to keep `step` on the device when a saved state is loaded.
        defaults = {"lr": rate, "weight_decay": weight_decay, "betas": betas, "eps": eps, "capturable": True}
        super().__init__(params, defaults)
        self._params, self._owners = params, lowerable
        self._gaps = {d: torch.zeros(_ALIGNED, dtype=d, device=device) for d in (torch.float32, torch.bfloat16)}
        self._flat = _joined([_dense(p.detach()) for p in params], self._gaps[torch.float32])
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        self._low: Tensor | None = None
        with torch.no_grad():
            for p, part in zip(params, _divided(self._flat, params), strict=True):
                p.data = _shaped(part, p)
        self.state[params[0]] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(self._flat),
            "exp_avg_sq": torch.zeros_like(self._flat),
        }

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether a model can be optimised so: float32 on one GPU, and Triton is there."""
        params = [p for p in model.parameters() if p.requires_grad]
        return (
            len({p.device for p in params}) == 1
            and all(p.is_cuda and p.dtype == torch.float32 and _is_dense(p) for p in params)
            and has_triton()
        )

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        """Lets linear and convolutional layers use bf16 copies of their parameters, which `step` keeps up to date.

        Autocast would make the same copies anew in every forward pass, each in a kernel of its own.
        """
        if self._low is None:
            self._low = self._flat[: _padded_size(self._owners)].bfloat16()
            parts = _divided(self._low, self._owners)
            self._copies = {p: nn.Parameter(_shaped(part, p)) for p, part in zip(self._owners, parts, strict=True)}
        for p, places in self._owners.items():
            for module, name in places:
                module._parameters[name] = self._copies[p]
        try:
            yield
        finally:
            for p, places in self._owners.items():
                for module, name in places:
                    module._parameters[name] = p

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for copy in self._copies.values():
            copy.grad = None

    def release(self) -> None:
        """Gives every parameter memory of its own."""
        for p in self._params:
            p.data = p.data.clone(memory_format=torch.preserve_format)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        from goldiprox.kernels import adamw

        state, group = self.state[self._params[0]], self.param_groups[0]
        state["step"] += 1
        first = 0
        for kind, run in itertools.groupby(self._params, self._kind):
            params = list(run)
            part = slice(first, first + _padded_size(params))
            first = part.stop
            if kind == "unused":  # left alone, by weight decay too, as torch does
                continue
            low = self._low[part] if kind == "low" and self._low is not None else None
            gradients = [_gradient(p, self._copies[p] if kind == "low" else p) for p in params]
            gradient = _joined(gradients, self._gaps[gradients[0].dtype])
            adamw(
                self._flat[part], gradient, state["exp_avg"][part], state["exp_avg_sq"][part], low, state["step"], group
            )

    def _kind(self, p: nn.Parameter) -> Literal["low", "full", "unused"]:
        """Where the gradient of a parameter is: in its bf16 copy, in itself, nowhere."""
        copy = self._copies.get(p)
        if copy is not None and copy.grad is not None:
            return "low"
        return "unused" if p.grad is None else "full"


def _lowerable(model: nn.Module) -> dict[nn.Parameter, list[tuple[nn.Module, str]]]:
    """The parameters that only layers use which autocast runs in bf16, with the places they are used in."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and p.requires_grad:
                places.setdefault(p, []).append((module, name))
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {p: used for p, used in places.items() if all(type(module) in layers for module, _ in used)}


_ALIGNED = 64
"""Numbers: every parameter begins at a multiple of it, as vectorised kernels need."""


def _padded_size(params: Iterable[Tensor]) -> int:
    return sum(p.numel() + -p.numel() % _ALIGNED for p in params)


def _joined(runs: list[Tensor], gap: Tensor) -> Tensor:
    """Flat runs behind each other, each at an aligned position; the gaps are filled from `gap`."""
    return torch.cat([part for run in runs for part in (run, gap[: -len(run) % _ALIGNED])])


def _divided(flat: Tensor, params: Iterable[Tensor]) -> Iterator[Tensor]:
    """The parts of a joined run that belong to each parameter."""
    first = 0
    for p in params:
        yield flat[first : first + p.numel()]
        first += p.numel() + -p.numel() % _ALIGNED


def _shaped(part: Tensor, p: Tensor) -> Tensor:
    """A flat run of memory as a tensor laid out like a parameter."""
    return part.as_strided(p.shape, p.stride(), part.storage_offset())


def _is_dense(t: Tensor) -> bool:
    return t.numel() == 0 or sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 == t.numel()


def _dense(t: Tensor) -> Tensor:
    """A tensor without gaps as the flat run of its memory."""
    return t.as_strided((t.numel(),), (1,))


def _gradient(p: Tensor, leaf: Tensor) -> Tensor:
    """The gradient of a leaf as a flat run, in the order of its parameter's memory."""
    gradient = leaf.grad
    assert gradient is not None
    if gradient.stride() != p.stride() or not _is_dense(gradient):
        gradient = torch.empty_like(leaf).copy_(gradient)
    return _dense(gradient)


@contextlib.contextmanager
def released(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Gives parameters their own memory again when the code inside is done."""
    try:
        yield
    finally:
        if isinstance(optimizer, FlatAdamW):
            optimizer.release()
