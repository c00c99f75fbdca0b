"""Labels that are probably wrong: those that a model which never saw them holds most against."""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from goldiprox.acquisition import needs_table
from goldiprox.data import TensorData, labels_of, require_labels_of_items, unwrap
from goldiprox.data.corruption import Truth
from goldiprox.errors import ConfigError, DataError
from goldiprox.irreducible import IrreducibleLosses, held_against

ODDS = 10.0
"""How much likelier than its label a model must hold another class for a label to be suspected."""
DOUBT = 2.0
"""By how much a smaller share may explain contradictions less well, in log-likelihood: about two standard errors."""
AS_MANY = 3
"""How many labels are left out at most, in multiples of those that are wrong by `wrong_share`."""


@dataclass(frozen=True)
class Suspects:
    """Every example with an irreducible loss, the likeliest wrong label first; one entry each.

    Attributes:
        ids: Which.
        labels: As given.
        score: What they are ordered by: the log-odds against the label, ``log p(rival) - log p(label)``, where the
            table holds it (above 0, the model predicts the rival); else the irreducible loss.
        irreducible: ``- log p(label)``.
        predicted: The class that the holdout model predicts; -1 where that is not known.
        probability: That it gives to it; NaN where that is not known.
    """

    ids: np.ndarray
    labels: np.ndarray
    score: np.ndarray
    irreducible: np.ndarray
    predicted: np.ndarray
    probability: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


def find_suspects(table: IrreducibleLosses, data: Any) -> Suspects:
    """Orders the labels of a data set by how much the holdout model holds against them. Equal ones stay in order of id.

    Args:
        table: Its irreducible losses, made for this data.
        data: The base data set; its labels must be at hand, in an attribute `targets` say.
    """
    all_labels = labels_of(data)
    if all_labels is None or _is_unlabelled(data):
        raise DataError(
            f"{_name(data)} has no class labels to suspect; if its items have, give it an attribute `targets` with the "
            f"class of every example"
        )
    require_labels_of_items(data, table.ids)
    ids, num_classes = table.ids, getattr(unwrap(data), "num_classes", None) or math.inf
    labels, losses = all_labels[ids], table.values.numpy()[ids].astype(np.float64)
    score, predicted, probability = losses, np.full(len(ids), -1), np.full(len(ids), np.nan)
    if table.rivals is not None:
        rival, margin = (v.numpy()[ids].astype(np.float64) for v in table.rivals)
        known = np.isfinite(margin) & (rival >= 0) & (rival < num_classes)
        if known.all():
            score = margin
        predicted = np.where(known, np.where(margin > 0, np.nan_to_num(rival), labels), -1).astype(np.int64)
        probability = np.where(known, np.exp(np.minimum(np.maximum(margin, 0) - losses, 0)), np.nan)
    order = np.argsort(-score, kind="stable")
    return Suspects(*(a[order] for a in (ids, labels, score, losses, predicted, probability)))


def suspected(table: IrreducibleLosses, data: Any, *, odds: float | None = None) -> np.ndarray:
    """Whether each label of `table.ids` is suspected: the holdout model holds another class to be far likelier.

    Args:
        table: Irreducible losses of a classifier, made for this data; best by `HoldoutConfig.robust`, since a model
            that learnt wrong labels is never surer than their share allows.
        data: The base data set.
        odds: How many times likelier; by default `fair_odds`.
    """
    if _is_unlabelled(data):
        raise DataError(f"{_name(data)} has no class labels to suspect")
    if len(unwrap(data)) != len(table):
        raise DataError(
            f"{_name(data)} has {len(unwrap(data)):,} examples, the table of irreducible losses is of {len(table):,}; "
            f"give the data set that it was made for"
        )
    return held_against(table)[1] > math.log(fair_odds(table) if odds is None else check_odds(odds))


def _is_unlabelled(data: Any) -> bool:
    return isinstance(unwrap(data), TensorData) and unwrap(data).num_classes is None


def _name(data: Any) -> str:
    return str(getattr(unwrap(data), "name", type(unwrap(data)).__name__))


def wrong_share(table: IrreducibleLosses) -> float:
    """About how many labels are wrong, as a share, by a model that never saw them: no true labels are needed.

    What is merely hard a model contradicts the more seldom the surer it is of its prediction; wrong labels it
    contradicts however sure it is. So with a confidence of c (the log-odds of the predicted class against all others) a
    label is contradicted with probability ``share + (1 - share) * sigmoid(-(a + b * c))``, where a and b make up for a
    model that is too sure of itself, or not sure enough. Of all shares that explain the contradictions about as well as
    the likeliest, the smallest is given: where a model is never sure, there is no telling. Nor are wrong labels counted
    that it has learnt to expect.

    Args:
        table: Irreducible losses of a classifier.
    """
    _, margin = held_against(table)
    if not len(margin):
        return 0.0
    # The probability of what is predicted; from 1e-7 below certainty on all are alike.
    log_p = np.minimum(np.maximum(margin, 0) - table.values.numpy()[table.ids].astype(np.float64), -1e-7)
    confidence = log_p - np.log(-np.expm1(log_p))
    lowest, width = -8.0, 0.125
    place = ((confidence.clip(lowest) - lowest) / width).astype(np.int64)
    middle = lowest + (np.arange(place.max() + 1) + 0.5) * width
    against, count = np.bincount(place[margin > 0], minlength=len(middle)), np.bincount(place)

    highest, high = _likeliest(middle, against, count, 0.0, 0.5)
    low = 0.0
    if _likeliest(middle, against, count, low, low)[0] >= highest - DOUBT:
        return low
    for _ in range(10):
        half = (low + high) / 2
        as_good = _likeliest(middle, against, count, half, half)[0] >= highest - DOUBT
        low, high = (low, half) if as_good else (half, high)
    return high


