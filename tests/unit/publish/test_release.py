"""A push that loses a tag to another machine: it goes on only where that gave the immutable one."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import TagMovedError
from builder.publish.push import Pushed
from builder.publish.push_tags import push_tags
from builder.publish.release import push_again_where_moved
from builder.publish.tags import Tags
from builder.publish.verdicts import UNSIGNED
from builder.tools.registry.client import Repository
from support.prunes import PATH
from support.registries import put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]
TAGS = Tags("1-0123456789ab", ("1",), ("latest",))


@pytest.mark.parametrize(("moved", "pushes"), [(TAGS.immutable, 2), ("latest", 1), ("1", 1)])
def test_a_push_does_not_override_who_moved_a_tag_later(
    registry: str, tmp_path: Path, moved: str, pushes: int
) -> None:
    repository = Repository(f"{registry}/{PATH}", print)
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    folders: list[Path] = []

    def push_once(work: Path) -> Pushed:
        folders.append(work)
        order = push_tags(repository, "x", TAGS, ours.digest, repository.tags())
        planned = order.plan((), "so", {}, UNSIGNED)
        repository.put_manifest(moved, theirs)  # by another machine
        order.give(lambda: ours, planned, UNSIGNED)
        raise AssertionError

    with pytest.raises((TagMovedError, AssertionError)) as caught:
        push_again_where_moved(push_once, [TAGS.immutable], print, tmp_path)
    assert len(folders) == pushes
    if pushes == 1:
        assert isinstance(caught.value, TagMovedError)
        assert caught.value.tag == moved
        assert "these tags were already pushed: 1-0123456789ab" in caught.value.why
        assert repository.resolve(moved) == theirs.digest
