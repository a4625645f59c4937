"""The matrix of a workflow: which recipes, on which runner, with how much disk.

Whether a recipe changed since a revision is decided by keys: each revision computes, with its own
code, a key over all inputs of its images.  So a template that changes every image
changes every recipe, and a comment changes none.  Nothing is fetched and no engine is asked: the
keys are for amd64, with a Debian root whose digest is not looked up, so they are only compared with
each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.build.build import WORK_SPACE
from builder.core import archives
from builder.core.errors import RecipeError, WorldError
from builder.core.log import Log
from builder.engines import families
from builder.plan.inputs import identified
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe
from builder.sources import git
from builder.sources.git import GitError, checked_commit
from builder.upstream import night

HOSTED = "ubuntu-24.04"
"""GitHub's standard runner; another one needs another list in ``prepare_runner.py``."""
FREE = 14e9 / 2**30
"""GiB of disk that GitHub guarantees on it ("14 GB",
https://docs.github.com/en/actions/reference/runners/github-hosted-runners)."""
CLEARED = FREE + 17.0
"""GiB after the toolchains that no recipe needs are removed.  In May 2026 they were measured at
27 GiB, Android's alone at 8 to 14; the margin allows for smaller ones."""
JOB_DISK = 2.0
"""GiB that the job itself needs: the virtual environment, and the compiler cache as a file."""
IGNORED = {"notes", "track", "build"}
"""Tables of a recipe that affect neither its image nor its smoke test."""
LOOK_BACK = 10  # ancestors that are tried, beginning with the revision itself
PATIENCE = 300.0  # seconds for another revision to print its matrix


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a matrix: a recipe, and the runner and the disk that it needs."""

    recipe: str
    engine: str
    base: str
    channel: str
    """The tag that each successful nightly run moves; empty if there is none."""
    disk: int
    """GiB of free disk for building, smoke-testing and pushing together."""
    clear: bool
    """Whether the preinstalled toolchains of the runner must be removed first."""
    emulate: bool
    """Whether an image for another platform than the runner's is built and smoke-tested."""
    runner: str
    """Label for ``runs-on``; empty if no known runner has enough disk."""
    cache: str
    """Prefix of the key of its compiler cache; empty if it compiles nothing.

    It ends in a character that no name contains, because GitHub restores any key with the prefix.
    """
    image: str
    """Key over the inputs of its image (sha256, hex); only comparable with another one of these."""
    direct: str
    """The same over the recipe alone, without base and builder."""


def jobs(catalog: Catalog, names: Sequence[str] = (), *, tracked: bool = False) -> list[Job]:
    """A job for each named recipe, or for all; ``tracked`` leaves out recipes without a channel.

    Raises ``RecipeError`` if one of them is invalid, or is named and has no channel.
    """
    if not names and catalog.problems():
        raise RecipeError("some recipes are invalid", problems=catalog.problems())
    entries = {entry.name: entry for entry in map(catalog.engine, names or catalog.engines)}
    if tracked and names:
        night.require_channels(entries.values())
    found = [_job(catalog, entry) for entry in entries.values()]
    return [job for job in found if job.channel or not tracked]


def _job(catalog: Catalog, entry: Entry[Recipe]) -> Job:
    recipe = entry.recipe
    plans = Resolver(catalog, "amd64").plans(entry.name)
    disk = disk_of(catalog, recipe)
    return Job(
        recipe=recipe.name,
        engine=recipe.engine,
        base=recipe.base,
        channel=night.tag_of(entry),
        disk=math.ceil(disk),
        clear=disk > FREE,
        emulate=any(target != "amd64" for target in recipe.targets),
        runner=HOSTED if disk <= CLEARED else "",
        cache=f"ccache@{recipe.base}@{recipe.engine}@" if plans[0].family.uses_ccache else "",
        image=_joined([plan.key for plan in plans]),
        direct=_joined([_direct_key(recipe, plan) for plan in plans]),
    )


def disk_of(catalog: Catalog, recipe: Recipe) -> float:
    """GiB that a recipe needs on a fresh machine: for its bases, itself, its inputs and the job.

    The sum is an upper bound, because building a base takes more disk than the base itself.
    """
    bases = [catalog.base(name).recipe for name in families.bases_of(catalog, recipe)]
    of_bases = [base.build.disk for base in bases]
    return (sum(of_bases) + recipe.build.disk) * len(recipe.platform) + WORK_SPACE + JOB_DISK


