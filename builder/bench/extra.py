"""The libraries of the extra ``bench``, which only some commands need."""

from __future__ import annotations

import importlib

from builder.errors import WorldError


def require(module: str, command: str) -> None:
    """Import a library of the extra; raises ``WorldError`` where it is not installed."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise WorldError(
            f"builder {command} needs {module}",
            str(error),
            "install it: pip install matplotlib scipy",
        ) from error
