"""A container of a run that is there already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.core.errors import BusyError
from builder.presets.images import RunImage
from builder.presets.run import Found, identity, running_already
from builder.presets.service import Service, ServiceOption
from support.services import BASE

THERE = Found("0" * 64, "running", identity(BASE), 9000, "", BASE.image, "1" * 64)
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
            replace(THERE, key="2" * 64),
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
        (BASE, replace(THERE, run=""), None, "`builder run` did not start it"),
    ],
)
def test_another_run_under_its_name(
    service: Service, there: Found, port: int | None, why: str
) -> None:
    with pytest.raises(BusyError) as caught:
        running_already(service, there, port, IMAGE)
    assert caught.value.why == why
    assert caught.value.hint == "stop it first: docker rm --force builder-a"


def test_the_port_is_no_part_of_the_identity() -> None:
    assert identity(replace(BASE, published=1)) == identity(BASE)
    assert identity(replace(BASE, image="b")) != identity(BASE)
