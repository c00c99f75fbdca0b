"""Real examples: most often kept, never kept, and those whose label no model of the holdout would have guessed."""

import base64
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from goldiprox.data import TensorData
from goldiprox.errors import DataError
from goldiprox.randomness import derive
from goldiprox.report.collect import Run

NUM_SHOWN = 24
MAX_SIDE = 64
MAX_TEXT = 280
MAX_FEATURES = 8
COLUMNS = 6
_SUREST = "The surest to the holdout model: these came up to {:,} times."
_MOST_WITHOUT_A_PROXY = {
    "predictability": _SUREST,
    "irreducible_loss": _SUREST,
    "uniform": "By chance: these came up to {:,} times.",
}
_MOST = "Learnable, and long not yet learnt: the proxy came back to these up to {:,} times."


@dataclass(frozen=True)
class Item:
    """One example and what is known about it.

    Attributes:
        id: Of the example.
        given: The label it was trained with.
        true: Its true label, where that is known to differ.
        noise: Whether its input was replaced by noise.
        kept: How often it was picked.
        irreducible: Its irreducible loss.
        text: Itself, where it is no image.
        cells: Itself, where it is a row of figures.
    """

    id: int
    given: str | None
    true: str | None
    noise: bool
    kept: int
    irreducible: float
    text: str = ""
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gallery:
    """Some examples of a kind.

    Attributes:
        key: For anchors.
        title: What they have in common.
        caption: What one sees.
        kind: ``image``, ``text`` or ``row``.
        items: The examples.
        sprite: All images as one, in a grid of `columns`: a data URL.
        columns: Of that grid.
        rows: Of that grid.
    """

    key: str
    title: str
    caption: str
    kind: str
    items: list[Item]
    sprite: str = ""
    columns: int = COLUMNS
    rows: int = 1
    pixelated: bool = True
    features: tuple[str, ...] = field(default=())


def make_galleries(run: Run) -> list[Gallery]:
    """The three galleries of a run; none where its data could not be loaded."""
    if run.data is None:
        return []
    counts, train, losses = run.counts, run.train, run.irreducible
    order = train[np.argsort(-counts[train], kind="stable")]
    never = train[counts[train] == 0]
    drawn = np.random.default_rng(derive("report")).permutation(never)[:NUM_SHOWN]
    hardest = train[np.argsort(-losses[train], kind="stable")]
    most = counts[order[0]] if len(order) else 0
    acquisition = run.header.config.get("acquisition") if "proxy" not in run.header.config else ""
    caption = _MOST_WITHOUT_A_PROXY.get(str(acquisition), _MOST)
    return [
        _gallery(
            run,
            "kept",
            "Most often kept",
            caption.format(most),
            order[:NUM_SHOWN],
        ),
        _gallery(
            run,
            "never",
            "Never kept",
            f"{len(never):,} of the {len(train):,} training examples are not among the {len(run.ids):,} picks"
            + (f"; here are {len(drawn)}, drawn at random" if len(never) > len(drawn) else "")
            + ". When they came up they were known already, not learnable, or outdone by others.",
            drawn,
        ),
        _gallery(
            run,
            "hardest",
            "Highest irreducible loss",
            "What the holdout model finds least plausible: mislabelled, ambiguous or unlike the rest. Worth a look "
            "by a person before anything else.",
            hardest[:NUM_SHOWN],
        ),
    ]


def _gallery(run: Run, key: str, title: str, caption: str, ids: np.ndarray) -> Gallery:
    data = run.data
    assert data is not None
    items = [_item(run, int(id)) for id in ids]
    if not len(ids):
        return Gallery(key, title, caption, "text", [])
    inputs = data.x[torch.as_tensor(ids, device=data.x.device)].cpu()
    if data.show is not None:
        items = [_with(item, text=_text(data, x)) for item, x in zip(items, inputs, strict=True)]
        return Gallery(key, title, caption, "text", items)
    images = as_images(data, inputs)
    if images is not None:
        rows = -(-len(images) // COLUMNS)
        url = f"data:image/png;base64,{base64.b64encode(encode_png(_grid(images))).decode('ascii')}"
        pixelated = max(data.input_shape[-2:]) <= MAX_SIDE
        return Gallery(key, title, caption, "image", items, url, COLUMNS, rows, pixelated)
    flat = inputs.flatten(1)
    features = tuple(f"x{number}" for number in range(min(flat.shape[1], MAX_FEATURES)))
    if flat.shape[1] > MAX_FEATURES:
        caption += f" The first {MAX_FEATURES} of {flat.shape[1]:,} features."
    shown = flat[:, :MAX_FEATURES].tolist()
    items = [_with(item, cells=tuple(f"{v:.4g}" for v in row)) for item, row in zip(items, shown, strict=True)]
    return Gallery(key, title, caption, "row", items, features=features)


def _item(run: Run, id: int) -> Item:
    given = None if run.given is None else int(run.given[id])
    true = int(run.truth.labels[id]) if run.truth is not None and run.truth.mislabelled[id] else None
    return Item(
        id,
        None if given is None else run.class_name(given),
        None if true is None else run.class_name(true),
        bool(run.truth is not None and run.truth.white_noise[id]),
        int(run.counts[id]),
        float(run.irreducible[id]),
    )


def _with(item: Item, **more: Any) -> Item:
    return Item(**{**vars(item), **more})


def _text(data: TensorData, x: torch.Tensor) -> str:
    assert data.show is not None
    try:
        text = str(data.show(x))
    except Exception as e:  # a user's function, at the end of a long run
        raise DataError(
            f"{data.name}: its show() failed ({type(e).__name__}: {e}); correct it, then make the page with "
            f"`goldiprox report`"
        ) from e
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def as_images(data: TensorData, inputs: torch.Tensor) -> np.ndarray | None:
    """Inputs as bytes (n, height, width, 1 or 3), no larger than `MAX_SIDE`; None where they are no images."""
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or min(inputs.shape[2:]) < 4:
        return None
    pixels = inputs.float()
    if inputs.dtype != torch.uint8:
        low, high = float(data.x.min()), float(data.x.max())
        pixels = (pixels - low) * (255 / (high - low) if high > low else 0)
    if (largest := max(pixels.shape[2:])) > MAX_SIDE:
        sides = tuple(max(1, round(side * MAX_SIDE / largest)) for side in pixels.shape[2:])
        pixels = torch.nn.functional.interpolate(pixels, sides, mode="area")
    return pixels.clamp(0, 255).round().byte().permute(0, 2, 3, 1).numpy()


def _grid(images: np.ndarray) -> np.ndarray:
    """Images side by side, `COLUMNS` in a row; the last row is filled up."""
    n, height, width, channels = images.shape
    rows = -(-n // COLUMNS)
    grid = np.zeros((rows * COLUMNS, height, width, channels), np.uint8)
    grid[:n] = images
    grid = grid.reshape(rows, COLUMNS, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, COLUMNS * width, channels)


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG file of (height, width, 1 or 3) bytes: some lines of our own, so that no page needs pillow."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    # Every line begins with the number of its filter; 0 is none.
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
