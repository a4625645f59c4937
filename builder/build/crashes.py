"""Unexpected exceptions: an error message where the machine is the cause, else a crash report."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from platformdirs import user_cache_path, user_state_path

from builder import __version__
from builder.core.errors import BuilderError, WorldError
from builder.core.files import full_disk, is_disk_full


def as_builder_error(error: BaseException) -> BuilderError | None:
    """The error that an exception of the operating system means; None for a bug of builder."""
    if isinstance(error, BuilderError):
        return error
    if isinstance(error, ModuleNotFoundError) and _is_optional(error.name or ""):
        return WorldError(
            "the packages for builds and tests of images are not installed",
            f"there is no {error.name}",
            "install builder with its extra `build`: uv tool install '.[build]' or "
            "pipx install '.[build]', in a checkout",
        )
    if not isinstance(error, OSError):
        return None
    if is_disk_full(error):
        named = [Path(error.filename)] if isinstance(error.filename, str) else []
        why = ": ".join([*map(str, named), str(error.strerror)])
        return full_disk(why, *(named or [*_directories(), Path(tempfile.gettempdir())]))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return WorldError(
            f"cannot read or write {error.filename or 'a file that builder needs'}",
            str(error.strerror or error),
            "check who owns it; BUILDER_CACHE_DIR and BUILDER_STATE_DIR name the directories that "
            "builder writes to",
        )
    return None


def _is_optional(module: str) -> bool:
    """Whether a module is of a package that only the extra ``build`` installs."""
    markers = {
        requirement.name.replace("-", "_"): requirement.marker
        for requirement in map(Requirement, metadata.requires("builder") or ())
    }
    marker = markers.get(module.partition(".")[0])
    return marker is not None and not marker.evaluate({"extra": ""})


def write_report(error: BaseException) -> str:
    """Write a crash report; its path, or its text where no file can be written."""
    text = "".join(traceback.format_exception(error))
    try:
        _, state = _directories()
        folder = state / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        file.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return text
    return str(file)


def _directories() -> tuple[Path, Path]:
    """The cache and the state directory, from the settings if they can be read."""
    try:
        from builder.core import settings

        chosen = settings.load()
    except Exception:  # reading the settings may be the failure
        return user_cache_path("builder"), user_state_path("builder")
    return chosen.cache_dir, chosen.state_dir
