"""Rules: from scores to the rows that are kept."""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from goldiprox.acquisition import IDS_ONLY, ZERO_IS_LEARNT, Acquisition, predictability
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.randomness import Key, subkey, uniforms
from goldiprox.watch import has_triton

Rule: TypeAlias = Callable[..., Tensor]
"""(scores, ids, keep, key) -> the rows to keep. `key` seeds what is random, anew at every step.

A rule whose attribute `needs_step` is true also gets ``step=``, a number, or a tensor where the device counts; one
whose attribute `needs_times` is true gets ``times=``, how often each candidate was kept before. One with an attribute
`in_spreads` counts scores in what that function makes of them, their standard deviation say, and takes another value
for it as ``spread=``; one whose attribute `floors` is true takes scores below zero for zero. Its attribute `text` says
what it is, settings included, in files and in what must be the same for a run to be continued.
"""

Unit = Literal["std", "iqr", "own"]


def text_of(rule: Rule) -> str:
    """What a rule is, in words: its own `text`, else the name of the function."""
    return str(getattr(rule, "text", None) or getattr(rule, "__qualname__", type(rule).__qualname__))


def top_k() -> Rule:
    """Keeps the highest scores (the paper's rule). Ties break by id."""

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Key) -> Tensor:  # noqa: ARG001
        return highest(scores, ids, keep)

    rule.draws_nothing = rule.needs_only_best = True  # type: ignore[attr-defined]
    rule.text = "top_k"  # type: ignore[attr-defined]
    return rule


def gumbel_top_k(temperature: float = 1.0, *, final: float | None = None, steps: int | None = None) -> Rule:
    """Draws without replacement, with a probability that grows with the score.

    The keep highest of ``score / (temperature * std) + Gumbel noise`` (Kool et al. 2019). The noise is a hash of
    id and step, so it is the same in every process.

    Args:
        temperature: In units of the scores' standard deviation. 0 is `top_k`; large is uniform.
        final: The temperature at the last step, infinite for uniform. Its inverse changes linearly on the way.
        steps: How many there are, where the temperature changes.
    """
    if not 0 <= temperature < math.inf:
        raise ConfigError(f"a temperature of {temperature} is not zero or more; 0 is top_k, large is uniform")
    if final is not None:
        return _annealed(temperature, final, steps)

    def rule(scores: Tensor, ids: Tensor, keep: int, key: Key, *, spread: Tensor | None = None) -> Tensor:
        if temperature == 0:
            return highest(scores, ids, keep)
        return highest((_in_spreads(scores, spread, _deviation) / temperature + _gumbel(ids, key)).float(), ids, keep)

    rule.needs_only_best, rule.in_spreads = temperature == 0, _deviation  # type: ignore[attr-defined]
    rule.text = f"gumbel_top_k:{temperature:g}"  # type: ignore[attr-defined]
    return rule


def _annealed(temperature: float, final: float, steps: int | None) -> Rule:
    if temperature == 0 or not final > 0:
        raise ConfigError(
            f"a temperature cannot go from {temperature} to {final}: both must be positive, the last may be inf"
        )
    if not steps or steps < 1:
        raise ConfigError(
            "a temperature that changes needs the number of steps: gumbel_top_k(1.0, final=4.0, steps=...)"
        )

    def rule(
        scores: Tensor, ids: Tensor, keep: int, key: Key, *, step: int | Tensor, spread: Tensor | None = None
    ) -> Tensor:
        noise = _gumbel(ids, key)
        # On the device whoever counts, so that a CUDA graph and separate steps round alike.
        at = step if isinstance(step, Tensor) else torch.full((), step, device=ids.device)
        done = (at.to(noise.dtype) / steps).clamp(max=1)
        sharpness = 1 / temperature + (1 / final - 1 / temperature) * done
        return highest((sharpness * _in_spreads(scores, spread, _deviation) + noise).float(), ids, keep)

    rule.needs_step, rule.in_spreads = True, _deviation  # type: ignore[attr-defined]
    rule.text = f"gumbel_top_k:{temperature:g}..{final:g} over {steps} steps"  # type: ignore[attr-defined]
    return rule


