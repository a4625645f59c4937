"""A Debian archive on loopback, with snapshots: real .deb files, package lists, plain HTTP."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from shutil import rmtree
from urllib.parse import unquote

from builder.sources.apt import AptSource
from support.loopback import Quiet, serving_with

SUITE = "tested"
ARCHITECTURES = ("amd64", "arm64")


@dataclass
class DebianArchive:
    """An archive below ``folder``; ``mirror`` and ``snapshot`` are the two servers' addresses."""

    folder: Path
    mirror: str = ""
    snapshot: str = ""
    gone: set[str] = field(default_factory=set)
    """Names of files that the mirror no longer has."""
    lost: set[str] = field(default_factory=set)
    """Names of files that the snapshots do not have."""
    refusal: int = 404
    """The status for a file that a server does not give."""
    asked: list[str] = field(default_factory=list)
    lists: dict[str, dict[str, str]] = field(default_factory=dict)
    """The stanza of each package, by architecture and name."""
    security: dict[str, dict[str, str]] = field(default_factory=dict)
    """The stanzas of the security updates."""

    @property
    def sources(self) -> list[AptSource]:
        found = [AptSource((f"{self.mirror}/debian",), (SUITE,), ("main",))]
        security = AptSource((f"{self.mirror}/debian-security",), (f"{SUITE}-security",), ("main",))
        return [*found, security]

    @property
    def sources_text(self) -> str:
        return "\n".join(
            f"Types: deb\nURIs: {each.uris[0]}\nSuites: {each.suites[0]}\nComponents: main\n"
            "Trusted: yes\n"
            for each in self.sources
        )

    def add(self, name: str, version: str, *architectures: str, **fields: str) -> None:
        """A package of each architecture; ``fields`` are of its control file."""
        for architecture in architectures or ARCHITECTURES:
            self._add(name, version, architecture, fields, self.lists)

    def secure(self, name: str, version: str, *changes: str, **fields: str) -> None:
        """A security update of a package of each architecture; ``changes`` are of its changelog."""
        root = self.folder / "build" / "usr" / "share" / "doc" / name
        root.mkdir(parents=True)
        lines = "".join(f"  * {each}\n" for each in changes)
        signed = " -- T <t@example.invalid>  Sat, 28 Nov 2026 12:00:00 +0000\n"
        blocks = (
            f"{name} ({each}) tested; urgency=high\n\n{text}\n{signed}\n"
            for each, text in ((version, lines), ("0", "  * CVE-2000-0001 long ago\n"))
        )
        with gzip.open(root / "changelog.Debian.gz", "wt") as file:
            file.write("".join(blocks))
        for architecture in ARCHITECTURES:
            self._add(name, version, architecture, fields, self.security)
        rmtree(self.folder / "build" / "usr")

    def _add(
        self,
        name: str,
        version: str,
        architecture: str,
        fields: dict[str, str],
        lists: dict[str, dict[str, str]],
    ) -> None:
        root = self.folder / "build"
        (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
        about = {"Package": name, "Version": version, "Architecture": architecture}
        about |= {"Maintainer": "T <t@example.invalid>", "Description": "for a test"}
        about |= {key.replace("_", "-"): value for key, value in fields.items()}
        control = "".join(f"{key}: {value}\n" for key, value in about.items())
        (root / "DEBIAN" / "control").write_text(control)
        plain = version.partition(":")[2] or version
        path = f"pool/main/{name[0]}/{name}/{name}_{plain}_{architecture}.deb"
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(file)]
        subprocess.run(command, check=True, capture_output=True)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        place = f"Filename: {path}\nSize: {file.stat().st_size}\nSHA256: {digest}\n"
        for each in ARCHITECTURES if architecture == "all" else (architecture,):
            lists.setdefault(each, {})[name] = control + place

    def publish(self, date: datetime = datetime(2025, 11, 21, 2, 10, 46, tzinfo=UTC)) -> None:
        """Write the package lists of today."""
        self._publish(SUITE, self.lists, date)
        self._publish(f"{SUITE}-updates", {}, date)
        self._publish(f"{SUITE}-security", self.security, date)

    def _publish(self, suite: str, lists: dict[str, dict[str, str]], date: datetime) -> None:
        dists = self.folder / "dists" / suite
        sums = []
        for architecture in ARCHITECTURES:
            inner = f"main/binary-{architecture}/Packages"
            text = "\n".join(lists.get(architecture, {}).values()).encode()
            (dists / inner).parent.mkdir(parents=True, exist_ok=True)
            (dists / inner).write_bytes(text)
            sums.append(f" {hashlib.sha256(text).hexdigest()} {len(text)} {inner}\n")
        (dists / "Release").write_text(
            f"Suite: {suite}\nCodename: {suite}\nDate: {format_datetime(date, usegmt=True)}\n"
            f"Architectures: {' '.join(ARCHITECTURES)}\nComponents: main\nSHA256:\n{''.join(sums)}"
        )


class _Handler(Quiet):
    archive: DebianArchive
    snapshots: bool

    def do_GET(self) -> None:
        archive, name = self.archive, unquote(self.path).rpartition("/")[2]
        archive.asked.append(self.path)
        # /debian/... of the mirror, /archive/debian/TIME/... of the snapshots
        parts = unquote(self.path).split("/")[4 if self.snapshots else 2 :]
        file = archive.folder.joinpath(*parts)
        missing = archive.lost if self.snapshots else archive.gone
        found = file.is_file() and name not in missing
        body = file.read_bytes() if found else b""
        self.send_response(200 if found else archive.refusal)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(folder: Path) -> Iterator[DebianArchive]:
    """An empty archive below ``folder``."""
    archive = DebianArchive(folder)
    mirror, snapshots = (
        type("Own", (_Handler,), {"archive": archive, "snapshots": each}) for each in (False, True)
    )
    with serving_with(mirror) as address, serving_with(snapshots) as other:
        archive.mirror, archive.snapshot = f"http://{address}", f"http://{other}"
        yield archive
