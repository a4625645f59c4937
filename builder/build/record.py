"""The record of an image: how it was made and its verdict, as one JSON file.

Before an image has its good verdict, another file says which image this machine built: anybody can
give an image of the engine the name of a candidate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from builder.checks.simulated import why_never
from builder.checks.verdict import Verdict
from builder.core.errors import RecipeError, WorldError
from builder.core.files import write_json
from builder.core.log import CHECK_STAGE, build_stage, duration
from builder.core.platforms import Platform
from builder.image.code_paths import CodePaths, CodeSums, KernelSummary, sums
from builder.presets.schema import TRIALS, PresetUse, read_trials
from builder.recipes.catalog import Catalog
from simulator.work import WorkPath

BUILD_FACTS = {"created", "way", "built_here", "log", "objects", "reused"}
"""The fields of a record that only the build of its image gives."""


class Record(BaseModel):
    """One image that was built and smoke-tested."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[3] = 3
    """The file's; a file of another one is not read."""
    recipe: str
    platform: Platform = "linux/amd64"
    key: str
    contract: str
    """sha256 of the smoke test's inputs: a verdict holds for one contract."""
    references: tuple[str, ...]
    digest: str
    verdict: Verdict
    created: str
    """When this machine began to build the image, or first checked an image of another machine;
    RFC 3339, UTC."""
    seconds: Mapping[str, float]
    """By stage."""
    way: str = ""
    """How it was compiled: "native", "cross", "remote cross emulated"; empty: not known."""
    built_here: bool = False
    """Whether this machine built the image: only then does the record vouch for it."""
    base: Mapping[str, str] = {}
    """Digests of the base's images, by name."""
    log: str = ""
    objects: int = 0
    """The objects that the build compiled or took from the compiler cache; 0: not known."""
    reused: int = 0
    """The objects of these that came from the compiler cache."""
    commit: str = ""
    """The source's, by the image's label; empty: not known."""

    @property
    def build_seconds(self) -> float | None:
        """The time of the stage that built the image; None: not known."""
        return self.seconds.get(build_stage(self.recipe))

    @property
    def check_seconds(self) -> float | None:
        """The time of its checks; None: not known."""
        return self.seconds.get(CHECK_STAGE)

    def with_build_of(self, before: Record) -> Record:
        """This record, with what ``before`` knows of the build of the image."""
        return self.model_copy(update=before.model_dump(include=BUILD_FACTS))

    def as_json(self) -> dict[str, Any]:
        """The record as JSON data."""
        return self.model_dump(mode="json")


def path_of(state: Path, recipe: str, key: str) -> Path:
    """The file of a record."""
    return state / "records" / recipe / f"{key[:12]}.json"


def write(state: Path, record: Record) -> Path:
    """Write a record.

    Raises ``OSError`` where the file cannot be written; an earlier file then stays.
    """
    path = path_of(state, record.recipe, record.key)
    write_json(path, record.as_json())
    return path


def read(state: Path, recipe: str, key: str) -> Record | None:
    """The record of an image; None where there is none, or its file cannot be read as one."""
    try:
        record = Record.model_validate_json(path_of(state, recipe, key).read_bytes())
    except (OSError, ValueError):
        return None
    return record if record.key == key else None


def newest_good(
    state: Path, recipe: str, way: str = "", platform: Platform | None = None
) -> Record | None:
    """The record of a recipe's newest image with a good verdict; None where there is none.

    ``recipe`` may be "*": any recipe's.  With ``way``, only images that were compiled that way;
    with ``platform``, only images for it.  Else, of images for several platforms, an image for
    linux/amd64: simulated cards are a PC's.
    """
    good = (each for each in _newest_first(state, recipe) if each.verdict.good)
    fitting = (each for each in good if not way or each.way == way)
    return next((each for each in fitting if platform in (None, each.platform)), None)


def newest_refused(state: Path, recipe: str) -> Record | None:
    """The record of a recipe's newest image of which a check failed; None where there is none."""
    return next((each for each in _newest_first(state, recipe) if each.verdict.failures), None)


def _newest_first(state: Path, recipe: str) -> list[Record]:
    found = []
    for path in (state / "records").glob(f"{recipe}/*.json"):
        with suppress(OSError, ValueError):
            found.append(Record.model_validate_json(path.read_bytes()))
    return sorted(
        found, key=lambda each: (each.platform == "linux/amd64", each.created), reverse=True
    )


