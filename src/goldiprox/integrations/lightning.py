"""Lightning: loaders that each process may use as they are, and selection across processes."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from goldiprox.data import Batch
from goldiprox.errors import ConfigError, MissingExtra
from goldiprox.integrations.slices import Batches, Slices
from goldiprox.selection import Selector
from goldiprox.sequence import Sequence


def _framework() -> Any:
    """One framework under two names; where both are installed, the one that the caller has imported."""
    names = sorted(("pytorch_lightning", "lightning.pytorch"), key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingExtra("lightning", "lightning", "goldiprox.integrations.lightning")


pl = _framework()


class _InPlace(DistributedSampler):
    """The ids of this process, one after another. Lightning leaves a `DistributedSampler` where it is."""

    def __init__(self, slices: Slices):
        # Not super().__init__(), which would divide a data set: this is divided already.
        self.slices, self.epoch = slices, 0

    def __len__(self) -> int:
        return len(self.slices) * self.slices.batch_size

    def __iter__(self) -> Iterator[int]:
        for ids in self.slices:
            yield from ids


def loader(trainer: Any, data: Any, batches: Batches, *, kind: type[DataLoader] = DataLoader, **settings: Any) -> Any:
    """A loader of this process's part of every batch; call it where the trainer is known, in ``train_dataloader``.

    Right with one process and with several, whatever ``use_distributed_sampler`` is. With ``accumulate_grad_batches``
    a step of the sequence still is one update: it comes in as many parts.

    Args:
        trainer: ``self.trainer`` of the module or data module.
        data: The data set; wrapped in `goldiprox.WithIds` where batches are to be selected from.
        batches: A `goldiprox.Sequence` to replay, or a `goldiprox.CandidateSampler` to select from; of all processes.
        kind: The class of the loader; with torchdata's `StatefulDataLoader` Lightning continues within an epoch.
        settings: Of the loader: ``num_workers``, ``collate_fn`` and so on.
    """
    if isinstance(batches, Sequence):
        batches.require(data)
    if trainer.overfit_batches:
        raise ConfigError(
            f"overfit_batches={trainer.overfit_batches} makes Lightning replace the sampler, and with it the sequence; "
            f"use limit_train_batches"
        )
    slices = Slices(batches, trainer.global_rank, trainer.world_size, accumulate=trainer.accumulate_grad_batches)
    return kind(data, sampler=_InPlace(slices), batch_size=slices.batch_size, drop_last=True, **settings)


class DataModule(pl.LightningDataModule):
    """The loader as a data module: ``trainer.fit(module, DataModule(train_set, sequence))``.

    Args:
        data: As for `loader`.
        batches: As for `loader`.
        settings: As for `loader`.
    """

    def __init__(self, data: Any, batches: Batches, **settings: Any):
        super().__init__()
        self.data, self.batches, self.settings = data, batches, settings

    def train_dataloader(self) -> Any:
        return loader(self.trainer, self.data, self.batches, **self.settings)


class Selection(pl.Callback):
    """A `goldiprox.Selector` over the candidates of all processes, saved in Lightning's checkpoints.

    Give it to the trainer as a callback, and call it in ``training_step``: ``batch = self.select(self.model, batch)``.

    Args:
        args: As for `goldiprox.Selector`.
        settings: Likewise; `keep` counts over all processes.

    Attributes:
        select: The selector, once training has begun.
    """

    select: Selector | None = None

    def __init__(self, *args: Any, **settings: Any):
        self._args, self._settings, self._state = args, settings, None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        group = {"group": dist.group.WORLD} if trainer.world_size > 1 else {}
        self.select = Selector(*self._args, **{**group, **self._settings})
        if self._state is not None:
            self.select.load_state_dict(self._state)

    def __call__(self, model: nn.Module, batch: Any) -> Batch:
        """The kept part of a batch (this process's part of what is kept)."""
        if self.select is None:
            raise ConfigError("the selection has not begun: give it to the trainer, Trainer(callbacks=[selection])")
        return self.select(model, batch)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.select is None else self.select.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict or None
        if self.select is not None and self._state is not None:
            self.select.load_state_dict(self._state)
