"""A registry through our client: indexes, attachments, and many pushes at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.cli.session import build_session
from builder.core import web
from builder.core.errors import BuilderError, GoneError, RegistryError
from builder.plan.resolver import Resolver
from builder.publish import verdicts
from builder.publish.push import find_published
from builder.publish.registry import MANIFESTS, Manifest, Repository, remote_image
from support.prunes import CONFIG, PATH, unheard
from support.registries import Fault, attach, proxied, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_many_pushes_of_one_image_at_once(repository: Repository) -> None:
    """docker-registry loses sight of a blob for the moment in which it is uploaded again."""
    kinds = ["a/1", "a/2"]

    def push(number: int) -> str:
        mine = Repository(repository.name, print)
        made = put_image(mine, f"round {number}")
        for kind in kinds:
            file = verdicts.AttachedFile("x", kind, f"{kind} {number}".encode())
            attach(mine, made, kind, {}, [file])
        mine.put_tag(f"v{number}", made, "")
        return made.digest

    with ThreadPoolExecutor(4) as pool:
        for number in range(25):
            (digest,) = {*pool.map(push, [number] * 4)}
            assert repository.resolve(f"v{number}") == digest
            attached = verdicts.referrers(repository, digest)
            assert sorted(each["artifactType"] for each in attached) == kinds


def test_an_index_is_no_image_of_ours(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of its images runs depends on the machine: a verified one may hide another."""
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    session = build_session()
    rendered = Resolver(session.catalog, "amd64").resolve("hello-sm120-0.1.0")
    repository = Repository(f"{registry}/me/hello-sm120", print)
    good, evil = (put_image(repository, rendered.key, n=name) for name in ("good", "evil"))
    entries = [
        {"mediaType": each.media_type, "digest": each.digest, "size": len(each.content)}
        for each in (good, evil)
    ]
    entries[1]["platform"] = {"os": "linux", "architecture": "amd64"}
    told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": entries}
    index = Manifest(json.dumps(told).encode(), MANIFESTS[1])
    repository.put_manifest(rendered.immutable_tag, index)
    with pytest.raises(RegistryError, match="is an index of images"):
        find_published(session, rendered, repository, tmp_path)


def test_what_is_no_image_is_told(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    for content in (b'{"manifests": 1}', b'{"config": {}}', b'{"config": {"digest": 1}}'):
        parts = json.loads(content) | {"schemaVersion": 2, "mediaType": MANIFESTS[0]}
        manifest = Manifest(json.dumps(parts).encode(), MANIFESTS[0])
        front = Repository("127.0.0.1:1/x", print)
        front.manifest = lambda _, found=manifest: found  # type: ignore[method-assign,misc]
        with pytest.raises(BuilderError):
            remote_image(front, "x")
    assert remote_image(repository, "nothing") is None


def test_what_is_attached_is_listed_once(repository: Repository) -> None:
    subject = put_image(repository, "k1")
    for kind in ("a/0", "a/1", "a/0"):
        attach(repository, subject, kind, {})
    found = [entry["artifactType"] for entry in verdicts.referrers(repository, subject.digest)]
    assert found == ["a/0", "a/1"]


def test_a_blob_is_what_was_asked_for(registry: str, repository: Repository) -> None:
    content = b'{"schemaVersion":2}'
    repository.put_bytes(content)
    digest = Manifest(content, CONFIG).digest
    assert repository.blob(digest) == content
    with pytest.raises(GoneError, match="has no sha256:0000"):
        repository.blob(f"sha256:{'0' * 64}")
    with proxied(registry) as proxy:
        proxy.faults = [Fault("GET .*blobs", "lie", 1)]
        with pytest.raises(RegistryError, match="altered the content"):
            Repository(f"{proxy.address}/{PATH}", unheard).blob(digest)
