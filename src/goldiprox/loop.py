"""The one training loop and the one evaluation."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from torch import nn

from goldiprox.checkpoint import Checkpoints, Saved
from goldiprox.data import Batch, iterate, unwrap
from goldiprox.engine import Eager, Engine, EngineName, Feed, Graph, Trainer, on_device
from goldiprox.errors import (
    ConfigError,
    Interrupted,
    ModelMismatch,
    NonFiniteError,
    RankLost,
    UnknownName,
    WriterGone,
)
from goldiprox.forward import (
    Forward,
    PerExampleLoss,
    backends,
    call,
    check_model,
    cross_entropy,
    device_of,
    evaluating,
    kept_modes,
)
from goldiprox.ledger import Cost, Rate, measure_rate
from goldiprox.optim import TrainingConfig, released
from goldiprox.randomness import generator_states, preserved, seeded, set_generator_states

Evaluate: TypeAlias = Callable[[nn.Module], Mapping[str, float]]
OnRecord: TypeAlias = Callable[[dict[str, Any]], None]
OnStep: TypeAlias = Callable[[int, Mapping[str, Any]], None]
"""(steps done, the latest evaluation): for progress bars."""


@dataclass
class History:
    """What a training run leaves: evaluations, cost, the last evaluation."""

    evaluations: list[dict[str, Any]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    steps: int = 0

    @property
    def final(self) -> dict[str, Any]:
        return self.evaluations[-1] if self.evaluations else {}


@dataclass
class Task:
    """A model and what it is to be trained on.

    Attributes:
        model: Trained in place, on the device it is on.
        batches: What it trains on, in order; a `Feed` where the device can make them by itself.
        steps: How many there are, where that is known.
        config: Learning rate, weight decay, schedule, precision.
        optimizer: Makes another optimiser than `config` does.
        loss: One loss per example; the step minimises their mean.
        forward: How the model is called.
        seed: Of everything random in the model.
        mixed: Train on blends of two examples, see `goldiprox.optim.TrainingConfig.losses`.
        evaluate: Gives figures for the model as it is.
        eval_every: Steps between evaluations; the last step is always evaluated.
        rate: The model's FLOPs per example, for the bill.
        figures: Gives more figures for every evaluation.
        num_scored: How many examples `batches` has scored with this model so far, for the bill.
        on_record: Gets every evaluation; of a continued run, those before it first.
        on_step: Called after every step, or every few.
        checkpoints: Where to save how far it is.
        saved: What to go on from; `batches` begin after its step.
        state: What else a checkpoint after so many steps needs to hold.
    """

    model: nn.Module
    batches: Iterable[Batch] | Feed
    steps: int | None = None
    config: TrainingConfig = TrainingConfig()
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    loss: PerExampleLoss = cross_entropy
    forward: Forward = call
    seed: int = 0
    mixed: bool = False
    evaluate: Evaluate | None = None
    eval_every: int | None = None
    rate: Rate | None = None
    figures: Callable[[], Mapping[str, float]] = dict
    num_scored: Callable[[], int] = lambda: 0
    on_record: OnRecord | None = None
    on_step: OnStep | None = None
    checkpoints: Checkpoints | None = None
    saved: Saved | None = None
    state: Callable[[int], Mapping[str, Any]] = lambda step: {}  # noqa: ARG005


class _Run:
    """A task under way: the bill, the evaluations, the calls back."""

    def __init__(self, task: Task):
        self.task, self.history = task, History()
        self.latest: dict[str, Any] = {}
        self.device = device_of(task.model)
        self.trainer = Trainer(
            task.model,
            steps=task.steps,
            config=task.config,
            optimizer=task.optimizer,
            loss=task.loss,
            forward=task.forward,
            seed=task.seed,
            mixed=task.mixed,
        )
        if task.saved:
            self._restore(task.saved)

    def _restore(self, saved: Saved) -> None:
        model, state = self.task.model, saved.state
        try:
            model.load_state_dict(state["model"])
        except RuntimeError as e:
            raise ConfigError(
                f"{saved.path} was saved from another model: {str(e).splitlines()[-1].strip()}; use that model to "
                f"continue, or add --force (force=True) to start over"
            ) from e
        buffers = dict(model.named_buffers())
        for name, value in state["buffers"].items():
            buffers[name].copy_(value)
        self.trainer.optimizer.load_state_dict(state["optimizer"])
        self.history = History(state["evaluations"], Cost(**state["cost"]), saved.step)
        self.latest = self.history.final
        for record in self.history.evaluations if self.task.on_record else ():
            self.task.on_record(record)  # type: ignore[misc]

    def save(self) -> None:
        """Makes a checkpoint of where the run is."""
        task, checkpoints = self.task, self.task.checkpoints
        assert checkpoints is not None
        sound = all(bool(p.isfinite().all()) for p in task.model.parameters())
        if not self.history.steps or not sound:  # the loss of the next step will say so; keep what is good
            return
        extra = task.state(self.history.steps)  # first: it waits until the files hold all that is saved below
        weights = task.model.state_dict()
        state = {
            "model": weights,
            "buffers": {k: v for k, v in task.model.named_buffers() if k not in weights},
            "optimizer": self.trainer.optimizer.state_dict(),
            "generators": generator_states(self.device),
            "evaluations": self.history.evaluations,
            "cost": asdict(self.history.cost),
            "extra": extra,
        }
        checkpoints.save(self.history.steps, state)

    @property
    def until_evaluation(self) -> int:
        every = self.task.eval_every if self.task.evaluate else None
        return every - self.history.steps % every if every else 1 << 30

    @property
    def is_due(self) -> bool:
        every = self.task.eval_every if self.task.evaluate else None
        return bool(every) and self.history.steps % every == 0

    def account(self, trained: int, steps: int) -> None:
        cost = self.history.cost
        self.history.steps += steps
        scored = self.task.num_scored() - cost.examples_scored
        cost.add(self.task.rate, scored=scored, trained=trained - cost.examples_trained)

    def evaluate(self) -> None:
        """Evaluates the model as it is, if that was not done at this very step."""
        task, history = self.task, self.history
        if task.evaluate is None or (history.evaluations and history.evaluations[-1]["step"] == history.steps):
            return
        start = time.perf_counter()
        with preserved(self.device), kept_modes(task.model):  # whatever it does, training goes on as if it had not
            figures = {**task.figures(), **task.evaluate(task.model)}
        history.cost.evaluation_seconds += time.perf_counter() - start
        self.latest = {
            "step": history.steps,
            "examples": history.cost.examples_trained,
            "flops": history.cost.flops,
            "seconds": round(history.cost.seconds, 6),
            **figures,
        }
        history.evaluations.append(self.latest)
        if task.on_record:
            task.on_record(self.latest)

    def report(self) -> None:
        if self.task.on_step:
            with preserved(self.device):
                self.task.on_step(self.history.steps, self.latest)


def fit(task: Task, *, engine: EngineName = "auto") -> History:
    """Trains a model on batches, one step each, and evaluates it on the way.

    The order of work within a step is fixed: take the next batch (which may score candidates with this very
    model), then update. Dropout draws from the seed; the global generators are left as they were.

    Args:
        task: The model and what it is to be trained on.
        engine: How steps run; ``auto`` takes a CUDA graph where the device can make the batches by itself.
    """
    return fit_together([task], engine=engine)[0]


def fit_together(tasks: Sequence[Task], *, engine: EngineName = "auto") -> list[History]:
    """Trains several models with the same number of steps: at once in one CUDA graph, else one after another."""
    if engine not in get_args(EngineName):
        raise UnknownName("engine", engine, get_args(EngineName))
    graph = engine in ("auto", "graph") and all(_is_feed(t.batches) for t in tasks)
    if engine == "graph" and not graph:
        raise ConfigError(
            "the graph engine needs a CUDA device, and data that lies on it (gp.TensorData, no loading processes); "
            "use engine='auto' (--engine auto)"
        )
    if not graph and len(tasks) > 1:
        return [fit(task, engine=engine) for task in tasks]
    if len(tasks) > 1 and any(task.checkpoints for task in tasks):
        raise ConfigError("several models in one CUDA graph cannot be checkpointed; train them one by one")
    runs = [_Run(task) for task in tasks]
    device = runs[0].device
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.enter_context(released(run.trainer.optimizer))
            if not run.task.model.training:
                run.task.model.train()
        stack.enter_context(seeded(runs[0].trainer.seed, device))
        stack.enter_context(backends(tasks[0].config.precision, device))
        if tasks[0].saved:
            set_generator_states(tasks[0].saved.state["generators"], device)
        try:
            _drive(runs, _make_engine(runs, graph=graph))
        except NonFiniteError as e:
            raise _with_checkpoint(e, tasks[0].checkpoints) from e
    return [run.history for run in runs]


def _is_feed(batches: Any) -> bool:
    return hasattr(batches, "window")


def _make_engine(runs: Sequence[_Run], *, graph: bool) -> Engine:
    start = runs[0].history.steps
    if graph:
        engine = Graph([r.trainer for r in runs], [r.task.batches for r in runs], start=start)  # type: ignore[misc]
    else:
        engine = Eager(runs[0].trainer, runs[0].task.batches, start=start)
    engine.trained = [r.history.cost.examples_trained for r in runs]
    return engine


def _drive(runs: Sequence[_Run], engine: Engine) -> None:
    checkpoints = runs[0].task.checkpoints
    try:
        for run in runs if checkpoints else ():
            run.report()
        while True:
            if checkpoints:
                checkpoints.check()
            if checkpoints and checkpoints.due:
                _save(runs[0], engine)
            with _shared_time(runs):
                steps = engine.advance(min(run.until_evaluation for run in runs))
            if not steps:
                break
            for run, trained in zip(runs, engine.trained, strict=True):
                run.account(trained, steps)
            if any(run.is_due for run in runs):
                with _shared_time(runs):
                    engine.drain()
                    _finish(runs[0].device)  # steps still under way on a GPU are training's, not the evaluation's
            for run, trained in zip(runs, engine.trained, strict=True):
                if run.is_due:
                    run.account(trained, 0)  # what was scored is known for sure only now
                    run.evaluate()
                run.report()
        with _shared_time(runs):
            engine.drain()
            _finish(runs[0].device)
        for run, trained in zip(runs, engine.trained, strict=True):
            run.account(trained, 0)
            run.evaluate()
            run.report()
        if checkpoints:
            _save(runs[0], engine)
    except (Interrupted, RankLost, WriterGone) as e:
        # Before a step, or while its ids were waited for: all steps so far are whole.
        if checkpoints:
            _save(runs[0], engine)
        if isinstance(e, Interrupted):
            raise Interrupted(f"stopped after step {engine.done:,}; all of it is saved") from e
        raise
    finally:
        engine.close()


def _save(run: _Run, engine: Engine) -> None:
    with _shared_time([run]):
        engine.drain()
        _finish(run.device)
        run.account(engine.trained[0], 0)
        run.save()


def _with_checkpoint(error: NonFiniteError, checkpoints: Checkpoints | None) -> NonFiniteError:
    """The error, with what is left of the run."""
    if checkpoints is None:
        return error
    if checkpoints.last is None:
        left = "It happened before the first checkpoint"
    else:
        left = f"The last good checkpoint is {checkpoints.last[0]} (step {checkpoints.last[1]:,})"
    message = f"{error}. {left}; continued with the same settings it would happen again, so start over with --force"
    path = checkpoints.last[0] if checkpoints.last else None
    return NonFiniteError(message, step=error.step, ids=error.ids, checkpoint=path)


@contextlib.contextmanager
def _shared_time(runs: Sequence[_Run]) -> Iterator[None]:
    """Bills every run for its share of the time that the code inside takes."""
    start = time.perf_counter()
    try:
        yield
    finally:
        for run in runs:
            run.history.cost.seconds += (time.perf_counter() - start) / len(runs)


def _finish(device: torch.device) -> None:
    """Waits until the device has done what it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def evaluate_on(
    data: Any,
    *,
    ids: np.ndarray | None = None,
    loss: PerExampleLoss = cross_entropy,
    forward: Forward = call,
    batch_size: int = 2048,
    num_workers: int | None = None,
) -> Evaluate:
    """A function that gives a model's mean loss on this data and, for class logits, its accuracy.

    It can also ``check`` whether a model fits this data, on a few examples: `record` and `replay` do so first.

    Args:
        data: What to evaluate on.
        ids: Which of it; by default all.
        loss: One loss per example; the one that is trained by.
        forward: How the model is called; as in training.
        batch_size: How many examples at a time.
        num_workers: Loading processes. None: slice resident data, load other data in this process.
    """
    order = np.arange(len(unwrap(data))) if ids is None else ids
    if not len(order):
        raise ConfigError("there is nothing to evaluate on: the data, or the list of ids, is empty")

    def evaluate(model: nn.Module) -> dict[str, float]:
        losses, correct = [], []
        for batch, output in outputs(
            model, data, order, forward=forward, batch_size=batch_size, num_workers=num_workers
        ):
            losses.append(loss(output, batch.y))
            if loss is cross_entropy:
                correct.append(output.argmax(1) == batch.y)
        figures = {"loss": torch.cat(losses).double().mean().item()}
        if correct:
            figures["accuracy"] = torch.cat(correct).double().mean().item()
        return figures

    def check(model: nn.Module) -> None:
        few = next(iterate(data, [order[:3]], device=device_of(model)))
        try:
            check_model(model, few, loss=loss, forward=forward, data=data)
        except ModelMismatch as e:
            raise ModelMismatch(f"evaluate_on: {e} (evaluate_on takes loss= and forward= as well)") from e

    evaluate.check = check  # type: ignore[attr-defined]
    return evaluate


