"""Copies of an image's files on this machine.

The image may be hostile: `docker cp` to a directory would make its devices, pipes and set-uid files
here.  Its files come through a pipe, and nothing but their bytes is taken.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from builder.core.errors import UntriedError
from builder.core.pipes import output_of
from builder.docker.client import stream
from builder.docker.containers import ENGINE_TIMEOUT, created

LARGEST = 4 << 30  # bytes of a file; libcublasLt.so.13 has 0.6 GB


def copy_out(reference: str, path: str, target: Path) -> None:
    """Copy a file of an image to ``target``; raises like ``copy_all_out``."""
    copy_all_out(reference, {path: target})


def copy_all_out(reference: str, targets: Mapping[str, Path]) -> None:
    """Copy files of an image, each to its target, following links within the image.

    Raises ``UntriedError`` where one is missing, is no file, or has more than 4 GiB.
    """
    with created(reference) as container:
        for path, target in targets.items():
            fault = _copy(container, path, target)
            if fault:
                raise UntriedError(f"cannot read {path} of {reference}", fault)


def _copy(container: str, path: str, target: Path) -> str:
    """Copy a file out of a container; empty, or why not."""
    copy = ("cp", "--follow-link", f"{container}:{path}", "-")
    with (
        tempfile.TemporaryFile() as errors,
        stream(*copy, stderr=errors, timeout=ENGINE_TIMEOUT) as process,
    ):
        try:
            return _written(output_of(process), target)
        except tarfile.TarError:
            process.wait()
            errors.seek(0)
            return errors.read().decode(errors="replace").strip() or "Docker did not give it"


def _written(archive: IO[bytes], target: Path) -> str:
    """Write the first member of a tar to a file; empty, or why not.  Raises ``TarError``."""
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        member = tar.next()
        if member is None or not member.isreg():
            return "it is not a file"
        if member.size > LARGEST:
            return f"it has {member.size >> 20} MiB, more than {LARGEST >> 20} MiB"
        content = tar.extractfile(member)
        if content is None:
            return "it is not a file"
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        target.chmod(member.mode & 0o777)
    return ""
