"""What lies beside the Arrow files of a run: weights, JSON and JSON lines, each written so that none is half there."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from goldiprox.errors import OutputNotWritable
from goldiprox.storage import publish, sync, write_atomically, writing

if TYPE_CHECKING:
    from torch import nn


def write_json(path: Path, value: object) -> None:
    """A JSON file, written atomically; what is not finite becomes null, which JSON has."""
    write_atomically(path, as_json(value).encode())


def as_json(value: object) -> str:
    """A text in JSON; what is not finite becomes null, which JSON has."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def save_weights(model: "nn.Module", path: Path) -> None:
    """A model's weights as safetensors, put under their name in one step."""
    from safetensors.torch import save_model

    # A folder, because safetensors has a file of its own on the way, which a kill would leave for good.
    folder = path.with_name(path.name + ".saving")
    with writing(path):
        folder.mkdir(exist_ok=True)
        try:
            partial = folder / path.name
            partial.touch()
            mode = partial.stat().st_mode
            save_model(model, str(partial))
            partial.chmod(mode)  # safetensors makes files that nobody else can read
            sync(partial)
            publish(partial, path)
        except SafetensorError as e:
            raise OutputNotWritable(f"writing {path} failed: {e}") from e
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class JsonLines:
    """Writes one JSON object a line, each handed to the system before the call returns; a context manager."""

    def __init__(self, path: Path):
        self.path = path
        with writing(path):
            self._file = path.open("w", encoding="utf-8")

    def __call__(self, record: Mapping[str, object]) -> None:
        with writing(self.path):
            self._file.write(json.dumps(_finite(record)) + "\n")
            self._file.flush()

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
