"""Irreducible losses: how predictable every training example is at best. The table and its file."""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from goldiprox.artifacts import Header, Table, TableWriter, id_type
from goldiprox.data import Batch, damage_in_words, fingerprint, iterate, require_fingerprint, unwrap
from goldiprox.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    FingerprintMismatch,
    MissingIrreducible,
    NonFiniteError,
    UnknownName,
    some,
)
from goldiprox.forward import check_losses
from goldiprox.randomness import derive, seeded
from goldiprox.watch import has_triton

KIND = "irreducible"
Combined = Literal["losses", "probabilities"]
# What a file says of its data set decides how much is allocated; a stranger's file may say anything.
MAX_UNSEEN, MAX_SPREAD = 2**20, 256


class Rivals(NamedTuple):
    """What a holdout model holds against every label; NaN where that is not known.

    Attributes:
        rival: The likeliest class other than the label.
        margin: By how much: the rival's log-probability minus the label's. Above 0, the model predicts the rival.
    """

    rival: Float[Tensor, " n"]
    margin: Float[Tensor, " n"]


def rivals(logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Rivals:
    """The likeliest class beside each label, and by how much it is likelier."""
    column = labels.long()[:, None]  # labels may be bytes
    own = logits.gather(1, column)
    best = logits.scatter(1, column, -torch.inf).max(1)
    return Rivals(best.indices.float(), best.values - own[:, 0])


def contradicted(table: "IrreducibleLosses", labels: np.ndarray) -> np.ndarray:
    """Whether each label of `table.ids` is contradicted with confidence.

    That is where the holdout model gives another class at least the probability that it gives this class, on average,
    to examples that bear it as their label (confident learning: Northcutt, Jiang & Chuang 2021). So a class that is
    hard to tell is not suspected for being so.

    Args:
        table: Irreducible losses of a classifier.
        labels: Of the base data set.
    """
    ids = table.ids
    rival, margin = held_against(table)
    confidence = np.exp(-table.values.numpy()[ids].astype(np.float64))
    classes, own = np.unique(labels[ids], return_inverse=True)
    usual = np.bincount(own, weights=confidence) / np.maximum(np.bincount(own), 1)
    place = np.searchsorted(classes, rival).clip(max=len(classes) - 1)
    known = classes[place] == rival  # of a class that no label names nothing is known
    return (margin > 0) & known & (np.exp(margin) * confidence >= usual[place])


def held_against(table: "IrreducibleLosses") -> tuple[np.ndarray, np.ndarray]:
    """For each label of `table.ids` its rival, and the log-odds in favour of it; raises where these are not known."""
    ids = table.ids
    unknown = np.full(len(ids), np.nan)
    rival, margin = (v.numpy()[ids].astype(np.float64) for v in table.rivals) if table.rivals else (unknown, unknown)
    if not (np.isfinite(margin) & (rival >= 0)).all():
        raise DataError(
            "the table of irreducible losses does not say what the holdout model predicts, so labels cannot be "
            "suspected; make it again with `goldiprox irreducible` (irreducible_losses)"
        )
    return rival, margin


class IrreducibleLosses:
    """One number per training example; NaN for every other example of the base data set.

    Args:
        values: One entry per example of the base data set.
        data: Fingerprint and length of that data set; None where it is not to be checked.
        config: How the losses were made.
        parents: Digests of what they were made from.
        rivals: What the holdout model holds against each label, where it is a classifier.
    """

    def __init__(
        self,
        values: Float[Tensor, " length"],
        *,
        data: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        parents: dict[str, str] | None = None,
        rivals: Rivals | None = None,
    ):
        infinite = values.isinf().nonzero().flatten().tolist()
        if infinite:
            raise NonFiniteError(
                f"the irreducible losses of ids {some(infinite)} are infinite: the holdout model diverged or its "
                f"output overflowed; train it again with a lower learning rate",
                ids=infinite,
            )
        # One more at the end, so that an id beyond the table finds NaN without being looked at.
        self._padded = torch.cat([values.detach().float().cpu(), torch.full((1,), torch.nan)])
        self.values = self._padded[:-1]
        self.data, self.config, self.parents = data, config or {}, parents or {}
        self.rivals = rivals
        self._on: dict[torch.device, Tensor] = {}

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The losses of these ids, on the device of the ids; NaN where unknown.

        Nothing is looked at, so a GPU need not be waited for: an id beyond the table has no known loss.
        """
        if ids.device not in self._on:
            self._on[ids.device] = self._padded.to(ids.device)
        table = self._on[ids.device]
        if ids.is_cuda and has_triton() and len(ids):
            from goldiprox.kernels import lookup

            return lookup(table, ids)
        return table[ids.clamp(max=len(self))]

    def __repr__(self) -> str:
        known = self.values[~self.values.isnan()]
        mean = f", {float(known.mean()):.3f} on average" * bool(len(known))
        return f"<IrreducibleLosses of {len(known):,} of {len(self):,} examples{mean}>"

    @property
    def ids(self) -> np.ndarray:
        """The examples whose irreducible loss is known: the training side."""
        return (~self.values.isnan()).nonzero().flatten().numpy()

    @property
    def is_complete(self) -> bool:
        """Whether the irreducible loss of every example is known."""
        return not len(self) or not self.values.amax().isnan()

    @property
    def digest(self) -> str:
        """A hash over ids and losses."""
        ids = self.ids
        digest = hashlib.sha256(ids.astype("<i8", copy=False).data)
        digest.update(self.values.numpy()[ids].astype("<f4", copy=False).data)
        return f"sha256:{digest.hexdigest()}"

    def require(self, ids: np.ndarray) -> None:
        """Raises unless the losses of all these ids are known."""
        if len(ids) and int(ids.max()) >= len(self):
            raise MissingIrreducible(
                f"the irreducible losses are for {len(self):,} examples, but ids up to {int(ids.max()):,} are to be "
                f"selected from; they are too short for this data: make them for it"
            )
        missing = ids[self.values.isnan().numpy()[ids]]
        if len(missing):
            raise MissingIrreducible(
                f"{len(missing):,} of {len(ids):,} examples have no irreducible loss (ids {some(missing.tolist())}); "
                f"the table was made for another training side (same --data-seed and --holdout?), or these are "
                f"holdout examples, which must not be selected"
            )

    @classmethod
    def from_callable(
        cls,
        loss: Callable[[Batch], Tensor],
        data: Any,
        *,
        ids: np.ndarray | None = None,
        batch_size: int = 2048,
        num_workers: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "IrreducibleLosses":
        """Losses from any function of a batch: a zero-shot model, an ensemble, a lookup.

        Args:
            loss: Gives one loss per example of a `Batch`.
            data: The base data set.
            ids: The examples to score, all by default. Where the function learnt from some of the data, the others:
                what it knows by heart has no irreducible loss, and whatever has one is selected from.
            batch_size: Examples per call.
            num_workers: Loading processes, for data that is not resident.
            device: Where batches go.
        """
        order = np.arange(len(unwrap(data))) if ids is None else np.asarray(ids)
        values = torch.full((len(unwrap(data)),), torch.nan)
        chunks = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        with torch.no_grad(), seeded(derive("scoring", 0), device):
            for batch in iterate(data, chunks, device=device, num_workers=num_workers):
                losses = loss(batch)
                check_losses(losses, batch.num_examples)
                fill(values, batch.ids, losses)
        return cls(values, data=describe(data), config={"from": getattr(loss, "__name__", type(loss).__name__)})

    @classmethod
    def combined(cls, tables: Sequence["IrreducibleLosses"], of: Combined = "losses") -> "IrreducibleLosses":
        """One table from those of several holdout models for the same training side.

        What they hold against a label is combined too: the mean of their margins, and the rival of the one with the
        largest.

        Args:
            tables: One of each model.
            of: ``losses``: their mean. ``probabilities``: the loss of the mean probability, which is low as soon as
                one model knows the label.
        """
        if of not in get_args(Combined):
            raise UnknownName("way to combine tables", of, get_args(Combined))
        if not tables:
            raise ConfigError("there are no tables to combine; give at least one")
        ids = tables[0].ids
        for table in tables[1:]:
            if len(table) != len(tables[0]) or not np.array_equal(table.ids, ids):
                raise ConfigError(
                    f"the tables are for different training sides ({len(ids):,} and {len(table.ids):,} examples): "
                    f"make them from the same data and split"
                )
        values = torch.stack([table.values for table in tables]).double()
        mean = values.mean(0) if of == "losses" else math.log(len(tables)) - (-values).logsumexp(0)
        known = torch.full((len(tables[0]),), torch.nan)
        known[torch.from_numpy(ids)] = mean.float()[torch.from_numpy(ids)]
        parents = tables[0].parents | {f"table {n}": table.digest for n, table in enumerate(tables)}
        described = {"combined": of, "tables": [table.config for table in tables]}
        against = [table.rivals for table in tables if table.rivals is not None]
        rivals = None
        if len(against) == len(tables):
            margins = torch.stack([r.margin for r in against])
            first = margins.argmax(0, keepdim=True)
            rivals = Rivals(torch.stack([r.rival for r in against]).gather(0, first)[0], margins.mean(0))
        return cls(known, data=tables[0].data, config=described, parents=parents, rivals=rivals)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Writes the table: columns ``id`` and ``irreducible``, and where they are known ``rival`` and ``margin``."""
        if self.data is None:
            raise DataError("these irreducible losses name no data set; make them with data=gp.describe(dataset)")
        ids, known = self.ids, {}
        if self.rivals is not None:
            known = {
                "rival": self.rivals.rival.numpy()[ids].astype(np.int64),
                "margin": self.rivals.margin.numpy()[ids],
            }
        types = {"rival": id_type(int(known["rival"].max(initial=0)) + 1), "margin": "float32"} if known else {}
        header = Header(
            kind=KIND,
            data=self.data,
            config=self.config,
            parents=self.parents,
            columns={"id": id_type(len(self)), "irreducible": "float32", **types},
        )
        writer = TableWriter(Path(path), header, force=force)
        try:
            writer.append({"id": ids, "irreducible": self.values.numpy()[ids], **known})
            writer.close()
        finally:
            writer.abandon()
        return writer.path

    @classmethod
    def open(cls, path: str | os.PathLike[str], data: Any = None) -> "IrreducibleLosses":
        """Reads a table, and checks that it was made from this data.

        Args:
            path: The file.
            data: The base data set; None skips the check.
        """
        table = Table.open(path, kind=KIND)
        header = table.header
        if data is not None:
            require_fingerprint(data, header.data, str(path), damage_in_words(header.config))
        length, columns = int(header.data["length"]), header.columns
        if columns.get("irreducible") != "float32":
            raise CorruptFile(f"{path}: the header names columns {', '.join(columns)}, but no irreducible losses")
        if data is None and length > max(MAX_UNSEEN, MAX_SPREAD * table.num_rows):
            raise CorruptFile(
                f"{path} says that its data set has {length:,} examples and lists {table.num_rows:,} of them; if that "
                f"is right, open it with data=, the data set itself"
            )
        ids = table.column("id").astype(np.int64)
        losses = table.column("irreducible")
        if len(ids) and int(ids.max()) >= length:
            raise FingerprintMismatch(
                f"{path} lists id {ids.max():,}, its data set has {length:,} examples; make it again"
            )
        if (ids[1:] <= ids[:-1]).any() or (len(ids) and ids[0] < 0):
            raise CorruptFile(f"{path}: the ids are not in ascending order; make it again")
        bad = ids[~np.isfinite(losses)]
        if len(bad):
            raise NonFiniteError(
                f"{path}: the losses of ids {some(bad.tolist())} are not finite; make it again", ids=bad
            )

        def spread(column: np.ndarray) -> Tensor:
            values = np.full(length, np.nan, np.float32)
            values[ids] = column
            return torch.from_numpy(values)

        known = None
        if columns.get("margin") == "float32" and "rival" in columns:
            known = Rivals(spread(table.column("rival")), spread(table.column("margin")))
        made = {"data": header.data, "config": header.config, "parents": header.parents}
        return cls(spread(losses), **made, rivals=known)


def describe(data: Any) -> dict[str, Any]:
    """What a file says of the data set it was made from."""
    return {"fingerprint": fingerprint(data), "length": len(unwrap(data))}


def fill(values: Tensor, ids: Tensor, losses: Tensor) -> None:
    """Puts losses in their places, or says which are not finite."""
    bad = ids.cpu()[~losses.isfinite().cpu()].tolist()
    if bad:
        raise NonFiniteError(
            f"the irreducible losses of ids {some(bad)} are not finite: the holdout model diverged (lower its learning "
            f"rate), or these inputs are not finite themselves",
            ids=bad,
        )
    values[ids.cpu()] = losses.detach().float().cpu()
