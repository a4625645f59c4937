"""Two images of the engine or of a registry, directories or files, compared by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from builder import __version__
from builder.build.build import (
    ActiveBuild,
    BuildSession,
    anew,
    build_stages,
    ensure_bases_of,
    pulled_root,
    require_disk,
)
from builder.build.lookup import REFERENCE, Images, recipe_label, subject_of, test_of
from builder.checks import check, kernel_test
from builder.checks.kernel_test import Case, CaseResult, Outcome
from builder.checks.logit_test import TOKENS, Numbers, numbers_of
from builder.checks.server import described, difference, shared_folder
from builder.checks.subject import Context, InapplicableError
from builder.core.errors import (
    FetchError,
    RecipeError,
    RegistryError,
    UntriedError,
    UsageError,
    WorldError,
)
from builder.core.files import named_lock, workspace
from builder.core.log import Log
from builder.core.platforms import Platform
from builder.docker import buildx, containers
from builder.docker import engine as docker
from builder.docker.containers import Blobs, blobs_of
from builder.engines.families import load_catalog
from builder.engines.layout import LABEL_KEY, REPRODUCED
from builder.image.compare import Comparison, compare_images, compare_trees, read_files, read_image
from builder.image.layers import damage_reported, manifest_of, platforms_of
from builder.plan.inputs import lock_at
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.publish.attachments import catalog_of
from builder.publish.registry import Repository, images_in
from builder.publish.signing import trust_of
from builder.publish.tags import no_image, open_repository
from builder.publish.verdicts import (
    REPRODUCTION,
    REPRODUCTION_TEXT,
    ReproductionStatement,
    attach_all,
    noted,
    require_signing,
)
from builder.recipes.catalog import Catalog
from simulator.report import parting

Source = Path | Blobs  # A directory or a file; or the blobs of an image

AMD64: Platform = "linux/amd64"
PATH_STARTS = ("/", "./", "../", "~")  # begins no name of a recipe or an image


def compare_named(
    session: BuildSession, before: str, after: str, platform: Platform | None = None
) -> Comparison:
    """Compare two images, directories or files by their names.

    A name is a recipe, a path of this machine (also of an OCI image layout), or an image: of the
    engine, else of a registry, which is pulled and removed again.  ``platform``: the image that is
    compared where there are several; None: the image for linux/amd64, else the first one.

    Raises ``UsageError`` where one is a file and the other one is not, and where neither is an
    image with platforms; ``WorldError`` where there is no such thing, or not for the platform.
    """
    session.settings.require_directories()
    with workspace(session.settings.cache_dir) as work, ExitStack() as stack:
        old = stack.enter_context(_found(session, before, work, platform))
        new = stack.enter_context(_found(session, after, work, platform))
        if isinstance(old, Blobs) and isinstance(new, Blobs):
            return compare_images((before, old), (after, new), work)
        if platform and isinstance(old, Path) and isinstance(new, Path):
            neither = f"neither {before} nor {after} is an image"
            raise UsageError("--platform is for images", hint=neither)
        files = [isinstance(each, Path) and not each.is_dir() for each in (old, new)]
        if files[0] != files[1]:
            file, other = (before, after) if files[0] else (after, before)
            raise UsageError(
                f"{file} is a file, and {other} is not",
                hint="compare two files, or two of images and directories",
            )
        trees = [
            read_files(each) if isinstance(each, Path) else read_image(name, each)
            for name, each in ((before, old), (after, new))
        ]
        return compare_trees(trees[0], trees[1], work)


@contextmanager
def _found(
    session: BuildSession, name: str, work: Path, platform: Platform | None
) -> Iterator[Source]:
    """The image, directory or file of a name; an image that was pulled is removed afterwards."""
    path, images = Path(name).expanduser(), Images(session)
    with ExitStack() as stack:
        if not images.is_recipe(name) and path.exists():
            found: Source = _layout(path) or path
        elif name.startswith(PATH_STARTS):
            raise WorldError(f"there is no file or directory {name}")
        else:
            stack.enter_context(pulled_if_remote(session, name, platform or AMD64))
            image = images.named(name, platform)
            found = blobs_of(image.reference, work, image.digest)
        if platform and isinstance(found, Blobs):
            with damage_reported():
                there = platforms_of(found)
            if platform not in there:
                raise WorldError(
                    f"{name} has no image for {platform}",
                    f"it is there for {', '.join(there)}",
                    f"`docker pull --platform {platform} NAME` gets the image of a registry",
                )
            found = replace(found, platform=platform)
        yield found


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
    """Pull an image that only a registry can have, ``OWNER/NAME`` or ``NAME:TAG``, for a while."""
    is_name = not Images(session).is_recipe(name) and REFERENCE.fullmatch(name)
    if not is_name or not {"/", ":"} & {*name} or docker.image(name) is not None:
        yield
        return
    session.log(f"Docker does not have {name}: pulling it")
    with docker.pulled(name, platform):
        yield


# The results of two images: the same cases and prompts on both, and where they part.

TRACED = 6  # cases that are run again, launch by launch
COMPUTED = {Outcome.EQUAL, Outcome.DIFFERS}


@dataclass(frozen=True, slots=True)
class Parted:
    """A case, or a model of the servers, with its outcomes; None: the tree does not have it.

    ``launch`` is the first launch that is not the same, of the first cases that both compute.
    """

    name: str
    before: CaseResult | None
    after: CaseResult | None
    launch: str = ""

    @property
    def same(self) -> bool:
        """Whether both have one outcome."""
        return bool(self.before and self.after and self.before.outcome == self.after.outcome)


@dataclass(frozen=True, slots=True)
class NumbersComparison:
    """The cases of two images: how many have the same outcome; the others by name, then models."""

    same: int
    parted: tuple[Parted, ...]


def compare_numbers(session: BuildSession, before: str, after: str) -> NumbersComparison:
    """Compare the results of the kernels and servers of two recipes' images."""
    found: list[Parted] = []
    lacking: list[str] = []
    session.settings.require_directories()
    with _read(session, before) as old, _read(session, after) as new:
        for compare in (_compare_cases, _compare_servers):
            try:
                found += compare(old, new, session.log)
            except (InapplicableError, UntriedError) as error:
                lacking.append(str(error))
                session.log(f"not compared: {error}")
    if len(lacking) == 2:
        raise UntriedError("the images have no numbers to compare", "; ".join(lacking))
    parted = tuple(each for each in found if not each.same)
    return NumbersComparison(len(found) - len(parted), parted)


