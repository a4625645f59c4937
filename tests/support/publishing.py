"""An image that can be pushed to a registry of the test's own; a plugin of pytest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import requests

from builder.publish.registry import MANIFESTS
from support.commands import Builder
from support.overlaid import Build
from support.registries import Proxy, proxied
from support.smoke_tests import docker, images_at

PUSHED = "me/builder-test/overlaid"


@pytest.fixture(scope="session")
def address() -> Iterator[Proxy]:
    """A proxy whose address is the same for all tests, so that images keep their names."""
    with proxied("") as proxy:
        yield proxy


@pytest.fixture
def proxy(registry: str, address: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy before the registry of the test.  Afterwards no image has a name of its address."""
    vars(address).update(vars(Proxy(address.address, registry)))
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{address.address}/me")
    yield address
    names = images_at(address.address)
    if names:
        docker("image", "rm", "--force", *names)


@pytest.fixture
def image(proxy: Proxy, build: Build) -> dict[str, Any]:  # noqa: ARG001
    """The record of a verified image; its recipe has the moving tag "latest"."""
    return made(build)


def made(build: Build, **options: Any) -> dict[str, Any]:
    return build.once(more='moving = ["latest"]', **options)


@pytest.fixture
def push(builder: Builder, tmp_path: Path) -> Any:
    def run(*options: str, command: str = "push", expect: int = 0) -> Any:
        catalog = tmp_path / "catalog"
        done = builder(*command.split(), "overlaid-1", *options, "--catalog", catalog)
        assert done.returncode == expect, done.stderr + done.stdout
        return done

    return run


def tags(registry: str) -> dict[str, str]:
    """The digest that each tag leads to; those that list referrers are left out."""
    answer = requests.get(f"http://{registry}/v2/{PUSHED}/tags/list", timeout=10)
    names = answer.json().get("tags") or [] if answer.ok else []
    found = [name for name in names if not name.startswith("sha256-")]
    return {name: digest_of(registry, name) for name in found}


def digest_of(registry: str, reference: str) -> str:
    # Whoever does not take the type that is there gets another manifest, made on the spot.
    accept = {"Accept": ", ".join(MANIFESTS)}
    url = f"http://{registry}/v2/{PUSHED}/manifests/{reference}"
    answer = requests.get(url, headers=accept, timeout=10)
    return answer.headers.get("Docker-Content-Digest", "")


def own(record: dict[str, Any]) -> str:
    return str(record["references"][0].rpartition(":")[2])


@pytest.fixture(scope="session")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a key pair of cosign."""
    folder = tmp_path_factory.mktemp("key-pair")
    made_by, environment = ["cosign", "generate-key-pair"], os.environ | {"COSIGN_PASSWORD": "p4ss"}
    subprocess.run(made_by, cwd=folder, env=environment, check=True, capture_output=True)
    return folder


@pytest.fixture
def key(key_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own copy of a key pair: the private one; cosign.pub stands beside it."""
    monkeypatch.setenv("COSIGN_PASSWORD", "p4ss")
    copytree(key_pair, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(tmp_path / "cosign.key"))
    return tmp_path / "cosign.key"


def verified(reference: str, public: Path) -> bool:
    command = ["cosign", "verify", "--insecure-ignore-tlog=true", f"--key={public}", reference]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
