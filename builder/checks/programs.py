"""The programs that a command line leads to, followed through wrappers and scripts."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from builder.image.contents import Contents, File

MACHINES = {"linux/amd64": "x86-64", "linux/arm64": "aarch64"}
PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)?t?$")
SHELLS = {"sh", "bash", "dash", "ash"}
WRAPPERS: Mapping[str, tuple[str, int]] = {
    "env": ("-C --chdir -u --unset", 0),
    "nice": ("-n --adjustment", 0),
    **dict.fromkeys(("nohup", "catatonit"), ("", 0)),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    **dict.fromkeys(("tini", "tini-static"), ("-p -e", 0)),
    "dumb-init": ("-r --rewrite", 0),
    **dict.fromkeys(("gosu", "su-exec"), ("", 1)),
}
"""Programs that become another one: the options whose value is a word of its own, and how many
words are before the program."""
SPLIT = re.compile(r"(?:-[i0v]*S|--split-string=?)")
DEFAULT_PATH = "/bin:/usr/bin"  # execvp(3), where PATH is not set
MOST = 8  # programs that start each other


@dataclass(frozen=True, slots=True)
class Start:
    """The programs that a command line leads to."""

    chain: tuple[str, ...] = ()
    fault: str = ""
    """Why the last one cannot be started."""
    at: str = ""
    unknown: str = ""
    """Why it is not known what follows."""
    python: tuple[str, ...] = ()
    """The words to Python, with its own options; empty: it is not known to be Python."""
    module: str = ""
    file: str = ""


def followed(words: Sequence[str], contents: Contents, *, by_docker: bool = False) -> Start:
    """The programs that an image starts by these words; ``by_docker``: Docker starts the first."""
    start, left = Start(), list(words)
    prefix: list[str] = []
    while left and len(start.chain) < MOST:
        path, fault = _program(left[0], contents)
        start = replace(start, chain=(*start.chain, path), fault=fault, at=path if fault else "")
        file = contents.files.get(contents.resolve(path) or "")
        if fault or file is None:
            return start
        name = posixpath.basename(left[0])
        if file.elf is None:
            if why := _unstarted(path, file, contents, by_docker=by_docker and not start.chain[1:]):
                return replace(start, fault=why, at=path)
            # A text without "#!" is the shell's: execvp(3), ENOEXEC.
            line = file.script.removeprefix("#!").strip(" \t") or "/bin/sh"
            left, prefix = [*re.split(r"[ \t]+", line, maxsplit=1), path, *left[1:]], []
        elif PYTHON.match(name) or PYTHON.match(posixpath.basename(file.path)):
            return _of_python(start, [*prefix, left[0]], left[1:], contents)
        elif name in WRAPPERS:
            after, given = _after_options(name, left[1:])
            contents = _changed(contents, given)
            # Words of one that is split (env -S) are none of the command line's.
            prefix, left = [*prefix, *left[: max(0, len(left) - len(after))]], after
        elif name in SHELLS:
            return _of_shell(start, left[1:], contents)
        else:
            return start
    why = "programs start each other without end" if left else "it names no program"
    return replace(start, fault=why, at=start.chain[-1] if start.chain else "")


def _unstarted(path: str, file: File, contents: Contents, *, by_docker: bool) -> str:
    """Why no interpreter is started for a text; empty: one is."""
    if not _may(file, contents, 4):
        return f"{path} cannot be read by the image's user"
    if file.script.endswith("\r"):
        return f"the first line of {path} ends with a carriage return: write it as on Linux"
    if by_docker and not file.script:
        return f"{path} is neither an ELF file nor begins with #!: Docker cannot start it"
    return ""


def _after_options(name: str, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words after the options, and the variables, of ``env`` or a wrapper.

    Also the variables and the directory that ``env`` sets; the latter is "-C".
    """
    values, operands = WRAPPERS[name]
    left, given = list(words), dict[str, str]()
    while left:
        word = left[0]
        if word == "--":
            left = left[1:]
            break
        if name == "env" and (split := SPLIT.match(word)):
            texts = [each for each in (word[split.end() :], *left[1:]) if each.strip()]
            left = [*_split(texts[0]), *texts[1:]] if texts else []
        elif word in values.split():
            given["-C"] = left[1] if word in {"-C", "--chdir"} and left[1:] else given.get("-C", "")
            left = left[2:]
        elif name == "env" and (set_ := re.match(r"(\w+|--chdir)=(.*)", word, re.DOTALL)):
            given["-C" if set_[1] == "--chdir" else set_[1]] = set_[2]
            left = left[1:]
        elif word.startswith("-"):
            left = left[1:]
        else:
            break
    return left[operands:], given


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # it has one quote
        return text.split()


