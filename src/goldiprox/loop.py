"""The one training loop, the one evaluation, and what they share with scoring."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from goldiprox.data import Batch, TensorData, iterate, labels_of, unwrap
from goldiprox.errors import ConfigError, DataError, GoldiproxError, ModelMismatch, NonFiniteError, UnknownName, some
from goldiprox.ledger import Cost, Rate, measure_rate
from goldiprox.randomness import derive, preserved, seeded

PerExampleLoss: TypeAlias = Callable[[Any, Any], Tensor]
"""(output, targets) -> one loss per example."""
Forward: TypeAlias = Callable[[nn.Module, Any], Any]
"""(model, inputs) -> output."""
Schedule = Literal["constant", "cosine"]
Evaluate: TypeAlias = Callable[[nn.Module], Mapping[str, float]]
OnRecord: TypeAlias = Callable[[dict[str, Any]], None]
OnStep: TypeAlias = Callable[[int, Mapping[str, Any]], None]
"""(steps done, the latest evaluation): for progress bars."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is optimised: AdamW, as in the paper.

    Attributes:
        lr: The (peak) learning rate.
        weight_decay: Decoupled.
        schedule: ``constant`` (the paper's), or ``cosine``: decayed to zero at the last step.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: Schedule = "constant"

    def __post_init__(self):
        if self.schedule not in get_args(Schedule):
            raise UnknownName("schedule", self.schedule, get_args(Schedule))
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"a learning rate of {self.lr} does not train; give a positive one")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"a weight decay of {self.weight_decay} is not zero or more")

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters = list(model.parameters())
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=fused)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, steps: int | None
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        if self.schedule == "constant":
            return None
        if steps is None:
            raise ConfigError("a cosine schedule needs the number of steps")
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5 * (1 + math.cos(math.pi * min(t / steps, 1))))


