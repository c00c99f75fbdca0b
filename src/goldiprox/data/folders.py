"""Images in folders, a folder a class: one's own, and sets that are published so."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from goldiprox.data import images
from goldiprox.data.images import Size, decode_images
from goldiprox.errors import DataError, MissingData, some

log = logging.getLogger(__name__)

PARTS = {"train": ("train", "training"), "valid": ("valid", "val", "validation"), "test": ("test", "testing")}


class Part(NamedTuple):
    """Images (n, channels, height, width) as bytes, their labels, and their files where each has one of its own; in the
    order of the files' names.
    """

    x: np.ndarray
    y: np.ndarray
    files: tuple[str, ...] = ()

    def take(self, rows: np.ndarray) -> "Part":
        return Part(self.x[rows], self.y[rows], tuple(self.files[row] for row in rows) if self.files else ())


def find_parts(folder: Path) -> dict[str, Path]:
    """The folders of ``train``, ``valid`` and ``test`` as far as they are there; else the folder itself as ``all``."""
    found: dict[str, Path] = {}
    for part, names in PARTS.items():
        if place := next((p for p in (folder / n for n in names) if p.is_dir()), None):
            found[part] = place
    if "train" in found:
        return found
    if found:
        raise MissingData(f"{folder} has {some(p.name for p in found.values())}, but no folder train; add it")
    return {"all": folder}


def read_parts(
    folder: Path, places: Mapping[str, Path], *, size: Size | None = None, colour: bool | None = None
) -> tuple[dict[str, Part], tuple[str, ...]]:
    """The images of each part, and the names of the classes: the folders of the first part, sorted.

    Args:
        folder: What messages call the whole.
        places: Each part's folder, with a folder per class in it.
        size: Crop and resize to this.
        colour: Three channels, whatever the images have.
    """
    classes = {part: class_folders(place) for part, place in places.items()}
    names = next(iter(classes.values()))
    for part, own in classes.items():
        if not set(own) <= set(names):
            raise DataError(
                f"{places[part]} has the classes {', '.join(own)}; {next(iter(classes))} has {', '.join(names)}; "
                f"give both the same folders"
            )
    files: list[Path] = []
    labels: list[int] = []
    ends: dict[str, int] = {}
    left_out: list[Path] = []
    for part, place in places.items():
        for name in classes[part]:
            found = _files(place / name, left_out)
            if not found and part == next(iter(places)):
                raise DataError(f"{place / name} holds no images; add some, or remove the folder")
            files += found
            labels += [names.index(name)] * len(found)
        ends[part] = len(files)
        if ends[part] == ([0, *ends.values()])[-2]:
            raise DataError(f"{place}: its folders of classes hold no images")
    if left_out:
        log.warning("%s: files that are not images are left out: %s", folder, some(_short(p, folder) for p in left_out))
    limit = max(images.SMALL, images.MAX_EXPANSION * sum(p.stat().st_size for p in files))
    x = decode_images(
        files, lambda row: _short(files[row], folder), where=str(folder), limit=limit, size=size, colour=colour
    )
    y, names_of_files = np.array(labels, np.int64), tuple(_short(path, folder) for path in files)
    starts = [0, *ends.values()]
    parts = {
        part: Part(x[a:b], y[a:b], names_of_files[a:b]) for part, a, b in zip(places, starts, starts[1:], strict=False)
    }
    return parts, tuple(names)


def class_folders(place: Path) -> list[str]:
    """The names of the classes in a part, sorted."""
    if not place.is_dir():
        return []
    return sorted(p.name for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))


def has_images(folder: Path) -> bool:
    """Whether a folder is laid out in folders of classes, as far as a look at the first files tells."""
    place = next((folder / n for n in PARTS["train"] if (folder / n).is_dir()), folder)
    known = images.suffixes()
    return any(p.suffix.lower() in known for name in class_folders(place) for p in (place / name).rglob("*"))


def _files(folder: Path, left_out: list[Path]) -> list[Path]:
    known = images.suffixes()
    there = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    left_out += [p for p in there if p.suffix.lower() not in known]
    return [p for p in there if p.suffix.lower() in known]


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def stratified(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A share of every class, at least one of each that has two: which rows, sorted."""
    taken: list[np.ndarray] = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        taken.append(rng.permutation(rows)[:count])
    return np.sort(np.concatenate(taken)) if taken else np.empty(0, np.int64)
