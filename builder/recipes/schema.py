"""The format of an engine's recipe."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from builder.core.names import REPOSITORY
from builder.core.platforms import PLATFORMS, Architecture, Platform, Platforms
from builder.recipes.fields import (
    CAPABILITY,
    CMAKE_TARGET,
    CUDA_ARCH,
    CUDA_VERSION,
    PLAIN,
    TAG,
    TAG_GLOB,
    USER,
    VERSION_GLOB,
    Commit,
    DebianPackage,
    DefineName,
    DefineValue,
    Digest,
    GitUrl,
    License,
    Model,
    Name,
    PythonProject,
    Ref,
    Sha256,
    Text,
    TreePath,
    Value,
    VariableName,
    Version,
    by_only_key,
    described,
    requirement,
)
from builder.recipes.patches import Patch
from builder.recipes.probes import Accept, Budget, Probe, Serve, Symbol

# The source of an engine, and how newer versions of it are found.

Folder = Annotated[TreePath, AfterValidator(posixpath.normpath)]
"""A directory of a tree, written like its paths: without "./" and a slash at the end."""


class PathSource(Model):
    """A tree of this repository."""

    path: TreePath
    """Directory of the source, relative to the catalog's repository."""


class PypiSource(Model):
    """An sdist or a wheel from PyPI, by name, version and digest."""

    pypi: PythonProject
    """Project name on PyPI."""
    version: Version
    """Release."""
    sha256: Sha256
    """sha256 of the file."""
    root: Folder = "."
    """Directory of the source inside the file (without the top directory of an sdist):
    "vendor/llama.cpp"."""


class GitSource(Model):
    """A commit of a git repository."""

    git: GitUrl
    """URL of the repository; git's own configuration may rewrite it."""
    ref: Ref | None = None
    """Tag or branch, for people: the commit decides."""
    commit: Commit
    """The commit: 40 hex digits."""
    submodules: bool = True
    """Whether to fetch submodules."""
    submodule: dict[TreePath, GitUrl] = {}
    """New URL of a submodule that has moved, by path."""

    @model_validator(mode="after")
    def _require_submodules(self) -> GitSource:
        if self.submodule and not self.submodules:
            raise ValueError("submodule has no use where submodules = false")
        return self


class InstalledSource(Model):
    """A package that the base has installed: nothing is fetched, and nothing can be patched."""

    installed: PythonProject
    """Name of the Python project."""


SOURCES = ("git", "path", "pypi", "installed")

Source = Annotated[
    Annotated[GitSource, Tag("git")]
    | Annotated[PathSource, Tag("path")]
    | Annotated[PypiSource, Tag("pypi")]
    | Annotated[InstalledSource, Tag("installed")],
    by_only_key("source", SOURCES),
]


PublishedImage = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*:[\w.-]+$"), PLAIN
]


class Track(Model):
    """How to find newer versions upstream, for updates, patch checks and nightly runs."""

    tag: Annotated[str, StringConstraints(pattern=TAG_GLOB), PLAIN] | None = None
    """Newest tag that matches this glob ("b[0-9]*"); numbers compare as numbers. `[0-9]*` is one
    number, dots included: "v[0-9]*" does not match v1.0.0-beta."""
    branch: Ref | None = None
    """Head of this branch."""
    image: PublishedImage | None = None
    """Digest of this tag of a published image, which the base uses."""
    channel: Annotated[Version, StringConstraints(max_length=40)] | None = None
    """Moving tag that each successful nightly run moves."""
    limit: Annotated[int, Field(ge=1, le=365)] = 3
    """Days that a channel may be behind its upstream."""
    still: Annotated[int, Field(ge=1, le=3650)] = 180
    """Days without anything new upstream before a channel counts as still."""
    keep: Annotated[int, Field(ge=1, le=10_000)] = 7
    """Nightlies of the channel that `tag prune` keeps, and rollbacks of each tag whose images it
    keeps. Version tags, and so the images of presets, always stay."""

    @model_validator(mode="after")
    def _require_one_upstream(self) -> Track:
        if sum(kind is not None for kind in (self.tag, self.branch, self.image)) != 1:
            raise ValueError("needs exactly one of: tag, branch, image")
        return self