def check_evaluation(evaluate: Evaluate | None, model: nn.Module) -> None:
    """Tries an evaluation before training, where it can be tried on a few examples."""
    if check := getattr(evaluate, "check", None):
        check(model)


def outputs(
    model: nn.Module,
    data: Any,
    ids: np.ndarray,
    *,
    forward: Forward = call,
    batch_size: int = 2048,
    num_workers: int | None = None,
):
    """Each batch of these ids with the model's output in evaluation mode."""
    device = device_of(model)
    order = torch.as_tensor(ids)
    place = order.device if on_device(data, device, num_workers) is None else device
    with evaluating(model):
        # Many to the device at once: a copy per batch would wait for the batch before.
        chunks = (chunk for some in order.split(512 * batch_size) for chunk in some.to(place).split(batch_size))
        for batch in iterate(data, chunks, device=device, num_workers=num_workers):
            with torch.no_grad():
                output = forward(model, batch.x)
            yield batch, output


def rate_of(
    model: nn.Module, batch: Batch, *, loss: PerExampleLoss = cross_entropy, forward: Forward = call
) -> Rate | None:
    """A model's FLOPs per example, counted on a batch without changing the model or any generator."""
    with preserved(device_of(model)), evaluating(model):
        return measure_rate(model, forward, loss, batch)
