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
    TypeAdapter,
    ValidationError,
    model_validator,
)

from builder.errors import RecipeError

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
WEB_URL = r"^https?://(?![^/]*@)[A-Za-z0-9._~:/?#&!'()*+,;=%-]+$"
# git-check-ref-format(1), and no leading "-": a ref is never an option.
REF = r"^(?![-/.])(?!.*(?:\.\.|@\{|//|\.lock(?:/|$)|/$|\.$))[^\s~^:?*\[\\]+$"
PATH_GLOB = r"^[A-Za-z0-9._+*?/-]+$"
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
    WEB_URL: "must be an https or http URL, without a user",
    REF: "must be the name of a tag or a branch, as git-check-ref-format allows it",
    PATH_GLOB: "must be a path, in which * stands for anything and ? for one character",
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


def _regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
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
GitUrl = Annotated[str, StringConstraints(pattern=GIT_URL), PLAIN]
Ref = Annotated[str, StringConstraints(pattern=REF, max_length=200), PLAIN]
PathGlob = Annotated[
    str, StringConstraints(pattern=PATH_GLOB), PLAIN, AfterValidator(_inside_the_tree)
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
    """An sdist or a wheel from PyPI, by name, version and digest."""

    pypi: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$"), PLAIN]
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


SOURCES = ("git", "path", "pypi", "archive")


def _source_kind(value: Any) -> str | None:
    return _only_key(value, SOURCES)


def _only_key(value: Any, kinds: tuple[str, ...]) -> str | None:
    """The one of ``kinds`` that a table has as a key; None where it has none, or several."""
    keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
    found = [kind for kind in kinds if kind in keys]
    return found[0] if len(found) == 1 else None


Source = Annotated[
    Annotated[GitSource, Tag("git")]
    | Annotated[PathSource, Tag("path")]
    | Annotated[PypiSource, Tag("pypi")]
    | Annotated[ArchiveSource, Tag("archive")],
    Discriminator(
        _source_kind,
        custom_error_type="source",
        custom_error_message=f"needs exactly one of: {', '.join(SOURCES)}",
    ),
]


class Track(Model):
    """What upstream offers next: where the pin is moved to, and what patches are tried on."""

    tag: Annotated[str, StringConstraints(pattern=PATH_GLOB), PLAIN] | None = None
    """Newest of the tags of this shape ("b*"), numbers counted as numbers."""
    branch: Ref | None = None
    """Head of this branch."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Track:
        if (self.tag is None) == (self.branch is None):
            raise ValueError("needs exactly one of: tag, branch")
        return self


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
    entrypoint: list[Text] = []
    """What the container runs; a family may know it."""
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
    matches: list[Annotated[Text, AfterValidator(_regular_expression)]] = []
    """Regular expressions (Python's), each of which must match somewhere in what it prints."""
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
    return _only_key(value, PROBES)


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


class AnyPatch(Model):
    """What every patch says, whatever its kind."""

    why: Text
    """What is wrong without it."""
    drop_when: Text | None = None
    """When it may go."""
    upstream: Text | None = None
    """Where it is discussed: "OWNER/REPOSITORY#NUMBER"."""
    leave_out: list[PathGlob] = []
    """Files of the patch that the target does not have: "tests/*"."""
    fuzz: Annotated[int, Field(ge=0, le=2)] = 0
    """Lines of context, of the three at each end of a hunk, that may differ."""
    three_way: bool = False
    """Merge with the version that the patch was made for, where its lines moved."""
    probe: Probe | None = None
    """How the finished image shows it."""


class FilePatch(AnyPatch):
    """A diff that this repository holds."""

    file: TreePath
    """Below ``patches/``."""


class PullPatch(AnyPatch):
    """A pull request, frozen: the diff between two commits, whatever becomes of the request."""

    pull: Annotated[int, Field(ge=1)]
    base: Commit
    """Where its branch left the target branch; an ancestor of ``head``."""
    head: Commit
    git: GitUrl | None = None
    """Repository of the pull request; default: the source's."""


class Pick(Model):
    """A range of commits, as ``git cherry-pick after..to`` takes it."""

    after: Commit
    """The last commit that is not taken."""
    to: Commit
    git: GitUrl | None = None
    """Default: the source's."""


class PickPatch(AnyPatch):
    """Commits of some branch, one after the other."""

    pick: Pick


class Script(Model):
    """A program that edits the tree."""

    git: GitUrl
    commit: Commit
    path: TreePath
    """The program in the tree of ``commit``: Python (.py), or anything with a #! line."""
    sha256: Sha256 | None = None
    """Of the program, where it is known from elsewhere."""
    arguments: list[Value] = []
    at: Annotated[str, StringConstraints(pattern=r"^(?:/[A-Za-z0-9._+-]+)+$"), PLAIN] = "/tree"
    """Where the program finds the tree, and its working directory."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """It is stopped after that."""

    @model_validator(mode="after")
    def _not_over_the_system(self) -> Script:
        if ".." in self.at.split("/") or self.at.split("/")[1] in SYSTEM_DIRECTORIES:
            raise ValueError(f"at = {self.at!r} would hide what the program runs on")
        return self


SYSTEM_DIRECTORIES = frozenset(
    {"bin", "dev", "etc", "lib", "lib64", "patch", "proc", "sbin", "sys"}
)


class ScriptPatch(AnyPatch):
    """A program that edits the tree; what it changed is the patch."""

    script: Script


PATCHES = ("file", "pull", "pick", "script")


def _patch_kind(value: Any) -> str | None:
    return _only_key(value, PATCHES)


Patch = Annotated[
    Annotated[FilePatch, Tag("file")]
    | Annotated[PullPatch, Tag("pull")]
    | Annotated[PickPatch, Tag("pick")]
    | Annotated[ScriptPatch, Tag("script")],
    Discriminator(
        _patch_kind,
        custom_error_type="patch",
        custom_error_message=f"needs exactly one of: {', '.join(PATCHES)}",
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
    track: Track | None = None
    patch: list[Patch] = []
    """Applied in order."""
    cuda: Cuda
    llama: Llama | None = None
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
    notes: list[Text] = []
    """For people: what is known to be wrong with it, and with its neighbours."""
    root: Root | None = None
    devel: Stage = Stage()
    runtime: Stage = Stage()
    wheel: list[Wheel] = []
    build: Build = Build()


def checked_url(value: str) -> str:
    """A URL that git may be given, from elsewhere than a recipe; raises ``RecipeError``."""
    return _checked(GitUrl, value, GIT_URL)


def checked_ref(value: str) -> str:
    """The name of a tag or a branch, or a commit; raises ``RecipeError``."""
    return _checked(Ref, value, REF)


def _checked(kind: Any, value: str, pattern: str) -> str:
    try:
        adapter = TypeAdapter(kind, config=ConfigDict(regex_engine="python-re"))
        return str(adapter.validate_python(value))
    except ValidationError as error:
        raise RecipeError(f"{value!r}: {PATTERNS[pattern]}") from error


def json_schema(base: bool = False) -> dict[str, Any]:
    """The JSON Schema (2020-12) of an engine's recipe, or of a base's."""
    model: type[BaseModel] = BaseRecipe if base else Recipe
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
    }
