"""Hugging Face transformers: replay a sequence in a `Trainer`, and a `Trainer` that selects online."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from goldiprox.acquisition import Acquisition, ScoringMode, reducible_loss
from goldiprox.data import Batch, require_fingerprint
from goldiprox.errors import ConfigError, DataError, MissingExtra, ModelMismatch
from goldiprox.forward import PerExampleLoss
from goldiprox.integrations.replayed import Replayed
from goldiprox.integrations.slices import Slices
from goldiprox.irreducible import IrreducibleLosses
from goldiprox.selection import CandidateSampler, Rule, Selector
from goldiprox.sequence import Sequence

try:
    from transformers import Trainer
except ImportError as e:
    raise MissingExtra("transformers", "hf", "goldiprox.integrations.huggingface") from e

IDS = "goldiprox_ids"
IGNORED = -100
"""The label of positions that a loss leaves out."""


def replay(trainer: Trainer, sequence: Sequence, *, passes: int = 1) -> Trainer:
    """Lets a `Trainer`, or any class derived from it, train on a sequence: its steps, in order, an update each.

    Call it before ``trainer.train()``. The trainer's data set is replaced by the kept examples in order, and the
    arguments that decide on batches and their number are set: sampling strategy, batch size, number of epochs. Right
    with one process and with several, with gradient accumulation, and continued from a checkpoint.

    Args:
        trainer: Its ``train_dataset`` is what the sequence was made from.
        sequence: Opened for all ranks.
        passes: How often to go through it. ``max_steps`` may end it earlier.

    Returns:
        The same trainer.
    """
    args, data = trainer.args, trainer.train_dataset
    if data is None:
        raise ConfigError("the trainer has no train_dataset; give it the data set that the sequence was made from")
    if isinstance(data, Replayed):
        raise ConfigError("the trainer replays a sequence already; make a new one")
    if args.auto_find_batch_size:
        raise ConfigError("auto_find_batch_size would divide the recorded batches otherwise; switch it off")
    config: Any = args.accelerator_config
    if config.split_batches or config.dispatch_batches:
        raise ConfigError(
            f"accelerator_config has split_batches={config.split_batches}, dispatch_batches={config.dispatch_batches}, "
            f"which change the batches; leave both out"
        )
    if args.max_steps > passes * len(sequence):
        raise ConfigError(
            f"max_steps={args.max_steps:,}, but {passes} passes over the sequence have {passes * len(sequence):,}; "
            f"lower it, or give replay passes="
        )
    shares = args.world_size * max(1, args.n_gpu)
    slices = Slices(sequence, 0, shares, accumulate=args.gradient_accumulation_steps)
    args.per_device_train_batch_size = slices.batch_size
    args.train_sampling_strategy = "sequential"
    args.num_train_epochs = passes
    trainer._train_batch_size = args.train_batch_size
    remedy = "Leave get_train_dataloader and the trainer's arguments as replay() has set them"
    trainer.train_dataset = Replayed(data, sequence, args.train_batch_size, remedy)
    return trainer


class SelectiveTrainer(Trainer):
    """A `Trainer` that trains on the best examples of each large batch, chosen by the model as it learns.

    ``per_device_train_batch_size`` is what is trained on; `candidates` is what it is chosen from. An epoch is one pass
    over the candidates. With several processes each scores its part, and the best of all are kept. With gradient
    accumulation every batch is chosen from candidates of its own.

    Args:
        args: As for `Trainer`.
        candidates: How many examples each batch is chosen from, over all processes.
        acquisition: Scores candidates.
        irreducible: Irreducible losses of the training data; candidates are the examples that it knows. Or a function
            of a `goldiprox.Batch` that gives them.
        rule: Turns scores into a choice; `goldiprox.top_k` by default.
        loss: (output of the model, labels) -> one loss per example, for scoring; by default what `per_example_loss`
            finds for the model. The loss that is trained on stays the trainer's own.
        mode: Dropout's mode while scoring, see `goldiprox.acquisition.scoring`.
        settings: As for `Trainer`.

    Attributes:
        kept_ids: What the current update trains on: for each of its batches, the ids of this process.
    """

    def __init__(
        self,
        *args: Any,
        candidates: int,
        acquisition: Acquisition = reducible_loss,
        irreducible: IrreducibleLosses | Callable[[Batch], Tensor] | None = None,
        rule: Rule | None = None,
        loss: PerExampleLoss | None = None,
        mode: ScoringMode = "train_frozen_stats",
        **settings: Any,
    ):
        super().__init__(*args, **settings)
        self._data: Any = self.train_dataset
        if not hasattr(self._data, "__len__") or not hasattr(self._data, "__getitem__"):
            raise DataError("ids are positions, so the train_dataset must have a length and items by number")
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigError(
                "online selection was not tried with FSDP and DeepSpeed; record with a small proxy, and use replay()"
            )
        ids: Any = range(len(self._data))
        if isinstance(irreducible, IrreducibleLosses):
            if irreducible.data is not None:
                require_fingerprint(self._data, irreducible.data, "the table of irreducible losses")
            ids = irreducible.ids
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        self._batches = _Epochs(ids, candidates, seed, self.args.process_index, self.args.world_size)
        keep = self.args.train_batch_size * self.args.world_size
        if keep > candidates:
            raise ConfigError(
                f"{candidates} candidates to choose {keep} from (per_device_train_batch_size times devices); raise "
                f"candidates, or lower the batch size"
            )
        model = self.accelerator.unwrap_model(self.model)
        together = self.args.world_size > 1
        self._select = Selector(
            acquisition,
            keep=keep,
            irreducible=irreducible,
            rule=rule,
            loss=loss or per_example_loss(model),
            forward=self._forward,
            mode=mode,
            seed=seed,
            group=dist.group.WORLD if together else None,
            # Processes pad their batches to different lengths, so what is kept is loaded anew where it is needed.
            fetch=self._fetch if together else None,
        )
        self.kept_ids: list[Tensor] = []

    def get_train_dataloader(self) -> DataLoader:
        """The candidates of this process, with their ids; not prepared by Accelerate, which would divide them again."""
        args, data, collate = self.args, self._data, self.data_collator
        if hasattr(data, "column_names"):  # without the columns that the model does not take, as `Trainer` does it
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        self._numbered, self._collate = _Numbered(data), _WithIds(collate)
        return DataLoader(
            self._numbered,
            batch_sampler=self._batches,
            collate_fn=self._collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            # Without a generator of its own the loader would draw from the global one.
            generator=torch.Generator().manual_seed(args.seed),
        )

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """As `Trainer` has it, of chosen examples: so losses are averaged over those that are trained on."""
        # Counted from the trainer's own state, which its checkpoints hold.
        self._select.step = self.state.global_step * self.args.gradient_accumulation_steps
        if self._select.step and self._select.counts and self._select.times is None:
            raise ConfigError(
                "a checkpoint of Trainer does not hold how often examples were kept, which this rule goes by; continue "
                "with the rule gp.top_k(), or start over"
            )
        self.kept_ids = []
        return super().get_batch_samples(map(self._choose, epoch_iterator), num_batches, device)

    def _choose(self, inputs: dict[str, Any]) -> dict[str, Any]:
        kept = self._select(self.accelerator.unwrap_model(self.model), self._as_batch(inputs))
        self.kept_ids.append(kept.ids)
        return kept.x

    def _as_batch(self, inputs: dict[str, Any]) -> Batch:
        inputs = dict(self._prepare_inputs(inputs))
        ids = inputs.pop(IDS)
        labels = next((inputs[name] for name in ("labels", "label") if name in inputs), ())
        return Batch(ids, inputs, labels)

    def _fetch(self, ids: Tensor) -> Batch:
        return self._as_batch(self._collate(self._numbered.__getitems__(ids.tolist())))

    def _forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        with self.compute_loss_context_manager():
            output = model(**inputs)
        return output["logits"] if isinstance(output, dict) and "logits" in output else output


class _Epochs:
    """This process's part of the candidates of one epoch; `Trainer` says of which."""

    drop_last = True

    def __init__(self, ids: Any, candidates: int, seed: int, rank: int, world_size: int):
        self._sampler = CandidateSampler(ids, candidates, seed=seed, steps=1)
        self._slices = Slices(self._sampler, rank, world_size)
        self.batch_size = self._slices.batch_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self._sampler.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * len(self)
        self._sampler.steps = first + len(self)
        for ids in self._sampler.batches(first):
            yield ids[self._slices.rank * self.batch_size :][: self.batch_size].tolist()


