"""Check: ld.so finds every library and every symbol that a file of the image needs.

All layers count, whoever made them: an image with a library that cannot be loaded does not start.
The order of the search follows ld.so(8): DT_RPATH where there is no DT_RUNPATH, LD_LIBRARY_PATH,
DT_RUNPATH, the directories of ld.so.conf, the trusted directories.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from builder.checks.cuda import for_other_torch
from builder.checks.subject import Context, Rules
from builder.checks.verdict import Check
from builder.core import sizes
from builder.docker import containers
from builder.docker.containers import copy_all_out, copy_out
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents, File, name_hash
from builder.recipes.schema import Artifact
from simulator.elf import ElfFile, Symbols, read_symbols

# NVIDIA's container runtime mounts these from the host.
DRIVER = re.compile(r"lib(?:cuda|cudadebugger|nvidia-[a-z-]+|nvcuvid|nvoptix)\.so(?:\.\d+)*$")
ENGINE = f"{LAYOUT.engine}/"
BUILD_DIRECTORIES = ("/build", "/src", "/wheel", "/tmp", "/root", "/home")  # noqa: S108
VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_\d")
TRIPLETS = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
CONFIGURED = re.compile(r"/etc/ld\.so\.conf(?:\.d/.*\.conf)?")
ROOTS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# glibc's library for debuggers, which define its symbols (proc_service.h); gprofng's libraries are
# preloaded with its collector into the profiled program.
HOSTLESS = re.compile(r"/libthread_db\.so\.1$|/gprofng/libgp-[a-z]+\.so$")
PACKAGES = re.compile(r"/(?:site|dist)-packages/")
EXTENSION = re.compile(r"\.(?:cpython-[\w-]+|abi3)\.so$")
# Functions of the driver's libraries: cuda.h, nvml.h, nvcuvid.h, nvEncodeAPI.h.
DRIVER_SYMBOL = re.compile(r"cu[A-Z]|nvml[A-Z]|cuvid[A-Z]|NvEnc")


def _expand(paths: tuple[str, ...], file: File) -> list[str]:
    """Paths with ld.so's tokens replaced; $LIB is as on Debian."""
    machine = file.elf.machine if file.elf else ""
    tokens = {"ORIGIN": posixpath.dirname(file.path), "LIB": f"lib/{TRIPLETS.get(machine, '')}"}
    token = re.compile(r"\$(?:(ORIGIN|LIB)\b|\{(ORIGIN|LIB)\})")
    return [token.sub(lambda each: tokens[each[1] or each[2]], path) for path in paths if path]


def _packages(path: str) -> str:
    """The directory of Python's packages that a path is in; empty: none.

    Python can import an extension elsewhere, as in a source tree, beside any packages: "*".
    """
    match = PACKAGES.search(path)
    return path[: match.end()] if match else "*" if EXTENSION.search(path) else ""