# The recipe.

DriverVersion = Annotated[str, StringConstraints(pattern=r"^[0-9]{3}(?:\.[0-9]+){0,2}$"), PLAIN]


CudaArchitectures = Annotated[
    list[Annotated[str, StringConstraints(pattern=CUDA_ARCH), PLAIN]], Field(min_length=1)
]


class CudaOfPlatform(Model):
    """The CUDA code of the linux/arm64 image."""

    arch: CudaArchitectures
    """Values of CMAKE_CUDA_ARCHITECTURES: "121" for the GB10 of a DGX Spark."""


class Cuda(Model):
    """The CUDA code of the image."""

    arch: CudaArchitectures = ["120"]
    """Values of CMAKE_CUDA_ARCHITECTURES: "120", "120a-real", ... Where the recipe has two
    platforms: for linux/amd64."""
    arm64: CudaOfPlatform | None = None
    """The code of the linux/arm64 image, where the recipe has a linux/amd64 image as well."""
    vmm: bool = False
    """False: virtual memory management is compiled out, and nothing links libcuda. Default for
    families that extend PyTorch's wheels: true, they link it."""
    driver: DriverVersion | None = None
    """Oldest driver of NVIDIA's that the image must run with: "580"."""


class Override(Model):
    """Another value for a definition that the family sets for every tree."""

    name: DefineName
    """The definition: "LLAMA_BUILD_EXAMPLES"."""
    value: DefineValue
    """true and false become ON and OFF."""
    why: Text
    """Why this tree needs it."""


class Cmake(Model):
    """One cmake configure and build."""

    source: TreePath = "."
    """Directory of the CMakeLists.txt, inside the source tree."""
    targets: list[Annotated[str, StringConstraints(pattern=CMAKE_TARGET), PLAIN]] = []
    """Targets to build; empty: all. Default of the only call of the family llama-cpp: llama-server,
    llama-cli, llama-bench."""
    install: Literal["rules", "targets"] = "rules"
    """For the family cmake; ggml has "targets". "rules": the project's own rules install everything
    that they name. "targets": ``targets`` and the shared libraries of the build are installed, side
    by side."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions, which the source must use; true and false become ON and OFF."""
    override: list[Override] = []
    """Definitions that the family sets for every tree, with other values."""
    place: TreePath | None = None
    """Where its targets and their libraries go, below /opt/engine; default: "bin"."""


class Layout(Model):
    """Parts of the source that are copied into the image."""

    keep: list[TreePath] = []
    """Directories and files of the source tree, put below /opt/engine under the same paths."""


Requirement = Annotated[Text, AfterValidator(requirement)]


class Python(Model):
    """The Python packages of an image, and how an sdist with compiled parts becomes one."""

    lock: TreePath
    """Lock file of the build's and the runtime's wheels, relative to the recipe."""
    requirements: list[Requirement] = []
    """Requirements that ``./farm pin lock`` resolves for the runtime: "fastapi>=0.115"."""
    config: dict[DefineName, DefineValue] = {}
    """PEP 517 config settings of the build backend."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions of the cmake that the build backend calls."""


Page = Annotated[
    Annotated[bool, Tag("bool")] | Annotated[Folder, Tag("str")],
    Discriminator(
        lambda value: type(value).__name__,
        custom_error_type="page",
        custom_error_message="must be true, false, or the directory of the page's source",
    ),
]


