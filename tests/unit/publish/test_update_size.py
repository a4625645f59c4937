"""The size of an update: images of a real registry compared by their layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RegistryError
from builder.core.log import Log
from builder.docker.containers import Blobs
from builder.engines.layout import BASE_DIGEST, BASE_NAME
from builder.publish import push, tags
from builder.publish import tags as tag_history
from builder.publish.registry import (
    Manifest,
    RemotePlatform,
    Repository,
    Update,
    blobs_of,
    images_in,
    remote_image,
    require_within,
    updates_of,
)
from builder.publish.signing import UNSIGNED
from support.prunes import BASE, LAYER, image, index
from support.registries import Fault, proxied, put_image

pytestmark = pytest.mark.usefixtures("docker_config")
PLATFORMS = ("linux/amd64", "linux/arm64")
BIG = bytes(range(256)) * 8000  # 2 MB
ZSTD = LAYER.replace("gzip", "zstd")


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/me/x", print)


def config(base: str = "builder-base/cuda:runtime-1", digest: str = "sha256:1") -> dict[str, Any]:
    """A configuration on a base, of an image with a layer of the base and two of its own."""
    steps = ("FROM", "RUN compile", "COPY /out/ /")
    history = [{"created_by": step} for step in steps]
    history.insert(1, {"created_by": "ENV A=b", "empty_layer": True})
    labels = {"builder.key": "k", BASE_NAME: base, BASE_DIGEST: digest}
    return {"config": {"Labels": labels}, "history": history}


def sizes(made: Manifest) -> list[int]:
    return [layer.size for layer in made.body.layers or ()]


def update(repository: Repository, before: Manifest, after: Manifest) -> Update:
    (found,) = updates(repository, before.digest, after)
    return found


def updates(
    repository: Repository, before: str, after: Manifest, log: Log = print
) -> tuple[Update, ...]:
    images = images_in(repository, after)
    return updates_of(repository, ("latest",), before, images, log, PLATFORMS)


def test_only_layers_that_the_image_before_lacks_are_downloaded(repository: Repository) -> None:
    said: list[str] = []
    first, second = image(repository, day=1), image(repository, day=2, layers=[BIG])
    found = update(repository, first, second)
    assert (found.size, found.download) == (sum(sizes(second)[1:]), sum(sizes(second)))
    assert found.before == first.digest
    assert found.text == "2.0 MB for somebody who has the image of latest, 2.1 MB anew"
    assert update(repository, second, second).size == 0
    assert updates(repository, "", second) == ()
    assert updates(repository, f"sha256:{'0' * 64}", second, said.append) == ()
    assert said == [
        "the update of latest cannot be measured, so no [budget] limits it: the image before, "
        f"sha256:{'0' * 64}, is gone or cannot be read; its platforms are not known either"
    ]
    # In an index, the image for its platform counts; a layer that is there twice is got once.
    twice = image(repository, day=3, layers=[BIG, BIG, BASE])
    found = update(repository, index(repository, "i", of=[first]), twice)
    assert (found.size, found.download) == (sum(sizes(twice)[1:3]), sum(sizes(twice)[:3]))


def for_arm64(repository: Repository, day: int, **options: Any) -> Manifest:
    told = config() | {"os": "linux", "architecture": "arm64"}
    return image(repository, day=day, config=told, **options)


def test_images_of_several_platforms_are_compared_one_by_one(repository: Repository) -> None:
    both = ("amd64", "arm64")
    first = [image(repository, day=1, layers=[BIG]), for_arm64(repository, 1)]
    second = [image(repository, day=2, layers=[BIG]), for_arm64(repository, 2, layers=[BIG])]
    before = index(repository, "before", of=first, architectures=both)
    after = index(repository, "after", of=second, architectures=both)
    amd64, arm64 = found = updates(repository, before.digest, after)
    assert (amd64.size, arm64.size) == (sizes(second[0])[1], sum(sizes(second[1])[1:]))
    said = "2.0 MB for somebody who has the image of latest for linux/arm64, 2.1 MB anew"
    assert arm64.text == said
    # Each has the whole budget, and the error names the platform that exceeds it.
    with pytest.raises(RegistryError, match=r"x: the update has more than the 1 MB of") as caught:
        require_within(found, 1, print, "x", "y")
    assert caught.value.why == f"download: {said}"
    for budget in (3, None):
        require_within(found, budget, print, "x", "y")
    # A tag that pointed to the image of one platform is an update for that platform alone.
    (found_,) = updates(repository, first[0].digest, after)
    assert (found_.platform, found_.size) == ("linux/amd64", sizes(second[0])[1])
    (back,) = updates(repository, after.digest, first[1])
    assert (back.platform, back.size) == ("", sizes(first[1])[1])
    assert updates(repository, first[0].digest, first[1]) == ()
    # An index has the labels of its image for amd64; each platform has a size.
    seen = remote_image(repository, "after")
    assert seen is not None
    images = [RemotePlatform(each.digest, sum(sizes(each)), "k") for each in second]
    assert seen.platforms == dict(zip(("linux/amd64", "linux/arm64"), images, strict=True))
    assert (seen.digest, seen.download_size) == (after.digest, images[0].download_size)
    done = [tags.move(repository, "latest", each.digest, "so") for each in (before, after)][1]
    assert done.update == arm64.size
    (last, _) = tag_history.moves(repository, "latest", UNSIGNED)
    assert last.updates == {"linux/amd64": amd64.size, "linux/arm64": arm64.size}
    assert last.update == arm64.size


def test_a_tag_moves_away_from_an_image_that_cannot_be_read(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = index(repository, "inner", of=[image(repository, day=1)])
    nested = index(repository, "latest", of=[inner])
    assert images_in(repository, nested) == ()
    second = image(repository, day=2)
    done = tags.move(repository, "latest", second.digest, "an image again")
    assert (done.before, done.update) == (nested.digest, None)
    told = "the update of latest cannot be measured, so no [budget] limits it: the image before, "
    assert f"{told}{nested.digest}, is gone" in capsys.readouterr().out
    assert repository.resolve("latest") == second.digest


def test_a_tag_loses_no_platform_without_a_word(repository: Repository) -> None:
    amd64 = image(repository, day=1, config=config() | {"os": "linux", "architecture": "amd64"})
    arm64 = for_arm64(repository, 1)
    both = index(repository, "1", of=[amd64, arm64], architectures=("amd64", "arm64"))
    tags.move(repository, "latest", both.digest, "first")
    for lost, to, by in (
        ("linux/arm64", amd64, ""),
        ("linux/amd64", arm64, "rollback"),
        ("linux/arm64", index(repository, "half", of=[amd64]), "night"),
        ("linux/amd64 and linux/arm64", put_image(repository, "of no platform"), ""),
    ):
        with pytest.raises(RegistryError, match=f"latest would lose {lost}:") as caught:
            tags.move(repository, "latest", to.digest, "so", by=by)  # type: ignore[arg-type]
        for each in lost.split(" and "):
            assert f"--drop-platform {each}" in caught.value.hint
        assert repository.resolve("latest") == both.digest
    with pytest.raises(RegistryError, match="would lose linux/arm64"):
        tags.move(repository, "latest", amd64.digest, "so", dropped=["linux/amd64"])
    tags.move(repository, "latest", amd64.digest, "so", dropped=["linux/arm64"])
    assert repository.resolve("latest") == amd64.digest
    # An image of one platform is not replaced by another one's.
    with pytest.raises(RegistryError, match="would lose linux/amd64"):
        tags.move(repository, "latest", arm64.digest, "so")
    tags.move(repository, "latest", both.digest, "all of them")
    assert repository.resolve("latest") == both.digest


def test_a_move_notes_the_size_of_its_update(repository: Repository) -> None:
    first, second = image(repository, day=1), image(repository, day=2, layers=[BIG])
    assert tags.move(repository, "latest", first.digest, "first").update is None
    asked = []

    def refuse(found: Sequence[Update]) -> None:
        asked.append([each.size for each in found])
        raise RegistryError("too large")

    with pytest.raises(RegistryError, match="too large"):
        tags.move(repository, "latest", second.digest, "second", approve=refuse)
    size = sum(sizes(second)[1:])
    assert asked == [[size]]
    assert repository.resolve("latest") == first.digest
    assert tags.move(repository, "latest", second.digest, "second").update == size
    assert [move.update for move in tag_history.moves(repository, "latest", UNSIGNED)] == [
        size,
        None,
    ]
    last = tag_history.last_note(repository, "latest", second.digest, UNSIGNED)
    assert last is not None
    assert (last.move.reason, last.move.update) == ("second", size)


@pytest.mark.parametrize("status", [415, 500])
def test_a_registry_that_takes_no_zstd_says_what_to_do(
    repository: Repository, tmp_path: Path, status: int
) -> None:
    made = {kind: image(repository, day=1, layer_type=kind) for kind in (LAYER, ZSTD)}
    for blob in {blob for each in made.values() for blob in blobs_of(each)}:
        (tmp_path / blob.removeprefix("sha256:")).write_bytes(repository.blob(blob))
    blobs = Blobs(tmp_path, {})
    with proxied(repository.registry) as proxy:
        through = Repository(f"{proxy.address}/me/x", print)
        for kind, manifest in made.items():
            proxy.faults = [Fault("PUT .*manifests", status, 1)]
            if status == 500:  # it passes
                push.upload(through, push.LocalImage(manifest, blobs))
                continue
            with pytest.raises(RegistryError, match="415 Unsupported") as caught:
                push.upload(through, push.LocalImage(manifest, blobs))
            assert ("compression" in caught.value.hint) == (kind == ZSTD)
