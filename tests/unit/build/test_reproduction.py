"""One run at a time: two recipes may have the same bases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.compare import reproduce
from builder.cli.session import build_session
from builder.core.files import named_lock
from support.environment import REPOSITORY


class WaitingError(Exception):
    """In the place of a wait."""


class Reporter:
    def log(self, line: str, /) -> None:
        raise WaitingError(line)

    def on_progress(self, *_: object) -> None: ...

    def on_verdict(self, *_: object) -> None: ...


def test_another_recipe_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path))
    session = replace(build_session(root=REPOSITORY), reporter=Reporter())
    with (
        named_lock(tmp_path, "reproduce"),
        pytest.raises(WaitingError, match=r"waiting for process .* which reproduces an image"),
    ):
        reproduce(session, "cuda-13.0")