class Llama(Model):
    """Settings of one tree of the llama.cpp family."""

    build_number: Annotated[int, Field(ge=1)] | None = None
    """Build number in --version: ``git rev-list --count`` of the pin's full history; required where
    the source is a git repository. A release of PyPI has no history: default 0, as the tree's own
    cmake has it there."""
    build_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-z.]{4,40}$"), PLAIN] | None = (
        None
    )
    """Commit in --version; default: 9 digits of the pin, and "unknown" without one."""
    git: bool = False
    """The build stage has a ``git`` that answers about the pin alone: its number, its commit and
    its tag. For a tree whose cmake asks git, and overwrites what is given."""
    ui: Page = False
    """Embed the web page of the server: ``true`` where the tree holds it, built; or the directory
    of its source, "tools/ui", with package.json and package-lock.json: the build makes it."""
    cpu_variants: bool = False
    """Compile the CPU code for each generation of CPUs: the engine takes the best at its start."""


class GgmlTests(Model):
    """A commit of ggml that has the kernel tests of a tree without them."""

    git: GitUrl
    """URL of the repository."""
    commit: Commit
    """The commit with the same ggml: 40 hex digits."""


class Ggml(Model):
    """Settings of a tree with ggml inside."""

    switch: DefineName | None = None
    """The tree's own option for CUDA, where it decides GGML_CUDA: "SD_CUDA"."""
    tests: GgmlTests | None = None
    """Where tests/test-backend-ops.cpp is, if the tree has none."""


class Overlay(Model):
    """The installed Python package that is patched; default: the source's, where that is PyPI."""

    package: PythonProject
    """Name of the Python project."""
    version: Annotated[str, StringConstraints(pattern=VERSION_GLOB), PLAIN]
    """Version in its metadata; ``*`` matches any text: "*+g58c8a5eaa"."""


class Start(Model):
    """A patch that cannot be baked in: a program that runs whenever a container starts.

    Where it fails, hangs or breaks a file, the engine is not started.
    """

    run: Annotated[list[Text], Field(min_length=1)]
    """Program and arguments."""
    why: Text
    """Why the recipe needs it."""
    drop_when: Text | None = None
    """Condition for removing it."""
    contains: list[Text] = []
    """Texts that the output must contain; otherwise the step fails."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 300
    """Time limit."""


class Artifact(Model):
    """Files of the build; the image contains only these and runs nothing."""

    files: Annotated[list[TreePath], Field(min_length=1)]
    """In the build directory of the only ``[[cmake]]``: "libvgpu.so"."""
    loads: bool = True
    """Each is a shared library: LD_PRELOAD must load it into a program of the base."""
    undefined: dict[Symbol, Text] = {}
    """Functions that it calls and no library that it loads defines, each with the reason. Another
    undefined function is an error, and a defined one in this list."""

    @model_validator(mode="after")
    def _require_loads(self) -> Artifact:
        if self.undefined and not self.loads:
            raise ValueError("undefined has no use where loads = false")
        return self

    @property
    def names(self) -> list[str]:
        """Names of the files in the image's root directory."""
        return [path.rsplit("/", 1)[-1] for path in self.files]


class Debian(Model):
    """Debian packages beside the base's."""

    build: list[DebianPackage] = []
    """Packages to compile with; the image does not have them.  "libssl-dev:target" is for the
    image's architecture, to link it."""
    runtime: list[DebianPackage] = []
    """Packages of the image."""
    lock: TreePath | None = None
    """Lock file of these packages and their dependencies, relative to the recipe; ``./farm pin
    lock`` makes it. Without it, each build installs the newest versions."""


class RecipeImage(Model):
    """Names, tags and start of the image."""

    repository: Annotated[str, StringConstraints(pattern=REPOSITORY, max_length=200), PLAIN] = ""
    """Repository of the image, without the namespace; default: the engine."""
    tags: Annotated[
        list[Annotated[str, StringConstraints(pattern=TAG), PLAIN]], Field(min_length=1)
    ] = []
    """Tags of the image besides its immutable one, VERSION-KEY; default: the version."""
    moving: list[Annotated[str, StringConstraints(pattern=TAG), PLAIN]] = []
    """Tags that move to every new image: "latest".  Other tags never move."""
    entrypoint: list[Text] = []
    """Entrypoint of the container; default: set by the family."""
    command: list[Value] = []
    """Arguments of the entrypoint where ``docker run`` gives none."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port on which the server listens."""
    health: TreePath | None = None
    """Path of the health page on ``port``, without the leading slash."""
    env: dict[VariableName, Value] = {}
    """Environment variables of the container."""
    user: Annotated[str, StringConstraints(pattern=USER), PLAIN] | None = None
    """User and group of the process; default: set by the family ("10001:10001" on our bases)."""
    compression: Literal["gzip", "zstd"] = "gzip"
    """Compression of the layers; a published base's stay as they are. Docker reads zstd
    since 23.0, containerd since 1.5."""

    @model_validator(mode="after")
    def _require_port_for_health(self) -> RecipeImage:
        if self.health is not None and self.port is None:
            raise ValueError("health is a page of the server on port: give port as well")
        return self


