"""Which tags are nightlies of a channel."""

from __future__ import annotations

import pytest

from builder.publish.prune import is_nightly


@pytest.mark.parametrize(
    ("tag", "channel", "names", "expected"),
    [
        ("master-b9900-0123456789ab", "master", (), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly", (), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly-main", ("nightly",), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly", ("nightly-main",), False),
        ("nightly-1acd67a-0123456789ab", "nightly", ("nightly-1acd67a",), False),
        ("nightly-v0.20.2-0123456789ab", "nightly", ("nightly-v0.20",), True),
        ("nightly-0123456789ab", "nightly", (), False),
        ("nightly", "nightly", (), False),
        ("nightly-b1-0123456789AB", "nightly", (), False),
        ("nightly-b1-0123456789abc", "nightly", (), False),
        ("nightlyx-b1-0123456789ab", "nightly", (), False),
        ("0.1.0-0123456789ab", "nightly", (), False),
        ("a.c-b1-0123456789ab", "a.c", (), True),
        ("abc-b1-0123456789ab", "a.c", (), False),
    ],
)
def test_what_a_nightly_is_called(
    tag: str, channel: str, names: tuple[str, ...], expected: bool
) -> None:
    assert is_nightly(tag, channel, names) is expected
