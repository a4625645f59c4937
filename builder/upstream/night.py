"""What follows upstream: channels, nightly runs of them, and the jobs of workflows.

A nightly run freezes the newest upstream, builds, checks and pushes it, and moves the channel last.
Channels are independent: a failure stops one channel, whose tag then stays where it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from builder.build import build as pipeline
from builder.build import log, record
from builder.build.build import WORK_SPACE, BuildSession
from builder.build.record import Record
from builder.core import archives, settings
from builder.core.errors import (
    BuilderError,
    FetchError,
    NightError,
    PatchError,
    RecipeError,
    RegistryError,
    UnvouchedError,
    WorldError,
)
from builder.core.files import named_lock, workspace
from builder.core.log import Log
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.engines import families
from builder.engines.layout import CREATED, LABEL_KEY, LABEL_RECIPE
from builder.image.code_paths import KernelSummary
from builder.plan.inputs import identified
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver
from builder.publish import tags
from builder.publish.attachments import catalog_of
from builder.publish.nights import LONGEST_REASON, NightlyRun, compared, require_writable, write
from builder.publish.prune import is_nightly
from builder.publish.push import (
    Verified,
    built_here,
    find_published,
    key_of_index,
    push_image,
    push_index,
)
from builder.publish.registry import Repository, Update, remote_image, require_within
from builder.publish.signing import Trust, trust_of
from builder.publish.tags import past_moves, reason_of
from builder.publish.verdicts import require_attachments, require_signing
from builder.publish.vulnerabilities import rescan
from builder.recipes.catalog import BrokenEntry, Catalog, Entry, read_text, require_channels
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import GitSource, Recipe, Track
from builder.sources import git
from builder.sources.git import GitError, checked_commit
from builder.sources.mirrors import Repositories
from builder.upstream import track as tracking
from builder.upstream.locks import DebianSession
from builder.upstream.patches import SourceSession, open_session
from builder.upstream.security import is_secured, secured
from builder.upstream.update import FrozenRecipe, at_commit, at_image, fitted, version_of

# Channels: moving tags that follow an upstream, and the newest state of that upstream.


@dataclass(frozen=True, slots=True)
class Channel:
    """A moving tag of a repository, and the recipe whose ``[track]`` it follows."""

    entry: Entry[Recipe]
    track: Track
    tag: str
    repository: str
    rivals: tuple[str, ...] = ()
    """Other recipes that would move the same tag."""

    def require_sole_recipe(self) -> None:
        """Raise ``RecipeError`` where another recipe would move the same tag."""
        if self.rivals:
            names = " and ".join(sorted((self.entry.name, *self.rivals)))
            raise RecipeError(
                f"{names} would both move {self.repository}:{self.tag}",
                hint="give one of them another channel",
            )

    @property
    def source(self) -> GitSource:
        """The git repository that is followed; raises ``RecipeError`` where there is none."""
        source = self.entry.recipe.source
        if not isinstance(source, GitSource):
            problem = self.entry.problem(("track",), "the source is not a git repository")
            raise RecipeError(
                f"the upstream of {self.entry.name} is not known",
                hint="follow a published image: image = REPOSITORY:TAG in [track]",
                problems=(problem,),
            )
        return source


def channels(catalog: Catalog, settings: Settings, names: Sequence[str] = ()) -> list[Channel]:
    """The channels of these recipes, or of all valid recipes.

    Raises ``RecipeError`` where one of the named recipes has none.
    """
    named = {entry.name for entry in require_channels(map(catalog.engine, names))}
    found = []
    movers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in catalog.engines.values():
        if (
            not isinstance(entry, BrokenEntry)
            and entry.recipe.track
            and (tag := entry.recipe.channel)
        ):
            repository = settings.repository(entry.recipe.image.repository)
            found.append(Channel(entry, entry.recipe.track, tag, repository))
            movers[repository, tag].add(entry.name)
    return [
        replace(each, rivals=tuple(movers[each.repository, each.tag] - {each.entry.name}))
        for each in found
        if each.entry.name in named or not names
    ]


def newest(channel: Channel, repositories: Repositories) -> NamedCommit:
    """The newest state of the upstream that a channel follows."""
    image = channel.track.image
    if image is None:
        return tracking.upstream_target(channel.source.git, channel.track, repositories)
    name, _, tag = image.rpartition(":")
    digest = _repository(name, repositories.log).resolve(tag)
    if not digest:
        raise FetchError(f"{name} has no tag {tag}", hint="correct [track] in the recipe")
    return NamedCommit(image, digest, "image")


def day_of(channel: Channel, target: NamedCommit, repositories: Repositories) -> str:
    """The day (YYYY-MM-DD) of a state of a channel's upstream: a commit's, or a published image's
    by its configuration; empty where the image has none."""
    if target.kind != "image":
        return tracking.committed(channel.source.git, target.commit, repositories)
    repository = _repository(target.name.rpartition(":")[0], repositories.log)
    found = remote_image(repository, target.commit)
    return found.created[:10] if found else ""


def _repository(name: str, log: Log) -> Repository:
    return Repository(name, log, settings.load().token_hosts)


def frozen_channel(
    catalog: Catalog, channel: Channel, target: NamedCommit, repositories: Repositories
) -> FrozenRecipe:
    """The recipe of a channel at a state of its upstream."""
    version = version_of(channel.tag, target)
    if target.kind == "image":
        return at_image(catalog, channel.entry, target, version)
    count = partial(tracking.commit_count, channel.source.git, target.commit, repositories)
    return at_commit(catalog, channel.entry, target, count, version)


# The images of a frozen recipe in the registry: existing images, or new ones.

WORST = 10
"""Spilling kernels of each library that a run keeps."""


def publish(
    session: BuildSession, frozen: FrozenRecipe, repository: Repository, serves: str, work: Path
) -> tuple[str, KernelSummary | None]:
    """The digest of a frozen recipe's image in the registry: of an existing image, or of a new one.

    For several platforms, the tag of the index of their images.  With the kernels of the image, of
    the first platform, where this machine built it.  The image that the channel ``serves`` already
    (a digest) needs no trust, for nothing moves.  Raises like ``build.build``, ``push_image``.
    """
    session = replace(session, catalog=frozen.catalog)
    plans = session.plans(frozen.name)
    several = len(plans) > 1
    immutable = plans[0].immutable_tag
    if several:
        immutable = tags.tags_of_index(plans[0].recipe, key_of_index(plans)).immutable
    if serves and repository.head_digest(immutable) == serves:
        rescan(session, plans, repository, serves, trust_of(session.settings, work))
        return serves, _kernels(built_here(session, plans[0]))
    results: list[Verified | BuilderError] = []
    for plan in plans:
        folder = work / plan.platforms.target
        folder.mkdir()
        try:
            results.append(_ready(session, plan, repository, folder))
        except BuilderError as error:
            if several:
                session.log(f"{plan.title} failed: {error.what}")
            results.append(error)
    pipeline.require_all(plans, results)
    ready = [each for each in results if isinstance(each, Verified)]
    first = ready[0].record
    folder = work / "release"
    folder.mkdir()
    with lock_tags(session):
        only = tags.Tags(immutable, (), ())
        if several:
            digest = push_index(session, plans, only, folder).digest
        elif first:
            digest = push_image(session, plans[0], first, only, folder).digest
        else:
            digest = ready[0].digest
    return digest, _kernels(first)


def _ready(session: BuildSession, plan: Plan, repository: Repository, work: Path) -> Verified:
    """The registry's image of a key, if it counts, else the image that this machine builds.

    Where nothing vouches for the registry's image, it is compared with an image that is built here.
    Layers of a registry's cache would prove nothing: whoever can write the image may write them.
    """
    again = replace(session, rebuild=True)
    try:
        there = find_published(session, plan, repository, work)
    except UnvouchedError as error:
        session.log(f"{error.what}: building it here, to compare the digests")
        pipeline.build(plan, again)
        there = find_published(session, plan, repository, work)
    if there is not None:
        return there
    record = pipeline.build(plan, session).record
    if not record.built_here:  # the engine's image was pulled
        record = pipeline.build(plan, again).record
    return Verified(record.digest, record)


def lock_tags(session: BuildSession) -> AbstractContextManager[None]:
    """Wait until no other process of this machine moves tags, and keep others from it."""
    return named_lock(session.settings.cache_dir, tags.TAGS, wait=session.log)


def _kernels(record: Record | None) -> KernelSummary | None:
    found = record.verdict.kernels if record else None
    return found.shortened(WORST) if found else None


# The runs.

KEPT = 2
"""Images of a channel that stay in the engine, the newest ones."""


def run_channels(session: BuildSession, names: Sequence[str] = ()) -> Iterator[NightlyRun]:
    """Move the channels of these recipes, or all channels, to their newest upstream.

    They run one after the other; each run is recorded in its registry.  Raises ``RecipeError`` for
    a recipe without a channel, ``RegistryError`` where no namespace is set, ``BusyError`` during
    another nightly run on this machine.
    """
    session.settings.require_directories()
    found = channels(session.catalog, session.settings, names)
    for channel in found:
        tags.open_repository(channel.repository, session.log)  # missing settings fail once, here
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    with named_lock(session.settings.cache_dir, tags.NIGHTLY):
        for channel in found:
            yield _run_channel(session, channel)
        for entry in [] if names else session.catalog.engines.values():
            if isinstance(entry, BrokenEntry):  # whether it has a channel is not known
                yield _failed(entry.name, "", str(entry.problems[0]))


def _failed(recipe: str, channel: str, reason: str = "") -> NightlyRun:
    run = {"recipe": recipe, "channel": channel, "outcome": "failed", "reason": reason}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return NightlyRun.model_validate(run | {"started": now, "seconds": 0.0})


def _run_channel(session: BuildSession, channel: Channel) -> NightlyRun:
    """One channel, from its upstream to its tag in the registry.

    Nothing is recorded where the registry does not answer, refuses, or has a different time.
    """
    clock = time.monotonic()
    done = _failed(channel.entry.name, channel.tag)
    known: dict[str, Any] = {}
    writable: Repository | None = None
    try:
        channel.require_sole_recipe()
        repository = tags.open_repository(channel.repository, session.log)
        known["digest"] = repository.head_digest(channel.tag)
        repository.require_clock()
        repository.require_push()
        require_attachments(repository)
        require_writable(repository, channel.tag)
        writable = repository
        with open_session(
            session.catalog, session.settings, session.log, offline=session.offline
        ) as sources:
            _update_channel(session, channel, sources, repository, known)
    except Exception as error:
        known["reason"] = _reason(session, error)
    known["seconds"] = round(time.monotonic() - clock, 1)
    done = done.model_copy(update=known)
    return _finished(session, channel, writable, done) if writable is not None else done


def _reason(session: BuildSession, error: Exception) -> str:
    known = log.as_builder_error(error)
    if known is None:
        session.log(f"internal error: the report is {log.write_report(error)}")
        known = BuilderError(f"internal error: {type(error).__name__}: {error}")
    text = str(known)
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."


def _finished(
    session: BuildSession, channel: Channel, repository: Repository, done: NightlyRun
) -> NightlyRun:
    """Record a run, and remove old images from the engine.

    A run that cannot be recorded has failed; a failed clean-up only adds to its reason.
    """
    try:
        done = compared(repository, done)
        write(repository, done)
    except Exception as error:
        reason = f"the run could not be recorded: {_reason(session, error)}\n{done.reason}".rstrip()
        return done.model_copy(update={"outcome": "failed", "reason": reason})
    try:
        if done.outcome == "moved":
            _remove_old_images(session, channel)
    except Exception as error:
        text = f"{done.reason}\nold images are not removed: {_reason(session, error)}".lstrip()
        return done.model_copy(update={"reason": text})
    return done


def _update_channel(
    session: BuildSession,
    channel: Channel,
    sources: SourceSession,
    repository: Repository,
    known: dict[str, Any],
) -> None:
    """Move a channel to an image of its newest upstream, unless it is there or is held.

    ``known`` are the fields of its ``NightlyRun``.
    """
    before = known["digest"]
    target = newest(channel, sources.repositories)
    known |= {"upstream": target.name, "commit": target.commit}
    with suppress(FetchError, RegistryError):  # the day is only shown
        known["day"] = day_of(channel, target, sources.repositories)
    frozen = _frozen(session, channel, sources, target)
    frozen, known["reason"] = _secured(session, frozen, repository, channel.tag, sources)
    frozen.write(session.settings.state_dir / "frozen")
    digest, kernels = publish(session, frozen, repository, before, sources.context.work)
    if digest == before:
        known |= {"outcome": "unchanged", "kernels": kernels}
        return
    trust = trust_of(session.settings, sources.context.work)
    held = _held(repository, channel.tag, digest, trust)
    if held:
        known |= {"outcome": "held", "reason": held}
        return
    name, budget = channel.entry.name, channel.entry.recipe.budget.update
    hint = (
        "`builder compare` shows the layers; to move the tag all the same: "
        f"`builder tag promote {name} {channel.tag} --to {digest} --reason TEXT`"
    )

    def approve(updates: Sequence[Update]) -> None:
        require_within(updates, budget, session.log, f"{channel.tag} is not moved", hint)

    with lock_tags(session):
        reason, tag = f"nightly run of {frozen.name}", channel.tag
        reason = "; ".join(filter(None, (reason, known["reason"])))
        done = tags.move(
            repository, tag, digest, reason, "night", before, trust=trust, approve=approve
        )
    # It is unchanged where another machine has moved it to the same image in the meantime.
    known["outcome"] = "moved" if done.before != digest else "unchanged"
    known |= {"digest": digest, "kernels": kernels, "update": done.update}


def _frozen(
    session: BuildSession, channel: Channel, sources: SourceSession, target: NamedCommit
) -> FrozenRecipe:
    """The frozen recipe of a run, without the patches that upstream contains."""
    frozen = frozen_channel(session.catalog, channel, target, sources.repositories)
    frozen, unfit = fitted(frozen, sources)
    if unfit:
        raise PatchError(
            f"{len(unfit)} of the patches of {channel.entry.name} do not apply to {target.name}",
            "\n".join(
                f"{each.patch}: {each.state}: {'; '.join((*each.details, *each.commits))}"
                for each in unfit
            ),
            f"`builder patch check {channel.entry.name}` shows what changed in the patched files",
        )
    return frozen


def _secured(
    session: BuildSession,
    frozen: FrozenRecipe,
    repository: Repository,
    tag: str,
    sources: SourceSession,
) -> tuple[FrozenRecipe, str]:
    """The recipe of a run with Debian's security updates, and which the channel lacks; or why
    that is not known: then it keeps its locks.  Raises where these would take updates back."""
    work, served = sources.context.work, dict[str, str]()
    debian = DebianSession(
        *(frozen.catalog, session.settings.cache_dir, work, session.log),
        session.settings.debian_servers,
    )
    with suppress(RegistryError):  # the channel has no image yet, or no lock is attached to it
        made = catalog_of(repository, tag, work / f"served-{frozen.name}")
        recipes = made / "recipes"
        served = {
            str(file.relative_to(recipes)): read_text(file) for file in recipes.rglob("*.toml")
        }
    try:
        return secured(frozen, debian, session.settings.state_dir / "frozen", served)
    except (FetchError, RecipeError, WorldError) as error:
        unknown = f"whether Debian has security updates is not known: {error.what}"
        if is_secured(served):
            raise FetchError(unknown, error.why, error.hint) from error
        session.log(": ".join(filter(None, (unknown, error.why))))
        return frozen, unknown


def _held(repository: Repository, tag: str, digest: str, trust: Trust) -> str:
    """Why a channel must not move to an image: a person moved it away from there.  Or empty.

    Where upstream itself went back the channel does so too, unless it was moved away by hand.
    """
    known = past_moves(repository, tag, trust)
    seen = {each for move in known for each in (move.digest, move.before)}
    decision = next((move for move in known if move.before == digest), None)
    if decision is None or decision.by != "rollback":
        decision = known[0] if digest in seen and known[0].by != "night" else None
    if decision is None:
        return ""
    return f"it was rolled back from {digest}: {reason_of(repository, decision, trust)}"


def _remove_old_images(session: BuildSession, channel: Channel) -> None:
    """Untag the older images of a channel in the engine, which removes them.

    Each platform keeps its newest ones.
    """
    names = {each.tag for each in channels(session.catalog, session.settings)}
    images: dict[str, list[docker.Image]] = defaultdict(list)
    for name in docker.image_names(f"{channel.repository}:{channel.tag}-*"):
        tag = name.rpartition(":")[2]
        found = docker.image(name) if is_nightly(tag, channel.tag, names) else None
        if found is not None:
            images[found.platform].append(found)
    for platform, nights in images.items():
        nights.sort(key=lambda found: _built_at(session, found), reverse=True)
        for found in nights[KEPT:]:
            version = found.reference.rpartition("-")[0]
            beside = f"{version}-{platform.partition('/')[2]}"  # of several platforms
            for name in {found.reference, *(found.names & {version, beside})}:
                docker.untag(name)


def _built_at(session: BuildSession, found: docker.Image) -> str:
    recipe, key = found.labels.get(LABEL_RECIPE, ""), found.labels.get(LABEL_KEY, "")
    kept = record.read(session.settings.state_dir, recipe, key)
    return kept.created if kept else found.labels.get(CREATED, "")


def require_good(runs: Sequence[NightlyRun]) -> None:
    """Raise ``NightError`` with every channel that failed."""
    failed = [each for each in runs if not each.good]
    if failed:
        raise NightError(
            f"{len(failed)} of {len(runs)} channels failed in this nightly run",
            "\n".join(f"{each.recipe}: {each.reason}" for each in failed),
            "`builder status` shows where the channels are",
        )


# The matrix of a workflow: which recipes, on which runner, with how much disk.
#
# Whether a recipe changed since a revision is decided by keys: each revision computes, with its own
# code, a key over all inputs of its images.  So a template that changes every image changes every
# recipe, and a comment changes none.  Nothing is fetched and no engine is asked: the keys are for
# amd64, with a Debian root whose digest is not looked up: they are compared only with each other.

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
IGNORED = {"notes", "track", "build", "kept", "extends"}
"""Tables of a recipe that affect neither its image nor its smoke test."""
LOOK_BACK = 10  # ancestors that are tried, beginning with the revision itself
PATIENCE = 300.0  # seconds for another revision to print its matrix


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a matrix: a recipe, and the runner and the disk that it needs."""

    recipe: str
    engine: str
    base: str
    kept: bool
    """Whether the recipe is not current: only a change of its own builds it again."""
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
        require_channels(entries.values())
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
        kept=recipe.kept is not None,
        channel=recipe.channel,
        disk=math.ceil(disk),
        clear=disk > FREE,
        emulate=any(target != "amd64" for target in recipe.targets),
        runner=HOSTED if disk <= CLEARED else "",
        cache=f"ccache@{recipe.base}@{recipe.engine}@" if plans[0].family.uses_ccache else "",
        image=_key_over([plan.key for plan in plans]),
        direct=_key_over([_direct_key(recipe, plan) for plan in plans]),
    )