def discounted_top_k(price: float = 1.0, *, unit: Unit = "std") -> Rule:
    """Keeps the highest scores after a discount for every time that an example was kept before.

    The keep highest of ``score / unit - price * times``. What is kept becomes less urgent, so in the long run all that
    is worth learning gets its turns, and what stays far ahead gets a few more. Nothing is random.

    Args:
        price: In units of how far apart scores lie. 0 is `top_k`; large takes turns, whatever the scores.
        unit: ``std``: their standard deviation. ``iqr``: the distance of their quartiles, which a few that are far
            ahead do not widen; so where most is learnt and little is not, the same price is a lower one. ``own``: that
            of the score itself, for one whose size means something, such as `goldiprox.predictability`.
    """
    if not 0 <= price < math.inf:
        raise ConfigError(f"a price of {price} is not zero or more; 0 is top_k, large takes turns")
    if unit not in get_args(Unit):
        raise UnknownName("unit of a price", unit, get_args(Unit))
    how = {"std": _deviation, "iqr": _middle_half, "own": _one}[unit]

    def rule(
        scores: Tensor,
        ids: Tensor,
        keep: int,
        key: Key,  # noqa: ARG001
        *,
        times: Tensor,
        spread: Tensor | None = None,
    ) -> Tensor:
        return highest((_in_spreads(scores, spread, how) - price * times).float(), ids, keep)

    rule.draws_nothing = rule.needs_times = True  # type: ignore[attr-defined]
    rule.in_spreads = how  # type: ignore[attr-defined]
    rule.text = f"discounted_top_k:{price:g}{'' if unit == 'std' else unit}"  # type: ignore[attr-defined]
    return rule


def mix(fraction: float = 0.5, rule: Rule | None = None) -> Rule:
    """Fills a share of the batch uniformly from what another rule left, the rest by that rule.

    Args:
        fraction: The share chosen uniformly.
        rule: Chooses the rest; `top_k` by default.
    """
    if not 0 <= fraction <= 1:
        raise ConfigError(f"a share of {fraction} is not between 0 and 1")
    inner = rule or top_k()

    def mixed(scores: Tensor, ids: Tensor, keep: int, key: Key, **more: int | Tensor) -> Tensor:
        num_uniform = round(fraction * keep)
        chosen = inner(scores, ids, keep - num_uniform, key, **more)
        draws = uniforms(ids, subkey(key, 1))
        draws = draws.index_fill(0, chosen, -1.0)
        return torch.cat([chosen, highest(draws, ids, num_uniform)])

    mixed.text = f"mix:{fraction:g}+{text_of(inner)}"  # type: ignore[attr-defined]
    return _as_needy(mixed, inner, "in_spreads", "floors")


def ranked(rule: Rule | None = None) -> Rule:
    """Lets another rule see ranks in place of scores: how far apart scores lie no longer counts, nor do outliers.

    Args:
        rule: Gets 0 for the lowest score of the candidates, 1 for the highest; `gumbel_top_k` by default, since for
            `top_k` nothing changes.
    """
    inner = rule or gumbel_top_k()

    def of_ranks(scores: Tensor, ids: Tensor, keep: int, key: Key, **more: int | Tensor) -> Tensor:
        places = highest(scores, ids, len(ids)).argsort()  # 0 for the highest score
        return inner(1 - places / max(1, len(ids) - 1), ids, keep, key, **more)

    of_ranks.text = f"ranked+{text_of(inner)}"  # type: ignore[attr-defined]
    return _as_needy(of_ranks, inner)


def floored(rule: Rule | None = None, *, beyond: float = 0.0) -> Rule:
    """Lets another rule take every score below zero for zero: nothing is left to learn there, however far below.

    For scores whose zero means so, such as the reducible loss. A proxy that has become better than its holdout model
    lies below the floor on hard examples, which says nothing of their worth; without this rule it then comes back to
    the easiest ones, which lie at zero. Until then what is far below is what is wrong or cannot be learnt, so wait for
    it (`beyond`), or leave wrong labels out first (`goldiprox.trusted_ids`): else they get their turns too.

    Args:
        rule: Gets these scores, and counts them in the spread of all; `gumbel_top_k` by default.
        beyond: Scores stay as they are while no more than this share of the candidates is below zero.
    """
    if not 0 <= beyond < 1:
        raise ConfigError(f"floored beyond a share of {beyond:g} of the candidates: give 0 or more, and less than 1")
    inner = rule or gumbel_top_k()

    def above(scores: Tensor, ids: Tensor, keep: int, key: Key, **more: int | Tensor) -> Tensor:
        if how := getattr(inner, "in_spreads", None):
            more = {"spread": how(scores), **more}
        overtaken = (scores < 0).sum() > beyond * len(scores)
        return inner(torch.where(overtaken, scores.clamp(min=0), scores), ids, keep, key, **more)

    above.text = f"floored{f':{beyond:g}' if beyond else ''}+{text_of(inner)}"  # type: ignore[attr-defined]
    above = _as_needy(above, inner, "in_spreads")
    above.floors = True  # type: ignore[attr-defined]
    return above


