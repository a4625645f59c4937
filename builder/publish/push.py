"""Pushes verified images: everything is uploaded before the first tag is given.

An image is uploaded under its digest, then its attachments (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with the image that was checked.
Every other tag is given by digest, without a second upload.  Only tags that are declared as moving
are taken from another image.

For several platforms, nothing is uploaded before each has a verified image, here or in the
registry, and before the updates of all are within their budget.  The images come first, each with
its attachments and its immutable tag; then their index, signed, and its tags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from builder import __version__
from builder.build import record as records
from builder.build.build import BuildSession
from builder.build.lookup import Images, contract_of
from builder.build.record import Record
from builder.core.errors import BuilderError, RegistryError, UnvouchedError, WorldError
from builder.docker import containers as engine
from builder.docker.containers import Blobs
from builder.engines.layout import LABEL_KEY, VERSION
from builder.plan.plan import Plan
from builder.publish.attachments import missing_attachments
from builder.publish.registry import (
    Manifest,
    PlatformImage,
    Repository,
    Update,
    blobs_of,
    configuration,
    require_within,
    updates_of,
)
from builder.publish.signing import IN_TOTO, Trust, trust_of
from builder.publish.tags import (
    By,
    Move,
    Tags,
    new_note,
    notes_in,
    open_repository,
    require_points_to,
)
from builder.publish.transport import INDEX, Configuration, checked
from builder.publish.verdicts import (
    Attachment,
    attach_all,
    kind_of,
    referrers,
    require_attachments,
    require_signing,
    sign_image,
    verdict_on,
    verdict_signers,
)
from builder.publish.vulnerabilities import examine
from builder.sources.git import head_of

# Which image of a registry counts: the one rule for tags, attachments and signatures.
#
# Any user with push access can write the label ``builder.key``, and no check shows that a backdoor
# is absent.  So an image that is found by its key counts only where this machine built exactly that
# digest, or where a trusted key signed a verdict on it.  Both count for the present contract only.
# An image for which nothing vouches counts once this machine has built the same: builds are
# reproducible.


@dataclass(frozen=True, slots=True)
class Verified:
    """An image of a registry that counts.

    ``record`` is this machine's record of the build; None: a trusted key signed the verdict."""

    digest: str
    record: Record | None


def find_published(
    session: BuildSession, plan: Plan, repository: Repository, work: Path
) -> Verified | None:
    """The image of this key that a registry has under its immutable tag, or None.

    Raises ``UnvouchedError`` where nothing vouches for it and this machine has not built the image,
    ``RegistryError`` where this machine built another one of that key, or an index or an image of
    another key stands under the tag; ``FetchError``.
    """
    digest = repository.head_digest(plan.immutable_tag)
    if not digest:
        return None
    own = built_here(session, plan)
    if own is not None and own.digest == digest:
        return Verified(digest, own)
    trust = trust_of(session.settings, work)
    if trust.signing or trust.trusted:
        entries = referrers(repository, digest)
        wanted = digest, plan.key, contract_of(plan)
        if any(verdict_signers(repository, entries, wanted, trust)):
            return Verified(digest, None)
    _require_image_of_key(repository, plan, digest)
    raise _refused(plan, repository, digest, own)


def built_here(session: BuildSession, plan: Plan) -> Record | None:
    """The record of an image that this machine built, with a good verdict on today's contract."""
    kept = records.read(session.settings.state_dir, plan.name, plan.key)
    if kept is None or not (kept.built_here and kept.verdict.good):
        return None
    return kept if kept.contract == contract_of(plan) else None


def require_built_here(kept: Record) -> None:
    """Raise ``UnvouchedError`` where a record does not say that this machine built the image."""
    if not kept.built_here:
        raise UnvouchedError(
            f"this machine has no record that it built the image of {kept.recipe}",
            f"{kept.references[0]} is {kept.digest}: it was pulled, or its record is from an "
            "earlier version of builder",
            f"nothing was uploaded, tagged or signed. Build it here: "
            f"`builder build {kept.recipe} --rebuild`",
        )


