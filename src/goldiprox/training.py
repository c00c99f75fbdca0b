"""Record a sequence with a proxy; replay it with any model."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.acquisition import IDS_ONLY, Acquisition, ScoringMode, reducible_loss, uniform
from goldiprox.artifacts import check_output
from goldiprox.data import Batch, iterate, require_fingerprint, unwrap
from goldiprox.errors import ConfigError
from goldiprox.irreducible import IrreducibleLosses, describe
from goldiprox.loop import (
    Evaluate,
    Forward,
    History,
    OnRecord,
    OnStep,
    PerExampleLoss,
    TrainingConfig,
    call,
    check_model,
    cross_entropy,
    device_of,
    fit,
    rate_of,
)
from goldiprox.randomness import derive, seeded
from goldiprox.selection import CandidateSampler, Rule, Selector
from goldiprox.sequence import Sequence, SequenceWriter, check_columns, digest_of
from goldiprox.split import check_ids


@dataclass
class Recording:
    """What `record` leaves: the sequence's file and digest, every id in order, and how training went."""

    path: Path | None
    digest: str
    steps: int
    ids: np.ndarray
    history: History


def record(
    proxy: nn.Module,
    data: Any,
    *,
    irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None,
    acquisition: Acquisition = reducible_loss,
    rule: Rule | None = None,
    candidates: int = 320,
    keep: int = 32,
    steps: int | None = None,
    epochs: int | None = None,
    ids: np.ndarray | None = None,
    out: str | os.PathLike[str] | None = None,
    columns: tuple[str, ...] = (),
    force: bool = False,
    config: TrainingConfig = TrainingConfig(),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    mode: ScoringMode = "train_frozen_stats",
    seed: int = 0,
    num_workers: int | None = None,
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
    extra_config: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
) -> Recording:
    """Trains a model on what it selects, and writes down what that was.

    All that can be known beforehand is checked before the first step. If it fails later, the steps so far stay
    in ``<out>.partial``.

    Args:
        proxy: Selects and trains, in place, on the device it is on.
        data: The base data set: `TensorData` or any map-style data set.
        irreducible: Irreducible losses, or a function that gives them for a `Batch`.
        acquisition: Scores candidates.
        rule: Turns scores into a choice; `top_k` by default.
        candidates: How many examples are scored per step.
        keep: How many of them are trained on.
        steps: How many steps.
        epochs: Instead of `steps`: passes over the candidates.
        ids: The training side; by default the examples whose irreducible loss is known, else all.
        out: The file; None records in memory only.
        columns: What to record beside ids: ``score``, ``loss``, ``irreducible``.
        force: Replace an existing file.
        config: Learning rate, weight decay, schedule.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example.
        forward: How the model is called.
        mode: BatchNorm's and dropout's mode while scoring.
        seed: Of candidates, selection and dropout.
        num_workers: Loading processes. None: slice resident data, load other data in this process.
        evaluate: Gives figures for the proxy as it is.
        eval_every: Steps between evaluations.
        on_record: Gets every evaluation.
        on_step: Called after every step.
        extra_config: Recorded in the file's header.
        parents: Digests of further files it was made from, for the header.
    """
    train_ids = _training_side(data, irreducible, acquisition, ids)
    if keep > candidates:
        raise ConfigError(f"cannot keep {keep} of {candidates} candidates; lower --keep or raise --candidates")
    num_steps = _num_steps(steps, epochs, len(train_ids), candidates)
    sampler = CandidateSampler(train_ids, candidates, seed=seed, steps=num_steps)
    device = device_of(proxy)
    select = Selector(
        acquisition,
        keep=keep,
        irreducible=irreducible,
        rule=rule,
        loss=loss,
        forward=forward,
        mode=mode,
        seed=seed,
    )
    if out is not None:
        check_output(out, force=force)
    with seeded(derive("example", seed), device):
        example = next(iterate(data, sampler.batches(), device=device))
        check_model(proxy, example, loss=loss, forward=forward, data=data, role="proxy")
        select.check(proxy, example)
        check_columns(columns, select.chosen)
        rate = rate_of(proxy, example.take(torch.arange(min(2, candidates))), loss=loss, forward=forward)
    load = partial(iterate, data, device=device, num_workers=num_workers, seed=seed)
    by_id = acquisition in IDS_ONLY and (irreducible is None or isinstance(irreducible, IrreducibleLosses))
    choices = choose_by_id(select, proxy, sampler, load) if by_id else choose(select, proxy, sampler, load)

    recorded: list[Tensor] = []

    def selected(writer: SequenceWriter | None) -> Iterator[Batch]:
        for kept, figures in choices:
            recorded.append(kept.ids)
            if writer:
                writer.append(kept.ids, figures)
            yield kept

    settings = {
        "acquisition": getattr(acquisition, "__name__", type(acquisition).__name__),
        "candidates": candidates,
        "steps": num_steps,
        "num_train": len(train_ids),
        "seed": seed,
        "mode": mode,
        **(extra_config or {}),
    }
    lineage = dict(parents or {})
    if isinstance(irreducible, IrreducibleLosses):
        lineage["irreducible"] = irreducible.digest
    file = {"keep": keep, "config": settings, "parents": lineage, "columns": columns, "force": force}
    with SequenceWriter(out, data=describe(data), **file) if out is not None else nullcontext() as writer:
        history = fit(
            proxy,
            selected(writer),
            steps=num_steps,
            config=config,
            optimizer=optimizer,
            loss=loss,
            forward=forward,
            seed=seed,
            evaluate=evaluate,
            eval_every=eval_every,
            rate=rate,
            num_scored=lambda: select.num_scored,
            on_record=on_record,
            on_step=on_step,
        )
    all_ids = torch.cat(recorded).cpu().numpy()
    return Recording(writer.path if writer else None, digest_of(all_ids), num_steps, all_ids, history)


