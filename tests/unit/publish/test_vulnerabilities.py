"""What installed scanners find in our bills of materials, and what counts as too late."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.errors import UntriedError
from builder.publish.attachments import SPDX
from builder.publish.vulnerabilities import Found, late_in, scan
from support.bills import texts
from support.scanners import GRYPE, OSV, real_trivy, stand_in

NAME = "hello-sm120-0.1.0"
ADVISORIES = {
    "debian 13": {
        # By the source packages of libc6 and libgcc-s1; gcc itself only built the image.
        "glibc": {"CVE-2026-1111": {"FixedVersion": "2.41-12+deb13u2", "VendorIDs": ["DSA-9-1"]}},
        "gcc-14": {"CVE-2026-2222": {"FixedVersion": ""}},
        "make": {"CVE-2026-3333": {"FixedVersion": "99"}},
        "ca-certificates": {"CVE-2026-4444": {"FixedVersion": "20240101"}},
    }
}
DETAILS = {
    "CVE-2026-1111": {"VendorSeverity": {"debian": 4}, "PublishedDate": "2026-10-01T00:00:00Z"},
    "CVE-2026-2222": {"Severity": "LOW"},
    "CVE-2026-3333": {"Severity": "HIGH"},
}

SOME_DAY = json.loads(json.dumps(GRYPE["matches"][0]).replace("2025-10-01", "some day"))


@pytest.fixture
def bill() -> str:
    return texts(NAME)[SPDX]


def test_the_real_trivy_reads_our_bill(
    bill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_trivy(monkeypatch, tmp_path / "cache", ADVISORIES, DETAILS)
    (work := tmp_path / "work").mkdir()
    done = scan(bill, work)
    libc = ("libc6", "2.41-12+deb13u1", "2.41-12+deb13u2")
    assert done.found == (
        Found("critical", "CVE-2026-1111", *libc, "2026-10-01", ("DSA-9-1",)),
        Found("low", "CVE-2026-2222", "libgcc-s1", "1:14.2.0-19+b1", "", ""),
    )
    assert (done.scanner, done.version) == ("trivy", "0.76.0")
    assert done.database == "2026-11-28T06:00:00Z"


def test_a_bill_whose_distribution_the_scanner_does_not_know_is_unknown(
    bill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_trivy(monkeypatch, tmp_path / "cache", ADVISORIES, DETAILS)
    document = json.loads(bill)
    system = [each["SPDXID"] for each in document["packages"] if each["name"] == "debian"]
    document["packages"] = [e for e in document["packages"] if e["SPDXID"] not in system]
    (work := tmp_path / "work").mkdir()
    with pytest.raises(UntriedError, match="report of trivy, cannot be used") as error:
        scan(json.dumps(document), work)
    assert "did not recognize the Debian packages" in error.value.why


def test_reports_of_the_others(bill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    stand_in(tmp_path / "bin", "osv-scanner", OSV, "osv-scanner version: 2.3.3\ncommit: x\n", 1)
    done = scan(bill, tmp_path)
    assert done.found == (
        Found(
            *("critical", "DSA-9999-1", "glibc", "2.41-12", "2.41-12+u2", "2026-10-01"),
            ("CVE-2026-1111",),
        ),
    )
    assert (done.scanner, done.version, done.database) == ("osv-scanner", "2.3.3", "")
    scanned = json.loads((tmp_path / "bin" / "scanned.json").read_text())
    names = {each["name"] for each in scanned["packages"]}
    assert {"libc6", "debian"} < names  # not what only built it
    assert not names & {"make", "cmake"}
    stand_in(tmp_path / "bin", "grype", GRYPE)  # it comes before osv-scanner
    done = scan(bill, tmp_path)
    libc = ("libc6", "2.41-12+deb13u1", "2.41-12+deb13u2")
    assert done.found == (
        Found("critical", "CVE-2026-1111", *libc, "2025-10-01", ("GHSA-aaaa-bbbb-cccc",)),
        Found("low", "CVE-2026-2222", "libgcc-s1", "1:14.2.0-19+b1", "", ""),
    )
    assert (done.version, done.database) == ("0.110.0", "2026-11-28T06:30:00Z")


@pytest.mark.parametrize(
    ("name", "report", "code", "why"),
    [
        ("trivy", "{}", 1, "trivy ended with 1"),
        ("trivy", "not JSON", 0, "Expecting value"),
        ("trivy", {"Metadata": {"OS": {"Family": "debian"}}}, 0, "KeyError: 'Results'"),
        ("grype", GRYPE | {"distro": {"name": ""}}, 0, "did not recognize the Debian packages"),
        ("grype", GRYPE | {"matches": None}, 0, "TypeError"),
        ("osv-scanner", {"results": []}, 1, "did not recognize the Debian packages"),
        ("grype", {**GRYPE, "matches": [SOME_DAY]}, 0, "Invalid isoformat string: 'some day'"),
        ("osv-scanner", OSV, 127, "osv-scanner ended with 127"),
    ],
)
def test_what_is_no_report_is_unknown(
    bill: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    report: object,
    code: int,
    why: str,
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    stand_in(tmp_path / "bin", name, report, code=code)
    with pytest.raises(UntriedError) as error:
        scan(bill, tmp_path)
    assert why in f"{error.value.what}: {error.value.why}"


def test_what_is_no_bill_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    stand_in(tmp_path / "bin", "grype", GRYPE)
    for bill in ("", "{}", '{"relationships": 1, "packages": []}'):
        with pytest.raises(UntriedError, match="cannot be used"):
            scan(bill, tmp_path)


def test_without_a_scanner_nothing_is_known(
    bill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UntriedError, match="no scanner of vulnerabilities is installed") as error:
        scan(bill, tmp_path)
    assert error.value.why == "looked for trivy, grype, osv-scanner"


def test_what_has_had_a_fix_for_too_long_is_late() -> None:
    def found(severity: str, fixed: str, since: str) -> Found:
        return Found(severity, f"{severity} {fixed} {since}", "x", "1", fixed, since)  # type: ignore[arg-type]

    today = datetime(2026, 11, 29, 12, tzinfo=UTC)
    late = [
        found("critical", "2", "2026-11-21"),
        found("high", "2", ""),  # since when is not known
        found("unknown", "2", "2026-11-21"),  # the lowest limit
    ]
    fine = [
        found("critical", "2", "2026-11-22"),
        found("critical", "", "2026-01-01"),  # nothing mends it
        found("high", "2", "2026-11-01"),
        found("medium", "2", "2026-01-01"),  # no limit
    ]
    limits = {"critical": 7, "high": 30}
    assert [*late_in([*fine, *late], limits, today)] == late  # type: ignore[arg-type]
    assert [*late_in([*fine, *late], {}, today)] == []
