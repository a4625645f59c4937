"""Control data of .deb files, as package indexes and dpkg's database have them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from builder.core.errors import FetchError


def control(deb: Path) -> str:
    """The control fields of a .deb file, deb-control(5).  Raises ``FetchError`` if it is none."""
    from debian.arfile import ArError
    from debian.debfile import DebError, DebFile

    try:
        with DebFile(str(deb)) as opened:
            return str(opened.debcontrol().dump()).strip()
    except (ArError, DebError, OSError) as error:
        raise FetchError(f"{deb.name} is not a Debian package", str(error)) from error


def installed(debs: Iterable[Path]) -> str:
    """A database of dpkg (/var/lib/dpkg/status) in which these packages are installed."""
    return "".join(f"{control(deb)}\nStatus: install ok installed\n\n" for deb in debs)


def repository(folder: Path) -> str:
    """Make a directory of .deb files a repository; the line for sources.list(5).

    https://wiki.debian.org/DebianRepository/Format, "Flat Repository Format".
    """
    stanzas = []
    for deb in sorted(folder.glob("*.deb")):
        with deb.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        place = f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}"
        stanzas.append(f"{control(deb)}\n{place}\n")
    (folder / "Packages").write_text("\n".join(stanzas), "utf-8")
    return f"deb [trusted=yes] copy:{folder} ./"
