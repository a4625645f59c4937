"""A repository of a registry, by the OCI distribution specification 1.1, and the images in it.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md.  ``transport``
authorizes, sends and retries the requests, and checks the responses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.core import sizes
from builder.core.errors import GoneError, RegistryError, WorldError
from builder.core.log import Log
from builder.core.web import Response, WebError, time_span
from builder.engines.layout import CREATED, LABEL_KEY, LABEL_RECIPE_KEY, REVISION, VERSION
from builder.publish import transport
from builder.publish.transport import (
    IMAGE_MANIFEST,
    INDEX,
    Body,
    Configuration,
    Transport,
    UploadStream,
    required,
)

MANIFESTS = (
    IMAGE_MANIFEST,
    INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPT = {"Accept": ", ".join(MANIFESTS)}
HASHING = 300.0  # seconds without a byte after an upload: the registry hashes it first
LARGEST_MANIFEST = 4 << 20  # bytes: the limit of docker-registry
LARGEST_PAGE = 16 << 20  # bytes of a list
LARGEST_BLOB = 64 << 20  # bytes of a blob in memory: a configuration, an attached file
MOST_PAGES = 1000
SLOWEST_BLOB = 600.0  # seconds
LARGEST_SKEW = 600.0  # seconds between two clocks
UPLOADS = "blobs/uploads/"
UNKNOWN_FOR = (0.1, 0.3, 1.0, 3.0)
"""Seconds to wait before a manifest is put again where the registry does not know its blobs."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or an index, byte for byte."""

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits."""
        return "sha256:" + hashlib.sha256(self.content).hexdigest()

    @property
    def body(self) -> Body:
        """Its checked content."""
        return transport.checked(Body, self.content, f"the manifest {self.digest}")

    def parsed(self) -> dict[str, Any]:
        """Its JSON, unchanged, after the check as a ``Body``."""
        return transport.json_object(self.content, Body, f"the manifest {self.digest}")


class Repository(Transport):
    """One repository of a registry; ``log`` gets lines about waits and uploads.

    ``token_hosts``: other hosts that it may name for tokens, by the user's settings.
    """

    def __init__(
        self, name: str, log: Callable[[str], None], token_hosts: Collection[str] = ()
    ) -> None:
        super().__init__(name, log, token_hosts)
        self._seen: set[str] = set()
        """Digests of blobs that the registry is known to have."""
        self._lists = False  # its referrers API has listed an artifact
        self.others: list[Repository] = []
        """Repositories of this registry that may have the same layers: the first one is asked for
        each layer, and left out once it lacks one, for images share their lowest layers."""

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest of a tag or a digest, or None."""
        response = self.request("GET", f"manifests/{reference}", ACCEPT, limit=LARGEST_MANIFEST)
        if response is None:
            return None
        kind = transport.media_type(response.headers) or IMAGE_MANIFEST
        self._require_digest(reference, response.content)
        return Manifest(response.content, kind)

    def resolve(self, reference: str) -> str:
        """The digest of a tag, from its manifest; empty where there is no such tag."""
        found = self.manifest(reference)
        return found.digest if found else ""

    def head_digest(self, reference: str) -> str:
        """The digest of a tag, from a HEAD request; empty where there is no such tag.

        Docker Hub counts a GET of a manifest as a pull, a HEAD not (docs.docker.com, "Docker Hub
        pull usage and limits").
        """
        response = self.request("HEAD", f"manifests/{reference}", ACCEPT)
        if response is None:
            return ""
        # The specification does not require the digest in this response.
        return transport.response_digest(response.headers) or self.resolve(reference)

    def require_clock(self) -> None:
        """Raise ``WorldError`` where this machine's clock differs much from the registry's.

        Tag histories and nightly runs are ordered by time.
        """
        ahead = self.ahead
        if abs(ahead) > LARGEST_SKEW:
            way = "ahead of" if ahead > 0 else "behind"
            raise WorldError(
                f"the clock of this machine is {time_span(abs(ahead))} {way} the clock of "
                f"{self.registry}",
                f"this machine has {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "correct the clock that is wrong; no tag was moved",
            )

    def tags(self) -> list[str]:
        """All tags, sorted; none where there is no such repository."""
        pages = self._pages("tags/list?n=1000")
        return sorted({tag for page in pages for tag in transport.response_tags(page, self.name)})

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """The descriptors of a manifest's referrers; None where the registry has no such list."""
        pages = list(self._pages(f"referrers/{digest}"))
        if not pages or any(transport.media_type(page.headers) != INDEX for page in pages):
            return None
        return [entry for page in pages for entry in transport.referrers(page, self.name)]

    def lists(self, subject: str, artifact: str) -> bool:
        """Whether the registry's API lists an artifact that was attached just now.

        Docker Hub has answered an upload with ``OCI-Subject`` and listed nothing
        (docker/hub-feedback#2372).  A registry that listed one artifact is not asked again.
        """
        if not self._lists:
            listed = self.referrers(subject) or ()
            self._lists = any(each["digest"] == artifact for each in listed)
        return self._lists

    def _pages(self, path: str) -> Iterator[Response]:
        """The pages of a list, in order; none where it does not exist."""
        seen: set[str] = set()
        following: str | None = path
        while following is not None and following not in seen:
            if len(seen) == MOST_PAGES:
                raise RegistryError(f"a list of {self.name} has more than {MOST_PAGES} pages")
            seen.add(following)
            response = self.request("GET", following, limit=LARGEST_PAGE)
            if response is None:
                return
            yield response
            following = transport.next_page(response, self.name)

    def blob(self, digest: str) -> bytes:
        """A blob of at most ``LARGEST_BLOB`` bytes.

        Raises ``GoneError`` where it does not exist, ``RegistryError`` where its digest differs.
        """
        response = self.request(
            "GET", f"blobs/{digest}", limit=LARGEST_BLOB, total_timeout=SLOWEST_BLOB
        )
        if response is None:
            raise GoneError(f"{self.name} has no {digest}")
        self._require_digest(digest, response.content)
        return response.content

    def _require_digest(self, reference: str, content: bytes) -> None:
        """Raise ``RegistryError`` where ``reference`` is a digest, and not the content's."""
        kind, of_digest, _ = reference.partition(":")
        if not of_digest:
            return
        if kind not in {"sha256", "sha512"}:
            raise RegistryError(
                f"the content of {reference[:100]} cannot be verified",
                "only sha256 and sha512 are supported",
                "nothing was tagged",
            )
        found = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
        if found != reference:
            raise RegistryError(
                f"{self.name} gives {found} instead of {reference}",
                "the registry, or a proxy before it, altered the content",
                "nothing was tagged",
            )

    def require_push(self) -> None:
        """Raise ``RegistryError`` where this login may not push: an upload is begun and canceled.

        Raises ``FetchError``.
        """
        begun = self.send_with_retries(
            lambda: required(self.send("POST", UPLOADS, push=True), 202), "begin an upload"
        )
        # A failed cancellation does not matter: registries discard uploads that do not continue.
        with suppress(WebError, RegistryError):
            url = transport.upload_address(begun, self.name)
            self.send("DELETE", url, push=True)

    def put_blob(self, digest: str, file: Path, *, mount: bool = False) -> bool:
        """Upload a file unless the registry has it; whether it was uploaded.

        ``mount``: a blob that one of the ``others`` has is mounted ("Mounting a blob from another
        repository"), which moves no bytes.
        """
        size = file.stat().st_size
        name = f"{digest[:19]} ({sizes.shown(size)})"
        with file.open("rb") as stream:

            def content() -> Any:
                self.log(f"{name}: uploading")
                stream.seek(0)
                # An empty stream would be sent in chunks, which registries refuse.
                return UploadStream(stream, size, self, name) if size else b""

            outcome = self._upload(digest, content, mount=mount)
        if outcome:
            self.log(f"{name}: {outcome}")
        return not outcome

    def put_bytes(self, content: bytes) -> None:
        """Upload bytes, like ``put_blob``."""
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        self._upload(digest, lambda: content)

    def _upload(self, digest: str, content: Callable[[], Any], *, mount: bool = False) -> str:
        """Upload a blob ("POST then PUT") unless it is there; why it was not sent, or nothing."""
        outcome = "exists"

        def upload() -> Response:
            nonlocal outcome
            # It may also be there because only the response to an earlier attempt was lost.
            there = self.send("HEAD", f"blobs/{digest}", push=True)
            if required(there, 200, 404).status == 200:
                return there
            source = self._holder(digest) if mount else ""
            begun = self._mounted(digest, source) if source else None
            if begun and begun.status == 201:
                outcome = f"mounted from {source}"
                return begun
            begun = begun or required(self.send("POST", UPLOADS, push=True), 202)
            url = transport.upload_address(begun, self.name)
            outcome = ""
            put = self.send(
                "PUT",
                f"{url}{'&' if '?' in url else '?'}digest={digest}",
                {"Content-Type": "application/octet-stream"},
                push=True,
                content=content,
                read_timeout=HASHING,
                total_timeout=HASHING,
            )
            return required(put, 201)

        if digest not in self._seen:
            self.send_with_retries(upload, f"upload of {digest[:19]}", uploads=True)
            self._seen.add(digest)
        return outcome

    def _holder(self, digest: str) -> str:
        """The path of another repository that has a blob; empty: none is known."""
        while self.others:
            with suppress(WebError, RegistryError):
                if self.others[0].send("HEAD", f"blobs/{digest}").status == 200:
                    return self.others[0].path
            self.others.pop(0)
        return ""

    def _mounted(self, digest: str, source: str) -> Response | None:
        """The response to a mount: 201, or 202 for an upload that was begun in its place; None
        where the registry does neither."""
        with suppress(WebError, RegistryError):
            path = f"{UPLOADS}?mount={digest}&from={source}"
            begun = self.send("POST", path, push=True, source=source)
            return begun if begun.status in {201, 202} else None
        return None

    def put_manifest(self, reference: str, manifest: Manifest) -> bool:
        """Put a manifest under a tag or its digest; whether the registry says that it is a
        referrer of its subject."""
        put = self._put_known(lambda: required(self._put(reference, manifest), 201), reference)
        return "OCI-Subject" in put.headers

    def put_tag(self, tag: str, manifest: Manifest, before: str) -> None:
        """Move a tag from the digest ``before`` (empty: a new tag) to a manifest.

        The tag is resolved right before each attempt, and the request is conditional (If-Match and
        If-None-Match, RFC 9110, section 13.1), which few registries support.  Where one refuses the
        condition although the tag did not move, its ETags are not digests: a request without it
        follows.  Does nothing where the tag is at the manifest.  Raises ``RegistryError``, also
        where it is at another digest; ``FetchError``.
        """

        first = {"If-Match": f'"{before}"'} if before else {"If-None-Match": "*"}

        def look_and_put(condition: Mapping[str, str] = first) -> Response:
            looked = self.send("HEAD", f"manifests/{tag}", ACCEPT)
            there = required(looked, 200, 404).status == 200
            now = transport.response_digest(looked.headers) or self.resolve(tag) if there else ""
            if now == manifest.digest:
                return looked
            if now != before:
                raise RegistryError(
                    f"{self.name}:{tag} was moved by another client in the meantime",
                    f"it was at {before or 'no digest'}, and now it is at {now or 'no digest'}",
                    "it was left there: `builder tag history` shows the moves; decide again",
                )
            response = self._put(tag, manifest, condition)
            if response.status == 412 and condition:
                return look_and_put({})
            return required(response, 201)

        self._put_known(look_and_put, tag)

    def _put(
        self, reference: str, manifest: Manifest, condition: Mapping[str, str] = {}
    ) -> Response:
        headers = {"Content-Type": manifest.media_type, **condition}
        path, content = f"manifests/{reference}", manifest.content
        return self.send("PUT", path, headers, push=True, content=lambda: content)

    def _put_known(self, put: Callable[[], Response], reference: str) -> Response:
        """Put a manifest whose blobs are in the registry.

        docker-registry rewrites the link to a blob when the same one is uploaded again, and does
        not know the blob for that moment.
        """
        what = f"put {reference}"
        for seconds in UNKNOWN_FOR:
            try:
                return self.send_with_retries(put, what, uploads=True)
            except RegistryError as error:
                if "MANIFEST_BLOB_UNKNOWN" not in error.why:
                    raise
                time.sleep(seconds)
        return self.send_with_retries(put, what, uploads=True)

    def delete(self, digest: str) -> None:
        """Delete a manifest with all its tags, if it exists.

        Specification, "Content Management".  Raises ``RegistryError`` where the registry allows no
        deletion, ``FetchError``.
        """

        def delete() -> Response:
            response = self.send("DELETE", f"manifests/{digest}", push=True)
            if response.status == 405:
                raise RegistryError(
                    f"{self.registry} does not allow deletion",
                    response.error(transport.error_text(response.content)).why,
                    "docker-registry does with REGISTRY_STORAGE_DELETE_ENABLED=true",
                )
            return required(response, 202, 404)

        self.send_with_retries(delete, f"DELETE manifests/{digest}")