class Loader:
    """Finds libraries in an image as ld.so does."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        path = contents.environment.get("LD_LIBRARY_PATH", "")
        self._environment = [part for part in path.split(":") if part]
        lines = (
            line.split("#")[0].strip()
            for path, file in sorted(contents.files.items())
            if CONFIGURED.fullmatch(path)
            for line in (file.text or "").splitlines()
        )
        self._configured = [line for line in lines if line.startswith("/")]

    @property
    def searched(self) -> list[str]:
        """The directories that are searched for every program."""
        trusted = [f"{root}/{triplet}" for triplet in TRIPLETS.values() for root in ROOTS]
        return [*self._environment, *self._configured, *trusted, *ROOTS]

    def find(self, name: str, file: File, parsed: ElfFile) -> tuple[str, ElfFile] | None:
        """Path and contents of the library ``name`` that ``file`` needs, or None."""
        if "/" in name:
            return self._usable(_expand((name,), file)[0], parsed)
        for folder in self._directories(file, parsed):
            found = self._usable(posixpath.join(folder, name), parsed)
            if found:
                return found
        if DRIVER.match(name):
            return None
        return self._packaged.get((_packages(file.path), name, parsed.machine))

    @cached_property
    def _packaged(self) -> dict[tuple[str, str, str], tuple[str, ElfFile]]:
        """The libraries of Python packages, by their names.

        ld.so takes a library that is loaded already, wherever it is: packages load libraries of
        others before their own, as torch does (torch/__init__.py, ``_preload_cuda_deps``).
        """
        found: dict[tuple[str, str, str], tuple[str, ElfFile]] = {}
        for file, parsed in self.contents.elves():
            if PACKAGES.search(file.path):
                for name in {posixpath.basename(file.path), parsed.soname or ""}:
                    for place in (_packages(file.path), "*"):
                        found.setdefault((place, name, parsed.machine), (file.path, parsed))
        return found

    def _directories(self, file: File, parsed: ElfFile) -> list[str]:
        triplet = TRIPLETS.get(parsed.machine, "")
        first = [] if parsed.runpath else _expand(parsed.rpath, file)
        own = [*first, *self._environment, *_expand(parsed.runpath, file), *self._configured]
        return [*own, f"/lib/{triplet}", f"/usr/lib/{triplet}", *ROOTS]

    def _usable(self, path: str, parsed: ElfFile) -> tuple[str, ElfFile] | None:
        found = self.contents.files.get(self.contents.resolve(path) or "")
        if found is None or found.elf is None or found.elf.machine != parsed.machine:
            return None
        return found.path, found.elf


class Together:
    """The files that are loaded together: each program or library with all that it needs."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.loader = Loader(contents)
        self.missing: dict[str, list[str]] = defaultdict(list)
        """By path, the libraries that are not found, without the driver's."""
        self.driver: dict[str, list[str]] = defaultdict(list)
        """By path, the libraries of the driver that it needs."""
        self.found: list[tuple[File, ElfFile, str, str, ElfFile]] = []
        """A file, a name that it needs, and the path and contents of that library."""
        self._next: dict[str, list[str]] = defaultdict(list)
        self._all: dict[str, frozenset[str]] = {}
        for file, parsed in contents.elves():
            for name in parsed.needed:
                found = self.loader.find(name, file, parsed)
                if found:
                    self.found.append((file, parsed, name, *found))
                    self._next[file.path].append(found[0])
                if DRIVER.match(name):
                    self.driver[file.path].append(name)
                elif found is None:
                    self.missing[file.path].append(name)
            if parsed.interpreter:
                place = contents.resolve(parsed.interpreter)
                if place:
                    self._next[file.path].append(place)
                elif parsed.soname is None:
                    self.missing[file.path].append(parsed.interpreter)

    def loaded(self, path: str) -> frozenset[str]:
        """The paths that are loaded with a file, and its own."""
        if path not in self._all:
            seen, waiting = {path}, [path]
            while waiting:
                new = [each for each in self._next[waiting.pop()] if each not in seen]
                seen.update(new)
                waiting += new
            self._all[path] = frozenset(seen)
        return self._all[path]

    @cached_property
    def hosts(self) -> dict[str, list[str]]:
        """By path, the programs that load a file when they start."""
        found = defaultdict(list)
        for file, parsed in self.contents.elves():
            if parsed.interpreter and parsed.soname is None:
                for path in self.loaded(file.path):
                    found[path].append(file.path)
        return found

    def lacking(self) -> Iterator[tuple[str, str]]:
        """The libraries that are not found, each with its description.

        A library that each of its programs has loaded before, by the name, is not looked for.
        """
        for path, names in self.missing.items():
            for name in names:
                hosts = [host for host in self.hosts.get(path, ()) if host != path]
                loaded = bool(hosts) and all(
                    name in {self._name(each) for each in self.loaded(host)} for host in hosts
                )
                if not loaded:
                    yield path, f"{path} needs {name}"

    def _name(self, path: str) -> str:
        parsed = self.contents.files[path].elf
        return (parsed and parsed.soname) or posixpath.basename(path)

    def undefined(self) -> Iterator[tuple[str, str]]:
        """The files that need a symbol that no file defines which is loaded with them.

        What a program loads when it starts finds its symbols there.  A library that no program
        needs is loaded by one later: it may also find them in any program, in a library that needs
        it, and in Python packages beside it.  The symbols of a file that lacks a library are not
        judged.
        """
        hosts = self.hosts
        everywhere = self._defined(path for path, programs in hosts.items() if programs)
        everywhere |= self._preloaded
        beside: dict[str, set[int]] = defaultdict(set)
        for file, _ in self.contents.elves():
            if PACKAGES.search(file.path):
                beside[_packages(file.path)] |= file.defines
                beside["*"] |= file.defines
        driver, others = bool(self.driver), for_other_torch(self.contents)
        for file, _ in self.contents.elves():
            incomplete = any(path in self.missing for path in self.loaded(file.path))
            hostless = file.path in others or HOSTLESS.search(file.path)
            if file.shares or not file.needs or incomplete or hostless:
                continue
            left = self._left(file.needs, self.loaded(file.path))
            programs = hosts.get(file.path, [])
            for host in programs if left else ():
                if lacking := self._left(left, self.loaded(host)):
                    what = f"{file.path} needs {_several(lacking)}"
                    yield file.path, f"{what}, which nothing that {host} loads defines"
                    break
            if programs or not left:
                continue
            known = beside.get(_packages(file.path), set()) | self._users.get(file.path, set())
            lacking = [
                name
                for name in left
                if (hashed := name_hash(name)) not in everywhere and hashed not in known
                if not (driver and DRIVER_SYMBOL.match(name))
            ]
            if lacking:
                what = f"{file.path} needs {_several(lacking)}"
                yield file.path, f"{what}, which nothing that is loaded with it defines"

    @cached_property
    def _users(self) -> dict[str, set[int]]:
        """By path of a library that no program needs, what is defined with those that need it."""
        found: dict[str, set[int]] = defaultdict(set)
        for file, _ in self.contents.elves():
            if not self.hosts.get(file.path) and len(paths := self.loaded(file.path)) > 1:
                defined = self._defined(paths)
                for path in paths - self.hosts.keys():
                    found[path] |= defined
        return found

    @cached_property
    def _preloaded(self) -> set[int]:
        names = re.split("[ :]+", self.contents.environment.get("LD_PRELOAD", ""))
        folders = [*self.loader.searched, ""]
        places = {
            self.contents.resolve(posixpath.join(at, name)) for at in folders for name in names
        }
        return self._defined(path for path in places if path and path in self.contents.files)

    def _left(self, names: Iterable[str], paths: frozenset[str]) -> list[str]:
        tables = [self._preloaded, *(self.contents.files[path].defines for path in paths)]
        driver = any(path in self.driver for path in paths)
        return [
            name
            for name in names
            if not any(name_hash(name) in table for table in tables)
            if not (driver and DRIVER_SYMBOL.match(name))
        ]

    def _defined(self, paths: Iterable[str]) -> set[int]:
        return set[int]().union(*(self.contents.files[path].defines for path in paths))


