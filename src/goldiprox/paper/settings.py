"""How large the paper's experiments are, per data set."""

from dataclasses import dataclass, replace
from typing import Any

from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import Precision

DIGITS = ("mnist5k", "mnist", "qmnist")
IMAGES = ("cifar10", "cinic10")


@dataclass(frozen=True)
class Plan:
    """The settings that a data set's figures share. The defaults are those of digits, as in the paper.

    Attributes:
        data: The data set.
        data_dir: Where data sets lie.
        seeds: One run each.
        quick: Small enough for continuous integration.
        model: Selects and trains in figures 1 to 3; the proxy's holdout model has its kind too.
        proxy: Selects for another model in figure 4.
        large: Trains on the proxy's sequence in figure 4.
        candidates: Scored per step.
        keep: Trained on per step.
        noisy_epochs: Passes over the candidates in figures 1 and 2.
        white_epochs: Likewise in figure 3.
        transfer_epochs: Likewise in figure 4.
        evaluations: Per run.
        holdout_epochs: At most, for a holdout model.
        compared: Candidates whose reducible losses are compared between proxy and large model.
        precision: On a GPU; elsewhere fp32.
    """

    data: str
    data_dir: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    quick: bool = False
    model: str = "mlp512"
    proxy: str = "mlp128"
    large: str = "mlp512"
    candidates: int = 320
    keep: int = 32
    noisy_epochs: int = 20
    white_epochs: int = 15
    transfer_epochs: int = 20
    evaluations: int = 40
    holdout_epochs: int = 100
    compared: int = 1_600
    precision: Precision = "fp32"

    @property
    def notes(self) -> list[str]:
        """What every output must say about the data."""
        known = {
            "mnist": "QMNIST's extra 50,000 images are not used: MNIST's 60,000 training images are shuffled and "
            "divided 30,000 / 30,000 into training and holdout side.",
            "mnist5k": "5,000 MNIST images stand in for QMNIST: 2,000 for training, 2,000 held out, 1,000 for testing.",
        }
        notes = [known[self.data]] if self.data in known else []
        return (
            [*notes, "Quick: a few steps, to see that it runs; the claims need the full size."] if self.quick else notes
        )


def make_plan(data: str, data_dir: str | None, num_seeds: int, *, quick: bool) -> Plan:
    """The plan for a data set; `quick` cuts every length."""
    if data not in DIGITS + IMAGES:
        raise UnknownName("data set of the paper", data, DIGITS + IMAGES, "Other data: `goldiprox run`.")
    if num_seeds < 1:
        raise ConfigError(f"--seeds {num_seeds}: at least 1 is needed")
    seeds = tuple(range(num_seeds))
    images: dict[str, Any] = {
        "model": "small_cnn",
        "proxy": "small_cnn",
        "large": "resnet18",
        "precision": "bf16",
        "evaluations": 30,
    }
    longer = {"noisy_epochs": 60, "transfer_epochs": 50, "white_epochs": 10}
    wider = {"candidates": 640, "keep": 64}  # as in the conference version
    own: dict[str, Any] = {"cifar10": images | longer, "cinic10": images | wider}.get(data, {})
    short: dict[str, Any] = {
        "candidates": 160,
        "keep": 16,
        "noisy_epochs": 2,
        "white_epochs": 1,
        "transfer_epochs": 2,
        "evaluations": 4,
        "holdout_epochs": 3,
        "compared": 160,
    }
    changes = own | (short if quick else {})
    return replace(Plan(data, data_dir, seeds, quick), **changes)
