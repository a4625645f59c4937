"""The recipe format: what a TOML file may say, as pydantic models.

Every text is checked before anything else sees it: no control characters anywhere, names and
paths from small alphabets, digests in full.  Values of free text (a summary, a definition)
stay data all the way: see ``dockerfile``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

NAME = r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$"
# Repository and tag: the OCI distribution specification, "Pulling manifests".
REPOSITORY = r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$"
TAG = r"^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$"
# Debian policy 5.6.1, and the architecture suffix that apt understands.
DEBIAN_PACKAGE = r"^[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?$"
CUDA_ARCH = r"^[1-9][0-9]{1,2}[af]?(?:-real|-virtual)?$"
COMMIT = r"^[0-9a-f]{40}$"
SHA256 = r"^[0-9a-f]{64}$"
DIGEST = r"^sha256:[0-9a-f]{64}$"
TREE_PATH = r"^[A-Za-z0-9._+/-]+$"
GIT_URL = r"^(?:https?|ssh|git|file)://(?![^/]*:[^/]*@)[A-Za-z0-9._~:/?#@!&'()*+,;=%-]+$"
CMAKE_TARGET = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
VERSION = r"^[a-zA-Z0-9]+(?:[._-][a-zA-Z0-9]+)*$"

PATTERNS = {
    NAME: "must be lower-case letters and digits, joined by single . _ -",
    VERSION: "must be letters and digits, joined by single . _ -",
    REPOSITORY: "must be an image's repository: lower-case, no tag, no spaces",
    TAG: "must be an image's tag: letters, digits, . _ -, 128 at most",
    DEBIAN_PACKAGE: "must be the name of a Debian package",
    CUDA_ARCH: "must be as in CMAKE_CUDA_ARCHITECTURES: 120, 120a, 120-real, 120-virtual",
    COMMIT: "must be a full commit: 40 hex digits",
    SHA256: "must be a full sha256: 64 lower-case hex digits",
    DIGEST: "must be a full digest: sha256: and 64 lower-case hex digits",
    TREE_PATH: "must be a path of letters, digits and . _ + - /",
    GIT_URL: "must be an https, http, ssh, git or file URL, without a password",
    CMAKE_TARGET: "must be the name of a cmake target",
}
"""What each pattern asks for, in words."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


LONGEST = 4000  # characters: a label is one argument of docker's, and Linux takes 128 KiB in one


def _plain(value: str) -> str:
    if len(value) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    found = CONTROL.search(value)
    if found:
        raise ValueError(f"contains the control character U+{ord(found[0]):04X}")
    return value


def _spdx(value: str) -> str:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return str(canonicalize_license_expression(value))
    except InvalidLicenseExpression as error:
        raise ValueError("must be an SPDX licence expression, or LicenseRef-NAME") from error


def _inside_the_tree(value: str) -> str:
    if value.startswith("/") or ".." in value.split("/"):
        raise ValueError("must be a relative path that stays inside its tree")
    return value


# Constraints stand before validators: only then are they in the JSON Schema as well.
PLAIN = AfterValidator(_plain)
Text = Annotated[str, StringConstraints(min_length=1), PLAIN]
Value = Annotated[str, PLAIN]
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64), PLAIN]
Version = Annotated[str, StringConstraints(pattern=VERSION), PLAIN]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256), PLAIN]
Digest = Annotated[str, StringConstraints(pattern=DIGEST), PLAIN]
Commit = Annotated[str, StringConstraints(pattern=COMMIT), PLAIN]
License = Annotated[Text, AfterValidator(_spdx)]
DebianPackage = Annotated[str, StringConstraints(pattern=DEBIAN_PACKAGE), PLAIN]
TreePath = Annotated[
    str, StringConstraints(pattern=TREE_PATH), PLAIN, AfterValidator(_inside_the_tree)
]
DefineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$"), PLAIN]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), PLAIN]


def _scalar_kind(value: Any) -> str | None:
    kinds = {bool: "bool", int: "int", str: "str"}
    return kinds.get(type(value))


DefineValue = Annotated[
    Annotated[bool, Tag("bool")] | Annotated[int, Tag("int")] | Annotated[Value, Tag("str")],
    Discriminator(
        _scalar_kind,
        custom_error_type="scalar",
        custom_error_message="must be a string, a whole number, true or false",
    ),
]


class Model(BaseModel):
    """What all parts share: unknown keys are errors, values do not change."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # port = true is not 1, vmm = "no" is not false
        use_attribute_docstrings=True,
        regex_engine="python-re",
    )


class PathSource(Model):
    """A tree of this repository."""

    path: TreePath
    """Directory of the source, relative to the catalogue's repository."""


class PypiSource(Model):
    """An sdist from PyPI, by name, version and digest."""

    pypi: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$"), PLAIN]
    """Project name on PyPI."""
    version: Version
    sha256: Sha256