def blobs_of(manifest: Manifest) -> Iterator[str]:
    """The digests of a manifest's configuration and layers."""
    body = manifest.body
    for part in (body.config, *(body.layers or ())):
        if part is not None:
            yield part.digest


# The images of a repository: their digests, their age, their labels and their layers.

PLATFORM = "linux/amd64"
"""An index takes the labels of its image for this platform."""


@dataclass(frozen=True, slots=True)
class PlatformImage:
    """The image of one platform."""

    platform: str
    """``linux/amd64``; empty where its configuration does not name it."""
    manifest: Manifest
    config: Configuration


@dataclass(frozen=True, slots=True)
class RemotePlatform:
    """The image of one platform, by its digest."""

    digest: str
    download_size: int
    """Bytes of its compressed layers, each once."""
    key: str = ""
    """Its key, by its label; empty where it has none."""
    recipe_key: str = ""
    """Its key without the digests that its recipe leaves open, by its label; empty: as the key."""


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image of a registry, or an index of images for several platforms."""

    digest: str
    created: str
    """RFC 3339; empty where the image has no date."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For an index, the labels of its image for linux/amd64, else of its first one."""
    download_size: int = 0
    """Bytes of the compressed layers, each once, of the image whose labels these are; 0: not
    known."""
    platforms: Mapping[str, RemotePlatform] = field(default_factory=dict)
    """The image of each platform ("linux/amd64"), in the order of the index."""

    @property
    def revision(self) -> str:
        """The commit that it was built from, by its label."""
        return self.labels.get(REVISION, "")

    @property
    def version(self) -> str:
        """Its version, by its label."""
        return self.labels.get(VERSION, "")


