"""Settings of a whole run; the library's defaults are here."""

from dataclasses import asdict, dataclass, field
from typing import Any

from goldiprox.engine import EngineName
from goldiprox.enough import AUTO
from goldiprox.holdout import HoldoutConfig
from goldiprox.optim import TrainingConfig
from goldiprox.prepare import DataConfig
from goldiprox.rules import RULE
from goldiprox.watch import Device, pick_device


@dataclass(frozen=True)
class RunConfig:
    """Settings of `run`. The defaults are those that transfer to another model; `paper` gives the paper's.

    Attributes:
        data: Which data, and what is done to it.
        proxy: The small model that selects.
        model: The large model that trains on the sequence.
        il_model: The holdout model: a name, or as `goldiprox.enough.attempts` says.
        num_folds: Cross-fit over this many folds instead of using the holdout.
        acquisition: Scores candidates; or ``auto``: two sequences are recorded, and one of them is taken, see
            `goldiprox.rehearsal`.
        rule: Turns scores into a choice.
        temperature: Of the rule ``gumbel_top_k``.
        mix_fraction: Of the rule ``mix``.
        trusted: Select only from labels that the holdout model does not contradict at these odds, see
            `goldiprox.suspects.suspected`; 0 selects from everything. None: at its default, where scores go by
            irreducible losses that say what the holdout model predicts.
        window: Steps among which what was chosen is shuffled when it is trained on, see
            `goldiprox.Sequence.shuffled`; 1 leaves the order as recorded, 0 takes the default there.
        ahead: Choose what the next step trains on before this step's update, see `goldiprox.recording.record`.
        candidates: Scored per step.
        keep: Trained on per step.
        epochs: Passes over the candidates.
        seed: Of weights, candidates, selection.
        dropout: Of built-in models.
        num_threads: Of the CPU; by default one for small models, see `Stages.threads`.
        engine: How steps run, see `goldiprox.engine.EngineName`.
        holdout: How the holdout model is trained.
        training: How proxy and model are optimised.
    """

    data: DataConfig = field(default_factory=lambda: DataConfig(noise=0.1))
    proxy: str = "mlp128"
    model: str = "mlp512"
    il_model: str = AUTO
    num_folds: int = 0
    acquisition: str = AUTO
    rule: str = RULE
    temperature: float = 1.0
    mix_fraction: float = 0.5
    trusted: float | None = None
    window: int = 0
    ahead: bool = False
    candidates: int = 320
    keep: int = 32
    epochs: int = 20
    seed: int = 0
    dropout: float = 0.0
    device: Device = "auto"
    num_workers: int | None = None
    num_threads: int | None = None
    engine: EngineName = "auto"
    holdout: HoldoutConfig = field(default_factory=HoldoutConfig.robust)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @classmethod
    def paper(cls, **changes: Any) -> "RunConfig":
        """The paper's settings: the highest scores of all, in the proxy's order; one holdout model, early stopped."""
        own = {
            "acquisition": "reducible_loss",
            "rule": "top_k",
            "trusted": 0.0,
            "window": 1,
            "holdout": HoldoutConfig(),
        }
        return cls(**(own | changes))

    def settings(self) -> dict[str, Any]:
        """What must be the same for a run to be continued: everything but where the data lies."""
        return {**asdict(self), "data": self.data.recorded(), "device": pick_device(self.device).type}
