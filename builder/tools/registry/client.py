"""A registry, spoken to as the OCI distribution specification 1.1 says.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md.  ``transport``
sends requests and retries them, ``auth`` authorizes them, ``responses`` checks what comes back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from builder.errors import GoneError, RegistryError, TagMovedError, WorldError
from builder.tools.registry import responses
from builder.tools.registry.responses import IMAGE_MANIFEST, INDEX, Body
from builder.tools.registry.transport import Transport, split
from builder.tools.web.client import Answer
from builder.tools.web.errors import WebError
from builder.tools.web.http_time import time_span

MANIFESTS = (
    IMAGE_MANIFEST,
    INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
HASHING = 300.0  # seconds without a byte after an upload: a large blob is hashed first
LARGEST_MANIFEST = 4 << 20  # bytes, as Debian's registry has it
LARGEST_PAGE = 16 << 20  # bytes of a list
LARGEST_BLOB = 64 << 20  # bytes of what is read into memory: a configuration, an attached file
MOST_PAGES = 1000
SLOWEST_BLOB = 600.0  # seconds
LARGEST_SKEW = 600.0  # seconds between two clocks
UPLOADS = "blobs/uploads/"
UNKNOWN_FOR = (0.1, 0.3, 1.0, 3.0)
"""Seconds after which a manifest is put again whose blobs a registry did not know."""
NEWS = 10.0  # seconds between two lines about an upload


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
        """What it says.  Raises ``RegistryError`` where it is damaged."""
        return responses.checked(Body, self.content, f"the manifest {self.digest}")

    def parsed(self) -> dict[str, Any]:
        """Its JSON as it came, which ``Body`` holds.  Raises ``RegistryError``."""
        return responses.json_object(self.content, Body, f"the manifest {self.digest}")


class Repository:
    """One repository of a registry; ``say`` gets a line where it has to wait, and for uploads.

    ``token_hosts``: hosts outside the registry's domain that it may name for tokens.
    """

    def __init__(
        self, name: str, log: Callable[[str], None], token_hosts: Collection[str] = ()
    ) -> None:
        self.name = name
        self.registry, self.path = split(name)
        self._say = log
        self._http = Transport(name, log, token_hosts)
        self._seen: set[str] = set()
        """Blobs that the registry has, as far as it was asked."""

    # What is there

    def manifest(self, reference: str) -> Manifest | None:
        """What a tag or a digest leads to, or None.  Raises ``RegistryError``, ``FetchError``."""
        headers = {"Accept": ", ".join(MANIFESTS)}
        answer = self._http.ask("GET", f"manifests/{reference}", headers, limit=LARGEST_MANIFEST)
        if answer is None:
            return None
        kind = responses.media_type(answer.headers) or IMAGE_MANIFEST
        self._require_same(reference, answer.content)
        return Manifest(answer.content, kind)

    def resolve(self, reference: str) -> str:
        """The digest that a tag leads to; empty where there is none.  Raises like ``manifest``."""
        found = self.manifest(reference)
        return found.digest if found else ""

    def head_digest(self, reference: str) -> str:
        """The digest that a tag leads to, by the registry's word; empty where there is none.

        Docker Hub counts each manifest that it gives as a pull; one that is asked for by HEAD it
        does not (docs.docker.com, "Docker Hub pull usage and limits").  Raises like ``manifest``.
        """
        headers = {"Accept": ", ".join(MANIFESTS)}
        answer = self._http.ask("HEAD", f"manifests/{reference}", headers)
        if answer is None:
            return ""
        # The specification does not oblige a registry to say it.
        return responses.digest(answer.headers) or self.resolve(reference)

    def require_clock(self) -> None:
        """Raise ``WorldError`` where the registry, by its last answer, has quite another time.

        Moves and nights are put in order by time.
        """
        ahead = self._http.ahead
        if abs(ahead) > LARGEST_SKEW:
            way = "ahead of" if ahead > 0 else "behind"
            raise WorldError(
                f"the clock of this machine is {time_span(abs(ahead))} {way} that of "
                f"{self.registry}",
                f"this machine has {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "set the clock that is wrong; no tag was moved",
            )

    def tags(self) -> list[str]:
        """All tags, sorted; none where there is no such repository."""
        pages = self._pages("tags/list?n=1000")
        return sorted({tag for page in pages for tag in responses.tags(page, self.name)})

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """The descriptors of what refers to a manifest; None where the registry keeps none."""
        pages = list(self._pages(f"referrers/{digest}"))
        if not pages or any(responses.media_type(page.headers) != INDEX for page in pages):
            return None
        return [entry for page in pages for entry in responses.referrers(page, self.name)]

    def _pages(self, path: str) -> Iterator[Answer]:
        """The pages of a list, one after the other; none where there is nothing of that name."""
        seen: set[str] = set()
        following: str | None = path
        while following is not None and following not in seen:
            if len(seen) == MOST_PAGES:
                raise RegistryError(f"a list of {self.name} has more than {MOST_PAGES} pages")
            seen.add(following)
            answer = self._http.ask("GET", following, limit=LARGEST_PAGE)
            if answer is None:
                return
            yield answer
            following = responses.next_page(answer, self.name)

    def blob(self, digest: str) -> bytes:
        """A blob that fits into memory: an image's configuration.

        Raises ``GoneError`` where it is not there, ``RegistryError`` when its bytes are others.
        """
        answer = self._http.ask("GET", f"blobs/{digest}", limit=LARGEST_BLOB, whole=SLOWEST_BLOB)
        if answer is None:
            raise GoneError(f"{self.name} has no {digest}")
        self._require_same(digest, answer.content)
        return answer.content

    def _require_same(self, reference: str, content: bytes) -> None:
        """Raise ``RegistryError`` where a digest was asked for, and the content is another."""
        kind, of_digest, _ = reference.partition(":")
        if not of_digest:
            return
        if kind not in {"sha256", "sha512"}:
            raise RegistryError(
                f"the content of {reference[:100]} cannot be checked",
                "only sha256 and sha512 are known",
                "nothing was tagged",
            )
        found = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
        if found != reference:
            raise RegistryError(
                f"{self.name} gives {found} where {reference} was asked for",
                "the registry, or a proxy before it, altered the content",
                "nothing was tagged",
            )

    # What is put there

    def require_push(self) -> None:
        """Raise ``RegistryError`` where this login may not push: an upload is begun and given up.

        Raises ``FetchError``.
        """
        begun = self._http.retried(
            lambda: self._http.once("POST", UPLOADS, push=True), "begin an upload"
        )
        # Few registries have to be told: they forget an upload that nobody continues.
        with suppress(WebError, RegistryError):
            url = responses.upload_address(begun, self.name)
            self._http.once("DELETE", url, push=True)

    def put_blob(
        self,
        digest: str,
        file: Path,
        on_progress: Callable[[int], None] | None = None,
        *,
        new: bool = False,
    ) -> bool:
        """Upload a file where it is not there yet; whether it had to be.

        ``on_progress`` gets the bytes that were sent so far; without it ``say`` gets lines.
        ``new``: the registry hardly has it, and is not asked first; but it may say so when the
        upload begins (specification, "Mounting a blob from another repository").  Raises
        ``RegistryError``, ``FetchError``.
        """
        size = file.stat().st_size
        name = f"{digest[:19]} ({size / 1e6:.1f} MB)"
        if not new and self._has(digest):
            self._say(f"{name}: there already")
            return False
        self._say(f"{name}: uploading")
        progress = on_progress or _lines(self._say, name, size)
        with file.open("rb") as stream:

            def content() -> Any:
                stream.seek(0)
                # What is empty would be sent in chunks, which registries do not take.
                return _Upload(stream, size, self._sent(progress)) if size else b""

            uploaded = self._upload(digest, content, new=new)
        if not uploaded:
            self._say(f"{name}: there already")
        return uploaded

    def put_bytes(self, content: bytes, *, new: bool = False) -> bool:
        """Upload bytes, like ``put_blob``."""
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        if digest in self._seen or (not new and self._has(digest)):
            return False
        return self._upload(digest, lambda: content, new=new)

    def _has(self, digest: str) -> bool:
        if digest not in self._seen and self._http.ask("HEAD", f"blobs/{digest}") is not None:
            self._seen.add(digest)
        return digest in self._seen

    def _sent(self, progress: Callable[[int], None]) -> Callable[[int], None]:
        def sent(count: int) -> None:
            self._http.server_responded()
            progress(count)

        return sent

    def _upload(self, digest: str, content: Callable[[], Any], *, new: bool) -> bool:
        """Upload a blob ("POST then PUT"); whether it was sent."""
        tried, sent = False, True
        path = f"{UPLOADS}?mount={digest}&from={self.path}" if new else UPLOADS

        def upload() -> Answer:
            nonlocal tried, sent
            if tried:
                # It may have arrived, and only the answer did not.
                there = self._http.once("HEAD", f"blobs/{digest}")
                if there.good:
                    return there
            tried = True
            begun = self._http.once("POST", path, push=True)
            sent = begun.status != 201
            if not begun.good or not sent:
                return begun
            url = responses.upload_address(begun, self.name)
            joined = f"{url}{'&' if '?' in url else '?'}digest={digest}"
            headers = {"Content-Type": "application/octet-stream"}
            return self._http.once(
                "PUT", joined, headers, push=True, content=content, silence=HASHING, whole=HASHING
            )

        self._http.retried(upload, f"upload of {digest[:19]}", uploads=True)
        self._seen.add(digest)
        return sent

    def put_manifest(self, reference: str, manifest: Manifest) -> bool:
        """Put a manifest under a tag or its digest; whether the registry lists its subject.

        Raises ``RegistryError``, ``FetchError``.
        """
        put = self._putting(reference, manifest, {})
        return "OCI-Subject" in self._put_listed(put, f"put {reference}").headers

    def put_tag(self, tag: str, manifest: Manifest, before: str) -> None:
        """Move a tag from the digest ``before`` (empty: from nowhere) to a manifest.

        The tag is asked for right before each attempt, and the request says what it replaces
        (If-Match and If-None-Match, RFC 9110, 13.1), which few registries look at.  One that
        refuses that though the tag did not move is asked once more without it.  Where the tag
        leads there already, nothing is done.  Raises ``TagMovedError`` where it leads elsewhere,
        ``RegistryError``, ``FetchError``.
        """
        condition = {"If-Match": f'"{before}"'} if before else {"If-None-Match": "*"}

        def look_and_put(named: Mapping[str, str] = condition) -> Answer:
            looked = self._http.once("HEAD", f"manifests/{tag}", {"Accept": ", ".join(MANIFESTS)})
            if not looked.good and looked.status != 404:
                return looked
            now = ""
            if looked.good:
                now = responses.digest(looked.headers) or self.resolve(tag)
            if now == manifest.digest:
                return looked
            if now != before:
                raise _moved(self.name, tag, before, now)
            answer = self._putting(tag, manifest, named)()
            # Where the tag still is as before, the registry's ETags are not digests.
            return look_and_put({}) if answer.status == 412 and named else answer

        self._put_listed(look_and_put, f"put {tag}")

    def _putting(
        self, reference: str, manifest: Manifest, condition: Mapping[str, str]
    ) -> Callable[[], Answer]:
        path = f"manifests/{reference}"
        headers = {"Content-Type": manifest.media_type, **condition}
        return lambda: self._http.once(
            "PUT", path, headers, push=True, content=lambda: manifest.content
        )

    def _put_listed(self, put: Callable[[], Answer], what: str) -> Answer:
        """Put a manifest whose parts are there.

        docker-registry writes the link to a blob anew when the same one is uploaded again, and for
        that moment does not know the blob.
        """
        for seconds in UNKNOWN_FOR:
            try:
                return self._http.retried(put, what, uploads=True)
            except RegistryError as error:
                if "MANIFEST_BLOB_UNKNOWN" not in error.why:
                    raise
                time.sleep(seconds)
        return self._http.retried(put, what, uploads=True)

    # What is taken away

    def delete(self, digest: str) -> bool:
        """Delete a manifest, and with it every tag that leads to it; whether it was there.

        Specification, "Content Management".  Raises ``RegistryError`` where the registry allows no
        deletion, ``FetchError``.
        """

        def ask() -> Answer:
            answer = self._http.once("DELETE", f"manifests/{digest}", push=True)
            if answer.status == 405:
                raise RegistryError(
                    f"{self.registry} does not allow deletion",
                    answer.error(responses.error_text(answer.content)).why,
                    "docker-registry does where it runs with REGISTRY_STORAGE_DELETE_ENABLED=true",
                )
            return answer

        return self._http.retried(ask, f"DELETE manifests/{digest}", missing=True).status != 404


def _moved(repository: str, tag: str, before: str, now: str) -> TagMovedError:
    return TagMovedError(
        f"{repository}:{tag} was moved by somebody else in the meantime",
        f"it was {before or 'not there'}, and now it is {now or 'not there'}",
        "it stays there: `builder tag history` shows why; decide again",
    )


class _Upload:
    """A file that is sent, and tells how much of it went out."""

    def __init__(self, stream: IO[bytes], size: int, sent: Callable[[int], None]) -> None:
        self._stream = stream
        self._size = size
        self._sent = sent
        self._count = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(1 << 16):
            yield block

    def read(self, size: int = -1) -> bytes:
        """The next bytes, like a file."""
        block = self._stream.read(size)
        self._count += len(block)
        self._sent(self._count)
        return block


def _lines(log: Callable[[str], None], name: str, size: int) -> Callable[[int], None]:
    """A line about an upload every ``NEWS`` seconds."""
    last = time.monotonic()

    def progress(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= NEWS and count < size:
            last = time.monotonic()
            log(f"{name}: {count / 1e6:.1f} MB sent")

    return progress


def blobs_of(manifest: Manifest) -> Iterator[str]:
    """The digests of a manifest's configuration and layers.  Raises ``RegistryError``."""
    body = manifest.body
    for part in (body.config, *(body.layers or ())):
        if part is not None:
            yield part.digest
