"""Where files lie: a folder here, or an address such as ``s3://bucket/folder`` that pyarrow or fsspec can open."""

from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from goldiprox.errors import MissingData
from goldiprox.storage import read_file


def is_address(place: str) -> bool:
    return "://" in place


def find(place: str, pattern: str) -> list[str]:
    """The files under a folder or address whose name fits a pattern, in one order everywhere."""
    if not is_address(place):
        return [str(path) for path in sorted(Path(place).rglob(pattern))]
    filesystem, folder = _filesystem(place)
    scheme, _, _ = place.partition("://")
    try:
        there = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    except (OSError, pa.ArrowException) as e:
        raise MissingData(f"{place} cannot be listed: {str(e).splitlines()[0]}; is the address right?") from e
    names = [info.path for info in there if info.is_file and fnmatch(PurePosixPath(info.path).name, pattern)]
    return [f"{scheme}://{name}" for name in sorted(names, key=lambda name: PurePosixPath(name).parts)]


def open_source(path: str) -> pa.NativeFile:
    """A file to read from: mapped where it lies here."""
    if not is_address(path):
        return pa.BufferReader(pa.py_buffer(read_file(Path(path), mapped=True)))
    filesystem, name = _filesystem(path)
    return filesystem.open_input_file(name)


def _filesystem(address: str) -> tuple[fs.FileSystem, str]:
    try:
        return fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError, ValueError):
        return _from_fsspec(address)


def _from_fsspec(address: str) -> tuple[fs.FileSystem, str]:
    """What pyarrow does not know itself, fsspec may: gcs, hf, memory and others."""
    try:
        import fsspec

        known, name = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as e:
        raise MissingData(f"no file system is known for {address} ({e}); install fsspec and what it asks for") from e
    return fs.PyFileSystem(fs.FSSpecHandler(known)), name
