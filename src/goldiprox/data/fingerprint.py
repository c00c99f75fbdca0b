"""A name for the content of a data set: equal content, equal fingerprint, on every machine."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from goldiprox.data.batch import Batch, iterate, unwrap
from goldiprox.errors import DataError, FingerprintMismatch
from goldiprox.randomness import seeded

NUM_SAMPLED = 1_000
DAMAGE = ("noise", "holdout_noise", "white_noise", "duplicates")
"""What a data configuration may ask for."""
_LABEL_ATTRIBUTES = ("targets", "labels", "y")
_LABEL_COLUMNS = ("labels", "label", "targets", "target", "y")


def fingerprint(data: Any) -> str:
    """A hash over length, labels and items.

    In order of preference: the data set's own ``fingerprint()``; that of the data set it is a copy of; every byte of
    what is in memory (`TensorData`, `TensorDataset`); else the length, all labels where an attribute (or a column)
    gives them, and a fixed sample of `NUM_SAMPLED` items. Of a Hugging Face `datasets.Dataset` the rows as they are
    stored, whatever format or transform is set on it.
    """
    data = unformatted(unwrap(data))
    if callable(own := getattr(data, "fingerprint", None)):
        return str(own())
    if original := getattr(data, "copy_of", ""):
        return str(original)
    digest = hashlib.sha256(b"goldiprox fingerprint 1\n")
    digest.update(len(data).to_bytes(8, "little"))
    if callable(parts := getattr(data, "hashed_parts", None)):
        _update(digest, parts())
    elif isinstance(data, torch.utils.data.TensorDataset):
        _update(digest, list(data.tensors))
    else:
        labels = labels_of(data)
        _update(digest, None if labels is None else torch.as_tensor(labels))
        positions = sampled_ids(len(data))
        with seeded(0):  # so that what a data set draws while it is read leaves no trace
            _check_repeatable(data, positions)
            for id in positions:
                _update(digest, data[id])
    return f"sha256:{digest.hexdigest()}"


def has_columns(data: Any) -> bool:
    """Whether this is a Hugging Face `datasets.Dataset`, or something as good."""
    return hasattr(data, "column_names") and callable(getattr(data, "with_format", None)) and hasattr(data, "__len__")


def unformatted(data: Any) -> Any:
    """A `datasets.Dataset` that gives its rows as they are stored; other data sets as they are."""
    return data.with_format(None) if has_columns(data) else data


def sampled_ids(length: int) -> list[int]:
    """Up to `NUM_SAMPLED` ids, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, length - 1, min(length, NUM_SAMPLED))})


def labels_of(data: Any) -> np.ndarray | None:
    """One class label per example where the data set has them at hand; else None."""
    data = unwrap(data)
    if isinstance(data, torch.utils.data.Subset):
        base = labels_of(data.dataset)
        return None if base is None else base[np.asarray(data.indices)]
    if isinstance(data, torch.utils.data.TensorDataset):
        candidates = [data.tensors[-1]]
    elif has_columns(data):
        columns = [name for name in _LABEL_COLUMNS if name in data.column_names]
        candidates = [data.with_format("numpy", columns=[name])[:][name] for name in columns]
    else:
        candidates = [getattr(data, name, None) for name in _LABEL_ATTRIBUTES]
    for values in candidates:
        if isinstance(values, torch.Tensor):
            values = values.cpu().numpy()
        if isinstance(values, np.ndarray | list | tuple) and len(values) == len(data):
            values = np.asarray(values)
            if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
                return values.astype(np.int64)
    return None


def require_labels_of_items(data: Any, ids: np.ndarray) -> None:
    """Raises where the labels that a data set has at hand are not those that its items give: a few are compared."""
    labels = labels_of(data)
    if labels is None or hasattr(unwrap(data), "gather"):  # there they are the same by making
        return
    few = torch.as_tensor(ids)[:: max(1, len(ids) // 20)]
    batch = next(iterate(data, [few], device=torch.device("cpu")))
    if same_labels(labels, batch):
        return
    wrong = int(np.flatnonzero(labels[few.numpy()] != batch.y.numpy())[0])
    raise DataError(
        f"example {few[wrong]} has label {labels[few[wrong]]} at hand (in targets, labels or y), and gives "
        f"{batch.y[wrong]} as an item: a target_transform or split=, perhaps. Set the one at hand to what items give"
    )


def same_labels(labels: np.ndarray, batch: Batch) -> bool:
    """Whether these labels, of a whole data set, are those of a batch; targets that are no classes are not compared."""
    y = batch.y
    if not isinstance(y, torch.Tensor) or y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        return True
    return bool((torch.as_tensor(labels)[batch.ids.cpu()] == y.cpu()).all())


def damage_in_words(config: Mapping[str, Any]) -> str:
    """What the header of a file says was done to its data on purpose, and how to have the same; else nothing."""
    settings = config.get("data")
    settings = settings if isinstance(settings, Mapping) else {}  # a stranger's file may say anything
    done = ", ".join(f"{name} {settings[name]}" for name in DAMAGE if settings.get(name))
    if not done:
        return ""
    same = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value)
    return (
        f"Its data was damaged on purpose ({done.replace('_', ' ')}): prepare(DataConfig({same})).data of "
        f"goldiprox.prepare is the same. "
    )


def require_fingerprint(data: Any, expected: Mapping[str, Any], what: str, hint: str = "") -> None:
    """Raises unless the data is what a file was made from."""
    length = len(unwrap(data))
    if length != expected["length"]:
        raise FingerprintMismatch(
            f"{what} was made from a data set of {expected['length']:,} examples; this one has {length:,}. {hint}"
            f"Use the data set it was made from, or make the file again"
        )
    actual = fingerprint(data)
    if actual != expected["fingerprint"]:
        raise FingerprintMismatch(
            f"{what} was made from other data: fingerprint {short(expected['fingerprint'])} there, {short(actual)} "
            f"here (same length, other labels, order or inputs). {hint}"
            f"Use the data set it was made from, or make the file again"
        )


def short(digest: str) -> str:
    """The first 12 digits, for people."""
    return digest.removeprefix("sha256:")[:12]


def _check_repeatable(data: Any, positions: list[int]) -> None:
    for id in positions[:3]:
        first, second = (hashlib.sha256() for _ in range(2))
        _update(first, data[id])
        _update(second, data[id])
        if first.digest() != second.digest():
            raise DataError(
                f"example {id} differs from one read to the next (random augmentation?), so the data cannot be "
                f"told by its content; give the data set a method fingerprint() that returns a string of your own"
            )


def _update(digest: Any, value: Any) -> None:
    """Feeds a value of any common structure into a hash, unambiguously."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:  # which NumPy does not have
            digest.update(b"bfloat16\n")
            value = value.view(torch.uint8)
        value = value.numpy()
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):  # a PIL image
        value = [value.mode, list(value.size), value.tobytes()]
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            value = value.tolist()
        else:
            array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
            digest.update(f"array {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
            return
    if isinstance(value, Mapping):
        digest.update(f"dict {len(value)}\n".encode())
        for key in sorted(value, key=repr):
            _update(digest, [key, value[key]])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}\n".encode())
        for item in value:
            _update(digest, item)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)}\n".encode())
        digest.update(value)
    elif isinstance(value, str | int | float | bool) or value is None:
        text = repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)}\n".encode())
        digest.update(text)
    else:
        raise DataError(
            f"cannot take the fingerprint of a {type(value).__name__}; give the data set a method fingerprint() "
            f"that returns a string of your own"
        )
