"""What every family does: how one kind of engine, or of base, becomes an image."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from builder.core.errors import RecipeError
from builder.core.platforms import Architecture, Platforms, of_target
from builder.engines.layout import SEPARATOR
from builder.engines.servers import FolderServer, KeyOption
from builder.recipes import locks
from builder.recipes.locks import DebianFile, Lock, PinnedFile
from builder.recipes.patches import AddPatch
from builder.recipes.probes import LibraryProbe, Probe, Serve
from builder.recipes.schema import BaseRecipe, InstalledSource, Recipe, RecipeImage


def is_lfs_pointer(text: str) -> bool:
    """Whether a file is a pointer of Git LFS, whose content is on another server.

    Format: ``docs/spec.md`` of git-lfs, "The Pointer"; versions before 1.0 had the first URL.
    """
    return text.startswith(
        ("version https://git-lfs.github.com/spec/", "version https://hawser.github.com/spec/")
    )


@dataclass(frozen=True, slots=True)
class StagePackages:
    """The Debian packages that a stage asks for, beside the packages of the stage below."""

    stage: str
    below: str
    """The stage of the base that it begins with; empty: none."""
    architecture: Architecture
    packages: tuple[str, ...]
    foreign: Architecture | None = None
    """The other architecture whose packages it may have: the target of a cross build."""
    files: tuple[DebianFile, ...] | None = None
    """These packages and their dependencies, by a lock; None: the newest, when it is built."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The key by which an install of a lock is found."""
        return self.stage, self.architecture, self.foreign

    @property
    def context(self) -> str:
        """The named context that holds the files."""
        return f"debian-{self.stage}"


def compiling(
    stage: str, below: str, packages: Sequence[str], platforms: Platforms
) -> StagePackages:
    """A stage that compiles: on the build platform, also with libraries of the target."""
    foreign = platforms.target if platforms.cross else None
    return StagePackages(stage, below, platforms.build, tuple(packages), foreign)


def running(stage: str, below: str, packages: Sequence[str], platforms: Platforms) -> StagePackages:
    """A stage that becomes an image, or part of one: on the target platform."""
    return StagePackages(stage, below, platforms.target, tuple(packages))


@dataclass(frozen=True, slots=True)
class PackagePaths:
    """The paths of a repository that an installed package contains: globs as in fnmatch."""

    package: str
    """Directory of the package, in ``root``: its files are installed under the same paths."""
    compiled: tuple[str, ...]
    """Sources that are compiled into the package, and build files."""
    needs: tuple[str, ...]
    """Lists of required packages."""
    elsewhere: tuple[str, ...]
    """Files that no installed package contains."""
    root: str = ""
    """Directory of the repository that has the package: "python" for python/sglang. A patch names
    files as the repository does, also if the source is a wheel."""

    def contains(self, path: str) -> bool:
        """Whether the package contains a file of the repository."""
        return path.startswith(f"{self.root}/{self.package}/".removeprefix("/"))


Finding = tuple[tuple[str | int, ...], str]
"""A problem of a recipe: the path of the key, and the message."""
Packages = Mapping[str, tuple[PinnedFile, ...]]
"""Files of PyPI by the named context that holds them."""
R = TypeVar("R", Recipe, BaseRecipe)
Table = TypeVar("Table")

PROBE = (
    'a [[probe]] of the finished image: run = ["PROGRAM", "--version"], '
    'contains = ["VERSION"], or see docs/recipes.md, Probes'
)
ADDRESS = re.compile(
    "(LLAMA_ARG_|HELLO_ARG_)?(HOST|PORT)|--((server|listen)-)?(host|ip|port)|--server-name"
)
"""Variables and options of a server's address."""


class Family(Generic[R]):
    """How one kind of recipe becomes an image; a kind is a subclass that overrides what differs.

    Commands in stages see the scripts in ``/inside``.
    """

    name: str
    summary: str
    template: str
    """File of ``dockerfiles/``."""
    scripts: tuple[str, ...] = ()
    """Files of ``dockerfiles/scripts/`` that the stages run."""
    requires_stages: tuple[str, ...] = ()
    """Stages that the base must have."""
    required_tables: Mapping[str, str] = {}
    """Tables that a recipe must have, as its error message names them."""
    tables: tuple[str, ...] = ()
    """Further tables that a recipe may have."""
    all_tables: Mapping[str, str]
    """Every table that only some families use, as error messages name them."""

    def check(self, recipe: R) -> Iterator[Finding]:
        """Keys that a recipe lacks, or sets without effect."""
        for name, text in self.required_tables.items():
            if not getattr(recipe, name):
                yield ("family",), f"the family {self.name} needs {text}"
        for name, table in self.all_tables.items():
            if not self.takes(name) and name in recipe.model_fields_set and getattr(recipe, name):
                yield (name,), f"the family {self.name} has no use for {table}"

    def takes(self, table: str) -> bool:
        """Whether a recipe may have a table that only some families use."""
        return table in self.tables or table in self.required_tables

    def scripts_of(self, recipe: R, platforms: Platforms) -> tuple[str, ...]:
        """Files of ``dockerfiles/scripts/`` that the stages of a recipe run."""
        return self.scripts

    def rules(self, recipe: R) -> Iterator[Finding]:
        """Findings beyond the tables."""
        yield from ()

    def packages(self, recipe: R, folder: Path, platforms: Platforms) -> Packages:
        """The files of PyPI; ``folder`` is the recipe's, where its lock is."""
        return {}

    def debian(self, recipe: R, platforms: Platforms) -> Sequence[StagePackages]:
        """The Debian packages of its stages."""
        return ()

    def variables(self, recipe: R, platforms: Platforms) -> Mapping[str, Any]:
        """The variables of the template beside the recipe."""
        return {}


