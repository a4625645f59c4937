"""A version tag does not move, also where no recipe of the catalog has it."""

from __future__ import annotations

import pytest

from builder.core.errors import RegistryError
from builder.publish import tags
from builder.publish.attachments import RECIPE
from builder.publish.push import PushTags
from builder.publish.registry import Repository
from builder.publish.signing import UNSIGNED
from builder.publish.tags import Tags, past_moves, require_moving
from builder.publish.verdicts import AttachedFile, attach_all
from support.prunes import PATH
from support.registries import attach, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/{PATH}", print)


def moves(repository: Repository, tag: str) -> bool:
    try:
        require_moving([], repository, "hello-sm120", tag, UNSIGNED)
    except RegistryError:
        return False
    return True


def test_only_a_tag_with_a_history_moves(repository: Repository) -> None:
    labels = {"org_opencontainers_image_version": "0.1", "builder_recipe": "hello-0.1"}
    image = put_image(repository, "k", **labels)
    for tag in ("0.1", "unknown"):
        repository.put_manifest(tag, image)
    with pytest.raises(RegistryError, match=r"0\.1 is the version tag of hello-0\.1"):
        require_moving([], repository, "hello-sm120", "0.1", UNSIGNED)
    with pytest.raises(RegistryError, match="unknown is not known to move"):
        require_moving([], repository, "hello-sm120", "unknown", UNSIGNED)
    # A new tag may be any, and moves from then on.
    assert moves(repository, "new")
    tags.move(repository, "new", image.digest, "so")
    assert moves(repository, "new")


def test_a_version_tag_that_was_replaced_once_does_not_move_by_that(
    repository: Repository,
) -> None:
    first, second, third = (put_image(repository, name) for name in ("a", "b", "c"))
    repository.put_manifest("stable", first)
    for image in (second, third):
        wanted = Tags(f"1-{image.digest[7:19]}", ("stable",), ())
        known = repository.tags()
        order = PushTags(repository, "x", wanted, image.digest, known, replace=True)
        attach_all(repository, image, order.notes((), "it was broken", {}, UNSIGNED))
        order.give(lambda image=image: image)  # type: ignore[misc]
        assert past_moves(repository, "stable", UNSIGNED)[0].by == "replacement"
        assert not moves(repository, "stable")
    assert len(past_moves(repository, "stable", UNSIGNED)) == 2
    # What was moved by hand as well does move.
    tags.move(repository, "stable", first.digest, "back")
    assert moves(repository, "stable")


@pytest.mark.parametrize("moved", ["1-0123456789ab", "latest", "1"])
def test_a_push_does_not_override_who_moved_a_tag_later(repository: Repository, moved: str) -> None:
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    wanted = Tags("1-0123456789ab", ("1",), ("latest",))
    order = PushTags(repository, "x", wanted, ours.digest, repository.tags())
    repository.put_manifest(moved, theirs)  # by another machine
    with pytest.raises(RegistryError, match="was moved by another client") as caught:
        order.give(lambda: ours)
    assert repository.resolve(moved) == theirs.digest
    if moved != wanted.immutable:
        assert "these tags were already pushed: 1-0123456789ab" in caught.value.why


@pytest.mark.parametrize(
    "text",
    ["[image", "[image]\ntags = 5", "image = 5", "[image]\nmoving = [5]", "a = " + "[" * 9000],
)
def test_a_damaged_recipe_says_nothing(repository: Repository, text: str) -> None:
    image = put_image(repository, "k")
    repository.put_manifest("latest", image)
    attach(repository, image, RECIPE, {}, [AttachedFile("x.toml", RECIPE, text.encode())])
    assert not moves(repository, "latest")
