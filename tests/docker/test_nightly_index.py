"""Nightly runs of a recipe with two platforms: the channel moves to both images, or stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.publish.registry import Repository
from support.platforms import Two, frozen_session, put_together, write_recipe
from support.upstreams import Upstream

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("pushed"),
    pytest.mark.usefixtures("own_cache"),
]
AMD64, ARM64 = PLATFORMS = ("linux/amd64", "linux/arm64")


@pytest.fixture
def upstream(two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """The repository that the recipe's channel follows; no Debian archive answers."""
    monkeypatch.setenv("BUILDER_DEBIAN_MIRROR", "http://127.0.0.1:9")
    found = Upstream(tmp_path / "upstream")
    commit = found.commit("one", CMakeLists__txt="project(two NONE)\n")
    found.git("tag", "b1")
    source = f'[source]\ngit = "{found.url}"\ncommit = "{commit}"'
    track = '[track]\ntag = "b*"\nchannel = "nightly"\nstill = 3650'
    write_recipe(two.catalog, source, track, ', "nightly"')
    return found


def images(two: Two, amd64: str, arm64: str) -> dict[str, str]:
    """Put the images of a night together; their immutable tags."""
    session, name = frozen_session(two.catalog)
    work = two.catalog.parent / "together"
    made = put_together(session, name, work, {AMD64: amd64, ARM64: arm64})
    two.made.update(name for image in made for name in image.references)
    return {image.platform: image.immutable_tag for image in made}


def night(two: Two, expect: int = 0) -> dict[str, Any]:
    done: list[dict[str, Any]] = json.loads(two.run("nightly", "--json", expect=expect).stdout)
    return done[0]


def tags(repository: Repository) -> set[str]:
    listed = repository.tags()
    return {tag for tag in listed if not tag.startswith("sha256-")}


def test_a_channel_moves_to_the_images_of_all_platforms_or_stays(
    two: Two, upstream: Upstream, registry: str
) -> None:
    repository = Repository(f"{registry}/me/builder-test/two", print)
    first_images = images(two, "ready\n", "ready\n")
    first = night(two)
    assert first["outcome"] == "moved", first["reason"]
    assert first["reason"].startswith("whether Debian has security updates is not known: ")
    channel = repository.manifest("nightly")
    assert channel is not None
    assert channel.digest == first["digest"]
    listed = [entry["digest"] for entry in channel.parsed()["manifests"]]
    assert listed == [repository.head_digest(tag) for tag in first_images.values()]
    before = tags(repository)
    assert {*first_images.values(), "nightly"} < before
    assert night(two)["outcome"] == "unchanged"

    upstream.commit("two", more__txt="more")
    upstream.git("tag", "b2")
    images(two, "ready again\n", "broken\n")
    failed = night(two, expect=13)
    assert failed["outcome"] == "failed"
    assert "1 of 2 images of two-nightly-b2 failed" in failed["reason"]
    assert "linux/arm64: " in failed["reason"]
    assert "linux/amd64: " not in failed["reason"]
    assert repository.head_digest("nightly") == first["digest"]
    assert tags(repository) == before | {"nightly.nights"}

    second_images = images(two, "ready again\n", "ready again, too\n")
    second = night(two)
    assert second["outcome"] == "moved", second["reason"]
    (status,) = json.loads(two.run("status", "--json").stdout)
    assert status["state"] == "current"
    assert (status["image"]["digest"], status["good"]["digest"]) == (second["digest"],) * 2
    assert [*status["updates"]] == [*status["image"]["platforms"]] == [*PLATFORMS]
    assert status["update"] == second["update"] == max(status["updates"].values()) > 0
    assert "download for linux/arm64: 0.0 MB for somebody" in two.run("status").stdout

    two.run("tag rollback", "nightly", "--reason", "it crashes")
    assert night(two)["outcome"] == "held"
    assert repository.head_digest("nightly") == first["digest"]
    shown = json.loads(two.run("tag prune", "--keep", "1", "--json").stdout)
    stays = {tag: each["stays"] for each in shown["nightlies"] for tag in each["tags"]}
    assert {*stays} == tags(repository) - {"nightly", "nightly.nights"}
    (newest,) = [tag for tag, why in stays.items() if why == "one of the newest 1"]
    for tag in second_images.values():
        assert stays[tag] == f"{newest} refers to it"
    for tag in first_images.values():
        assert stays[tag] == "nightly refers to it"