class Build(Model):
    """Resources that the build requires."""

    memory_per_job: Annotated[float, Field(gt=0, le=256)] = 3.0
    """GiB of memory for each compile job: nvcc needs about 3."""
    disk: Annotated[float, Field(gt=0, le=2000)] = 10.0
    """GiB of free disk that the build requires."""


class EngineBuild(Build):
    """Resources that the build of an engine requires. The default of disk is 8 in the family
    llama-cpp, and 2 in families that extend a base, which says its own."""

    steps: Annotated[int, Field(ge=1)] | None = None
    """Compile steps, as ninja counts them ("[1/464]"): ``run`` estimates the time by them."""


def _on(patch: Patch, platform: str) -> Patch:
    """A patch without its probe, where that is for another platform."""
    if patch.probe is None or patch.probe.platform in (None, platform):
        return patch
    return patch.model_copy(update={"probe": None})


OF_WHEELS: Mapping[str, Any] = {"build": {"disk": 2.0}, "cuda": {"vmm": True}}
OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "llama-cpp": {"build": {"disk": 8.0}},
    "lmdeploy-overlay": OF_WHEELS,
    "sglang-overlay": OF_WHEELS,
    "tabbyapi": OF_WHEELS,
    "vllm-overlay": {**OF_WHEELS, "url": "https://github.com/vllm-project/vllm"},
}
"""Values that a recipe of a family need not repeat; of tables key by key."""
LLAMA_TARGETS = ("llama-server", "llama-cli", "llama-bench")


class Added(Model):
    """Items after the items of the recipe that this one extends."""

    notes: list[Text] = []
    """After its notes."""
    patch: list[Patch] = []
    """Applied after its patches."""
    probe: list[Probe] = []
    """Beside its probes."""
    accept: list[Accept] = []
    """Beside what it accepts."""


NOT_EXTENDED = ("version", "kept")
"""Keys that a recipe does not have from the one that it extends."""
EXTENDED_WHOLE = ("source", "track")
"""Tables that replace the extended recipe's whole; others do so key by key."""


