"""Kubernetes: its schemas accept the manifests, and the container gets the service's words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings

from builder.presets import exports
from builder.presets.schema import ContainerOptions
from builder.presets.service import Mount, Service, ServiceOption, Variable
from support.services import BASE, HOSTILE, KEYED, SERVICES, services
from support.shipped import PRESETS

NEWEST = ".".join(kubernetes_validate.latest_version().split(".")[:2])


def expanded(text: str) -> str:
    """As Kubernetes expands arguments where no variable of that name exists (API, Container)."""
    return re.sub(r"\$\$", "$", text)


def container_of(service: Service, *, validated: bool = True) -> dict[str, Any]:
    """The container of the Deployment, with its pod as ``pod``."""
    deployment, network = yaml.safe_load_all(exports.kubernetes(service))
    if validated:
        kubernetes_validate.validate(deployment, NEWEST, strict=True)
        kubernetes_validate.validate(network, NEWEST, strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert network["spec"]["selector"] == labels
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    return {**container, "pod": deployment["spec"]["template"]["spec"]}


def assert_read(container: dict[str, Any], service: Service) -> None:
    given = container.get("args", [])
    assert not any(re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", word) for word in given)
    assert [expanded(word) for word in given] == service.words
    variables = {each["name"]: expanded(each["value"]) for each in container.get("env", [])}
    assert variables == {each.name: each.value for each in service.environment}
    assert container["image"] == service.image


@settings(max_examples=60, deadline=None)
@given(services())
def test_any_argument_reaches_the_container_as_it_is(service: Service) -> None:
    assert_read(container_of(service, validated=False), service)


def test_hostile_arguments_reach_the_container_as_they_are() -> None:
    service = replace(
        BASE,
        arguments=tuple(ServiceOption((text, "--option"), text) for text in HOSTILE),
        environment=(Variable("A_VARIABLE", "".join(HOSTILE)),),
    )
    assert_read(container_of(service), service)


@pytest.mark.parametrize("name", SERVICES)
def test_a_published_preset_is_valid(name: str) -> None:
    service = SERVICES[name]
    container = container_of(service)
    assert_read(container, service)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": service.cards}
    memory = container["resources"]["requests"]["memory"]
    shared = 2 << 30 if service.cards > 1 else 0
    assert memory == f"{-(-(sum(service.ram.values()) + shared) >> 30)}Gi"
    assert container["pod"]["volumes"][0]["hostPath"] == {
        "path": "/srv/models",
        "type": "Directory",
    }
    assert container["volumeMounts"][0]["mountPath"] == "/models"
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == service.loading
    assert container["pod"]["enableServiceLinks"] is False
    assert container["pod"]["automountServiceAccountToken"] is False
    assert container["pod"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = container["securityContext"]
    assert allowed["allowPrivilegeEscalation"] is False
    assert allowed["capabilities"]["drop"] == ["ALL"]
    recipe = PRESETS.preset(name).preset.recipe
    vllm = "vllm" in recipe
    shown = not (vllm or "lucebox" in recipe)  # whose servers the smoke test starts
    assert container["pod"]["securityContext"].get("runAsNonRoot", False) is not vllm
    assert allowed.get("readOnlyRootFilesystem", False) is shown
    places = {each["mountPath"] for each in container["volumeMounts"]}
    assert places - {"/dev/shm"} == {
        "/models",
        *(["/root/.cache/vllm"] if vllm else []),
        *(["/tmp"] if shown else []),
    }
    assert ("/dev/shm" in places) is (service.cards > 1)


def test_the_request_of_memory_names_its_parts() -> None:
    text = exports.kubernetes(SERVICES["qwen3.6-27b-dflash@5090-laptop"])
    comment, request = text.partition("resources:\n")[2].split("requests: ")[:2]
    said = " ".join(comment.replace("#", "").split())
    assert said == (
        "15.2 GiB of weights (--mlock); 8.0 GiB of cached prompts (llama-server's --cache-ram); "
        "1.0 GiB for the program and its libraries (not measured)"
    )
    assert request.startswith('{cpu: "1", memory: 25Gi}\n')
    assert (
        "memory" not in exports.kubernetes(BASE).partition("resources:")[2].partition("limits")[0]
    )


def test_what_the_container_needs_is_valid() -> None:
    needs = ContainerOptions(ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"])
    mounts = (Mount("/a b/$c", "/models"), Mount("/d", "/model/d", file=True))
    container = container_of(replace(BASE, container=needs, mounts=mounts, cards=0))
    assert "hostIPC" not in container["pod"]
    names = [each["name"] for each in container["pod"]["volumes"]]
    assert names == ["models-0", "models-1", "shm"]
    assert container["pod"]["volumes"][0]["hostPath"]["path"] == "/a b/$c"
    assert container["pod"]["volumes"][1]["hostPath"]["type"] == "File"
    assert container["pod"]["volumes"][2]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "limits" not in container["resources"]
    endless = container_of(replace(BASE, container=ContainerOptions(ipc="host")))
    assert endless["pod"]["volumes"][0]["emptyDir"] == {"medium": "Memory"}


def test_the_key_is_in_a_secret_and_the_service_is_for_the_lan() -> None:
    container = container_of(KEYED)
    models, key = container["volumeMounts"]
    assert models["mountPath"] == "/models"
    name = "builder-a-api-key"
    path = "/run/api-key.yaml"
    assert key == {"name": "api-key", "mountPath": path, "subPath": path[5:], "readOnly": True}
    assert container["pod"]["volumes"][1] == {"name": "api-key", "secret": {"secretName": name}}
    text = exports.kubernetes(KEYED)
    assert text.count("/state/keys") == 1
    make = f"kubectl create secret generic {name} --from-file=api-key.yaml=/state/keys/1.yaml"
    assert f"#   {make}\n" in text
    ports = yaml.safe_load(text.partition("---")[2])["spec"]
    assert ports["type"] == "LoadBalancer"
    only = container_of(replace(KEYED, mounts=KEYED.mounts[1:]))
    assert [each["name"] for each in only["volumeMounts"]] == ["api-key"]


def test_an_image_that_no_registry_has_is_never_pulled() -> None:
    assert "imagePullPolicy" not in container_of(BASE)
    container = container_of(replace(BASE, local=True))
    assert container["imagePullPolicy"] == "Never"
    assert container["image"] == "me/a:1"
    text = exports.kubernetes(replace(BASE, local=True))
    assert "docker save me/a:1 | ssh NODE sudo ctr -n k8s.io images import -\n" in text


def test_a_wrong_manifest_is_refused() -> None:
    deployment = yaml.safe_load(exports.kubernetes(BASE).partition("---")[0])
    deployment["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)
