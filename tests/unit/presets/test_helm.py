"""The chart: its values name model and context once.  Helm itself: tests/network/test_helm.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml

from builder.presets import exports
from builder.presets.service import Service, ServiceOption
from support.services import BASE, KEYED, SERVICES


def files(service: Service) -> dict[str, str]:
    """The files of the chart, by their path in its directory."""
    found = exports.helm_chart(service)
    assert all(path.startswith(f"{service.name}/") for path in found)
    return {path.partition("/")[2]: text for path, text in found.items()}


def values(service: Service) -> dict[str, Any]:
    return dict(yaml.safe_load(files(service)["values.yaml"]))


@pytest.mark.parametrize("name", SERVICES)
def test_the_values_of_a_published_preset(name: str) -> None:
    service = SERVICES[name]
    found = files(service)
    given = yaml.safe_load(found["values.yaml"])
    jsonschema.validate(given, json.loads(found["values.schema.json"]))
    assert given["image"] == {
        "repository": "me/image",
        "tag": "",
        "digest": f"sha256:{'0' * 64}",
        "pullPolicy": "IfNotPresent",
    }
    assert "{{ .Values.model }}" in " ".join(given["arguments"])
    assert given["model"] not in " ".join(given["arguments"])
    assert {"model", "context"} & given.keys() == {"model", "context"} & service.places.keys()
    for option in service.arguments:
        assert option.why in re.sub(r"\n +# ", " ", found["values.yaml"])
    chart = yaml.safe_load(found["Chart.yaml"])
    assert (chart["apiVersion"], chart["name"]) == ("v2", service.name)
    assert chart["appVersion"] == "1"
    assert ("cache" in given) is (service.cache is not None)
    assert given["hami"]["memory"] == (exports.kubernetes_facts(service)["gpumem"] or None)


def test_the_memory_of_the_source_is_divided_among_the_cards() -> None:
    several = exports.kubernetes(replace(BASE, memory=(8 << 30) + 1, cards=2))
    assert "# nvidia.com/gpumem: 4097\n" in several
    assert "gpumem" not in exports.kubernetes(replace(BASE, memory=8 << 30, cards=0))
    text = exports.kubernetes(replace(BASE, memory=8 << 30))
    assert "# nvidia.com/gpumem: 8192\n" in text


def test_the_secret_with_the_key_is_a_value() -> None:
    found = files(KEYED)
    given = yaml.safe_load(found["values.yaml"])
    jsonschema.validate(given, json.loads(found["values.schema.json"]))
    assert given["apiKeySecret"] == "builder-a-api-key"
    assert [each["mountPath"] for each in given["mounts"]] == ["/models"]
    assert given["service"]["type"] == "LoadBalancer"
    assert "secretName: {{ quote .Values.apiKeySecret }}" in found["templates/deployment.yaml"]
    assert "apiKeySecret" not in values(BASE)


def test_a_placeholder_behind_a_brace_is_no_other_expression() -> None:
    option = ServiceOption(("{64}",), written=("{{context}}", "{{other}}", "{context}{context}"))
    given = values(replace(BASE, arguments=(option,), places={"context": "64"}))
    assert given["arguments"] == [
        '{{ "{" }}{{ int .Values.context }}}',
        '{{ "{{" }}other}}',
        "{{ int .Values.context }}{{ int .Values.context }}",
    ]