class Recipe(Model):
    """An engine: the inputs of its image, and its checks."""

    engine: Name
    """Name of the engine; the file is ``ENGINE-VERSION.toml``."""
    version: Version
    """Version of the engine; the image's immutable tag begins with it."""
    extends: Name | None = None
    """Another version of the engine, which says whatever this recipe does not: see "A version that
    extends another one" in recipes.md."""
    add: Annotated[Added, Field(exclude=True)] = Added()
    """Only with ``extends``."""
    kept: Text | None = None
    """Why the recipe is kept although its engine has a newer one: ``list`` shows it with --all, and
    CI builds it only when it is changed or named. Default: people should take it."""
    summary: Text
    """Description of the engine, one line."""
    license: License
    """SPDX license expression."""
    url: Text | None = None
    """Where people read about the engine; default: the git repository of the source."""
    family: Name
    """Family that builds the engine: "llama-cpp", "cmake", ..."""
    base: Name
    """Base to compile in and to run on: a file of ``recipes/bases/``."""
    platform: Annotated[list[Platform], Field(min_length=1)] = ["linux/amd64"]
    """Platforms of the image; there is one image for each. linux/arm64 is for a DGX Spark."""
    notes: list[Text] = []
    """Purpose and known problems."""
    source: Source
    track: Track | None = None
    patch: list[Patch] = []
    """Applied in order."""
    cuda: Cuda = Cuda()
    llama: Llama | None = None
    ggml: Ggml | None = None
    cmake: list[Cmake] = []
    python: Python | None = None
    overlay: Overlay | None = None
    start: list[Start] = []
    """Run in order, before the engine."""
    layout: Layout = Layout()
    artifact: Artifact | None = None
    debian: Debian = Debian()
    image: RecipeImage = RecipeImage()
    build: EngineBuild = EngineBuild()
    serve: Serve | None = None
    """How the smoke test starts the server; default: set by the family."""
    no_serve: Text | None = None
    """Why the smoke test cannot start the server: then ``recipe check`` has no warning."""
    budget: Budget = Budget()
    accept: list[Accept] = []
    probe: list[Probe] = []
    """Facts about the finished image; required where the family has no probes of its own."""

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, document: Any) -> Any:
        """The document with the values that follow from its other keys, or from its family."""
        if not isinstance(document, dict):
            return document
        family, source, version = (document.get(key) for key in ("family", "source", "version"))
        filled = dict(document)
        for name, value in OF_FAMILY.get(family, {}).items() if isinstance(family, str) else ():
            given = document.get(name, {} if isinstance(value, dict) else value)
            both = isinstance(value, dict) and isinstance(given, dict)
            filled[name] = {**value, **given} if both else given
        if isinstance(source, dict) and "git" in source:
            filled.setdefault("url", source["git"])
        image = {"repository": document["engine"]} if "engine" in document else {}
        if isinstance(version, str) and re.fullmatch(TAG, version):
            image["tags"] = [version]
        if isinstance(given := document.get("image", {}), dict):
            filled["image"] = {**image, **given}
        serve = document.get("serve")
        if (
            isinstance(serve, dict)
            and serve.get("api_flavor") == "none"
            and isinstance(given, dict)
        ):
            filled["serve"] = {"health": given.get("health"), **serve}
        calls = document.get("cmake", [{}])
        if not isinstance(calls, list) or {*map(type, calls)} != {dict}:
            return filled
        if family == "llama-cpp" and len(calls) == 1:
            filled["cmake"] = [{"targets": [*LLAMA_TARGETS], **calls[0]}]
        elif family == "ggml":
            filled["cmake"] = [{"install": "targets", **call} for call in calls]
        return filled

    @model_validator(mode="after")
    def _require_extends(self) -> Recipe:
        if self.extends is None and "add" in self.model_fields_set:
            raise ValueError("add has no use without extends")
        return self

    @model_validator(mode="after")
    def _require_moving_channel(self) -> Recipe:
        channel = self.track.channel if self.track else None
        if channel is not None and channel not in self.image.moving:
            raise ValueError(f"the channel {channel} must be among image.moving: it moves")
        return self

    @model_validator(mode="after")
    def _require_health(self) -> Recipe:
        if self.serve and self.serve.api_flavor == "none" and self.serve.health is None:
            raise ValueError(
                'api_flavor = "none" in [serve] needs health in [image]: the check waits'
            )
        return self

    @model_validator(mode="after")
    def _require_code_of_each_platform(self) -> Recipe:
        if len({*self.platform}) < len(self.platform):
            raise ValueError("platform names a platform twice")
        if len(self.platform) > 1 and self.cuda.arm64 is None:
            raise ValueError('the image for linux/arm64 needs [cuda.arm64], with arch = ["121"]')
        if len(self.platform) == 1 and self.cuda.arm64 is not None:
            raise ValueError(
                "[cuda.arm64] is for a recipe with two platforms: give its arch in [cuda]"
            )
        probes = [*self.probe, *(patch.probe for patch in self.patch if patch.probe)]
        others = {probe.platform for probe in probes} - {None, *self.platform}
        if others:
            raise ValueError(f"a probe is for {others.pop()}, which platform does not name")
        if self.platform == ["linux/arm64"] and "arch" not in self.cuda.model_fields_set:
            raise ValueError('the image for linux/arm64 needs arch in [cuda]: ["121"]')
        return self

    @property
    def channel(self) -> str:
        """The tag that nightly runs move; empty: there is none."""
        return (self.track.channel if self.track else None) or ""

    def on(self, platform: str) -> Recipe:
        """The recipe of the image for one platform: its CUDA code, and its probes."""
        update: dict[str, Any] = {
            "probe": [probe for probe in self.probe if probe.platform in (None, platform)],
            "patch": [_on(patch, platform) for patch in self.patch],
        }
        if self.cuda.arm64 is not None:
            arch = self.cuda.arm64.arch if platform == "linux/arm64" else self.cuda.arch
            update["cuda"] = self.cuda.model_copy(update={"arch": arch, "arm64": None})
        return self.model_copy(update=update)

    @property
    def targets(self) -> tuple[Architecture, ...]:
        """The architectures of its platforms."""
        return tuple(PLATFORMS[platform] for platform in self.platform)

    def tag_suffix(self, platform: Platform) -> str:
        """The end of the tags of the image for a platform: "-arm64", or nothing.

        A name in the engine means one image: with two platforms, linux/amd64 has the plain one.
        """
        plain = platform == "linux/amd64" or len(self.platform) == 1
        return "" if plain else f"-{PLATFORMS[platform]}"

    @property
    def name(self) -> str:
        """Name of the recipe: ``engine-version``."""
        return f"{self.engine}-{self.version}"