def last_time(state: Path, way: str, recipe: str = "*") -> str:
    """How long the last build of a recipe took that went this way: "hello-1: 2 min 3 s".

    "*" is any recipe; empty where there is none.
    """
    kept = newest_good(state, recipe, way)
    if kept is None or kept.build_seconds is None:
        return ""
    return f"{kept.recipe}: {duration(kept.build_seconds)}"


def candidate_path(state: Path, recipe: str, key: str) -> Path:
    """The file of a candidate."""
    return state / "candidates" / recipe / f"{key[:12]}.json"


def write_candidate(state: Path, recipe: str, key: str, digest: str) -> None:
    """Write which image was built, that has no good verdict yet."""
    candidate = {"format": 1, "key": key, "digest": digest}
    write_json(candidate_path(state, recipe, key), candidate)


def candidate_digest(state: Path, recipe: str, key: str) -> str:
    """The digest of the candidate that this machine built; empty: it is not known to have."""
    try:
        found = json.loads(candidate_path(state, recipe, key).read_bytes())
        return str(found["digest"]) if found["key"] == key else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def remove_candidate(state: Path, recipe: str, key: str) -> None:
    """Forget a candidate that is gone, or has its good verdict."""
    with suppress(OSError):
        candidate_path(state, recipe, key).unlink()


WORST = 3
"""Spilling kernels of each library that a file keeps."""
COVERAGE = ("coverage", "kernels on a simulated card that computes")
"""Subjects of the check ``numbers``: how many cases were compared, or why none could be."""


class KeptBuild(BaseModel):
    """One build of an image, without its base."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    seconds: float
    objects: int = 0
    """As in ``Record``."""
    reused: int = 0
    """As in ``Record``."""

    @property
    def is_warm(self) -> bool:
        """Whether the compiler cache had at least half of its objects."""
        return self.objects > 0 and 2 * self.reused >= self.objects


class KeptTrials(BaseModel):
    """One image: its builds, its checks, and the presets that were tried."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    recipe: str
    platform: Platform = "linux/amd64"
    key: str
    """The build key of the image."""
    digest: str
    commit: str
    """The source's; empty: not known."""
    created: str
    """As in ``Record``."""
    builds: tuple[KeptBuild, ...] = ()
    """The newest cold build of the commit, and the newest warm one."""
    check_seconds: float | None = None
    """Seconds of its checks; None: not known."""
    download_size: int
    """Bytes."""
    checks: int
    """The number of checks that passed."""
    failed: Mapping[str, int] = {}
    """The number of checks that failed, by kind; empty: the image is verified."""
    kernels: int
    """Different kernels that the server launched on its simulated card."""
    code: KernelSummary | None = None
    """Its libraries that spill, with the kernels that spill most; None: not known."""
    device_code: tuple[CodeSums, ...] = ()
    """What each card does with the device code of all libraries; empty: not known."""
    paths: tuple[WorkPath, ...] = ()
    """As in ``DeviceUse``, of the server with the test model; empty: none, or not known."""
    stated: str = ""
    """As in ``DeviceUse``."""
    coverage: str
    """The cases that the check ``numbers`` compared, or why there are none; empty: not known."""
    presets: Mapping[str, PresetUse]


def write_trials(root: Path, record: Record) -> Path:
    """Keep the facts of a record's image in the repository; an earlier file is replaced.

    The earlier file's builds stay if they are of the same commit and the file is valid.
    Of a refused image, the paths and the memory of the presets are left out: they may be wrong.
    Raises ``OSError`` where the file cannot be written.
    """
    before = None
    with suppress(RecipeError):
        before = kept_of(root, record.recipe)
    verdict = record.verdict
    ran = None if verdict.failures else verdict.device
    numbers = (each for each in verdict.checks if each.kind == "numbers")
    kept = KeptTrials(
        recipe=record.recipe,
        platform=record.platform,
        key=record.key,
        digest=record.digest,
        commit=record.commit,
        created=record.created,
        builds=_builds(before, record),
        check_seconds=record.check_seconds,
        download_size=verdict.download_size,
        checks=sum(verdict.passed_by_kind.values()),
        failed=verdict.failed_by_kind,
        kernels=len(verdict.device.launches) if verdict.device else 0,
        code=verdict.kernels.shortened(WORST) if verdict.kernels else None,
        device_code=sums(verdict.code),
        paths=ran.paths if ran else (),
        stated=ran.stated if ran else "",
        coverage=next((each.found for each in numbers if each.subject in COVERAGE), ""),
        presets={} if verdict.failures else dict(sorted(verdict.presets.items())),
    )
    path = root / TRIALS / f"{record.recipe}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, kept.model_dump(mode="json"))
    return path


