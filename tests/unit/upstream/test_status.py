"""The status of channels and tags where no registry answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import web
from builder.core.errors import FetchError
from builder.core.settings import Settings
from builder.sources.mirrors import Repositories
from builder.upstream.status import require_fresh, statuses
from support.catalogs import load
from support.environment import REPOSITORY


def test_a_registry_that_does_not_answer_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "127.0.0.1:1"
    monkeypatch.setattr(web, "GIVEN_UP", {address})  # one attempt
    settings = Settings(namespace=f"{address}/me", cache_dir=tmp_path)
    names = ["llama-cpp-b9261", "llama-cpp-b9397", "vllm-0.20.2"]
    found = [*statuses(load(REPOSITORY), settings, names, Repositories(tmp_path, tmp_path, print))]
    with pytest.raises(FetchError) as caught:
        require_fresh(found)
    assert str(caught.value).count("does not answer") == 1
    assert f"{', '.join(names)}: {address} does not answer" in str(caught.value)
