"""Files in the idx format of MNIST and QMNIST, packed or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from goldiprox.errors import DataError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """The array in a file, in the machine's byte order."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":  # by what it holds: browsers unpack files and leave their name
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as e:
            raise DataError(f"{path} cannot be unpacked ({e}); download it again") from e
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(f"{path} is not an idx file: it begins with {content[:4].hex(' ') or 'nothing'}")
    num_dimensions = content[3]
    start = 4 + 4 * num_dimensions
    if len(content) < start:
        raise DataError(f"{path} ends in its header, after {len(content)} bytes; download it again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:start])
    kind = np.dtype(_TYPES[content[2]])
    expected = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != expected:
        raise DataError(
            f"{path} says its shape is {shape}, {expected:,} bytes, but has {len(content):,}; download it again"
        )
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
