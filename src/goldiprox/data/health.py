"""What is worth knowing of a data set before training on it: balance, copies, images that show nothing."""

import hashlib
from typing import Any

import numpy as np

from goldiprox.data.fingerprint import fingerprint
from goldiprox.data.resident import TensorData
from goldiprox.data.sources import Divided, Source

NUM_NAMED = 10
"""How many examples of each finding are named."""


def examine(source: Source) -> dict[str, Any]:
    """Counts, shapes, classes, exact copies, constant inputs, and the fingerprint.

    Copies are found by a hash of each input: ``within_train`` counts examples that repeat an earlier one,
    ``contradicting`` those of them whose label differs from that one's, ``test_in_train`` test examples whose input
    is also trained on.
    """
    train, test = source.train, source.test
    keys, test_keys = _keys(train), _keys(test)
    first: dict[bytes, int] = {}
    pairs = [(id, first[key]) for id, key in enumerate(keys) if first.setdefault(key, id) != id]
    seen = [(id, first[key]) for id, key in enumerate(test_keys) if key in first]
    contradicting = [(id, of) for id, of in pairs if train.y[id] != train.y[of]] if train.num_classes else []
    constant = np.flatnonzero(_is_constant(train)).tolist()
    return {
        "train": len(train),
        "holdout": len(source.holdout) if isinstance(source, Divided) else 0,
        "test": len(test),
        "input_shape": list(train.input_shape),
        "dtype": str(train.x.dtype).removeprefix("torch."),
        "classes": train.num_classes,
        "labels": _labels(train, test),
        "copies": {
            "within_train": len(pairs),
            "contradicting": len(contradicting),
            "test_in_train": len(seen),
            "named": {
                "within_train": pairs[:NUM_NAMED],
                "contradicting": contradicting[:NUM_NAMED],
                "test_in_train": seen[:NUM_NAMED],
            },
        },
        "constant": {"train": len(constant), "test": int(_is_constant(test).sum()), "named": constant[:NUM_NAMED]},
        "fingerprint": fingerprint(train),
    }


def _labels(train: TensorData, test: TensorData) -> dict[str, Any] | None:
    if train.num_classes is None:
        return None
    counts = [data.y.bincount(minlength=train.num_classes).tolist() for data in (train, test)]
    names = train.class_names or tuple(map(str, range(train.num_classes)))
    return {
        "lowest": int(train.y.min()),
        "highest": int(train.y.max()),
        "by_class": [
            {"label": label, "name": name, "train": a, "test": b}
            for label, (name, a, b) in enumerate(zip(names, *counts, strict=True))
        ],
    }


def _keys(data: TensorData) -> list[bytes]:
    rows = np.ascontiguousarray(data.x.cpu().numpy()).reshape(len(data), -1)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def _is_constant(data: TensorData) -> np.ndarray:
    rows = data.x.cpu().flatten(1)
    return (rows == rows[:, :1]).all(1).numpy() if rows.shape[1] > 1 else np.zeros(len(rows), bool)
