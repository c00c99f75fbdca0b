"""The errors that users catch.

Each is also the builtin that describes it, so ``except ValueError`` keeps working. Messages say what is
wrong, with the values, then the remedy.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path


class GoldiproxError(Exception):
    """The base of every error this package raises on purpose."""


class ConfigError(GoldiproxError, ValueError):
    """Settings that cannot work together, or not with this data."""


class UnknownName(GoldiproxError, LookupError):
    """A name that nothing is registered under."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = ""):
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {what} {name!r}.{guess} Known: {', '.join(known)}.{' ' + hint if hint else ''}")


class DataError(GoldiproxError, ValueError):
    """Data that cannot be trained on as it is."""


class ModelMismatch(GoldiproxError, ValueError):
    """A model or loss whose output does not fit the data."""


class FingerprintMismatch(GoldiproxError, ValueError):
    """A file that was made from other data than it is used with."""


class CorruptFile(GoldiproxError, ValueError):
    """A file that is truncated, damaged or not ours."""


class WrongKind(GoldiproxError, ValueError):
    """A sound file, given where another kind is expected."""


class UnsupportedFormat(GoldiproxError, ValueError):
    """A file of a format version that this release does not read."""


class OutputExists(GoldiproxError, FileExistsError):
    """An output that would overwrite something."""


class OutputNotWritable(GoldiproxError, OSError):
    """An output that cannot be written where it was asked for."""


class OutputInUse(GoldiproxError, BlockingIOError):
    """An output that another process is writing."""


class WriterGone(GoldiproxError, TimeoutError):
    """A file that is not complete, and that nobody writes any more."""


class RankLost(GoldiproxError, ConnectionError):
    """A process of the group that died or hangs, so that the others cannot go on.

    Attributes:
        ranks: Which, as far as that is known.
    """

    def __init__(self, missing: Mapping[int, str], size: int, cause: str):
        self.ranks = sorted(missing)
        named = "; ".join(f"rank {rank} of {size} {why}" for rank, why in sorted(missing.items()))
        super().__init__(
            f"{named or f'a collective of {size} ranks failed, and all of them live'} ({cause}). What was recorded so "
            f"far is kept; see the messages of that rank, and start all ranks again: with checkpoints they go on from "
            f"the last one (--resume)"
        )


class MissingFile(GoldiproxError, FileNotFoundError):
    """A file that is not where it was looked for."""


class MissingData(GoldiproxError, FileNotFoundError):
    """A data set that is not where it was looked for."""


class ReceiptMismatch(GoldiproxError, ValueError):
    """A training run that consumed other ids than the sequence has.

    Attributes:
        step: The first step that differs.
    """

    def __init__(self, message: str, *, step: int):
        super().__init__(message)
        self.step = step


class MissingIrreducible(GoldiproxError, ValueError):
    """Irreducible losses that are needed and not there."""


class Interrupted(GoldiproxError, InterruptedError):
    """A run that was asked to stop, and saved how far it is."""


class MissingExtra(GoldiproxError, ImportError):
    """An optional package that is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'goldiprox[{extra}]'")


class NonFiniteError(GoldiproxError, ArithmeticError):
    """A loss or score that is NaN or infinite.

    Attributes:
        step: The step at which it was noticed.
        ids: The examples concerned.
        checkpoint: The folder of the last good checkpoint, where there is one.
    """

    def __init__(
        self, message: str, *, step: int | None = None, ids: Iterable[int] = (), checkpoint: Path | None = None
    ):
        super().__init__(message)
        self.checkpoint = checkpoint
        self.step = step
        self.ids = list(ids)


def some(values: Iterable[object], limit: int = 5) -> str:
    """The first few of many values, for a message."""
    values = list(values)
    shown = ", ".join(str(v) for v in values[:limit])
    return shown if len(values) <= limit else f"{shown}, ... ({len(values):,} in all)"
