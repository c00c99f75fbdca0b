"""Proxies that resemble ResNet-18, for `goldiprox compare` from this folder's side: models of one's own, by name.

    PYTHONPATH=benchmarks goldiprox compare --data cifar10 --model resnet18 --method default,proxy=proxies:half40 ...

All but the last take a tenth of the FLOPs of `resnet18`, or less.
"""

from torch import nn

from goldiprox.models import ResNet18


def half(input_shape: tuple[int, ...], num_classes: int, width: int) -> nn.Module:
    """ResNet-18 of this width on images of half the side."""
    channels, height, width_of_images = input_shape
    smaller = (channels, height // 2, width_of_images // 2)
    return nn.Sequential(nn.AvgPool2d(2), ResNet18(smaller, num_classes, width=width))


def half16(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return half(input_shape, num_classes, 16)


def half40(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """As dear as a ResNet of width 20 on whole images, with four times the weights to learn by heart."""
    return half(input_shape, num_classes, 40)


def thin16(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return ResNet18(input_shape, num_classes, width=16)


def thin20(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return ResNet18(input_shape, num_classes, width=20)


def thin32(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A quarter of the FLOPs of `resnet18`: no proxy, a holdout model."""
    return ResNet18(input_shape, num_classes, width=32)
