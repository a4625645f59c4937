"""What the engine holds, what of it containers use, and how it is removed: for ``clean`` alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from builder.core.errors import WorldError
from builder.docker.engine import ask_engine, call, context, json_object

ATTEMPTS, FAILURES = 120, 5  # of ``docker system df``


class Held(NamedTuple):
    """An image of the engine, as ``usage`` finds it."""

    digest: str
    names: tuple[str, ...]  # with tags; none: it was pulled by digest, or lost its names
    labels: Mapping[str, str]
    size: int  # bytes of layers that no other image has
    used: bool  # a container is made of it, running or not


class CacheRecord(NamedTuple):
    """A record of BuildKit's cache: a layer, the files of a build, a cache mount."""

    name: str
    kind: str  # as ``docker buildx prune --filter type=`` takes it: "exec.cachemount"
    about: str
    size: int
    used: bool  # by a build, now
    shared: bool  # images have it, too: its removal frees nothing


class Usage(NamedTuple):
    """What the engine holds."""

    images: tuple[Held, ...]
    cache: tuple[CacheRecord, ...]
    served: tuple[tuple[str, str], ...]  # the source of each mount, its container's command line


def usage() -> Usage:
    """Ask the engine, which may take many seconds.  Raises ``WorldError``."""
    ask_engine()
    for attempt in range(ATTEMPTS):
        done = call("system", "df", "--verbose", "--format={{json .}}")
        found = json_object(done.stdout)
        # It answers one at a time; and it may fail where an image is removed in the meantime.
        if found or (attempt >= FAILURES and "already running" not in done.stderr):
            break
        time.sleep(1)
    if not found:
        raise WorldError("Docker does not say what it holds", done.stderr.strip())
    listed = call("container", "ls", "--all", "--quiet", "--no-trunc")
    if listed.returncode != 0:
        raise WorldError("Docker does not say which containers there are", listed.stderr.strip())
    containers = _inspected("container", listed.stdout.split())
    used = {each["Image"] for each in containers}
    sizes = {each["ID"]: _bytes(each["UniqueSize"]) for each in found.get("Images") or []}
    images = [
        Held(
            each["Id"],
            tuple(each.get("RepoTags") or []),
            dict((each.get("Config") or {}).get("Labels") or {}),
            sizes[each["Id"]],
            each["Id"] in used,
        )
        for each in _inspected("image", [*sizes])
    ]
    cache = [
        CacheRecord(
            *(each["ID"].rstrip("*"), each["CacheType"], each["Description"]),
            _bytes(each["Size"]),
            *(each[name] == "true" for name in ("InUse", "Shared")),
        )
        for each in found.get("BuildCache") or []
    ]
    served = [
        (mount.get("Source") or "", " ".join(each.get("Args") or []))
        for each in containers
        for mount in each.get("Mounts") or []
    ]
    return Usage(tuple(images), tuple(cache), tuple(served))


def _inspected(kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """All that ``docker KIND inspect`` says; without the ones that are gone in the meantime."""
    if not names:
        return []
    found = json.loads(call(kind, "inspect", *names).stdout or "[]")
    return [each for each in found if each["Id"] in names]


SIZE = re.compile(r"([\d.]+)([kMGT]?)B")


def _bytes(text: str) -> int:
    """``56.04MB``, as docker prints sizes: decimal units; 0 for another text."""
    match = SIZE.fullmatch(text)
    return int(float(match[1]) * 1000 ** " kMGT".index(match[2] or " ")) if match else 0


def prune(chosen: str) -> str:
    """Remove the records of the engine's own BuildKit cache that a filter chooses, "type=regular",
    and that no build uses; why that failed, or nothing."""
    done = call("buildx", "prune", "--force", f"--builder={context()}", f"--filter={chosen}")
    return done.stderr.strip() if done.returncode else ""