def remote_image(repository: Repository, reference: str) -> RemoteImage | None:
    """The image or the index that a tag or a digest points to, or None.

    Raises ``RegistryError`` where it is not an image, ``FetchError``.
    """
    found = repository.manifest(reference)
    return described(repository, found) if found is not None else None


def described(repository: Repository, manifest: Manifest) -> RemoteImage:
    """The image or the index of a manifest."""
    return of_images(manifest, images_in(repository, manifest))


def of_images(manifest: Manifest, images: Sequence[PlatformImage]) -> RemoteImage:
    """The image or the index of a manifest, whose images have been read."""
    if not images:
        return RemoteImage(manifest.digest, "")
    found = {
        each.platform: RemotePlatform(
            each.manifest.digest,
            sum(layer_sizes(each.manifest).values()),
            each.config.labels.get(LABEL_KEY, ""),
            each.config.labels.get(LABEL_RECIPE_KEY, ""),
        )
        for each in images
    }
    main = next((each for each in images if each.platform == PLATFORM), images[0])
    labels, size = main.config.labels, found[main.platform].download_size
    created = labels.get(CREATED) or main.config.created or ""
    named = {platform: each for platform, each in found.items() if platform}
    return RemoteImage(manifest.digest, created, labels, size, named)


def images_in(repository: Repository, manifest: Manifest) -> tuple[PlatformImage, ...]:
    """The image of a manifest; of an index, the first one for each platform, in its order.

    Images that the registry lacks are left out, and manifests that are no images: an index in an
    index, for example.  Raises
    ``RegistryError`` where one cannot be read, ``FetchError``.
    """
    if manifest.body.manifests is None:
        config = configuration(repository, manifest)
        return (PlatformImage(config.platform, manifest, config),)
    found: dict[str, Manifest] = {}
    for entry in manifest.body.manifests:
        platform = entry.platform.name if entry.platform else ""
        there = repository.manifest(entry.digest) if platform not in {"", *found} else None
        if there is not None and there.body.manifests is None:
            found[platform] = there
    return tuple(
        PlatformImage(platform, image, configuration(repository, image))
        for platform, image in found.items()
    )


