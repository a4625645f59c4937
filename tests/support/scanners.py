"""Scanners of vulnerabilities: a real trivy with a database of the test's, and stand-ins of others.

The stand-ins are programs that print answers in the published schemas.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from programs import SCANNERS
from support import trivy_db

GRYPE = {
    "matches": [
        {
            "vulnerability": {
                "id": "CVE-2026-1111",
                "severity": "Critical",
                "fix": {
                    "versions": ["2.41-12+deb13u2"],
                    "state": "fixed",
                    "available": [
                        {"version": "2.41-12+deb13u2", "date": "2025-10-01", "kind": "advisory"}
                    ],
                },
                "advisories": [],
            },
            "relatedVulnerabilities": [{"id": "GHSA-aaaa-bbbb-cccc"}],
            "matchDetails": [],
            "artifact": {"name": "libc6", "version": "2.41-12+deb13u1", "type": "deb"},
        },
        {
            "vulnerability": {
                "id": "CVE-2026-2222",
                "severity": "Negligible",
                "fix": {"versions": [], "state": "wont-fix"},
            },
            "artifact": {"name": "libgcc-s1", "version": "1:14.2.0-19+b1", "type": "deb"},
        },
    ],
    "source": {"type": "sbom-file", "target": "bom.spdx.json"},
    "distro": {"name": "debian", "version": "13", "idLike": []},
    "descriptor": {
        "name": "grype",
        "version": "0.110.0",
        "db": {"status": {"schemaVersion": "v6.1.0", "built": "2026-11-28T06:30:00Z"}},
    },
}
"""A report of grype (grype/presenter/models/document.go)."""
COMMITS = {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "0123456789abcdef"}]}
OSV = {
    "results": [
        {
            "source": {"path": "/w/bom.spdx.json", "type": "sbom"},
            "packages": [
                {
                    "package": {"name": "glibc", "version": "2.41-12", "ecosystem": "Debian:13"},
                    "vulnerabilities": [
                        {
                            "id": "DSA-9999-1",
                            "aliases": [],
                            "upstream": ["CVE-2026-1111"],
                            "published": "2026-10-01T00:00:00Z",
                            "modified": "2026-10-02T00:00:00Z",
                            "affected": [
                                {
                                    "package": {"ecosystem": f"Debian:{release}", "name": "glibc"},
                                    "ranges": [
                                        {
                                            "type": "ECOSYSTEM",
                                            "events": [{"introduced": "0"}, {"fixed": version}],
                                        },
                                        COMMITS,
                                    ],
                                }
                                for release, version in (("12", "2.36-9"), ("13", "2.41-12+u2"))
                            ]
                            + [{"ranges": [COMMITS]}],
                        }
                    ],
                    "groups": [
                        {
                            "ids": ["DSA-9999-1"],
                            "aliases": ["DSA-9999-1", "CVE-2026-1111"],
                            "max_severity": "9.8",
                        }
                    ],
                },
                {"package": {"name": "click", "version": "8.1", "ecosystem": "PyPI"}},
            ],
        }
    ]
}
"""A report of osv-scanner 2 (pkg/models/results.go), with an entry of the OSV schema."""


def stand_in(folder: Path, name: str, report: Any, state: str = "{}", code: int = 0) -> None:
    """A program that prints a report, and its state when asked for its version."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(report if isinstance(report, str) else json.dumps(report))
    (folder / f"{name}.state").write_text(state)
    text = (
        f'#!/bin/sh\ncase "$1" in *version) exec cat {folder}/{name}.state ;; esac\n'
        f'for file; do :; done\ncp "${{file#sbom:}}" {folder}/scanned.json || exit 9\n'
        f"cat {folder}/{name}.json\nexit {code}\n"
    )
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put a directory first on PATH."""
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def real_trivy(
    monkeypatch: pytest.MonkeyPatch, folder: Path, advisories: Any, details: Any
) -> None:
    """Put the real trivy on PATH, with a database of these advisories; skip where it is not
    installed."""
    if not (SCANNERS / "trivy").exists():
        pytest.skip(f"trivy is not in {SCANNERS}: tests/programs.py installs it")
    trivy_db.write(folder, advisories, details)
    for name, value in {
        "CACHE_DIR": str(folder),
        "SKIP_DB_UPDATE": "true",
        "OFFLINE_SCAN": "true",
        "SKIP_VERSION_CHECK": "true",
    }.items():
        monkeypatch.setenv(f"TRIVY_{name}", value)
    on_path(monkeypatch, SCANNERS)