@contextmanager
def _read(session: BuildSession, name: str) -> Iterator[Context]:
    plan = session.resolve(name)
    with workspace(session.settings.cache_dir) as work, containers.removed_together():
        image = Images(session).require(plan)
        subject = subject_of(plan, image, session)
        context = Context(subject, check.read(subject, work), work)
        context.numbers = test_of(plan, image, context, session)
        yield context


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
        each = Parted(name, first.get(name), second.get(name))
        one, other = each.before, each.after
        computed = one and other and {one.outcome, other.outcome} <= COMPUTED
        if one and computed and not each.same and traced < TRACED:
            traced += 1
            again = trials[0].outputs(one.case), trials[0].outputs(one.case)
            each = replace(each, launch=parting(*again, trials[1].outputs(one.case)))
        found.append(each)
    return found


def _compare_servers(old: Context, new: Context, log: Log) -> list[Parted]:
    sides = [numbers_of(each, outputs=True) for each in (old, new)]
    log("computing the answers of both servers")
    found = []
    for each in servers_compared(sides[0], sides[1], shared_folder(old.work / "servers")):
        if {side.outcome for side in (each.before, each.after) if side} == {Outcome.NOT_COMPUTED}:
            model = each.name.removeprefix("server(").removesuffix(")")
            log(f"{model} is not compared: neither server answers with it")
        else:
            found.append(each)
    return found


