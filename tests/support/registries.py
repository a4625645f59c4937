"""A real registry, and a proxy before it that can misbehave; a plugin of pytest."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.publish.registry import MANIFESTS, Manifest, Repository
from builder.publish.verdicts import AttachedFile, Attachment, attach_all
from support.loopback import Quiet, listening

CONFIGURATION = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
LEFT_OUT = {"content-length", "transfer-encoding", "connection", "date", "server"}


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose "METHOD PATH" matches.

    A number is the status of the answer; "cut" closes in the middle of what is sent, "lie" answers
    with other bytes, "slow" waits a second, "pass" does nothing.  ``first`` is done before that.
    """

    matching: str
    what: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    first: Callable[[], object] = lambda: None


Refusal = Callable[[str, str, bytes], tuple[int, str, str] | None]
"""The status, the code and the message for a method, a path and a content that are refused."""


def immutable(prefix: str) -> Refusal:
    """A rule by which tags that begin so do not move, as Harbor words it."""
    put: dict[str, bytes] = {}

    def refuse(method: str, path: str, content: bytes) -> tuple[int, str, str] | None:
        tag = path.rpartition("/manifests/")[2]
        if method != "PUT" or ":" in tag or not tag.startswith(prefix):
            return None
        if put.setdefault(path, content) == content:
            return None
        return (
            412,
            "PRECONDITION",
            f"Failed to process request due to '{tag}' configured as immutable.",
        )

    return refuse


