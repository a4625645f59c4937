"""The build context: the Dockerfile, named contexts, secrets and build arguments.

While an engine is compiled, the PTX that nvcc writes on the way to machine code is kept: in the
step that compiles, dockerfiles/scripts/ptxas is mounted over the toolkit's ``ptxas``.  The script
``counted`` runs the command of that step, and prints how many objects the compiler cache had.
Neither changes a byte of the image, so they are no part of the plan: the key has the Dockerfile
without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.core import farm
from builder.docker import buildx
from builder.engines.layout import LAYOUT
from builder.plan.plan import AnyPlan

WRAPPERS = "wrappers"
"""The named context of both scripts."""
SCRIPTS = ("ptxas", "counted")
BUILD_STAGE = re.compile(r"^FROM (.*\bbase-devel) AS build$", re.MULTILINE)
COMPILE = re.compile(r'^(RUN .*)\["/inside/jobs", ', re.MULTILINE)
MOUNTS = (
    f"--mount=type=bind,from={WRAPPERS},source=ptxas,target={LAYOUT.cuda}/bin/ptxas "
    f"--mount=type=bind,from={WRAPPERS},source=counted,target=/counted "
    f"--mount=type=bind,from=toolkit,source={LAYOUT.cuda}/bin,target=/toolkit "
)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A build context that ``docker buildx build`` takes."""

    folder: Path
    """Holds the Dockerfile, and the roots' tars where there are any."""
    named: Mapping[str, str]
    """--build-context, by name in the Dockerfile's FROM and --mount lines: a directory, or where an
    image of the base is found."""
    secrets: Mapping[str, Path]
    build_arguments: Mapping[str, str]
    platforms: Mapping[str, tuple[str, ...]]
    """By stage that becomes an image: "linux/amd64"."""
    epoch: int
    """The time of the newest input, in seconds since 1970: the time of the image."""

    @property
    def created(self) -> str:
        """The same as RFC 3339."""
        return datetime.fromtimestamp(self.epoch, UTC).isoformat()

    def arguments(self, stage: str) -> list[str]:
        """The options of ``docker buildx build`` for a stage, the context's path last."""
        platforms = ",".join(self.platforms[stage])
        options = [f"--platform={platforms}", f"--file={self.folder / 'Dockerfile'}"]
        options += [f"--build-context={name}={where}" for name, where in self.named.items()]
        options += [
            f"--secret={buildx.fields(f'id={name}', f'src={path}')}"
            for name, path in self.secrets.items()
        ]
        options += [f"--build-arg={name}={value}" for name, value in self.build_arguments.items()]
        return [*options, str(self.folder)]


def keeping_ptx(plan: AnyPlan, work: Path) -> tuple[str, dict[str, str]]:
    """The Dockerfile of a plan that keeps PTX and counts, and the named context that it needs.

    The context is made below ``work``.  A plan that compiles with no nvcc is left as it is.
    """
    if not plan.has_nvcc:
        return plan.text, {}
    text, stages = BUILD_STAGE.subn(r"FROM \1 AS toolkit\n\g<0>", plan.text)
    text, steps = COMPILE.subn(rf'\g<1>{MOUNTS}["/counted", "/inside/jobs", ', text)
    if not (stages and steps):
        return plan.text, {}
    folder = work / WRAPPERS
    folder.mkdir()
    for name in SCRIPTS:
        script = folder / name
        script.write_bytes((farm.installed() / "dockerfiles/scripts" / name).read_bytes())
        script.chmod(0o755)
    return text, {WRAPPERS: str(folder)}
