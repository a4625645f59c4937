"""Names of files that others chose (the Hub, a package index, a preset), and of repositories."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from unicodedata import category

from builder.core.errors import FetchError

LONGEST = 250  # bytes of a component: Linux takes 255 (limits.h, NAME_MAX), ``.part`` is added
DEEPEST = 16  # components
LONGEST_PATH = 2048  # bytes: Linux takes 4096 (PATH_MAX), with the directory above
SHOWN = 100  # characters of a name in an error
PART = ".part"
"""The end of the name of a file whose download is not complete."""
REPOSITORY = r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$"
"""The repository of an image, as a registry takes it."""
CONTROLS = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Categories of characters without a shape: some change the direction of text."""


def why_not_writable(path: str) -> str:
    """Why no file can have this relative path, in words; empty where one can."""
    components = path.split("/")
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if {"", ".", ".."} & {*components}:
        return "it has an empty component, . or .."
    if any(category(character) in CONTROLS for character in path):
        return "it has control characters, or others without a shape"
    if max(len(each.encode()) for each in components) > LONGEST:
        return f"a component has more than {LONGEST} bytes"
    if len(components) > DEEPEST or len(path.encode()) > LONGEST_PATH:
        return f"it has more than {DEEPEST} components, or {LONGEST_PATH} bytes"
    return ""


def require_writable_names(paths: Collection[str], source: str) -> None:
    """Raise ``FetchError`` unless all these paths can be files of one directory.

    ``source`` lists them: a repository, a URL.
    """
    known = {*paths}
    for path in paths:
        why = why_not_writable(path) or _collision(path, known)
        if why:
            raise FetchError(
                f"{source} has a file whose name cannot be written: {escaped(path)}",
                why,
                "download the files that you need in another way, and name them",
            )


def _collision(path: str, known: Collection[str]) -> str:
    for above in PurePosixPath(path).parents:
        if above.name and str(above) in known:
            return f"{escaped(str(above))} is a file and a directory"
    if path.endswith(PART) and path.removesuffix(PART) in known:
        return f"{escaped(path.removesuffix(PART))} has this name while it is downloaded"
    return ""


def escaped(path: str) -> str:
    """A name in quotes for an error, whatever its characters; a long one is cut."""
    cut = path if len(path) <= SHOWN else f"{path[:SHOWN]}..."
    return ascii(cut) if any(category(each) in CONTROLS for each in cut) else repr(cut)


GITHUB = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?github\.com/([A-Za-z0-9-]+)/([A-Za-z0-9._-]+?)(?:\.git)?/?"
)
"""The URL of a repository on GitHub: its owner and its name."""


def github_page(url: str, path: str = "") -> str:
    """The page of a GitHub repository, or ``path`` below it ("pull/6"); empty for other hosts."""
    found = GITHUB.fullmatch(url)
    return f"https://github.com/{found[1]}/{found[2]}/{path}".removesuffix("/") if found else ""


# Models that llama-gguf-split split: NAME-00001-of-00003.gguf is the first of three files.

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.ASCII)


def parts_of(name: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are parts of the same model, in order; the name where it has none."""
    split = SPLIT.search(name)
    if split is None:
        return [name]
    found = {each: SPLIT.search(each) for each in names}
    return sorted(
        each
        for each, part in found.items()
        if part and part[2] == split[2] and each[: part.start()] == name[: split.start()]
    )


def renamed(name: str, number: int, count: int) -> str:
    """The name of another part, counted from 1."""
    return SPLIT.sub(f"-{number:05}-of-{count:05}.gguf", name)
