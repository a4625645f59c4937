"""Recipes with two platforms: their images are published with one index, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builder.publish import attachments
from builder.publish.registry import Repository
from builder.publish.verdicts import SLSA, VERDICT, kind_of, referrers
from support.platforms import Two
from support.publishing import own, verified
from support.registries import Proxy
from support.smoke_tests import docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("pushed"),
    pytest.mark.usefixtures("own_cache"),
]
AMD64, ARM64 = PLATFORMS = ("linux/amd64", "linux/arm64")
NAME = "me/builder-test/two"


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/{NAME}", print)


def tags(repository: Repository) -> dict[str, str]:
    """The digest of each tag that lists no referrers."""
    listed = repository.tags()
    named = [tag for tag in listed if not tag.startswith("sha256-")]
    return {tag: repository.head_digest(tag) for tag in named}


def kinds(repository: Repository, digest: str) -> set[str]:
    return {kind_of(each) for each in referrers(repository, digest)}


def test_an_index_of_the_images_gets_the_tags(
    two: Two, repository: Repository, proxy: Proxy
) -> None:
    records = two.images(amd64="ready\n", arm64="ready too\n")
    told = json.loads(two.run("push", "--json").stdout)
    digests = {platform: record["digest"] for platform, record in records.items()}
    assert told["platforms"] == digests
    immutable = told["tags"][0]
    index = dict.fromkeys([immutable, "1", "latest"], told["digest"])
    assert tags(repository) == {own(each): each["digest"] for each in records.values()} | index
    manifest = repository.manifest("1")
    assert manifest is not None
    parsed = manifest.parsed()
    found = [
        (f"{each['platform']['os']}/{each['platform']['architecture']}", each["digest"])
        for each in parsed["manifests"]
    ]
    assert found == [*digests.items()]
    assert parsed["annotations"]["org.opencontainers.image.version"] == "1"
    assert immutable == f"1-{parsed['annotations']['builder.key'][:12]}"
    for digest in digests.values():
        assert {VERDICT, attachments.SPDX, SLSA} <= kinds(repository, digest)
    # The index comes after the images, and the tags after the index.
    puts = [line.rpartition("/")[2] for line in proxy.requests if "PUT" in line]
    given = [
        name for name in puts if name in {*digests.values(), *tags(repository), *index.values()}
    ]
    assert given.index(told["digest"]) == 4
    assert given[5:] == [immutable, "1", "latest"]
    # The same inputs give the same index: nothing is uploaded again, and no tag moves.
    proxy.requests.clear()
    again = json.loads(two.run("push", "--json").stdout)
    assert (again["digest"], again["uploaded"]) == (told["digest"], 0)
    assert not proxy.count("PUT ")
    # Each image has its own documents; all have one recipe.
    for platform, record in records.items():
        shown = two.run("sbom", "--from", "latest", "--platform", platform)
        assert record["digest"] in shown.stdout
    done = two.run("sbom", "--from", "latest", expect=12)
    assert "latest is an index of several images" in done.stderr
    assert "name one of them: --platform linux/amd64" in done.stderr
    exported = two.run("recipe export", "1", "--dry-run").stdout
    assert (two.catalog / "recipes" / "two-1.toml").read_text() in exported
    # A client gets the image of its platform.
    name = f"{proxy.address}/{NAME}:latest"
    for platform, text in zip(PLATFORMS, ("ready\n", "ready too\n"), strict=True):
        docker("pull", "--quiet", f"--platform={platform}", name)
        container = docker("create", f"--platform={platform}", name, "none")
        copied = docker("cp", f"{container}:/data", "-")
        docker("rm", container)
        assert text in copied
    docker("image", "rm", "--force", name)


def test_nothing_is_pushed_before_all_platforms_are_verified(
    two: Two,
    repository: Repository,
    proxy: Proxy,
    key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    amd64 = two.images(amd64="ready\n")[AMD64]
    proxy.requests.clear()
    done = two.run("push", expect=4)
    assert "there is no verified image of the current recipe for linux/arm64" in done.stderr
    assert "push it from there: `builder push two-1 --platform linux/arm64`" in done.stderr
    with pytest.raises(AssertionError, match=r"1 of \d+ checks failed"):
        two.images(arm64="not yet\n")
    two.run("push", expect=4)
    assert "no index of them" not in two.run("tag promote", "s", "--reason", "x", expect=12).stderr
    assert not proxy.count("PUT ")
    # One machine has one image, another one the other: a key that both trust signs the verdicts.
    told = json.loads(two.run("push", "--platform", AMD64, "--json").stdout)
    assert (told["digest"], told["tags"]) == (amd64["digest"], [own(amd64)])
    docker("image", "rm", "--force", *amd64["references"])
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "elsewhere"))
    arm64 = two.images(arm64="ready too\n")[ARM64]
    done = two.run("tag promote", "stable", "--reason", "x", expect=12)
    assert "has no image of two-1 for linux/arm64" in done.stderr
    told = json.loads(two.run("push", "--json").stdout)
    assert told["platforms"] == {AMD64: amd64["digest"], ARM64: arm64["digest"]}
    assert tags(repository)["1"] == told["digest"]
    assert verified(f"{proxy.address}/{NAME}:1", key.with_name("cosign.pub"))
    two.run("tag promote", "stable", "--reason", "it works")
    assert tags(repository)["stable"] == told["digest"]


def test_no_command_takes_a_platform_from_a_tag_without_a_word(
    two: Two, repository: Repository
) -> None:
    records = two.images(amd64="ready\n", arm64="ready too\n")
    index = json.loads(two.run("push", "--json").stdout)["digest"]
    amd64 = records[AMD64]["digest"]
    because, drop = ("--reason", "so"), ("--drop-platform", ARM64)
    for command in ("tag promote", "tag rollback"):
        done = two.run(command, "latest", "--to", own(records[AMD64]), *because, expect=12)
        assert "latest would lose linux/arm64" in done.stderr
        assert "--drop-platform linux/arm64" in done.stderr
    two.run("tag promote", "latest", "--to", own(records[AMD64]), *because, *drop)
    assert tags(repository)["latest"] == amd64
    two.run("tag rollback", "latest", *because)  # to both: nothing is lost
    recipe = two.catalog / "recipes" / "two-1.toml"
    text = recipe.read_text().replace(', "linux/arm64"]', "]")
    recipe.write_text(text.replace('\n[cuda.arm64]\narch = ["121"]\n', ""))
    done = two.run("push", "--replace", *because, expect=12)
    assert "1 and latest would lose linux/arm64" in done.stderr
    assert tags(repository)["latest"] == tags(repository)["1"] == index
    two.run("push", "--replace", *because, *drop)
    assert tags(repository)["latest"] == tags(repository)["1"] == amd64


def test_each_platform_has_the_budget_of_updates(
    two: Two, repository: Repository, proxy: Proxy
) -> None:
    two.images(amd64="ready\n", arm64="ready\n")
    first = json.loads(two.run("push", "--json").stdout)
    recipe = two.catalog / "recipes" / "two-1.toml"
    text = recipe.read_text().replace('summary  = "A file', 'summary  = "Another file')
    recipe.write_text(f"{text}\n[budget]\nupdate = 1\n")
    large = f"ready {Random(1).randbytes(1_200_000).hex()}"
    records = two.images(amd64="ready, too\n", arm64=large)
    proxy.requests.clear()
    replace = ("--replace", "--reason", "more data")
    done = two.run("push", *replace, expect=12)
    assert "two-1 is not pushed: the update has more than the 1 MB of [budget]" in done.stderr
    said = "for somebody who has the image of 1 and latest for"
    assert f"download: 1.3 MB {said} linux/arm64" in done.stderr
    assert not proxy.count("PUT ")
    done = two.run("push", "--over-budget", *replace)
    assert f"replaced 1, which was {first['digest']}" in done.stdout
    assert f"download 0.0 MB {said} linux/amd64" in done.stdout
    now = tags(repository)
    assert now["1"] == now["latest"] != first["digest"]
    (last, _) = json.loads(two.run("tag history", "latest", "--json").stdout)
    assert [*last["updates"]] == [*PLATFORMS]
    assert last["updates"][AMD64] < 1000 < 1_200_000 < last["updates"][ARM64] == last["update"]
    assert "1.3 MB (linux/arm64)" in two.run("tag history", "latest").stdout
    two.run("tag rollback", "latest", "--reason", "it is too large")
    assert tags(repository)["latest"] == first["digest"]
    # The images keep their tags, and the index that has none of them any more stays by its own.
    kept: dict[str, Any] = tags(repository)
    assert {own(each) for each in records.values()} <= kept.keys()
