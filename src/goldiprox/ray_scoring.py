"""Scoring on a Ray cluster: the training side is read from Parquet files by Ray Data, and scored by a pool of actors.

Blocks are whole passes of `goldiprox.assessment.assess`, so that every pass holds the examples that it holds in one
process, and the losses are the same to the last bit on the same kind of CPU. ``ray.data.read_parquet`` cuts files
where it likes; here a block says which ids it holds, and a task reads those.
"""

import copy
import functools
import hashlib
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldiprox.artifacts import Header, Table, TableWriter, check_folder, id_type
from goldiprox.assessment import assess, passes_of
from goldiprox.data import TensorData, fingerprint
from goldiprox.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    GoldiproxError,
    MissingExtra,
    ModelMismatch,
    WrongKind,
)
from goldiprox.forward import Forward, PerExampleLoss, call, cross_entropy
from goldiprox.split import digest_ids
from goldiprox.storage import partial_path

KIND, MAX_BLOCKS = "scores", 10_000
FIGURES = ("irreducible", "rival", "margin")
"""What `goldiprox.assessment.assess` gives for an example."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayScoring:
    """Scores on a Ray cluster what `goldiprox.assessment.assess` scores in this process, for `irreducible_losses`.

    Args:
        rows: Reads examples: `goldiprox.data.parquet.ImageRows`, or anything with a length and ``read(ids)``, which
            gives inputs and targets of ascending ids as the base data set stores them.
        address: Of a cluster; by default RAY_ADDRESS, else one is started here for as long as it is needed.
        actors: How many processes score at once; by default as many as there is room for.
        gpus: For each of them; a share such as 0.25 puts four on a GPU.
        passes: Per block: what a process scores at a time, and what is lost when it dies. By default 1, and more where
            there would be over 10,000 blocks.
        on_block: Called with the number of examples scored so far, and of all.
    """

    rows: Any
    address: str | None = None
    actors: int | None = None
    gpus: float = 0
    passes: int | None = None
    on_block: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005

    def __post_init__(self):
        if self.gpus < 0 or not all(number is None or number >= 1 for number in (self.passes, self.actors)):
            raise ConfigError(
                f"{self.actors} actors of {self.gpus} GPUs with blocks of {self.passes} passes: give at least one "
                f"actor and one pass, and no negative share of a GPU"
            )

    def __call__(
        self,
        il_model: nn.Module,
        data: Any,
        ids: np.ndarray,
        *,
        loss: PerExampleLoss = cross_entropy,
        forward: Forward = call,
        folder: Path | None = None,
    ) -> Tensor:
        """What `goldiprox.assessment.assess` gives for these ids.

        Args:
            il_model: The model.
            data: The base data set, `TensorData`; what the files hold is compared with it.
            ids: The examples to score.
            loss: One loss per example.
            forward: How the model is called.
            folder: Where scored blocks are kept until all are there; the same call goes on from them.
        """
        if not isinstance(data, TensorData) or len(self.rows) != len(data):
            raise DataError(
                f"the files hold {len(self.rows):,} examples, and are to be scored as a {type(data).__name__} of "
                f"{len(data):,}; use files and `TensorData` of the same examples"
            )
        ids = np.asarray(ids, np.int64)
        examples = passes_of("cuda" if self.gpus else "cpu")
        size = examples * (self.passes or max(1, len(ids) // examples // MAX_BLOCKS))
        order = ids.argsort()
        found_of, scored = np.full((len(ids), len(FIGURES)), np.nan, np.float32), np.zeros(len(ids), bool)

        def put(found: np.ndarray, values: np.ndarray) -> int:
            rows = order[np.searchsorted(ids, found, sorter=order)]
            found_of[rows], scored[rows] = values, True
            return len(found)

        described = {"fingerprint": fingerprint(data), "length": len(data)}
        with _kept(folder, described, _identity(il_model, ids)) as (known, keep):
            done = put(*known)
            starts = [start for start in range(0, len(ids), size) if not scored[start : start + size].all()]
            left = [ids[start : start + size] for start in starts]
            self.on_block(done, len(ids))
            for found, values in self._score(il_model, data, left, loss, forward):
                keep({"id": found, **dict(zip(FIGURES, values.T, strict=True))})
                done += put(found, values)
                self.on_block(done, len(ids))
        return torch.from_numpy(found_of)

    def _score(
        self, il_model: nn.Module, data: TensorData, blocks: list[np.ndarray], loss: PerExampleLoss, forward: Forward
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if not blocks:
            return
        ray = import_ray()
        model, like = copy.deepcopy(il_model).cpu(), data.replace(x=data.x[:1].cpu(), y=data.y[:1].cpu(), files=())
        device = "cuda" if self.gpus else "cpu"
        items = [{"ids": block, "seal": _seal(*_stored(data, block))} for block in blocks]
        _connect(ray, self.address)
        context = ray.data.DataContext.get_current()
        before = context.target_max_block_size, context.enable_progress_bars
        context.target_max_block_size, context.enable_progress_bars = None, False  # a large block must stay whole
        try:
            pool = {"size": min(self.actors, len(blocks))} if self.actors else {"min_size": 1, "max_size": len(blocks)}
            scored = (
                ray.data.from_items(items, override_num_blocks=len(items))
                .map_batches(
                    _read, fn_kwargs={"rows": self.rows, "channels": data.x.shape[1]}, batch_size=1, num_cpus=1
                )
                .map_batches(
                    _Score,
                    fn_constructor_args=(model, like, loss, forward, device, torch.get_num_threads()),
                    batch_size=None,
                    compute=ray.data.ActorPoolStrategy(**pool),
                    num_cpus=1,
                    num_gpus=self.gpus or None,
                )
            )
            for block in scored.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
                yield block["id"], np.stack([block[name] for name in FIGURES], 1)
        except ray.exceptions.RayError as e:
            raise _cause(e) from e
        finally:
            context.target_max_block_size, context.enable_progress_bars = before


def _read(item: Mapping[str, np.ndarray], rows: Any, channels: int) -> dict[str, np.ndarray]:
    """One block: its examples as they are stored, once they are those that are meant."""
    ids = item["ids"][0]
    order = ids.argsort()
    x, y = rows.read(ids[order])
    back = order.argsort()
    x, y = x[back], y[back]
    if x.ndim == 4 and x.shape[1] == 1 != channels:  # grey images among coloured ones
        x = np.repeat(x, channels, 1)
    if _seal(x, y) != item["seal"][0]:
        raise DataError(
            f"examples {ids.min():,} to {ids.max():,} are not in the files as in the data set that was loaded; score "
            f"files as they are loaded (without --noise and the like), and do not change them meanwhile"
        )
    return {"id": ids, "x": x, "y": y, "of": np.full(len(ids), len(ids))}


class _Score:
    """What an actor holds: the model, and all that is needed to call it as one process does."""

    def __init__(
        self,
        model: nn.Module,
        like: TensorData,
        loss: PerExampleLoss,
        forward: Forward,
        device: str,
        num_threads: int,
    ):
        torch.set_num_threads(num_threads)  # sums depend on it
        self.model, self.like = model.to(device), like
        self.assess = functools.partial(assess, loss=loss, forward=forward)

    def __call__(self, block: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(block["id"]) != block["of"][0]:
            raise GoldiproxError(
                f"Ray handed over {len(block['id'])} examples of a block of {block['of'][0]}; scored in other passes, "
                f"losses would be rounded otherwise"
            )
        data = self.like.replace(x=torch.tensor(block["x"]), y=torch.tensor(block["y"]))
        if self.like.is_channels_last:
            data = data.channels_last()
        found = self.assess(self.model, data, np.arange(len(data))).numpy()
        return {"id": block["id"], **dict(zip(FIGURES, found.T, strict=True))}


def _stored(data: TensorData, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = torch.from_numpy(ids)
    return data.x[rows.to(data.x.device)].cpu().numpy(), data.y[rows.to(data.y.device)].cpu().numpy()


def _seal(x: np.ndarray, y: np.ndarray) -> int:
    """A checksum over what examples are."""
    return zlib.crc32(np.ascontiguousarray(x).data, zlib.crc32(y.astype("<i8").data))


def _identity(model: nn.Module, ids: np.ndarray) -> str:
    """A hash over weights and ids: losses of another model must not be taken for this one's."""
    digest = hashlib.sha256(digest_ids(ids).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def _kept(
    folder: Path | None, data: dict[str, Any], identity: str
) -> Iterator[tuple[tuple[np.ndarray, np.ndarray], Callable[[Mapping[str, np.ndarray]], None]]]:
    """What was scored before, and a function that keeps what is scored now."""
    nothing = np.empty(0, np.int64), np.empty((0, len(FIGURES)), np.float32)
    if folder is None:
        yield nothing, lambda columns: None  # noqa: ARG005
        return
    path = check_folder(folder) / "scored.arrow"
    columns = {"id": id_type(data["length"]), **dict.fromkeys(FIGURES, "float32")}
    header = Header(kind=KIND, data=data, config={"scores_of": identity}, columns=columns)
    before = _scored_before(path, header)
    known = nothing
    if before:
        known = before.column("id").astype(np.int64), np.stack([before.column(name) for name in FIGURES], 1)
    if before and before.complete:
        yield known, lambda columns: None  # noqa: ARG005
        return
    table = TableWriter(path, header, force=True, resume_at=before.num_rows if before else None)
    try:
        yield known, table.append  # on the disk when it returns: what is lost is what is being scored
        table.close()
    finally:
        table.abandon()


def _scored_before(path: Path, header: Header) -> Table | None:
    there = next((p for p in (path, partial_path(path)) if p.exists()), None)
    if there is None:
        return None
    try:
        table = Table.open(there, kind=KIND, partial=True)
    except (CorruptFile, WrongKind) as e:
        _log.warning("%s; scoring anew", e)
        return None
    if header.differences(table.header):
        _log.warning("%s holds scores of another model or of other examples; scoring anew", there)
        return None
    return table


def import_ray() -> Any:
    """The package, or an error that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a library sends nothing anywhere
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("ray", "ray", "scoring on a Ray cluster") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """To a cluster, unless this process is; one that is started here ends with this process."""
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, include_dashboard=None if address else False, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as e:
        raise ConfigError(f"no Ray cluster at {address or 'this machine'}: {e}; see `ray status`") from e


def _cause(error: Exception) -> GoldiproxError:
    """Our own error where one was raised in another process: Ray hands over its text alone."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    ours = re.search(r"^goldiprox\.errors\.(\w+): (.+)$", text, flags=re.MULTILINE)
    if ours:
        kind = {"DataError": DataError, "ModelMismatch": ModelMismatch}.get(ours[1], GoldiproxError)
        return kind(ours[2])
    first, *_ = text.split("\n\nThe above exception")
    return GoldiproxError(f"scoring on Ray failed: {first.strip().splitlines()[-1]}. What was scored is kept")
