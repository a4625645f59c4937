"""All errors of builder: the failure, its reason, the next step, and an exit code for each kind.

The exit codes are an interface: ``builder --help`` lists them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unicodedata import category

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # letters and marks without a shape
_USERINFO = re.compile(r"//[^/\s]+@")
_COMMAND = re.compile(r"`builder (?=[a-z-])")
_OF_PYDANTIC = (
    (r"^Value error, ", ""),
    (r"^Field required$", "is missing"),
    (r"^(?:Extra inputs are not permitted|Unexpected keyword argument)$", "is no known key"),
    (r"^Invalid JSON: .*? at (line \d+ column \d+)$", r"not JSON: see \1"),
    (r"^Input should be a valid integer.*", "must be a whole number"),
    (r"^Input should be a valid number.*", "must be a number"),
    (r"^Input should be a valid boolean.*", "must be true or false"),
    (r"^Input should be a valid string.*", "must be a text"),
    (r"^Input should be a valid (?:dictionary|.*object).*", "must be a table"),
    (r"^Input should be an object", "must be a table"),
    (r"^Input should be a valid (?:list|tuple).*", "must be a list"),
    (r"^Input should be ", "must be "),
    (r"\bgreater than or equal to\b", "at least"),
    (r"\bless than or equal to\b", "at most"),
    (r"^(?:\w+) should have (.*?)(?: after validation.*)?$", r"must have \1"),
    (r"^String should match pattern .*", "is not valid"),
)
PROGRAM = shlex.quote(os.environ.get("BUILDER_PROGRAM") or "builder")
"""How the user started builder; ``./farm`` sets the variable."""


def plain(text: str) -> str:
    """Text that is safe to print, whatever its origin.

    Control characters are removed.  Invisible characters (Unicode's format characters, such as
    marks of the direction of text, surrogates, and private use) are escaped.
    """
    text = _CONTROL.sub("", text)
    if text.isascii():
        return text
    shown = (each if _visible(each) else each.encode("unicode_escape").decode() for each in text)
    return "".join(shown)


def _visible(character: str) -> bool:
    if character in _INVISIBLE:
        return False
    return character.isprintable() or character in "\t\n" or category(character) == "Zs"


def as_started(text: str) -> str:
    """Text in which builder's commands, in backticks, begin with the program that the user ran."""
    return _COMMAND.sub(lambda _: f"`{PROGRAM} ", text)


def listed(names: Sequence[str], most: int, separator: str = "; ") -> str:
    """The first names in one text: "a; b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def suggestion(word: str, known: list[str]) -> str:
    """``; did you mean X?`` where a known word is near, otherwise nothing."""
    import difflib  # slow to import

    begun = [each for each in known if word and each.startswith(word)]
    near = begun or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""


def in_words(message: str) -> str:
    """What pydantic says of a value, in the words of this program: "must be a whole number"."""
    for pattern, words in _OF_PYDANTIC:
        message = re.sub(pattern, words, message)
    return message[:1].lower() + message[1:]


class BuilderError(Exception):
    """A failure that is explained to the user without a traceback.

    ``what`` failed, ``why`` (may be several lines), and ``hint``, the next step.  User and password
    of URLs are hidden, because the output of other tools may contain a mirror's.  Control
    characters are removed and invisible ones escaped.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        what, why, hint = (_USERINFO.sub("//***@", plain(text)) for text in (what, why, hint))
        super().__init__(what, why, hint)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.hint) if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a recipe file; ``line`` counts from 1."""

    file: Path
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class UsageError(BuilderError):
    """The value of an option or of an argument does not exist."""

    exit_code = 2


class RecipeError(BuilderError):
    """A recipe, or the catalog of recipes, is invalid."""

    exit_code = 3

    def __init__(
        self, what: str, why: str = "", hint: str = "", problems: tuple[Problem, ...] = ()
    ) -> None:
        lines = "\n".join(str(problem) for problem in problems)
        super().__init__(what, "\n".join(part for part in (why, lines) if part), hint)
        self.problems = problems


class WorldError(BuilderError):
    """This machine lacks something, or a service on it does not answer."""

    exit_code = 4


class FetchError(BuilderError):
    """An input could not be downloaded, or differs from its pin."""

    exit_code = 5


MIRROR_FIRST = "download it first, with a network: `builder pin mirror`"
"""The next step if --offline misses an input."""


class GoneError(FetchError):
    """Not found: the server answered and does not have it.  Retrying does not help."""


class BuildError(BuilderError):
    """The engine did not compile, or the image could not be made."""

    exit_code = 6


class SmokeError(BuilderError):
    """The image was built and a check failed."""

    exit_code = 7


class UntriedError(BuilderError):
    """A check could not be run, which says nothing of the image."""

    exit_code = 8


class BusyError(BuilderError):
    """Another run uses the same recipe, base, cache or tags."""

    exit_code = 9


class SpaceError(BuilderError):
    """A disk is full, or too full to begin."""

    exit_code = 10


class PatchError(BuilderError):
    """A patch does not apply, changes nothing, or is not a patch."""

    exit_code = 11


class RegistryError(BuilderError):
    """A registry refuses a request, or a tag may not be replaced."""

    exit_code = 12


class UnvouchedError(RegistryError):
    """Nothing vouches for an image of a registry: it counts once this machine builds the same."""


class NightError(BuilderError):
    """A nightly run could not move some channels; the others were moved."""

    exit_code = 13


class StaleError(BuilderError):
    """A channel is behind its upstream, or the upstream still, for longer than its limit."""

    exit_code = 14


class FitError(BuilderError):
    """A model does not fit on a card with any context that was tried."""

    exit_code = 15


class ReceiptError(BuilderError):
    """A receipt is refused."""

    exit_code = 16


class DifferenceError(BuilderError):
    """The two sides of a comparison differ."""

    exit_code = 17


class Interrupted(BaseException):
    """SIGINT or SIGTERM.  Not an ``Exception``, so that no handler on the way swallows it."""


class BugError(BuilderError):
    """A fault of builder's own."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


INTERRUPTED = 130  # 128 + SIGINT, as shells report it

EXIT_CODES: dict[int, str] = {
    0: "done",
    UsageError.exit_code: "command line",
    RecipeError.exit_code: "recipe",
    WorldError.exit_code: "this machine lacks something (`builder doctor`)",
    FetchError.exit_code: "download",
    BuildError.exit_code: "build",
    SmokeError.exit_code: "a check failed",
    UntriedError.exit_code: "a check could not be run",
    BusyError.exit_code: "another run is busy with it",
    SpaceError.exit_code: "disk full",
    PatchError.exit_code: "patch",
    RegistryError.exit_code: "registry or tag",
    NightError.exit_code: "a channel was not moved",
    StaleError.exit_code: "a channel is late",
    FitError.exit_code: "does not fit on the card",
    ReceiptError.exit_code: "receipt",
    DifferenceError.exit_code: "differs",
    BugError.exit_code: "bug in builder",
    78: "of a container: no GPU that it can use",
    INTERRUPTED: "interrupted",
}
"""In a few words; docs/commands.md has the table."""