def disk_of(catalog: Catalog, recipe: Recipe) -> float:
    """GiB that a recipe needs on a fresh machine: for its bases, itself, its inputs and the job.

    The sum is an upper bound, because building a base takes more disk than the base itself.
    """
    bases = [catalog.base(name).recipe for name in families.bases_of(catalog, recipe)]
    of_bases = [base.build.disk for base in bases]
    return (sum(of_bases) + recipe.build.disk) * len(recipe.platform) + WORK_SPACE + JOB_DISK


def _key_over(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else hashlib.sha256(" ".join(keys).encode()).hexdigest()


def _direct_key(recipe: Recipe, plan: Plan) -> str:
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

    ``direct`` leaves out jobs whose image differs because of a base or builder alone.  A recipe
    that is kept has a job only if it changed itself.
    """
    known = [(job, before.get(job.recipe, {})) for job in found]
    return [
        job
        for job, old in known
        for image, own in [(old.get("image") != job.image, old.get("direct") != job.direct)]
        if ((image and own) if direct else own or (image and not job.kept))
    ]


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
    try:
        given = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        commit = checked_commit(git.text(repository, "rev-parse", *given))
    except GitError as error:
        raise WorldError(
            f"there is no commit {revision!r} in this checkout",
            error.why,
            "a shallow checkout lacks older commits: set fetch-depth of actions/checkout, or run "
            "git fetch --deepen",
        ) from error
    line = ("rev-list", "--first-parent", f"--max-count={LOOK_BACK}", commit)
    for each in git.text(repository, *line).split():
        tar, tree = work / f"{each}.tar", work / each
        tar.write_bytes(git.run(repository, "archive", "--format=tar", each)[0])
        archives.unpack(tar, tree)
        try:
            return _jobs_of(tree)
        except ValueError as error:
            log(f"{each[:9]} cannot print its matrix: {error}")
    log(f"every recipe counts as changed since {revision}")
    return {}


def _jobs_of(tree: Path) -> dict[str, dict[str, Any]]:
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    asked = [sys.executable, "-m", "builder", "ci", "matrix", "--json", "--large-runner=any"]
    asked += sorted(file.stem for file in tree.glob("recipes/*.toml"))  # by name: also kept ones
    try:
        done = subprocess.run(
            asked,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": path, "BUILDER_CATALOG": str(tree)},
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"it did not answer within {PATIENCE:.0f} s") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("builder: ")]
        raise ValueError(errors[0] if errors else f"its exit code is {done.returncode}")
    try:
        return {job["recipe"]: job for job in json.loads(done.stdout)["include"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its output is not a matrix: {error!r}") from error
