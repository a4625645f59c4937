"""apt's resolver in a directory of its own: a suite's package lists, for any architecture.

Nothing is installed, and no state of this machine's apt is read or changed, except its settings for
downloads (proxies, timeouts).  The lists are verified by the keyring of the distribution.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from builder.core.errors import FetchError, RecipeError, WorldError
from builder.sources.sources import AptSource

# 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:DIGEST, of `apt-get --print-uris`.
LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")


def smallest_root(architecture: str) -> list[str]:
    """The packages of the smallest system with apt: mmdebstrap(1), variant "minbase".

    The patterns are described in apt-patterns(7).
    """
    chosen = ("?essential", "?priority(required)")
    return [*(f"?and({each},?architecture({architecture}))" for each in chosen), "apt"]


@dataclass(frozen=True, slots=True)
class Solver:
    """The package lists of a suite, in a directory."""

    folder: Path
    sources: tuple[AptSource, ...]

    def as_of(self) -> datetime:
        """The date of the newest of the package lists."""
        dates = [
            parsedate_to_datetime(line.removeprefix("Date:").strip())
            for file in sorted((self.folder / "lists").glob("*Release"))
            for line in file.read_text("utf-8").splitlines()
            if line.startswith("Date:")
        ]
        return max(dates)

    def resolve(self, packages: Sequence[str], installed: str) -> list[dict[str, Any]]:
        """The packages that installing ``packages`` brings, without recommended ones, by path.

        Each has a "path", which begins with the archive's name ("debian/pool/..."), a "version", a
        "size" in bytes and a "sha256".
        ``installed`` is a database of dpkg.  Raises ``RecipeError`` where apt cannot install them.
        """
        (self.folder / "status").write_text(installed, "utf-8")
        options = ["-qq", "--yes", "-oAcquire::ForceHash=SHA256", "--print-uris"]
        install = ["--no-install-recommends", "install", "--", *packages]
        done = _run(["apt-get", *options, *install], self.folder)
        if done.returncode != 0:
            raise RecipeError(
                "apt cannot install the packages",
                _errors(done.stderr),
                "check their names: https://packages.debian.org",
            )
        lines = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
        return sorted((self._found(line) for line in lines if line), key=itemgetter("path"))

    def _found(self, line: re.Match[str]) -> dict[str, Any]:
        uri = line["uri"]
        for source in self.sources:
            for place in source.uris:
                start = place.rstrip("/") + "/"
                if uri.startswith(start):
                    path = f"{source.archive}/{unquote(uri.removeprefix(start))}"
                    version = unquote(line["file"].split("_")[1])
                    size = int(line["size"])
                    return {
                        "path": path,
                        "version": version,
                        "size": size,
                        "sha256": line["sha256"],
                    }
        raise FetchError(f"apt names a file of no known source: {uri}")


def open_solver(
    sources: Sequence[AptSource], text: str, architectures: Sequence[str], folder: Path
) -> Solver:
    """Fetch the package lists of ``sources`` for the architectures, the native one first.

    ``text`` are the sources as sources.list(5) has them.  Raises ``WorldError`` without apt
    or sources, ``FetchError`` where a list cannot be fetched or its signature is bad.
    """
    if shutil.which("apt-get") is None:
        raise WorldError(
            "Debian's packages are resolved with apt",
            "apt-get is not installed",
            "run this on Debian",
        )
    if not sources:
        raise WorldError(
            "this machine has no package sources of Debian",
            "they are read from /etc/apt/sources.list.d and /etc/apt/sources.list",
            "run this on Debian, with sources for its own suite, or set BUILDER_DEBIAN_MIRROR",
        )
    for part in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (folder / part).mkdir(parents=True)
    (folder / "etc" / "debian.sources").write_text(text)
    (folder / "status").touch()
    (folder / "apt.conf").write_text("\n".join(_configuration(folder, architectures)))
    done = _run(["apt-get", "-qq", "update", "--error-on=any"], folder)
    if done.returncode != 0:
        raise FetchError(
            "Debian's package lists cannot be fetched",
            _errors(done.stderr),
            "check that this machine reaches a Debian mirror, and has debian-archive-keyring",
        )
    return Solver(folder, tuple(sources))


def _configuration(folder: Path, architectures: Sequence[str]) -> Iterator[str]:
    """apt.conf(5): nothing of this machine's configuration but its settings for downloads."""
    own = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    yield from (line for line in own.stdout.splitlines() if line.startswith("Acquire::http"))
    yield f'Dir "{folder}";'
    yield f'Dir::Etc "{folder}/etc";'
    yield f'Dir::Etc::SourceList "{folder}/etc/debian.sources";'
    yield f'Dir::State "{folder}";'
    yield f'Dir::State::status "{folder}/status";'
    yield f'Dir::Cache "{folder}/cache";'
    yield f'APT::Architecture "{architectures[0]}";'
    for each in architectures:
        yield f'APT::Architectures:: "{each}";'
    yield 'Acquire::Languages "none";'
    yield 'APT::Sandbox::User "root";\n'  # the directory is this user's alone


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C.UTF-8"},
    )


def _errors(text: str) -> str:
    # apt takes a name that it does not know for a pattern as well, and says so.
    lines = [line for line in text.splitlines() if line and " by regex " not in line]
    lines = [line for line in lines if " by glob " not in line]
    return "\n".join([line for line in lines if line.startswith("E:")] or lines[-5:])