def _require_image_of_key(repository: Repository, plan: Plan, digest: str) -> None:
    """Raise ``RegistryError`` for an index, or an image of another key, under an immutable tag.

    Which image of an index is run depends on the machine.
    """
    there = repository.manifest(digest)
    if there is None:
        return
    name = f"{repository.name}:{plan.immutable_tag}"
    hint = "delete that tag in the registry, or replace it: `builder push --replace --reason TEXT`"
    if there.body.manifests is not None:
        raise RegistryError(
            f"{name} is an index of images",
            f"it is {digest}; builder gives that tag to the image of one platform",
            f"nothing was tagged or signed; {hint}",
        )
    found = configuration(repository, there).labels.get(LABEL_KEY, "")
    if found != plan.key:
        raise RegistryError(
            f"{name} has a different build key",
            f"its label {LABEL_KEY} is {found or 'absent'}; the recipe's key is {plan.key}",
            hint,
        )


def _refused(plan: Plan, repository: Repository, digest: str, own: Record | None) -> RegistryError:
    there, name = f"{repository.name}:{plan.immutable_tag}", plan.name
    unsigned = "no trusted key signed a verdict on it"
    if own is not None:
        return RegistryError(
            f"{there} is not the image that this machine built",
            f"it is {digest}, and {unsigned}; this machine built {own.digest} from the same inputs",
            "nothing was tagged or signed. To see how they differ: `builder compare "
            f"{own.references[0]} {repository.name}@{digest}`, and `builder reproduce {name}`; to "
            "replace it with your own: `builder push --replace --reason TEXT`",
        )
    return UnvouchedError(
        f"nothing vouches for {there}",
        f"it is {digest}; this machine did not build it, and {unsigned}",
        "nothing was tagged or signed. Build it here, and the same digest is the proof: "
        f"`builder build {name} --rebuild --platform {plan.platform}`; or trust the key of the "
        "machine that built it (BUILDER_TRUSTED_KEYS)",
    )


# The tags of a push: their present images, the updates that follow, and giving the tags.

OVER_BUDGET = (
    "`builder compare` shows the layers of two images; to push it all the same: "
    "--over-budget --reason TEXT"
)