def check_rule(rule: Rule) -> Rule:
    """The rule, unless it is a name, or one of the functions that make rules."""
    if isinstance(rule, str) or rule in (top_k, gumbel_top_k, discounted_top_k, mix, ranked, floored):
        got = f"the text {rule!r}" if isinstance(rule, str) else f"gp.{rule.__name__} itself"
        raise ConfigError(
            f"a rule is a function of (scores, ids, keep, key), such as gp.top_k() gives; got {got}. Call gp.top_k and "
            f"its like with their settings; texts are for the command line (--rule)"
        )
    return rule


def _as_needy(rule: Rule, inner: Rule, *more: str) -> Rule:
    """The same rule, which is given what the one inside it needs; and whatever `more` holds for both alike."""
    for name in ("needs_step", "needs_times", *more):
        setattr(rule, name, getattr(inner, name, False))
    return rule


def _in_spreads(scores: Tensor, spread: Tensor | None, how: Callable[[Tensor], Tensor]) -> Tensor:
    """Scores in units of how far apart they lie, by `how` where no other is given; zeros where all are alike."""
    spread = how(scores) if spread is None else spread
    return torch.where(spread > 0, scores.to(spread.dtype) / spread, torch.zeros_like(scores, dtype=spread.dtype))


def _deviation(scores: Tensor) -> Tensor:
    """The standard deviation."""
    return scores.to(_wide(scores)).std(correction=0)


def _middle_half(scores: Tensor) -> Tensor:
    """The distance of the quartiles; where half of the scores are alike, the standard deviation."""
    deviation = _deviation(scores)
    ordered, quarter = scores.to(deviation.dtype).sort().values, (len(scores) - 1) // 4
    width = ordered[len(scores) - 1 - quarter] - ordered[quarter]
    return torch.where(width > 0, width, deviation)


def _one(scores: Tensor) -> Tensor:
    """One: scores stay as they are."""
    return torch.ones((), dtype=_wide(scores), device=scores.device)


def _wide(scores: Tensor) -> torch.dtype:
    """What scores are counted in."""
    return torch.float32 if scores.device.type == "mps" else torch.float64


def _gumbel(ids: Tensor, key: Key) -> Tensor:
    return -(-uniforms(ids, key).log()).log()


