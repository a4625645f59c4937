"""Check: ld.so finds every library that a file of the image needs.

The order follows ld.so(8): DT_RPATH where there is no DT_RUNPATH, LD_LIBRARY_PATH, DT_RUNPATH,
the directories of ld.so.conf, the trusted directories.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.contents.contents import Contents, File
from builder.families.layout import LAYOUT
from builder.smoke.context import Context
from builder.smoke.verdict import Check
from builder.tools.elf import ElfFile

# NVIDIA's container runtime mounts these from the host.
DRIVER = re.compile(r"lib(?:cuda|nvidia-[a-z-]+|nvcuvid)\.so(?:\.\d+)*$")
ENGINE = f"{LAYOUT.engine}/"
BUILD_DIRECTORIES = ("/build", "/src", "/wheel", "/tmp", "/root", "/home")  # noqa: S108
VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_\d")
TRIPLETS = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def _configured(contents: Contents) -> list[str]:
    directories = []
    for path, file in sorted(contents.files.items()):
        if path.startswith("/etc/ld.so.conf.d/") and path.endswith(".conf"):
            lines = [line.split("#")[0].strip() for line in (file.text or "").splitlines()]
            directories += [line for line in lines if line.startswith("/")]
    return directories


def _environment(contents: Contents) -> list[str]:
    return [part for part in contents.environment.get("LD_LIBRARY_PATH", "").split(":") if part]


def _expand(paths: tuple[str, ...], file: File) -> list[str]:
    origin = posixpath.dirname(file.path)
    return [re.sub(r"\$(ORIGIN|\{ORIGIN\})", origin, path) for path in paths if path]


class Loader:
    """Finds libraries in an image as ld.so does."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._configured = _configured(contents)
        self._environment = _environment(contents)

    def find(self, name: str, file: File, parsed: ElfFile) -> tuple[str, ElfFile] | None:
        """Path and contents of the library ``name`` that ``file`` needs, or None."""
        if "/" in name:
            return self._usable(name, parsed)
        for folder in self._directories(file, parsed):
            found = self._usable(posixpath.join(folder, name), parsed)
            if found:
                return found
        return None

    def _directories(self, file: File, parsed: ElfFile) -> list[str]:
        triplet = TRIPLETS.get(parsed.machine, "")
        first = [] if parsed.runpath else _expand(parsed.rpath, file)
        trusted = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64"]
        return [
            *first,
            *self._environment,
            *_expand(parsed.runpath, file),
            *self._configured,
            *trusted,
            "/lib",
            "/usr/lib",
        ]

    def _usable(self, path: str, parsed: ElfFile) -> tuple[str, ElfFile] | None:
        found = self.contents.files.get(self.contents.resolve(path) or "")
        if found is None or found.elf is None or found.elf.machine != parsed.machine:
            return None
        return found.path, found.elf


def check(context: Context) -> Iterator[Check]:
    """All needed libraries, their symbol versions, and the driver."""
    contents, rules, recipe = context.added, context.rules, context.subject.recipe
    loader = Loader(context.contents)
    missing: list[tuple[str, str]] = []
    driver: list[tuple[str, str]] = []
    too_old: list[tuple[str, str]] = []
    count = 0
    for file, parsed in contents.elves():
        for name in parsed.needed:
            count += 1
            found = loader.find(name, file, parsed)
            if DRIVER.match(name):
                driver.append((file.path, f"{file.path} needs {name}"))
            elif found is None:
                missing.append((file.path, f"{file.path} needs {name}"))
            else:
                too_old += _undefined(file, parsed, name, *found)
    subject = "every needed library is in the image"
    yield rules.check("closure", subject, "all found", missing, f"{count} of {count} found")
    subject = "every library defines the symbol versions that are needed"
    yield rules.check("closure", subject, "all versions defined", too_old, _ceilings(contents))
    if recipe is not None and not recipe.cuda.vmm:
        subject = "nothing needs the driver's library (vmm = false)"
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
    """The newest versions of the C and C++ libraries that any file needs."""
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
            place = posixpath.normpath(path)
            fault = _fault(path, place, file, context.contents)
            if fault:
                wrong.append((file.path, f"{file.path} looks in {fault}"))
    expected = "no build directory, no missing directory"
    yield context.rules.check(
        "run paths", "RUNPATH and RPATH lead into the image", expected, wrong, "all do"
    )


def _fault(path: str, place: str, file: File, contents: Contents) -> str:
    if not path.startswith("/"):
        return f"{path!r}, relative to the working directory"
    if any(place == root or place.startswith(root + "/") for root in BUILD_DIRECTORIES):
        return f"{place}, a build directory"
    if file.path.startswith(ENGINE) and contents.resolve(place) is None:
        return f"{place}, which is not in the image"
    return ""
