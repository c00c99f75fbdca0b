"""A holdout model: trained on what is held out, it says how predictable every example is at best."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.best_epoch import BestEpoch
from goldiprox.checkpoint import Checkpoints
from goldiprox.data import Batch, fingerprint, iterate, labels_of, unwrap
from goldiprox.engine import EngineName, Given, loading_processes, on_device
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.forward import (
    Augmentation,
    Forward,
    PerExampleLoss,
    augmented,
    call,
    check_model,
    cross_entropy,
    device_of,
    in_precision,
    is_image,
)
from goldiprox.ledger import Cost, Rate
from goldiprox.loop import OnStep, Task, evaluate_on, fit, rate_of
from goldiprox.optim import TrainingConfig
from goldiprox.randomness import ORDER, derive, seeded
from goldiprox.selection import CandidateSampler
from goldiprox.split import check_ids, digest_ids, holdout_split

Checkpoint = Literal["inner", "last", "training_side"]
Mixup = Literal["off", "on", "auto"]
Augment = Literal["off", "shift", "mirror", "shift+mirror", "auto"]


@dataclass(frozen=True)
class HoldoutConfig:
    """How the holdout model is trained.

    Attributes:
        checkpoint: ``inner``: the epoch with the lowest loss on an inner part of the holdout. ``last``: the
            converged model. ``training_side``: the epoch with the lowest loss on the training side (with noise
            there, that stops far too early; kept because published code does so).
        inner: The share of the holdout that only chooses the checkpoint.
        max_epochs: An upper bound; at a constant learning rate training ends earlier, after `patience` epochs without
            a new best.
        patience: Epochs to wait for a better checkpoint.
        min_steps: With few examples as many more epochs as this takes.
        batch_size: Examples per step.
        training: The optimiser.
        mixup: ``on``: learn from blends of two examples (`goldiprox.optim.TrainingConfig.losses`), which leaves less
            room to learn wrong labels by heart; inputs must be numbers that can be blended, not tokens. ``auto``: try
            both, and keep the blends unless they miss more of the inner part, by more than two standard errors (where
            the loss is not cross-entropy: unless their loss is higher). In both cases logits are made as sharp as with
            `calibrated`.
        cleaned: Models of the other side first judge what is to be learnt from, and labels that they contradict with
            confidence are left out of it (`goldiprox.irreducible.contradicted`). Twice the price; for holdouts with
            wrong labels.
        calibrated: Logits are made as sharp as the inner part of the holdout wants them
            (`goldiprox.assessment.sharpness`), so that odds mean what they say; where the loss is cross-entropy.
        augment: What is done to images while it learns (`goldiprox.forward.augmented`): a small model that is given
            more epochs then comes near a large one, at a fraction of its price. ``auto``: nothing; but where one of
            several is to be taken, one that learns moved images is tried too (`goldiprox.enough`).
    """

    checkpoint: Checkpoint = "inner"
    inner: float = 0.1
    max_epochs: int = 100
    patience: int = 5
    min_steps: int = 0
    batch_size: int = 128
    training: TrainingConfig = field(default_factory=TrainingConfig)
    mixup: Mixup = "off"
    cleaned: bool = False
    calibrated: bool = False
    augment: Augment = "off"

    def __post_init__(self):
        if self.checkpoint not in get_args(Checkpoint):
            raise UnknownName("checkpoint rule", self.checkpoint, get_args(Checkpoint))
        if self.mixup not in get_args(Mixup):
            raise UnknownName("mixup", self.mixup, get_args(Mixup))
        if self.augment not in get_args(Augment):
            raise UnknownName("augmentation", self.augment, get_args(Augment))
        if min(self.max_epochs, self.patience, self.batch_size) < 1:
            raise ConfigError(
                f"max_epochs={self.max_epochs}, patience={self.patience}, batch_size={self.batch_size}: "
                f"all must be at least 1"
            )
        if not 0 < self.inner < 1:
            raise ConfigError(f"an inner share of {self.inner} of the holdout is not between 0 and 1")

    @property
    def moves(self) -> Augmentation:
        """What is done to images while this very model learns."""
        return "off" if self.augment == "auto" else self.augment

    @classmethod
    def robust(cls, training: TrainingConfig = TrainingConfig(), **changes: Any) -> "HoldoutConfig":
        """What withstands wrong labels, also in the holdout: ten epochs (or 300 steps) at a decaying rate, from blends
        where these do better, on labels that a model of the other side does not contradict. It trains three models.

        Args:
            training: The optimiser; its schedule becomes ``cosine``.
            changes: What else is to differ; where `max_epochs` does, it is not raised for few examples.
        """
        settings: dict[str, Any] = {"mixup": "auto", "augment": "auto", "cleaned": True}
        if changes.get("augment", "auto") not in ("auto", "off"):  # moved images take the place of blends
            settings |= {"mixup": "off", "calibrated": True}
        if "max_epochs" not in changes:
            settings |= {"max_epochs": 10, "min_steps": 300}
        return cls(training=replace(training, schedule="cosine"), **settings | changes)


class Judged(NamedTuple):
    """How often models of one side contradict the labels of the other.

    Attributes:
        missed: The share of the other side's labels that they do not predict.
        own: That of their own side's, of examples that they did not learn from.
        error: The standard error of the difference.
    """

    missed: float
    own: float
    error: float


@dataclass
class HoldoutReport:
    """How the training of a holdout model went.

    Attributes:
        epoch: The one whose weights were taken.
        epochs: How many there were.
        figures: Of the inner part, after that epoch.
        cost: The bill.
        rate: FLOPs per example.
        inner: The examples that chose the epoch.
        mixup: Whether it learnt from blends, ``on`` or ``off``.
        sharpness: What its logits were multiplied with for the table.
        underfit: Of its like without blends (`goldiprox.assessment.underfit`); None where it was not one of two, nor
            learnt moved images.
        blends_worse: Whether blends missed more of the inner part; None where they were not tried.
        augment: What was done to images while it learnt.
        mirrored: What its like without blends knows of mirrored images of the inner part, divided by what it knows of
            others (`goldiprox.assessment.mirrored`); None where that was not to be known (``augment="auto"``).
        judged: What its judges, models of the other side, miss of the labels that it was to learn from, and of those of
            their own side; None where none were asked.
    """

    epoch: int
    epochs: int
    figures: dict[str, float]
    cost: Cost
    rate: Rate | None
    inner: np.ndarray = field(repr=False)
    mixup: Mixup = "off"
    sharpness: float = 1.0
    underfit: float | None = None
    blends_worse: bool | None = None
    augment: Augmentation = "off"
    mirrored: float | None = None
    judged: Judged | None = None


def train_holdout_model(
    il_model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    config: HoldoutConfig = HoldoutConfig(),
    training_side: np.ndarray | None = None,
    loss: PerExampleLoss = cross_entropy,
    training_loss: PerExampleLoss | None = None,
    forward: Forward = call,
    seed: int = 0,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    on_step: OnStep | None = None,
    checkpoints: Checkpoints | None = None,
) -> HoldoutReport:
    """Trains a model on the holdout until it stops improving, and leaves it at its chosen checkpoint.

    Args:
        il_model: Trained in place.
        data: The base data set.
        ids: The holdout side.
        config: Checkpoint rule, patience, optimiser.
        training_side: Only for the checkpoint rule ``training_side``.
        loss: One loss per example.
        training_loss: What it learns by, where that is not `loss`: `goldiprox.forward.generalised_cross_entropy(0.7)`
            where the holdout has wrong labels too, say. Its checkpoint is chosen by `loss` all the same.
        forward: How the model is called.
        seed: Of shuffling, inner split and dropout.
        num_workers: Loading processes, for data that is not resident.
        engine: How steps run, see `goldiprox.loop.fit`.
        on_step: Called after every step, or every few.
        checkpoints: Where to save how far it is; the same call goes on from there.
    """
    ids = check_ids(ids, what="the holdout", length=len(unwrap(data)))
    labels = labels_of(data)
    inner = holdout_split(len(ids), None if labels is None else labels[ids], holdout=config.inner, seed=seed)
    learn, judge = torch.as_tensor(ids[inner.train]), ids[inner.holdout]
    if config.checkpoint == "training_side":
        if training_side is None:
            raise ConfigError("checkpoint='training_side' needs the ids of the training side")
        learn, judge = torch.as_tensor(ids), training_side
    if not len(judge):
        raise ConfigError(f"a holdout of {len(ids)} examples is too small to choose a checkpoint on; enlarge it")
    device, num_workers = device_of(il_model), loading_processes(engine, num_workers)
    batch_size = min(config.batch_size, len(learn))
    with seeded(derive("example", seed), device):
        example = next(iterate(data, [learn[:2]], device=device))
    check_model(il_model, example, loss=loss, forward=forward, data=data, role="holdout model")
    if config.mixup == "auto":
        raise ConfigError("one model learns from blends or it does not: give mixup='on' or 'off'")
    if config.mixup == "on" and not can_blend(example):
        kind = getattr(example.x, "dtype", type(example.x).__name__)
        raise ConfigError(f"inputs of type {kind} cannot be blended; train the holdout model with mixup='off'")
    if config.moves != "off" and not is_image(example.x):
        kind = tuple(example.x.shape[1:]) if isinstance(example.x, Tensor) else type(example.x).__name__
        raise ConfigError(
            f"augment={config.augment!r} is for images, tensors of (channels, height, width); an example's inputs are "
            f"{kind}. Leave it out, or augment in a forward= of your own, where model.training is set"
        )
    lowered = in_precision(forward, config.training.precision)
    patience = config.patience if config.training.schedule == "constant" else None  # one that decays is best at its end
    evaluate = evaluate_on(data, ids=judge, loss=loss, forward=lowered, num_workers=num_workers)
    best = BestEpoch(evaluate, patience=patience, last=config.checkpoint == "last")
    saved = None
    if checkpoints:
        settings = {"holdout": asdict(config), "seed": seed, "order": ORDER, "split": digest_ids(ids, judge)}
        saved = checkpoints.start({**settings, "fingerprint": fingerprint(data)}, device)
        if saved:
            best.load_state_dict(saved.state["extra"])
    start = saved.step if saved else 0
    per_epoch = len(learn) // batch_size
    epochs = max(config.max_epochs, -(-config.min_steps // per_epoch))
    order = CandidateSampler(learn, batch_size, seed=derive("holdout epochs", seed), steps=epochs * per_epoch)

    def batches() -> Iterator[Batch]:
        # An epoch at a time: loading processes read ahead, and must not decide on convergence too early.
        for epoch in range(start // per_epoch, epochs):
            if epoch * per_epoch >= start and best.converged:
                return
            first = max(start, epoch * per_epoch)
            rest = itertools.islice(order.batches(first), (epoch + 1) * per_epoch - first)
            yield from iterate(data, rest, device=device, num_workers=num_workers, seed=seed, first=first)

    def rows(first: int, count: int) -> Tensor:
        if first % per_epoch == 0 and best.converged:
            return torch.empty(0, batch_size)
        return order.window(first, count, device)

    resident = on_device(data, device, num_workers)
    rate = rate_of(il_model, example, loss=loss, forward=forward)
    task = Task(
        il_model,
        batches() if resident is None else Given(resident, rows, batches()),
        steps=epochs * per_epoch,
        config=config.training,
        loss=training_loss or loss,
        forward=augmented(forward, config.moves),
        seed=derive("holdout model", seed),
        mixed=config.mixup == "on",
        evaluate=best,
        eval_every=per_epoch,
        rate=rate,
        on_step=on_step,
        checkpoints=checkpoints,
        saved=saved,
        state=lambda step: best.state_dict(),  # noqa: ARG005
    )
    history = fit(task, engine=engine)
    epoch, figures = best.restore(il_model)
    # Choosing the checkpoint is part of making it, not a courtesy to the user: it belongs on the bill.
    history.cost.add(rate, scored=len(judge) * best.epoch)
    history.cost.seconds += history.cost.evaluation_seconds
    history.cost.evaluation_seconds = 0.0
    return HoldoutReport(epoch, best.epoch, figures, history.cost, rate, judge, config.mixup, augment=config.moves)


def can_blend(example: Batch) -> bool:
    """Whether inputs are numbers that can be blended, not tokens."""
    return isinstance(example.x, Tensor) and example.x.is_floating_point()