class PushTags:
    """The tags that an image, or an index, is about to get, and what they point to now.

    ``known`` are the tags of the repository; others are not asked for.  ``there`` is the known
    digest of the immutable tag.  Immutable and version tags are taken from another image only to
    ``replace`` it.
    """

    def __init__(
        self,
        repository: Repository,
        name: str,
        tags: Tags,
        digest: str,
        known: Collection[str],
        *,
        replace: bool = False,
        there: str = "",
    ) -> None:
        self.repository, self.name, self.tags, self.digest = repository, name, tags, digest
        self.before = {
            tag: repository.head_digest(tag) if tag in known else ""
            for tag in (tags.immutable, *tags.versions, *tags.moving)
            if tag != tags.immutable or not there
        }
        if there:
            self.before = {tags.immutable: there, **self.before}
        repository.require_clock()
        self.others = {tag: was for tag, was in self.before.items() if was not in {"", digest}}
        self.replaced = {tag: was for tag, was in self.others.items() if tag not in tags.moving}
        if self.replaced and not replace:
            taken = (f"{repository.name}:{tag} is {was}" for tag, was in self.replaced.items())
            raise RegistryError(
                f"{name} is not pushed: its tags are taken",
                "\n".join([*taken, f"the image to push is {digest}"]),
                "give the recipe another version, or replace the image: --replace --reason TEXT",
            )

    @property
    def followed(self) -> dict[str, list[str]]:
        """The digests that tags point to now, each with its tags, but the immutable one."""
        found: dict[str, list[str]] = {}
        for tag, there in self.others.items():
            if tag != self.tags.immutable:
                found.setdefault(there, []).append(tag)
        return found

    def updates(
        self, new: Sequence[PlatformImage], budget: int | None, dropped: Collection[str] = ()
    ) -> dict[str, tuple[Update, ...]]:
        """The updates to the new images, by the digest that tags point to now."""
        found = {}
        log = self.repository.log
        for was, tags in self.followed.items():
            found[was] = updates_of(self.repository, tags, was, new, log, dropped)
            what = f"{self.name} is not pushed"
            require_within(found[was], budget, log, what, OVER_BUDGET)
        return found

    def notes(
        self,
        entries: Iterable[Mapping[str, Any]],
        reason: str,
        updates: Mapping[str, Sequence[Update]],
        trust: Trust,
    ) -> list[Attachment]:
        """The notes of the moves, to be attached before the tags are given.

        A new immutable or version tag needs none.  ``entries`` are the referrers of the image.
        """
        noted = [*notes_in(entries, self.digest, self.repository.path, trust)]
        version = self.tags.immutable.rpartition("-")[0]
        found = []
        for tag, was in self.before.items():
            if was != self.digest and (was or tag in self.tags.moving):
                by: By = "replacement" if tag in self.replaced else ""
                wanted = Move(tag, self.digest, was, "", reason, by, version=version)
                taken = [note for note in noted if note.move.tag == tag]
                update = updates.get(was, ())
                found.append(new_note(self.repository, wanted, update, trust, taken)[1])
        return found

    def give(self, read: Callable[[], Manifest]) -> tuple[str, ...]:
        """Give the tags, the immutable one first; they are returned.

        ``read`` gives the manifest; it is not called where all tags point to it.
        """
        given: list[str] = []
        try:
            for tag, was in self.before.items():
                if was != self.digest:
                    self.repository.put_tag(tag, read(), was)
                    immutable = tag == self.tags.immutable
                    require_points_to(self.repository, tag, self.digest, by_content=immutable)
                given.append(tag)
        except BuilderError as error:
            if given:
                error.why += f"\nthese tags were already pushed: {', '.join(given)}"
            raise
        return tuple(given)


# Images and their index: uploaded, attached to and signed.