def _changed(contents: Contents, given: Mapping[str, str]) -> Contents:
    config = dict(contents.config)
    if folder := given.get("-C"):
        config["WorkingDir"] = _absolute(folder, contents)
    if "PATH" in given:
        config["Env"] = [*(config.get("Env") or []), f"PATH={given['PATH']}"]
    return replace(contents, image={**contents.image, "config": config})


def _of_python(start: Start, prefix: list[str], words: list[str], contents: Contents) -> Start:
    # Python documentation, "Command line and environment".
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        option = left.pop(0)
        letter = re.match(r"-(?![XW])[A-Za-z]*?([mc])", option)
        if letter:
            value = option[letter.end() :] or (left[0] if left else "")
            if letter[1] == "m":
                flags = option[: letter.end() - 1]
                more = [flags] if flags != "-" else []
                return replace(start, python=(*prefix, *more), module=value)
            return replace(start, unknown=f"Python runs code of its command line: {value[:60]}")
        prefix.append(option)
        if option in {"-X", "-W", "--check-hash-based-pycs"} and left:
            prefix.append(left.pop(0))
    if not left or left[0] == "-":
        return replace(start, unknown="Python is given no program")
    path = _absolute(left[0], contents)
    file = contents.files.get(contents.resolve(path) or "")
    if file is None:
        return replace(start, fault=f"{path}, which Python is to run, does not exist", at=path)
    if not _may(file, contents, 4):
        return replace(start, fault=f"{path} cannot be read by the image's user", at=path)
    return replace(start, python=tuple(prefix), file=path)


def _of_shell(start: Start, words: list[str], contents: Contents) -> Start:
    scripts = [word for word in words[:1] if not word.startswith("-")]
    for script in scripts:
        path = _absolute(script, contents)
        # A shell looks for a name also in PATH.
        if "/" in script and contents.resolve(path) is None:
            return replace(start, fault=f"{path}, which a shell is to run, does not exist", at=path)
    what = scripts[0] if scripts else "a command line"
    return replace(start, unknown=f"{what} is a shell's: the programs that it starts are not known")


def _program(name: str, contents: Contents) -> tuple[str, str]:
    """The path of a program, and why it cannot be started; by execvp(3)."""
    if "/" in name:
        path = _absolute(name, contents)
        return path, _fault(path, contents)
    search = contents.environment.get("PATH") or DEFAULT_PATH
    places = [
        posixpath.join(_absolute(folder, contents), name) for folder in search.split(":") if folder
    ]
    faults = {path: _fault(path, contents) for path in places if contents.resolve(path)}
    for path, fault in faults.items():
        if not fault:
            return path, ""
    for path, fault in faults.items():
        return path, fault
    return name, f"{name} is in no directory of PATH ({search})"


def _fault(path: str, contents: Contents) -> str:
    place = contents.resolve(path)
    file = contents.files.get(place) if place else None
    if place is None or file is None:
        there = contents.files.get(path)
        to = f" (a link to {there.target})" if there and there.kind == "link" else ""
        return f"{path} does not exist{to}"
    for folder in (*_parents(path), *_parents(place)):
        above = contents.files.get(contents.resolve(folder) or "")
        if above is not None and not _may(above, contents, 1):
            return f"{path} is below {folder}, which the image's user cannot enter"
    why = unusable(file, contents)
    return f"{path} {why}" if why else ""


def unusable(file: File, contents: Contents) -> str:
    """Why the kernel, or ld.so, does not start a file for the image's user; empty: it does."""
    parsed, machine = file.elf, MACHINES.get(contents.platform)
    if file.kind != "file":
        return f"is no file: it is a {file.kind}"
    if file.size == 0:
        return "is empty"
    if not _may(file, contents, 1):
        return f"cannot be executed by the image's user (mode {file.mode & 0o7777:04o})"
    if file.malformed:
        return f"is damaged: {file.malformed}"
    if parsed is None:
        return ""
    if parsed.type not in {"exec", "dyn"}:
        return "is no program"
    if machine and parsed.machine != machine:
        return f"is a program for {parsed.machine}"
    if parsed.interpreter and contents.resolve(parsed.interpreter) is None:
        return f"needs the loader {parsed.interpreter}, which does not exist"
    return ""


def _may(file: File, contents: Contents, right: int) -> bool:
    """Whether the image's user has a right (4: read, 1: execute, or enter) to a file.

    Where the user is a name, any user's right counts.
    """
    user, _, group = str(contents.config.get("User") or "0").partition(":")
    if right == 4 and user in {"0", "root"}:
        return True
    if not user.isdigit() or user == "0":
        return bool(file.mode & right * 0o111)
    if int(user) == file.user:
        return bool(file.mode & right << 6)
    if group.isdigit() and int(group) == file.group:
        return bool(file.mode & right << 3)
    return bool(file.mode & right)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _absolute(path: str, contents: Contents) -> str:
    return posixpath.join("/", contents.config.get("WorkingDir") or "/", path)
