"""How a model is called: forward pass, precision, per-example loss, modes; and the check that it fits the data."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from goldiprox.data import TARGET_KEYS, Batch, TensorData, labels_of, map_tensors, same_labels, unwrap
from goldiprox.errors import ConfigError, DataError, GoldiproxError, ModelMismatch, UnknownName, some
from goldiprox.randomness import preserved

PerExampleLoss: TypeAlias = Callable[[Any, Any], Tensor]
"""(output, targets) -> one loss per example."""
Forward: TypeAlias = Callable[[nn.Module, Any], Any]
"""(model, inputs) -> output."""
Precision = Literal["fp32", "tf32", "bf16"]
"""How a model computes. Weights, optimiser and losses are float32 in all of them."""
Augmentation = Literal["off", "shift", "mirror", "shift+mirror"]
"""What is done to images while a model learns."""

_NO_LABEL = torch.iinfo(torch.int64).min
"""No label is to be ignored: not -100 either, which torch passes over in silence."""


def cross_entropy(output: Float[Tensor, "n c"], y: Tensor) -> Float[Tensor, " n"]:
    """The default per-example loss, for classification."""
    try:
        return nn.functional.cross_entropy(output, y, reduction="none", ignore_index=_NO_LABEL)
    except IndexError as e:
        bad = y[(y < 0) | (y >= output.shape[1])].tolist()
        raise DataError(f"labels {some(bad)} are outside the model's {output.shape[1]} classes; correct them") from e


def generalised_cross_entropy(q: float) -> PerExampleLoss:
    """``(1 - p ** q) / q`` for a label of probability p (Zhang & Sabuncu 2018): learns less from wrong labels.

    Args:
        q: Towards 0 it is cross-entropy; 1 is one minus the probability, which no single label can dominate.
    """
    if not 0 < q <= 1:
        raise ConfigError(f"q={q} of the generalised cross-entropy is not in (0, 1]; 0.7 is usual")

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return -torch.expm1(-q * cross_entropy(output, y)) / q

    return loss


def call(model: nn.Module, x: Any) -> Any:
    """The default forward pass."""
    return model(x)


def augmented(forward: Forward, how: Augmentation) -> Forward:
    """The same forward pass; but a model in training mode sees each image shifted, mirrored or both by chance.

    Shifted by up to an eighth of its height and width, zeros moving in; mirrored left to right, every other one. The
    device draws, so that a CUDA graph draws anew at every step.

    Args:
        forward: Gets images as (examples, channels, height, width).
        how: What is done to them.
    """
    if how not in get_args(Augmentation):
        raise UnknownName("augmentation", how, get_args(Augmentation))
    if how == "off":
        return forward

    def learning(model: nn.Module, x: Any) -> Any:
        return forward(model, _moved(x, how) if model.training else x)

    return learning


def both_ways(forward: Forward) -> Forward:
    """The mean of the logits for an image and for the mirrored one, to ask a model that learnt both."""
    return lambda model, x: (forward(model, x) + forward(model, x.flip(-1))) / 2


def is_image(x: Any) -> bool:
    """Whether inputs are a batch of images: (examples, channels, height, width)."""
    return isinstance(x, Tensor) and x.ndim == 4


def _moved(x: Float[Tensor, "n c h w"], how: Augmentation) -> Float[Tensor, "n c h w"]:
    count, _, height, width = x.shape
    rows, columns = (torch.arange(size, device=x.device).expand(count, size) for size in (height, width))
    if "mirror" in how:
        turned = torch.rand((count, 1), device=x.device) < 0.5
        columns = torch.where(turned, width - 1 - columns, columns)
    if "shift" in how:
        rows, columns = (
            places + torch.randint(-(size // 8), size // 8 + 1, (count, 1), device=x.device)
            for places, size in ((rows, height), (columns, width))
        )
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    example = torch.arange(count, device=x.device)[:, None, None]
    moved = x.permute(0, 2, 3, 1)[example, rows[:, :, None], columns[:, None, :]] * inside[..., None]
    layout = torch.contiguous_format if x.is_contiguous() else torch.channels_last
    return moved.permute(0, 3, 1, 2).contiguous(memory_format=layout)


def in_precision(forward: Forward, precision: Precision) -> Forward:
    """The same forward pass, computed in this precision; what it gives is float32 again."""
    if precision != "bf16":
        return forward

    def lowered(model: nn.Module, x: Any) -> Any:
        with torch.autocast(device_of(model).type, torch.bfloat16, cache_enabled=False):
            output = forward(model, x)
        return map_tensors(lambda t: t.float() if t.dtype == torch.bfloat16 else t, output)

    return lowered


@contextlib.contextmanager
def backends(precision: Precision, device: torch.device) -> Iterator[None]:
    """The settings of torch's libraries for this precision, for the code inside."""
    if device.type != "cuda" or precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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

    The loss is taken of all of them and of two alone, so that one with the wrong dimension averaged is found out.

    Args:
        model: Is left as it was.
        batch: A few examples.
        loss: One loss per example.
        forward: How the model is called.
        data: The data set they come from; its labels, where it has them at hand, must fit the model's outputs.
        role: What to call the model in a message.
    """
    parts = [batch, batch.take(torch.arange(2))] if batch.num_examples > 2 else [batch]
    num_classes = _num_classes(data, batch) if loss is cross_entropy else None
    with preserved(device_of(model)), evaluating(model), torch.no_grad():
        for part in parts:
            _check_broadcast(_tried(model, part, loss, forward, role, num_classes), part.y, loss)


def _tried(
    model: nn.Module, batch: Batch, loss: PerExampleLoss, forward: Forward, role: str, num_classes: int | None
) -> Any:
    """The output for a batch of which a loss can be taken."""
    try:
        output = forward(model, batch.x)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as e:
        remedy = ""
        if isinstance(batch.x, dict | tuple | list):
            remedy = ". Inputs of several parts reach a model as they are: say how it is called with forward="
        elif isinstance(batch.x, Tensor) and not batch.x.is_floating_point():
            remedy = ". Integers reach a model as they are, and built-in models do not read them: name one that does"
        raise ModelMismatch(
            f"the {role} does not accept the inputs ({_shapes(batch.x)}): {_first_line(e)}{remedy}{_no_target(batch.y)}"
        ) from e
    if loss is cross_entropy:
        _check_logits(output, batch, num_classes, role)
    try:
        values = loss(output, batch.y)
    except GoldiproxError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as e:
        raise ModelMismatch(
            f"the loss cannot be taken of the {role}'s output ({_shapes(output)}) and the targets "
            f"({_shapes(batch.y)}): {_first_line(e)}{_no_target(batch.y)}"
        ) from e
    check_losses(values, batch.num_examples)
    return output


def _no_target(y: Any) -> str:
    """What to do where items have no target, as a sentence; nothing where they have."""
    if not isinstance(y, tuple | list) or len(y):
        return ""
    return (
        f". The items have no target: it is the last of a tuple, or what a dictionary holds under "
        f"{', '.join(TARGET_KEYS)}; for others say which it is, gp.WithIds(data, split=...)"
    )


def _check_broadcast(output: Any, y: Any, loss: PerExampleLoss) -> None:
    """Raises where a column and a row were taken for a table: each loss is then a mean over all targets."""
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)) or {output.ndim, y.ndim} != {1, 2}:
        return
    column = output if output.ndim == 2 else y
    if column.shape[1] != 1 or len(output) < 2:
        return
    together, alone = loss(output, y)[0], loss(output[:1], y[:1])
    if alone.numel() == 1 and not torch.isclose(together, alone.reshape(()), rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ModelMismatch(
            f"the loss of an example depends on the others of its batch: the output has shape {tuple(output.shape)}, "
            f"the targets {tuple(y.shape)}, and each output meets every target. Give both the same shape, say "
            f"output.squeeze(1)"
        )


def _num_classes(data: Any, batch: Batch) -> int | None:
    """How many classes the labels of a data set need, where they are at hand, and those that items give."""
    data = unwrap(data)
    if isinstance(data, TensorData):
        return data.num_classes
    labels = None if data is None else labels_of(data)
    if labels is None or not len(labels) or not same_labels(labels, batch):
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
            f"For another task pass loss={_no_target(batch.y)}"
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
        return "(" + ", ".join([*(_shapes(v) for v in value[:4]), *(["..."] if len(value) > 4 else [])]) + ")"
    return type(value).__name__


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else type(e).__name__


def require_no_running_stats(model: nn.Module, mode: str) -> None:
    """Raises where scoring would leave another model on every rank."""
    if mode == "train" and any(getattr(m, "track_running_stats", False) for m in model.modules()):
        raise ConfigError(
            "mode='train' changes BatchNorm's running statistics while scoring, on every rank by other candidates, so "
            "that the ranks' models drift apart; use mode='train_frozen_stats' or 'eval'"
        )