ZSTD = "+zstd"  # of a layer's media type ("Image Layer Filesystem Changeset")
REFUSED = ("MANIFEST_INVALID", "UNSUPPORTED", "415 ")
"""Codes ("Error Codes") and a status for a manifest that a registry does not take."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The outcome of a push."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    uploaded: int
    """The number of blobs that the registry lacked."""
    replaced: dict[str, str]
    """The digests that immutable and version tags pointed to before, by tag."""
    updates: tuple[Update, ...] = ()
    """One for each image that other tags pointed to before, and each platform of an index."""
    platforms: dict[str, str] = field(default_factory=dict)
    """The digests of an index's images by platform."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a push may do for a reason."""

    replace: str | None = None
    """The reason to take an immutable or a version tag from another image."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""
    dropped: tuple[str, ...] = ()
    """Platforms that tags may lose."""


def push_image(
    session: BuildSession,
    plan: Plan,
    record: Record,
    tags: Tags,
    work: Path,
    allowed: Allowed = Allowed(),
) -> Pushed:
    """Push the image of a record with its attachments, then give it its tags.

    Where the registry has a verified image of this key, that image gets the tags instead.
    ``work`` is an empty directory.

    Raises ``RegistryError`` where an immutable or a version tag is taken and there is no reason to
    replace it, an update exceeds its budget without a reason, a tag would lose a platform, somebody
    else moved a tag meanwhile, or the registry refuses; ``FetchError`` when the registry does not
    answer; ``WorldError`` where the image cannot be signed, or this machine's clock is wrong; and
    like ``find_published`` and ``require_built_here``.
    """
    run = _Run(session, plan, work, allowed)
    found = run.published(plan)
    if found is None:
        require_built_here(record)
    return run.push(plan, record, tags, found)


def push_index(
    session: BuildSession,
    plans: Sequence[Plan],
    tags: Tags,
    work: Path,
    allowed: Allowed = Allowed(),
) -> Pushed:
    """Push the image of each platform, then their index, which gets the tags.

    Raises like ``push_image``; ``WorldError`` also where a platform has no verified image, here or
    in the registry.
    """
    run = _Run(session, plans[0], work, allowed)
    repository, name, key = run.repository, plans[0].name, key_of_index(plans)
    sources = run.sources(plans)
    manifests: dict[str, Manifest] = {each.plan.platform: each.image.manifest for each in sources}
    index = image_index(manifests, plans[0].recipe.version, key)
    replace = allowed.replace is not None
    order = PushTags(repository, name, tags, index.digest, run.known, replace=replace)
    updates = order.updates([each.image for each in sources], run.budget(plans[0]), allowed.dropped)
    uploaded = 0
    for each in sources:
        if each.record is not None:  # an image whose verdict a trusted key signed stays as it is
            only = Tags(each.plan.immutable_tag, (), ())
            uploaded += run.push(each.plan, each.record, only, each.there, each.local).uploaded
    if index.digest not in order.before.values():
        repository.put_manifest(index.digest, index)
    run.sign(index.digest)
    entries = referrers(repository, index.digest)
    notes = order.notes(entries, run.reason(name, key), updates, run.trust)
    attach_all(repository, index, notes)
    return Pushed(
        repository.name,
        index.digest,
        order.give(lambda: index),
        uploaded,
        order.replaced,
        tuple(each for found in updates.values() for each in found),
        {platform: manifest.digest for platform, manifest in manifests.items()},
    )


def published_index(
    session: BuildSession, plans: Sequence[Plan], repository: Repository, work: Path
) -> str:
    """The digest of the index of a recipe's images that the registry has.

    Each image has to be verified, as for a push.  Raises ``RegistryError`` where the registry lacks
    one of them, or the index.
    """
    manifests: dict[str, Manifest] = {}
    for plan in plans:
        found = find_published(session, plan, repository, _folder(work, plan))
        there = repository.manifest(found.digest) if found else None
        if there is not None:
            manifests[plan.platform] = there
    missing = [plan.platform for plan in plans if plan.platform not in manifests]
    digest = image_index(manifests, plans[0].recipe.version, key_of_index(plans)).digest
    if missing or not repository.head_digest(digest):
        name = plans[0].name
        lacks = f"no image of {name} for {' and '.join(missing)}" if missing else "no index of them"
        raise RegistryError(
            f"{repository.name} has {lacks}",
            f"the recipe's platforms are {' and '.join(plan.platform for plan in plans)}",
            f"push it first: `builder push {name}`",
        )
    return digest


def key_of_index(plans: Sequence[Plan]) -> str:
    """The key of the index of a recipe's images: sha256 (hex) over their platforms and keys."""
    keys = [(plan.platform, plan.key) for plan in plans]  # in the recipe's order
    return hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode()).hexdigest()


