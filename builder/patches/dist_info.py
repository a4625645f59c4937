"""The ``.dist-info`` directory that makes added files an installed Python project.

Python packaging, "Recording installed projects", "Core metadata" and "Entry points".
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping

from builder.recipes.schema import Distribution


def dist_info(distribution: Distribution, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the ``.dist-info`` directory of ``files``, by their path in site-packages."""
    name = distribution.name.replace("-", "_").replace(".", "_").lower()
    folder = f"{name}-{distribution.version}.dist-info"
    metadata = ("Metadata-Version: 2.1", f"Name: {distribution.name}")
    texts = {
        "METADATA": "".join(
            f"{line}\n" for line in (*metadata, f"Version: {distribution.version}")
        ),
        "INSTALLER": "builder\n",
        "entry_points.txt": "".join(_entry_points(distribution)),
    }
    made = {f"{folder}/{path}": text.encode() for path, text in texts.items() if text}
    lines = [_recorded(path, content) for path, content in {**files, **made}.items()]
    record = f"{folder}/RECORD"
    return {**made, record: "".join([*lines, f"{record},,\n"]).encode()}


def _entry_points(distribution: Distribution) -> Iterator[str]:
    for group, points in distribution.entry_points.items():
        yield f"[{group}]\n"
        yield from (f"{name} = {value}\n" for name, value in points.items())


def _recorded(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}\n"