def _likeliest(
    confidence: np.ndarray, against: np.ndarray, count: np.ndarray, low: float, high: float
) -> tuple[float, float]:
    """The highest log-likelihood with a share of this range, and that share: on a grid, then on ever smaller ones.

    Args:
        confidence: Of every group of labels.
        against: How many of a group are contradicted.
        count: How many it has.
        low: The smallest share.
        high: The largest.
    """
    whole = np.array([[low, high], [-3.0, 3.0], [math.log(0.1), math.log(4)]])
    ranges, best, found = whole, np.zeros(3), -math.inf
    for _ in range(12):
        axes = [np.linspace(start, end, 13 if end > start else 1) for start, end in ranges]
        share, a, log_b = axes
        hard = 1 / (1 + np.exp((a[:, None, None] + np.exp(log_b)[:, None] * confidence).clip(-500, 500)))
        contradicted = (share[:, None, None, None] * (1 - hard) + hard).clip(1e-12, 1 - 1e-12)
        values = np.log(contradicted) @ against + np.log1p(-contradicted) @ (count - against)
        if values.max() > found:
            found, at = float(values.max()), np.unravel_index(values.argmax(), values.shape)
            best = np.array([axis[n] for axis, n in zip(axes, at, strict=True)])
        reach = (ranges[:, 1] - ranges[:, 0]) / 4
        ranges = np.stack([best - reach, best + reach], 1).clip(whole[:, :1], whole[:, 1:])
    return found, float(best[0])


def fair_odds(table: IrreducibleLosses) -> float:
    """The odds at which labels are left out where none are given: `ODDS`, or more, so that not more than three times as
    many go as are wrong by `wrong_share`.

    A weak model contradicts right labels at 10 to 1 too, and what is hard for it is worth learning. But to catch most
    of the wrong ones, more than these must go: the order is not perfect, and the share rather too small. Infinite where
    no label looks wrong.

    Args:
        table: Irreducible losses of a classifier.
    """
    margin = np.sort(held_against(table)[1])[::-1]
    most = min(int(AS_MANY * wrong_share(table) * len(margin)), len(margin) - 1)
    return max(ODDS, math.exp(min(margin[most], 500.0))) if most > 0 else math.inf


def usual_odds(given: float | None, acquisition: str, table: IrreducibleLosses | None) -> float:
    """The odds, 0 for none; where none are given, the fair ones if scores go by a table that says what is predicted."""
    if given is not None:
        return given
    if table is None or table.rivals is None or not needs_table(acquisition):
        return 0.0
    odds = fair_odds(table)
    return odds if math.isfinite(odds) else 0.0


def check_odds(odds: float) -> float:
    if isinstance(odds, bool) or not 1 <= odds < math.inf:
        raise ConfigError(f"odds of {odds:g} to 1 suspect labels that the model itself predicts; give 1 or more")
    return odds


def trusted_ids(
    table: IrreducibleLosses, data: Any, ids: np.ndarray | None = None, *, odds: float | None = None
) -> np.ndarray:
    """What to select from where suspected labels are left out: ``record(..., ids=trusted_ids(table, data))``.

    Args:
        table: Irreducible losses of a classifier, made for this data.
        data: The base data set.
        ids: Of which; by default all that have an irreducible loss.
        odds: As for `suspected`.
    """
    left_out = table.ids[suspected(table, data, odds=odds)]
    return np.setdiff1d(table.ids if ids is None else ids, left_out, assume_unique=True)


def rows(found: Suspects, data: TensorData, *, count: int, truth: Truth | None = None) -> Iterator[dict[str, Any]]:
    """The first `count` as records with names of classes; where the truth is known, with the true label."""
    for n in range(min(count, len(found))):
        id, label, predicted = (int(a[n]) for a in (found.ids, found.labels, found.predicted))
        row: dict[str, Any] = {"rank": n + 1, "id": id, "label": label}
        row["predicted"] = predicted if predicted >= 0 else None
        row["probability"] = None if np.isnan(found.probability[n]) else round(float(found.probability[n]), 6)
        row["irreducible"] = round(float(found.irreducible[n]), 6)
        row["score"] = round(float(found.score[n]), 6)
        if data.class_names:
            row["label_name"] = data.class_names[label]
            row["predicted_name"] = data.class_names[predicted] if predicted >= 0 else None
        if data.files:
            row["file"] = data.files[id]
        if truth is not None:
            row |= {"true_label": int(truth.labels[id]), "wrong": bool(truth.mislabelled[id])}
        yield row


def as_csv(records: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else ["rank", "id", "label"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def judge(wrong: np.ndarray, count: int) -> dict[str, Any]:
    """How good an order is, where the truth is known.

    Args:
        wrong: Whether each label is, the first suspect first.
        count: How many are listed.
    """
    listed = wrong[:count]
    total = int(wrong.sum())
    return {
        "wrong": total,
        "of": len(wrong),
        "average_precision": average_precision(wrong),
        "listed": len(listed),
        "precision": float(listed.mean()) if len(listed) else None,
        "recall": float(listed.sum() / total) if total else None,
    }


def average_precision(wrong: np.ndarray) -> float | None:
    """The mean, over all wrong ones, of the share of wrong ones from the top down to each."""
    places = np.flatnonzero(wrong)
    return float((np.arange(1, len(places) + 1) / (places + 1)).mean()) if len(places) else None
