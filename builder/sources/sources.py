"""The Debian package sources: of this machine, or at a mirror that the user names.

builder has no mirror of its own: the machine's sources (a mirror, a proxy, a local archive) also
serve another suite, with the suite's name replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Debian's suffixes of a suite's name; other archives' ("bookworm-pgdg") have other signing keys.
DEBIAN_SUFFIXES = ("", "-updates", "-security", "-proposed-updates")
MAIN, SECURITY = "debian", "debian-security"


@dataclass(frozen=True, slots=True)
class AptSource:
    """One archive: its addresses, and the suites and components in use."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The archive's name, as on snapshot.debian.org: security updates have one of their own."""
        security = any(suite.endswith("-security") for suite in self.suites)
        return SECURITY if security else MAIN


def os_release(etc: Path = Path("/etc")) -> dict[str, str]:
    """The fields of os-release(5); empty where there is none."""
    try:
        text = (etc / "os-release").read_text("utf-8")
    except OSError:
        return {}
    return dict(assignments(text))


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a text like os-release(5)."""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            yield name.strip(), value.strip().strip("\"'")


def machine_sources(etc: Path = Path("/etc")) -> Iterator[AptSource]:
    """The binary package sources of this machine, of both formats of sources.list(5)."""
    folder = etc / "apt"
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for file in lists:
        if file.is_file():
            for line in file.read_text("utf-8").splitlines():
                yield from _one_line(line)
    for file in sorted((folder / "sources.list.d").glob("*.sources")):
        yield from _deb822(file)


def _one_line(line: str) -> Iterator[AptSource]:
    words = line.split("#")[0].split()
    if not words or words[0] != "deb":
        return
    words = words[1:]
    if words and words[0].startswith("["):
        while words and not words.pop(0).endswith("]"):
            pass
    if len(words) >= 3:
        yield AptSource((words[0],), (words[1],), tuple(words[2:]))


def _deb822(file: Path) -> Iterator[AptSource]:
    from debian.deb822 import Deb822

    with file.open("rb") as stream:
        for paragraph in Deb822.iter_paragraphs(stream, use_apt_pkg=False):
            if paragraph.get("Enabled", "yes").strip().lower() in {"no", "false", "0"}:
                continue
            if "deb" not in paragraph.get("Types", "").split():
                continue
            yield AptSource(
                tuple(paragraph.get("URIs", "").split()),
                tuple(paragraph.get("Suites", "").split()),
                tuple(paragraph.get("Components", "").split()),
            )


def debian_sources(suite: str, etc: Path = Path("/etc")) -> list[AptSource]:
    """This machine's Debian sources with ``suite`` instead of the machine's own.

    None where the machine is not Debian, or no source is for the machine's own suite.
    """
    release = os_release(etc)
    own = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not own:
        return []
    found = []
    for source in machine_sources(etc):
        kept = [name for name in source.suites if name.removeprefix(own) in DEBIAN_SUFFIXES]
        if kept and "main" in source.components:
            suites = tuple(suite + name.removeprefix(own) for name in kept)
            found.append(AptSource(source.uris, suites, ("main",)))
    return found


def deb822(sources: Iterable[AptSource]) -> str:
    """Sources in the deb822 format of sources.list(5), signed by Debian."""
    return "\n".join(
        f"Types: deb\nURIs: {' '.join(source.uris)}\nSuites: {' '.join(source.suites)}\n"
        f"Components: {' '.join(source.components)}\nSigned-By: {KEYRING}\n"
        for source in sources
    )


def sources_at(suite: str, mirror: str) -> list[AptSource]:
    """The sources of a suite, its updates and its security updates at a mirror: the server that has
    ``debian`` and ``debian-security``; without one ``debian_sources``."""
    if not mirror:
        return debian_sources(suite)
    server, components = mirror.rstrip("/"), ("main",)
    return [
        AptSource((f"{server}/{MAIN}",), (suite, f"{suite}-updates"), components),
        AptSource((f"{server}/{SECURITY}",), (f"{suite}-security",), components),
    ]


def sources_for(suite: str, etc: Path = Path("/etc")) -> str | None:
    """``debian_sources`` as text; None where there are none."""
    return deb822(debian_sources(suite, etc)) or None
