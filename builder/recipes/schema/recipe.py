"""What a recipe, and a base, may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from builder.recipes.schema.fields import (
    CMAKE_TARGET,
    CUDA_ARCH,
    PLAIN,
    REPOSITORY,
    TAG,
    TAG_GLOB,
    USER,
    VERSION_GLOB,
    WEB_URL,
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
    only_key,
    requirement,
)
from builder.recipes.schema.patches import Patch
from builder.recipes.schema.probes import Accept, Budget, Probe, Serve, Symbol


class PathSource(Model):
    """A tree of this repository."""

    path: TreePath
    """Directory of the source, relative to the catalog's repository."""


class PypiSource(Model):
    """An sdist or a wheel from PyPI, by name, version and digest."""

    pypi: PythonProject
    """Project name on PyPI."""
    version: Version
    sha256: Sha256
    subdirectory: TreePath = "."
    """The source, inside what the file holds (an sdist's own top directory is taken off)."""


class ArchiveSource(Model):
    """A tar or zip archive, by URL and digest."""

    archive: Annotated[str, StringConstraints(pattern=WEB_URL), PLAIN]
    """URL of the file."""
    sha256: Sha256
    subdirectory: TreePath = "."
    """The source, inside the archive; its top directory is named like any other."""


class GitSource(Model):
    """A commit of a git repository."""

    git: GitUrl
    """URL of the repository; git's own configuration may rewrite it."""
    ref: Ref | None = None
    """Tag or branch, for people: the commit decides."""
    commit: Commit
    submodules: bool = True
    """False: what the tree pins of other repositories is left out."""
    submodule: dict[TreePath, GitUrl] = {}
    """URL by path, where .gitmodules names one that has moved."""

    @model_validator(mode="after")
    def _no_urls_of_what_is_left_out(self) -> GitSource:
        if self.submodule and not self.submodules:
            raise ValueError("submodule has no use where submodules = false")
        return self


class InstalledSource(Model):
    """What the base has installed already: nothing is fetched, and nothing can be patched."""

    installed: PythonProject


SOURCES = ("git", "path", "pypi", "archive", "installed")


def _source_kind(value: Any) -> str | None:
    return only_key(value, SOURCES)


Source = Annotated[
    Annotated[GitSource, Tag("git")]
    | Annotated[PathSource, Tag("path")]
    | Annotated[PypiSource, Tag("pypi")]
    | Annotated[ArchiveSource, Tag("archive")]
    | Annotated[InstalledSource, Tag("installed")],
    Discriminator(
        _source_kind,
        custom_error_type="source",
        custom_error_message=f"needs exactly one of: {', '.join(SOURCES)}",
    ),
]


PublishedImage = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*:[\w.-]+$"), PLAIN
]


class Track(Model):
    """What upstream offers next: where the pin is moved to, what patches are tried on, and what
    is built every night."""

    tag: Annotated[str, StringConstraints(pattern=TAG_GLOB), PLAIN] | None = None
    """Newest of the tags of this shape ("b[0-9]*"), numbers counted as numbers."""
    branch: Ref | None = None
    """Head of this branch."""
    image: PublishedImage | None = None
    """What this tag of a published image leads to; the base stands on it."""
    channel: Annotated[Version, StringConstraints(max_length=40)] | None = None
    """The moving tag of the image that every good night moves."""
    limit: Annotated[int, Field(ge=1, le=365)] = 3
    """Days that a channel may be behind its upstream."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Track:
        if sum(kind is not None for kind in (self.tag, self.branch, self.image)) != 1:
            raise ValueError("needs exactly one of: tag, branch, image")
        return self


DriverVersion = Annotated[str, StringConstraints(pattern=r"^[0-9]{3}(?:\.[0-9]+){0,2}$"), PLAIN]


class Cuda(Model):
    """What CUDA code the image holds."""

    arch: Annotated[
        list[Annotated[str, StringConstraints(pattern=CUDA_ARCH), PLAIN]], Field(min_length=1)
    ]
    """Values of CMAKE_CUDA_ARCHITECTURES: "120", "120a-real", ..."""
    vmm: bool = False
    """False: virtual memory management is compiled out, and nothing links libcuda."""
    driver: DriverVersion | None = None
    """Oldest driver of NVIDIA's that the image must run with: "580"."""


