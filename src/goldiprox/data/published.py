"""QMNIST and CINIC-10 as their authors publish them. Both come with a division into training and holdout side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from goldiprox.data.folders import Part, class_folders, read_parts
from goldiprox.data.idx import read_idx
from goldiprox.data.resident import TensorData
from goldiprox.errors import DataError, MissingData

QMNIST_FILES = {
    "train": ("qmnist-train-images-idx3-ubyte", "qmnist-train-labels-idx2-int"),
    "test": ("qmnist-test-images-idx3-ubyte", "qmnist-test-labels-idx2-int"),
}
NUM_TEST_OF_QMNIST = 10_000
"""QMNIST's test file begins with MNIST's test images (test10k); the rest are those that MNIST left out (test50k)."""
# As CINIC-10's authors publish them.
CINIC10_STATS = {"mean": (0.4789, 0.4723, 0.4305), "std": (0.2421, 0.2383, 0.2587)}

Parts = tuple[TensorData, TensorData, np.ndarray]
"""(base data set, test set, the ids of the base data set that are held out)"""


def read_qmnist(folder: Path, **stats: tuple[float, ...]) -> Parts:
    """QMNIST's 60,000 training images and, held out, its 50,000 extra test images; MNIST's 10,000 for testing.

    Labels are the first column of the extended ones (class, NIST's series, writer, ...).
    """
    images, labels = zip(*(_read_pair(folder, part) for part in ("train", "test")), strict=True)
    if len(images[1]) <= NUM_TEST_OF_QMNIST:
        raise DataError(
            f"{folder}: QMNIST's test file has 60,000 images, this one {len(images[1]):,}, so there is none to hold "
            f"out; download it again, or use --data mnist, which divides MNIST's training set"
        )
    x = np.concatenate([images[0], images[1][NUM_TEST_OF_QMNIST:]])[:, None]
    y = np.concatenate([labels[0], labels[1][NUM_TEST_OF_QMNIST:]])
    test_x, test_y = images[1][:NUM_TEST_OF_QMNIST, None], labels[1][:NUM_TEST_OF_QMNIST]
    about = {"num_classes": 10, "name": "qmnist", "class_names": tuple("0123456789"), **stats}
    train, test = (TensorData(torch.tensor(a), torch.tensor(b), **about) for a, b in ((x, y), (test_x, test_y)))
    return train, test, np.arange(len(images[0]), len(x))


def _read_pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    paths = [_find(folder, name) for name in QMNIST_FILES[part]]
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise DataError(f"{paths[0]} holds {images.dtype} of shape {images.shape}, not images of bytes")
    if labels.ndim != 2 or len(labels) != len(images):
        raise DataError(
            f"{paths[1]} has shape {labels.shape} for {len(images):,} images; extended labels have a row of 8 numbers "
            f"for each"
        )
    return images, labels[:, 0].astype(np.int64)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise MissingData(
        f"QMNIST: {folder} has neither {name}.gz nor {name}; put qmnist-{{train,test}}-images-idx3-ubyte.gz "
        f"and qmnist-{{train,test}}-labels-idx2-int.gz there (github.com/facebookresearch/qmnist). --data mnist does "
        f"without: it divides MNIST's training set"
    )


def read_cinic10(folder: Path) -> Parts:
    """CINIC-10's folders: ``train`` to train on, ``valid`` held out, ``test`` for testing; in each a folder a class."""
    places = {part: folder / part for part in ("train", "valid", "test")}
    for place in places.values():
        if not class_folders(place):
            raise MissingData(
                f"CINIC-10: {place} has no folders of classes; unpack CINIC-10.tar.gz "
                f"(datashare.ed.ac.uk/handle/10283/3192) so that "
                f"{folder} holds train/, valid/ and test/, each with a folder of PNG files per class"
            )
    parts, names = read_parts(folder, places, colour=True)  # some of ImageNet's images are grey
    return divided(parts, num_classes=len(names), name="cinic10", class_names=names, **CINIC10_STATS)


def divided(parts: Mapping[str, Part], **about: Any) -> Parts:
    """Parts ``train``, ``valid`` and ``test``, where ``valid`` is held out."""
    train, valid = parts["train"], parts["valid"]
    x, y = (np.concatenate(sides) for sides in ((train.x, valid.x), (train.y, valid.y)))
    base = Part(x, y, train.files + valid.files)
    return as_data(base, **about), as_data(parts["test"], **about), np.arange(len(train.y), len(base.y))


def as_data(part: Part, **about: Any) -> TensorData:
    return TensorData(torch.from_numpy(part.x), torch.from_numpy(part.y), files=part.files, **about)
