"""Known damage, for experiments: what was touched is recorded, so what a method picks can be judged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import adaptive_avg_pool2d

from goldiprox.data.resident import TensorData
from goldiprox.errors import ConfigError, CorruptFile, DataError, UnknownName
from goldiprox.randomness import derive
from goldiprox.storage import write_atomically

NoiseKind = Literal["uniform", "class", "instance"]


@dataclass(frozen=True)
class Truth:
    """What is really so, one entry per id.

    Attributes:
        labels: The labels before any damage.
        mislabelled: The label now differs from the true one.
        white_noise: The input was replaced by noise.
        duplicate_of: The id this example is a copy of; -1 for originals.
    """

    labels: np.ndarray
    mislabelled: np.ndarray
    white_noise: np.ndarray
    duplicate_of: np.ndarray

    @classmethod
    def of(cls, data: TensorData) -> "Truth":
        """The truth about data that nothing was done to."""
        n = len(data)
        return cls(data.labels.copy(), np.zeros(n, bool), np.zeros(n, bool), np.full(n, -1))

    def save(self, path: Path, given: np.ndarray) -> None:
        """Writes it as Parquet, one row per id, so that any tool can compare picks with it.

        Args:
            path: The file.
            given: The labels as they are trained on.
        """
        columns = {"id": np.arange(len(self.labels)), "label": self.labels, "given": given}
        columns |= {"mislabelled": self.mislabelled, "white_noise": self.white_noise}
        columns |= {"duplicate_of": self.duplicate_of}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        write_atomically(path, sink.getvalue().to_pybytes())

    @classmethod
    def open(cls, path: Path) -> "tuple[Truth, np.ndarray | None]":
        """Reads such a file: the truth, and the labels as they are trained on, where it holds them."""
        try:
            table = pq.read_table(path.resolve())
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            labels, duplicate_of = (
                columns[name].astype(np.int64, casting="safe") for name in ("label", "duplicate_of")
            )
            mislabelled, noise = (columns[name].astype(bool, casting="safe") for name in ("mislabelled", "white_noise"))
            given = columns.get("given")
            given = None if given is None else given.astype(np.int64, casting="safe")
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as e:
            raise CorruptFile(f"{path} cannot be understood ({type(e).__name__}: {e}); make the run again") from e
        return cls(labels, mislabelled, noise, duplicate_of), given

    @property
    def corrupted(self) -> np.ndarray:
        """Not worth learning: a wrong label or an input of noise."""
        return self.mislabelled | self.white_noise


def _choose(ids: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    if not 0 <= fraction <= 1:
        raise ConfigError(f"a share of {fraction} is not between 0 and 1")
    return rng.choice(ids, size=int(fraction * len(ids)), replace=False)


def corrupt_labels(
    data: TensorData,
    truth: Truth,
    ids: np.ndarray,
    fraction: float,
    *,
    kind: NoiseKind = "uniform",
    seed: int = 0,
) -> tuple[TensorData, Truth]:
    """Gives a share of these ids other labels.

    * ``uniform``: the share gets a label drawn uniformly, the true one included (as in the paper; with 10
      classes a tenth of the share keeps its label by chance).
    * ``class``: the share gets the label of its class's neighbour, ``(y + 1) % num_classes``.
    * ``instance``: examples that a weak model confuses get the class it confuses them with, drawn in
      proportion to how strongly it does.
    """
    if kind not in get_args(NoiseKind):
        raise UnknownName("kind of label noise", kind, get_args(NoiseKind))
    if data.num_classes is None:
        raise DataError(f"{data.name} has no classes, so its labels cannot be corrupted")
    rng = np.random.default_rng(derive("label noise", seed))
    y = data.labels.copy()
    if kind == "uniform":
        chosen = _choose(ids, fraction, rng)
        y[chosen] = rng.integers(0, data.num_classes, len(chosen))
    elif kind == "class":
        chosen = _choose(ids, fraction, rng)
        y[chosen] = (y[chosen] + 1) % data.num_classes
    else:
        confused_with, strength = _confusions(data, ids)
        gumbel = -np.log(-np.log(rng.uniform(1e-12, 1, len(ids))))
        chosen = np.argsort(-(np.log(strength) + gumbel), kind="stable")[: len(_choose(ids, fraction, rng))]
        y[ids[chosen]] = confused_with[chosen]
    mislabelled = truth.mislabelled.copy()
    mislabelled[ids] = y[ids] != truth.labels[ids]
    return (
        data.replace(y=torch.as_tensor(y, device=data.y.device)),
        Truth(truth.labels, mislabelled, truth.white_noise, truth.duplicate_of),
    )


def _confusions(data: TensorData, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each id the most likely wrong class under a weak model, and its probability there.

    The model is least squares on coarse pixels, solved exactly in float64, so that every machine agrees.
    """
    x, _ = data.gather(torch.as_tensor(ids))
    if x.ndim == 4 and max(x.shape[2:]) > 16:
        x = adaptive_avg_pool2d(x, 16)
    features = torch.cat([x.flatten(1).double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    labels = torch.as_tensor(data.labels[ids])
    targets = torch.nn.functional.one_hot(labels, data.num_classes or 0).double()
    gram = features.T @ features
    gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    outputs = features @ torch.linalg.solve(gram, features.T @ targets)
    # Least-squares outputs live in about [0, 1]; the factor turns them into probabilities that separate.
    probabilities = (10 * outputs).softmax(1)
    probabilities[torch.arange(len(ids)), labels] = 0
    strength, confused_with = probabilities.max(1)
    return confused_with.numpy(), strength.numpy()


def add_white_noise(
    data: TensorData, truth: Truth, ids: np.ndarray, fraction: float, *, seed: int = 0
) -> tuple[TensorData, Truth]:
    """Replaces the inputs of a share of these ids by independent uniform noise over the inputs' range."""
    rng = np.random.default_rng(derive("white noise", seed))
    chosen = _choose(ids, fraction, rng)
    x = data.x.clone()
    shape = (len(chosen), *data.input_shape)
    if x.dtype == torch.uint8:
        noise = torch.as_tensor(rng.integers(0, 256, shape, dtype=np.uint8))
    else:
        noise = torch.as_tensor(rng.uniform(float(x.min()), float(x.max()), shape), dtype=x.dtype)
    x[torch.as_tensor(chosen)] = noise.to(x.device)
    white_noise = truth.white_noise.copy()
    white_noise[chosen] = True
    return data.replace(x=x), Truth(truth.labels, truth.mislabelled, white_noise, truth.duplicate_of)


def duplicate(
    data: TensorData, truth: Truth, ids: np.ndarray, fraction: float, *, seed: int = 0
) -> tuple[TensorData, Truth]:
    """Replaces a share of these ids by copies of others among them; the length stays."""
    rng = np.random.default_rng(derive("duplicates", seed))
    chosen = _choose(ids, fraction, rng)
    originals = np.setdiff1d(ids, chosen)
    if len(chosen) and not len(originals):
        raise ConfigError("all examples would be duplicates, with nothing left to copy; lower --duplicates")
    sources = rng.choice(originals, size=len(chosen)) if len(chosen) else chosen
    x, y = data.x.clone(), data.y.clone()
    to, source = torch.as_tensor(chosen), torch.as_tensor(sources)
    x[to], y[to] = x[source], y[source]
    labels, mislabelled, white_noise, duplicate_of = (
        a.copy() for a in (truth.labels, truth.mislabelled, truth.white_noise, truth.duplicate_of)
    )
    for array in (labels, mislabelled, white_noise):
        array[chosen] = array[sources]
    duplicate_of[chosen] = sources
    return data.replace(x=x, y=y), Truth(labels, mislabelled, white_noise, duplicate_of)
