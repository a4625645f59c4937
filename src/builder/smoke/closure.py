"""Proof: every library that a file of the image needs is found, as ld.so would look for it.

The order is that of ld.so(8): DT_RPATH where there is no DT_RUNPATH, LD_LIBRARY_PATH, DT_RUNPATH,
the directories of ld.so.conf, the trusted directories.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.schema import Recipe
from builder.smoke.contents import Contents, File
from builder.smoke.verdict import Check
from builder.tools.elf import ElfFile

# What NVIDIA's container runtime mounts from the host.
DRIVER = re.compile(r"lib(?:cuda|nvidia-[a-z-]+|nvcuvid)\.so(?:\.\d+)*$")
ENGINE = "/opt/engine/"
BUILD_DIRECTORIES = ("/build", "/src", "/wheel", "/tmp", "/root", "/home")  # noqa: S108
TRIPLETS = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def _configured(contents: Contents) -> list[str]:
    directories = []
    for path, file in sorted(contents.files.items()):
        if path.startswith("/etc/ld.so.conf.d/") and path.endswith(".conf"):
            lines = [line.split("#")[0].strip() for line in file.text.splitlines()]
            directories += [line for line in lines if line.startswith("/")]
    return directories


def _environment(contents: Contents) -> list[str]:
    for entry in contents.config.get("Env") or []:
        name, _, value = entry.partition("=")
        if name == "LD_LIBRARY_PATH":
            return [part for part in value.split(":") if part]
    return []


def _expand(paths: tuple[str, ...], file: File) -> list[str]:
    origin = posixpath.dirname(file.path)
    return [re.sub(r"\$(ORIGIN|\{ORIGIN\})", origin, path) for path in paths if path]


class Loader:
    """Finds libraries in an image as its loader would."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._configured = _configured(contents)
        self._environment = _environment(contents)

    def find(self, name: str, file: File, parsed: ElfFile) -> str | None:
        """The path of the library ``name`` that ``file`` needs, or None."""
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

    def _usable(self, path: str, parsed: ElfFile) -> str | None:
        resolved = self.contents.resolve(path)
        found = self.contents.files.get(resolved or "")
        if found is None or found.elf is None or found.elf.machine != parsed.machine:
            return None
        return resolved


def prove(recipe: Recipe, contents: Contents) -> Iterator[Check]:
    """The loader closure of the image, the driver's place in it, and its run paths."""
    loader = Loader(contents)
    missing: list[str] = []
    driver: list[str] = []
    count = 0
    for file, parsed in contents.elves():
        for name in parsed.needed:
            count += 1
            if DRIVER.match(name):
                driver.append(f"{file.path} needs {name}")
            elif loader.find(name, file, parsed) is None:
                missing.append(f"{file.path} needs {name}")
    yield Check(
        "closure",
        "every needed library is in the image",
        "all found",
        "; ".join(missing[:8]) or f"{count} of {count} found",
        not missing,
    )
    if not recipe.cuda.vmm:
        yield Check(
            "closure",
            "nothing needs the driver's library (vmm = false)",
            "no libcuda.so.1 among NEEDED",
            "; ".join(driver[:8]) or "none",
            not driver,
        )
    yield from _run_paths(contents)


def _run_paths(contents: Contents) -> Iterator[Check]:
    wrong = []
    for file, parsed in contents.elves():
        for path in _expand((*parsed.runpath, *parsed.rpath), file):
            place = posixpath.normpath(path)
            if not path.startswith("/"):
                wrong.append(f"{file.path} looks in {path!r}, relative to wherever it is started")
            elif any(place == root or place.startswith(root + "/") for root in BUILD_DIRECTORIES):
                wrong.append(f"{file.path} looks in {place}, a build directory")
            elif file.path.startswith(ENGINE) and contents.resolve(place) is None:
                wrong.append(f"{file.path} looks in {place}, which is not in the image")
    yield Check(
        "run paths",
        "RUNPATH and RPATH lead into the image",
        "no build directory, none that is absent",
        "; ".join(wrong[:8]) or "all do",
        not wrong,
    )