def image_index(images: Mapping[str, Manifest], version: str, key: str) -> Manifest:
    """The index of images by platform, in that order; the same images give the same bytes."""
    entries = [
        {
            "mediaType": image.media_type,
            "digest": image.digest,
            "size": len(image.content),
            "platform": {"architecture": architecture, "os": system},
        }
        for platform, image in images.items()
        for system, _, architecture in [platform.partition("/")]
    ]
    content = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": entries,
        "annotations": {VERSION: version, LABEL_KEY: key},
    }
    return Manifest(json.dumps(content, indent=1).encode(), INDEX)


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image of the engine, with its blobs."""

    manifest: Manifest
    blobs: Blobs

    def config(self) -> Configuration:
        """Its configuration."""
        config = self.manifest.body.config
        if config is None:
            return Configuration()
        content = self.blobs.file(config.digest).read_bytes()
        return checked(Configuration, content, f"the configuration of {self.manifest.digest}")


def local_image(record: Record, work: Path) -> LocalImage:
    """The image of a record; ``work`` is a directory for blobs that the engine saves first."""
    blobs = engine.blobs_of(record.references[0], work)
    file = blobs.file(record.digest)
    if not file.is_file():
        raise RegistryError(
            f"Docker no longer has {record.digest}",
            f"{record.references[0]} is another image now",
            f"build it again: `builder build {record.recipe}`",
        )
    content = file.read_bytes()
    return LocalImage(Manifest(content, json.loads(content)["mediaType"]), blobs)


def upload(repository: Repository, image: LocalImage) -> int:
    """Upload an image under its digest: the blobs that the registry lacks, whose number is
    returned, then the manifest.  A layer of another repository is mounted from there.

    Raises ``RegistryError``, also where the registry takes no
    layers of this compression, ``FetchError``.
    """
    count = 0
    config = image.manifest.body.config
    for blob in blobs_of(image.manifest):
        layer = config is None or blob != config.digest
        count += repository.put_blob(blob, image.blobs.file(blob), mount=layer)
    try:
        repository.put_manifest(image.manifest.digest, image.manifest)
    except RegistryError as error:
        layers = image.manifest.body.layers or []
        zstd = any(layer.mediaType.endswith(ZSTD) for layer in layers)
        if not zstd or not any(code in error.why for code in REFUSED):
            raise
        raise RegistryError(
            f"{repository.registry} refuses the manifest of an image with zstd layers",
            error.why,
            'if it takes only gzip, set compression = "gzip" in [image] of the recipe and build it '
            "again; no tag was moved",
        ) from error
    return count


@dataclass(frozen=True, slots=True)
class _Source:
    """The verified image of one platform: the registry's (``there``), else the engine's."""

    plan: Plan
    image: PlatformImage
    there: Verified | None
    record: Record | None
    """This machine's; None: it has no verified image of that key."""
    local: LocalImage | None = None


def _with_same_base(
    session: BuildSession, plan: Plan, repository: Repository
) -> Iterator[Repository]:
    """The other repositories of the namespace whose images share a base with an image."""
    below = {*session.catalog.chain(plan.recipe.base)}
    recipes = [each.recipe for each in session.catalog.engines.values() if each.recipe]
    names = {session.settings.repository(each.image.repository): each.base for each in recipes}
    for name, base in sorted(names.items()):
        if name != repository.name and below.intersection(session.catalog.chain(base)):
            yield Repository(name, session.log, session.settings.token_hosts)


def _folder(work: Path, plan: Plan) -> Path:
    folder = work / plan.platforms.target
    folder.mkdir(exist_ok=True)
    return folder


