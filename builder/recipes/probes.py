"""Probes: facts that the smoke test checks in a finished image.

A key that names the opposite has ``excludes`` beside ``contains``, ``missing`` beside ``has``, and
``_not`` behind any other name.  The names stay as they are: the checks of a verdict hash them.
"""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, Tag

from builder.core.platforms import Platform
from builder.recipes.fields import (
    PLAIN,
    ImagePath,
    Model,
    RegularExpression,
    Sha256,
    Text,
    TreePath,
    Value,
    by_only_key,
)


def _code(value: str) -> str:
    try:
        parsed = ast.parse(value)
    except SyntaxError as error:
        raise ValueError(f"must be Python: {error.msg}") from error
    if len(parsed.body) != 1:
        raise ValueError("must be one expression or one statement of Python")
    return value


PythonCode = Annotated[Text, AfterValidator(_code)]
DottedName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$"), PLAIN
]
LibraryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+/-]+$"), PLAIN]
Symbol = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_.$][A-Za-z0-9_.$@]*$"), PLAIN]
SymbolGlob = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.$@*?]+$"), PLAIN]


def pattern_names(patterns: Sequence[str]) -> list[str]:
    """Names for the regular expressions of a probe, which messages never show."""
    if len(patterns) == 1:
        return ["the expected pattern"]
    return [f"expected pattern {number}" for number in range(1, len(patterns) + 1)]


class _OfPlatform(Model):
    """Keys of all probes."""

    platform: Platform | None = None
    """Only the image for this platform is checked; default: every image."""


class RunProbe(_OfPlatform):
    """Output and exit status of a program of the image."""

    run: Annotated[list[Text], Field(min_length=1)]
    """Program and arguments."""
    contains: list[Text] = []
    """Texts that the output (of both streams) must contain."""
    excludes: list[Text] = []
    """Texts that the output must not contain."""
    matches: list[RegularExpression] = []
    """Regular expressions (Python's) that must match in the output."""
    status: Annotated[int, Field(ge=0, le=255)] = 0
    """Expected exit status."""


class OptionProbe(_OfPlatform):
    """An option and its values in a program's --help."""

    option: Annotated[str, StringConstraints(pattern=r"^--?[A-Za-z0-9][A-Za-z0-9_-]*$"), PLAIN]
    """The option: "--spec-type"."""
    program: Text | None = None
    """Default: the image's entrypoint."""
    has: list[Text] = []
    """Values that --help lists for it."""
    missing: list[Text] = []
    """Values that --help does not list for it."""
    absent: bool = False
    """True: the option must not exist."""

    def _faults(self) -> Iterator[str]:
        if self.absent and (self.has or self.missing):
            yield "an option that must be absent has no values"


class LibraryProbe(_OfPlatform):
    """A library of the image: its GPU code, dependencies and symbols."""

    library: LibraryName
    """File name, or the end of its path."""
    alternatives: list[LibraryName] = []
    """Other names; the first that exists is checked."""
    architectures: list[Annotated[str, StringConstraints(pattern=r"^sm_[0-9]+[af]?$"), PLAIN]] = []
    """Machine code (not only PTX) that it must contain."""
    needs: list[Text] = []
    """Names of libraries that it is linked to (DT_NEEDED): "libcuda.so.1"."""
    needs_not: list[Text] = []
    """Names of libraries that it is not linked to."""
    symbols: list[Symbol] = []
    """Symbols that it must define, as ``nm -D`` prints them."""
    symbols_not: list[Symbol] = []
    """Symbols that it must not define."""
    symbols_at_least: dict[SymbolGlob, Annotated[int, Field(ge=1)]] = {}
    """Minimum number of defined symbols by glob: { "cu*" = 200 }."""
    glibc: Annotated[str, StringConstraints(pattern=r"^[0-9]+(?:\.[0-9]+)+$"), PLAIN] | None = None
    """The newest glibc version that it may require: "2.34"."""


class FileProbe(_OfPlatform):
    """A file, or all files that match a glob: existence and contents."""

    file: ImagePath
    """Path in the image; ``*`` and ``?`` are wildcards."""
    absent: bool = False
    """True: the file must not exist."""
    has: list[Text] = []
    """Texts that it must contain."""
    missing: list[Text] = []
    """Texts that it must not contain."""
    matches: list[RegularExpression] = []
    """Regular expressions (Python's) that must match in the file."""
    sha256: Sha256 | None = None
    """sha256 that the file must have."""
    sha256_not: Sha256 | None = None
    """sha256 that the file must not have."""

    def _faults(self) -> Iterator[str]:
        asks = self.has or self.missing or self.matches or self.sha256 or self.sha256_not
        if self.absent and asks:
            yield "a file that must be absent has no contents"


class PythonProbe(_OfPlatform):
    """Facts of a Python file's syntax tree: neither layout nor comments matter."""

    python: ImagePath
    """Path of the file in the image."""
    inside: DottedName | None = None
    """Only within this class or function: "Attention.forward"."""
    defines: list[DottedName] = []
    """Classes, functions and assigned names."""
    has: list[PythonCode] = []
    """Expressions or statements that must occur."""
    missing: list[PythonCode] = []
    """Expressions or statements that must not occur."""


PROBES = ("run", "option", "library", "file", "python")

Probe = Annotated[
    Annotated[RunProbe, Tag("run")]
    | Annotated[OptionProbe, Tag("option")]
    | Annotated[LibraryProbe, Tag("library")]
    | Annotated[FileProbe, Tag("file")]
    | Annotated[PythonProbe, Tag("python")],
    by_only_key("probe", PROBES),
]


