"""What a workflow builds: which recipes, on which runner, with how much disk.

Whether a recipe has changed since a revision is told by the keys of both: each revision says, by
its own code, what its images are made of.  So a template that changes every image changes every
recipe, and a comment changes none.  Nothing is fetched, and no engine is asked: the keys are those
for amd64 on a Debian root that is not looked up, so they are compared with each other only.
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

from builder.errors import RecipeError, WorldError
from builder.images.ccache import mounts_ccache
from builder.nightly import channels
from builder.pipeline import WORK_SPACE
from builder.plan.base_image import RootPolicy
from builder.plan.rendered import EngineImage
from builder.plan.resolver import Resolver
from builder.platforms import Platforms
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe
from builder.tools import archives
from builder.tools.git import command as git
from builder.tools.git.arguments import checked_commit
from builder.tools.git.errors import GitError
from builder.tools.log import Log

HOSTED = "ubuntu-24.04"
"""GitHub's standard runner; another needs a look at what ``prepare_runner.py`` removes there."""
FREE = 14e9 / 2**30
"""GiB that GitHub documents for it ("14 GB",
https://docs.github.com/en/actions/reference/runners/github-hosted-runners)."""
CLEARED = FREE + 17.0
"""GiB when the toolchains that no recipe needs are removed.  People measured 27 GiB of them in May
2026, and 8 to 14 for Android's alone; that they shrink is allowed for."""
OWN = 2.0
"""GiB of the job itself: the virtual environment, and the compiler cache as it is carried."""
APART = {"notes", "track", "build"}
"""Tables of a recipe that change neither its image nor its smoke test."""
LOOK_BACK = 10  # commits that are asked, from the one that was named
PATIENCE = 300.0  # seconds for another revision to say what its images are made of


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a matrix: a recipe, and what its runner must have."""

    recipe: str
    engine: str
    base: str
    channel: str
    """The tag that each good night moves; empty: none."""
    disk: int
    """GiB of free disk that the build, the smoke test and the push take together."""
    clear: bool
    """Whether the runner's own toolchains must go first."""
    runner: str
    """Label for ``runs-on``; empty: no runner that is known has the disk."""
    cache: str
    """Where the key of its compiler cache begins; empty: it compiles nothing.

    It ends in a character that no name has: GitHub takes any key that begins so.
    """
    image: str
    """What its image is made of: a key (sha256, hex) that only another of these compares with."""
    own: str
    """The same (sha256, hex) of what the recipe itself says, without base and builder."""


def jobs(catalog: Catalog, names: Sequence[str] = (), *, tracked: bool = False) -> list[Job]:
    """A job for each of these recipes, or for all; ``tracked`` leaves those without a channel.

    Raises ``RecipeError`` when one of them is wrong, or is named and has no channel to be tracked.
    """
    if not names and catalog.problems():
        raise RecipeError("some recipes are wrong", problems=catalog.problems())
    entries = {entry.name: entry for entry in map(catalog.engine, names or catalog.engines)}
    if tracked and names:
        channels.tracked(entries.values())
    found = [_job(catalog, entry) for entry in entries.values()]
    return [job for job in found if job.channel or not tracked]


def _job(catalog: Catalog, entry: Entry[Recipe]) -> Job:
    recipe = entry.recipe
    image = Resolver(catalog, Platforms("amd64"), RootPolicy(ask=False)).resolve(entry.name)
    disk = disk_of(catalog, recipe)
    return Job(
        recipe=recipe.name,
        engine=recipe.engine,
        base=recipe.base,
        channel=channels.tag_of(entry),
        disk=math.ceil(disk),
        clear=disk > FREE,
        runner=HOSTED if disk <= CLEARED else "",
        cache=f"ccache@{recipe.base}@{recipe.engine}@" if mounts_ccache(image) else "",
        image=image.key,
        own=_own(recipe, image),
    )


def disk_of(catalog: Catalog, recipe: Recipe) -> float:
    """GiB that a fresh machine needs for a recipe: what each of its bases says that it takes, what
    the recipe says, the inputs, and the job's own.

    It is never too little: a base's figure is what building it takes, more than what stays.
    """
    bases = [catalog.base(name).recipe for name in catalog.chain(recipe.base)]
    said = [base.build.disk for base in bases]
    return sum(said) + recipe.build.disk + WORK_SPACE + OWN


