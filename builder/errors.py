"""Every way in which builder fails: what failed, why, what to do next, and an exit code a kind.

The exit codes are part of the command line's contract and are listed in ``builder --help``.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unicodedata import category

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # letters and marks without a shape
_USERINFO = re.compile(r"//[^/\s]+@")
_COMMAND = re.compile(r"`builder (?=[a-z-])")
PROGRAM = shlex.quote(os.environ.get("BUILDER_PROGRAM") or "builder")
"""How the user started builder; ``./farm`` sets the variable."""


def plain(text: str) -> str:
    """Text that a terminal shows as it is written: somebody else may have written it.

    Control characters are left out.  Characters that cannot be seen (Unicode's categories of
    formats, such as those that turn the direction of text, of surrogates and private use) are
    shown as their escapes.
    """
    text = _CONTROL.sub("", text)
    if text.isascii():
        return text
    return "".join(each if _visible(each) else _escape(each) for each in text)


def _visible(character: str) -> bool:
    if character in _INVISIBLE:
        return False
    return character.isprintable() or character in "\t\n" or category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def as_started(text: str) -> str:
    """Text in which builder's commands, in back ticks, begin as the user started it."""
    return _COMMAND.sub(lambda _: f"`{PROGRAM} ", text)


class BuilderError(Exception):
    """A failure that is explained to the user without a traceback.

    ``what`` failed, ``why`` (may be several lines), and the ``hint``: what to do next.  The
    user and password of a URL are hidden: what other tools print may hold a mirror's.  What a
    terminal would obey is left out, what it would not show is escaped.
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
    """One thing that is wrong in a recipe file; ``line`` counts from 1."""

    file: Path
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class RecipeError(BuilderError):
    """A recipe, or the catalog of recipes, is wrong."""

    exit_code = 3

    def __init__(
        self, what: str, why: str = "", hint: str = "", problems: tuple[Problem, ...] = ()
    ) -> None:
        lines = "\n".join(str(problem) for problem in problems)
        super().__init__(what, "\n".join(part for part in (why, lines) if part), hint)
        self.problems = problems


class WorldError(BuilderError):
    """This machine lacks something, or what it has does not answer."""

    exit_code = 4


class FetchError(BuilderError):
    """An input could not be fetched, or is not what the recipe says it is."""

    exit_code = 5


MIRROR_FIRST = "fetch it first, where the network is: `builder pin mirror`"
"""What to do about an input that is not there, with --offline."""


class GoneError(FetchError):
    """Who was asked answers, and does not have it: asking again does not help."""


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
    """Another run is at work on the same thing."""

    exit_code = 9


class SpaceError(BuilderError):
    """A disk is full, or too full to begin."""

    exit_code = 10


class PatchError(BuilderError):
    """A patch does not apply, changes nothing, or is none."""

    exit_code = 11


class RegistryError(BuilderError):
    """A registry refuses, or what it has may not be replaced."""

    exit_code = 12


class TagMovedError(RegistryError):
    """A tag no longer leads to the image that was to be replaced: somebody else has moved it."""


class NightError(BuilderError):
    """Of a night's channels some could not be moved; the others were."""

    exit_code = 13


class StaleError(BuilderError):
    """A channel is behind its upstream for longer than it may be."""

    exit_code = 14


class Interrupted(BaseException):
    """Ctrl-C, or a polite kill.  Like KeyboardInterrupt, but nothing on the way swallows it."""


INTERNAL = 70  # EX_SOFTWARE of sysexits.h: a fault of builder's own
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

EXIT_CODES: dict[int, str] = {
    0: "success, or nothing to do",
    2: "the command line is wrong",
    RecipeError.exit_code: "a recipe is wrong",
    WorldError.exit_code: "this machine lacks something (see `builder doctor`)",
    FetchError.exit_code: "an input could not be fetched, or differs from its pin",
    BuildError.exit_code: "the build failed",
    SmokeError.exit_code: "the image was built and a check failed",
    UntriedError.exit_code: "a check could not be run",
    BusyError.exit_code: "another run is at work on the same recipe",
    SpaceError.exit_code: "not enough disk space",
    PatchError.exit_code: "a patch does not apply, or does nothing",
    RegistryError.exit_code: "a registry refuses, or a tag may not be moved",
    NightError.exit_code: "some channels failed this night; the others were moved",
    StaleError.exit_code: "a channel is older than its limit",
    INTERNAL: "a fault of builder itself (a report is written)",
    INTERRUPTED: "interrupted",
}
