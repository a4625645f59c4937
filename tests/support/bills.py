"""Bills of materials of the catalog, for tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from builder import sbom
from builder.plan.rendered import EngineImage
from builder.platforms import Platforms
from builder.records.record import Record
from builder.sbom.debian import Dpkg, parse
from builder.smoke.verdict import Verdict
from support.catalogs import AMD64, rendered
from support.environment import REPOSITORY

ENGINES = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))


DIGEST = "sha256:" + "ab" * 32


CREATED = "2026-11-21T13:58:33+00:00"


RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nVERSION_ID="13"\nID=debian\n'


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.41-12+deb13u1
Description: GNU C Library: Shared libraries
 Contains the standard libraries.
 .
 Version: 9 is no version here.

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Source: gcc-14 (14.2.0-19)
Version: 1:14.2.0-19+b1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: ca-certificates
Status: install ok installed
Architecture: all
Version: 20250419
"""


DPKG = parse(STATUS, RELEASE)


@cache
def of_catalog(name: str, platforms: Platforms = AMD64) -> EngineImage:
    return rendered(REPOSITORY, name, platforms)


def record_of(made: EngineImage, **changed: Any) -> Record:
    name = made.plan.name
    kept = Record(
        recipe=name,
        key=made.key,
        contract="c0" * 32,
        references=(f"me/{name}:1-{made.short_key}", f"me/{name}:1"),
        digest=DIGEST,
        verdict=Verdict(DIGEST, (), 1, 1),
        created=CREATED,
        seconds={"plan": 9.0, f"fetch {name}": 1.5, f"build {name}": 60.0, "smoke": 9.0},
        log="/somewhere/private/build.log",
    )
    return kept.model_copy(update=changed)


@cache
def texts(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, str]:
    made = of_catalog(name)
    return sbom.documents(made, record_of(made), dpkg)


def cyclonedx(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name, dpkg)[sbom.CYCLONEDX])
    return found


def spdx(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name, dpkg)[sbom.SPDX])
    return found


def provenance(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name)[sbom.PROVENANCE])
    return found


def engine_of(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in document["components"] if each["type"] == "application"]
    return dict(found)


def scopes(document: dict[str, Any]) -> dict[str, str]:
    """The scope of each component by its name."""
    return {each["name"]: each["scope"] for each in document["components"]}


def properties(component: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["name"], each["value"]) for each in component.get("properties", [])}


def in_catalog(root: Path, name: str, text: str) -> EngineImage:
    """A recipe of that text, with the real bases."""
    folder = root / "recipes"
    folder.mkdir(exist_ok=True)
    for part in ("bases", "locks"):
        if not (folder / part).exists():
            (folder / part).symlink_to(REPOSITORY / "recipes" / part)
    (folder / f"{name}.toml").write_text(text)
    return rendered(root, name)