@dataclass
class History:
    """What a training run leaves: evaluations, cost, the last evaluation."""

    evaluations: list[dict[str, Any]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    steps: int = 0

    @property
    def final(self) -> dict[str, Any]:
        return self.evaluations[-1] if self.evaluations else {}


_NO_LABEL = torch.iinfo(torch.int64).min
"""No label is to be ignored: not -100 either, which torch passes over in silence."""


def cross_entropy(output: Float[Tensor, "n c"], y: Tensor) -> Float[Tensor, " n"]:
    """The default per-example loss, for classification."""
    try:
        return nn.functional.cross_entropy(output, y, reduction="none", ignore_index=_NO_LABEL)
    except IndexError as e:
        bad = y[(y < 0) | (y >= output.shape[1])].tolist()
        raise DataError(f"labels {some(bad)} are outside the model's {output.shape[1]} classes; correct them") from e


def call(model: nn.Module, x: Any) -> Any:
    """The default forward pass."""
    return model(x)


@contextlib.contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Puts every module's training mode back, also of those the user froze."""
    modes = [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the code inside."""
    with kept_modes(model):
        model.eval()
        yield


def device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def check_model(
    model: nn.Module,
    batch: Batch,
    *,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    data: Any = None,
    role: str = "model",
) -> None:
    """Tries a model on a few examples, and says what does not fit before any training is spent on it.

    Args:
        model: Is left as it was.
        batch: A few examples.
        loss: One loss per example.
        forward: How the model is called.
        data: The data set they come from; its labels, where it has them at hand, must fit the model's outputs.
        role: What to call the model in a message.
    """
    with preserved(device_of(model)), evaluating(model), torch.no_grad():
        try:
            output = forward(model, batch.x)
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            raise ModelMismatch(f"the {role} does not accept the inputs ({_shapes(batch.x)}): {_first_line(e)}") from e
        if loss is cross_entropy:
            _check_logits(output, batch, _num_classes(data), role)
        try:
            values = loss(output, batch.y)
        except GoldiproxError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            raise ModelMismatch(
                f"the loss cannot be taken of the {role}'s output ({_shapes(output)}) and the targets "
                f"({_shapes(batch.y)}): {_first_line(e)}"
            ) from e
    check_losses(values, batch.num_examples)


def _num_classes(data: Any) -> int | None:
    """How many classes the labels of a data set need, where they are at hand."""
    data = unwrap(data)
    if isinstance(data, TensorData):
        return data.num_classes
    labels = None if data is None else labels_of(data)
    if labels is None or not len(labels):
        return None
    if labels.min() < 0:
        bad = (labels < 0).nonzero()[0].tolist()
        raise DataError(f"the labels of ids {some(bad)} are negative; classes are counted from 0")
    return int(labels.max()) + 1


def check_losses(values: Any, num_examples: int) -> None:
    """Raises unless a loss gave one value per example."""
    if not isinstance(values, Tensor) or tuple(values.shape) != (num_examples,):
        raise ModelMismatch(
            f"the loss must give one value per example, shape ({num_examples},); it gave {_shapes(values)}. "
            f"Use reduction='none' and average over what is not the example"
        )


def _check_logits(output: Any, batch: Batch, num_classes: int | None, role: str) -> None:
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != batch.num_examples:
        raise ModelMismatch(
            f"the {role} must give one row of logits per example for cross-entropy; it gave {_shapes(output)}. "
            f"For another task pass loss= (and forward=)"
        )
    if not isinstance(batch.y, Tensor) or batch.y.is_floating_point() or batch.y.ndim != 1:
        raise ModelMismatch(
            f"cross-entropy needs one integer label per example; the targets are {_shapes(batch.y)}. "
            f"For another task pass loss="
        )
    num_classes = num_classes or int(batch.y.max()) + 1
    if output.shape[1] < num_classes:
        raise ModelMismatch(
            f"the {role} has {output.shape[1]} outputs, the labels have {num_classes} classes; "
            f"give its last layer {num_classes} outputs"
        )


def _shapes(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_shapes(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_shapes(v) for v in value) + ")"
    return type(value).__name__


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else type(e).__name__


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    steps: int | None = None,
    config: TrainingConfig = TrainingConfig(),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    seed: int = 0,
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    rate: Rate | None = None,
    num_scored: Callable[[], int] = lambda: 0,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
) -> History:
    """Trains a model on batches, one step each, and evaluates it on the way.

    The order of work within a step is fixed: take the next batch (which may score candidates with this very
    model), then update. Dropout draws from the seed; the global generators are left as they were.

    Args:
        model: Trained in place, on the device it is on.
        batches: What it trains on, in order.
        steps: How many there are, where that is known.
        config: Learning rate, weight decay, schedule.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example; the step minimises their mean.
        forward: How the model is called.
        seed: Of everything random in the model.
        evaluate: Gives figures for the model as it is.
        eval_every: Steps between evaluations; the last step is always evaluated.
        rate: The model's FLOPs per example, for the bill.
        num_scored: How many examples `batches` has scored with this model so far, for the bill.
        on_record: Gets every evaluation.
        on_step: Called after every step.
    """
    device = device_of(model)
    opt = optimizer(model) if optimizer else config.optimizer(model)
    scheduler = config.scheduler(opt, steps)
    history = History()
    latest: dict[str, Any] = {}
    # On a GPU, looking at a loss waits for it; there, look at several at once.
    watch = _FiniteWatch(every=1 if device.type == "cpu" else 64)

    def evaluate_now() -> None:
        nonlocal latest
        if evaluate is None or (history.evaluations and history.evaluations[-1]["step"] == history.steps):
            return
        with history.cost.timed():
            _finish(device)  # steps still under way on a GPU are training's, not the evaluation's
        start = time.perf_counter()
        with preserved(device), kept_modes(model):  # whatever it does, training goes on as if it had not
            figures = dict(evaluate(model))
        history.cost.evaluation_seconds += time.perf_counter() - start
        latest = {
            "step": history.steps,
            "examples": history.cost.examples_trained,
            "flops": history.cost.flops,
            "seconds": round(history.cost.seconds, 6),
            **figures,
        }
        history.evaluations.append(latest)
        if on_record:
            on_record(latest)

    if not model.training:
        model.train()
    with seeded(derive("training", seed), device):
        remaining = iter(batches)
        while True:
            with history.cost.timed():
                batch = next(remaining, None)
                if batch is None:
                    break
                losses = loss(forward(model, batch.x), batch.y)
                watch(history.steps, batch.ids, losses)
                opt.zero_grad(set_to_none=True)
                losses.mean().backward()
                opt.step()
                if scheduler:
                    scheduler.step()
            history.steps += 1
            scored = num_scored() - history.cost.examples_scored
            history.cost.add(rate, scored=scored, trained=batch.num_examples)
            if eval_every and history.steps % eval_every == 0:
                evaluate_now()
            if on_step:
                with preserved(device):
                    on_step(history.steps, latest)
        with history.cost.timed():
            watch.look()
            _finish(device)
        evaluate_now()
        if on_step:
            on_step(history.steps, latest)
    return history


def _finish(device: torch.device) -> None:
    """Waits until the device has done what it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class _FiniteWatch:
    """Stops training at the first loss that is not finite."""

    def __init__(self, every: int):
        self.every = every
        self.kept: list[tuple[int, Tensor, Tensor]] = []

    def __call__(self, step: int, ids: Tensor, losses: Tensor) -> None:
        self.kept.append((step, ids, losses.detach()))
        if len(self.kept) >= self.every:
            self.look()

    def look(self) -> None:
        for step, ids, losses in self.kept:
            if not bool(torch.isfinite(losses).all()):
                bad = ids[~torch.isfinite(losses)].tolist()
                raise NonFiniteError(
                    f"the training loss is not finite at step {step} for ids {some(bad)}. Likely the model diverged: "
                    f"lower the learning rate or clip gradients; if it happens at step 0, look at these inputs",
                    step=step,
                    ids=bad,
                )
        self.kept.clear()


def evaluate_on(
    data: Any,
    *,
    ids: np.ndarray | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    batch_size: int = 2048,
    num_workers: int | None = None,
) -> Evaluate:
    """A function that gives a model's mean loss on this data and, for class logits, its accuracy."""
    order = np.arange(len(unwrap(data))) if ids is None else ids

    def evaluate(model: nn.Module) -> dict[str, float]:
        losses, correct = [], []
        for batch, output in outputs(
            model, data, order, forward=forward, batch_size=batch_size, num_workers=num_workers
        ):
            losses.append(loss(output, batch.y))
            if loss is cross_entropy:
                correct.append(output.argmax(1) == batch.y)
        figures = {"loss": torch.cat(losses).double().mean().item()}
        if correct:
            figures["accuracy"] = torch.cat(correct).double().mean().item()
        return figures

    return evaluate


def outputs(
    model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    forward: Forward = call,
    batch_size: int = 2048,
    num_workers: int | None = None,
):
    """Each batch of these ids with the model's output in evaluation mode."""
    device = device_of(model)
    with evaluating(model):
        chunks = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
        for batch in iterate(data, chunks, device=device, num_workers=num_workers):
            with torch.no_grad():
                output = forward(model, batch.x)
            yield batch, output


def rate_of(
    model: nn.Module, batch: Batch, *, loss: PerExampleLoss = cross_entropy, forward: Forward = call
) -> Rate | None:
    """A model's FLOPs per example, counted on a batch without changing the model or any generator."""
    with preserved(device_of(model)), evaluating(model):
        return measure_rate(model, forward, loss, batch)