def by_version(recipe: Recipe) -> tuple[Any, ...]:
    """A key that sorts recipes: b8863 before b10018, and 0.9 before 0.10."""
    parts = re.split(r"(\d+)", recipe.version)
    return recipe.engine, [int(each) if each.isdigit() else each for each in parts]


# The format of a base, and the JSON Schemas of both formats.


class Packages(Model):
    """Debian packages."""

    packages: list[DebianPackage] = []
    """Debian packages; "libssl-dev:target" is for the image's architecture."""
    cross: dict[Architecture, list[DebianPackage]] = {}
    """More packages to compile with for another architecture, by that architecture."""

    def crossing(self, platforms: Platforms) -> list[str]:
        """Its ``cross`` packages, if the build is a cross build."""
        return self.cross.get(platforms.target, []) if platforms.cross else []


class Root(Packages):
    """Where the Debian root comes from."""

    suite: Name
    """Release of Debian: "trixie"."""
    image: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/:-]*$"), PLAIN]
    """The registry image to start from, with its tag."""
    digest: Digest | None = None
    """Digest of that image; without it, each build asks the registry and logs the result."""
    as_of: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), PLAIN] | None = None
    """Date of the package set where it has no lock, not in the future; change it to get newer
    packages."""

    @field_validator("as_of")
    @classmethod
    def _require_past(cls, value: str | None) -> str | None:
        """Refuse a date that no files can have yet; somewhere it may be tomorrow already."""
        if value is None:
            return value
        try:
            day = date.fromisoformat(value)
        except ValueError as error:
            raise ValueError("there is no such day") from error
        today = datetime.now(UTC).date()
        if day > today + timedelta(days=1):
            raise ValueError(f"is in the future: today is {today}, says the clock of this machine")
        return value


class Published(Model):
    """An image that another project publishes."""

    image: PublishedImage
    """With its tag."""
    digest: Digest | None = None
    """Digest of that image; without it, each build asks the registry and logs the result."""
    note: Text | None = None
    """Why it is not pinned."""
    cuda: Annotated[str, StringConstraints(pattern=CUDA_VERSION), PLAIN] | None = None
    """Version of CUDA that its project or its tag states: "13.0"."""

    @model_validator(mode="after")
    def _require_digest_or_note(self) -> Published:
        if self.digest is None and self.note is None:
            raise ValueError("a tag can move: give its digest, or the reason why not in note")
        return self