@dataclass
class Proxy:
    """A loopback address before ``registry``; ``requests`` are those that reached it, in order.

    ``ahead`` are the seconds that its clock is before this machine's.  ``subjects`` are what
    refers to each manifest, where it has the referrers API of the distribution specification 1.1
    ("Pushing Manifests with Subject", "Listing Referrers"), which Debian's registry has not.
    ``conditional``: it honours If-Match and If-None-Match (RFC 9110, 13.1).
    """

    address: str
    registry: str = ""
    ahead: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    subjects: dict[str, list[dict[str, Any]]] | None = None
    conditional: bool = False
    told_only: bool = False
    """It answers ``OCI-Subject`` and has no API: docker/hub-feedback#2372."""
    lists_nothing: bool = False
    """Its API lists nothing, ever, and no answer has ``OCI-Subject``."""
    by_digest: bool = False
    """The tag ``sha256-HEX`` is the manifest of that digest, whatever was put there."""
    refuse: Refusal = lambda *_: None
    rewrite: Callable[[str], str] = lambda path: path
    """The path that the registry gets."""

    def next_fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.matching, request):
                fault.times -= 1
                fault.first()
                return fault
        return None

    def listing(self, digest: str) -> bytes:
        manifests = [] if self.lists_nothing else (self.subjects or {}).get(digest, [])
        told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": manifests}
        return json.dumps(told).encode()

    def listed(self, content: bytes) -> dict[str, str]:
        """The headers for a manifest that was put, which is listed where it has a subject."""
        told = json.loads(content)
        subject = (told.get("subject") or {}).get("digest", "")
        if subject and self.told_only:
            return {"OCI-Subject": subject}
        if not subject or self.subjects is None or self.lists_nothing:
            return {}
        entry = {
            "mediaType": told["mediaType"],
            "digest": Manifest(content, "").digest,
            "size": len(content),
            "artifactType": told.get("artifactType") or told["config"]["mediaType"],
            "annotations": told.get("annotations") or {},
        }
        known = self.subjects.setdefault(subject, [])
        known += [entry] if entry not in known else []
        return {"OCI-Subject": subject}

    def passed_on(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str], str | None]:
        """Status, content and headers of an answer, and the size that one to HEAD tells."""
        _, asked, digest = path.rpartition("/referrers/")
        if refused := self.refuse(method, path, body):
            status, code, message = refused
            told = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
            return status, told, {"Content-Type": "application/json"}, None
        if self.by_digest and method in {"GET", "HEAD"}:
            path = path.replace("/manifests/sha256-", "/manifests/sha256:")
        if asked and self.subjects is not None:
            return 200, self.listing(digest), {"Content-Type": MANIFESTS[1]}, None
        if self.fails(method, path, headers):
            return 412, b"", {}, None
        connection = http.client.HTTPConnection(self.registry)
        connection.request(method, self.rewrite(path), body, dict(headers))
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in LEFT_OUT}
        if method == "PUT" and "/manifests/" in path and answer.status == 201:
            kept |= self.listed(body)
        size = answer.getheader("Content-Length") if method == "HEAD" else None
        connection.close()
        return answer.status, content, kept, size

    def fails(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether what a request wants to replace is not there any more."""
        match, none_match = headers.get("If-Match"), headers.get("If-None-Match")
        if not self.conditional or method != "PUT" or not (match or none_match):
            return False
        connection = http.client.HTTPConnection(self.registry)
        connection.request("HEAD", path, headers={"Accept": ", ".join(MANIFESTS)})
        there = connection.getresponse().getheader("Docker-Content-Digest")
        connection.close()
        return bool(there) if none_match else match != f'"{there}"'

    def count(self, matching: str) -> int:
        return sum(1 for request in self.requests if re.search(matching, request))


class Server(ThreadingHTTPServer):
    """One that says nothing where whoever asked was killed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def proxied(registry: str, *, referring: bool = False) -> Iterator[Proxy]:
    class Handler(Quiet):
        protocol_version = "HTTP/1.1"
        default_request_version = "HTTP/1.0"  # an engine tries TLS, and knows plain HTTP by it
        disable_nagle_algorithm = True  # else each answer waits 40 ms

        def handle_one(self) -> None:
            request = f"{self.command} {self.path}"
            proxy.requests.append(request)
            length = int(self.headers.get("Content-Length") or 0)
            fault = proxy.next_fault(request)
            if fault is not None and fault.what == "cut":
                self.rfile.read(length // 2)
                self.close_connection = True
                return
            body = self.rfile.read(length)
            if fault is not None and isinstance(fault.what, int):
                self.answer(fault.what, b"", fault.headers)
                return
            if fault is not None and fault.what == "slow":
                time.sleep(1)
            status, content, headers, size = proxy.passed_on(
                self.command, self.path, body, self.headers
            )
            if fault is not None and fault.what == "lie":
                content = content.replace(b'"schemaVersion":2', b'"schemaVersion": 2')
                content = content.replace(b'"schemaVersion": 2', b'"schemaVersion":  2')
            self.answer(status, content, headers, size)

        def answer(
            self, status: int, content: bytes, headers: dict[str, str], size: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + proxy.ahead)

    with listening(Server(("127.0.0.1", 0), Handler)) as address:
        proxy = Proxy(address, registry, subjects={} if referring else None)
        yield proxy


Request = BaseHTTPRequestHandler
Reply = tuple[int, dict[str, str], bytes]
"""Status, headers and content of a response."""
Answer = Callable[[Request], Reply]
NO_BLOB = f"sha256:{'0' * 64}"
"""The digest of nothing that a registry has."""


@contextmanager
def answering(
    answer: Answer, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[Request]]]:
    """A server that sends what ``answer`` returns: its address, and the requests so far."""
    requests_so_far: list[Request] = []

    class Handler(Quiet):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests_so_far.append(self)
            status, headers, content = answer(self)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with listening(server) as address:
        yield address, requests_so_far


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's configuration file in the test's own directory; no proxy is configured."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config.json"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Debian's docker-registry on a loopback port: its address."""
    with serving(tmp_path / "registry", CONFIGURATION) as address:
        yield address


@contextmanager
def serving(root: Path, configuration: str) -> Iterator[str]:
    """Debian's docker-registry on a loopback port, with its files at ``root``: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = root.with_suffix(".yml")
    file.write_text(configuration.format(root=root, port=port))
    with subprocess.Popen(
        # It ends with the tests, also with ones that are killed.
        ["setpriv", "--pdeathsig=KILL", "docker-registry", "serve", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/v2/")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(url: str) -> None:
    for _ in range(100):
        try:
            if requests.get(url, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    pytest.fail("the registry did not answer")


def put_image(repository: Repository, name: str, tag: str = "", **labels: str) -> Manifest:
    """An image of one label more than it needs, under its digest and perhaps a tag."""
    told = {"builder.key": name, **{key.replace("_", "."): text for key, text in labels.items()}}
    config = json.dumps({"config": {"Labels": told}}).encode()
    repository.put_bytes(config)
    descriptor = {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": Manifest(config, "").digest,
        "size": len(config),
    }
    parts = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "config": descriptor,
        "layers": [],
    }
    manifest = Manifest(json.dumps(parts).encode(), MANIFESTS[0])
    repository.put_manifest(tag or manifest.digest, manifest)
    return manifest


def attach(
    repository: Repository,
    subject: Manifest,
    kind: str,
    annotations: Mapping[str, str],
    files: Sequence[AttachedFile] = (),
) -> str:
    """Attach an artifact of the type ``kind`` to an image; the artifact's digest."""
    wanted = Attachment(kind, tuple(files), annotations)
    return attach_all(repository, subject, [wanted])[0]
