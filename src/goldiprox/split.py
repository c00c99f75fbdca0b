"""Which examples train, which are held out. Shuffled, stratified, seeded."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from goldiprox.errors import ConfigError, some
from goldiprox.randomness import derive

_BLOCK = 2**16


def check_ids(ids: npt.ArrayLike, *, what: str, length: int | None = None) -> np.ndarray:
    """Ids as integers, or an error where they are not distinct positions in a data set of this length."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
        raise ConfigError(f"{what} must list ids (positions), not {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64)
    is_ascending = (ids[1:] > ids[:-1]).all()  # as splits are; else copies are sorted to find out
    if not is_ascending and len(np.unique(ids)) != len(ids):
        raise ConfigError(f"{what} lists some ids twice")
    bad = ids[(ids < 0) | (ids >= (np.iinfo(np.int64).max if length is None else length))]
    if len(bad):
        raise ConfigError(f"{what} lists ids {some(bad.tolist())}, which are not in the data set of {length} examples")
    return ids


def digest_ids(*parts: np.ndarray | range) -> str:
    """A hash over ids in order."""
    digest = hashlib.sha256()
    for ids in parts:
        for first in range(0, len(ids), _BLOCK):
            digest.update(np.asarray(ids[first : first + _BLOCK], "<i8").tobytes())
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True)
class Split:
    """The ids of the training side and of the holdout side, each sorted."""

    train: np.ndarray
    holdout: np.ndarray

    def __post_init__(self):
        for name in ("train", "holdout"):
            object.__setattr__(self, name, np.sort(check_ids(getattr(self, name), what=f"the {name} side")))
        both = np.intersect1d(self.train, self.holdout)
        if len(both):
            raise ConfigError(
                f"training and holdout side overlap in {len(both):,} ids ({some(both)}); an example in both has a "
                f"meaningless irreducible loss: make them disjoint"
            )
        if not len(self.train):
            raise ConfigError("the training side is empty; lower the share of the holdout")

    @property
    def digest(self) -> str:
        """A name for this division, for the headers of files."""
        return digest_ids(self.train)

    def require_holdout(self) -> None:
        if not len(self.holdout):
            raise ConfigError(
                "the holdout is empty, so there is nothing to train the holdout model on; give it a share "
                "(--holdout 0.5), or cross-fit without a holdout (--folds 2)"
            )


def holdout_split(length: int, labels: np.ndarray | None = None, *, holdout: float = 0.5, seed: int = 0) -> Split:
    """Holds out a share of the data, the same share of every class."""
    if not 0 <= holdout < 1:
        raise ConfigError(f"a holdout share of {holdout} is not in [0, 1)")
    rng = np.random.default_rng(derive("holdout split", seed))
    order = _by_class(length, labels, rng)
    num_holdout = round(holdout * length)
    positions = np.floor((np.arange(num_holdout) + 0.5) * length / max(num_holdout, 1)).astype(np.int64)
    return Split(np.delete(order, positions), order[positions])


def k_fold(ids: np.ndarray, labels: np.ndarray | None = None, *, num_folds: int, seed: int = 0) -> list[np.ndarray]:
    """Divides the ids into folds of equal size, each with its share of every class.

    Args:
        ids: What is divided.
        labels: One per entry of `ids`.
        num_folds: How many.
        seed: Of the shuffle.
    """
    ids = np.asarray(ids)
    if not 2 <= num_folds <= len(ids):
        raise ConfigError(f"{num_folds} folds of {len(ids):,} examples: give 2 or more, and no more than examples")
    rng = np.random.default_rng(derive("folds", seed))
    order = _by_class(len(ids), labels, rng)
    return [np.sort(ids[order[fold::num_folds]]) for fold in range(num_folds)]


def _by_class(length: int, labels: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """A random order, class after class, so that evenly spaced positions are a stratified draw."""
    order = rng.permutation(length)
    if labels is None:
        return order
    if (shape := np.shape(labels)) != (length,):
        raise ConfigError(
            f"labels of shape {shape} for {length:,} examples: give one class for each, or none (labels=None)"
        )
    return order[np.argsort(np.asarray(labels)[order], kind="stable")]
