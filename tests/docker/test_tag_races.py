"""Two clients that move one tag at once, on a registry that ignores If-Match."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from builder.errors import RegistryError
from builder.publish import tag_history
from builder.publish import tags as publish_tags
from builder.publish.tag_history import Move
from builder.publish.verdicts import UNSIGNED
from builder.tools.registry.client import Repository
from support.prunes import PATH
from support.registries import put_image
from support.turns import Work, interleavings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]
SWITCHES = int(os.environ.get("BUILDER_TEST_SWITCHES", "2"))
"""Between the clients in one order; more find more, and take longer."""


@pytest.mark.parametrize("first", [True, False], ids=["a tag that is there", "a new tag"])
def test_of_two_moves_at_once_at_most_one_succeeds_and_stays(
    registry: str, repository: Repository, *, first: bool
) -> None:
    """No move that reported success is lost from the tag, or from its history."""
    start, *ends = (put_image(repository, name).digest for name in ("start", "one", "two"))
    outcomes: Counter[int] = Counter()

    def works(number: int) -> Sequence[Work]:
        tag = f"t{number}"
        if first:
            publish_tags.move(repository, tag, start, "first")

        def work(client: int) -> Work:
            def move(address: str) -> Move:
                mine = Repository(f"{address}/{PATH}", lambda _: None)
                before = start if first else ""
                return publish_tags.move(mine, tag, ends[client], f"by {client}", before=before)

            return move

        return [work(0), work(1)]

    requests = r"manifests/t\d+(\.moves)?$"
    for number, (order, results) in enumerate(interleavings(registry, requests, works, SWITCHES)):
        good = [client for client, result in enumerate(results) if isinstance(result, Move)]
        bad = [result for result in results if not isinstance(result, Move)]
        assert all(isinstance(each, RegistryError) and each.hint for each in bad), (order, bad)
        outcomes[len(good)] += 1
        assert len(good) <= 1, (order, results)
        tag = f"t{number}"
        told = [move.reason for move in tag_history.moves(repository, tag, UNSIGNED)]
        there = repository.head_digest(tag)
        assert there in ends, order
        if good:
            assert there == ends[good[0]], (order, results)
        else:  # one of the reports says where the tag is
            assert any(there in str(each) for each in bad), (order, bad)
        assert told == [f"by {ends.index(there)}", *(["first"] if first else [])], order
    assert outcomes[1] > 4 * outcomes[0]
