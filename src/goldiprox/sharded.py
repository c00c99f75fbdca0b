"""Checkpoints of a model that several processes train on a sequence: DDP, or sharded by ``fully_shard``.

They are those of ``torch.distributed.checkpoint``: every rank writes its shard, and another number of ranks, or one
process, reads them again.
"""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from goldiprox.errors import ConfigError, CorruptFile
from goldiprox.sequence import Digest, Sequence
from goldiprox.storage import partial_path


def save_training(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sequence: Sequence,
    *,
    step: int,
) -> None:
    """Saves a training run after so many steps of a sequence; every rank calls it.

    It is written beside `folder` and put in its place when all ranks are done, so that a crash leaves the one before.

    Args:
        folder: One that all ranks can write to. An older checkpoint there is replaced.
        model: Plain, in DDP, or sharded.
        optimizer: Its optimiser.
        sequence: What it trains on.
        step: How many steps are done.
    """
    folder = Path(folder)
    partial = partial_path(folder)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _wait()
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(step), "digest": _digest(sequence, step)}
    with _one_process_is_fine():
        save(state, checkpoint_id=partial)
    if first:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    _wait()


def load_training(
    folder: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer, sequence: Sequence
) -> int:
    """Puts model and optimiser where `save_training` found them; every rank calls it.

    Only from folders that you have written yourself: torch keeps the description of a checkpoint in a format that can
    run code when it is read.

    Args:
        folder: Where it was saved, by any number of ranks.
        model: As it was built, plain, in DDP or sharded, whatever it was when it was saved.
        optimizer: Its optimiser.
        sequence: What it trained on; another one is refused.

    Returns:
        How many steps are done; 0 where nothing was saved.
    """
    folder = Path(folder)
    if not folder.exists():
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    state |= {"step": torch.tensor(0), "digest": torch.zeros(32, dtype=torch.uint8)}
    try:
        with _one_process_is_fine():
            load(state, checkpoint_id=folder)
    except CheckpointException as e:
        cause = next(iter(e.failures.values()))[0]
        raise CorruptFile(
            f"{folder} is no checkpoint of this model, or is damaged ({cause}); use the model that it was saved from, "
            f"or remove the folder to start over"
        ) from e
    step = int(state["step"])
    if step > len(sequence) or not torch.equal(state["digest"], _digest(sequence, step)):
        raise ConfigError(
            f"{folder} belongs to another sequence: its first {step:,} steps differ; open that one, or remove the "
            f"folder to start over"
        )
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def _digest(sequence: Sequence, steps: int) -> torch.Tensor:
    """The digest of the first steps over all ranks."""
    digest = Digest()
    for ids in sequence.blocks(steps * sequence.keep):
        digest.update(ids)
    return torch.frombuffer(bytearray.fromhex(str(digest).partition(":")[2]), dtype=torch.uint8)


@contextmanager
def _one_process_is_fine() -> Iterator[None]:
    """Without torch's warning that a single process is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()
