"""A registry, spoken to as the OCI distribution specification 1.1 says.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md; tokens as in
https://distribution.github.io/distribution/spec/auth/token/.  What may pass is tried again, within
a bound, and not before the time that the registry asks for; what will not is told at once.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from platformdirs import user_config_path

from builder.errors import FetchError, GoneError, RegistryError, WorldError
from builder.tools.credentials import HUB, Login, login_for

if TYPE_CHECKING:
    from requests import Response

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
HUB_HOST = "registry-1.docker.io"
PATIENCE = (30.0, 300.0)  # seconds to connect, and without a byte: a large blob is hashed first
ATTEMPTS = 7
LONGEST_WAIT = 120.0  # seconds at once: Docker Hub's limits pass in minutes, or in hours
LONGEST_IN_ALL = 600.0  # seconds
LARGEST_SKEW = 600.0  # seconds between two clocks
GIVEN_UP: set[str] = set()
"""Registries that did not answer at last: they are not waited for once more, each time."""
LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$")
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
CERTIFICATES = Path("/etc/docker/certs.d")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or an index, byte for byte."""

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits."""
        return "sha256:" + hashlib.sha256(self.content).hexdigest()

    def parsed(self) -> dict[str, Any]:
        """Its JSON; raises ``RegistryError`` where it is none."""
        try:
            found = json.loads(self.content)
        except ValueError as error:
            raise RegistryError(f"what a registry gives as {self.digest} is no JSON") from error
        if not isinstance(found, dict):
            raise RegistryError(f"what a registry gives as {self.digest} is no manifest")
        return found


def split(repository: str) -> tuple[str, str]:
    """Registry and path of a repository's name, as Docker reads it.

    https://github.com/distribution/reference: without a host it is Docker Hub's, and a name of one
    part is one of its official images.
    """
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return HUB, repository if slash else f"library/{repository}"


def certificate_of(registry: str) -> Path | None:
    """The authority of a registry's certificate, where it is one's own: as Docker is told of it.

    https://docs.docker.com/engine/security/certificates/; an engine without root looks below the
    user's configuration (moby, registry/config_unix.go).
    """
    for folder in (CERTIFICATES, user_config_path("docker") / "certs.d"):
        file = folder / registry / "ca.crt"
        if file.is_file():
            return file
    return None


class Repository:
    """One repository of a registry; what is asked is told by ``say`` only where it has to wait."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        import requests

        self.name = name
        self.registry, self.path = split(name)
        host = HUB_HOST if self.registry == HUB else self.registry
        certificate = certificate_of(self.registry)
        plain = LOOPBACK.match(host) and certificate is None
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{self.path}/"
        self._say = say
        self._session = requests.Session()
        # Said with each request: a bundle of the environment would go before the session's.
        self._verify = str(certificate) if certificate is not None else None
        self._login: Login | None = None
        self._asked_login = False
        self._tokens: dict[str, str] = {}
        self._waited = 0.0
        self._ahead = 0.0
        """Seconds that this machine's clock is before the registry's, or behind it."""

    # What is there

    def manifest(self, reference: str) -> Manifest | None:
        """What a tag or a digest leads to, or None.  Raises ``RegistryError``, ``FetchError``."""
        answer = self._ask(
            "GET", f"manifests/{reference}", headers={"Accept": ", ".join(MANIFESTS)}, missing=True
        )
        if answer is None:
            return None
        found = Manifest(answer.content, answer.headers.get("Content-Type", MANIFESTS[0]))
        if reference.startswith("sha256:") and found.digest != reference:
            raise RegistryError(
                f"{self.name} gives {found.digest} where {reference} was asked for",
                "the registry, or something between, altered it",
                "nothing was tagged",
            )
        return found

    def leads_to(self, reference: str) -> str:
        """The digest that a tag leads to; empty where there is none.  Raises like ``manifest``."""
        found = self.manifest(reference)
        return found.digest if found else ""

    def told(self, reference: str) -> str:
        """The digest that a tag leads to, by the registry's word; empty where there is none.

        Docker Hub counts each manifest that it gives as a pull; one that is asked for by HEAD it
        does not (docs.docker.com, "Docker Hub pull usage and limits").  Raises like ``manifest``.
        """
        headers = {"Accept": ", ".join(MANIFESTS)}
        answer = self._ask("HEAD", f"manifests/{reference}", headers=headers, missing=True)
        if answer is None:
            return ""
        # The specification does not oblige a registry to say it.
        return answer.headers.get("Docker-Content-Digest") or self.leads_to(reference)

    def need_clock(self) -> None:
        """Raise ``WorldError`` where the registry, by its last answer, has quite another time.

        What is written down is put in order by time.
        """
        if abs(self._ahead) > LARGEST_SKEW:
            way = "ahead of" if self._ahead > 0 else "behind"
            raise WorldError(
                f"the clock of this machine is {abs(self._ahead) / 60:.0f} minutes {way} that of "
                f"{self.registry}",
                f"it says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "set it; no tag was moved",
            )

    def tags(self) -> list[str]:
        """All tags, sorted; none where there is no such repository."""
        pages = self._pages("tags/list?n=1000")
        return sorted({tag for page in pages for tag in page.json().get("tags") or []})

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """The descriptors of what refers to a manifest; None where the registry keeps none."""
        pages = list(self._pages(f"referrers/{digest}"))
        kinds = [page.headers.get("Content-Type", "") for page in pages]
        if not pages or any(MANIFESTS[1] not in kind for kind in kinds):
            return None
        return [entry for page in pages for entry in page.json().get("manifests") or []]

    def _pages(self, path: str) -> Iterator[Response]:
        """The pages of a list, one after the other; none where there is nothing of that name."""
        seen: set[str] = set()
        following: str | None = path
        while following is not None and following not in seen:
            seen.add(following)
            answer = self._ask("GET", following, missing=True)
            if answer is None:
                return
            yield answer
            following = _next(answer.headers.get("Link", ""), answer.url)

    def blob(self, digest: str) -> bytes:
        """A blob that fits into memory: an image's configuration.

        Raises ``GoneError`` where it is not there, ``RegistryError`` when its bytes are others.
        """
        answer = self._ask("GET", f"blobs/{digest}", missing=True)
        if answer is None:
            raise GoneError(f"{self.name} has no {digest}")
        found = "sha256:" + hashlib.sha256(answer.content).hexdigest()
        if found != digest:
            raise RegistryError(
                f"{self.name} gives {found} where {digest} was asked for",
                "the registry, or something between, altered it",
            )
        return answer.content

    # What is put there

    def put_blob(self, digest: str, file: Path) -> bool:
        """Upload a file where it is not there yet; whether it had to be.

        Raises ``RegistryError``, ``FetchError``.
        """
        with file.open("rb") as stream:
            # What is empty would be sent in chunks, which registries do not take.
            return self._put(digest, stream if file.stat().st_size else b"")

    def put_bytes(self, content: bytes) -> bool:
        """Upload bytes, like ``put_blob``."""
        return self._put("sha256:" + hashlib.sha256(content).hexdigest(), content)

    def _put(self, digest: str, data: IO[bytes] | bytes) -> bool:
        if self._ask("HEAD", f"blobs/{digest}", missing=True) is not None:
            return False
        tried = False

        def upload() -> Response:
            nonlocal tried
            if tried:
                # It may have arrived, and only the answer did not.
                there = self._once("HEAD", f"blobs/{digest}")
                if there.ok:
                    return there
            tried = True
            begun = self._once("POST", "blobs/uploads/", push=True)
            begun.raise_for_status()
            location = urljoin(begun.url, begun.headers["Location"])
            joined = f"{location}{'&' if '?' in location else '?'}digest={digest}"
            if not isinstance(data, bytes):
                data.seek(0)
            headers = {"Content-Type": "application/octet-stream"}
            return self._once("PUT", joined, push=True, data=data, headers=headers)

        self._retried(upload, f"upload of {digest[:19]}", uploads=True)
        return True

    def put_manifest(self, reference: str, manifest: Manifest) -> bool:
        """Put a manifest under a tag or its digest; whether the registry lists its subject.

        Raises ``RegistryError``, ``FetchError``.
        """
        answer = self._retried(
            lambda: self._once(
                "PUT",
                f"manifests/{reference}",
                push=True,
                data=manifest.content,
                headers={"Content-Type": manifest.media_type},
            ),
            f"put {reference}",
            uploads=True,
        )
        return "OCI-Subject" in answer.headers

    # What is taken away

    def delete(self, digest: str) -> bool:
        """Delete a manifest, and with it every tag that leads to it; whether it was there.

        Specification, "Content Management".  Raises ``RegistryError`` where the registry allows no
        deletion, ``FetchError``.
        """

        def ask() -> Response:
            answer = self._once("DELETE", f"manifests/{digest}", push=True)
            if answer.status_code == 405:
                raise RegistryError(
                    f"{self.registry} does not allow that anything is deleted",
                    _told(answer),
                    "docker-registry does where it runs with REGISTRY_STORAGE_DELETE_ENABLED=true",
                )
            return answer

        return self._retried(ask, f"DELETE manifests/{digest}", missing=True).status_code != 404

    # How it is asked

    def _ask(
        self,
        method: str,
        path: str,
        *,
        missing: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Response | None:
        """An answer; None for 404 where ``missing`` is allowed."""
        answer = self._retried(
            lambda: self._once(method, path, headers=headers),
            f"{method} {path}",
            missing=missing,
        )
        return None if answer.status_code == 404 else answer

    def _retried(
        self,
        work: Callable[[], Response],
        what: str,
        *,
        missing: bool = False,
        uploads: bool = False,
    ) -> Response:
        """An answer that is good; what may pass is tried again.

        A registry that was given up is asked once, until it answers again.
        """
        import requests

        said = ""
        attempts = 1 if self.registry in GIVEN_UP else ATTEMPTS
        for attempt in range(1, attempts + 1):
            asked: float | None = None
            try:
                answer = work()
            except requests.HTTPError as error:
                answer = error.response
            except (requests.exceptions.SSLError, requests.exceptions.InvalidURL) as error:
                raise self._distrusted(error, what) from error
            except (requests.ConnectionError, requests.Timeout, OSError) as error:
                said = _scrubbed(error)
                answer = None
            if answer is not None:
                GIVEN_UP.discard(self.registry)
                if answer.ok or (answer.status_code == 404 and missing):
                    return answer
                said = _told(answer)
                if answer.status_code != 429 and answer.status_code < 500:
                    raise self._refused(answer, what)
                asked = _seconds(answer.headers.get("Retry-After", ""))
            if attempt < attempts and not self._wait(asked, attempt, said):
                break
        GIVEN_UP.add(self.registry)
        does = "answer" if answer is None else "do what it is asked"
        raise FetchError(
            f"{self.registry} does not {does}: {what}",
            f"tried {attempt} times; at last: {said}",
            "try again later" + (": what was uploaded is not uploaded again" if uploads else ""),
        )

    def _distrusted(self, error: Exception, what: str) -> RegistryError:
        return RegistryError(
            f"{self.registry} cannot be spoken to safely: {what}",
            _scrubbed(error),
            "where its certificate is one's own, the authority's belongs to "
            f"{CERTIFICATES / self.registry / 'ca.crt'}",
        )

    def _wait(self, asked: float | None, attempt: int, said: str) -> bool:
        """Wait as long as the registry asks, else longer each time; False: too long."""
        seconds = asked if asked is not None else min(0.5 * 2**attempt, 30.0)
        if seconds > LONGEST_WAIT or self._waited + seconds > LONGEST_IN_ALL:
            return False
        if seconds >= 1:
            short = textwrap.shorten(said, 100, placeholder=" ...")
            self._say(f"{self.registry}: {short}; trying again in {seconds:.0f} s")
        self._waited += seconds
        time.sleep(seconds)
        return True

    def _once(
        self,
        method: str,
        path: str,
        *,
        push: bool = False,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One request, and one more where a token is asked for."""
        url = path if path.startswith(("http://", "https://")) else self._base + path
        actions = f"pull{',push' if push else ''}{',delete' if method == 'DELETE' else ''}"
        scope = f"repository:{self.path}:{actions}"
        # A registry may send one elsewhere for a blob: who that is learns no password.
        ours = urlsplit(url)[:2] == urlsplit(self._base)[:2]
        for again in (False, True):
            sent = dict(headers or {})
            if ours and scope in self._tokens:
                sent["Authorization"] = self._tokens[scope]
            if again and hasattr(data, "seek"):
                data.seek(0)
            answer = self._session.request(
                method, url, data=data, headers=sent, timeout=PATIENCE, verify=self._verify
            )
            self._ahead = _since(answer.headers.get("Date", "")) or 0.0
            if answer.status_code != 401 or again or not ours:
                break
            token = self._token(answer.headers.get("WWW-Authenticate", ""), scope)
            if token is None:
                break
            self._tokens[scope] = token
        return answer

    def _token(self, challenge: str, scope: str) -> str | None:
        """What to authorize with; None where there is no way to."""
        if not self._asked_login:
            self._login, self._asked_login = login_for(self.registry), True
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            return f"Basic {self._login.basic}" if self._login else None
        if kind != "bearer":
            return None
        named = dict(CHALLENGE.findall(challenge))
        if self._base.startswith("https:") and named.get("realm", "").startswith("http:"):
            raise RegistryError(
                f"{self.registry} wants the login to be sent in the clear", named["realm"]
            )
        asked = {"service": named.get("service", ""), "scope": scope}
        auth = (self._login.user, self._login.password) if self._login else None
        answer = self._session.get(
            named.get("realm", ""), params=asked, auth=auth, timeout=PATIENCE, verify=self._verify
        )
        if not answer.ok:
            answer.raise_for_status()
        told = answer.json()
        token = told.get("token") or told.get("access_token")
        return f"Bearer {token}" if token else None

    def _refused(self, answer: Response, what: str) -> RegistryError:
        status, why = answer.status_code, _told(answer)
        if status == 401:
            who = f"as {self._login.user}" if self._login else "without a login"
            hint = f"docker login{'' if self.registry == HUB else ' ' + self.registry}"
            if self.registry == HUB:
                hint += ", or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
            return RegistryError(f"{self.registry} does not let one in {who}: {what}", why, hint)
        if status == 403:
            who = self._login.user if self._login else "nobody"
            return RegistryError(
                f"{who} may not do that in {self.name}: {what}",
                why,
                "check the namespace (BUILDER_NAMESPACE) and what the token allows",
            )
        hint = "check the repository's name and the tag" if status in {400, 404} else ""
        return RegistryError(f"{self.registry} refuses: {what}", why, hint)


def _scrubbed(error: Exception) -> str:
    """What went wrong, without what follows the ? of a URL: it may be a signature."""
    system = re.search(r"\[Errno -?\d+\] ([A-Z][^'\")]*)", str(error))
    if system:
        return system[1].strip()
    return re.sub(r"\?[^\s'\"]+", "?...", f"{type(error).__name__}: {error}")


def _told(answer: Response) -> str:
    """What an answer says of an error (specification, "Error Codes")."""
    text = f"{answer.status_code} {answer.reason}"
    try:
        errors = answer.json().get("errors") or []
        said = "; ".join(f"{e.get('code', '')}: {e.get('message', '')}" for e in errors)
    except (ValueError, AttributeError):
        said = ""
    return f"{text}: {said}" if said else text


def _seconds(value: str) -> float | None:
    """Retry-After (RFC 9110, 10.2.3): seconds, or a date."""
    if value.isdigit():
        return float(value)
    passed = _since(value)
    return max(0.0, -passed) if passed is not None else None


def _since(date: str) -> float | None:
    """Seconds from a date (RFC 9110, 5.6.7) until now; None where it is none."""
    from email.utils import parsedate_to_datetime

    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _next(link: str, url: str) -> str | None:
    """The next page of a list (RFC 8288), or None."""
    match = re.match(r'<([^>]*)>;\s*rel="?next"?', link)
    return urljoin(url, match[1]) if match else None


def blobs_of(manifest: Manifest) -> Iterator[str]:
    """The digests of a manifest's configuration and layers."""
    parsed = manifest.parsed()
    for part in [parsed.get("config"), *parsed.get("layers", [])]:
        if part:
            yield part["digest"]