def servers_compared(before: Numbers, after: Numbers, work: Path) -> Iterator[Parted]:
    """Compare the servers of two images, model by model: the second's answer with the first's.

    Both have ``outputs``; ``work`` is a directory that the images' own users may enter.
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


# Images are built again without a layer from any cache, under names that go afterwards.

OWNED = "__"  # before the parts of an owner; no stage, key or host name has it (RFC 1123, 2.1)


@contextmanager
def rebuilding(active: ActiveBuild) -> Iterator[Rebuilder]:
    """A rebuilder; first the images of killed runs are removed, at the end its own."""
    remove_orphans()
    rebuilder = Rebuilder(active)
    try:
        yield rebuilder
    finally:
        for name in reversed(rebuilder.names):
            docker.untag(name)


def name_of(recipe: str, stage: str, key: str, owner: str) -> str:
    """The name of an image that is built again; a label would change the image's digest."""
    return f"{REPRODUCED}/{recipe}:{stage}-{key}{OWNED}{owner.replace(':', OWNED)}"


def remove_orphans() -> None:
    """Remove the images of runs on this host that were killed before they could do so."""
    for name in docker.image_names(f"{REPRODUCED}/*"):
        _, _, owner = name.rpartition(":")[2].partition(OWNED)
        if containers.has_ended(":".join(owner.rsplit(OWNED, 2))):
            docker.untag(name)


class Rebuilder:
    """Builds images again, each once; ``bases`` are the bases' images by name and by stage."""

    def __init__(self, active: ActiveBuild) -> None:
        self.active = active
        self.names: list[str] = []
        self.bases: dict[str, dict[str, docker.Image]] = {}

    def engine(self, plan: Plan, *, with_bases: bool = False) -> docker.Image:
        """Build an engine without the compiler cache, on Docker's bases or on ones built again."""
        found: dict[str, docker.Image] = {}
        for base in plan.bases() if with_bases else ():
            found = self.base(base) | found
        found = found or ensure_bases_of(plan, self.active)
        return self._built(plan, found, anew(compiles=True, ccache=False))["image"]

    def base(self, plan: BasePlan) -> dict[str, docker.Image]:
        """Build a base on the bases below it, built again; a published image stays unchanged."""
        if plan.name not in self.bases:
            below = self.base(plan.base) if plan.base else pulled_root(plan, self.active)
            self.bases[plan.name] = self._built(plan, below, anew(compiles=False))
        return self.bases[plan.name]

    def _built(
        self, plan: AnyPlan, below: Mapping[str, docker.Image], options: list[str]
    ) -> dict[str, docker.Image]:
        active, owner = self.active, containers.owner()
        wanted = {stage: name_of(plan.name, stage, plan.short_key, owner) for stage in plan.stages}
        self.names += wanted.values()
        require_disk(active.settings, plan.recipe.build.disk, f"the build of {plan.name}")
        active.progress.log(f"building {plan.name} ({plan.short_key}) without caches")
        with workspace(active.settings.cache_dir) as work:
            return build_stages(plan, wanted, below, active, work, options)


# The recipe that an image was built from: the catalog's, or the one attached to the image.


def image_of(session: BuildSession, target: str, found: docker.Image, work: Path) -> Plan:
    """The plan with the key of an image that Docker has by the name ``target``.

    From the catalog's recipe; else from the lock that is attached to the image in its registry.
    ``work`` is a directory for it.
    """
    recipe, key = recipe_label(target, found), found.labels.get(LABEL_KEY, "")
    image, why = _planned(session, recipe, key, target)
    if image is not None:
        return image
    session.log(f"{why}; looking for what is attached to {target}")
    try:
        catalog = _with_attached_recipe(session, target, work / "catalog")
    except (FetchError, RegistryError, UsageError) as error:
        why += f"\nwhat is attached to the image cannot be read: {error.what}"
    else:
        image, again = _planned(replace(session, catalog=catalog), recipe, key, target)
        if image is not None:
            return image
        why += f"\nwith what is attached to the image: {again}"
    raise RecipeError(
        f"{target} was not built from the recipe {recipe} as it is now",
        why,
        "check out builder and the catalog as they were when the image was built; "
        "--catalog DIR names another catalog",
    )


def _planned(session: BuildSession, recipe: str, key: str, target: str) -> tuple[Plan | None, str]:
    """The image of a recipe that has this key, or why there is none."""
    try:
        plans = session.plans(recipe)
    except RecipeError as error:
        return None, error.what
    same = next((plan for plan in plans if plan.key == key), None)
    if same is not None:
        return same, ""
    for plan in plans:
        if (other := Images(session).compiled_on(plan, key)) is not None:
            build = plan.platforms.build
            raise RecipeError(
                f"{target} was compiled on linux/{other}, and this build would be on linux/{build}",
                "the platform that compiles is part of the key of an image",
                f"set BUILDER_COMPILE_ON={other}, or name a builder of that platform: --builder",
            )
    keys = " and ".join(each.short_key for each in plans)
    found = key[:12] or "absent"
    return None, f"the key of the image is {found}, the key of the recipe {recipe} is {keys}"