class BaseDebian(Model):
    """The Debian packages of a base."""

    lock: TreePath
    """Lock file of the packages of its stages and their dependencies, relative to the file of the
    base; ``./farm pin lock`` makes it. Without it, each build installs the newest versions."""


class Stage(Packages):
    """One stage of a CUDA base."""

    libraries: list[Annotated[str, StringConstraints(pattern=r"^lib[A-Za-z0-9_+-]+$"), PLAIN]] = []
    """CUDA libraries to ship: "libcudart", ..."""


class Wheel(Model):
    """A wheel of the CUDA toolkit, for each platform by digest."""

    name: Name
    """Project name on PyPI."""
    version: Version
    """Release."""
    library: bool = False
    """True: contains libraries that are linked and shipped, so the target's wheel is needed too."""
    sha256: dict[Architecture, Sha256]
    """sha256 of the wheel, by platform."""


class DeadLibrary(Model):
    """A library of which no card of the image runs anything."""

    path: TreePath
    """Its path below the packages: "sgl_kernel/flash_ops.abi3.so"."""
    why: Text
    """Why the engine does not need it."""


class BasePython(Model):
    """The Python packages of a base."""

    lock: TreePath
    """Lock file of the wheels, relative to the file of the base."""
    requirements: Annotated[list[Requirement], Field(min_length=1)]
    """Requirements that ``./farm pin lock`` resolves: "vllm==0.20.2"."""
    unchecked: Text | None = None
    """Why ``pip check`` may fail; default: it must pass."""
    capabilities: list[Annotated[str, StringConstraints(pattern=CAPABILITY), PLAIN]] = []
    """Compute capabilities of the cards that the image is for: device code that none of them runs
    is removed from all packages except NVIDIA's. Default: all code stays."""
    dead: list[DeadLibrary] = []
    """Libraries without any code for these cards: all their device code is removed, too."""
    nvcc: bool = False
    """Compile CUDA code when the image runs: CUDA_HOME is the toolkit of the wheels, which
    ``requirements`` name: "cuda-toolkit[nvcc]"."""


CUDA_RUNTIME = "nvidia-cuda-runtime"
"""The wheel of CUDA's runtime; for CUDA 12 its name ends in ``-cu12``."""


class BaseRecipe(Model):
    """A base: images to compile in and to run on."""

    name: Name
    """Name of the base, and of the file."""
    summary: Text
    """Description of the base, one line."""
    license: License
    """SPDX license expression."""
    family: Name
    """Family that builds the base: "debian-root", "cuda-wheels", ..."""
    base: Name | None = None
    """Base that it extends."""
    notes: list[Text] = []
    """Known problems, also of related bases."""
    root: Root | None = None
    published: Published | None = None
    python: BasePython | None = None
    devel: Stage = Stage()
    runtime: Stage = Stage()
    debian: BaseDebian | None = None
    wheel: list[Wheel] = []
    build: Build = Build()

    @property
    def cuda(self) -> str | None:
        """``13.0``: the version of the wheel of CUDA's runtime, or the published image's; None:
        not known."""
        if self.published is not None:
            return self.published.cuda
        named = {CUDA_RUNTIME, f"{CUDA_RUNTIME}-cu12"}
        versions = [wheel.version for wheel in self.wheel if wheel.name in named]
        return ".".join(versions[0].split(".")[:2]) if versions else None


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a format: of ``Recipe``, ``BaseRecipe``, or another model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **described(model.model_json_schema(), Model),
    }


def with_extends(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of recipes, in which one that extends another need not repeat keys."""
    must = {"required": schema.pop("required"), "properties": {}}
    for key, value in schema["properties"].items():
        for option in value.get("anyOf", [value]) if key not in EXTENDED_WHOLE else ():
            table = schema["$defs"].get(option.get("$ref", "").rpartition("/")[2], {})
            if "required" in table:
                must["properties"][key] = {"required": table.pop("required")}
    return {**schema, "required": ["version"], "if": {"required": ["extends"]}, "else": must}
