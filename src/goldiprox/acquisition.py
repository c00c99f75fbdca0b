"""Acquisitions: pure functions from candidates to scores. Higher means: train on it."""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from goldiprox.data import Batch
from goldiprox.errors import ConfigError, MissingIrreducible, ModelMismatch, UnknownName
from goldiprox.forward import Forward, PerExampleLoss, call, check_losses, cross_entropy, device_of, kept_modes
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.randomness import Key, derive, preserved, subkey, uniforms

ScoringMode = Literal["train", "eval", "train_frozen_stats"]


class Candidates:
    """A large batch, and what can be known about it; each quantity is computed when first asked for.

    Attributes:
        ids: Of the candidates.
        x: Their inputs.
        y: Their targets.
        keep: How many of them will be trained on.
        step: The selection step, counted from 0; a tensor where the device counts (CUDA graphs).
        seed: Of the draws that an acquisition makes.
        num_scored: How many examples went through the model so far.
        scores: What the acquisition gave, once it has.
    """

    scores: Tensor

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        keep: int,
        irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None,
        loss: PerExampleLoss = cross_entropy,
        forward: Forward = call,
        mode: ScoringMode = "train_frozen_stats",
        seed: int = 0,
        step: int | Tensor = 0,
        losses: Callable[[nn.Module, Any, Any], Tensor] | None = None,
    ):
        self._model, self._batch, self._irreducible = model, batch, irreducible
        self._loss, self._forward, self._losses = loss, forward, losses
        self._mode: ScoringMode = mode
        self.ids, self.x, self.y = batch
        self.keep, self.seed, self.step = keep, seed, step
        self.num_scored = 0

    def __len__(self) -> int:
        return self._batch.num_examples

    @property
    def known(self) -> dict[str, Tensor]:
        """Scores, losses and irreducible losses of the candidates, as far as they were computed."""
        computed = {name: vars(self).get(name) for name in ("loss", "irreducible")}
        return {"score": self.scores} | {name: values for name, values in computed.items() if values is not None}

    @cached_property
    def logits(self) -> Any:
        """The model's output; for tasks other than classification, whatever that is."""
        with torch.no_grad(), scoring(self._model, self._mode):
            return self._run()

    def _run(self) -> Any:
        self.num_scored += len(self)
        return self._forward(self._model, self.x)

    @cached_property
    def loss(self) -> Float[Tensor, " n"]:
        """The loss of each candidate under the current model."""
        if self._losses is not None and "logits" not in vars(self):
            self.num_scored += len(self)
            with torch.no_grad(), scoring(self._model, self._mode):
                losses = self._losses(self._model, self.x, self.y)
        else:
            with torch.no_grad():
                losses = self._loss(self.logits, self.y)
        check_losses(losses, len(self))
        return losses.float()

    @cached_property
    def irreducible(self) -> Float[Tensor, " n"]:
        """The loss that would remain after learning everything there is to learn; NaN where unknown."""
        if self._irreducible is None:
            raise MissingIrreducible(
                "this acquisition needs irreducible losses: pass irreducible=gp.IrreducibleLosses.open(path, data=...) "
                "(--irreducible FILE), made by `goldiprox irreducible`"
            )
        if isinstance(self._irreducible, IrreducibleLosses):
            return self._irreducible[self.ids]
        with torch.no_grad():
            losses = self._irreducible(self._batch)
        check_losses(losses, len(self))
        return losses.float()

    @cached_property
    def output_gradients(self) -> Float[Tensor, "n d"]:
        """The gradient of each candidate's loss with respect to its output."""
        output = self.logits.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._loss(output, self.y).sum(), output)
        return gradient.reshape(len(self), -1).float()

    def mc_log_probs(self, num_samples: int) -> Float[Tensor, "k n c"]:
        """Log-probabilities under several dropout masks; each mask is the same for all candidates."""
        samples = []
        masks = self._key("dropout masks")
        for sample in range(num_samples):
            with (
                torch.no_grad(),
                scoring(self._model, self._mode),
                consistent_dropout(self._model, subkey(masks, sample)),
            ):
                samples.append(_of_classes(self._run()).float().log_softmax(-1))
        return torch.stack(samples)

    def uniforms(self, purpose: str) -> Float[Tensor, " n"]:
        """One number in (0, 1) per candidate: a hash of its id, the step and the seed."""
        return uniforms(self.ids, self._key(purpose))

    def _key(self, purpose: str) -> Key:
        return subkey(derive(purpose, self.seed), self.step)


Acquisition: TypeAlias = Callable[[Candidates], Tensor]


def _of_classes(output: Any) -> Float[Tensor, "n c"]:
    """The output, where it is that of a classifier; with other ones some scores would be numbers without a meaning."""
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelMismatch(
            f"this acquisition goes by the probabilities of classes, and the model gave {what}, not a row of logits "
            f"for each example; take gp.reducible_loss, gp.loss or gp.gradient_norm"
        )
    return output