def _with_attached_recipe(session: BuildSession, target: str, folder: Path) -> Catalog:
    """The lock that is attached to an image; else the catalog with the recipe that is."""
    if session.offline:
        raise FetchError("nothing is fetched (--offline)")
    repository, reference = place_of(session, target)
    found = catalog_of(repository, reference, folder, session.platform or AMD64)
    if lock_at(found) is not None:
        return load_catalog(found)
    root, mixed = session.catalog.root, folder.with_name("mixed")
    mixed.mkdir()
    for each in root.iterdir():
        if each.name != "recipes":
            (mixed / each.name).symlink_to(each.resolve())
    for recipes in (root, found):
        shutil.copytree(recipes / "recipes", mixed / "recipes", dirs_exist_ok=True)
    return load_catalog(mixed)


def place_of(session: BuildSession, target: str) -> tuple[Repository, str]:
    """The repository of an image, by its recipe or its name, and its tag or digest there."""
    if Images(session).is_recipe(target):
        plan = session.resolve(target)
        return open_repository(plan.repository, session.log), plan.immutable_tag
    name, _, digest = target.partition("@")
    repository, colon, tag = name.rpartition(":")
    if REFERENCE.fullmatch(target) and (digest or (colon and "/" not in tag)):
        place = repository if colon and "/" not in tag else name
        return open_repository(place, session.log), digest or tag
    raise UsageError(
        f"{target} is no image of a registry: nothing is attached to it",
        hint="name a recipe, or an image: REGISTRY/REPOSITORY:TAG",
    )


ReproductionState = Literal["reproduced", "compression", "different"]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """An image that was built again, by its recipe or its base and stage ("cuda-13.0 runtime").

    ``reference`` is the image that it was compared with, ``expected`` its digest, ``found`` the
    digest of the build; ``comparison`` has the differences where the digests differ.
    """

    name: str
    reference: str
    expected: str
    found: str
    comparison: Comparison | None = None

    @property
    def state(self) -> ReproductionState:
        """``reproduced``: the same digest; ``compression``: the same layers and configuration, but
        packed by another version of a compressor."""
        if self.comparison is None:
            return "reproduced"
        same = all(layer.state in {"equal", "compression"} for layer in self.comparison.layers)
        if same and not self.comparison.config and not self.comparison.times:
            return "compression"
        return "different"

    @property
    def packed(self) -> list[int]:
        """The numbers of the layers that differ only in their compression, from 1."""
        layers = self.comparison.layers if self.comparison else ()
        packed = (each.before for each in layers if each.state == "compression")
        return [side.number for side in packed if side is not None]