def configuration(repository: Repository, image: Manifest) -> Configuration:
    """The configuration of an image; an empty one where its manifest names none.

    Raises ``RegistryError`` where it cannot be read.
    """
    config = image.body.config
    if config is None:
        return Configuration()
    what = f"the configuration of {repository.name}@{image.digest}"
    return transport.checked(Configuration, repository.blob(config.digest), what)


def layer_sizes(image: Manifest) -> dict[str, int]:
    """Bytes of an image's layers by digest, the lowest first.

    A layer that an image has twice is downloaded once.
    """
    return {each.digest: each.size for each in image.body.layers or ()}


# The size of an update: the layers of a new image that the image before it lacks.
#
# An engine that has one image downloads only the other layers of the next one: layers are named by
# the digest of their compressed bytes (OCI image specification, "Content Descriptors").

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Update:
    """The update of somebody who has the image that tags point to; sizes are bytes."""

    tags: tuple[str, ...]
    before: str
    """Digest of the image, or the index, that the tags point to."""
    size: int
    """Bytes of the new image's layers that the other image lacks."""
    download: int
    """Bytes of all its layers."""
    platform: str = ""
    """``linux/amd64``, where the new image is one of several of an index; else empty."""

    @property
    def text(self) -> str:
        """The sizes in one line."""
        platform = f" for {self.platform}" if self.platform else ""
        who = f"for somebody who has the image of {' and '.join(self.tags)}{platform}"
        return f"{sizes.shown(self.size)} {who}, {sizes.shown(self.download)} anew"


