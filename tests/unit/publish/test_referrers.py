"""What is attached to an image, as registries list it: real servers on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.publish import nights
from builder.publish.prune import survey
from builder.publish.registry import MANIFESTS, Manifest, Repository
from builder.publish.verdicts import (
    UNSIGNED,
    AttachedFile,
    referrers,
    referrers_tag,
    require_attachments,
)
from support.registries import (
    CONFIGURATION,
    NO_BLOB,
    Proxy,
    Refusal,
    Reply,
    Request,
    answering,
    attach,
    immutable,
    proxied,
    put_image,
    serving,
)

KINDS = ["a/1", "a/2", "a/3"]


def test_referrers_of_every_page() -> None:
    def front(request: Request) -> Reply:
        first = "page" not in request.path
        headers = {"Content-Type": MANIFESTS[1]}
        if first:
            headers["Link"] = f"<{request.path}?page=2>; rel=next"
        entry = {"digest": "sha256:" + ("1" if first else "2") * 64}
        return 200, headers, json.dumps({"manifests": [entry]}).encode()

    with answering(front) as (address, _):
        found = referrers(Repository(f"{address}/me/x", print), NO_BLOB, ())
    assert [entry["digest"] for entry in found] == ["sha256:" + each * 64 for each in "12"]


def of(repository: Repository, subject: Manifest) -> list[str]:
    """The types of what is listed, by a client that knows nothing yet."""
    fresh = Repository(repository.name, print)
    return [entry["artifactType"] for entry in referrers(fresh, subject.digest)]


def pruned(repository: Repository) -> set[str]:
    """The digests that ``tag prune`` knows as attached to an image of the repository."""
    return {each for image in survey(repository, "nightly", UNSIGNED) for each in image.attached}


@pytest.mark.parametrize(
    "quirks",
    [
        {},
        {"subjects": {}},
        {"subjects": {}, "lists_nothing": True},
        {"told_only": True},
        {"subjects": {}, "by_digest": True},
    ],
    ids=["tag", "api", "empty api", "told only", "tag is the image"],
)
def test_an_attachment_is_found_again(quirks: dict[str, object], tmp_path: Path) -> None:
    with (
        serving(tmp_path / "registry", CONFIGURATION) as registry,
        proxied(registry) as proxy,
    ):
        vars(proxy).update(quirks)
        repository = Repository(f"{proxy.address}/me/x", print)
        subject = put_image(repository, "k1", "nightly")
        made = [attach(repository, subject, kind, {}) for kind in (*KINDS, KINDS[0])]
        assert of(repository, subject) == KINDS
        assert {*made} <= pruned(repository)
        assert subject.digest not in pruned(repository)
        lists = proxy.count(f"PUT .*/{referrers_tag(subject.digest)}")
        assert lists == (0 if "subjects" in quirks and "lists_nothing" not in quirks else 3)


def test_an_index_is_not_a_list_of_attachments(tmp_path: Path) -> None:
    """GitLab answers for the tag of the list with the image: of an index, its platforms."""
    with (
        serving(tmp_path / "registry", CONFIGURATION) as registry,
        proxied(registry) as proxy,
    ):
        proxy.by_digest = True
        repository = Repository(f"{proxy.address}/me/x", print)
        part = put_image(repository, "k1")
        entry = {"mediaType": part.media_type, "digest": part.digest, "size": len(part.content)}
        told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": [entry]}
        index = Manifest(json.dumps(told).encode(), MANIFESTS[1])
        repository.put_manifest("1", index)
        assert of(repository, index) == []
        proxy.subjects = {}
        attach(repository, index, KINDS[0], {})
        assert of(repository, index) == KINDS[:1]


def test_a_registry_that_gets_the_api_later(tmp_path: Path) -> None:
    """The API knows only what was put since: the tag has the rest."""
    with (
        serving(tmp_path / "registry", CONFIGURATION) as registry,
        proxied(registry) as proxy,
    ):
        repository = Repository(f"{proxy.address}/me/x", print)
        subject = put_image(repository, "k1", "nightly")
        old = attach(repository, subject, KINDS[0], {}, [AttachedFile("f", "a/f", b"1")])
        proxy.subjects = {}
        new = attach(Repository(repository.name, print), subject, KINDS[1], {})
        assert of(repository, subject) == [KINDS[1], KINDS[0]]
        assert {old, new} <= pruned(repository)
        # and away again: an outage, or another mirror
        vars(proxy).update(vars(Proxy(proxy.address, registry)))
        assert of(repository, subject) == [KINDS[0]]


# What a registry refuses is found with a tiny artifact, before anything large is uploaded.


def without(field: str, words: str = "") -> Refusal:
    """A registry that refuses manifests with a field (and some words in it)."""

    def refuse(method: str, path: str, content: bytes) -> tuple[int, str, str] | None:
        put = method == "PUT" and "/manifests/" in path
        found = json.dumps(json.loads(content).get(field)) if put else "null"
        refused = found != "null" and words in found
        return (400, "MANIFEST_INVALID", f"unknown {field}") if refused else None

    return refuse


@contextmanager
def standing(tmp_path: Path) -> Iterator[tuple[Proxy, Repository]]:
    with (
        serving(tmp_path / "registry", CONFIGURATION) as registry,
        proxied(registry) as proxy,
    ):
        yield proxy, Repository(f"{proxy.address}/me/x", print)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (without("artifactType"), "an artifact of the type urn:builder:verdict:v1"),
        (without("config", "vnd.oci.empty"), "configuration of the type application/vnd.oci.emp"),
        (without("subject"), "a manifest with a subject"),
        (immutable("sha256-"), "a tag that moves: sha256-"),
    ],
    ids=["type", "configuration", "subject", "tag"],
)
def test_a_refusal_is_found_before_an_upload(refusal: Refusal, words: str, tmp_path: Path) -> None:
    with standing(tmp_path) as (proxy, repository):
        require_attachments(repository)
        proxy.refuse = refusal
        for _ in range(2):  # what an earlier try left behind changes nothing
            with pytest.raises(RegistryError) as caught:
                require_attachments(Repository(repository.name, print))
            assert f"{proxy.address} does not take" in caught.value.what
            assert words in caught.value.what
            assert caught.value.why.rpartition("\n")[2]
            assert "check the name of the repository" not in caught.value.hint
        proxy.refuse = lambda *_: None
        require_attachments(Repository(repository.name, print))
        assert repository.tags() == []


def test_a_registry_with_the_api_needs_no_tag_that_moves(tmp_path: Path) -> None:
    with standing(tmp_path) as (proxy, repository):
        proxy.refuse, proxy.subjects = immutable("sha256-"), {}
        require_attachments(repository)


def test_a_registry_that_lists_nothing_is_told(tmp_path: Path) -> None:
    with standing(tmp_path) as (proxy, _):
        lines: list[str] = []
        proxy.by_digest = True
        require_attachments(Repository(f"{proxy.address}/me/x", lines.append))
        assert "lists no attachments" in "\n".join(lines)


def test_a_channel_whose_nights_may_not_move_is_found_before_the_build(tmp_path: Path) -> None:
    with standing(tmp_path) as (proxy, repository):
        proxy.refuse = immutable("")
        for _ in range(2):  # the first night, and the second one
            with pytest.raises(RegistryError, match="a tag may not move") as caught:
                nights.require_writable(repository, "master")
            assert "CHANNEL.nights" in caught.value.hint
        proxy.refuse = lambda *_: None
        run = nights.NightlyRun(
            recipe="x", channel="master", outcome="moved", started="2026-01-01", seconds=1.0
        )
        nights.write(repository, run)
        nights.require_writable(repository, "master")
        assert nights.nightly_runs(repository, "master") == [run]