class Cmake(Model):
    """One cmake configure and build."""

    source: TreePath = "."
    """Directory of the CMakeLists.txt, inside the source tree."""
    targets: list[Annotated[str, StringConstraints(pattern=CMAKE_TARGET), PLAIN]] = []
    """What to build; empty: everything. What is installed is cmake's affair."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions; true and false become ON and OFF."""
    place: TreePath | None = None
    """Where its targets and their libraries go, below /opt/engine; default: "bin"."""


class Layout(Model):
    """What of the source is part of the image as it is."""

    keep: list[TreePath] = []
    """Directories and files of the source tree, put below /opt/engine under the same paths."""


Requirement = Annotated[Text, AfterValidator(requirement)]


class Python(Model):
    """The Python packages of an image, and how an sdist with compiled parts becomes one."""

    lock: TreePath
    """Lock file of the build's and the runtime's wheels, relative to the recipe."""
    requirements: list[Requirement] = []
    """What ``builder pin lock`` resolves into the lock's runtime: "fastapi>=0.115"."""
    config: dict[DefineName, DefineValue] = {}
    """PEP 517 config settings of the build backend."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions of the cmake that the build backend calls."""


class Llama(Model):
    """What is particular to one tree of the llama.cpp family."""

    build_number: Annotated[int, Field(ge=1)]
    """What --version prints: ``git rev-list --count`` of the pin's full history."""
    build_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-z.]{4,40}$"), PLAIN] | None = (
        None
    )
    """What --version prints as the commit; default: 9 digits of the pin."""
    ui: bool = False
    """Embed the web page of the server; only where the tree holds it, built."""


class Overlay(Model):
    """The installed Python package that is patched; default: the source's, where that is PyPI."""

    package: PythonProject
    version: Annotated[str, StringConstraints(pattern=VERSION_GLOB), PLAIN]
    """As its metadata says; ``*`` stands for anything: "*+g58c8a5eaa"."""


