"""Proxies that resemble ResNet-18, for `goldiprox compare` from this folder's side: models of one's own, by name.

    PYTHONPATH=benchmarks goldiprox compare --data cifar10 --model resnet18 --method default,proxy=proxies:half40 ...

All take a tenth of the FLOPs of `resnet18`, or less.
"""

from torch import nn

from goldiprox.models import ResNet18


def half40(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet-18 of width 40 on images of half the side: it learns by heart as fast as a wide one."""
    channels, height, width = input_shape
    return nn.Sequential(nn.AvgPool2d(2), ResNet18((channels, height // 2, width // 2), num_classes, width=40))


def thin16(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return ResNet18(input_shape, num_classes, width=16)


def thin20(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return ResNet18(input_shape, num_classes, width=20)