def reducible_loss(c: Candidates) -> Float[Tensor, " n"]:
    """The part of the loss that training can still remove.

    ``loss under the current model - loss under the holdout model``: high for examples that are learnable,
    relevant and not yet learnt; low for noise, outliers and what is already known.
    """
    return c.loss - c.irreducible


def probability_gain(c: Candidates) -> Float[Tensor, " n"]:
    """How much more probability the holdout model gives the label than the current model does.

    ``exp(-irreducible loss) - exp(-loss)``: the reducible loss without its tails. However sure a model is of the
    opposite of a wrong label, the score stays below 1; so a holdout model that learnt wrong labels misleads less.
    """
    return (-c.irreducible).exp() - (-c.loss).exp()


def loss(c: Candidates) -> Float[Tensor, " n"]:
    """How badly the current model does: finds what is not yet learnt, and every wrong label with it."""
    return c.loss


def irreducible_loss(c: Candidates) -> Float[Tensor, " n"]:
    """How predictable an example is at best (minus its irreducible loss): avoids noise, keeps what is known."""
    return -c.irreducible


def predictability(c: Candidates) -> Float[Tensor, " n"]:
    """How likely the label is to the holdout model: ``exp(-irreducible loss)``, from 0 for wrong to 1 for easy.

    With a price on coming back (`goldiprox.discounted_top_k`) an order of all examples, easy ones first and the hardest
    late and seldom, for which no proxy is needed.
    """
    return (-c.irreducible).exp()


def uniform(c: Candidates) -> Float[Tensor, " n"]:
    """Nothing but chance: the baseline, on the same candidates."""
    return c.uniforms("uniform acquisition").float()


def entropy(c: Candidates) -> Float[Tensor, " n"]:
    """How undecided the current model is about the label, without looking at it."""
    log_probs = _of_classes(c.logits).float().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def gradient_norm(c: Candidates) -> Float[Tensor, " n"]:
    """An upper bound, up to a constant, of the example's gradient norm (Katharopoulos & Fleuret 2018).

    The norm of the loss's gradient with respect to the last layer's output: ``|softmax - one-hot|`` for
    cross-entropy.
    """
    return c.output_gradients.norm(dim=1)


def bald(c: Candidates, num_samples: int = 10) -> Float[Tensor, " n"]:
    """What the label would tell about the weights: ``H[mean of p] - mean of H[p]`` over dropout masks.

    Houlsby et al. 2011; Gal et al. 2017. Needs a model with dropout layers.
    """
    log_probs = c.mc_log_probs(num_samples)
    mean = log_probs.logsumexp(0) - math.log(num_samples)  # a tensor made here could not be part of a CUDA graph
    return -(mean.exp() * mean).sum(-1) + (log_probs.exp() * log_probs).sum(-1).mean(0)


ORDERED_SGD_STAGES = ((0.80, 2), (0.90, 4), (0.95, 8), (0.995, 16))
"""(accuracy from which, kept examples are the highest-loss ones among this many times their number)."""


def ordered_loss(c: Candidates) -> Float[Tensor, " n"]:
    """High loss with the schedule of Ordered SGD (Kawaguchi & Lu 2020).

    The pressure rises with the training accuracy: the kept examples are the ones of highest loss within a
    random pool of `keep` candidates (so: uniform) below 80%, of twice as many from 80% on, then 4, 8 and 16
    times. The accuracy is that on the current candidates.
    """
    accuracy = (_of_classes(c.logits).argmax(-1) == c.y).double().mean()
    pool_size = torch.full_like(accuracy, min(c.keep, len(c)), dtype=torch.int64)
    for threshold, factor in ORDERED_SGD_STAGES:
        pool_size = pool_size.maximum((accuracy >= threshold).long() * min(factor * c.keep, len(c)))
    draws = c.uniforms("ordered loss pool")
    pool = draws <= draws.sort().values.index_select(0, (pool_size - 1)[None])
    # Candidates outside the pool stay below all of it, and finite.
    return torch.where(pool, c.loss, c.loss - (c.loss.max() - c.loss.min() + 1))


ACQUISITIONS: dict[str, Acquisition] = {
    f.__name__: f
    for f in (
        reducible_loss,
        probability_gain,
        loss,
        irreducible_loss,
        predictability,
        uniform,
        bald,
        entropy,
        gradient_norm,
        ordered_loss,
    )
}


NEEDS_TABLE = frozenset({"reducible_loss", "probability_gain", "irreducible_loss", "predictability"})
"""Names of those that need irreducible losses."""


def needs_table(name: str) -> bool:
    """Whether an acquisition of this name may need irreducible losses: what a user's own asks for is not known."""
    return name in NEEDS_TABLE or ":" in name


