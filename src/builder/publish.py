"""A proved image gets its tags on a registry: all of it is there before the first one is given.

It is uploaded under its digest, then what belongs to it (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with what was proved; every other
tag is given by digest, without a second upload.  A tag that is not declared as moving stays where
it is.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import File, attach
from builder.errors import RegistryError
from builder.moves import Move, note
from builder.record import Record
from builder.tools import cosign, docker
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


def tags_of(record: Record, moving: Sequence[str]) -> Tags:
    """The tags of a proved image, by its record: the first reference is the immutable one."""
    repository, _, own = record.references[0].rpartition(":")
    named = (reference.rpartition(":")[2] for reference in record.references[1:])
    fixed = tuple(tag for tag in named if tag not in moving)
    return Tags(repository, own, fixed, tuple(moving))


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is attached to an image before it gets a tag: an artifact's type, and its files."""

    kind: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Pushing:
    """How an image is pushed."""

    work: Path
    """An empty directory for the saved image."""
    say: Say
    attachments: Sequence[Attachment] = ()
    key: str = ""
    """What it is signed with (see ``tools.cosign``); empty: it is not."""
    replace: str | None = None
    """The reason for which a tag that stays may be taken from another image."""


def push(record: Record, tags: Tags, how: Pushing) -> Published:
    """Push the image of a record, then give it its tags.

    Where the registry has an image of this key already, and no reason to replace it is given, that
    one stays and gets the tags: another machine has built and proved the same.

    Raises ``RegistryError`` where a tag that stays is taken and there is no reason to replace it,
    or the registry refuses; ``FetchError`` when it does not answer; ``WorldError`` where the image
    cannot be signed, or this machine's clock is wrong.
    """
    if how.key:
        cosign.need()
    repository = opened(tags.repository, how.say)
    there = repository.manifest(tags.own)
    repository.need_clock()
    known = there is not None and how.replace is None
    digest = there.digest if there and known else record.digest
    replaced = _taken(repository, digest, (tags.own, *tags.fixed))
    if replaced and how.replace is None:
        raise RegistryError(
            f"{record.recipe} is not pushed: its tags are taken",
            "\n".join(f"{tags.repository}:{tag} is {there}" for tag, there in replaced.items())
            + f"\nthe image that was proved is {digest}",
            "a version stays what it was: give the recipe another one, or say --replace REASON",
        )
    if there and known:
        image, uploaded = there, 0
        if digest != record.digest:
            how.say(f"the registry has {tags.own} already: {digest} gets the tags")
    else:
        image, uploaded = _upload(repository, record, how)
        _complete(repository, image, tags.own, how)
    reason = how.replace or f"push of {record.recipe} {record.key[:12]}"
    for tag in (*tags.fixed, *tags.moving):
        before = repository.leads_to(tag)
        if before != digest:
            _moved(repository, image, tag, before, reason)
    given = (tags.own, *tags.fixed, *tags.moving)
    return Published(tags.repository, digest, given, uploaded, replaced)


def _complete(repository: Repository, image: Manifest, own: str, how: Pushing) -> None:
    """Attach what belongs to an image, sign it, and give it its immutable tag."""
    for attachment in how.attachments:
        attach(repository, image, attachment.kind, {}, attachment.files)
    if how.key and cosign.sign(repository.name, image.digest, how.key, how.work / "cosign"):
        how.say(f"signed {repository.name}@{image.digest[:19]}")
    repository.put_manifest(own, image)
    _confirmed(repository, own, image.digest)


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


def _upload(repository: Repository, record: Record, how: Pushing) -> tuple[Manifest, int]:
    """Upload what the registry lacks of an image, its manifest last; how many blobs that were."""
    there = repository.manifest(record.digest)
    if there is not None:
        return there, 0
    blobs = _saved(record.references[0], how.work)
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
        how.say(f"{digest[:19]}: {blobs[digest].stat().st_size / 1e6:.1f} MB")
        count += repository.put_blob(digest, blobs[digest])
    repository.put_manifest(manifest.digest, manifest)
    return manifest, count


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
    repository.need_clock()
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