def _joined(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else hashlib.sha256(" ".join(keys).encode()).hexdigest()


def _direct_key(recipe: Recipe, plan: Plan) -> str:
    """A key over the recipe as it is written, because new defaults are changes of builder."""
    parts = {
        "recipe": recipe.model_dump(mode="json", exclude_unset=True, exclude=IGNORED),
        "source": identified(plan.source)[0],
        "patches": [hashlib.sha256(patch.content).hexdigest() for patch in plan.patches],
        "packages": [
            [file.name, file.version, file.sha256]
            for files in plan.packages.values()
            for file in files
        ],
        "debian": plan.debian.inputs(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def placed(found: Iterable[Job], large: str = "") -> tuple[list[Job], list[Job]]:
    """The jobs with a runner, and the jobs that need more disk than any runner has.

    ``large`` is the label of a runner with more disk than GitHub's standard one.
    """
    placed = [replace(job, runner=job.runner or large) for job in found]
    placed = [replace(job, clear=job.clear and job.runner == HOSTED) for job in placed]
    return [job for job in placed if job.runner], [job for job in placed if not job.runner]


def changed(
    found: Iterable[Job], before: Mapping[str, Mapping[str, Any]], *, direct: bool = False
) -> list[Job]:
    """The jobs whose image or smoke test differs from ``before``, which is by recipe.

    ``direct`` leaves out jobs whose image differs because of a base or builder alone.
    """
    several = []
    for job in found:
        old = before.get(job.recipe, {})
        image, itself = old.get("image") != job.image, old.get("direct") != job.direct
        if (image and itself) if direct else (image or itself):
            several.append(job)
    return several


def earlier(root: Path, revision: str, work: Path, log: Log) -> dict[str, dict[str, Any]]:
    """The jobs of a revision of the repository at ``root``, by recipe, as JSON data.

    The revision is unpacked in ``work`` and its own code is run.  If it fails, that is logged and
    its newest working ancestor is used: nothing of the broken revision was ever built.  If no
    ancestor works, the result is empty, so every recipe has changed.  Raises ``WorldError`` if
    there is no such repository or revision.
    """
    repository = root / ".git"
    if not repository.exists():
        raise WorldError(
            f"{root} is not a git repository",
            hint="changes can only be found in a git checkout of the catalog",
        )
    commit = _commit(repository, revision)
    line = ("rev-list", "--first-parent", f"--max-count={LOOK_BACK}", commit)
    for each in git.text(repository, *line).split():
        tar, tree = work / f"{each}.tar", work / each
        tar.write_bytes(git.run(repository, "archive", "--format=tar", each)[0])
        archives.unpack(tar, tree)
        try:
            return _jobs_of(tree)
        except _NoMatrixError as error:
            log(f"{each[:9]} cannot print its matrix: {error}")
    log(f"every recipe counts as changed since {revision}")
    return {}


class _NoMatrixError(Exception):
    """Another revision failed to print its matrix; the text says why."""


def _jobs_of(tree: Path) -> dict[str, dict[str, Any]]:
    """The jobs of an unpacked revision; raises ``_NoMatrixError``."""
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "builder", "ci", "matrix", "--json", "--large-runner=any"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": path, "BUILDER_CATALOG": str(tree)},
        )
    except subprocess.TimeoutExpired as error:
        raise _NoMatrixError(f"it did not answer within {PATIENCE:.0f} s") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("builder: ")]
        raise _NoMatrixError(errors[0] if errors else f"its exit code is {done.returncode}")
    try:
        return {job["recipe"]: job for job in json.loads(done.stdout)["include"]}
    except (ValueError, KeyError, TypeError) as error:
        raise _NoMatrixError(f"its output is not a matrix: {error!r}") from error


def _commit(repository: Path, revision: str) -> str:
    try:
        arguments = (
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{revision}^{{commit}}",
        )
        return checked_commit(git.text(repository, *arguments))
    except GitError as error:
        raise WorldError(
            f"there is no commit {revision!r} in this checkout",
            error.why,
            "a shallow checkout lacks older commits: set fetch-depth of actions/checkout, or run "
            "git fetch --deepen",
        ) from error
