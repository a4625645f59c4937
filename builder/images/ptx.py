"""The PTX that nvcc writes on the way to machine code is kept while an engine is compiled.

In the step that compiles, dockerfiles/scripts/ptxas is mounted over the toolkit's ``ptxas``.  That
changes no byte of the image, so it is no part of the plan: the key has the Dockerfile without it.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder import farm
from builder.families.layout import LAYOUT
from builder.plan.plan import BasePlan, Plan

NVCC = "nvidia-cuda-nvcc"
"""The wheel that has ``ptxas``."""
WRAPPER = "ptxas"
"""The script, and the named context that holds it."""
BUILD_STAGE = re.compile(r"^FROM (.*\bbase-devel) AS build$", re.MULTILINE)
COMPILE = re.compile(r'^(RUN .*)(\["/inside/jobs", )', re.MULTILINE)
MOUNTS = (
    f"--mount=type=bind,from={WRAPPER},source={WRAPPER},target={LAYOUT.cuda}/bin/ptxas "
    f"--mount=type=bind,from=toolkit,source={LAYOUT.cuda}/bin,target=/toolkit "
)


def keeping(plan: Plan | BasePlan, work: Path) -> tuple[str, dict[str, str]]:
    """The Dockerfile of a plan that keeps PTX, and the named context that it needs.

    The context is made below ``work``.  A plan that compiles with no nvcc is left as it is.
    """
    if not isinstance(plan, Plan) or not has_nvcc(plan):
        return plan.text, {}
    text, stages = BUILD_STAGE.subn(r"FROM \1 AS toolkit\n\g<0>", plan.text)
    text, steps = COMPILE.subn(rf"\g<1>{MOUNTS}\2", text)
    if not (stages and steps):
        return plan.text, {}
    folder = work / WRAPPER
    folder.mkdir()
    script = folder / WRAPPER
    script.write_bytes((farm.installed() / "dockerfiles/scripts" / WRAPPER).read_bytes())
    script.chmod(0o755)
    return text, {WRAPPER: str(folder)}


def has_nvcc(plan: Plan) -> bool:
    """Whether the base of a plan has an image to compile in, with nvcc."""
    if "devel" not in plan.base.references:
        return False
    lists = (files for base in plan.base.chain() for files in base.packages.values())
    return any(file.name == NVCC for files in lists for file in files)