ApiFlavor = Literal["llama-server", "llama-cpp-python", "hello", "openai", "tabbyapi", "none"]
"""HTTP interface of a server: see ``servers.api_flavor``."""


TONE = "@tone.wav"
"""The file in a form that the check makes."""


class Request(Model):
    """One request to a server, and what a right answer has in it.

    It is sent with GET; with ``body`` or ``form`` with POST. The status must be 200.
    """

    path: TreePath
    """Page, without the leading slash: "inference"."""
    body: Text | None = None
    """JSON that is sent."""
    form: dict[str, Value] = {}
    """Fields of a form (multipart/form-data). "@tone.wav" is a file that the check makes: a second
    of a tone, 16 kHz, mono."""
    contains: Annotated[list[Text], Field(min_length=1)]
    """Texts that a right answer has in it."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Time limit for the answer."""

    def _faults(self) -> Iterator[str]:
        if self.body is not None and self.form:
            yield "has either body or form"
        if unknown := [each for each in self.form.values() if each[:1] == "@" and each != TONE]:
            yield f"{unknown[0]} is no file that the check makes: only {TONE}"
        try:
            json.loads(self.body or "{}")
        except ValueError as error:
            yield f"body is not JSON: {error}"


class Serve(Model):
    """How the smoke test starts the image's server, and which API it has.

    In the arguments ``{model}``, ``{draft}`` and ``{context}`` stand for the files in the
    container and the size of the context in tokens.
    """

    api_flavor: ApiFlavor
    """HTTP interface of the server. "none": none of those that are known; ``request`` or
    ``refuses`` is what it is asked."""
    health: TreePath | None = None
    """Page that answers 200 once the server is ready; default: the API flavor's, and ``health`` of
    [image] for "none"."""
    request: Request | None = None
    """For the API flavor "none": what is asked."""
    model: Literal["llama", "whisper"] = "llama"
    """The tiny model that the smoke test makes for ``{model}``: a GGUF of llama's architecture, or
    one in whisper.cpp's own format."""
    refuses: Text | None = None
    """For the API flavor "none", where the smoke test can make no model that the server loads: the
    server is started without one, and must end with this text in its log. It is asked nothing."""
    arguments: list[Value] = []
    """Arguments after the entrypoint."""
    gpu: list[Value] = []
    """More arguments on a GPU: "-ngl", "99"."""
    verbose: list[Value] = []
    """More arguments on a GPU: its log must show where the model was loaded."""
    draft: list[Value] = []
    """More arguments with a draft model."""
    env: dict[str, Value] = {}
    """Environment variables of the server."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Time limit until it is healthy, with a model of half a megabyte."""
    memory: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Memory limit in GiB, with that model."""
    no_device: Text | None = None
    """Why the smoke test does not start it on a simulated card; default: it does."""

    def _faults(self) -> Iterator[str]:
        asked = (self.request is not None) + (self.refuses is not None)
        if asked != (self.api_flavor == "none"):
            yield 'needs either request or refuses where api_flavor is "none", and else neither'
        if self.refuses is not None and "{model}" in "".join((*self.arguments, *self.gpu)):
            yield "refuses is for a start without {model}"
        if self.model != "llama" and self.request is None:
            yield f"model = {self.model!r} has no use without a request"


Severity = Literal["critical", "high", "medium", "low", "unknown"]


class Budget(Model):
    """Maximum sizes of the image, in MB (10^6 bytes), and ages of its vulnerabilities."""

    download: Annotated[int, Field(ge=1)] | None = None
    """Compressed layers."""
    unpacked: Annotated[int, Field(ge=1)] | None = None
    """Unpacked files."""
    update: Annotated[int, Field(ge=1)] | None = None
    """Compressed layers that the image before lacks: the download of an update.  ``push`` and
    ``nightly`` move no tag to an image that exceeds it."""
    fixed: dict[Severity, Annotated[int, Field(ge=0)]] = {}
    """Days that a vulnerability may have had a fix, by severity, as an installed trivy, grype or
    osv-scanner says: { critical = 7, high = 30 }. ``push`` and ``nightly`` refuse an image with an
    older one, and an image that could not be scanned."""


class Accept(Model):
    """An accepted exception to a check, with its reason."""

    check: Literal[
        "architectures",
        "code paths",
        "cuda",
        "closure",
        "run paths",
        "leftovers",
        "copies",
        "set-uid",
        "world-writable",
        "secrets",
        "entrypoint",
        "imports",
        "numbers",
        "vulnerabilities",
    ]
    """The check; "vulnerabilities" is the limit ``fixed`` of [budget]."""
    path: ImagePath | None = None
    """Files that the exception covers."""
    case: Text | None = None
    """For ``numbers``: the cases of test-backend-ops that it covers, ``OPERATION(PARAMETERS)``; *
    stands for any text. For ``vulnerabilities``: the id, "CVE-2026-1234"."""
    why: Text
    """The reason."""

    def _faults(self) -> Iterator[str]:
        if (self.case is None) == (self.check in {"numbers", "vulnerabilities"}):
            yield 'needs "case" where check is "numbers" or "vulnerabilities", and else "path"'
        if (self.path is None) == (self.case is None):
            yield 'needs either "path" or "case"'

    @property
    def covered(self) -> str:
        """The path or the case."""
        return self.path or self.case or ""

    def covers(self, what: str, description: str = "") -> bool:
        """Whether it covers a path, or the name of a case or its description, which may have the
        kernel."""
        if self.case is None:
            return fnmatch.fnmatchcase(what, self.covered)
        pattern = self.case.replace("[", "[[]")  # brackets are a part of names
        return any(fnmatch.fnmatchcase(text, pattern) for text in (what, description))
