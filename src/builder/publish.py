"""A proved image gets its tags on a registry: all of it is there before the first one is given.

The immutable tag (``VERSION-KEY12``) is pushed and compared with what was proved; every other tag
is given by digest, without a second upload.  A tag that is not declared as moving stays where it
is.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RegistryError
from builder.moves import Move, note
from builder.record import Record
from builder.tools import docker
from builder.tools.credentials import HUB
from builder.tools.registry import Manifest, Repository, blobs_of

Say = Callable[[str], None]
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Tags:
    """What an image is called on its registry: the immutable tag, those that stay, those that
    move."""

    repository: str
    own: str
    fixed: tuple[str, ...]
    moving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """What a push did."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    uploaded: int
    """Blobs that the registry did not have yet."""
    replaced: dict[str, str]
    """The digests of other images that tags which stay were taken from."""


def tags_of(record: Record, moving: tuple[str, ...]) -> Tags:
    """The tags of a proved image, by its record: the first reference is the immutable one."""
    repository, _, own = record.references[0].rpartition(":")
    fixed = tuple(reference.rpartition(":")[2] for reference in record.references[1:])
    return Tags(repository, own, tuple(tag for tag in fixed if tag not in moving), moving)


def push(record: Record, tags: Tags, work: Path, say: Say, *, replace: str | None) -> Published:
    """Push the image of a record, then give it its tags.

    ``work`` is a directory for the saved image.  ``replace`` is the reason for which a tag that
    stays may be taken from another image.  Raises ``RegistryError`` where one is taken and there is
    no reason, or the registry refuses; ``FetchError`` when it does not answer.
    """
    repository = opened(tags.repository, say)
    replaced = _taken(repository, record.digest, (tags.own, *tags.fixed))
    if replaced and replace is None:
        raise RegistryError(
            f"{record.recipe} is not pushed: its tags are taken",
            "\n".join(f"{tags.repository}:{tag} is {there}" for tag, there in replaced.items())
            + f"\nthe image that was proved is {record.digest}",
            "a version stays what it was: give the recipe another one, or say --replace REASON",
        )
    reason = replace or f"push of {record.recipe} {record.key[:12]}"
    uploaded = _upload(repository, record, tags.own, work, say)
    manifest = _confirmed(repository, tags.own, record.digest)
    for tag in (*tags.fixed, *tags.moving):
        before = repository.leads_to(tag)
        if before != record.digest:
            _moved(repository, manifest, tag, before, reason)
    given = (tags.own, *tags.fixed, *tags.moving)
    return Published(tags.repository, record.digest, given, uploaded, replaced)


def opened(name: str, say: Say) -> Repository:
    """A repository that one may write to; raises ``RegistryError`` where that is nobody's."""
    repository = Repository(name, say)
    if repository.registry == HUB and repository.path.startswith("library/"):
        raise RegistryError(
            f"{name} would be one of Docker Hub's official images",
            hint="say whose it is: BUILDER_NAMESPACE, or namespace in settings.toml",
        )
    return repository


def _taken(repository: Repository, digest: str, tags: tuple[str, ...]) -> dict[str, str]:
    """Those tags that lead to another image, and to which."""
    found = {tag: repository.leads_to(tag) for tag in tags}
    return {tag: there for tag, there in found.items() if there not in {"", digest}}


def _upload(repository: Repository, record: Record, tag: str, work: Path, say: Say) -> int:
    """Upload what the registry lacks of an image, its manifest under ``tag`` last."""
    there = repository.manifest(record.digest)
    if there is not None:
        repository.put_manifest(tag, there)
        return 0
    blobs = _saved(record.references[0], work)
    file = blobs.get(record.digest)
    if file is None:
        raise RegistryError(
            f"the engine no longer has {record.digest}",
            f"{record.references[0]} is another image by now",
            f"builder build {record.recipe}",
        )
    content = file.read_bytes()
    manifest = Manifest(content, json.loads(content)["mediaType"])
    count = 0
    for digest in blobs_of(manifest):
        say(f"{digest[:19]}: {blobs[digest].stat().st_size / 1e6:.1f} MB")
        count += repository.put_blob(digest, blobs[digest])
    repository.put_manifest(tag, manifest)
    return count


def _saved(reference: str, work: Path) -> dict[str, Path]:
    """The blobs of an image of the engine as files, by digest."""
    found: dict[str, Path] = {}
    folder = work / "blobs"
    folder.mkdir()
    with docker.saved(reference) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            blob = tar.extractfile(member) if member.name.startswith("blobs/sha256/") else None
            if blob is None:
                continue
            name = member.name.rpartition("/")[2]
            file = folder / name
            with file.open("wb") as sink:
                shutil.copyfileobj(blob, sink, BLOCK)
            found[f"sha256:{name}"] = file
    return found


def _confirmed(repository: Repository, tag: str, digest: str) -> Manifest:
    """What the registry has under a tag by now, which must be ``digest``."""
    found = repository.manifest(tag)
    if found is None or found.digest != digest:
        raise RegistryError(
            f"{repository.name}:{tag} is not what was pushed",
            f"pushed {digest}, found {found.digest if found else 'nothing'}",
            "no other tag was moved",
        )
    return found


def move(repository: Repository, tag: str, to: str, reason: str) -> Move:
    """Move a tag to what a tag or a digest leads to, and attach the reason.

    Raises ``RegistryError`` where there is no such image.
    """
    wanted = repository.manifest(to)
    if wanted is None:
        raise RegistryError(
            f"{repository.name} has no {to}",
            "it is gone, or was never there",
            "no tag was moved: `builder history` shows what there was",
        )
    return _moved(repository, wanted, tag, repository.leads_to(tag), reason)


def _moved(repository: Repository, image: Manifest, tag: str, before: str, reason: str) -> Move:
    """Give a tag to an image that is there whole; the reason first, so that none lacks it."""
    done = note(repository, image, tag, before, reason)
    repository.put_manifest(tag, image)
    _confirmed(repository, tag, image.digest)
    return done
