"""The types of text and value in recipes, and the base class of all their tables.

Every text is checked on reading: no control characters anywhere, names and paths from small
alphabets, digests in full.  Values of free text (a summary, a definition) stay data in every
Dockerfile: see ``plan.plan``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from builder.core.errors import RecipeError
from builder.core.names import REPOSITORY

NAME = r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$"
# Repository and tag: the OCI distribution specification, "Pulling manifests".
TAG = r"^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$"
# Debian policy 5.6.1, and the architecture suffix that apt understands.
DEBIAN_PACKAGE = r"^[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?$"
DEBIAN_VERSION = r"^(?:[0-9]+:)?[0-9][A-Za-z0-9.+~-]*$"  # Debian policy 5.6.12
# NAME_VERSION_ARCHITECTURE.deb below the archive's name; the version there has no epoch.
DEBIAN_FILE = (
    r"^debian(?:-security)?/pool/(?:[A-Za-z0-9][A-Za-z0-9.+~-]*/)+"
    r"[a-z0-9][a-z0-9+.-]+_[A-Za-z0-9.+~-]+_[a-z0-9]+\.deb$"
)
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
TAG_GLOB = r"^[A-Za-z0-9._+*?/\[\]!-]+$"
IMAGE_PATH = r"^(?:/[A-Za-z0-9._+@*?-]+)+$"
CMAKE_TARGET = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
VERSION = r"^[a-zA-Z0-9]+(?:[._-][a-zA-Z0-9]+)*$"

# Presets: repositories of the Hugging Face Hub, and names that docker run and GitHub accept.
HUB_REPOSITORY = r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$"
HUB_FILE = r"^(?!/)(?!.*\.\.)[\w.+/-]+$"
MEMORY_SIZE = r"^[1-9][0-9]*[kmg]$"
MONTH = r"^[0-9]{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?$"
THREAD = r"^[A-Za-z0-9][\w.-]*/[\w.-]+#[1-9][0-9]*$"

PROJECT = r"^[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*$"  # packaging specification, "Names"
PEP440 = r"^[0-9]+(?:\.[0-9]+)*[A-Za-z0-9.+]*$"
VERSION_GLOB = r"^[A-Za-z0-9.!+_*-]+$"
USER = r"^[a-z0-9_][a-z0-9_-]*(?::[a-z0-9_][a-z0-9_-]*)?$"

CAPABILITY = r"^[1-9][0-9]?\.[0-9]$"
CUDA_VERSION = r"^[1-9][0-9]\.[0-9]$"

PATTERNS = {
    NAME: "must be lower-case letters and digits, joined by single . _ -",
    VERSION: "must be letters and digits, joined by single . _ -",
    REPOSITORY: "must be the repository of an image: lower-case, no tag, no spaces",
    TAG: "must be the tag of an image: at most 128 letters, digits and . _ -",
    DEBIAN_PACKAGE: "must be the name of a Debian package",
    DEBIAN_VERSION: "must be the version of a Debian package",
    DEBIAN_FILE: "must be the path of a .deb file: debian/pool/.../NAME_VERSION_ARCHITECTURE.deb",
    CUDA_ARCH: "must be a value of CMAKE_CUDA_ARCHITECTURES: 120, 120a, 120-real, 120-virtual",
    CAPABILITY: "must be a compute capability: 12.0",
    CUDA_VERSION: "must be a version of CUDA: 13.0",
    COMMIT: "must be a full commit: 40 hex digits",
    SHA256: "must be a full sha256: 64 lower-case hex digits",
    DIGEST: "must be a full digest: sha256: and 64 lower-case hex digits",
    TREE_PATH: "must be a path of letters, digits and . _ + - /",
    GIT_URL: "must be an https, http, ssh, git or file URL, without a password",
    WEB_URL: "must be an https or http URL, without a user",
    REF: "must be the name of a tag or branch that git allows (git help check-ref-format)",
    PATH_GLOB: "must be a path; * matches anything, ? one character",
    TAG_GLOB: "must be the name of a tag; * matches anything, ? and [0-9] one character",
    IMAGE_PATH: "must be an absolute path in the image; * matches anything, ? one character",
    CMAKE_TARGET: "must be the name of a CMake target",
    PROJECT: "must be the name of a Python project: letters, digits and . _ -",
    PEP440: "must be the version of a Python project",
    VERSION_GLOB: "must be a version; * matches anything",
    USER: "must be a user, or user:group, by name or number",
    r"^[A-Za-z_][A-Za-z0-9_.]*$": "must be a name of letters, digits, _ and ., not a digit first",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "must be a name of letters, digits and _, not a digit first",
    HUB_REPOSITORY: "must be a repository of the Hugging Face Hub: OWNER/NAME",
    HUB_FILE: "must be the path of a file in a repository",
    MEMORY_SIZE: "must be a size as docker takes it: 512m, 16g",
    MONTH: "must be a month or a day: 2026-05, 2026-05-23",
    THREAD: "must be an issue or a pull request of GitHub: OWNER/NAME#7",
    # sources, recipe and base
    r"^[a-z0-9][A-Za-z0-9._/:-]*:[\w.-]+$": "must be an image with its tag: vllm/vllm-openai:v1",
    r"^[a-z0-9][a-z0-9._/:-]*$": "must be an image with its tag: debian:trixie-slim",
    r"^[0-9]{3}(?:\.[0-9]+){0,2}$": "must be a version of NVIDIA's driver: 580, 580.65.06",
    r"^[0-9a-z.]{4,40}$": "must be 4 to 40 lower-case letters, digits and dots",
    r"^\d{4}-\d{2}-\d{2}$": "must be a day: 2026-01-31",
    r"^lib[A-Za-z0-9_+-]+$": "must be a library without its suffix: libcudart",
    # patches
    r"^(?:/[A-Za-z0-9._+-]+)+$": "must be an absolute path of letters, digits and . _ + -",
    r"^[A-Za-z0-9][\w.-]*$": "must be a name of letters, digits and . _ -",
    r"^[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?$": "must be an entry point: module:function",
    # probes
    r"^--?[A-Za-z0-9][A-Za-z0-9_-]*$": "must be an option: -h, --help",
    r"^sm_[0-9]+[af]?$": "must be an architecture of CUDA machine code: sm_120, sm_120a",
    r"^[0-9]+(?:\.[0-9]+)+$": "must be a version: 2.41",
    r"^[A-Za-z_.$][A-Za-z0-9_.$@]*$": "must be the name of a symbol, as nm prints it",
    r"^[A-Za-z0-9_.$@*?]+$": "must be the name of a symbol; * matches anything, ? one character",
    r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$": "must be a Python name: f, Class.f",
}
"""Each pattern of the format in words: no message shows a pattern."""

# Also characters that change the direction of the text around them (Unicode Standard Annex #9, 2).
CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


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
        raise ValueError("must be an SPDX license expression, or LicenseRef-NAME") from error


def requirement(value: str) -> str:
    """A requirement as in ``pip install``, of the index alone (packaging: "Dependency
    specifiers"); raises ``ValueError``.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"must be a requirement: {str(error).splitlines()[0]}") from error
    if found.url is not None:
        raise ValueError("must be taken from the package index, not from a URL")
    return value


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
ImagePath = Annotated[str, StringConstraints(pattern=IMAGE_PATH), PLAIN]
RegularExpression = Annotated[Text, AfterValidator(_regular_expression)]
PythonProject = Annotated[str, StringConstraints(pattern=PROJECT), PLAIN]
DefineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$"), PLAIN]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), PLAIN]


DefineValue = Annotated[
    Annotated[bool, Tag("bool")] | Annotated[int, Tag("int")] | Annotated[Value, Tag("str")],
    Discriminator(
        lambda value: type(value).__name__,
        custom_error_type="scalar",
        custom_error_message="must be a string, a whole number, true or false",
    ),
]


class Model(BaseModel):
    """The base class of all tables: unknown keys are errors, values do not change."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # port = true is not 1, vmm = "no" is not false
        regex_engine="python-re",
    )

    @model_validator(mode="after")
    def _require_no_fault(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """What is wrong with keys that are valid by themselves."""
        yield from ()


def by_only_key(error: str, kinds: tuple[str, ...]) -> Discriminator:
    """Tells tables apart by their key: each has exactly one of ``kinds``."""

    def only_key(value: Any) -> str | None:
        keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
        found = [kind for kind in kinds if kind in keys]
        return found[0] if len(found) == 1 else None

    return Discriminator(
        only_key,
        custom_error_type=error,
        custom_error_message=f"needs exactly one of: {', '.join(kinds)}",
    )


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


# The docstrings of attributes, as the descriptions of keys in a JSON Schema.
#
# pydantic reads them, too (``use_attribute_docstrings``), but whenever a class is made: it
# compiles the source of each class again, which takes a tenth of the CPU time of a short command.


def described(schema: dict[str, Any], base: type[BaseModel]) -> dict[str, Any]:
    """A JSON Schema whose keys have the docstrings of the attributes of ``base``'s subclasses."""
    models = {each.__name__: each for each in _below(base)}
    for title, part in [(schema.get("title", ""), schema), *schema.get("$defs", {}).items()]:
        texts = _docstrings(models[title]) if title in models else {}
        for name, field in part.get("properties", {}).items():
            if name in texts and "description" not in field:
                part["properties"][name] = dict(
                    sorted([*field.items(), ("description", texts[name])])
                )
    return schema


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _below(each)


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below attributes, also of inherited ones, by the attribute's name."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each is BaseModel or not issubclass(each, BaseModel):
            continue
        (tree,) = ast.parse(inspect.getsource(each)).body
        for pair in pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found
