"""Layers of another repository: mounted by a real registry on loopback, or uploaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from builder.engines.families import load_catalog
from builder.publish.push import _with_same_base
from builder.publish.registry import Repository
from support.registries import (
    CONFIGURATION,
    Proxy,
    Refusal,
    Reply,
    Request,
    answering,
    proxied,
    serving,
)

pytestmark = pytest.mark.usefixtures("docker_config")
BLOB = hashlib.sha256(b"x").hexdigest()


def blobs(folder: Path, count: int) -> dict[str, Path]:
    """Files by their digests."""
    folder.mkdir(exist_ok=True)
    found = {}
    for number in range(count):
        content = Random(number).randbytes(100_000)
        file = folder / str(number)
        file.write_bytes(content)
        found[f"sha256:{hashlib.sha256(content).hexdigest()}"] = file
    return found


def pushed(proxy: Proxy, name: str, files: dict[str, Path], others: tuple[str, ...] = ()) -> str:
    """Upload files to a repository by a client that knows the others; the lines of its log."""
    lines: list[str] = []
    repository = Repository(f"{proxy.address}/me/{name}", lines.append)
    repository.others = [Repository(f"{proxy.address}/me/{each}", print) for each in others]
    for digest, file in files.items():
        repository.put_blob(digest, file, mount=True)
        assert repository.blob(digest) == file.read_bytes()
    return "\n".join(lines)


def refused(status: int) -> Refusal:
    return lambda _, path, __: (status, "DENIED", "no mounts") if "mount=" in path else None


@pytest.mark.parametrize("status", [201, 202, 403, 404, 500])
def test_shared_layers_are_not_uploaded_again(status: int, tmp_path: Path) -> None:
    with serving(tmp_path / "r", CONFIGURATION) as registry, proxied(registry) as proxy:
        files = blobs(tmp_path / "blobs", 4)
        below = dict([*files.items()][:2])
        pushed(proxy, "one", below)
        assert proxy.count("PUT .*uploads") == 2
        proxy.requests.clear()
        if status == 202:  # as a registry that does not know mounts: an upload begins
            proxy.rewrite = lambda path: path.partition("?mount")[0]
        elif status != 201:
            proxy.refuse = refused(status)
        told = pushed(proxy, "two", files, ("none", "one", "never"))
        mounted = 2 if status == 201 else 0
        assert told.count("mounted from me/one") == mounted
        assert proxy.count("PUT .*uploads") == 4 - mounted
        # Nobody is asked again once he lacked a layer.
        assert proxy.count("HEAD .*/me/none/") == proxy.count("HEAD .*/me/never/") == 1
        assert proxy.count("HEAD .*/me/one/") == 3
        assert proxy.count("POST") == (4 if status in {201, 202} else 6)


def test_a_mount_asks_for_both_repositories(tmp_path: Path) -> None:
    """A token for one of them would not do: the registry would let an upload begin."""

    def answer(request: Request) -> Reply:
        if "/token" in request.path:
            return 200, {}, json.dumps({"token": request.path.rpartition("service=x&")[2]}).encode()
        given = request.headers.get("Authorization", "")
        if not given:
            realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
            return 401, {"WWW-Authenticate": realm}, b""
        if request.command == "HEAD":
            return (200 if "/me/one/" in request.path else 404), {}, b""
        both = "scope=repository%3Ame%2Ftwo%3Apull%2Cpush&scope=repository%3Ame%2Fone%3Apull"
        return (201 if given == f"Bearer {both}" else 500), {}, b""

    (tmp_path / "x").write_bytes(b"x")
    with answering(answer) as (address, _):
        repository = Repository(f"{address}/me/two", print)
        repository.others = [Repository(f"{address}/me/one", print)]
        assert not repository.put_blob(f"sha256:{BLOB}", tmp_path / "x", mount=True)


def test_repositories_with_the_same_base_are_asked() -> None:
    session: Any
    plan: Any
    catalog = load_catalog(Path(__file__).parents[3])
    settings = SimpleNamespace(repository=lambda name: f"127.0.0.1:1/me/{name}", token_hosts=())
    session = SimpleNamespace(catalog=catalog, settings=settings, log=print)
    recipe = catalog.engine("beellama-0.1.2").recipe
    own = Repository("127.0.0.1:1/me/beellama-cpp", print)
    plan = SimpleNamespace(recipe=recipe)
    found = {each.path for each in _with_same_base(session, plan, own)}
    assert "me/turboquant-llama-cpp" in found
    assert "me/beellama-cpp" not in found
    assert "me/vllm-sm120" not in found