def updates_of(
    repository: Repository,
    tags: Sequence[str],
    before: str,
    new: Sequence[PlatformImage],
    log: Log = lambda _: None,
    dropped: Collection[str] = (),
) -> tuple[Update, ...]:
    """The updates from the image or index ``before`` (a digest; empty: none) of some tags.

    One for each of the new images; none for a platform without an image before: a tag can also be
    moved away from an image that cannot be read, and the log says so.
    """
    known: tuple[PlatformImage, ...] = ()
    if before:
        with suppress(RegistryError, GoneError):
            there = repository.manifest(before)
            known = images_in(repository, there) if there else ()
    if before and not known:
        log(
            f"the update of {' and '.join(tags)} cannot be measured, so no [budget] limits it: the "
            f"image before, {before}, is gone or cannot be read; its platforms are not known either"
        )
    has = [each.platform for each in new]
    lost = [each.platform for each in known if each.platform not in {"", *dropped, *has}]
    if lost:
        present = f"the new image has {' and '.join(filter(None, has)) or 'no named platform'}"
        raise RegistryError(
            f"{' and '.join(tags)} would lose {' and '.join(lost)}: no tag was moved",
            f"{repository.name}@{before} has it; {present}",
            "name an image or an index with all platforms; to drop it all the same: "
            + " ".join(f"--drop-platform {each}" for each in lost),
        )
    found = []
    for image in new:
        # Some images do not name a platform.
        names = {"", image.platform}
        same = (each for each in known if not image.platform or each.platform in names)
        if old := next(same, None):
            here, had = layer_sizes(image.manifest), layer_sizes(old.manifest)
            size = sum(size for digest, size in here.items() if digest not in had)
            platform = image.platform if len(new) > 1 else ""
            found.append(Update(tuple(tags), before, size, sum(here.values()), platform))
    return tuple(found)


def require_within(
    updates: Iterable[Update], budget: int | None, log: Log, what: str, hint: str
) -> None:
    """Log the updates; raise ``RegistryError`` where one has more than ``budget`` megabytes.

    ``what`` did not happen ("latest is not moved"), ``hint`` is the way to do it all the same.
    """
    over = []
    for each in updates:
        log(f"download: {each.text}")
        if budget is not None and each.size > budget * MB:
            over.append(f"download: {each.text}")
    if over:
        raise RegistryError(
            f"{what}: the update has more than the {budget} MB of [budget]", "\n".join(over), hint
        )
