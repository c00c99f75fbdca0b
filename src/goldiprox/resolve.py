"""Names on the command line: a built-in one, or ``package.module:callable``."""

import importlib
from collections.abc import Mapping
from typing import Any

from goldiprox.errors import UnknownName


def resolve(what: str, name: str, known: Mapping[str, Any], hint: str = "") -> Any:
    """What a name stands for.

    Args:
        what: For the message: ``model``, ``acquisition``, ...
        name: A key of `known`, or ``package.module:attribute``.
        known: The built-in ones.
        hint: A further remedy for the message.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise UnknownName(what, name, known, hint or "Your own: package.module:callable.")
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise UnknownName(what, name, known, "Your own: package.module:callable.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name and not module_name.startswith(e.name):
            raise  # the user's module exists and lacks something: their traceback says it best
        raise UnknownName(what, name, known, f"There is no module {module_name!r} here or on the Python path.") from e
    there = {n: v for n, v in vars(module).items() if callable(v) and not n.startswith("_")}
    if attribute not in there:
        raise UnknownName(f"{what} in {module_name}", attribute, there)
    return there[attribute]
