"""A night takes Debian's security updates into an image, and says which."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.errors import FetchError
from builder.core.platforms import Platforms
from builder.plan.inputs import RegistryRoot
from builder.plan.resolver import plan
from builder.upstream.security import is_secured, secured
from builder.upstream.update import FrozenRecipe
from support.catalogs import load
from support.lock_farm import Farm

NIGHTS = iter(range(100))


@pytest.fixture
def farm(lock_farm: Farm) -> Farm:
    for name in ("root", "cuda", "x-1"):
        lock_farm.lock(name)
    return lock_farm


def night(farm: Farm, served: dict[str, str], tmp_path: Path) -> tuple[FrozenRecipe, str]:
    """The recipe of one night, on a machine that has nothing of the nights before."""
    found = load(farm.catalog)
    (work := tmp_path / f"night-{next(NIGHTS)}").mkdir()
    frozen = FrozenRecipe(found.engine("x-1"), (), found)
    return secured(frozen, farm.session(work), work / "frozen", served)


def key(frozen: FrozenRecipe) -> str:
    """The key of its image."""
    root = RegistryRoot("debian:x", f"sha256:{'0' * 64}")
    return plan(frozen.catalog, frozen.catalog.engine("x-1"), Platforms("amd64"), root).key


def test_a_security_update_moves_the_locks_and_is_named(farm: Farm, tmp_path: Path) -> None:
    before, why = night(farm, {}, tmp_path)
    assert (before.bases, why) == ((), "")
    # Newer, but no security update; and one that only compiles.
    farm.archive.add("certs", "2", "all")
    farm.archive.secure("gcc", "14.1", Depends="libgcc, libc-dev")
    farm.archive.publish(datetime(2025, 11, 22, tzinfo=UTC))
    assert night(farm, {}, tmp_path)[1] == ""
    assert key(night(farm, {}, tmp_path)[0]) == key(before)
    # One of the root's, and one of the engine's own packages.
    fixes = ("fix CVE-2026-11111 and CVE-2026-22222", "fix CVE-2026-11111 again")
    farm.archive.secure("libc", "1:2.0-1+deb1", *fixes, Multi_Arch="same")
    farm.archive.secure("http", "1+deb1", Depends="libgcc", Multi_Arch="same")
    farm.archive.add("libc-dev", "1:2.0-1", Depends="libc (>= 1:2.0-1)", Multi_Arch="same")
    farm.archive.add("http-dev", "1", Depends="http (>= 1), libc-dev", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 23, tzinfo=UTC))
    after, why = night(farm, {}, tmp_path)
    libc = "libc 1:2.0-1 -> 1:2.0-1+deb1 (CVE-2026-11111, CVE-2026-22222)"
    assert why == f"Debian's security updates: {libc}, http 1 -> 1+deb1"
    assert key(after) != key(before)
    root, cuda = (each.name for each in after.bases)
    assert (root.rpartition("-")[0], cuda.rpartition("-")[0]) == ("root", "cuda")
    assert (after.bases[1].recipe.base, after.entry.recipe.base) == (root, cuda)
    assert {f"bases/{root}.toml", f"bases/locks/{root}.debian.toml"} <= after.files.keys()
    assert {"x-1.toml", "locks/x-1.debian.toml", f"bases/{cuda}.toml"} <= after.files.keys()
    # The files of the farm stay.
    assert {each.version for each in farm.locked()["root"].install[0].files} >= {"1:2.0-1"}
    assert load(farm.catalog).bases.keys() == before.catalog.bases.keys()


def test_a_package_that_an_update_drops_is_not_named(farm: Farm, tmp_path: Path) -> None:
    farm.archive.add("libold", "1", Depends="libgcc")
    farm.archive.add("http", "1", Depends="libgcc, libold", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 22, tzinfo=UTC))
    farm.lock("x-1")
    farm.archive.secure("libold", "1+deb1", Depends="libgcc")
    farm.archive.secure("http", "2", Depends="libgcc", Multi_Arch="same")
    farm.archive.add("http-dev", "1", Depends="http (>= 1), libc-dev", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 23, tzinfo=UTC))
    assert night(farm, {}, tmp_path)[1] == "Debian's security updates: http 1 -> 2"


def test_the_next_nights_keep_what_one_took(farm: Farm, tmp_path: Path) -> None:
    farm.archive.secure("libc", "1:2.0-1+deb1", Multi_Arch="same")
    farm.archive.add("libc-dev", "1:2.0-1", Depends="libc (>= 1:2.0-1)", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 23, tzinfo=UTC))
    first, why = night(farm, {}, tmp_path)
    assert why
    # Another date of the lists, the same packages: the same image, and nothing to say.
    farm.archive.publish(datetime(2025, 11, 24, tzinfo=UTC))
    again, why = night(farm, first.files, tmp_path)
    assert (again.files, key(again), why) == (first.files, key(first), "")
    # The update goes into Debian itself, and out of the security archive.
    stanza = {each: farm.archive.security[each].pop("libc") for each in farm.archive.security}
    for architecture, text in stanza.items():
        farm.archive.lists[architecture]["libc"] = text
    farm.archive.publish(datetime(2025, 11, 25, tzinfo=UTC))
    later, why = night(farm, first.files, tmp_path)
    versions = {each.version for each in _root_of(later)}
    assert "1:2.0-1+deb1" in versions
    assert why == ""
    # A second update: only that is named.
    farm.archive.secure("libc", "1:2.0-1+deb2", "fix CVE-2026-33333", Multi_Arch="same")
    farm.archive.publish(datetime(2025, 11, 26, tzinfo=UTC))
    third, why = night(farm, first.files, tmp_path)
    named = "libc 1:2.0-1+deb1 -> 1:2.0-1+deb2 (CVE-2026-33333)"
    assert why == f"Debian's security updates: {named}"
    assert key(third) != key(first)
    # The farm takes them into its own locks: its bases are enough again.
    for name in ("root", "cuda", "x-1"):
        farm.lock(name)
    own, why = night(farm, third.files, tmp_path)
    assert (own.bases, why) == ((), "")


def _root_of(frozen: FrozenRecipe) -> list[object]:
    from builder.recipes import locks

    base = frozen.bases[0]
    lock = locks.read(base.file.parent / "locks" / f"{base.name}.debian.toml", base.name)
    return [*lock.install[0].files]


def test_an_archive_that_does_not_answer_is_unknown(farm: Farm, tmp_path: Path) -> None:
    farm.archive.mirror = "http://127.0.0.1:9"
    with pytest.raises(FetchError, match="Debian's package lists cannot be fetched"):
        night(farm, {}, tmp_path)
    assert not is_secured({"bases/locks/root.debian.toml": "", "x-1.toml": ""})
    assert is_secured({"bases/locks/root-0123456789ab.debian.toml": ""})
