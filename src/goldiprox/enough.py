"""Is a small holdout model enough, or is one of the large model's kind worth its price?"""

from goldiprox.irreducible import IrreducibleLosses
from goldiprox.suspects import wrong_share

AUTO, PROXY, MODEL = "auto", "proxy", "model"
"""What a holdout model may be instead of a name: decided here, of the proxy's kind, of the large model's kind."""
WRONG = 0.01
"""The share of labels that look wrong from which on a larger model is asked: telling wrong from hard is what it does
better, by two to three points of what comes of it (docs/lab-notes.md).
"""
UNDERFIT = 0.8
"""From which on a model counts as too small for its data: what it cannot learn it would call unlearnable, and a larger
one never see."""


def kinds(il_model: str, proxy: str, model: str, judged: bool = True) -> list[str]:
    """The holdout models to try, in this order: the next one if the one before falls short.

    Args:
        il_model: A name; or ``auto`` (of the proxy's kind, then of the model's), ``proxy``, ``model``.
        proxy: Its name.
        model: That of the large model.
        judged: Whether it is made in the way that tells what it falls short of (`HoldoutConfig.cleaned`), and anything
            is chosen by its losses; else ``auto`` is ``proxy``.
    """
    if il_model == AUTO:
        return list(dict.fromkeys([proxy, model] if judged else [proxy]))
    return [{PROXY: proxy, MODEL: model}.get(il_model, il_model)]


def shortcoming(table: IrreducibleLosses, underfit: float | None) -> str | None:
    """What a larger holdout model would do better, in words; None where this one is enough.

    Args:
        table: What it made.
        underfit: Of its training, as `goldiprox.holdout.HoldoutReport` has it.
    """
    share = wrong_share(table) if table.rivals is not None else 0.0
    small = underfit is not None and underfit > UNDERFIT
    if share > WRONG:
        return f"{100 * share:.0f}% of the labels look wrong" + (", or it is too small for this data" if small else "")
    return "it misses nearly as much of what it learnt as of the rest: it is too small for this data" if small else None
