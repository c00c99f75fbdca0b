"""GoldiProx: train faster by choosing which examples to train on.

The public names stand in ``__init__.pyi``, one per line. Each is imported when it is first used, so that whoever only
reads a sequence does not load torch.
"""

import ast
import importlib.util
import pkgutil
from typing import Any

from goldiprox._version import __version__ as __version__


def _homes() -> dict[str, str]:
    """For every public name the module that defines it."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


_HOMES = _homes()
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")  # gp.data and the like
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
