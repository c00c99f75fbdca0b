"""Data that lives on the device as one tensor, and is normalised when a batch is taken from it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from goldiprox.errors import DataError, some
from goldiprox.watch import has_triton


class TensorData(Dataset):
    """A map-style data set of tensors that fits on the device.

    Stored inputs stay as they came (bytes for images); what a batch gives is ``(x - mean) / std``, in
    float32, with bytes first scaled to [0, 1].

    Args:
        x: Inputs, examples first.
        y: Targets, one per example.
        num_classes: Set for classification; every target must then be in ``[0, num_classes)``.
        mean: Per channel (dimension 1), or None for inputs used as they are.
        std: Likewise.
        name: For messages and reports.
        class_names: For reports.
        show: For reports, how an input as it is stored reads where it is neither an image nor a row of figures:
            ``lambda tokens: tokenizer.decode(tokens)``, say.
        files: The file of each example, where each has one; for lists of suspects.
        copy_of: The fingerprint of another data set that this one is a copy of, and is to be known by.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        num_classes: int | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        name: str = "data",
        class_names: tuple[str, ...] = (),
        show: Callable[[Tensor], str] | None = None,
        files: tuple[str, ...] = (),
        copy_of: str = "",
    ):
        if len(x) != len(y):
            raise DataError(f"{name}: {len(x):,} inputs but {len(y):,} targets")
        if files and len(files) != len(x):
            raise DataError(f"{name}: {len(x):,} inputs but {len(files):,} files")
        if num_classes is not None:
            check_labels(y, num_classes, name)
            y = y.long()
        if (mean is None) != (std is None):
            raise DataError(f"{name}: give both mean and std, or neither")
        self.x, self.y = x, y
        self.num_classes, self.mean, self.std = num_classes, mean, std
        self.name, self.class_names, self.show, self.files, self.copy_of = name, class_names, show, files, copy_of
        last = x.ndim == 4 and x.shape[1] > 1 and x.is_contiguous(memory_format=torch.channels_last)
        # Rows are taken from memory as it lies: indexing a view with channels last would undo that.
        self._rows = x.permute(0, 2, 3, 1) if last and not x.is_contiguous() else x
        self._scale, self._shift = self._affine()
        self._in_one_pass = (
            x.is_cuda
            and self._rows.is_contiguous()
            and (x.dtype == torch.uint8 or x.is_floating_point())
            and x.dtype != torch.float64
            and y.ndim == 1
            and y.is_contiguous()
            and has_triton()
        )
        self._copies: dict[str, TensorData] = {}

    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        unit = 255.0 if self.x.dtype == torch.uint8 else 1.0
        if self.mean is None or self.std is None:
            return (torch.tensor(1 / unit, device=self.x.device), None) if unit != 1 else (None, None)
        shape = (-1,) if self.is_channels_last else (-1, *[1] * (self.x.ndim - 2))
        mean, std = (np.asarray(v, np.float64).reshape(shape) for v in (self.mean, self.std))
        scale, shift = 1 / (unit * std), -mean / std
        return tuple(torch.tensor(v, dtype=torch.float32, device=self.x.device) for v in (scale, shift))  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, id: int) -> tuple[Tensor, Tensor]:
        x, y = self.gather(torch.tensor([id]))
        return x[0], y[0]

    def gather(self, ids: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these ids, normalised."""
        ids = ids.to(self.x.device)
        if self._in_one_pass and len(ids):
            from goldiprox.kernels import take

            x, y = take(self._rows, self.y, ids, self._scale, self._shift, channels_last=self.is_channels_last)
            return x.permute(0, 3, 1, 2) if self.is_channels_last else x, y
        x = self._rows[ids]
        if x.is_floating_point():
            x = x.float()
        if self._scale is not None:
            x = x * self._scale  # bytes times float32 is float32, in one pass
        if self._shift is not None:
            x = x + self._shift
        return x.permute(0, 3, 1, 2) if self.is_channels_last else x, self.y[ids]

    @property
    def is_channels_last(self) -> bool:
        return self._rows is not self.x

    def channels_last(self) -> "TensorData":
        """The same images, their channels last in memory: what convolutions on a GPU are fastest with.

        Give it to models made so as well: ``model.to(memory_format=torch.channels_last)``.
        """
        if self.x.ndim != 4:
            raise DataError(f"{self.name}: inputs of shape {self.input_shape} have no channels to put last")
        return self.replace(x=self.x.contiguous(memory_format=torch.channels_last), copy_of=self.copy_of)

    def to(self, device: torch.device | str) -> "TensorData":
        device = torch.device(device)
        if self.x.device == device:
            return self
        return self.replace(x=self.x.to(device), y=self.y.to(device), copy_of=self.copy_of)

    def resident(self, device: torch.device | str) -> "TensorData":
        """This data on a device, copied there once, if it takes at most half of what is free there; else as it is."""
        device = torch.device(device)
        if device == self.x.device:
            return self
        if str(device) not in self._copies:
            num_bytes = self.x.nbytes + self.y.nbytes
            if device.type == "cuda" and num_bytes > torch.cuda.mem_get_info(device)[0] // 2:
                return self
            self._copies[str(device)] = self.to(device)
        return self._copies[str(device)]

    def __getstate__(self) -> dict[str, Any]:
        # Loading processes need the original only, and show and list nothing.
        return vars(self) | {"_copies": {}, "show": None, "files": ()}

    def replace(self, **changes: Any) -> "TensorData":
        """A copy with some of its parts exchanged; with other content it is a data set of its own."""
        kept = ("x", "y", "num_classes", "mean", "std", "name", "class_names", "show", "files")
        if not changes.keys() & {"x", "y", "mean", "std"}:
            kept = (*kept, "copy_of")
        return TensorData(**({k: getattr(self, k) for k in kept} | changes))

    @property
    def labels(self) -> np.ndarray:
        return self.y.cpu().numpy()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def hashed_parts(self) -> list[Any]:
        """What the fingerprint covers: every byte."""
        return [self.x, self.y, list(self.mean or ()), list(self.std or ())]


def check_labels(y: Tensor, num_classes: int, name: str) -> None:
    if y.is_floating_point() or y.ndim != 1:
        raise DataError(
            f"{name}: class labels must be integers, one per example; got {y.dtype}, shape {tuple(y.shape)}"
        )
    bad = ((y < 0) | (y >= num_classes)).nonzero().flatten().tolist()
    if bad:
        raise DataError(
            f"{name}: {len(bad):,} labels are outside the {num_classes} classes 0..{num_classes - 1}: ids {some(bad)} "
            f"have labels {some(y[bad].tolist())}; correct them or raise num_classes"
        )


def as_resident(dataset: Any, name: str, *, num_classes: int | None = None) -> TensorData:
    """Any map-style data set of ``(x, y)``, read once into memory."""
    if isinstance(dataset, TensorData):
        return dataset
    xs, ys = [], []
    for id in range(len(dataset)):
        item = dataset[id]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{name}: example {id} is a {type(item).__name__}; the command line needs pairs (x, y), of a text "
                f"(token ids, label). In Python (gp.record, ...) any map-style data set will do"
            )
        x, y = item
        try:
            xs.append(torch.as_tensor(np.asarray(x)))
            ys.append(torch.as_tensor(y))
        except (TypeError, ValueError, RuntimeError) as e:
            raise DataError(
                f"{name}: example {id} does not become numbers ({e}); its target is {y!r:.60}. Give inputs of numbers, "
                f"and classes as integers 0..k-1"
            ) from None
        if xs[-1].shape != xs[0].shape:
            raise DataError(
                f"{name}: example {id} has shape {tuple(xs[-1].shape)}, example 0 {tuple(xs[0].shape)}; "
                f"make all inputs one size: resize images, pad texts"
            )
    if not xs:
        raise DataError(f"{name} is empty")
    y = torch.stack(ys)
    if num_classes is None and not y.is_floating_point() and y.ndim == 1:
        num_classes = int(y.max()) + 1
    show: Any = getattr(dataset, "show", None)
    return TensorData(torch.stack(xs), y, num_classes=num_classes, name=name, show=show)
