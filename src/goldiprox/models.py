"""The paper's models, and what a model costs."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from goldiprox.errors import ModelMismatch
from goldiprox.randomness import derive, seeded
from goldiprox.resolve import resolve

Shape = tuple[int, ...]


class MLP(nn.Sequential):
    """Three hidden layers of equal width."""

    def __init__(self, input_shape: Shape, num_classes: int, *, width: int, dropout: float = 0.0):
        layers: list[nn.Module] = [nn.Flatten()]
        fan_in = math.prod(input_shape)
        for _ in range(3):
            layers += [nn.Linear(fan_in, width), nn.ReLU(), *_dropout(dropout)]
            fan_in = width
        super().__init__(*layers, nn.Linear(fan_in, num_classes))


class SmallCNN(nn.Sequential):
    """Three valid 3x3 convolutions, each pooled and rectified, and three linear layers."""

    def __init__(self, input_shape: Shape, num_classes: int, *, dropout: float = 0.0):
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for out_channels in (64, 128, 256):
            layers += [nn.Conv2d(channels, out_channels, 3), nn.MaxPool2d(2), nn.ReLU()]
            channels, height, width = out_channels, (height - 2) // 2, (width - 2) // 2
        if min(height, width) < 1:
            raise ValueError(f"it needs images of at least 22x22 pixels; these have {input_shape[1]}x{input_shape[2]}")
        layers.append(nn.Flatten())
        fan_in = channels * height * width
        for size in (128, 256):
            layers += [nn.Linear(fan_in, size), nn.ReLU(), *_dropout(dropout)]
            fan_in = size
        super().__init__(*layers, nn.Linear(fan_in, num_classes))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016)."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Sequential):
    """ResNet-18 with the stem for small images: 3x3, stride 1, no pooling. `width` is that of the first stage."""

    def __init__(self, input_shape: Shape, num_classes: int, *, width: int = 64, dropout: float = 0.0):
        layers: list[nn.Module] = [
            nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        in_channels = width
        for channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            layers += [BasicBlock(in_channels, channels, stride), BasicBlock(channels, channels, 1)]
            in_channels = channels
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *_dropout(dropout), nn.Linear(8 * width, num_classes)]
        super().__init__(*layers)


def _dropout(p: float) -> list[nn.Module]:
    return [nn.Dropout(p)] if p else []


def mlp128(input_shape: Shape, num_classes: int, **options: Any) -> nn.Module:
    return MLP(input_shape, num_classes, width=128, **options)


def mlp512(input_shape: Shape, num_classes: int, **options: Any) -> nn.Module:
    return MLP(input_shape, num_classes, width=512, **options)


def thin_resnet18(input_shape: Shape, num_classes: int, **options: Any) -> nn.Module:
    """A quarter of the width, and a sixteenth of the FLOPs."""
    return ResNet18(input_shape, num_classes, width=16, **options)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp128": mlp128,
    "mlp512": mlp512,
    "small_cnn": SmallCNN,
    "thin_resnet18": thin_resnet18,
    "resnet18": ResNet18,
}

THIN = {"resnet18": "thin_resnet18"}
"""Of a large model, one of its architecture for a tenth of its FLOPs or less."""


def build(
    name: str,
    input_shape: Shape,
    num_classes: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> nn.Module:
    """A model of this name (built-in, or ``package.module:callable``), its weights drawn from the seed.

    A callable of the user's own is called with ``(input_shape, num_classes)``; one that takes less, with
    ``num_classes=`` or with nothing.
    """
    make = resolve("model", name, MODELS)
    with seeded(derive("initial weights", seed)):
        try:
            model = _call(make, input_shape, num_classes, options)
        except (TypeError, ValueError, RuntimeError) as e:
            raise ModelMismatch(
                f"model {name!r} cannot be made for inputs of shape {input_shape} and {num_classes} classes: {e}. "
                f"A model of your own is a function of (input_shape, num_classes), of num_classes, or of nothing"
            ) from e
    if not isinstance(model, nn.Module):
        raise ModelMismatch(f"model {name!r} gave a {type(model).__name__}, not an nn.Module")
    return model.to(device)


def _call(make: Callable[..., Any], input_shape: Shape, num_classes: int, options: dict[str, Any]) -> Any:
    """What a function gives for as much as it takes of shape and number of classes."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # a builtin that does not say
        return make(input_shape, num_classes, **options)
    for args, named in (((input_shape, num_classes), {}), ((), {"num_classes": num_classes}), ((), {})):
        try:
            signature.bind(*args, **named, **options)
        except TypeError:
            continue
        return make(*args, **named, **options)
    return make(input_shape, num_classes, **options)  # its own message says what it wants


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_flops(run: Callable[[], Any]) -> int:
    """Floating-point operations of what runs inside (a multiply-add counts as two)."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()
