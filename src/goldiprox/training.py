"""Replay a sequence with any model; record and train at once."""

import hashlib
import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.checkpoint import Checkpoints
from goldiprox.choices import Behind, Selecting
from goldiprox.data import iterate
from goldiprox.engine import EngineName, Given, loading_processes, on_device
from goldiprox.errors import ConfigError, FingerprintMismatch
from goldiprox.forward import Forward, PerExampleLoss, call, check_model, cross_entropy, device_of
from goldiprox.loop import Evaluate, History, OnRecord, OnStep, Task, check_evaluation, fit, fit_together, rate_of
from goldiprox.optim import TrainingConfig
from goldiprox.randomness import derive, seeded
from goldiprox.recording import Job, Recording
from goldiprox.sequence import Digest, Sequence
from goldiprox.tracking import Tracker, curves


def replay(
    model: nn.Module,
    data: Any,
    sequence: Sequence,
    *,
    config: TrainingConfig = TrainingConfig(),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    seed: int = 0,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
    track: Tracker | None = None,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Trains a model on a recorded sequence, step by step, in order.

    A proxy replaying its own sequence, from the same initial weights with the same seed and settings, ends with
    bit-identical weights. With `checkpoints`, the same call goes on from the last one.

    Args:
        model: Trained in place, on the device it is on.
        data: The data set the sequence was opened with.
        sequence: What to train on.
        config: Learning rate, weight decay, schedule.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example.
        forward: How the model is called.
        seed: Of dropout.
        num_workers: Loading processes. None: slice resident data, load other data in this process.
        engine: How steps run, see `goldiprox.loop.fit`.
        evaluate: Gives figures for the model as it is.
        eval_every: Steps between evaluations.
        on_record: Gets every evaluation; of a continued run, those before it first.
        on_step: Called after every step, or every few.
        track: Gets every evaluation under the name ``train``, see `goldiprox.tracking`.
        checkpoints: Where to save how far it is.
    """
    task = _replaying(
        model,
        data,
        sequence,
        config=config,
        optimizer=optimizer,
        loss=loss,
        forward=forward,
        seed=seed,
        num_workers=loading_processes(engine, num_workers),
        evaluate=evaluate,
        eval_every=eval_every,
        on_record=on_record,
        on_step=on_step,
        track=track,
        checkpoints=checkpoints,
    )
    return fit(task, engine=engine)


def replay_many(
    models: Seq[nn.Module],
    data: Any,
    sequences: Seq[Sequence],
    *,
    engine: EngineName = "auto",
    each: Seq[Mapping[str, Any]] | None = None,
    **settings: Any,
) -> list[History]:
    """Trains several models, each on a sequence of its own: on a GPU all at once, else one after another.

    Every model ends as `replay` alone would have left it.

    Args:
        models: Trained in place.
        data: The data set the sequences were opened with.
        sequences: One for every model, all with the same number of steps.
        engine: How steps run, see `goldiprox.loop.fit`.
        each: For every model, what differs from `settings`: ``[{"seed": 0}, {"seed": 1}]``.
        settings: As for `replay`.
    """
    each = [{}] * len(models) if each is None else each
    if not len(models) == len(sequences) == len(each):
        raise ConfigError(
            f"{len(models)} models, {len(sequences)} sequences and {len(each)} sets of settings in `each`; give one of "
            f"each for every model"
        )
    if len({len(sequence) for sequence in sequences}) > 1:
        lengths = ", ".join(f"{len(sequence):,}" for sequence in sequences)
        raise ConfigError(f"the sequences have {lengths} steps; models that train at once need the same number")
    settings["num_workers"] = loading_processes(engine, settings.get("num_workers"))
    tasks = [
        _replaying(model, data, sequence, **{**settings, **own})
        for model, sequence, own in zip(models, sequences, each, strict=True)
    ]
    return fit_together(tasks, engine=engine)


def _replaying(
    model: nn.Module,
    data: Any,
    sequence: Sequence,
    *,
    config: TrainingConfig = TrainingConfig(),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    seed: int = 0,
    num_workers: int | None = None,
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
    track: Tracker | None = None,
    checkpoints: Checkpoints | None = None,
) -> Task:
    """A replay, checked and ready to be trained."""
    if checkpoints:  # before anything waits: the first steps of a shuffled sequence may be long in coming
        sequence.on_wait(checkpoints.check)
    if not len(sequence):
        raise ConfigError("the sequence has no steps")
    sequence.require(data)
    device = device_of(model)
    with seeded(derive("example", seed), device):
        example = next(iterate(data, [sequence[0][:2]], device=device))
        check_model(model, example, loss=loss, forward=forward, data=data)
        check_evaluation(evaluate, model)
    consumed = _Consumed(sequence)
    saved = None
    if checkpoints:
        described = json.dumps({**asdict(sequence.header), "versions": None}, sort_keys=True)
        origin = hashlib.sha256(described.encode()).hexdigest()
        settings = {"sequence": origin, "steps": len(sequence), "training": asdict(config), "seed": seed}
        saved = checkpoints.start(settings, device)
        if saved and saved.state["extra"]["digest"] != consumed(saved.step):
            raise FingerprintMismatch(
                f"the sequence differs in its first {saved.step:,} steps from the one that this run began with; use "
                f"that one, or add --force (force=True) to start over"
            )
    start = saved.step if saved else 0
    # By step, not by iterating: a sequence that was peeked at or stopped in the middle starts at its beginning.
    batch_ids = (sequence[step] for step in range(start, len(sequence)))
    batches = iterate(data, batch_ids, device=device, num_workers=num_workers, seed=seed, first=start)
    resident = on_device(data, device, num_workers)

    def rows(first: int, count: int) -> Tensor:
        taken = [sequence[step] for step in range(first, min(first + count, len(sequence)))]
        return torch.from_numpy(np.stack(taken)) if taken else torch.empty(0, sequence.batch_size)

    return Task(
        model,
        batches if resident is None else Given(resident, rows, batches),
        steps=len(sequence),
        config=config,
        optimizer=optimizer,
        loss=loss,
        forward=forward,
        seed=seed,
        evaluate=evaluate,
        eval_every=eval_every,
        rate=rate_of(model, example, loss=loss, forward=forward),
        on_record=curves(track, "train", on_record),
        on_step=on_step,
        checkpoints=checkpoints,
        saved=saved,
        state=lambda step: {"digest": consumed(step)},
    )


class _Consumed:
    """The digest of the first steps of a sequence, also of one that still grows."""

    def __init__(self, sequence: Sequence):
        self._sequence, self._digest, self._steps = sequence, Digest(), 0

    def __call__(self, steps: int) -> str:
        """Of so many steps; never fewer than before."""
        for step in range(self._steps, steps):
            self._digest.update(self._sequence[step])
        self._steps = steps
        return str(self._digest)


def record_and_train(
    proxy: nn.Module,
    model: nn.Module,
    data: Any,
    *,
    engine: EngineName = "auto",
    training: TrainingConfig | None = None,
    training_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    evaluate_model: Evaluate | None = None,
    on_model_record: OnRecord | None = None,
    **settings: Any,
) -> tuple[Recording, History]:
    """Records with a proxy while a second model trains on what it chooses, in one process.

    On a GPU both run side by side, the model a little behind; elsewhere one after the other. The model ends as a
    replay of the finished sequence would leave it.

    Args:
        proxy: Selects and trains.
        model: Trains on the same examples.
        data: The base data set.
        engine: How steps run, see `goldiprox.loop.fit`.
        training: Learning rate, weight decay and schedule of the model; by default the proxy's.
        training_optimizer: Makes another optimiser for the model than `training` does.
        evaluate_model: Gives figures for the model as it is, every `eval_every` steps.
        on_model_record: Gets every one of them.
        settings: As for `record`, without `checkpoints`.
    """
    if settings.get("checkpoints"):
        raise ConfigError("recording and training at once cannot be continued; use gp.record, then gp.replay")
    if proxy is None:
        raise ConfigError("there is no proxy (None) for a model to train beside; use gp.record, then gp.replay")
    settings["num_workers"] = loading_processes(engine, settings.get("num_workers"))
    job = Job(proxy, data, **settings)
    check_model(model, job.example, loss=job.loss, forward=job.forward, data=data)
    check_evaluation(evaluate_model, model)
    first = job.task()
    recording, batches = None, None
    if isinstance(first.batches, Selecting) and engine in ("auto", "graph") and device_of(model) == job.device:
        batches = Behind(first.batches, job.num_steps)
    else:
        with job.writing():
            recording = job.result(fit(first, engine=engine))
        given = torch.as_tensor(recording.ids).view(-1, job.keep)
        batches = iterate(data, given, device=device_of(model), num_workers=job.num_workers, seed=job.seed)
    task = Task(
        model,
        batches,
        steps=job.num_steps,
        config=training or job.config,
        optimizer=training_optimizer,
        loss=job.loss,
        forward=job.forward,
        seed=job.seed,
        evaluate=evaluate_model,
        eval_every=job.eval_every,
        rate=rate_of(model, job.few, loss=job.loss, forward=job.forward),
        on_record=curves(settings.get("track"), "train", on_model_record),
    )
    if recording is not None:
        return recording, fit(task, engine=engine)
    with job.writing():
        history, model_history = fit_together([first, task], engine=engine)
    return job.result(history), model_history
