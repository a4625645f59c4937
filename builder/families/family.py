"""The type of a family: one value that describes how an engine, or a base, becomes an image."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from builder.errors import RecipeError
from builder.families import cmake_calls, entrypoint
from builder.families.cmake_calls import Command, DefinitionLayer, Definitions
from builder.families.debian import StagePackages, compiling, running
from builder.families.package_paths import PackagePaths
from builder.families.stated import LogReader
from builder.families.tree import Draft, ReadableTree
from builder.platforms import Platforms, of_target
from builder.recipes import lockfile
from builder.recipes.lockfile import Lock, PinnedFile
from builder.recipes.schema import (
    AddPatch,
    BaseRecipe,
    Cmake,
    Cuda,
    InstalledSource,
    LibraryProbe,
    Probe,
    Recipe,
    RecipeImage,
    Serve,
)

if TYPE_CHECKING:
    from builder.recipes.edit import Recount

Finding = tuple[tuple[str | int, ...], str]
"""A problem of a recipe: the path of the key, and the message."""
Packages = Mapping[str, tuple[PinnedFile, ...]]
"""Files of PyPI by the named context that holds them."""
Table = TypeVar("Table")

ENGINE_TABLES = {
    "cmake": "[[cmake]]",
    "llama": "[llama]",
    "python": "[python]",
    "overlay": "[overlay]",
    "start": "[[start]]",
    "layout": "[layout]",
    "artifact": "[artifact]",
}
"""Tables of a recipe that only some families use."""
PROBE = (
    'a [[probe]] of the finished image: run = ["PROGRAM", "--version"], '
    'contains = ["VERSION"], or see docs/recipes.md, Probes'
)
ADDRESS = re.compile("(LLAMA_ARG_|HELLO_ARG_)?(HOST|PORT)|--(server-)?(host|port)|--server-name")
"""Variables and options of a server's address."""
BASE_TABLES = {
    "root": "[root]",
    "wheel": "[[wheel]]",
    "published": "[published]",
    "python": "[python]",
}
"""Tables of a base that only some families use."""


@dataclass(frozen=True, slots=True)
class FolderServer:
    """A server that loads a model folder on a simulated card: the smoke test starts none on the
    CPU."""

    serve: Serve
    read_log: LogReader
    dummy: tuple[str, ...] = ()
    """More arguments, by which the engine makes up weights; empty: it cannot."""
    room: tuple[str, ...] = ()
    """Options by which a longer context fits into its KV cache."""
    samples: bool = True
    """Whether it reads back which tokens the card chose, from memory that no known kernel stored
    to: where kernels are counted, these are zeros (``cards.text``)."""