def highest(scores: Float[Tensor, " n"], ids: Int[Tensor, " n"], keep: int) -> Int[Tensor, " k"]:
    """The rows of the highest scores, highest first, ties by id."""
    if ids.is_cuda and has_triton() and len(ids) <= 4096:
        from goldiprox import kernels

        return kernels.highest(scores.float(), ids, keep)
    if ids.device.type != "cpu" or (len(ids) and int(ids.max()) >> 32):
        by_id = ids.argsort()
        return by_id[scores[by_id].float().argsort(descending=True, stable=True)[:keep]]
    # One selection over keys of 32 bits of score and 32 bits of id.
    bits = (scores.float() + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats order backwards as integers
    return ((ascending.long() << 32) | (0xFFFFFFFF - (ids & 0xFFFFFFFF))).topk(keep).indices


PRICE = 1.5
"""Of `discounted_top_k`, in distances of the scores' quartiles."""
TURNS = f"discounted_top_k:{PRICE}iqr"
"""The default rule without its floor."""
OVERTAKEN = 0.67
"""The share of candidates below zero from which on a proxy counts as better than its holdout model."""
RULE = f"floored:{OVERTAKEN}+{TURNS}"
"""What transfers to another model, by the experiments in docs/lab-notes.md."""
IN_ORDER = "discounted_top_k:1/run"
"""The same for `predictability`: from 0 to 1, so that the surest come as often as the others and once a pass more."""
NAMES = ("top_k", "discounted_top_k", "gumbel_top_k", "mix", "ranked", "floored")
OVER_ANOTHER = ("mix", "ranked", "floored")


def usual_rule(text: str, acquisition: Acquisition) -> str:
    """The rule; if it is the default one, what of it fits an acquisition.

    For `predictability`, a price in its own unit. For chance and what else looks at ids alone, `top_k`: a baseline
    takes no turns. Without a floor for scores whose zero means nothing.
    """
    if text != RULE or acquisition in ZERO_IS_LEARNT:
        return text
    if acquisition is predictability:
        return IN_ORDER
    return "top_k" if acquisition in IDS_ONLY else TURNS


def make_rule(
    text: str, *, temperature: float = 1.0, fraction: float = 0.5, steps: int = 1, passes: float = 1.0
) -> Rule:
    """The rule that a text on the command line describes.

    ``top_k``, ``discounted_top_k:1``, ``discounted_top_k:0.2/pass`` (times the number of passes),
    ``discounted_top_k:1.5iqr`` (in distances of quartiles), ``discounted_top_k:1/run`` (1 in the score's own unit for
    as many times as the run has passes; ``0.2own`` for one), ``gumbel_top_k:0.5``,
    ``gumbel_top_k:0.2/pass``, ``gumbel_top_k:0.5..4`` (the temperature changes over the run; ``inf`` is uniform),
    ``mix:0.25``; and one over another: ``mix:0.25+gumbel_top_k:1``, ``ranked+gumbel_top_k:1``, ``floored+top_k``,
    ``floored:0.5+top_k`` (where more than half of the candidates are below zero).

    Args:
        text: Names with their settings.
        temperature: Of ``gumbel_top_k`` where the text names none.
        fraction: Of ``mix`` where the text names none.
        steps: Over which a temperature changes.
        passes: How many times over training takes as many examples as the training side has.
    """
    first, _, rest = text.partition("+")
    name, _, setting = first.partition(":")
    if name not in NAMES:
        raise UnknownName("selection rule", name, NAMES)
    settings = {"temperature": temperature, "fraction": fraction, "steps": steps, "passes": passes}
    inner = make_rule(rest, **settings) if rest else None
    if inner and name not in OVER_ANOTHER:
        raise ConfigError(
            f"rule {text!r}: {name} stands alone or last; only {', '.join(OVER_ANOTHER)} go over another rule"
        )
    if setting and name in ("top_k", "ranked"):
        raise ConfigError(f"rule {text!r}: {name} has no setting")
    if name == "top_k":
        return top_k()
    if name == "ranked":
        return ranked(inner)
    if name == "floored":
        return floored(inner, beyond=_number(setting, text) if setting else 0.0)
    if name == "mix":
        return mix(_number(setting, text) if setting else fraction, inner)
    if name == "discounted_top_k":
        if not setting:
            return discounted_top_k()
        price, unit = _price(setting, text, passes)
        try:
            return discounted_top_k(price, unit=unit)
        except ConfigError as e:
            raise ConfigError(f"rule {text!r}: {e}") from None
    begin, _, end = setting.partition("..")
    opening, final = (_number(part, text, passes) if part else None for part in (begin, end))
    return gumbel_top_k(temperature if opening is None else opening, final=final, steps=steps)


def _price(text: str, rule: str, passes: float) -> tuple[float, Unit]:
    if text.endswith("/run"):
        return _number(text.removesuffix("/run"), rule) / passes, "own"
    unit: Unit = "iqr" if text.endswith("iqr") else "own" if text.endswith("own") else "std"
    return _number(text if unit == "std" else text.removesuffix(unit), rule, passes), unit


def _number(text: str, rule: str, passes: float | None = None) -> float:
    """A number; where `passes` are given, also one for each of them."""
    number = text.removesuffix("/pass") if passes is not None else text
    try:
        return float(number) * (1.0 if passes is None or number == text else passes)
    except ValueError:
        raise ConfigError(
            f"rule {rule!r}: {text!r} is not a number; write gumbel_top_k:0.5, discounted_top_k:0.2/pass, "
            f"discounted_top_k:1.5iqr, discounted_top_k:1/run or gumbel_top_k:0.5..4"
        ) from None
