"""Lay changed files over an installed Python package; runs in the image that is patched.

``OVERLAY/manifest.json`` names the changed files with the sha256 that each must have before and
after, and ``executable`` where that changes; ``OVERLAY/files`` holds the new ones;
``OVERLAY/starts.json`` says how the image started before.  Every file is checked before the first
one is written: a package is patched whole or not at all.  Needs only the standard library of the
image's own Python.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import py_compile
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

PLACE = Path("/opt/builder")


def fail(what: str) -> NoReturn:
    """End with a message that stands out of the log."""
    sys.exit(f"error: {what}")


def normalised(name: str) -> str:
    """The one spelling of a project's name (packaging specification, "Name normalization")."""
    return name.replace("_", "-").replace(".", "-").lower()


def site_of(package: str, version: str) -> Path:
    """The directory that holds the package, which must be there once and of that version."""
    found: set[tuple[Path, str]] = set()
    for distribution in importlib.metadata.distributions():
        if normalised(distribution.metadata["Name"] or "") == normalised(package):
            place = Path(str(distribution.locate_file(""))).resolve()
            found.add((place, distribution.version))
    python = f"Python {sys.version.split()[0]} ({sys.executable})"
    if not found:
        fail(f"{python} of the base has no {package} installed")
    if len(found) > 1:
        told = ", ".join(f"{number} in {place}" for place, number in sorted(found))
        fail(f"the base has {package} twice: {told}")
    [(site, number)] = found
    if not fnmatch.fnmatchcase(number, version):
        fail(f"the base has {package} {number}, and the recipe is for {version}")
    module = importlib.util.find_spec(package.replace("-", "_"))
    where = Path(module.origin).resolve() if module and module.origin else None
    if where is None or not where.is_relative_to(site):
        fail(f"{package} {number} is said to be in {site}, and Python imports it from {where}")
    print(f"{package} {number} in {site}", flush=True)
    return site


def digest(file: Path) -> str | None:
    """sha256 of a file, or None where there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def check(site: Path, source: Path, changes: list[dict[str, Any]]) -> None:
    """Fail unless every file is what the patches were made for, and sound when patched."""
    for change in changes:
        path, before, after = change["path"], change["before"], change["after"]
        file = site / path
        if file.is_symlink() or not file.resolve().is_relative_to(site):
            fail(f"{file} is a link, or behind one")
        if digest(file) != before:
            expected = "not to be there" if before is None else f"sha256 {before}"
            fail(
                f"{file} is not what the patches were made for: expected {expected}, "
                f"found {digest(file) or 'no such file'}; is it patched already?"
            )
        if after is None:
            continue
        text = (source / path).read_bytes()
        if before is not None and not text.strip():
            fail(f"{path} is empty when patched")
        if path.endswith(".py"):
            try:
                compile(text, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                fail(f"{path} is no Python when patched: {error}")


def forget(file: Path) -> None:
    """Take away what was compiled of a file: it is stale."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def lay(file: Path, text: bytes) -> None:
    """Write a file: an old one keeps its owner and mode, a new one gets its directory's."""
    if file.exists():
        file.write_bytes(text)
        return
    made = []
    folder = file.parent
    while not folder.exists():
        made.append(folder)
        folder = folder.parent
    like = folder.stat()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    file.chmod(0o644)
    for path in [file, *made]:
        os.chown(path, like.st_uid, like.st_gid)
        if path is not file:
            path.chmod(0o755)


def compiled(file: Path) -> None:
    """Compile a file so that what is kept holds whatever the time stamps become."""
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    folder = file.parent / "__pycache__"
    new = not folder.exists()
    target = py_compile.compile(str(file), doraise=True, invalidation_mode=mode)
    like = file.stat()
    os.chown(str(target), like.st_uid, like.st_gid)
    if new:
        os.chown(folder, like.st_uid, like.st_gid)


def apply(site: Path, source: Path, changes: list[dict[str, Any]]) -> None:
    """Write every change, and compile what is Python."""
    for change in changes:
        file = site / change["path"]
        forget(file)
        if change["after"] is None:
            file.unlink()
            continue
        lay(file, (source / change["path"]).read_bytes())
        if "executable" in change:
            mode = stat.S_IMODE(file.stat().st_mode)
            file.chmod(mode | 0o111 if change["executable"] else mode & ~0o111)
        if file.suffix == ".py":
            compiled(file)
    print(f"laid over: {len(changes)} files", flush=True)


def keep_start(starts: Path) -> None:
    """Name the base's entrypoint and command where the image's own entrypoint looks for them."""
    before = json.loads(starts.read_text("utf-8"))
    words = [(kind, word) for kind in ("entrypoint", "command") for word in before[kind]]
    if any("\n" in word for _, word in words):
        fail("the entrypoint or the command of the base has a line break: set one in [image]")
    with (PLACE / "needs").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{kind} {word}\n" for kind, word in words)


def set_up_start(steps: list[Any], starts: Path, package: Path) -> None:
    """Have what cannot be baked in run before the engine: see ``start.py``."""
    before = json.loads(starts.read_text("utf-8"))
    if not before["entrypoint"]:
        fail("the base has no entrypoint: nothing could follow the patches at start")
    PLACE.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("start.py"), PLACE / "start.py")
    plan = {"steps": steps, "package": str(package), **before}
    (PLACE / "start.json").write_text(json.dumps(plan, indent=2) + "\n", "utf-8")


def main() -> None:
    """Check everything, then write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overlay", type=Path)
    parser.add_argument("--package", required=True)
    parser.add_argument("--version", required=True, help="* stands for anything")
    parser.add_argument("--start", type=json.loads, default=[], help="steps, as JSON")
    parser.add_argument("--keep-start", action="store_true", help="start as the base does")
    options = parser.parse_args()
    manifest = json.loads((options.overlay / "manifest.json").read_text("utf-8"))
    site = site_of(options.package, options.version)
    check(site, options.overlay / "files", manifest)
    apply(site, options.overlay / "files", manifest)
    if options.keep_start:
        keep_start(options.overlay / "starts.json")
    if options.start:
        package = site / options.package.replace("-", "_")
        set_up_start(options.start, options.overlay / "starts.json", package)


if __name__ == "__main__":
    main()