def _several(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more symbols" if len(names) > 1 else "")


def check(context: Context) -> Iterator[Check]:
    """All needed libraries, their symbols and symbol versions, and the driver."""
    contents, rules, recipe = context.contents, context.rules, context.subject.recipe
    malformed = (file for file in contents.files.values() if file.malformed)
    damaged = [(file.path, f"{file.path}: {file.malformed}") for file in malformed]
    yield rules.check("closure", "every ELF file can be read", "all", damaged, "all can")
    together = Together(contents)
    count = sum(len(parsed.needed) for _, parsed in contents.elves())
    subject = "every needed library is in the image"
    missing = together.lacking()
    yield rules.check("closure", subject, "all found", missing, f"{count} of {count} found")
    subject = "every library defines the symbol versions that are needed"
    too_old = [each for found in together.found for each in _undefined(*found)]
    yield rules.check("closure", subject, "all versions defined", too_old, _ceilings(contents))
    subject = "every symbol that is needed is defined"
    undefined = together.undefined()
    yield rules.check("closure", subject, "all are defined", undefined, "all are")
    if recipe is not None and not recipe.cuda.vmm:
        subject = "nothing needs the driver's library (vmm = false)"
        needs = together.driver.items()
        driver = [(path, f"{path} needs {name}") for path, names in needs for name in names]
        yield rules.check("closure", subject, "no libcuda.so.1 among NEEDED", driver)


def _undefined(
    file: File, parsed: ElfFile, name: str, path: str, library: ElfFile
) -> Iterator[tuple[str, str]]:
    """Symbol versions that ``file`` needs of a library, and that it does not define.

    A library without any symbol versions is accepted, as ld.so does.
    """
    defined = set(library.versions_defined)
    for needed, versions in parsed.versions_needed:
        lacking = [version for version in versions if defined and version not in defined]
        if needed == name and lacking:
            yield file.path, f"{file.path} needs {', '.join(lacking)} of {path}"


def _ceilings(contents: Contents) -> str:
    needed: dict[str, str] = {}
    for _, parsed in contents.elves():
        for version in (version for _, all_of in parsed.versions_needed for version in all_of):
            match = VERSION.match(version)
            if match and _number(version) > _number(needed.get(match[1], "")):
                needed[match[1]] = version
    return "newest needed: " + (", ".join(needed[name] for name in sorted(needed)) or "none")


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def check_run_paths(context: Context) -> Iterator[Check]:
    """RUNPATH and RPATH name directories of the image, and none of the build."""
    wrong = []
    for file, parsed in context.added.elves():
        for path in _expand((*parsed.runpath, *parsed.rpath), file):
            if fault := _fault(path, file, context.contents):
                wrong.append((file.path, f"{file.path} looks in {fault}"))
    subject = "RUNPATH and RPATH lead into the image"
    expected = "no build directory, no missing directory"
    yield context.rules.check("run paths", subject, expected, wrong, "all do")


def _fault(path: str, file: File, contents: Contents) -> str:
    place = posixpath.normpath(path)
    if not path.startswith("/"):
        return f"{path!r}, relative to the working directory"
    if any(place == root or place.startswith(root + "/") for root in BUILD_DIRECTORIES):
        return f"{place}, a build directory"
    if file.path.startswith(ENGINE) and contents.resolve(place) is None:
        return f"{place}, which is not in the image"
    return ""


# Check: a library that is delivered alone can be loaded, and every symbol it needs is defined.
#
# It is loaded like a shim, by LD_PRELOAD into a program.  The loader resolves functions only when
# they are first called (ld.so(8), LD_BIND_NOW), so undefined symbols are found by comparing the
# symbol tables of the library and of all files that were loaded with it.

STUBS = "/usr/local/cuda/lib64/stubs"
PLACE = "/run/artifact"
TIMEOUT = 30.0  # seconds
MAPPED = re.compile(r"^\S+-\S+ \S+ \S+ \S+ \d+ +(/.+)$", re.MULTILINE)  # proc_pid_maps(5)


def check_loads(context: Context) -> Iterator[Check]:
    """Load each file of an artifact in the image that it was compiled in, with the stubs of the
    driver's libraries."""
    artifact, devel, work = context.recipe.artifact, context.subject.devel, context.work
    if artifact is None or not artifact.loads:
        return
    if devel is None:
        why = "the base has no image to compile in"
        yield Check.untried("loads", "LD_PRELOAD", "loads it into a program", why)
        return
    for name in artifact.names:
        file = work / name
        copy_out(context.subject.reference, f"/{name}", file)
        place = f"{PLACE}/{name}"
        # cat does not use the library, and shows its own memory map.
        extra = [f"--volume={file}:{place}:ro"]
        extra += [f"--env=LD_PRELOAD={place}", f"--env=LD_LIBRARY_PATH={STUBS}"]
        maps = ["/proc/self/maps"]
        done = containers.run(devel, maps, entrypoint="cat", timeout=TIMEOUT, extra=extra)
        loaded = list(dict.fromkeys(MAPPED.findall(done.output)))
        passed = done.status == 0 and place in loaded
        found = "loaded" if passed else done.output.strip()[:300] or f"exit code {done.status}"
        yield Check.of("loads", f"/{name}", "LD_PRELOAD loads it into a program", found, passed)
        if passed:
            others = [path for path in loaded if path != place]
            yield _lost_symbols(artifact, file, devel, others, work)


def _lost_symbols(
    artifact: Artifact, file: Path, devel: str, loaded: list[str], work: Path
) -> Check:
    """Every symbol that ``file`` needs is defined by it or by the files ``loaded``, except those
    that the recipe accepts."""
    libraries = {path: work / f"loaded-{number}" for number, path in enumerate(loaded)}
    copy_all_out(devel, libraries)
    missing = _symbols(file).undefined
    for library in libraries.values():
        missing -= _symbols(library).defined
    accepted = artifact.undefined
    faults = [f"{name} is undefined" for name in sorted(missing - accepted.keys())]
    unused = sorted(accepted.keys() - missing)
    faults += [f"{name} is defined: remove it from the recipe" for name in unused]
    fine = "; ".join(f"accepted: {name} ({why})" for name, why in accepted.items())
    found = "; ".join(faults) or fine or "all are"
    return Check.of("loads", f"/{file.name}", "every symbol is defined", found, not faults)


def _symbols(file: Path) -> Symbols:
    with file.open("rb") as stream:
        return read_symbols(stream)


# Check: an image has no build tools or build files, no file twice, and none that grants rights.

LEAST = 64 << 10  # bytes: copies of smaller files are accepted
CUDA_LIBRARY = re.compile(r"lib(?:cu|nv|np|nccl|caffe_nvrtc)[A-Za-z0-9_-]*\.so")

STUB = re.compile(r"/(?:stubs/.*|libcuda\.so(?:\.\d+)*)$")
RULES = {
    "compiler": r"/(?:[^/]*-)?(?:gcc|g\+\+|cc1|cc1plus|nvcc|cicc|ptxas|ld|ld\.bfd)(?:-\d+)?$",
    "headers": r"^/(?:usr/include|usr/local/cuda/include|opt/engine/include)/.*\.hp{0,2}$",
    "static libraries": r"\.a$",
    "package lists": r"^/var/lib/apt/lists/.+",
    "package caches": r"^/var/cache/(?:apt/.+\.(?:bin|deb)|debconf/.+)$"
    r"|/\.(?:cache|ccache|npm|conda|cargo)/.+",
    "build directories": r"^/(?:build|src|layer|libraries|wheels?|inside|ccache)(?:/.*)?$",
}
"""Files that a build leaves: the pattern of their paths by what they are."""


def check_leftovers(context: Context) -> Iterator[Check]:
    """No file of the build is left; no layer has a library that hides the driver's."""
    stubs = {file.path: file.path for file in _kept(context) if STUB.search(file.path)}
    for path in _before_the_drivers(context.contents):
        stubs.setdefault(path, f"{path}, which ld.so finds before the driver's own")
    yield context.rules.check("leftovers", "no driver stub", "none", stubs.items())
    for name, pattern in RULES.items():
        found = [(file.path, file.path) for file in _kept(context) if re.search(pattern, file.path)]
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
        (group[0].path, f"{name}: {', '.join(file.path for file in group)} ({_cost(group)})")
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