@dataclass(frozen=True, slots=True)
class ReproducedImages:
    """The images of a command that were built again by a buildx ``builder``.

    ``taken`` are the images that were taken as they are, with digests: bases, published ones.
    """

    target: str
    reproductions: tuple[Reproduction, ...]
    builder: str
    taken: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether all have the same digest."""
        return all(each.state == "reproduced" for each in self.reproductions)


def reproduce(session: BuildSession, target: str, *, with_bases: bool = False) -> ReproducedImages:
    """Build an image again without caches, and compare digests; where they differ, the contents.

    ``target`` is a recipe or a base whose images Docker has, or an image: Docker's, else a
    registry's, which is pulled and removed again.  An engine is built on the bases that Docker has,
    or ``with_bases`` on bases that are built again.

    Raises ``RecipeError`` where no recipe has its key.  Waits where another run of this machine
    reproduces an image.
    """
    images = Images(session)
    session.settings.require_directories()
    with ExitStack() as stack:
        # Two recipes may have the same bases, which have one name each in Docker.
        stack.enter_context(named_lock(session.settings.cache_dir, "reproduce", session.log))
        work = stack.enter_context(workspace(session.settings.cache_dir))
        if target in session.catalog.bases and not images.is_recipe(target):
            plan: Plan | BasePlan = session.resolve_base(target)
        elif images.is_recipe(target):
            plan = session.resolve(target)
        else:
            stack.enter_context(pulled_if_remote(session, target, session.platform or AMD64))
            plan = image_of(session, target, images.named(target), work)
        active = stack.enter_context(session.active(f"reproduce-{plan.name}"))
        rebuilder = stack.enter_context(rebuilding(active))
        builder = active.builder.name
        if isinstance(plan, BasePlan):
            originals = _originals(plan)
            rebuilder.base(plan)
            found = [
                _reproduction(f"{base.name} {stage}", old, rebuilder.base(base)[stage], work)
                for base, stage, old in originals
            ]
            return ReproducedImages(target, tuple(found), builder, ())
        original = images.require(plan) if images.is_recipe(target) else images.named(target)
        new = rebuilder.engine(plan, with_bases=with_bases)
        result = _reproduction(plan.name, original, new, work)
        taken = () if rebuilder.bases else tuple(plan.base_references.values())
        return ReproducedImages(target, (result,), builder, taken)


def _originals(plan: BasePlan) -> list[tuple[BasePlan, str, docker.Image]]:
    """The images of a base and the bases below it, with their stages; raises ``WorldError``."""
    found = []
    for base in reversed([*plan.chain()]):
        for stage, reference in base.references.items():
            original = docker.image(reference)
            if original is None:
                raise WorldError(
                    f"Docker has no image {reference} to compare with",
                    f"it is the stage {stage} of the base {base.name}",
                    f"build a recipe that extends {plan.name}: `builder build RECIPE`",
                )
            found.append((base, stage, original))
    return found


def _reproduction(name: str, old: docker.Image, new: docker.Image, work: Path) -> Reproduction:
    reference = old.reference
    if old.digest == new.digest:
        return Reproduction(name, reference, old.digest, new.digest)
    before = replace(blobs_of(reference, work, old.digest), platform=new.platform)
    with damage_reported():
        digest, _ = manifest_of(before)  # the name may mean an index
    if digest == new.digest:
        return Reproduction(name, reference, digest, new.digest)
    after = new.reference, blobs_of(new.reference, work, new.digest)
    folder = work / f"compared-{new.digest[-12:]}"
    folder.mkdir()
    comparison = compare_images((reference, before), after, folder)
    return Reproduction(name, reference, digest, new.digest, comparison)


# A signed statement that an image of a registry was built again, with the same digest.


@contextmanager
def attestation(session: BuildSession, target: str) -> Iterator[Callable[[ReproducedImages], str]]:
    """What attaches the statement of a result to an image of a registry; it gives the digest there.

    An index gets it at its image that was built.  Before the build it is known that the registry
    answers, and that there is a key.
    """
    settings = session.settings
    with workspace(settings.cache_dir) as work:
        if not settings.cosign_key:
            raise WorldError(
                "there is no key that signs the statement",
                hint="set cosign_key (BUILDER_COSIGN_KEY) to a key of cosign",
            )
        require_signing(settings, work)
        repository, tag = place_of(session, target)
        manifest = repository.manifest(tag)
        if manifest is None:
            raise no_image(repository, tag)

        def attach_to_image(result: ReproducedImages) -> str:
            (image,) = result.reproductions
            images = [each.manifest for each in images_in(repository, manifest)]
            found = next((each for each in images if each.digest == image.found), None)
            if found is None:
                there = " and ".join(each.digest for each in images)
                raise WorldError(
                    f"the statement is not attached: {repository.name} has another image",
                    f"it has {there}; the build has {image.found}",
                    "reproduce the image of the registry: "
                    "`builder reproduce REGISTRY/REPOSITORY:TAG`",
                )
            statement = ReproductionStatement(
                digest=found.digest,
                recipe=image.name,
                architecture=buildx.builder(settings.buildx).architecture,
                version=__version__,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            text = statement.model_dump_json()
            made = noted(trust_of(settings, work), REPRODUCTION, REPRODUCTION_TEXT, text)
            attach_all(repository, found, [made])
            return found.digest

        yield attach_to_image