def on_a_card(serve: Serve, **env: str) -> Serve:
    """How a server is started with a model folder, with these variables.

    Its caches are in HOME; without a network, it must not ask the Hub.
    """
    return serve.model_copy(
        update={
            "env": {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", **env},  # noqa: S108
            "seconds": 900,  # compiles of Triton's, nvcc's and torch's kernels, on two cores
            "memory": 12.0,
        }
    )


@dataclass(frozen=True, kw_only=True)
class EngineFamily:
    """How one kind of engine is made.

    Commands in stages see the scripts in ``/inside``; lock paths of ``packages`` start at the
    recipe's own directory.
    """

    name: str
    summary: str
    template: str
    """File of ``dockerfiles/``."""
    scripts: tuple[str, ...] = ()
    """Files of ``dockerfiles/scripts/`` that the stages run."""
    requires_stages: tuple[str, ...] = ("devel", "runtime")
    """Stages that the base must have."""
    extends_base: bool = False
    """The image is the base with files added or changed: some checks read only these."""
    compiles_at_target: bool = False
    """It compiles on the base's stage ``runtime``, on the target platform."""
    uses_ccache: bool = True
    """Some stage compiles with the compiler cache mounted."""
    no_vmm: str | None = None
    """Definition that every cmake call must set to ON where [cuda] vmm is false."""
    required_tables: Mapping[str, str] = field(default_factory=dict)
    """Tables that a recipe must have, as its error message names them."""
    tables: tuple[str, ...] = ()
    """Further tables that a recipe may have."""
    requires_entrypoint: bool = False
    serve: Serve | None = None
    """How presets start the server if the smoke test does not start it."""
    folder: FolderServer | None = None
    """How the server is started with a model folder; None: it cannot be."""
    modules: tuple[str, ...] = ()
    """Modules of the server in Python; the checks import those that the image's version has."""
    cache: str | None = None
    """Directory in which the engine keeps compiled code for its next start."""
    runs: bool = True
    """The image is started, and has the entrypoint of ``dockerfiles/entrypoint``."""
    tools: str | None = None
    """The base in whose root the entrypoint is compiled; None: in the stage ``devel``."""
    machine_code: Callable[[Recipe], Sequence[str]] = entrypoint.machine_code
    """The code that decides which cards run the engine: "sm_120a"; none: it is not known."""
    rules: Callable[[Recipe], Iterable[Finding]] = lambda _: ()
    """Rules of the family beyond its tables."""
    complete: Callable[[Recipe], Recipe] = lambda recipe: recipe
    """Adds the image settings and probes that hold for every engine of the family."""
    has_probes: bool = False
    """``complete`` adds probes: a recipe needs none."""
    draft: Callable[[ReadableTree, Cuda], Draft | None] | None = None
    """The recipe of a tree, with such CUDA code; None for a tree of another kind; it
    raises ``RecipeError`` for a tree that the family cannot build. None: no tree is recognised."""
    packages: Callable[[Recipe, Path, Platforms], Packages] = lambda *_: {}
    debian_build: tuple[str, ...] = ()
    debian_runtime: tuple[str, ...] = ()
    """Debian packages that every engine of the family compiles with, or runs with."""
    package_paths: PackagePaths | None = None
    """The part of a repository's diff that can be applied to the source; None: all of it."""
    commit_count: tuple[str, str] | None = None
    """Table and key of a recipe that count the commits of its source (``git rev-list --count``);
    upstream names a release by this number: "b9261"."""
    absent: Callable[[Recipe, Collection[str]], Iterable[Finding]] = lambda *_: ()
    """Parts that a recipe names and a source of these paths lacks."""
    definitions: Callable[[Recipe, Platforms], Definitions] = lambda *_: {}
    """Definitions for every cmake call of the family."""
    fixed: Definitions = field(default_factory=dict)
    """The definitions that a recipe changes only with override, and a reason."""
    relied: Mapping[str, Definitions] = field(default_factory=dict)
    """The definitions that its probes and checks rely on, by the reason: no recipe changes them."""
    between_cards: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """Options of a server on several cards that its images do not suit: option, variable and value,
    with the reason."""
    recipe_definitions: Callable[[Recipe], Sequence[Definitions]] = cmake_calls.of_recipe
    """The recipe's own definitions, per cmake call."""
    install: Callable[[Recipe, Platforms, int, Cmake], Sequence[Command]] | None = None
    """Commands that install the targets of cmake call NUMBER; None: the template calls no cmake."""
    variables: Callable[[Recipe, Platforms], Mapping[str, Any]] = lambda *_: {}
    """Further variables of the template."""

    @property
    def package_root(self) -> str:
        """The directory of the repository that has the package's directory; empty: the top."""
        return self.package_paths.root if self.package_paths is not None else ""

    def check(self, recipe: Recipe) -> Iterator[Finding]:
        """Keys that a recipe lacks, or sets without effect."""
        for table, text in self.required_tables.items():
            if not getattr(recipe, table):
                yield ("family",), f"the family {self.name} needs {text}"
        if self.requires_entrypoint and not recipe.image.entrypoint:
            yield ("image",), f"the family {self.name} needs an entrypoint"
        if entrypoint.SEPARATOR in recipe.image.entrypoint:
            yield ("image", "entrypoint"), f"{entrypoint.SEPARATOR!r} cannot be one of its words"
        if not (recipe.probe or self.has_probes):
            yield ("probe",), f"the family {self.name} needs {PROBE}"
        yield from self._unused(recipe)
        yield from self._overrides(recipe)
        yield from cmake_calls.contradictions(recipe)
        yield from self._relied(recipe)
        try:
            complete = self.complete(recipe)
        except RecipeError:  # it lacks a table, which is a finding of its own
            yield from self.rules(recipe)
            return
        yield from self._address(recipe, complete.image.port)
        yield from self.rules(recipe)
        yield from self._probes(recipe, complete.probe)

    def folder_of(self, recipe: Recipe) -> FolderServer | None:
        """How a recipe's server is started with a model folder; None: it loads a file, or it cannot
        be started."""
        return self.folder if recipe.serve is None else None

    def server_of(self, recipe: Recipe) -> Serve | None:
        """How a recipe's server is started on a simulated card; None: it cannot be."""
        return recipe.serve or (None if self.folder is None else self.folder.serve)

    def recounted(self, recipe: Recipe, count: Callable[[], int]) -> Recount | None:
        """A recipe's new number of commits, where it has one."""
        from builder.recipes.edit import Recount  # slow to import

        if self.commit_count is None:
            return None
        table, key = self.commit_count
        return Recount(self.commit_count, getattr(getattr(recipe, table), key), count())

    def debian(self, recipe: Recipe, platforms: Platforms) -> tuple[StagePackages, ...]:
        """The Debian packages of its stages ``build`` and ``runtime``."""
        build = (*self.debian_build, *of_target(recipe.debian.build, platforms.target))
        runtime = (*self.debian_runtime, *recipe.debian.runtime)
        stages = (
            running("build", "runtime", build, platforms)
            if self.compiles_at_target
            else compiling("build", "devel", build, platforms),
            running("runtime", "runtime", runtime, platforms),
        )
        return tuple(stage for stage in stages if stage.packages)

    def layers(self, recipe: Recipe, platforms: Platforms) -> list[list[DefinitionLayer]]:
        """The definitions of each cmake call, in layers with their origin; later layers win."""
        common = cmake_calls.common_layers(recipe, platforms)
        if own := self.definitions(recipe, platforms):
            common.append(DefinitionLayer(f"family {self.name}", own))
        found = [
            [*common, DefinitionLayer("recipe", own)] for own in self.recipe_definitions(recipe)
        ]
        for call, layers in zip(recipe.cmake, found, strict=False):  # of an sdist: no [[cmake]]
            layers += cmake_calls.overriding(call)
        return found

    def compiles_ggml(self, recipe: Recipe, platforms: Platforms) -> bool:
        """Whether a cmake call compiles ggml for CUDA, which has numbers to compare."""
        calls = self.layers(recipe, platforms)
        return any(
            cmake_calls.truth(cmake_calls.merged(layers).get("GGML_CUDA", False))
            for layers in calls
        )

    def instructions(self, recipe: Recipe, platforms: Platforms) -> list[str]:
        """The CPU instructions that the engine is compiled for; none: they are not known."""
        found = [
            name
            for layers in self.layers(recipe, platforms)
            for name in cmake_calls.instructions(cmake_calls.merged(layers), platforms.target)
        ]
        return list(dict.fromkeys(found))

    def template_variables(self, recipe: Recipe, platforms: Platforms) -> dict[str, Any]:
        """The variables of the template beside the recipe."""
        found = dict(self.variables(recipe, platforms))
        if self.install is not None:
            calls = zip(recipe.cmake, self.layers(recipe, platforms), strict=True)
            found["invocations"] = [
                {
                    "configure": cmake_calls.configure(number, call, layers),
                    "build": cmake_calls.build(number, call),
                    "install": self.install(recipe, platforms, number, call),
                }
                for number, (call, layers) in enumerate(calls, 1)
            ]
        return found

    def _unused(self, recipe: Recipe) -> Iterator[Finding]:
        known = {*self.tables, *self.required_tables}
        for name, table in ENGINE_TABLES.items():
            if name not in known and name in recipe.model_fields_set and getattr(recipe, name):
                yield (name,), f"the family {self.name} has no use for {table}"
        if "layout" not in known:
            for index, call in enumerate(recipe.cmake):
                if call.place is not None:
                    message = f"the family {self.name} chooses its own directories"
                    yield ("cmake", index, "place"), message
        if "overlay" not in known:
            yield from self._installed(recipe)

    def _overrides(self, recipe: Recipe) -> Iterator[Finding]:
        for index, call in enumerate(recipe.cmake):
            for name in call.define.keys() & self.fixed.keys():
                message = "is set by the family for every tree: use override, with a reason"
                yield ("cmake", index, "define", name), message
            for place, each in enumerate(call.override):
                at = ("cmake", index, "override", place)
                if each.name not in self.fixed:
                    yield (*at, "name"), "the family does not set it for every tree: use define"
                elif cmake_calls.same(each.value, self.fixed[each.name]):
                    yield (*at, "value"), "the family sets this value"

    def _relied(self, recipe: Recipe) -> Iterator[Finding]:
        needed = {
            name: (value, why) for why, of in self.relied.items() for name, value in of.items()
        }
        for path, name, value in cmake_calls.given(recipe):
            if name in needed and not cmake_calls.same(value, needed[name][0]):
                wanted = cmake_calls.definition_value(needed[name][0])
                yield path, f"{name} must be {wanted}: {needed[name][1]}"

    def _probes(self, recipe: Recipe, every: Sequence[Probe]) -> Iterator[Finding]:
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

    def _address(self, recipe: Recipe, port: int | None) -> Iterator[Finding]:
        """Options and variables that move the server from the port of the image.

        The smoke test asks over the container's loopback, where it would not see a wrong host.
        """
        image, given = recipe.image, list[tuple[tuple[str, ...], str, str]]()
        if port is None:
            return
        given += ((("image", "env", name), name, value) for name, value in image.env.items())
        for key in ("entrypoint", "command"):
            words = getattr(image, key)
            for word, following in zip(words, [*words[1:], ""], strict=False):
                name, equals, value = word.partition("=")
                given.append((("image", key), name, value if equals else following))
        for path, name, value in given:
            if ADDRESS.fullmatch(name) and (message := _moved(name, value, port)):
                yield path, message

    def _installed(self, recipe: Recipe) -> Iterator[Finding]:
        if isinstance(recipe.source, InstalledSource):
            yield ("source",), f"the family {self.name} cannot use a package of the base as source"
        for index, patch in enumerate(recipe.patch):
            if isinstance(patch, AddPatch) and patch.add.distribution is not None:
                path = ("patch", index, "add", "distribution")
                yield path, f"the family {self.name} has no installed packages to add to"


def _moved(name: str, value: str, port: int) -> str:
    """Why an option or variable makes the server unreachable; empty: it does not."""
    if name.lower().endswith("port"):
        return "" if value == str(port) else f"{name} is {value}, and the image's port is {port}"
    if value in {"localhost", "::1"} or value.startswith("127."):
        return f"{name} is {value}: the server could not be reached from outside; use 0.0.0.0"
    return ""


@dataclass(frozen=True, kw_only=True)
class BaseFamily:
    """How one kind of base is made; the fields are as in ``EngineFamily``."""

    name: str
    summary: str
    template: str
    scripts: tuple[str, ...] = ()
    cross_scripts: tuple[str, ...] = ()
    """Further files of ``dockerfiles/scripts/``, where the target is not the build platform."""
    requires_stages: tuple[str, ...] = ()
    stages: Mapping[str, str]
    """The stages that become images, named ``base-STAGE`` in the Dockerfiles above, with the
    compression of their layers: gzip for published layers, zstd for layers that stay local."""
    requires_base: str = ""
    """The kind of its base, for the error message; empty: it has no base."""
    required_tables: Mapping[str, str] = field(default_factory=dict)
    rules: Callable[[BaseRecipe], Iterable[Finding]] = lambda _: ()
    packages: Callable[[BaseRecipe, Path, Platforms], Packages] = lambda *_: {}
    debian: Callable[[BaseRecipe, Platforms], Sequence[StagePackages]] = lambda *_: ()
    """The Debian packages of its stages."""
    variables: Callable[[BaseRecipe, Platforms], Mapping[str, Any]] = lambda *_: {}

    def check(self, recipe: BaseRecipe) -> Iterator[Finding]:
        """Keys that a base lacks, or sets without effect."""
        if self.requires_base and recipe.base is None:
            yield ("family",), f"the family {self.name} needs a base: {self.requires_base}"
        if not self.requires_base and recipe.base is not None:
            yield ("base",), f"a base of the family {self.name} has no base of its own"
        for table, text in self.required_tables.items():
            if not getattr(recipe, table):
                yield ("family",), f"the family {self.name} needs {text}"
        for name, table in BASE_TABLES.items():
            if name not in self.required_tables and getattr(recipe, name):
                yield (name,), f"the family {self.name} has no use for {table}"
        yield from self.rules(recipe)


def required(table: Table | None, recipe: Recipe | BaseRecipe) -> Table:
    """A table that the check of the recipe's family requires.

    Raises ``RecipeError`` for a recipe that was not checked and lacks it.
    """
    if table is None:
        raise RecipeError(f"{recipe.name} lacks a table that the family {recipe.family} needs")
    return table


def with_image(recipe: Recipe, **known: Any) -> Recipe:
    """A recipe with other image settings, validated."""
    image = RecipeImage.model_validate(recipe.image.model_dump() | known)
    return recipe.model_copy(update={"image": image})


def native_lock(recipe: Recipe | BaseRecipe, folder: Path, platforms: Platforms) -> Lock:
    """The lock of a recipe's Python packages, a file of ``folder``.

    Raises ``RecipeError`` where it is wrong, or the build would be a cross build.
    """
    if platforms.cross:
        raise RecipeError(
            f"{recipe.name} cannot be cross-compiled",
            "pip installs wheels of the platform that it runs on",
            f"build it with a builder of linux/{platforms.target} (--builder), or emulated, which "
            f"takes many times as long: BUILDER_COMPILE_ON={platforms.target}",
        )
    lock = recipe.python.lock if recipe.python else None
    return lockfile.read(folder / required(lock, recipe))