def _own(recipe: Recipe, image: EngineImage) -> str:
    """What the recipe says, as it is written: a default that changes is builder's affair."""
    said = {
        "recipe": recipe.model_dump(mode="json", exclude_unset=True, exclude=APART),
        "source": image.plan.source_identity,
        "patches": [hashlib.sha256(patch.content).hexdigest() for patch in image.plan.patches],
        "packages": [
            [file.name, file.version, file.sha256]
            for files in image.plan.packages.values()
            for file in files
        ],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def placed(found: Iterable[Job], large: str = "") -> tuple[list[Job], list[Job]]:
    """The jobs that a runner can be had for, and those that none has the disk for.

    ``large`` is the label of a runner with more disk than GitHub's standard one.
    """
    there = [replace(job, runner=job.runner or large) for job in found]
    there = [replace(job, clear=job.clear and job.runner == HOSTED) for job in there]
    return [job for job in there if job.runner], [job for job in there if not job.runner]


def changed(
    found: Iterable[Job], before: Mapping[str, Mapping[str, Any]], *, own: bool = False
) -> list[Job]:
    """The jobs whose image or smoke test is another than ``before``, by recipe.

    With ``own`` those whose image is another because the recipe itself says so: neither a base
    nor builder alone is reason enough, and a changed smoke test of the same image is none.
    """
    several = []
    for job in found:
        was = before.get(job.recipe, {})
        image, itself = was.get("image") != job.image, was.get("own") != job.own
        if (image and itself) if own else (image or itself):
            several.append(job)
    return several


def earlier(root: Path, revision: str, work: Path, log: Log) -> dict[str, dict[str, Any]]:
    """The jobs of a revision of the repository at ``root``, by recipe, as JSON data.

    It is laid out in ``work``, and its own code is asked.  Where that cannot say it, people are
    told, and the newest of its ancestors that can is asked instead: what the broken one changed
    was never built.  Where none can, nothing is known: every recipe has changed.  Raises
    ``WorldError`` where there is no such repository or revision.
    """
    repository = root / ".git"
    if not repository.exists():
        raise WorldError(
            f"{root} is no checkout of a git repository",
            hint="what has changed can only be told of one",
        )
    commit = _commit(repository, revision)
    line = ("rev-list", "--first-parent", f"--max-count={LOOK_BACK}", commit)
    for each in git.text(repository, *line).split():
        tar, tree = work / f"{each}.tar", work / each
        tar.write_bytes(git.run(repository, "archive", "--format=tar", each)[0])
        archives.unpack(tar, tree)
        found = _asked(tree)
        if not isinstance(found, str):
            return found
        log(f"{each[:9]} cannot say what its images are made of: {found}")
    log(f"every recipe counts as changed since {revision}")
    return {}


def _asked(tree: Path) -> dict[str, dict[str, Any]] | str:
    """What a revision says of its jobs, or why it says nothing."""
    old = (tree / "src" / "builder").is_dir()  # where the package stood, with commands ungrouped
    folder, command = (tree / "src", ["matrix"]) if old else (tree, ["ci", "matrix"])
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "builder", *command, "--json", "--large-runner=any"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": path, "BUILDER_CATALOG": str(tree)},
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {PATIENCE:.0f} s"
    if done.returncode == 0:
        try:
            return {job["recipe"]: job for job in json.loads(done.stdout)["include"]}
        except (ValueError, KeyError, TypeError) as error:
            return f"what it printed is no matrix: {error!r}"
    told = [line for line in done.stderr.splitlines() if line.startswith("builder: ")]
    return told[0] if told else f"its exit code is {done.returncode}"


def _commit(repository: Path, revision: str) -> str:
    try:
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return checked_commit(git.text(repository, *asked))
    except GitError as error:
        raise WorldError(
            f"there is no commit {revision!r} in this checkout",
            error.why,
            "a shallow one has only its newest: actions/checkout takes fetch-depth, git fetch "
            "takes --deepen",
        ) from error
