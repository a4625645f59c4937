"""The packages of a tree's ``package-lock.json``: fetched, verified, laid out as npm's cache.

``npm ci --offline`` then finds each by its digest and asks nobody.  Nothing of a package is
executed here.  Format: docs.npmjs.com, "package-lock.json", lockfileVersion 2 and 3.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from builder.core.errors import MIRROR_FIRST, FetchError
from builder.core.files import link
from builder.core.log import Log
from builder.core.platforms import Architecture
from builder.core.web import Client, WebError, cause, store, stored

LOCK = "package-lock.json"
MOST = 20_000  # packages
AT_ONCE = 8  # downloads
CPUS: Mapping[Architecture, str] = {"amd64": "x64", "arm64": "arm64"}
"""Node's names (``process.arch``)."""
NAME = re.compile(r"(?:@[a-z0-9~][\w.~-]*/)?[A-Za-z0-9~][\w.~-]*")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
SHA512 = re.compile(r"(?:^|\s)sha512-([A-Za-z0-9+/]{86}==)")


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One file of a registry; ``sha512`` (hex) identifies it, ``url`` is what the lock says."""

    name: str
    version: str
    sha512: str
    url: str

    def place(self, cache: Path) -> Path:
        """Its directory in the cache."""
        return cache / "npm" / self.sha512


def read(lock: bytes | None, architecture: Architecture) -> list[LockedPackage]:
    """The packages that ``npm ci`` installs on Linux with glibc, each once.

    Raises ``FetchError`` for a lock that does not pin each of them by a sha512, and for None.
    """
    faults, found = [] if lock is not None else ["it is not there"], set()
    try:
        entries = from_json(b'{"packages": {}}' if lock is None else lock)["packages"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        faults, entries = [f"it is no lock of npm 7 or newer: {error}"], ()
    for path, entry in entries:
        if path and _wanted(entry, CPUS[architecture]):  # "" is the tree itself
            try:
                found.add(_package(path, entry))
            except ValueError as error:
                faults.append(f"{path[:200]!r}: {error}")
    if len(found) > MOST:
        faults.append(f"it has more than {MOST:,} packages")
    if faults:
        raise FetchError(
            f"the {LOCK} of the web page does not pin its packages",
            "\n".join(faults[:5]),
            "build the recipe without the page (ui = false), or take another commit",
        )
    return sorted(found)


def _wanted(entry: Any, cpu: str) -> bool:
    """Whether npm installs it here (npm-install-checks), as a file of its own."""
    here = {"os": "linux", "cpu": cpu, "libc": "glibc"}.items()
    return not isinstance(entry, dict) or (
        not entry.get("inBundle") and all(_fits(entry.get(key), own) for key, own in here)
    )


def _fits(names: Any, own: str) -> bool:
    listed = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    taken = [name for name in listed if not str(name).startswith("!")]
    return f"!{own}" not in listed and (not taken or own in taken or "any" in taken)


def _package(path: str, entry: Any) -> LockedPackage:
    """A package of the lock.  Raises ``ValueError`` where no sha512 of a file pins it."""
    if not isinstance(entry, dict) or entry.get("link"):
        raise ValueError("it is a link to another directory of the tree, or no table")
    url, version = str(entry.get("resolved", "")), str(entry.get("version", ""))
    if url and not url.startswith("https://"):
        raise ValueError(f"it is not fetched with https: {url[:200]}")
    name = str(entry.get("name") or path.rpartition("node_modules/")[2])
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        raise ValueError("it has no valid name and version")
    digest = SHA512.search(str(entry.get("integrity", "")))
    if digest is None:
        raise ValueError("it has no sha512 in `integrity`")
    return LockedPackage(name, version, base64.b64decode(digest[1]).hex(), url)


def fetch(
    packages: Sequence[LockedPackage], cache: Path, log: Log, *, offline: bool = False
) -> None:
    """Fetch the packages that are not in the cache.

    Raises ``FetchError`` where a registry does not give a file, or gives other bytes than the
    lock names, and where one is not in the cache and ``offline``.
    """
    missing = [each for each in packages if stored(each.place(cache)) is None]
    if missing and offline:
        some = ", ".join(f"{each.name} {each.version}" for each in missing[:3])
        what = f"{len(missing)} packages of the web page are not in the cache: {some}"
        raise FetchError(what, "--offline fetches nothing", MIRROR_FIRST)
    if missing:
        log(f"fetching {len(missing)} of {len(packages)} packages of the web page")
    registry, client = configured_registry(), Client()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [
            pool.submit(copy_context().run, _fetch, client, registry, each, each.place(cache))
            for each in missing
        ]
        try:
            for each in waiting:
                each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _fetch(client: Client, registry: str, package: LockedPackage, folder: Path) -> None:
    file = f"{package.name.rpartition('/')[2]}-{package.version}.tgz"
    usual = f"/{package.name}/-/{file}"  # so registries name the file of a version
    own = registry and (not package.url or package.url.endswith(usual))
    url = f"{registry}{usual}" if own else package.url
    try:
        store(client, url, file, package.sha512, folder, outward=not own)
    except WebError as error:
        raise FetchError(
            f"cannot fetch {package.name} {package.version}, a package of the web page",
            cause(error) if url else "its lock names no registry, and npm has none configured",
            "try again; npm_config_registry names another registry",
        ) from error


def configured_registry() -> str:
    """The registry that npm is configured to use, without a slash at the end; empty: none."""
    variables = {name.lower(): value for name, value in os.environ.items()}  # as npm reads them
    named = variables.get("npm_config_registry")
    if not named:
        file = Path(variables.get("npm_config_userconfig") or Path.home() / ".npmrc")
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        found = re.findall(r'^\s*registry\s*=\s*"?([^\s"]+)', text, re.MULTILINE)
        named = found[-1] if found else ""
    return named.rstrip("/")


def lay_out(packages: Sequence[LockedPackage], cache: Path, folder: Path) -> Path:
    """Write the packages, which are in the cache, to the new directory ``folder`` as npm keeps
    them: cacache, ``content-v2``."""
    for digest, package in {each.sha512: each for each in packages}.items():
        place = folder / "_cacache/content-v2/sha512" / digest[:2] / digest[2:4] / digest[4:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if (file := stored(package.place(cache))) is not None:
            link(file, place)
    return folder
