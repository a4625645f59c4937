"""`pin lock` of Debian packages: apt's choice becomes exact files, from the root up."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from builder.core.errors import FetchError, RecipeError
from builder.core.platforms import Platforms
from builder.plan.inputs import BootstrappedRoot
from builder.plan.plan import BasePlan
from builder.plan.resolver import plan_base
from builder.recipes import locks
from builder.recipes.locks import DebianFile, DebianLock
from support.catalogs import load, rendered, write_lock
from support.debian_archive import SUITE
from support.lock_farm import Farm


def names(files: list[DebianFile]) -> list[str]:
    return sorted(f"{file.name}:{file.architecture}" for file in files)


def installs(lock: DebianLock) -> dict[Any, list[str]]:
    return {install.key: names(install.files) for install in lock.install}


def test_each_stage_adds_what_the_one_below_lacks(lock_farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        made = lock_farm.lock(name)
        assert made.changes == ()  # of a first lock no package is listed
    found = lock_farm.locked()
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


def test_the_recipe_names_its_lock_and_keeps_its_comments(lock_farm: Farm) -> None:
    lock_farm.lock("root")
    text = (lock_farm.bases / "root.toml").read_text()
    assert '[debian]\nlock = "locks/root.debian.toml"\n' in text
    assert "as_of" not in text
    assert "# https" in text
    lock_farm.lock("cuda")
    lock_farm.lock("x-1")
    text = (lock_farm.catalog / "recipes" / "x-1.toml").read_text()
    assert 'runtime = ["http"]   # serves\nlock = "locks/x-1.debian.toml"\n' in text
    assert load(lock_farm.catalog).problems() == ()


def test_the_key_follows_the_files_and_not_their_place(lock_farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        lock_farm.lock(name)
    plan = rendered(lock_farm.catalog, "x-1")
    assert "--network=default" not in plan.text + plan.base.text
    lock = lock_farm.catalog / "recipes" / "locks" / "x-1.debian.toml"
    text = lock.read_text()
    write_lock(lock, text.replace("pool/main/h/http/http_1", "pool/main/x/http_1"))
    assert rendered(lock_farm.catalog, "x-1").key == plan.key
    digest = locks.read(lock, "x-1").install[0].files[0].sha256
    write_lock(lock, text.replace(digest, "0" * 64))
    assert rendered(lock_farm.catalog, "x-1").key != plan.key


def test_a_newer_version_is_a_visible_change(lock_farm: Farm) -> None:
    for name in ("root", "cuda", "x-1"):
        lock_farm.lock(name)
    before = (lock_farm.bases / "locks" / "cuda.debian.toml").read_text()
    lock_farm.archive.publish(datetime(2025, 11, 28, tzinfo=UTC))
    assert lock_farm.lock("cuda").text == before  # a new date alone changes nothing
    lock_farm.archive.add("libc", "1:2.0-2", Multi_Arch="same")
    lock_farm.archive.add("libc-dev", "1:2.0-2", Depends="libc (= 1:2.0-2)", Multi_Arch="same")
    lock_farm.archive.publish(datetime(2025, 11, 29, tzinfo=UTC))
    # The root stays: the base upgrades the library that its headers need.
    made = lock_farm.lock("cuda")
    assert list(made.changes) == ["libc added -> 1:2.0-2", "libc-dev 1:2.0-1 -> 1:2.0-2"]
    assert locks.read(made.file, "cuda").as_of == datetime(2025, 11, 29, tzinfo=UTC)
    lock_farm.lock("root")
    assert list(lock_farm.lock("cuda").changes) == ["libc 1:2.0-2 -> removed"]


def test_packages_that_cannot_be_locked(lock_farm: Farm) -> None:
    with pytest.raises(RecipeError, match="x-1 stands on cuda, which has no Debian lock") as error:
        lock_farm.lock("x-1")
    assert error.value.hint == "lock both: `builder pin lock cuda x-1`"
    file = lock_farm.bases / "root.toml"
    file.write_text(file.read_text().replace('"certs"', '"no-such"'))
    with pytest.raises(RecipeError, match="the stage root of root cannot be resolved") as error:
        lock_farm.lock("root")
    assert error.value.why == "E: Unable to locate package no-such"
    assert not (lock_farm.bases / "locks" / "root.debian.toml").exists()
    lock_farm.archive.gone.add("Packages")
    with pytest.raises(FetchError, match="Debian's package lists cannot be fetched"):
        lock_farm.lock("root")


def root_plan(lock_farm: Farm, build: Any = "amd64") -> BasePlan:
    root = BootstrappedRoot(SUITE, "", ())
    return plan_base(load(lock_farm.catalog), "cuda", Platforms(build), root)


def test_a_lock_of_other_packages_is_refused(lock_farm: Farm) -> None:
    lock_farm.lock("root")
    lock_farm.lock("cuda")
    assert root_plan(lock_farm).debian.locked
    file = lock_farm.bases / "cuda.toml"
    text = file.read_text()
    file.write_text(text.replace('["libgcc"]', '["libgcc", "http"]'))
    with pytest.raises(RecipeError, match="the Debian lock of cuda does not fit") as error:
        root_plan(lock_farm)
    assert "cuda.toml" in error.value.why
    assert "its stage runtime was made for other packages than libgcc, http" in error.value.why
    assert error.value.hint == "`builder pin lock cuda` makes it anew"
    file.write_text(text)
    lock = lock_farm.bases / "locks" / "cuda.debian.toml"
    whole = lock.read_text()
    write_lock(lock, re.sub(r"(?m)^foreign .*\n", "", whole))
    with pytest.raises(RecipeError, match="it has no stage devel on arm64 for amd64"):
        root_plan(lock_farm, "arm64")
    write_lock(lock, whole.replace(f'suite = "{SUITE}"', 'suite = "other"'))
    with pytest.raises(RecipeError, match=f"it has packages of other, and the base is {SUITE}"):
        root_plan(lock_farm)
    lock.write_text(whole.replace("_14_amd64.deb", "_14_amd64.exe"))
    with pytest.raises(RecipeError, match=r"must be the path of a \.deb file") as error:
        root_plan(lock_farm)
    assert "[A-Z" not in str(error.value)
    lock.unlink()
    with pytest.raises(RecipeError, match="cuda has no lock file") as error:
        root_plan(lock_farm)
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
def test_a_lock_that_was_edited_by_hand_is_refused(
    lock_farm: Farm, line: str, instead: str
) -> None:
    lock_farm.lock("root")
    lock_farm.lock("cuda")
    lock = lock_farm.bases / "locks" / "cuda.debian.toml"
    whole = lock.read_text()
    lock.write_text(edited := re.sub(line, instead, whole, count=1))
    assert edited != whole
    with pytest.raises(RecipeError, match=r"cuda\.debian\.toml is invalid") as error:
        root_plan(lock_farm)
    assert f"{lock}:4: sha256: " in error.value.why
    assert "a line was changed, added or removed" in error.value.why
    assert error.value.hint == "`builder pin lock cuda` makes it anew"
    lock.write_text(f"# a comment\n{whole}".replace("    {", "{"))  # the same data
    assert root_plan(lock_farm).debian.locked
    lock.write_text(edited)
    assert lock_farm.lock("cuda").text == whole