def _builds(before: KeptTrials | None, record: Record) -> tuple[KeptBuild, ...]:
    source = (record.platform, record.commit)
    known = before.builds if before and (before.platform, before.commit) == source else ()
    took = record.build_seconds
    if took is not None:
        newest = KeptBuild(seconds=took, objects=record.objects, reused=record.reused)
        # A build without objects, and a shorter one of an engine that has none, had layers in
        # BuildKit's cache.
        if not newest.objects and any(each.objects or each.seconds > took for each in known):
            return known
        known = (newest, *(each for each in known if each.is_warm != newest.is_warm))
    return known


def kept(root: Path) -> list[KeptTrials]:
    """All files of ``trials/``, by recipe.  Raises ``RecipeError`` where one is invalid."""
    found = (read_trials(file, KeptTrials) for file in sorted((root / TRIALS).glob("*.json")))
    return [each for each in found if each is not None]


def kept_of(root: Path, recipe: str) -> KeptTrials | None:
    """The file of a recipe; None where it has none."""
    return read_trials(root / TRIALS / f"{recipe}.json", KeptTrials)


# What cards do with the device code of a recipe's image: from records and ``trials/``.


@dataclass(frozen=True, slots=True)
class ImageCode:
    """The device code of one image."""

    key: str
    """The build key of the image."""
    created: str
    """As in ``Record``."""
    source: str
    """Where it is from: "the record of this machine", "trials/RECIPE.json"."""
    sums: tuple[CodeSums, ...]
    libraries: tuple[CodePaths, ...] = ()
    """Each library, the largest first; empty: only a record has them."""


def code_of(root: Path, recipe: str, platform: Platform, state: Path) -> ImageCode | None:
    """The code of the newest verified image of this machine; without one, what the repository has.

    None where neither has any.  Raises ``RecipeError`` where the file of ``trials/`` is invalid.
    """
    own = newest_good(state, recipe, platform=platform)
    if own is not None and own.verdict.code:
        code = own.verdict.code
        return ImageCode(own.key, own.created, "the record of this machine", sums(code), code)
    kept = kept_of(root, recipe)
    if kept is None or kept.platform != platform or not kept.device_code:
        return None
    source = f"{TRIALS}/{recipe}.json"
    return ImageCode(kept.key, kept.created, source, kept.device_code)


# The paths that engines took for their work on simulated cards: from records and ``trials/``.

TEST_MODEL = "the smoke test's model"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The paths of the newest verified image of a recipe."""

    recipe: str
    by_model: Mapping[str, tuple[WorkPath, ...]]
    """By preset; the small model of the smoke test first."""
    stated: str = ""
    """What the engine's own log says of its choices with the small model."""
    kept: bool = False
    """Whether the small model was started on another machine: ``trials/`` has it, no record."""


def paths_of(catalog: Catalog, recipe: str, state: Path) -> EnginePaths:
    """The paths of this machine's image; where it has none, those that the repository keeps.

    Raises ``WorldError`` where none are known, ``RecipeError`` where there is no such recipe, or
    the file of ``trials/`` is invalid.
    """
    kept, own = kept_of(catalog.root, recipe), newest_good(state, recipe)
    device = own.verdict.device if own else None
    started = device or kept
    uses = {**(kept.presets if kept else {}), **(own.verdict.presets if own else {})}
    found = {TEST_MODEL: started.paths if started else ()}
    found |= {name: use.paths for name, use in sorted(uses.items())}
    known = {model: paths for model, paths in found.items() if paths}
    if not known:
        raise _unknown(catalog, recipe)
    stated = started.stated if started else ""
    return EnginePaths(recipe, known, stated, kept=device is None and TEST_MODEL in known)


def _unknown(catalog: Catalog, name: str) -> WorldError:
    what, recipe = f"the paths of {name} are not known", catalog.engine(name).recipe
    never = why_never(catalog, recipe)
    if not never:
        return WorldError(
            what,
            f"neither a record of this machine nor {TRIALS}/ has any: its server was not "
            "started on a simulated card by this version of builder, or launched no kernel that "
            "simulator/work.toml has",
            f"`builder smoke {name}` starts it, after `builder build {name}`",
        )
    others = [
        each.recipe.name
        for each in catalog.engines.values()
        if each.recipe
        and each.recipe.engine == recipe.engine
        and not why_never(catalog, each.recipe)
    ]
    hint = "on a GPU, the log of the engine or a profiler shows its choices"
    if others:
        names = " and ".join(f"`builder paths {each}`" for each in others)
        hint = f"{names}: other images of {recipe.engine}, which are started on one; {hint}"
    return WorldError(what, f"its server is never started on a simulated card: {never}", hint)
