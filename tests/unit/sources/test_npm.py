"""Packages of a package-lock.json: which are taken, how they are fetched, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import FetchError
from builder.sources import npm
from support.npm import Registry, entry, lock, package, served

ONE = package("one", "1.0.0", {"index.js": "1"})
TWO = package("@scope/two", "2.0.0", {"index.js": "2"})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with served() as found:
        found.put("one", "1.0.0", ONE)
        found.put("@scope/two", "2.0.0", TWO)
        monkeypatch.setenv("npm_config_registry", found.url)
        yield found


def both() -> bytes:
    return lock(
        {"one": entry("one", "1.0.0", ONE), "@scope/two": entry("@scope/two", "2.0.0", TWO)}
    )


def fetched(pins: bytes, cache: Path, **more: Any) -> list[npm.LockedPackage]:
    found = npm.read(pins, "amd64")
    npm.fetch(found, cache, lambda _: None, **more)
    return found


def test_packages_come_from_the_configured_registry_and_are_laid_out_by_digest(
    registry: Registry, tmp_path: Path
) -> None:
    found = fetched(both(), tmp_path / "cache")
    assert sorted(registry.asked) == ["/npm/@scope/two/-/two-2.0.0.tgz", "/npm/one/-/one-1.0.0.tgz"]
    folder = npm.lay_out(found, tmp_path / "cache", tmp_path / "npm")
    for content in (ONE, TWO):
        digest = hashlib.sha512(content).hexdigest()
        place = f"_cacache/content-v2/sha512/{digest[:2]}/{digest[2:4]}/{digest[4:]}"
        assert (folder / place).read_bytes() == content


def test_a_package_that_is_in_the_cache_is_not_fetched_again(
    registry: Registry, tmp_path: Path
) -> None:
    fetched(both(), tmp_path)
    registry.asked.clear()
    fetched(both(), tmp_path, offline=True)
    assert not registry.asked


def test_offline_names_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"2 packages .* not in the cache: @scope/two 2") as caught:
        fetched(both(), tmp_path, offline=True)
    assert "pin mirror" in caught.value.hint


def test_another_file_than_the_lock_names_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.put("one", "1.0.0", ONE + b"x")
    with pytest.raises(FetchError, match=r"one-1.0.0.tgz does not have the pinned digest"):
        fetched(both(), tmp_path)


def test_a_registry_without_the_file_is_named_as_the_cause(
    registry: Registry, tmp_path: Path
) -> None:
    del registry.files["/npm/one/-/one-1.0.0.tgz"]
    with pytest.raises(FetchError, match=r"cannot fetch one 1\.0\.0") as caught:
        fetched(both(), tmp_path)
    assert "404" in caught.value.why


def test_a_users_npmrc_names_the_registry(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("npm_config_registry")
    (tmp_path / ".npmrc").write_text(f"audit=false\nregistry = {registry.url}\n")
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / ".npmrc"))
    fetched(both(), tmp_path / "cache")
    assert len(registry.asked) == 2


def test_the_address_in_a_lock_never_leads_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("npm_config_registry", raising=False)
    pins = lock({"one": entry("one", "1.0.0", ONE, resolved="https://localhost/x.tgz")})
    with pytest.raises(FetchError) as caught:
        fetched(pins, tmp_path)
    assert "this machine" in caught.value.why


def test_without_any_registry_it_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("npm_config_registry", raising=False)
    with pytest.raises(FetchError) as caught:
        fetched(lock({"one": entry("one", "1.0.0", ONE, resolved="")}), tmp_path)
    assert "no registry" in caught.value.why
    assert "npm_config_registry" in caught.value.hint


@pytest.mark.parametrize(
    ("of", "taken"),
    [
        ({"os": ["linux"], "cpu": ["x64"]}, "amd64"),
        ({"os": ["linux"], "cpu": ["arm64"]}, "arm64"),
        ({"os": ["linux"], "cpu": ["x64"], "libc": ["musl"]}, ""),
        ({"os": ["linux"], "cpu": ["x64"], "libc": ["glibc"]}, "amd64"),
        ({"os": ["darwin"]}, ""),
        ({"os": ["!win32"]}, "amd64 arm64"),
        ({"os": ["!linux"]}, ""),
        ({"inBundle": True}, ""),
        ({}, "amd64 arm64"),
    ],
)
def test_packages_for_other_machines_are_left_out(of: dict[str, Any], taken: str) -> None:
    pins = lock({"one": entry("one", "1.0.0", ONE, optional=True, **of)})
    assert [a for a in ("amd64", "arm64") if npm.read(pins, a)] == taken.split()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"integrity": ""}, "no sha512"),
        ({"integrity": "sha1-" + "A" * 28}, "no sha512"),
        ({"integrity": "sha512-AAAA"}, "no sha512"),
        ({"integrity": "sha512-" + "é" * 88}, "no sha512"),
        ({"link": True}, "link"),
        ({"resolved": "git+ssh://git@host/x.git#0"}, "not fetched with https"),
        ({"resolved": "http://host/x.tgz"}, "not fetched with https"),
        ({"resolved": "file:../x"}, "not fetched with https"),
        ({"name": "../x"}, "no valid name"),
        ({"version": "1/../../x"}, "no valid name"),
    ],
)
def test_a_package_that_the_lock_does_not_pin_is_refused(what: dict[str, Any], why: str) -> None:
    pins = lock({"one": entry("one", "1.0.0", ONE) | what})
    with pytest.raises(FetchError) as caught:
        npm.read(pins, "amd64")
    assert why in caught.value.why
    assert "node_modules/one" in caught.value.why
    assert "ui = false" in caught.value.hint


@pytest.mark.parametrize(
    ("pins", "why"),
    [
        (None, "not there"),
        (b"", "no lock of npm 7"),
        (b"{", "no lock of npm 7"),
        (json.dumps({"lockfileVersion": 1, "dependencies": {}}).encode(), "no lock of npm 7"),
        (b'{"packages": []}', "no lock of npm 7"),
        (b'{"packages": {"node_modules/x": 1}}', "no table"),
    ],
)
def test_a_file_that_is_no_lock_is_refused(pins: bytes | None, why: str) -> None:
    with pytest.raises(FetchError) as caught:
        npm.read(pins, "amd64")
    assert why in caught.value.why
