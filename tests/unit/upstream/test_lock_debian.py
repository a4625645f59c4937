"""`pin lock` of Debian packages: apt's choice becomes exact files, from the root up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import FetchError, RecipeError
from builder.core.platforms import Platforms
from builder.core.settings import Servers
from builder.plan.inputs import BootstrappedRoot
from builder.plan.plan import BasePlan
from builder.plan.resolver import plan_base
from builder.recipes import locks
from builder.recipes.locks import DebianFile, DebianLock
from builder.upstream.locks import DebianSession, NewLock
from support.catalogs import load, rendered, write_lock
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
def farm(catalog: Path, tmp_path: Path) -> Iterator[Farm]:
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


def names(files: list[DebianFile]) -> list[str]:
    return sorted(f"{file.name}:{file.architecture}" for file in files)


def installs(lock: DebianLock) -> dict[Any, list[str]]:
    return {install.key: names(install.files) for install in lock.install}


def test_each_stage_adds_what_the_one_below_lacks(farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        made = farm.lock(name)
        assert made.changes == ()  # of a first lock no package is listed
    found = farm.locked()
    assert installs(found["root"]) == {
        ("root", arch, None): sorted(
            ["apt:" + arch, "base:" + arch, "certs:all", "libc:" + arch, "passwd:all"]
        )
        for arch in ("amd64", "arm64")
    }
    arm64, amd64 = ("arm64", "amd64")
    assert installs(found["cuda"]) == {
        ("devel", amd64, None): ["gcc:amd64", "libc-dev:amd64", "libgcc:amd64"],
        ("devel", arm64, None): ["gcc:arm64", "libc-dev:arm64", "libgcc:arm64"],
        ("devel", arm64, amd64): [
            *("gcc-x86-64:arm64", "gcc:arm64", "libc-dev:arm64", "libgcc:arm64"),
        ],
        ("devel", amd64, arm64): [
            *("gcc-aarch64:amd64", "gcc:amd64", "libc-dev:amd64", "libgcc:amd64"),
        ],
        ("runtime", amd64, None): ["libgcc:amd64"],
        ("runtime", arm64, None): ["libgcc:arm64"],
    }
    # In a cross build the libraries of the target are missing, also those that the root has.
    libraries = ("http-dev", "http", "libc-dev", "libc", "libgcc")
    assert installs(found["x-1"]) == {
        ("build", amd64, None): ["http-dev:amd64", "http:amd64"],
        ("build", arm64, None): ["http-dev:arm64", "http:arm64"],
        ("build", arm64, amd64): [f"{name}:amd64" for name in libraries],
        ("build", amd64, arm64): [f"{name}:arm64" for name in libraries],
        ("runtime", amd64, None): ["http:amd64"],
        ("runtime", arm64, None): ["http:arm64"],
    }
    assert found["root"].as_of == datetime(2025, 11, 21, 2, 10, 46, tzinfo=UTC)
    (libc,) = [each for each in found["root"].install[0].files if each.name == "libc"]
    assert (libc.version, libc.path) == ("1:2.0-1", "debian/pool/main/l/libc/libc_2.0-1_amd64.deb")


def test_the_recipe_names_its_lock_and_keeps_its_comments(farm: Farm) -> None:
    farm.lock("root")
    text = (farm.bases / "root.toml").read_text()
    assert '[debian]\nlock = "locks/root.debian.toml"\n' in text
    assert "as_of" not in text
    assert "# https" in text
    farm.lock("cuda")
    farm.lock("x-1")
    text = (farm.catalog / "recipes" / "x-1.toml").read_text()
    assert 'runtime = ["http"]   # serves\nlock = "locks/x-1.debian.toml"\n' in text
    assert load(farm.catalog).problems() == ()


def test_the_key_follows_the_files_and_not_their_place(farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        farm.lock(name)
    plan = rendered(farm.catalog, "x-1")
    assert "--network=default" not in plan.text + plan.base.text
    lock = farm.catalog / "recipes" / "locks" / "x-1.debian.toml"
    text = lock.read_text()
    write_lock(lock, text.replace("pool/main/h/http/http_1", "pool/main/x/http_1"))
    assert rendered(farm.catalog, "x-1").key == plan.key
    digest = locks.read(lock, "x-1").install[0].files[0].sha256
    write_lock(lock, text.replace(digest, "0" * 64))
    assert rendered(farm.catalog, "x-1").key != plan.key


def test_a_newer_version_is_a_visible_change(farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        farm.lock(name)
    before = (farm.bases / "locks" / "cuda.debian.toml").read_text()
    farm.archive.publish(datetime(2025, 11, 28, tzinfo=UTC))
    assert farm.lock("cuda").text == before  # a new date alone changes nothing
    farm.archive.add("libc", "1:2.0-2", Multi_Arch="same")
    farm.archive.add("libc-dev", "1:2.0-2", Depends="libc (= 1:2.0-2)", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 29, tzinfo=UTC))
    # The root stays: the base upgrades the library that its headers need.
    made = farm.lock("cuda")
    assert list(made.changes) == ["libc added -> 1:2.0-2", "libc-dev 1:2.0-1 -> 1:2.0-2"]
    assert locks.read(made.file, "cuda").as_of == datetime(2025, 11, 29, tzinfo=UTC)
    farm.lock("root")
    assert list(farm.lock("cuda").changes) == ["libc 1:2.0-2 -> removed"]


def test_packages_that_cannot_be_locked(farm: Farm) -> None:
    with pytest.raises(RecipeError, match="x-1 stands on cuda, which has no Debian lock") as error:
        farm.lock("x-1")
    assert error.value.hint == "lock both: `builder pin lock cuda x-1`"
    file = farm.bases / "root.toml"
    file.write_text(file.read_text().replace('"certs"', '"no-such"'))
    with pytest.raises(RecipeError, match="the stage root of root cannot be resolved") as error:
        farm.lock("root")
    assert error.value.why == "E: Unable to locate package no-such"
    assert not (farm.bases / "locks" / "root.debian.toml").exists()
    farm.archive.gone.add("Packages")
    with pytest.raises(FetchError, match="Debian's package lists cannot be fetched"):
        farm.lock("root")


def root_plan(farm: Farm, build: Any = "amd64") -> BasePlan:
    root = BootstrappedRoot(SUITE, "", ())
    return plan_base(load(farm.catalog), "cuda", Platforms(build), root)


def test_a_lock_of_other_packages_is_refused(farm: Farm) -> None:
    farm.lock("root")
    farm.lock("cuda")
    assert root_plan(farm).debian.locked
    file = farm.bases / "cuda.toml"
    text = file.read_text()
    file.write_text(text.replace('["libgcc"]', '["libgcc", "http"]'))
    with pytest.raises(RecipeError, match="the Debian lock of cuda does not fit") as error:
        root_plan(farm)
    assert "cuda.toml" in error.value.why
    assert "its stage runtime was made for other packages than libgcc, http" in error.value.why
    assert error.value.hint == "`builder pin lock cuda` makes it anew"
    file.write_text(text)
    lock = farm.bases / "locks" / "cuda.debian.toml"
    whole = lock.read_text()
    write_lock(lock, re.sub(r"(?m)^foreign .*\n", "", whole))
    with pytest.raises(RecipeError, match="it has no stage devel on arm64 for amd64"):
        root_plan(farm, "arm64")
    write_lock(lock, whole.replace(f'suite = "{SUITE}"', 'suite = "other"'))
    with pytest.raises(RecipeError, match=f"it has packages of other, and the base is {SUITE}"):
        root_plan(farm)
    lock.write_text(whole.replace("_14_amd64.deb", "_14_amd64.exe"))
    with pytest.raises(RecipeError, match=r"must be the path of a \.deb file") as error:
        root_plan(farm)
    assert "[A-Z" not in str(error.value)
    lock.unlink()
    with pytest.raises(RecipeError, match="cuda has no lock file") as error:
        root_plan(farm)
    assert error.value.hint == "`builder pin lock cuda` makes it anew"


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (r"    \{ path = .*libgcc_14_amd64.*\n", ""),
        (r'version = "14"', 'version = "15"'),
        (r"as_of = 2025-11-21", "as_of = 2999-11-21"),
        (r"(?s)\n\[\[install\]\]\nstage        = \"runtime\".*", ""),
    ],
)
def test_a_lock_that_was_edited_by_hand_is_refused(farm: Farm, line: str, instead: str) -> None:
    farm.lock("root")
    farm.lock("cuda")
    lock = farm.bases / "locks" / "cuda.debian.toml"
    whole = lock.read_text()
    lock.write_text(edited := re.sub(line, instead, whole, count=1))
    assert edited != whole
    with pytest.raises(RecipeError, match=r"cuda\.debian\.toml is invalid") as error:
        root_plan(farm)
    assert f"{lock}:4: sha256: " in error.value.why
    assert "a line was changed, added or removed" in error.value.why
    assert error.value.hint == "`builder pin lock cuda` makes it anew"
    lock.write_text(f"# a comment\n{whole}".replace("    {", "{"))  # the same data
    assert root_plan(farm).debian.locked
    lock.write_text(edited)
    assert farm.lock("cuda").text == whole