class Start(Model):
    """A patch that cannot be baked in: a program that runs whenever a container starts.

    Where it fails, hangs or breaks a file, the engine is not started.
    """

    run: Annotated[list[Text], Field(min_length=1)]
    why: Text
    """What is wrong without it."""
    drop_when: Text | None = None
    """When it may go."""
    contains: list[Text] = []
    """Each must stand in what it prints, or it has failed."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 300
    """It is stopped after that."""


class Artifact(Model):
    """Files of the build that are the image, alone: it runs nothing."""

    files: Annotated[list[TreePath], Field(min_length=1)]
    """In the build directory of the only ``[[cmake]]``: "libvgpu.so"."""
    loads: bool = True
    """Each is a shared library: LD_PRELOAD must load it into a program of the base."""
    undefined: dict[Symbol, Text] = {}
    """Functions that it calls and no library that it loads defines, each with the reason why it
    may: any other, and one that is defined after all, is an error."""

    @model_validator(mode="after")
    def _undefined_in_libraries(self) -> Artifact:
        if self.undefined and not self.loads:
            raise ValueError("undefined has no use where loads = false")
        return self

    @property
    def names(self) -> list[str]:
        """What the files are called in the image, at its top."""
        return [path.rsplit("/", 1)[-1] for path in self.files]


class Debian(Model):
    """Debian packages beside those of the base."""

    build: list[DebianPackage] = []
    runtime: list[DebianPackage] = []


class Image(Model):
    """The image as people see it."""

    repository: Annotated[str, StringConstraints(pattern=REPOSITORY, max_length=200), PLAIN]
    tags: Annotated[
        list[Annotated[str, StringConstraints(pattern=TAG), PLAIN]], Field(min_length=1)
    ]
    moving: list[Annotated[str, StringConstraints(pattern=TAG), PLAIN]] = []
    """Tags that are moved to every new image: "latest".  Any other stays where it is."""
    entrypoint: list[Text] = []
    """What the container runs; a family may know it."""
    command: list[Value] = []
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    health: TreePath | None = None
    """Path of the health page on ``port``, without the leading slash."""
    env: dict[VariableName, Value] = {}
    user: Annotated[str, StringConstraints(pattern=USER), PLAIN] | None = None
    """Whom it runs as; a family knows it: "10001:10001" of our bases."""

    @model_validator(mode="after")
    def _health_needs_a_port(self) -> Image:
        if self.health is not None and self.port is None:
            raise ValueError("health is a page on port: say which")
        return self


class Build(Model):
    """What the build needs of the machine."""

    memory_per_job: Annotated[float, Field(gt=0, le=256)] = 3.0
    """GiB that one compile job may take: nvcc needs about 3."""
    disk: Annotated[float, Field(gt=0, le=2000)] = 10.0
    """GiB of free disk without which the build is not begun."""


class Recipe(Model):
    """An engine: what its image is made of, and how it is checked."""

    engine: Name
    version: Version
    summary: Text
    license: License
    """SPDX license expression."""
    url: Text | None = None
    """Where people read about the engine."""
    family: Name
    base: Name
    notes: list[Text] = []
    """For people: what it is for, what is known to be wrong with it."""
    source: Source
    track: Track | None = None
    patch: list[Patch] = []
    """Applied in order."""
    cuda: Cuda
    llama: Llama | None = None
    cmake: list[Cmake] = []
    python: Python | None = None
    overlay: Overlay | None = None
    start: list[Start] = []
    """Run in order, before the engine."""
    layout: Layout = Layout()
    artifact: Artifact | None = None
    debian: Debian = Debian()
    image: Image
    build: Build = Build()
    serve: Serve | None = None
    """How the smoke test starts the server; a family may know it."""
    budget: Budget = Budget()
    accept: list[Accept] = []
    probe: Annotated[list[Probe], Field(min_length=1)]

    @model_validator(mode="after")
    def _channel_moves(self) -> Recipe:
        channel = self.track.channel if self.track else None
        if channel is not None and channel not in self.image.moving:
            raise ValueError(f"the channel {channel} must be among image.moving: it moves")
        return self

    @property
    def name(self) -> str:
        """What people type: ``engine-version``."""
        return f"{self.engine}-{self.version}"


class Root(Model):
    """Where the Debian root comes from."""

    suite: Name
    image: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/:-]*$"), PLAIN]
    """The registry image to start from, with its tag."""
    digest: Digest | None = None
    """Pin of that image; without it the registry is asked each time, and a line says so."""
    as_of: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), PLAIN]
    """Day of the package set: move it to draw newer packages."""
    packages: list[DebianPackage] = []


class Published(Model):
    """An image that somebody else publishes."""

    image: PublishedImage
    """With its tag."""
    digest: Digest | None = None
    """Pin of that image; without it the registry is asked at every build, and a line says so."""
    note: Text | None = None
    """Why it is not pinned."""

    @model_validator(mode="after")
    def _pinned_or_explained(self) -> Published:
        if self.digest is None and self.note is None:
            raise ValueError("a tag alone can move: pin its digest, or say why not in note")
        return self


class Stage(Model):
    """One stage of a CUDA base."""

    packages: list[DebianPackage] = []
    cross: list[DebianPackage] = []
    """Also these, where the build platform is not the target's."""
    libraries: list[Annotated[str, StringConstraints(pattern=r"^lib[A-Za-z0-9_+-]+$"), PLAIN]] = []
    """CUDA libraries to ship: "libcudart", ..."""


class Wheel(Model):
    """A wheel of the CUDA toolkit, for each platform by digest."""

    name: Name
    version: Version
    library: bool = False
    """True: holds libraries that are linked and shipped, so the target's is needed too."""
    sha256: dict[Literal["amd64", "arm64"], Sha256]


class BasePython(Model):
    """The Python packages of a base."""

    lock: TreePath
    """Lock file of the wheels, relative to the file of the base."""
    requirements: Annotated[list[Requirement], Field(min_length=1)]
    """What ``builder pin lock`` resolves: "vllm==0.20.2"."""
    unchecked: Text | None = None
    """Why the packages need not have all that they require; default: ``pip check`` must pass."""


class BaseRecipe(Model):
    """A base: what engines are compiled in and what they run on."""

    name: Name
    summary: Text
    license: License
    family: Name
    base: Name | None = None
    notes: list[Text] = []
    """For people: what is known to be wrong with it, and with its neighbours."""
    root: Root | None = None
    published: Published | None = None
    python: BasePython | None = None
    devel: Stage = Stage()
    runtime: Stage = Stage()
    wheel: list[Wheel] = []
    build: Build = Build()


def json_schema(base: bool = False) -> dict[str, Any]:
    """The JSON Schema (2020-12) of an engine's recipe, or of a base's."""
    model: type[BaseModel] = BaseRecipe if base else Recipe
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
    }
