"""Containers of runs that are there already: compared with a run, and found by their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import BusyError, UsageError
from builder.core.settings import Settings
from builder.engines.layout import LABEL_KEY
from builder.presets.images import Images, LaunchRequest, RunImage, prepared
from builder.presets.run import compared, running_already
from builder.presets.servers import (
    LABEL_CATALOG,
    LABEL_NAME,
    LABEL_REQUEST,
    LABEL_RUN,
    LABEL_SETTINGS,
    Found,
    identity,
    labels_of,
    named,
)
from builder.presets.service import Service, ServiceOption
from support.services import BASE
from support.shipped import RECIPES

LAN = "0.0.0.0"  # noqa: S104  (nothing listens)
LABELS = {LABEL_RUN: identity(BASE), LABEL_KEY: "1" * 64}
THERE = Found("0" * 64, "builder-a", "running", BASE.image, LABELS, port=9000)
IMAGE = RunImage(BASE.image, key="1" * 64)


def test_the_address_is_that_of_the_container() -> None:
    for asked in (None, 9000):
        assert running_already(BASE, THERE, asked, IMAGE).url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("service", "there", "port", "why"),
    [
        (BASE, THERE, 9001, "its port is 9000"),
        (replace(BASE, image="b"), THERE, None, f"it runs the image {BASE.image}, and not b"),
        # By its tag alone, as the engine's classic store names it, the image is the same.
        (
            BASE,
            replace(THERE, labels={**LABELS, LABEL_KEY: "2" * 64}),
            None,
            f"its image has the build key {'2' * 12}, and {BASE.image} has {'1' * 12}",
        ),
        (BASE, replace(THERE, status="paused"), None, "it is paused"),
        (
            replace(BASE, arguments=(ServiceOption(("-c", "1")),)),
            THERE,
            None,
            "it has other options",
        ),
        (replace(BASE, listen=LAN), THERE, None, "it has other options"),
        (replace(BASE, restart="no"), THERE, None, "it has other options"),
        (BASE, replace(THERE, labels={}), None, "`builder run` did not start it"),
    ],
)
def test_another_run_under_its_name(
    service: Service, there: Found, port: int | None, why: str
) -> None:
    with pytest.raises(BusyError) as caught:
        running_already(service, there, port, IMAGE)
    assert caught.value.why == why
    how = "`builder stop builder-a`" if there.run else "docker rm --force builder-a"
    assert caught.value.hint == f"stop it first: {how}"


def test_the_port_is_no_part_of_the_identity() -> None:
    assert identity(replace(BASE, published=1)) == identity(BASE)
    assert identity(replace(BASE, image="b")) != identity(BASE)


def test_a_server_is_found_by_the_beginning_of_its_name_in_this_checkout_first() -> None:
    def server(name: str, title: str, root: str) -> Found:
        return Found(name, name, "running", labels={LABEL_NAME: title, LABEL_CATALOG: root})

    here, there = Path("/here"), "/there"
    servers = [
        server("builder-a-5090", "a@5090", there),
        server("builder-a-5090-12ab", "a@5090", "/here"),
        server("builder-a-b-5090", "a-b@5090", "/here"),
        server("builder-c", "c", there),
    ]
    found = {
        "a@5090": "builder-a-5090-12ab",
        "a-b": "builder-a-b-5090",
        "builder-a-5090": "builder-a-5090",  # a whole name
        "builder-a-5090-": "builder-a-5090-12ab",
        "builder-c": "builder-c",
    }
    assert {name: named(name, servers, here).name for name in found} == found
    with pytest.raises(UsageError, match="several servers") as caught:
        named("a", servers, here)
    assert caught.value.hint == "name one: builder-a-5090-12ab, builder-a-b-5090"
    for other in ("c", "builder-", ""):  # of another checkout
        with pytest.raises(UsageError):
            named(other, servers[:1] + servers[3:], here)
    with pytest.raises(UsageError, match="no server is named a@509O; did you mean a@5090"):
        named("a@509O", servers, here)


def test_a_server_is_compared_with_its_recipe_and_preset_of_today(tmp_path: Path) -> None:
    (model := tmp_path / "a.gguf").touch()
    preset = "qwen3.6-27b-dflash@5090-laptop"
    wanted = LaunchRequest(
        preset, {"model": model}, 4096, 9000, ("--mlock",), listen=LAN, key_file="none"
    )
    settings = Settings(state_dir=tmp_path)
    job = prepared(RECIPES, wanted, settings, print)
    key = min(Images(RECIPES, job.run.recipe, settings, print).keys)
    labels = {**labels_of(job), LABEL_RUN: "1", LABEL_KEY: key}

    def why(**changed: str) -> str:
        of = {"request": LABEL_REQUEST, "settings": LABEL_SETTINGS, "key": LABEL_KEY}
        own = {**labels, **{of[name]: value for name, value in changed.items()}}
        return compared(RECIPES, settings, print, Found("1", "a", "running", labels=own)).why

    assert Found("1", "a", "running", labels=labels).request == job.wanted
    assert why() == ""
    assert why(settings="0") == "its preset has changed"
    assert why(key="0" * 64) == "its image is older than its recipe"
    gone = labels[LABEL_REQUEST].replace(preset, "gone@5090")
    assert why(request=gone).endswith(", so it cannot be started anew")
    assert why(request="{}") == "not known: an older version of builder started it"
