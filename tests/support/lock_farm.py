"""A catalog whose Debian packages are locked, and their archive; a plugin of pytest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.settings import Servers
from builder.recipes import locks
from builder.recipes.locks import DebianLock
from builder.upstream.locks import DebianSession, NewLock
from support.catalogs import load
from support.debian_archive import SUITE, DebianArchive, served
from support.environment import REPOSITORY

ROOT = f"""
name    = "root"
summary = "x"
license = "MIT"
family  = "debian-root"

[root]
suite    = "{SUITE}"
image    = "debian:x"
as_of    = "2026-01-01"
packages = ["certs"]   # https
"""
ENGINE = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "cmake"
base    = "cuda"
source  = { path = "engines/x" }
cuda    = { arch = ["120"] }

[[cmake]]

[debian]
build   = ["http-dev:target"]
runtime = ["http"]   # serves

[image]
repository = "x"
tags       = ["1"]
entrypoint = ["/x"]

[[probe]]
run = ["x"]
"""


class Farm:
    """A root, a base on it and an engine on that, and the archive of their packages."""

    def __init__(self, catalog: Path, archive: DebianArchive) -> None:
        self.catalog = catalog
        self.archive = archive
        self.bases = catalog / "recipes" / "bases"
        self.count = 0
        (self.bases / "root.toml").write_text(ROOT)
        cuda = (REPOSITORY / "recipes/bases/cuda-13.0.toml").read_text()
        cuda = cuda.replace('"cuda-13.0"', '"cuda"', 1).replace('"debian-trixie"', '"root"')
        devel, runtime = ('packages = ["gcc"]', 'packages = ["libgcc"]')
        found = re.findall(r"(?m)^packages\s*= .*$", cuda)
        cuda = cuda.replace(found[0], devel).replace(found[1], runtime)
        cuda = re.sub(r"(?m)^cross\.amd64 .*$", 'cross.amd64 = ["gcc-x86-64"]', cuda)
        cuda = re.sub(r"(?m)^cross\.arm64 .*$", 'cross.arm64 = ["gcc-aarch64"]', cuda)
        cuda = (
            re.sub(r"(?m)^lock .*$", "", cuda)
            .replace("[debian]", "")
            .replace("packages_", "packages")
        )
        (self.bases / "cuda.toml").write_text(cuda)
        (catalog / "recipes" / "x-1.toml").write_text(ENGINE)
        (catalog / "engines" / "x").mkdir(parents=True)

    def lock(self, name: str, *, write: bool = True) -> NewLock:
        found = load(self.catalog)
        self.count += 1
        work = self.catalog / f"work-{self.count}"
        work.mkdir()
        session = self.session(work)
        made = session.make(found.base(name) if name in found.bases else found.engine(name))
        if write:
            made.write()
        return made

    def session(self, work: Path) -> DebianSession:
        archive = self.archive
        return DebianSession(
            load(self.catalog),
            self.catalog / "cache",
            work,
            lambda _: None,
            Servers(snapshot=archive.snapshot),
            archive.sources,
            archive.sources_text,
        )

    def locked(self) -> dict[str, DebianLock]:
        folders = {"root": self.bases, "cuda": self.bases, "x-1": self.bases.parent}
        return {
            name: locks.read(folder / "locks" / f"{name}.debian.toml", name)
            for name, folder in folders.items()
        }


@pytest.fixture
def lock_farm(catalog: Path, tmp_path: Path) -> Iterator[Farm]:
    with served(tmp_path / "archive") as archive:
        archive.add("base", "1", Essential="yes", Depends="libc (>= 2)", Priority="required")
        archive.add("passwd", "1", "all", Priority="required")
        archive.add("apt", "1", Priority="important")
        archive.add("libc", "1:2.0-1", Multi_Arch="same")
        archive.add("certs", "1", "all")
        archive.add("gcc", "14", Depends="libgcc (= 14), libc-dev", Recommends="docs")
        archive.add("docs", "1", "all")
        archive.add("libgcc", "14", Depends="libc", Multi_Arch="same")
        archive.add("libc-dev", "1:2.0-1", Depends="libc (= 1:2.0-1)", Multi_Arch="same")
        archive.add("gcc-x86-64", "14", "arm64", Depends="libgcc")
        archive.add("gcc-aarch64", "14", "amd64", Depends="libgcc")
        archive.add("http", "1", Depends="libgcc", Multi_Arch="same")
        archive.add("http-dev", "1", Depends="http (= 1), libc-dev", Multi_Arch="same")
        archive.publish()
        yield Farm(catalog, archive)