IDS_ONLY = frozenset({uniform, irreducible_loss, predictability})
"""Acquisitions that score ids: candidates need not be loaded for them (given a table of irreducible losses)."""


def needs_proxy(acquisition: Acquisition, scope: str = "global", update: str = "replicated") -> bool:
    """Whether a choice depends on a model; without one, every process must be able to make all of it by itself."""
    return acquisition not in IDS_ONLY or (scope, update) != ("global", "replicated")


def require_no_model(acquisition: Acquisition, irreducible: Any, scope: str, update: str, **asked: Any) -> None:
    """Raises where something asks for a proxy, and there is none.

    Args:
        acquisition: What scores candidates.
        irreducible: Irreducible losses, or a function.
        scope: As for `goldiprox.recording.record`.
        update: Likewise.
        asked: What is about a proxy's training, and is left at None without one.
    """
    if acquisition not in IDS_ONLY:
        names = ", ".join(sorted(f.__name__ for f in IDS_ONLY))
        raise ConfigError(
            f"there is no proxy (None), but what to keep depends on one; give a proxy, or go by a table alone: an "
            f"acquisition of {names}"
        )
    if callable(irreducible):
        raise ConfigError(
            "there is no proxy (None), and then candidates are not loaded, which irreducible losses by a function ask "
            "for; give a table, irreducible=gp.IrreducibleLosses.open(...), or a proxy"
        )
    if needs_proxy(acquisition, scope, update):
        raise ConfigError(
            f"there is no proxy (None), and then every process makes the whole choice, which scope={scope!r} and "
            f"update={update!r} do not have; leave them out, or give a proxy"
        )
    if given := [name for name, value in asked.items() if value is not None]:
        raise ConfigError(
            f"there is no proxy (None) whose training could be looked at; leave out {', '.join(given)}, or give one"
        )


ZERO_IS_LEARNT = frozenset({reducible_loss, probability_gain})
"""Acquisitions whose score is zero where a proxy does as well as its holdout model."""


@contextlib.contextmanager
def scoring(model: nn.Module, mode: str) -> Iterator[None]:
    """Puts a model into its mode for scoring, and everything back afterwards, generators included.

    * ``train``: as in a training step. BatchNorm's running statistics move with the candidates.
    * ``train_frozen_stats``: the same outputs, but running statistics stay those of what is trained on, so
      that a replay ends with the very same model.
    * ``eval``: no dropout, running statistics.
    """
    if mode not in get_args(ScoringMode):
        raise UnknownName("scoring mode", mode, get_args(ScoringMode))
    training = mode != "eval"
    with contextlib.ExitStack() as stack:
        if model.training != training:  # a model in training keeps what its user froze
            stack.enter_context(kept_modes(model))
            model.train(training)
        if training:
            stack.enter_context(preserved(device_of(model)))
        if mode == "train_frozen_stats":
            stack.enter_context(frozen_buffers(model))
        yield


@contextlib.contextmanager
def frozen_buffers(model: nn.Module) -> Iterator[None]:
    """Leaves every buffer as it was: running statistics, power iterations, counters."""
    norms: list[nn.modules.batchnorm._BatchNorm] = []
    saved: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            if m.track_running_stats and m.training:  # told not to track, it has nothing to put back: no copies
                norms.append(m)
                m.track_running_stats = False
        else:
            saved += [(m, name, b, b.clone()) for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        with torch.no_grad():
            for m, name, buffer, value in saved:
                buffer.copy_(value)
                m._buffers[name] = buffer


@contextlib.contextmanager
def consistent_dropout(model: nn.Module, key: Key) -> Iterator[None]:
    """Lets every dropout layer drop the same units for all examples of a batch: a hash of layer and unit."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    if not layers:
        raise ConfigError(
            "bald (mc_log_probs) needs a model with dropout layers (nn.Dropout); this one has none: "
            "add some (--dropout 0.5 for built-in models), or use another acquisition"
        )

    numbers: dict[nn.Module, int] = {layer: number for number, layer in enumerate(layers)}

    def drop(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:  # noqa: ARG001
        p = float(module.p)  # type: ignore[arg-type]
        units = output.shape[1:]
        if isinstance(module, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):  # these drop whole channels
            units = (units[0], *[1] * (len(units) - 1))
        positions = torch.arange(math.prod(units), device=output.device)
        keep = uniforms(positions, subkey(key, numbers[module])).view(1, *units) >= p
        return output * keep.to(output.dtype) / (1 - p)

    handles = [layer.register_forward_hook(drop) for layer in layers]
    try:
        with kept_modes(model):
            for layer in layers:
                layer.eval()  # so that its own dropout does nothing
            yield
    finally:
        for handle in handles:
            handle.remove()