class DefinitionLayer(NamedTuple):
    """cmake's definitions by name, and their origin: "builder", "base X", "family X", "recipe", or
    an override."""

    origin: str
    definitions: Mapping[str, str | int | bool]


class EngineFamily(Family[Recipe]):
    """How one kind of engine is made."""

    requires_stages: tuple[str, ...] = ("devel", "runtime")
    all_tables = {
        "cmake": "[[cmake]]",
        "llama": "[llama]",
        "ggml": "[ggml]",
        "python": "[python]",
        "overlay": "[overlay]",
        "start": "[[start]]",
        "layout": "[layout]",
        "artifact": "[artifact]",
    }
    extends_base = False
    """The image is the base with files added or changed: some checks read only these."""
    uses_ccache = True
    """Some stage compiles with the compiler cache mounted."""
    no_vmm: str | None = None
    """Definition that every cmake call must set to ON where [cuda] vmm is false."""
    requires_entrypoint = False
    serve: Serve | None = None
    """How presets start the server if the smoke test does not start it."""
    name_option: str | None = None
    """Option that names the model in requests; without it, its path is its name."""
    folder: FolderServer | None = None
    """How the server is started with a model folder; None: it cannot be."""
    key: KeyOption | None = None
    """How its server reads its API key from a file; None: it cannot."""
    no_key = "reads no API key from a file"
    """Why a server without ``key`` is not opened to a network with one."""
    modules: tuple[str, ...] = ()
    """Modules of the server in Python; the checks import those that the image's version has."""
    cache: str | None = None
    """Directory in which the engine keeps compiled code for its next start."""
    runs = True
    """The image is started, and has the entrypoint of ``dockerfiles/entrypoint``."""
    tools: str | None = None
    """The base in whose root the entrypoint is compiled; None: in the stage ``devel``."""
    commit_count: tuple[str, str] | None = None
    """The key of a recipe with the number of its source's commits (``git rev-list --count``)."""
    package_paths: PackagePaths | None = None
    """The part of a repository's diff that can be applied to the source; None: all of it."""
    between_cards: Mapping[tuple[str, str, str], str] = {}
    """Options of a server on several cards that its images do not suit: option, variable and value,
    with the reason."""

    def machine_code(self, recipe: Recipe) -> Sequence[str]:
        """The code that decides which cards run the engine: "sm_120a"; none: it is not known."""
        return ()

    def instructions(self, recipe: Recipe, platforms: Platforms) -> list[str]:
        """The CPU instructions that the engine is compiled for; none: they are not known."""
        return []

    def page(self, recipe: Recipe) -> str | None:
        """The directory of the tree from which the build makes the server's web page; its
        package-lock.json pins the packages that this takes."""
        return None

    def complete(self, recipe: Recipe) -> Recipe:
        """The recipe with the image settings and probes of every engine of the family."""
        return recipe

    def absent(self, recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:
        """Parts that a recipe names and a source of these paths lacks."""
        yield from ()

    def layers(self, recipe: Recipe, platforms: Platforms) -> list[list[DefinitionLayer]]:
        """The definitions of each cmake call, in layers with their origin; later layers win."""
        return []

    def compiles_ggml(self, recipe: Recipe, platforms: Platforms) -> bool:
        """Whether a cmake call compiles ggml for CUDA, which has numbers to compare."""
        return False

    def debian(self, recipe: Recipe, platforms: Platforms) -> Sequence[StagePackages]:
        build = of_target(recipe.debian.build, platforms.target)
        stages = (
            compiling("build", "devel", build, platforms),
            running("runtime", "runtime", recipe.debian.runtime, platforms),
        )
        return [stage for stage in stages if stage.packages]

    @property
    def package_root(self) -> str:
        """The directory of the repository that has the package's directory; empty: the top."""
        return self.package_paths.root if self.package_paths is not None else ""

    def folder_of(self, recipe: Recipe) -> FolderServer | None:
        """How a recipe's server is started with a model folder; None: it loads a file, or it cannot
        be started."""
        return self.folder if recipe.serve is None else None

    def server_of(self, recipe: Recipe) -> Serve | None:
        """How a recipe's server is started on a simulated card; None: it cannot be."""
        return recipe.serve or (None if self.folder is None else self.folder.serve)

    def check(self, recipe: Recipe) -> Iterator[Finding]:
        yield from super().check(recipe)
        if self.requires_entrypoint and not recipe.image.entrypoint:
            yield ("image",), f"the family {self.name} needs an entrypoint"
        if SEPARATOR in recipe.image.entrypoint:
            yield ("image", "entrypoint"), f"{SEPARATOR!r} cannot be one of its words"
        if not self.takes("overlay"):
            if isinstance(recipe.source, InstalledSource):
                message = f"the family {self.name} cannot use a package of the base as source"
                yield ("source",), message
            for index, patch in enumerate(recipe.patch):
                if isinstance(patch, AddPatch) and patch.add.distribution is not None:
                    path = ("patch", index, "add", "distribution")
                    yield path, f"the family {self.name} has no installed packages to add to"
        yield from self.rules(recipe)
        try:
            complete = self.complete(recipe)
        except RecipeError:  # it lacks a table, which is a finding of its own
            return
        if not complete.probe:
            yield ("probe",), f"the family {self.name} needs {PROBE}"
        yield from _moved_servers(recipe.image, complete.image.port)
        yield from _contradicting_probes(recipe, complete.probe)


def _contradicting_probes(recipe: Recipe, every: Sequence[Probe]) -> Iterator[Finding]:
    """Probes that say the opposite of another one, or of one that the family adds."""
    known = [each for each in every if isinstance(each, LibraryProbe)]
    for index, probe in enumerate(recipe.probe):
        if not isinstance(probe, LibraryProbe):
            continue
        for other in known:
            platforms = {probe.platform, other.platform} - {None}
            if other.library != probe.library or len(platforms) > 1:
                continue
            clash = {*probe.needs} & {*other.needs_not} | {*probe.needs_not} & {*other.needs}
            clash |= {*probe.symbols} & {*other.symbols_not}
            clash |= {*probe.symbols_not} & {*other.symbols}
            if clash:
                names = ", ".join(sorted(clash))
                where = "another" if other in recipe.probe else "the family's"
                yield ("probe", index), f"contradicts {where} probe of {probe.library}: {names}"
                break


def _moved_servers(image: RecipeImage, port: int | None) -> Iterator[Finding]:
    """Options and variables that move the server from the port of the image.

    The smoke test asks over the container's loopback, where it would not see a wrong host.
    """
    given: list[tuple[tuple[str, ...], str, str]] = [
        (("image", "env", name), name, value) for name, value in image.env.items()
    ]
    for key in ("entrypoint", "command"):
        words = getattr(image, key)
        for word, following in zip(words, [*words[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            given.append((("image", key), name, value if equals else following))
    for path, name, value in given:
        if port is None or not ADDRESS.fullmatch(name):
            continue
        if name.lower().endswith("port"):
            if value != str(port):
                yield path, f"{name} is {value}, and the image's port is {port}"
        elif value in {"localhost", "::1"} or value.startswith("127."):
            message = f"{name} is {value}: the server could not be reached from outside"
            yield path, f"{message}; use 0.0.0.0"


class BaseFamily(Family[BaseRecipe]):
    """How one kind of base is made."""

    all_tables = {
        "root": "[root]",
        "wheel": "[[wheel]]",
        "published": "[published]",
        "python": "[python]",
    }
    stages: Mapping[str, str]
    """The stages that become images, named ``base-STAGE`` in the Dockerfiles above, with the
    compression of their layers: gzip for published layers, zstd for layers that stay local."""
    requires_base = ""
    """The kind of its base, for the error message; empty: it has no base."""

    def check(self, recipe: BaseRecipe) -> Iterator[Finding]:
        if self.requires_base and recipe.base is None:
            yield ("family",), f"the family {self.name} needs a base: {self.requires_base}"
        if not self.requires_base and recipe.base is not None:
            yield ("base",), f"a base of the family {self.name} has no base of its own"
        yield from super().check(recipe)
        yield from self.rules(recipe)


def required(table: Table | None, recipe: Recipe | BaseRecipe) -> Table:
    """A table that the check of the recipe's family requires."""
    if table is None:
        raise RecipeError(f"{recipe.name} lacks a table that the family {recipe.family} needs")
    return table


def with_image(recipe: Recipe, **known: Any) -> Recipe:
    """A recipe with other image settings, validated."""
    image = RecipeImage.model_validate(recipe.image.model_dump() | known)
    return recipe.model_copy(update={"image": image})


def native_lock(recipe: Recipe | BaseRecipe, folder: Path, platforms: Platforms) -> Lock:
    """The lock of a recipe's Python packages, a file of ``folder``."""
    if platforms.cross:
        raise RecipeError(
            f"{recipe.name} cannot be cross-compiled",
            "pip installs wheels of the platform that it runs on",
            f"build it with a builder of linux/{platforms.target} (--builder), or emulated, which "
            f"takes many times as long: BUILDER_COMPILE_ON={platforms.target}",
        )
    lock = recipe.python.lock if recipe.python else None
    return locks.read_lock(folder / required(lock, recipe))
