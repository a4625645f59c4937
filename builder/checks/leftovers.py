"""Check: an image has no build tools or build files, no file twice, and none that grants rights."""

from __future__ import annotations

import posixpath
import re
import stat
from collections import defaultdict
from collections.abc import Iterator

from builder.checks.libraries import DRIVER, Loader
from builder.checks.rules import Rules
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.core import sizes
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents, File

LEAST = 64 << 10  # bytes: copies of smaller files are accepted
CUDA_LIBRARY = re.compile(r"lib(?:cu|nv|np|nccl|caffe_nvrtc)[A-Za-z0-9_-]*\.so")

STUB = re.compile(r"/(?:stubs/.*|libcuda\.so(?:\.\d+)*)$")
RULES = (
    (
        "compiler",
        re.compile(r"/(?:[^/]*-)?(?:gcc|g\+\+|cc1|cc1plus|nvcc|cicc|ptxas|ld|ld\.bfd)(?:-\d+)?$"),
    ),
    (
        "headers",
        re.compile(r"^/(?:usr/include|usr/local/cuda/include|opt/engine/include)/.*\.hp{0,2}$"),
    ),
    ("static libraries", re.compile(r"\.a$")),
    ("package lists", re.compile(r"^/var/lib/apt/lists/.+")),
    (
        "package caches",
        re.compile(
            r"^/var/cache/(?:apt/.+\.(?:bin|deb)|debconf/.+)$|/\.(?:cache|ccache|npm|conda|cargo)/.+"
        ),
    ),
    (
        "build directories",
        re.compile(r"^/(?:build|src|layer|libraries|wheels?|inside|ccache)(?:/.*)?$"),
    ),
)


def check(context: Context) -> Iterator[Check]:
    """No file of the build is left; no layer has a library that hides the driver's."""
    stubs = {file.path: file.path for file in _kept(context) if STUB.search(file.path)}
    for path in _before_the_drivers(context.contents):
        stubs.setdefault(path, f"{path}, which ld.so finds before the driver's own")
    yield context.rules.check("leftovers", "no driver stub", "none", stubs.items())
    for name, pattern in RULES:
        found = [(file.path, file.path) for file in _kept(context) if pattern.search(file.path)]
        yield context.rules.check("leftovers", f"no {name}", "none", found)


def _before_the_drivers(contents: Contents) -> Iterator[str]:
    """The driver's libraries in any layer where ld.so looks.

    An image that compiles may have a stub for the linker elsewhere.
    """
    loader = Loader(contents)
    searched = {contents.resolve(each) for each in loader.searched}
    for path, file in contents.files.items():
        folder, name = posixpath.split(path)
        if file.kind != "directory" and DRIVER.match(name) and contents.resolve(folder) in searched:
            yield path
    for file, parsed in contents.elves():
        for name in filter(DRIVER.match, parsed.needed):
            if found := loader.find(name, file, parsed):
                yield found[0]


def _kept(context: Context) -> list[File]:
    files = sorted(context.added.files.items())
    return [file for _, file in files if file.kind in {"file", "link"}]


def check_copies(context: Context) -> Iterator[Check]:
    """No library is stored twice, and no CUDA library is there in two versions.

    CUDA's libraries of a base of ours count, too, for the versions: its stage ``system`` has none.
    """
    yield _copies(_kept(context), context.rules)
    yield _versions(context)


def _copies(files: list[File], rules: Rules) -> Check:
    same: dict[str, list[File]] = defaultdict(list)
    for file in files:
        if file.elf is not None and file.size >= LEAST and not file.shares:
            same[file.digest].append(file)
    twice = [
        (group[0].path, f"{' = '.join(file.path for file in group)} ({_cost(group)})")
        for group in same.values()
        if len(group) > 1
    ]
    subject = "no program or library is stored twice"
    return rules.check("copies", subject, "each once, its other names as links", twice, "each once")


def _versions(context: Context) -> Check:
    """Two CUDA libraries with one name: which one is loaded depends on the search order."""
    added = context.added
    named: dict[str, dict[str, File]] = defaultdict(dict)
    for file, parsed in (added if context.subject.published else context.contents).elves():
        name = parsed.soname or posixpath.basename(file.path)
        if CUDA_LIBRARY.match(name) and not file.shares:
            named[f"{name} for {parsed.machine}"].setdefault(file.digest, file)
    several = [
        (
            group[0].path,
            f"{name}: {', '.join(file.path for file in group)} ({_cost(group)})",
        )
        for name, group in ((name, list(found.values())) for name, found in named.items())
        if len(group) > 1
        if any(file.path in added.files or file.path.startswith(LAYOUT.cuda) for file in group)
    ]
    subject = "one version of each CUDA library"
    return context.rules.check("copies", subject, "one file for each name", several, "one each")


def _cost(group: list[File]) -> str:
    return f"{sizes.shown(sum(file.size for file in group[1:]))} too much"


def check_elevated(context: Context) -> Iterator[Check]:
    """No set-uid or set-gid program."""
    elevated = [
        (file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})")
        for file in context.own.files.values()
        if file.kind == "file" and file.mode & (stat.S_ISUID | stat.S_ISGID)
    ]
    yield context.rules.check("set-uid", "no set-uid or set-gid program", "none", elevated)


def check_writable(context: Context) -> Iterator[Check]:
    """No world-writable file, and no such directory without the sticky bit."""
    writable = [
        (file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})")
        for file in context.own.files.values()
        if file.kind in {"file", "directory"} and file.mode & stat.S_IWOTH
        if file.kind == "file" or not file.mode & stat.S_ISVTX
    ]
    subject, expected = "no world-writable file or directory", "only with the sticky bit"
    yield context.rules.check("world-writable", subject, expected, writable)
