"""From a name and a few settings to the data of an experiment: loaded, split, damaged, with the truth kept."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from goldiprox.data import Source, TensorData, load
from goldiprox.data.corruption import NoiseKind, Truth, add_white_noise, corrupt_labels, duplicate
from goldiprox.data.sources import Divided
from goldiprox.split import Split, holdout_split


@dataclass(frozen=True)
class DataConfig:
    """Which data, and what is done to it. Equal settings give equal data in every command.

    Attributes:
        data: A built-in name, a folder of images, Parquet files, or ``package.module:callable``.
        data_dir: Where data sets lie.
        image_size: Of one's own images: crop and resize to this, ``64`` or ``48x64``.
        data_seed: Of split and damage; not the seed of training.
        holdout: The share of the base data set that is held out. Data that comes divided (``qmnist``, ``cinic10``)
            keeps its own division; 0 leaves its holdout out.
        noise: The share of the training side whose labels are corrupted.
        noise_kind: ``uniform``, ``class`` or ``instance``.
        holdout_noise: The share of the holdout whose labels are corrupted, likewise.
        white_noise: The share of the training side whose inputs become noise.
        duplicates: The share of the training side that become copies of others.
    """

    data: str = "mnist5k"
    data_dir: str | None = None
    image_size: str | None = None
    data_seed: int = 0
    holdout: float = 0.5
    noise: float = 0.0
    noise_kind: NoiseKind = "uniform"
    holdout_noise: float = 0.0
    white_noise: float = 0.0
    duplicates: float = 0.0

    def recorded(self) -> dict[str, Any]:
        """What goes into the headers of files: everything but the place, which differs between machines."""
        return {k: v for k, v in asdict(self).items() if k != "data_dir"}


@dataclass(frozen=True)
class Prepared:
    """The base data set as it is trained on, the test set, the two sides, and the truth."""

    config: DataConfig
    data: TensorData
    test: TensorData
    split: Split
    truth: Truth


def prepare(config: DataConfig, source: Source | None = None) -> Prepared:
    """Loads, splits and damages.

    Args:
        config: Which data, and what is done to it.
        source: The data where it is loaded already: several seeds need it once.
    """
    source = source or load(config.data, config.data_dir, image_size=config.image_size)
    data, seed = source.train, config.data_seed
    split = _split(source, config)
    truth = Truth.of(data)
    if config.noise:
        data, truth = corrupt_labels(data, truth, split.train, config.noise, kind=config.noise_kind, seed=seed)
    if config.holdout_noise:
        # A seed of its own: the two sides must not share their draws.
        data, truth = corrupt_labels(
            data, truth, split.holdout, config.holdout_noise, kind=config.noise_kind, seed=seed + 1_000_003
        )
    if config.white_noise:
        data, truth = add_white_noise(data, truth, split.train, config.white_noise, seed=seed)
    if config.duplicates:
        data, truth = duplicate(data, truth, split.train, config.duplicates, seed=seed)
    return Prepared(config, data, source.test, split, truth)


def _split(source: Source, config: DataConfig) -> Split:
    """The data set's own division where it has one, else a stratified draw."""
    data = source.train
    if isinstance(source, Divided):
        train = np.setdiff1d(np.arange(len(data)), source.holdout)
        return Split(train, source.holdout if config.holdout else train[:0])
    labels = data.labels if data.num_classes is not None else None
    return holdout_split(len(data), labels, holdout=config.holdout, seed=config.data_seed)


def differences(recorded: Any, current: DataConfig) -> str:
    """Which settings of a file differ from the current ones, as flags, for a message."""
    recorded = recorded if isinstance(recorded, dict) else {}  # a stranger's file may say anything
    changed = [
        f"--{name.replace('_', '-')} {recorded[name]} there, {value} here"
        for name, value in current.recorded().items()
        if name in recorded and recorded[name] != value
    ]
    return "; ".join(changed)


def fitting_sizes(num_train: int) -> dict[str, int]:
    """Candidates and keep for a training side too small for the defaults."""
    return {"candidates": max(1, num_train // 5), "keep": max(1, num_train // 50)}
