"""Two images of the engine or of a registry, directories or files, compared by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.lookup import REFERENCE, Images
from builder.build.session import BuildSession
from builder.build.verify import subject_of, test_of
from builder.checks import check, kernel_test
from builder.checks.kernel_test import Case, CaseResult, Outcome
from builder.checks.logit_test import TOKENS, Numbers, numbers_of
from builder.checks.server import described, difference, shared_folder
from builder.checks.subject import Context, InapplicableError
from builder.core.errors import UntriedError, UsageError, WorldError
from builder.core.files import workspace
from builder.core.log import Log
from builder.core.platforms import Platform
from builder.docker import containers
from builder.docker import engine as docker
from builder.docker.blobs import Blobs, blobs_of
from builder.image.compare import FileTree, compare_images, compare_trees, read_files, read_image
from builder.image.layers import damage_reported, platforms_of
from builder.image.results import Comparison
from simulator.report import parting

Source = Path | Blobs
"""A directory or a file; or the blobs of an image."""

AMD64: Platform = "linux/amd64"
PATH_STARTS = ("/", "./", "../", "~")
"""Beginnings of a path that no name of a recipe or of an image has."""


def compare_named(
    session: BuildSession, before: str, after: str, platform: Platform | None = None
) -> Comparison:
    """Compare two images, directories or files by their names.

    A name is a recipe, a path of this machine (also of an OCI image layout), or an image: of the
    engine, else of a registry, which is pulled and removed again.  ``platform``: the image that is
    compared where there are several; None: the image for linux/amd64, else the first one.

    Raises ``UsageError`` where one is a file and the other one is not, and where neither is an
    image with platforms; ``WorldError`` where there is no such thing, or not for the platform;
    ``FetchError`` where a registry does not give an image; ``UntriedError`` where an image is
    damaged; ``SpaceError`` where the files that differ do not fit into the cache directory.
    """
    session.settings.require_directories()
    with workspace(session.settings.cache_dir) as work, ExitStack() as stack:
        old = stack.enter_context(_found(session, before, work, platform))
        new = stack.enter_context(_found(session, after, work, platform))
        if isinstance(old, Blobs) and isinstance(new, Blobs):
            return compare_images((before, old), (after, new), work)
        if platform and isinstance(old, Path) and isinstance(new, Path):
            raise UsageError(
                "--platform is for images", hint=f"neither {before} nor {after} is an image"
            )
        _require_alike(before, old, after, new)
        return compare_trees(_tree(before, old), _tree(after, new), work)


def _require_alike(before: str, old: Source, after: str, new: Source) -> None:
    files = [isinstance(each, Path) and not each.is_dir() for each in (old, new)]
    if files[0] != files[1]:
        file, other = (before, after) if files[0] else (after, before)
        raise UsageError(
            f"{file} is a file, and {other} is not",
            hint="compare two files, or two of images and directories",
        )


def _tree(name: str, source: Source) -> FileTree:
    return read_files(source) if isinstance(source, Path) else read_image(name, source)


@contextmanager
def _found(
    session: BuildSession, name: str, work: Path, platform: Platform | None
) -> Iterator[Source]:
    """The image, directory or file of a name; an image that was pulled is removed afterwards."""
    path = Path(name).expanduser()
    with ExitStack() as stack:
        if not Images(session).is_recipe(name) and path.exists():
            found: Source = _layout(path) or path
        elif name.startswith(PATH_STARTS):
            raise WorldError(f"there is no file or directory {name}")
        else:
            stack.enter_context(pulled_if_remote(session, name, platform or AMD64))
            image = Images(session).named(name, platform)
            found = blobs_of(image.reference, work, image.digest)
        yield _for_platform(name, found, platform) if platform else found


def _for_platform(name: str, source: Source, platform: Platform) -> Source:
    """The same source, read for this platform."""
    if isinstance(source, Path):
        return source
    with damage_reported():
        there = platforms_of(source)
    if platform not in there:
        raise WorldError(
            f"{name} has no image for {platform}",
            f"it is there for {', '.join(there)}",
            f"`docker pull --platform {platform} NAME` gets the image of a registry",
        )
    return replace(source, platform=platform)


def _layout(folder: Path) -> Blobs | None:
    """The image of a directory in the OCI image layout (image-spec, image-layout.md), or None."""
    index = folder / "index.json"
    if not (folder / "oci-layout").is_file() or not index.is_file():
        return None
    try:
        return Blobs(folder / "blobs" / "sha256", dict(json.loads(index.read_bytes())))
    except (ValueError, TypeError) as error:
        raise WorldError(f"{index} cannot be read", f"it is no JSON object: {error}") from error


@contextmanager
def pulled_if_remote(
    session: BuildSession, name: str, platform: Platform = AMD64
) -> Iterator[None]:
    """Keep an image in the engine that only a registry can have; it is removed afterwards.

    Nothing is done where the name is another one.
    """
    if not _is_remote(session, name):
        yield
        return
    session.log(f"Docker does not have {name}: pulling it")
    with docker.pulled(name, platform):
        yield


def _is_remote(session: BuildSession, name: str) -> bool:
    """Whether a name can only mean an image of a registry: ``OWNER/NAME``, ``NAME:TAG``."""
    if Images(session).is_recipe(name) or not REFERENCE.fullmatch(name):
        return False
    return bool({"/", ":"} & {*name}) and docker.image(name) is None


# The results of two images: the same cases and prompts on both, and where they part.

TRACED = 6  # cases that are run again, launch by launch
COMPUTED = {Outcome.EQUAL, Outcome.DIFFERS}


@dataclass(frozen=True, slots=True)
class Parted:
    """A case, or a model of the servers, with its outcomes; None: the tree does not have it."""

    name: str
    before: CaseResult | None
    after: CaseResult | None
    launch: str = ""
    """The first launch that is not the same, of the first cases that both compute."""


@dataclass(frozen=True, slots=True)
class NumbersComparison:
    """The cases of two images."""

    same: int
    """How many have the same outcome."""
    parted: tuple[Parted, ...]
    """The others: first the cases by name, then the models."""


def compare_numbers(session: BuildSession, before: str, after: str) -> NumbersComparison:
    """Compare the results of the kernels and servers of two recipes' images.

    Raises ``WorldError`` where the engine does not have an image, ``UntriedError`` where there is
    nothing to compare, and like ``kernel_test``.
    """
    found: list[Parted] = []
    lacking: list[str] = []
    with _read(session, before) as old, _read(session, after) as new:
        for compare in (_compare_cases, _compare_servers):
            try:
                found += compare(old, new, session.log)
            except (InapplicableError, UntriedError) as error:
                lacking.append(str(error))
                session.log(f"not compared: {error}")
    if len(lacking) == 2:
        raise UntriedError("the images have no numbers to compare", "; ".join(lacking))
    parted = tuple(each for each in found if not _same(each.before, each.after))
    return NumbersComparison(len(found) - len(parted), parted)


def _same(before: CaseResult | None, after: CaseResult | None) -> bool:
    return before is not None and after is not None and before.outcome == after.outcome


def _compare_cases(old: Context, new: Context, log: Log) -> list[Parted]:
    trials = kernel_test.trial(old), kernel_test.trial(new)
    log("computing the cases of both images")
    first, second = (
        {each.case.name: each for _, results in trial.results() for each in results}
        for trial in trials
    )
    found = []
    traced = 0
    for name in sorted({*first, *second}):
        before, after, launch = first.get(name), second.get(name), ""
        computed = before and after and {before.outcome, after.outcome} <= COMPUTED
        if before and computed and not _same(before, after) and traced < TRACED:
            traced += 1
            again = trials[0].outputs(before.case), trials[0].outputs(before.case)
            launch = parting(*again, trials[1].outputs(before.case))
        found.append(Parted(name, before, after, launch))
    return found


def _compare_servers(old: Context, new: Context, log: Log) -> list[Parted]:
    sides = [numbers_of(each, outputs=True) for each in (old, new)]
    log("computing the answers of both servers")
    work = shared_folder(old.work / "servers")
    found = [*servers_compared(sides[0], sides[1], work)]
    silent = [
        each
        for each in found
        if {side.outcome for side in (each.before, each.after) if side} == {Outcome.NOT_COMPUTED}
    ]
    for each in silent:
        model = each.name.removeprefix("server(").removesuffix(")")
        log(f"{model} is not compared: neither server answers with it")
    return [each for each in found if each not in silent]


def servers_compared(before: Numbers, after: Numbers, work: Path) -> Iterator[Parted]:
    """Compare the servers of two images, model by model: the second's answer with the first's.

    Both have ``outputs``; ``work`` is a directory that the images' own users may enter.  Raises
    ``InapplicableError`` where a server has no probabilities, and like ``SimulatedServer.on``.
    """
    folders = [shared_folder(work / name) for name in ("before", "after", "again")]
    sides = zip((before, after, before), folders, strict=True)
    models = [side.models(folder) for side, folder in sides]
    for one, other, again in zip(*models, strict=False):
        name, limit, launch = one.trial.model.name, one.trial.limit, ""
        case = Case("server", name)
        results = [CaseResult(case, Outcome.EQUAL)] * 2
        answers = [one.answered(), other.answered()]
        for side, answer in enumerate(answers):
            if isinstance(answer, str):
                results[side] = CaseResult(case, Outcome.NOT_COMPUTED, answer)
        first, second = answers
        if not isinstance(first, str) and not isinstance(second, str):
            found = difference(first[0], second[0])
            if not found.within(limit):
                why = described(found, TOKENS, limit)
                results[1] = CaseResult(case, Outcome.DIFFERS, why)
                repeated = again.answered()
                report = None if isinstance(repeated, str) else repeated[1]
                launch = parting(first[1], report, second[1])
        yield Parted(case.name, results[0], results[1], launch)


@contextmanager
def _read(session: BuildSession, name: str) -> Iterator[Context]:
    session.settings.require_directories()
    plan = session.resolve(name)
    with workspace(session.settings.cache_dir) as work, containers.removed_together():
        image = Images(session).require(plan)
        subject = subject_of(plan, image, session)
        context = Context(subject, check.read(subject, work), work)
        context.numbers = test_of(plan, image, context, session)
        yield context