class _Run:
    """One push to a repository, whose tags are ``known``."""

    def __init__(self, session: BuildSession, plan: Plan, work: Path, allowed: Allowed) -> None:
        require_signing(session.settings, work)
        self.session, self.work, self.allowed = session, work, allowed
        self.repository = open_repository(plan.repository, session.log)
        self.known = frozenset(self.repository.tags())
        self.repository.others = list(_with_same_base(session, plan, self.repository))
        self.trust = trust_of(session.settings, work)
        self.tried = False  # the registry takes attachments

    def published(self, plan: Plan) -> Verified | None:
        """The registry's verified image of a key, unless it is to be replaced."""
        if self.allowed.replace is not None or plan.immutable_tag not in self.known:
            return None
        return find_published(self.session, plan, self.repository, _folder(self.work, plan))

    def budget(self, plan: Plan) -> int | None:
        """Megabytes that an update may have; None: any number."""
        return plan.recipe.budget.update if self.allowed.over_budget is None else None

    def reason(self, name: str, key: str) -> str:
        """The reason in the notes of moves."""
        allowed = self.allowed
        return allowed.replace or allowed.over_budget or f"push of {name} {key[:12]}"

    def sign(self, digest: str) -> None:
        """Sign an image or an index with this run's key, if there is one and it is not signed."""
        name, key = self.repository.name, self.trust.signing
        if key and sign_image(name, digest, self.trust):
            self.session.log(f"signed {name}@{digest[:19]}")

    def push(
        self,
        plan: Plan,
        record: Record,
        tags: Tags,
        found: Verified | None,
        local: LocalImage | None = None,
    ) -> Pushed:
        """Push one image; ``local`` is the engine's where it has been read."""
        repository, work = self.repository, _folder(self.work, plan)
        digest = found.digest if found else record.digest
        order = PushTags(
            repository,
            record.recipe,
            tags,
            digest,
            self.known,
            replace=self.allowed.replace is not None,
            there=digest if found else "",
        )
        if digest != record.digest:
            self.session.log(f"the registry has {tags.immutable} already: {digest} gets the tags")

        # An interrupted push may have left the image without a tag.
        known = repository.manifest(digest) if self.known and not found else None
        new = None if found or known else local or local_image(record, work)

        @cache
        def manifest() -> Manifest:  # fetched only where it is needed: that is a pull
            return known or (new.manifest if new else _manifest(repository, digest))

        updates: dict[str, tuple[Update, ...]] = {}
        if order.followed:
            config = new.config() if new else configuration(repository, manifest())
            image = PlatformImage(config.platform, manifest(), config)
            updates = order.updates([image], self.budget(plan), self.allowed.dropped)
        own = found.record if found else record  # None: a trusted verdict is attached
        entries = [] if new else referrers(repository, digest, self.known)
        image_at = repository, digest, entries
        scanned, problem = examine(self.session, plan, own, image_at, self.trust)
        if problem is not None:
            raise problem
        if new and not self.tried:
            require_attachments(repository)
            self.tried = True
        uploaded = upload(repository, new) if new else 0

        # Earlier attachments stay: they describe the same image, also where the recipe's words
        # changed.
        notes = order.notes(entries, self.reason(record.recipe, record.key), updates, self.trust)
        missing = scanned
        if own is not None or digest == record.digest:
            # A statement without a signature does not count where there is a key.
            unsigned = IN_TOTO if self.trust.signing else ""
            kinds = {kind_of(each) for each in entries if each.get("artifactType") != unsigned}
            made = own or record
            missing += missing_attachments(self.session, plan, made, kinds, work, self.trust)
        if own is None:
            self.sign(digest)
        else:
            wanted = digest, own.key, own.contract
            ours = verdict_signers(repository, entries, wanted, self.trust)
            if not any(key == self.trust.signing or not self.trust.signing for key in ours):
                self.sign(digest)
                by = {"version": __version__, "commit": head_of(self.session.catalog.root)}
                missing.append(verdict_on(own, self.trust, by))
        if missing or notes:
            attach_all(repository, manifest(), missing + notes)
        given = order.give(manifest)
        compared = tuple(each for several in updates.values() for each in several)
        return Pushed(repository.name, digest, given, uploaded, order.replaced, compared)

    def sources(self, plans: Sequence[Plan]) -> list[_Source]:
        """The verified image of each platform; raises ``WorldError`` where one has none."""
        found, missing = [], []
        for plan in plans:
            there = self.published(plan)
            _, record = Images(self.session).of(plan)
            if there is not None:
                manifest = _manifest(self.repository, there.digest)
                config = configuration(self.repository, manifest)
                image = PlatformImage(plan.platform, manifest, config)
                found.append(_Source(plan, image, there, there.record or record))
            elif record is not None:
                require_built_here(record)
                local = local_image(record, _folder(self.work, plan))
                image = PlatformImage(plan.platform, local.manifest, local.config())
                found.append(_Source(plan, image, None, record, local))
            else:
                missing.append(plan)
        if missing:
            name, platforms = plans[0].name, [plan.platform for plan in missing]
            looked = (f"{plan.platform}: looked for {plan.references[0]}" for plan in missing)
            raise WorldError(
                f"{name} is not pushed: there is no verified image of the current recipe for "
                f"{' and '.join(platforms)}",
                "\n".join(looked) + ", its record, and its tag in the registry",
                f"build it: `builder build {name} --platform {platforms[0]}`; if another machine "
                f"has it, push it from there: `builder push {name} --platform {platforms[0]}`",
            )
        return found


def _manifest(repository: Repository, digest: str) -> Manifest:
    found = repository.manifest(digest)
    if found is None:
        raise RegistryError(f"{repository.name} no longer has {digest}", hint="push again")
    return found
