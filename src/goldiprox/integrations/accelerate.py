"""Accelerate: loaders that give each process its part of every recorded batch, and selection across processes."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from goldiprox.errors import ConfigError, MissingExtra
from goldiprox.forward import call
from goldiprox.integrations.slices import Batches, Slices
from goldiprox.selection import Selector
from goldiprox.sequence import Sequence

try:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader
except ImportError as e:
    raise MissingExtra("accelerate", "accelerate", "goldiprox.integrations.accelerate") from e


def loader(accelerator: Accelerator, data: Any, batches: Batches, **settings: Any) -> Any:
    """A loader of this process's part of every batch, on its device; `accelerator.prepare` leaves it as it is.

    With gradient accumulation a step of the sequence still is one update: it comes in as many parts.

    Args:
        accelerator: Knows the processes.
        data: The data set; wrapped in `goldiprox.WithIds` where batches are to be selected from.
        batches: A `goldiprox.Sequence` to replay, or a `goldiprox.CandidateSampler` to select from; of all processes.
        settings: Of the `DataLoader`: ``num_workers``, ``collate_fn`` and so on.
    """
    if isinstance(batches, Sequence):
        batches.require(data)
    accumulate = accelerator.gradient_accumulation_steps
    sampler = Slices(batches, accelerator.process_index, accelerator.num_processes, accumulate=accumulate)
    prepared = prepare_data_loader(
        DataLoader(data, batch_sampler=sampler, **settings),
        accelerator.device,
        num_processes=1,  # each batch is this process's part already
        process_index=0,
        put_on_device=True,
        dispatch_batches=False,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
    )
    prepared._is_accelerate_prepared = True
    return accelerator.prepare(prepared)


def selector(accelerator: Accelerator, *args: Any, **settings: Any) -> Selector:
    """A `goldiprox.Selector` over the candidates of all processes, computing in the accelerator's precision.

    Its state is saved and loaded with ``accelerator.save_state`` and ``load_state``.

    Args:
        accelerator: Knows the processes.
        args: As for `goldiprox.Selector`.
        settings: Likewise; `keep` counts over all processes.
    """
    if accelerator.num_processes > 1:
        settings.setdefault("group", dist.group.WORLD)
    if "losses" in settings:
        raise ConfigError("losses= computes in a precision of its own; give loss= and forward= instead")
    forward = settings.pop("forward", call)

    def plain(model: nn.Module, x: Any) -> Any:
        # Not through the wrapper: its hooks exchange gradients and buffers, and there are none to exchange.
        with accelerator.autocast():
            return forward(accelerator.unwrap_model(model), x)

    select = Selector(*args, forward=plain, **settings)
    accelerator.register_for_checkpointing(select)
    return select
