"""Published images as bases: what a base may set."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.family_recipes import (
    DIGEST,
    base_problems,
)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (f'[published]\nimage = "a/b:1"\n{DIGEST}', ""),
        ('[published]\nimage = "a/b:1"\nnote = "so"\n', ""),
        ('[published]\nimage = "a/b:1"\n', "give its digest, or the reason why not in note"),
        (f'[published]\nimage = "a/b"\n{DIGEST}', "must be an image with its tag"),
        (f'[published]\nimage = "--x:1"\n{DIGEST}', "must be an image with its tag"),
        ("", "needs a [published] table"),
        (
            f'base = "debian-trixie"\n[published]\nimage = "a/b:1"\n{DIGEST}',
            "has no base",
        ),
        (
            f'[published]\nimage = "a/b:1"\n{DIGEST}[runtime]\npackages = ["jq"]\n',
            "used unchanged",
        ),
    ],
)
def test_a_published_base(catalog: Path, parts: str, message: str) -> None:
    found = base_problems(catalog, "published", parts)
    assert message in found if message else not found
