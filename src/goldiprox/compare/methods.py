"""A method: how batches are selected. On the command line a text, in a script a value."""

from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from goldiprox.acquisition import ACQUISITIONS
from goldiprox.enough import AUTO
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import generalised_cross_entropy
from goldiprox.holdout import Augment, Checkpoint, HoldoutConfig, Mixup
from goldiprox.irreducible import Combined
from goldiprox.optim import Schedule
from goldiprox.rehearsal import OR_BOTH
from goldiprox.resolve import resolve
from goldiprox.rules import make_rule
from goldiprox.suspects import check_odds


@dataclass(frozen=True)
class Method:
    """One way of selecting. None takes what the comparison says for all.

    Attributes:
        rule: Turns scores into a choice, as in `goldiprox.rules.make_rule`. ``default`` takes what the comparison says,
            ``paper`` is the paper's way in all that is not given.
        acquisition: Scores candidates, or ``auto``, as in `goldiprox.settings.RunConfig`.
        proxy: Selects.
        proxy_schedule: Of the proxy's learning rate; else that of the model's.
        candidates: Scored per step.
        il_model: The holdout model, as in `goldiprox.settings.RunConfig`.
        checkpoint: Of the holdout model.
        holdout_epochs: At most, for the holdout model.
        il_schedule: Of the holdout model's learning rate. ``cosine`` decays it over all of `holdout_epochs`.
        mixup: Whether the holdout model learns from blends: off, on or auto.
        augment: What is done to images while the holdout model learns, or ``auto``, as in `goldiprox.HoldoutConfig`.
        folds: Cross-fit over this many, instead of learning from the holdout alone.
        il_models: How many holdout models, from other seeds; their losses are combined.
        combine: How: ``losses`` or ``probabilities``.
        cleaned: 1 leaves holdout labels out that a model of the training side contradicts with confidence; 0 does not.
        calibrated: 1 makes the logits of the holdout model as sharp as its inner part wants them, as is always
            done where it may learn from blends; 0 does not.
        trusted: The odds at which labels are left out that the holdout model contradicts; 0 for none.
        window: Steps among which what was chosen is shuffled when the large model trains on it, see
            `goldiprox.Sequence.shuffled`; 0 for the default there, 1 for the order of the proxy.
        robust: The q of the generalised cross-entropy that holdout models learn by; 0 is cross-entropy.
        name: For tables; by default the text of what differs from the defaults.
    """

    rule: str = "default"
    acquisition: str | None = None
    proxy: str | None = None
    proxy_schedule: Schedule | None = None
    candidates: int | None = None
    il_model: str | None = None
    checkpoint: Checkpoint | None = None
    holdout_epochs: int | None = None
    il_schedule: Schedule | None = None
    mixup: Mixup | None = None
    augment: Augment | None = None
    folds: int | None = None
    il_models: int = 1
    combine: Combined = "losses"
    cleaned: int | None = None
    calibrated: int | None = None
    trusted: float | None = None
    window: int | None = None
    robust: float = 0.0
    name: str = ""

    def __post_init__(self):
        if not self.name:
            object.__setattr__(self, "name", self.text)
        if self.rule == "paper":
            for name, value in PAPER.items():
                if name == "rule" or getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        if self.rule != "default":
            make_rule(self.rule)
        if self.acquisition not in (None, AUTO):
            resolve("acquisition", self.acquisition, ACQUISITIONS, OR_BOTH)
        for name, known in (
            ("proxy_schedule", Schedule),
            ("il_schedule", Schedule),
            ("checkpoint", Checkpoint),
            ("combine", Combined),
            ("mixup", Mixup),
            ("augment", Augment),
        ):
            value = getattr(self, name)
            if value is not None and value not in get_args(known):
                raise UnknownName(name, value, get_args(known))
        for name in ("candidates", "holdout_epochs", "il_models"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: at least 1 is needed")
        if self.folds not in (None, 0) and self.folds < 2:
            raise ConfigError(f"folds={self.folds}: give 2 or more, or 0 to learn from the holdout")
        if (self.window or 0) < 0:
            raise ConfigError(f"window={self.window}: a window is a number of steps, or 0 for the default")
        for name in ("cleaned", "calibrated"):
            if getattr(self, name) not in (None, 0, 1):
                raise ConfigError(f"{name}={getattr(self, name)}: give 0 or 1")
        if self.trusted:
            check_odds(self.trusted)
        if self.robust:
            generalised_cross_entropy(self.robust)

    @property
    def text(self) -> str:
        """What `parse` makes this method from."""
        default = {f.name: f.default for f in fields(Method)}
        rest = {k: v for k, v in asdict(self).items() if k not in ("rule", "name") and v != default[k]}
        return ",".join([self.rule, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items())])


PAPER: dict[str, Any] = {
    "rule": "top_k",
    "acquisition": "reducible_loss",
    "checkpoint": "inner",
    "holdout_epochs": HoldoutConfig().max_epochs,
    "il_schedule": "constant",
    "mixup": "off",
    "augment": "off",
    "cleaned": 0,
    "trusted": 0.0,
    "window": 1,
}
"""What ``paper`` stands for."""


def parse(text: str) -> Method:
    """A method from the command line: a rule, ``default`` or ``paper``, and what else differs.

    ``default,window=1``, ``gumbel_top_k:1``, ``paper,il_models=3``.
    """
    rule, *rest = text.split(",")
    kinds = {f.name: str(f.type) for f in fields(Method) if f.name != "rule"}
    values: dict[str, Any] = {}
    for setting in rest:
        name, equals, value = setting.strip().partition("=")
        if name not in kinds:
            raise UnknownName("setting of a method", name, kinds)
        if not equals or not value:
            raise ConfigError(f"method {text!r}: {setting!r} has no value; write {name}=...")
        kind = float if "float" in kinds[name] else int if "int" in kinds[name] else str
        try:
            values[name] = kind(value)
        except ValueError:
            raise ConfigError(f"method {text!r}: {name}={value} is not a number") from None
    return Method(rule=rule.strip(), **values)
