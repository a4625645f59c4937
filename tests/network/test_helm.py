"""Helm itself reads the charts: it makes the objects of the export for Kubernetes."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from builder.presets import exports
from builder.presets.schema import ContainerOptions
from builder.presets.service import Mount, Service, ServiceOption, Variable
from support.environment import REPOSITORY
from support.services import BASE, HOSTILE, KEYED, SERVICES

pytestmark = [
    pytest.mark.network,
    pytest.mark.xdist_group("helm"),
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="helm-python-sdk has a library for x86-64 alone"
    ),
]
NEWEST = ".".join(kubernetes_validate.latest_version().split(".")[:2])
REQUIREMENTS = REPOSITORY / "tests" / "data" / "helm" / "requirements.txt"
# A process of its own: the library is a program in Go, with its own signal handlers.
SCRIPT = """
import json, sys
import helm_python as helm

def answer(chart, values, name):
    try:
        with helm.Chart.load(chart) as found:
            found.validate_schema(values)
            rendered = found.render(values, name=name, namespace="models")
    except helm.HelmError as error:
        return {"error": str(error)}
    return {"lint": helm.lint(chart, values, strict=True), "rendered": rendered}

json.dump([answer(*job) for job in json.load(sys.stdin)], sys.stdout)
"""


@dataclass(frozen=True)
class Rendered:
    """What Helm makes of a chart."""

    deployment: dict[str, Any]
    network: dict[str, Any]
    notes: str

    @property
    def pod(self) -> dict[str, Any]:
        return dict(self.deployment["spec"]["template"]["spec"])

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.pod["containers"]
        return dict(found)


Answers = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Helm's answers for services, each with values."""
    folder = tmp_path_factory.mktemp("helm")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "library"]
    subprocess.run([*command, "--require-hashes", "--requirement", REQUIREMENTS], check=True)

    def ask(*jobs: tuple[Service, Mapping[str, Any]]) -> list[Any]:
        asked = []
        for number, (service, values) in enumerate(jobs):
            for path, text in exports.helm_chart(service).items():
                file = folder / str(number) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8")
            asked.append((str(folder / str(number) / service.name), values, service.name))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(asked),
            env={"PYTHONPATH": str(folder / "library"), "HOME": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        return list(json.loads(done.stdout))

    return ask


def rendered(answers: Answers, *jobs: tuple[Service, Mapping[str, Any]]) -> list[Rendered]:
    """The objects of the charts, which Helm's lint and the schemas of Kubernetes accept."""
    found = []
    for (service, _), answer in zip(jobs, answers(*jobs), strict=True):
        assert "error" not in answer, answer
        told = [(each["path"], each["error"]) for each in answer["lint"]["messages"]]
        assert told == [("Chart.yaml", "icon is recommended")]
        assert not answer["lint"]["errors"]
        texts = {Path(path).name: text for path, text in answer["rendered"].items()}
        deployment, network = (
            yaml.safe_load(texts[f"{name}.yaml"]) for name in ("deployment", "service")
        )
        kubernetes_validate.validate(deployment, NEWEST, strict=True)
        kubernetes_validate.validate(network, NEWEST, strict=True)
        assert f"deployment/{service.name} " in texts["NOTES.txt"]
        found.append(Rendered(deployment, network, texts["NOTES.txt"]))
    return found


def as_exported(found: Rendered, service: Service) -> None:
    """The other export has the same objects, but for the order of variables."""
    deployment, network = yaml.safe_load_all(exports.kubernetes(service))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    if "env" in container:
        container["env"].sort(key=lambda each: each["name"])
    policy = "Never" if service.local else "IfNotPresent"
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = policy
    for each in (deployment, network):
        labels = {"managed-by": "Helm", "version": exports.image_of(service)["tag"]}
        each["metadata"]["labels"] |= {
            f"app.kubernetes.io/{key}": text for key, text in labels.items()
        }
        each["metadata"]["labels"]["helm.sh/chart"] = f"{service.name}-0.1.0"
    assert found.deployment == deployment
    assert found.network == network


def test_every_published_preset_is_the_export_for_kubernetes(answers: Answers) -> None:
    services = [*SERVICES.values(), KEYED]
    for service, found in zip(
        services, rendered(answers, *((each, {}) for each in services)), strict=True
    ):
        as_exported(found, service)
        assert service.title in " ".join(found.notes.split())


def test_any_text_and_all_needs_of_a_container_reach_kubernetes(answers: Answers) -> None:
    words = tuple(ServiceOption((text, "--option"), text) for text in HOSTILE)
    hostile = replace(
        BASE,
        title=" ".join(HOSTILE),
        arguments=words,
        environment=(Variable("A_VARIABLE", "".join(HOSTILE), "{{ fail }}"),),
        notes=("{{ .Values.absent.absent }}",),
    )
    needs = ContainerOptions(ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"])
    mounts = (Mount("/a b/$c", "/models"), Mount("/d", "/model/d"))
    needy = replace(BASE, container=needs, mounts=mounts, cards=0)
    local = replace(BASE, local=True, cache="/cache")
    found = rendered(answers, (hostile, {}), (needy, {}), (local, {}))
    as_exported(found[0], hostile)
    assert "\nCaveat: {{ .Values.absent.absent }}\n" in found[0].notes
    as_exported(found[1], needy)
    as_exported(found[2], local)


def test_values_replace_model_context_and_resources(answers: Answers) -> None:
    service = SERVICES["qwen3.6-27b-dflash@5090-laptop"]
    found, shared = rendered(
        answers,
        (service, {"model": "/models/other {{.gguf", "context": 1 << 20, "service": {"port": 80}}),
        (
            service,
            {
                "hami": {
                    "enabled": True,
                    "memory": 16000,
                    "annotations": {"nvidia.com/use-gputype": "A10"},
                },
                "podAnnotations": {"a": "b"},
                "resources": {"requests": {"memory": "8Gi"}},
                "image": {"tag": "2", "digest": ""},
                "imagePullSecrets": [{"name": "registry"}],
                "mounts": [
                    {
                        "mountPath": "/models",
                        "volume": {"persistentVolumeClaim": {"claimName": "models"}},
                    }
                ],
                "runtimeClassName": "nvidia",
                "nodeSelector": {"gpu": "on"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
            },
        ),
    )
    changed = [
        (before, after)
        for before, after in zip(service.words, found.container["args"], strict=True)
        if before != after
    ]
    assert changed == [
        (service.places["model"], "/models/other {{.gguf"),
        (service.places["context"], "1048576"),
    ]
    assert found.network["spec"]["ports"][0]["port"] == 80
    assert shared.container["resources"] == {
        "limits": {
            "nvidia.com/gpu": 1,
            "nvidia.com/gpumem": 16000,
            "nvidia.com/gpucores": 100,
        },
        "requests": {"cpu": "1", "memory": "8Gi"},
    }
    assert shared.container["image"] == "me/image:2"
    assert shared.pod["imagePullSecrets"] == [{"name": "registry"}]
    assert shared.deployment["spec"]["template"]["metadata"]["annotations"] == {
        "nvidia.com/use-gputype": "A10",
        "a": "b",
    }
    assert shared.pod["volumes"][0] == {
        "name": "models-0",
        "persistentVolumeClaim": {"claimName": "models"},
    }
    assert shared.pod["runtimeClassName"] == "nvidia"
    assert shared.pod["nodeSelector"] == {"gpu": "on"}
    assert shared.pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_wrong_values_are_refused_by_the_schema(answers: Answers) -> None:
    wrong: list[dict[str, Any]] = [
        {"context": "64K"},
        {"contxt": 1},
        {"hami": {"enabled": True, "cores": 200}},
        {"image": "me/image:1"},
        {"mounts": [{"mountPath": "models", "volume": {"hostPath": {"path": "/a"}}}]},
    ]
    service = SERVICES["qwen3.6-27b-dflash@5090-laptop"]
    found = answers(*((service, values) for values in wrong))
    assert ["error" in each for each in found] == [True] * len(wrong)
    for word, each in zip(("context", "contxt", "cores", "image", "mountPath"), found, strict=True):
        assert word in each["error"]