class GitSource(Model):
    """A commit of a git repository."""

    git: Annotated[
        str,
        StringConstraints(pattern=GIT_URL),
        PLAIN,
    ]
    """URL of the repository; git's own configuration may rewrite it."""
    ref: Text | None = None
    """Tag or branch, for people: the commit decides."""
    commit: Commit


def _source_kind(value: Any) -> str | None:
    keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
    found = [kind for kind in ("git", "path", "pypi") if kind in keys]
    return found[0] if len(found) == 1 else None


Source = Annotated[
    Annotated[GitSource, Tag("git")]
    | Annotated[PathSource, Tag("path")]
    | Annotated[PypiSource, Tag("pypi")],
    Discriminator(
        _source_kind,
        custom_error_type="source",
        custom_error_message="needs exactly one of: git, path, pypi",
    ),
]


class Cuda(Model):
    """What CUDA code the image holds."""

    arch: Annotated[
        list[Annotated[str, StringConstraints(pattern=CUDA_ARCH), PLAIN]], Field(min_length=1)
    ]
    """Values of CMAKE_CUDA_ARCHITECTURES: "120", "120a-real", ..."""
    vmm: bool = False
    """False: virtual memory management is compiled out, and nothing links libcuda."""


class Cmake(Model):
    """One cmake configure and build."""

    source: TreePath = "."
    """Directory of the CMakeLists.txt, inside the source tree."""
    targets: list[Annotated[str, StringConstraints(pattern=CMAKE_TARGET), PLAIN]] = []
    """What to build; empty: everything. What is installed is cmake's affair."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions; true and false become ON and OFF."""


class Python(Model):
    """How an sdist with compiled parts becomes an installed package."""

    lock: TreePath
    """Lock file of the build's and the runtime's wheels, relative to the recipe."""
    config: dict[DefineName, DefineValue] = {}
    """PEP 517 config settings of the build backend."""
    define: dict[DefineName, DefineValue] = {}
    """-D definitions of the cmake that the build backend calls."""


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
    entrypoint: Annotated[list[Text], Field(min_length=1)]
    command: list[Value] = []
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    health: TreePath | None = None
    """Path of the health page on ``port``, without the leading slash."""
    env: dict[VariableName, Value] = {}

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


class RunProbe(Model):
    """A program of the image answers."""

    run: Annotated[list[Text], Field(min_length=1)]
    says: list[Text] = []
    """Each must stand in what it prints, on either stream."""
    says_not: list[Text] = []
    status: Annotated[int, Field(ge=0, le=255)] = 0


class OptionProbe(Model):
    """The program's --help knows an option, and certain values of it."""

    option: Annotated[str, StringConstraints(pattern=r"^--?[A-Za-z0-9][A-Za-z0-9_-]*$"), PLAIN]
    program: Text | None = None
    """Default: the image's entrypoint."""
    has: list[Text] = []
    lacks: list[Text] = []


class LibraryProbe(Model):
    """A library of the image: its GPU code and what it needs."""

    library: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+/-]+$"), PLAIN]
    """File name, or the end of its path."""
    architectures: list[Annotated[str, StringConstraints(pattern=r"^sm_[0-9]+[af]?$"), PLAIN]] = []
    """Machine code (not only PTX) that must be there."""
    needs: list[Text] = []
    needs_not: list[Text] = []


PROBES = ("run", "option", "library")


def _probe_kind(value: Any) -> str | None:
    keys = value if isinstance(value, dict) else type(value).model_fields
    found = [kind for kind in PROBES if kind in keys]
    return found[0] if len(found) == 1 else None


Probe = Annotated[
    Annotated[RunProbe, Tag("run")]
    | Annotated[OptionProbe, Tag("option")]
    | Annotated[LibraryProbe, Tag("library")],
    Discriminator(
        _probe_kind,
        custom_error_type="probe",
        custom_error_message="needs exactly one of: run, option, library",
    ),
]


class Recipe(Model):
    """An engine: what its image is made of, and what the image must prove."""

    engine: Name
    version: Version
    summary: Text
    license: License
    """SPDX licence expression."""
    url: Text | None = None
    """Where people read about the engine."""
    family: Name
    base: Name
    notes: list[Text] = []
    """For people: what it is for, what is known to be wrong with it."""
    source: Source
    cuda: Cuda
    cmake: list[Cmake] = []
    python: Python | None = None
    debian: Debian = Debian()
    image: Image
    build: Build = Build()
    probe: Annotated[list[Probe], Field(min_length=1)]

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
    """Pin of that image; without it the registry is asked each time, aloud."""
    as_of: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), PLAIN]
    """Day of the package set: move it to draw newer packages."""
    packages: list[DebianPackage] = []


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


class BaseRecipe(Model):
    """A base: what engines are compiled in and what they run on."""

    name: Name
    summary: Text
    license: License
    family: Name
    base: Name | None = None
    root: Root | None = None
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
