"""A proved image gets its tags on a registry: all of it is there before the first one is given.

It is uploaded under its digest, then what belongs to it (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with what was proved; every other
tag is given by digest, without a second upload.  A tag that is not declared as moving stays where
it is.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import File, attach, referrers
from builder.errors import BuilderError, RegistryError
from builder.moves import By, Move, note
from builder.record import Record
from builder.schema import Recipe
from builder.served import served
from builder.tools import cosign, docker
from builder.tools.credentials import HUB
from builder.tools.registry import Manifest, Repository, blobs_of

Say = Callable[[str], None]
KEY = "builder.key"
NIGHTLY, TAGS = "nightly", "tags"
"""The locks on this machine of a night, and of who moves a tag by hand; who deletes holds both."""
HOLDS = re.compile(r"-[0-9a-f]{12}$|\.nights$|^sha256-")
"""Tags that are given once, or that builder and others keep what belongs to images under."""
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


def tags_of(record: Record, recipe: Recipe) -> Tags:
    """The tags that a push gives a proved image, by its record: the first reference is its own.

    A recipe's channel is none of them: the image of its written pin may be older than what a
    night has moved it to.
    """
    repository, _, own = record.references[0].rpartition(":")
    channel = recipe.track.channel if recipe.track else None
    named = (reference.rpartition(":")[2] for reference in record.references[1:])
    fixed = tuple(tag for tag in named if tag not in recipe.image.moving)
    moving = tuple(tag for tag in recipe.image.moving if tag != channel)
    return Tags(repository, own, fixed, moving)


def need_moving(recipes: Iterable[Recipe], repository: str, tag: str) -> None:
    """Raise ``RegistryError`` where a recipe of that repository says that the tag stays."""
    for recipe in recipes:
        image = recipe.image
        if image.repository == repository and tag in image.tags and tag not in image.moving:
            raise RegistryError(
                f"{tag} is the tag of {recipe.name}: it stays what it is",
                hint="a new image of that version takes `builder push --replace REASON`",
            )


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
    digest = _there(repository, record, tags.own, how) or record.digest
    repository.need_clock()
    replaced = _taken(repository, digest, (tags.own, *tags.fixed))
    _need_free(record, tags.repository, digest, replaced, how.replace)
    image, uploaded = _upload(repository, record, digest, how)
    if digest == record.digest:
        _attach(repository, image, how.attachments)
    if how.key and cosign.sign(repository.name, digest, how.key, how.work / "cosign"):
        how.say(f"signed {repository.name}@{digest[:19]}")
    reason = how.replace or f"push of {record.recipe} {record.key[:12]}"
    given: list[str] = []
    with _telling(given):
        for tag in (tags.own, *tags.fixed, *tags.moving):
            before = repository.leads_to(tag)
            if before and before != digest and tag not in tags.moving:
                # Somebody may have given it while the image was uploaded.
                _need_free(record, tags.repository, digest, {tag: before}, how.replace)
            _give(repository, image, tag, before, reason, own=tag == tags.own)
            given.append(tag)
    return Published(tags.repository, digest, tuple(given), uploaded, replaced)


def _attach(repository: Repository, image: Manifest, attachments: Sequence[Attachment]) -> None:
    """Attach what is not there yet: words of a recipe that have changed since change no image."""
    there = {each.get("artifactType") for each in referrers(repository, image.digest)}
    for attachment in attachments:
        if attachment.kind not in there:
            attach(repository, image, attachment.kind, {}, attachment.files)


@contextmanager
def _telling(given: Sequence[str]) -> Iterator[None]:
    """Have an error say which tags were given before it."""
    try:
        yield
    except BuilderError as error:
        if not given:
            raise
        told = f"given by then: {', '.join(given)}"
        raise type(error)(error.what, f"{error.why}\n{told}", error.hint) from error


def _there(repository: Repository, record: Record, own: str, how: Pushing) -> str:
    """The digest of the image of this key that the registry has, where it is to stay; or empty.

    Raises ``RegistryError`` where something else has the immutable tag.
    """
    found = served(repository, own) if how.replace is None else None
    if found is None:
        return ""
    if found.labels.get(KEY) != record.key:
        raise RegistryError(
            f"{repository.name}:{own} is not what its name says",
            f"its key is {found.labels.get(KEY, 'not told')}; the recipe's is {record.key}",
            "say --replace REASON, or delete it",
        )
    if found.digest != record.digest:
        how.say(f"the registry has {own} already: {found.digest} gets the tags")
    return found.digest


def _need_free(
    record: Record, repository: str, digest: str, taken: Mapping[str, str], replace: str | None
) -> None:
    """Raise ``RegistryError`` where tags lead elsewhere, and there is no reason to take them."""
    if taken and replace is None:
        raise RegistryError(
            f"{record.recipe} is not pushed: its tags are taken",
            "\n".join(f"{repository}:{tag} is {there}" for tag, there in taken.items())
            + f"\nthe image that was proved is {digest}",
            "a version stays what it was: give the recipe another one, or say --replace REASON",
        )


def _give(
    repository: Repository, image: Manifest, tag: str, before: str, reason: str, *, own: bool
) -> None:
    """Give an image a tag; that it is given its own for the first time needs no reason."""
    if own and not before:
        repository.put_manifest(tag, image)
    elif before != image.digest:
        note(repository, image, tag, before, reason)
        repository.put_manifest(tag, image)
    _confirmed(repository, tag, image.digest)


def opened(name: str, say: Say) -> Repository:
    """A repository of one's own; raises ``RegistryError`` where it would be Docker's."""
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


def _upload(
    repository: Repository, record: Record, digest: str, how: Pushing
) -> tuple[Manifest, int]:
    """Upload what the registry lacks of an image, its manifest last; how many blobs that were."""
    there = repository.manifest(digest)
    if there is not None:
        return there, 0
    blobs = _saved(record.references[0], how.work)
    file = blobs.get(digest)
    if file is None:
        raise RegistryError(
            f"the engine no longer has {digest}",
            f"{record.references[0]} is another image by now",
            f"build it again: `builder build {record.recipe}`",
        )
    content = file.read_bytes()
    manifest = Manifest(content, json.loads(content)["mediaType"])
    count = 0
    for blob in blobs_of(manifest):
        how.say(f"{blob[:19]}: {blobs[blob].stat().st_size / 1e6:.1f} MB")
        count += repository.put_blob(blob, blobs[blob])
    repository.put_manifest(digest, manifest)
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


def _confirmed(repository: Repository, tag: str, digest: str) -> None:
    """Raise ``RegistryError`` where the registry has something else under a tag by now."""
    found = repository.leads_to(tag)
    if found != digest:
        raise RegistryError(
            f"{repository.name}:{tag} is not what was pushed",
            f"pushed {digest}, found {found or 'nothing'}",
            "nothing that comes after it was tagged",
        )


def move(
    repository: Repository,
    tag: str,
    to: str,
    reason: str,
    by: By = "",
) -> Move:
    """Move a tag to the image that a tag or a digest leads to, and attach the reason.

    Where it is there already, nothing is done.  Raises ``RegistryError`` where there is no such
    image, or it was not built here; where the tag is one that says what it holds.
    """
    if HOLDS.search(tag):
        raise RegistryError(
            f"{tag} is no tag that moves", "it says what it holds", "name a channel: latest, ..."
        )
    wanted = repository.manifest(to)
    repository.need_clock()
    if wanted is None:
        raise RegistryError(
            f"{repository.name} has no {to}",
            "it is gone, or was never there",
            "no tag was moved: `builder history` shows what there was",
        )
    image = None if "artifactType" in wanted.parsed() else served(repository, wanted.digest)
    if image is None or KEY not in image.labels:
        raise RegistryError(
            f"{repository.name}:{to} is no image that was built and proved here",
            f"it is {wanted.digest}, without the label {KEY}",
            "no tag was moved",
        )
    before = repository.leads_to(tag)
    if before == wanted.digest:
        return Move(tag, wanted.digest, before, "", "it is there already")
    # The reason first, so that no move lacks it.
    done = note(repository, wanted, tag, before, reason, by)
    repository.put_manifest(tag, wanted)
    _confirmed(repository, tag, wanted.digest)
    return done
