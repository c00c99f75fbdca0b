"""Encoded images, from files or from a table, as one array of bytes."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from goldiprox.errors import ConfigError, DataError, MissingExtra, some

Size: TypeAlias = tuple[int, int]
"""(height, width)"""
# Not all that pillow knows: some formats it hands to other programs.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF", "TGA", "PCX")
# Files come from strangers, and a small one can unfold into more than there is memory.
MAX_EXPANSION, SMALL = 256, 2**26
_FROM_CAMERAS, _ORIENTATION = ("JPEG", "MPO", "TIFF", "WEBP", "AVIF"), 0x0112
_CHUNK = 256


def parse_size(text: str | int | None) -> Size | None:
    """``64`` or ``48x64`` (height x width), as a flag gives it."""
    if text is None:
        return None
    parts = str(text).lower().split("x")
    if len(parts) > 2 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise ConfigError(f"an image size of {text!r}: give one number (64), or height x width (48x64)")
    return int(parts[0]), int(parts[-1])


def suffixes() -> set[str]:
    """How the names of files end that hold images of these formats."""
    image = _pillow()
    return {suffix for suffix, format in image.registered_extensions().items() if format in FORMATS}


def decode_images(
    encoded: Sequence[bytes | Path | None],
    name_of: Callable[[int], str],
    *,
    where: str,
    limit: int,
    size: Size | None = None,
    colour: bool | None = None,
) -> np.ndarray:
    """Images (n, channels, height, width) as bytes: one channel where all of them are grey, else three.

    Args:
        encoded: The content of each, or its file.
        name_of: What a message calls the one at a position.
        where: What a message calls all of them.
        limit: Bytes that the result may take, where no size is asked for.
        size: Crop at the centre to this shape and resize; without it, all must have one size.
        colour: Three channels, whatever they have.
    """
    decoder = _Decoder(encoded, size)
    if not colour:
        images = decoder.all(where, name_of, limit, grey=True)
        if images is not None:
            return images[:, None]
    images = decoder.all(where, name_of, limit, grey=False)
    assert images is not None
    return np.ascontiguousarray(np.moveaxis(images, 3, 1))


class _NotGrey(Exception):
    """An image with colours among those taken for grey."""


class _Decoder:
    def __init__(self, encoded: Sequence[bytes | Path | None], size: Size | None):
        self.encoded, self.size = encoded, size
        self._image = _pillow()
        self._image.init()
        self._formats = [f for f in FORMATS if f in self._image.OPEN]  # a build may lack some
        self._sizes: dict[int, Size] = {}
        self._broken: dict[int, str] = {}

    def all(self, where: str, name_of: Callable[[int], str], limit: int, *, grey: bool) -> np.ndarray | None:
        """Every image; None where they are taken for grey and are not."""
        self._sizes, self._broken = {}, {}
        try:
            shape = self.size or self._first_size()
            each = shape if grey else (*shape, 3)
            if self.size is None and len(self.encoded) * int(np.prod(each, dtype=object)) > limit:
                raise DataError(
                    f"{where}: {len(self.encoded):,} images of {each} would take more than {MAX_EXPANSION} times the "
                    f"space of their files; make them smaller first, or give a size (--image-size)"
                )
            images = np.empty((len(self.encoded), *each), np.uint8)
            starts = range(0, len(self.encoded), _CHUNK)
            with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
                list(pool.map(lambda start: self._fill(images, start, shape, grey), starts))
        except _NotGrey:
            return None
        if self._broken:
            first = min(self._broken)
            raise DataError(
                f"{where}: {name_of(first)} cannot be decoded ({self._broken[first]}); remove or replace it"
                + (f", and {len(self._broken) - 1:,} more: {some(map(name_of, sorted(self._broken)[1:]))}"
                   if len(self._broken) > 1 else "")
            )  # fmt: skip
        if self._sizes:
            raise DataError(self._uneven(where, name_of, shape))
        return images

    def _first_size(self) -> Size:
        for row in range(len(self.encoded)):
            try:
                with self._open(row) as image:
                    return _size(image)
            except Exception as e:  # decoders raise whatever the bytes lead them to
                self._broken[row] = str(e)
        return 1, 1  # all are broken, and will be named

    def _open(self, row: int) -> Any:
        content = self.encoded[row]
        return self._image.open(
            content if isinstance(content, Path) else io.BytesIO(content or b""), formats=self._formats
        )

    def _fill(self, images: np.ndarray, start: int, shape: Size, grey: bool) -> None:
        for row in range(start, min(start + _CHUNK, len(self.encoded))):
            try:
                with self._open(row) as image:
                    if grey and not _is_grey(image):
                        raise _NotGrey
                    if self.size is None and (found := _size(image)) != shape:
                        self._sizes[row] = found
                    if not self._sizes:  # else only sizes are of interest
                        images[row] = self._pixels(image, grey)
            except _NotGrey:
                raise
            except Exception as e:  # decoders raise whatever the bytes lead them to
                self._broken[row] = str(e) or type(e).__name__

    def _pixels(self, image: Any, grey: bool) -> np.ndarray:
        from PIL import ImageOps

        if _is_turned(image):
            image = ImageOps.exif_transpose(image)
        if image.mode == "I;16":
            image = self._image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise ValueError(f"its pixels are numbers of 32 bits (mode {image.mode}); convert it to 8 bits")
        elif image.mode == "P":
            image = image.convert("RGBA")  # first: a palette may hold transparency
        mode = "L" if grey else "RGB"
        image = image if image.mode == mode else image.convert(mode)
        if self.size is not None and (image.height, image.width) != self.size:
            image = ImageOps.fit(image, (self.size[1], self.size[0]), self._image.Resampling.BICUBIC)
        return np.asarray(image)

    def _uneven(self, where: str, name_of: Callable[[int], str], shape: Size) -> str:
        by_size: dict[Size, list[int]] = {}
        for row, size in self._sizes.items():
            by_size.setdefault(size, []).append(row)
        first = next(row for row in range(len(self.encoded)) if row not in self._sizes)
        common = {shape: [first] * (len(self.encoded) - len(self._sizes))} | by_size
        ordered = sorted(common.items(), key=lambda item: (-len(item[1]), item[0]))
        named = [f"{h}x{w} ({len(rows):,} images, {name_of(min(rows))})" for (h, w), rows in ordered]
        square = min(min(min(size) for size in common), 64)  # what small models are made for
        return (
            f"{where}: images have {len(common)} sizes (height x width): {some(named)}. Give one size, "
            f"--image-size {square} (image_size= in gp.load): each is cropped at its centre and resized; or "
            f"make them one size first"
        )


def _size(image: Any) -> Size:
    height, width = image.height, image.width
    return (width, height) if _is_turned(image) and image.getexif()[_ORIENTATION] >= 5 else (height, width)


def _is_turned(image: Any) -> bool:
    """Whether a camera wrote that it was not held upright."""
    return image.format in _FROM_CAMERAS and image.getexif().get(_ORIENTATION, 1) != 1


def _is_grey(image: Any) -> bool:
    return image.mode in ("1", "L", "LA", "I;16", "I", "F")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "demo", "reading images") from None
    return Image
