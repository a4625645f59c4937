"""What vouches for the image of a registry that this machine did not build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.build import BuildSession
from builder.cli.session import build_session
from builder.core.errors import BuildError, UnvouchedError
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver
from builder.publish.registry import Repository
from builder.upstream.night import _ready
from support.registries import put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_the_comparing_build_takes_no_layer_from_a_cache(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote the image may have written the layers, too."""
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BUILDER_LAYER_CACHE", f"{registry}/me/cache")
    session = build_session()
    assert session.settings.layer_cache
    plan = Resolver(session.catalog, "amd64").resolve("hello-sm120-0.1.0")
    repository = Repository(f"{registry}/me/hello-sm120", print)
    put_image(repository, plan.key, plan.immutable_tag)
    started: list[BuildSession] = []

    def build(_: Plan, session: BuildSession) -> None:
        started.append(session)
        raise BuildError("it is not built by this test")

    monkeypatch.setattr("builder.upstream.night.pipeline.build", build)
    with pytest.raises(BuildError, match="not built by this test") as caught:
        _ready(session, plan, repository, tmp_path)
    assert isinstance(caught.value.__context__, UnvouchedError)
    (one,) = started
    assert one.rebuild
    assert replace(one, rebuild=False) == session
    with one.active("again") as again, session.active("first") as first:
        assert not again.settings.layer_cache
        assert first.settings == session.settings