Choices: TypeAlias = Iterator[tuple[Batch, dict[str, Tensor]]]
"""For each step, what is kept, with its scores and losses as far as they were computed."""


def choose(
    select: Selector, model: nn.Module, sampler: CandidateSampler, load: Callable[..., Iterator[Batch]]
) -> Choices:
    """Loads all candidates and keeps some."""
    for batch in load(sampler.batches()):
        yield select(model, batch), select.chosen


def choose_by_id(
    select: Selector, model: nn.Module, sampler: CandidateSampler, load: Callable[..., Iterator[Batch]]
) -> Choices:
    """Chooses among ids, before training begins, and loads only what is kept.

    So that training costs what it costs with a plain loader: a fair baseline.
    """
    chosen = [(select.choose_ids(model, ids), select.chosen) for ids in sampler.batches()]
    return zip(load([ids for ids, _ in chosen]), (figures for _, figures in chosen), strict=True)


def _training_side(data: Any, irreducible: Any, acquisition: Acquisition, ids: np.ndarray | None) -> np.ndarray:
    table = irreducible if isinstance(irreducible, IrreducibleLosses) else None
    if table is not None and len(table) != len(unwrap(data)):
        raise ConfigError(
            f"the irreducible losses are for {len(table):,} examples, the data set has {len(unwrap(data)):,}; "
            f"use the data they were made from, or make them again"
        )
    if table is not None and table.data is not None and acquisition is not uniform:
        require_fingerprint(data, table.data, "the irreducible table")
    if ids is None:
        return table.ids if table is not None else np.arange(len(unwrap(data)))
    ids = check_ids(ids, what="the training side", length=len(unwrap(data)))
    if table is not None and acquisition is not uniform:
        table.require(ids)
    return ids


def _num_steps(steps: int | None, epochs: int | None, num_train: int, candidates: int) -> int:
    if (steps is None) == (epochs is None):
        raise ConfigError("say how long to select: give either steps or epochs")
    return steps if steps is not None else (epochs or 0) * (num_train // candidates)


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
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    on_record: OnRecord | None = None,
    on_step: OnStep | None = None,
) -> History:
    """Trains a model on a recorded sequence, step by step, in order.

    A proxy replaying its own sequence, from the same initial weights with the same seed and settings, ends with
    bit-identical weights.

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
        evaluate: Gives figures for the model as it is.
        eval_every: Steps between evaluations.
        on_record: Gets every evaluation.
        on_step: Called after every step.
    """
    if not len(sequence):
        raise ConfigError("the sequence has no steps")
    sequence.require(data)
    device = device_of(model)
    with seeded(derive("example", seed), device):
        example = next(iterate(data, [sequence[0][:2]], device=device))
        check_model(model, example, loss=loss, forward=forward, data=data)
    # By step, not by iterating: a sequence that was peeked at or stopped in the middle starts at its beginning.
    batch_ids = (sequence[step] for step in range(len(sequence)))
    return fit(
        model,
        iterate(data, batch_ids, device=device, num_workers=num_workers, seed=seed),
        steps=len(sequence),
        config=config,
        optimizer=optimizer,
        loss=loss,
        forward=forward,
        seed=seed,
        evaluate=evaluate,
        eval_every=eval_every,
        rate=rate_of(model, example, loss=loss, forward=forward),
        on_record=on_record,
        on_step=on_step,
    )
