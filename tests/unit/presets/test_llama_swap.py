"""llama-swap: its command, as it is split, is the service's command."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from builder.core.errors import RecipeError
from builder.presets import exports
from builder.presets.service import STOP, Service, ServiceOption
from support.services import BASE, HOSTILE, SERVICES, services


def model_of(service: Service) -> dict[str, Any]:
    """The only model of the file."""
    text = exports.llama_swap(service)
    found = yaml.safe_load(text)
    assert set(found) == {"models", "healthCheckTimeout"}
    (model,) = found["models"].values()
    keys = {"cmd", "cmdStop", "proxy", "checkEndpoint", "description", "aliases", "ttl"}
    assert set(model) - {"name", "useModelName"} == {*keys, "unloadTimeout"}
    return dict(model)


def assert_started(service: Service) -> None:
    model = model_of(service)
    assert re.findall(r"\$\{\w*\}?", model["cmd"]) == ["${PORT}"]  # no other macro
    words = shlex.split(model["cmd"].replace("${PORT}", "5800"))
    assert words[:2] == ["sh", "-c"]
    words = words[words.index("docker") :]
    place = words.index(service.image)
    assert words[place + 1 :] == service.words
    assert words[:4] == ["docker", "run", "--rm", f"--name={service.name}"]
    assert f"--publish=127.0.0.1:5800:{service.port}" in words
    assert not {"--detach", "--restart"} & {word.split("=")[0] for word in words[:place]}
    given = [word.removeprefix("--env=") for word in words[:place] if word.startswith("--env=")]
    assert given == [f"{each.name}={each.value}" for each in service.environment]


def is_text(service: Service) -> bool:
    texts = [*service.words, *(each.value for each in service.environment)]
    return all(each.isprintable() for text in texts for each in text)


@settings(max_examples=100, deadline=None)
@given(services())
def test_any_argument_reaches_docker_as_it_is(service: Service) -> None:
    if is_text(service):
        assert_started(service)
        return
    with pytest.raises(RecipeError, match="llama-swap cannot pass"):
        exports.llama_swap(service)


def test_hostile_arguments_reach_docker_as_they_are() -> None:
    kept = tuple(ServiceOption((text, "--option"), text) for text in HOSTILE if text.isprintable())
    assert len(kept) > 30
    assert_started(replace(BASE, arguments=kept))


@pytest.mark.parametrize("name", SERVICES)
def test_a_published_preset(name: str) -> None:
    service = SERVICES[name]
    assert_started(service)
    model = model_of(service)
    assert model["cmdStop"] == f"docker stop {service.name}"
    assert model["proxy"] == "http://127.0.0.1:${PORT}"
    assert model["checkEndpoint"] == service.health
    assert model["aliases"] == [name.partition("@")[0]]
    assert model["name"] == service.model
    assert model["unloadTimeout"] > STOP
    names = yaml.safe_load(exports.llama_swap(service))["models"]
    assert [*names] == [name]


def test_vllm_is_asked_by_the_name_that_it_knows() -> None:
    named = model_of(SERVICES["gemma-4-e4b-mtp@5090-laptop"])
    assert named["useModelName"] == "gemma-4-e4b-mtp"
    path = model_of(SERVICES["gemma-4-26b-a4b-awq@5090-laptop"])
    assert path["useModelName"] == "gemma-4-26b-a4b-awq"
    assert "useModelName" not in model_of(SERVICES["qwen3.6-27b-dflash@5090-laptop"])