class _Numbered(Dataset):
    """Items with their ids."""

    def __init__(self, data: Any):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, ids: list[int]) -> list[tuple[int, Any]]:
        many = getattr(self.data, "__getitems__", None)
        return list(zip(ids, many(ids) if many else [self.data[id] for id in ids], strict=True))


class _WithIds:
    """A collator whose batches carry ids."""

    def __init__(self, collate: Callable[[list[Any]], Any]):
        self.collate = collate

    def __call__(self, numbered: list[tuple[int, Any]]) -> dict[str, Any]:
        batch = self.collate([item for _, item in numbered])
        return {**batch, IDS: torch.tensor([id for id, _ in numbered])}


def per_example_loss(model: nn.Module) -> PerExampleLoss:
    """One loss per example from the logits and labels of a transformer, by its kind.

    Classification: cross-entropy (regression: squared error; several labels: the mean of binary cross-entropies). Of
    tokens: the mean cross-entropy over an example's tokens, those labelled -100 left out, and where the model predicts
    the next token, labels shifted by one.
    """
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    shifted = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))

    def loss(logits: Any, labels: Any) -> Tensor:
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
            raise ModelMismatch(
                "the loss of each example needs logits and labels as tensors; for another kind of model give "
                "SelectiveTrainer loss="
            )
        logits = logits.float()
        if problem == "regression" or (labels.is_floating_point() and problem is None and logits.shape[-1] == 1):
            return (logits.flatten(1) - labels.float().view(len(logits), -1)).square().mean(1)
        if problem == "multi_label_classification" or labels.is_floating_point():
            return nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
        if logits.ndim == 3 and shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = nn.functional.cross_entropy(
            logits.movedim(-1, 1) if logits.ndim == 3 else logits, labels, reduction="none", ignore_index=IGNORED
        )
        if losses.ndim == 1:
            return losses
        return losses.sum(1) / labels.ne(IGNORED).sum(1).clamp(min=1)

    return loss
