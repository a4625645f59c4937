"""An unpinned published base, and registries that answer in all ways that registries do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build import roots
from builder.core.errors import BuilderError, FetchError, GoneError, RegistryError
from builder.docker import engine as docker
from builder.plan.inputs import RegistryRoot
from builder.plan.resolver import Resolver
from builder.publish.registry import Repository
from builder.recipes.schema import Published
from support.catalogs import load
from support.commands import Builder
from support.environment import REPOSITORY
from support.registries import Fault, Proxy, proxied, put_image
from support.smoke_tests import docker as run_docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("base registry")]
Base = tuple[Published, Proxy, str]


@pytest.fixture
def base(registry: str) -> Iterator[Base]:
    """A published image, the proxy before its registry, and the digest of Docker's copy."""
    with proxied(registry) as proxy:
        name = f"{proxy.address}/them/base:1"
        output = f"--output=type=image,name={name}"
        text = "FROM scratch\nWORKDIR /a\n"
        run_docker("buildx", "build", "--provenance=false", output, "-", text=text)
        run_docker("push", "--quiet", name)
        digest = run_docker("image", "inspect", "--format={{.Id}}", name)
        yield Published(image=name, note="it moves"), proxy, digest
        run_docker("image", "rm", "--force", digest)


def choose(base: Base, *, offline: bool = False) -> tuple[RegistryRoot, str]:
    lines: list[str] = []
    chosen = roots.choose(base[0], lines.append, offline=offline)
    return chosen, "\n".join(lines)


REFUSALS: list[tuple[int | str, type[BuilderError], str]] = [
    (404, GoneError, "has no "),
    (401, RegistryError, "refuses to give"),
    (403, RegistryError, "refuses to give"),
]
FAILURES: list[tuple[int | str, str]] = [
    (500, "fails"),
    (503, "fails"),
    (429, "fails"),
    ("cut", "does not answer"),
    ("silent", "does not answer"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), REFUSALS)
def test_a_stale_copy_is_not_built_on_where_upstream_refuses(
    answer: int, kind: type[BuilderError], words: str, base: Base
) -> None:
    published, proxy, digest = base
    basic = {"WWW-Authenticate": 'Basic realm="x"'} if answer == 401 else {}
    proxy.faults.append(Fault("/manifests/", answer, 99, basic))
    with pytest.raises(kind) as caught:
        choose(base)
    assert f"{proxy.address} {words}" in caught.value.what
    assert f"Docker has a copy of it: {digest}" in caught.value.why
    assert "--offline" in caught.value.hint
    chosen, told = choose(base, offline=True)
    assert chosen.digest == digest
    assert "nothing is fetched (--offline): using Docker's copy" in told
    # Without a copy, and by a pin, the reason is the same.
    run_docker("image", "rm", "--force", digest)
    with pytest.raises(BuilderError, match=words):
        choose(base)
    with pytest.raises(kind, match=words):
        docker.pull(f"{published.image.rpartition(':')[0]}@{digest}", "linux/amd64")


@pytest.mark.parametrize(("answer", "words"), FAILURES)
def test_the_copy_serves_where_upstream_cannot_say(
    answer: int | str, words: str, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, proxy, digest = base
    monkeypatch.setattr(roots, "PATIENCE", 0.5 if answer == "silent" else 10.0)
    proxy.faults.append(Fault("/v2/", "slow" if answer == "silent" else answer, 99))
    chosen, told = choose(base)
    assert chosen.digest == digest
    assert f"{proxy.address} {words}: {published.image}: using Docker's copy, {digest}" in told
    assert "not answer" not in told or words == "does not answer"
    run_docker("image", "rm", "--force", digest)
    with pytest.raises(FetchError, match=words) as caught:
        choose(base)
    assert not isinstance(caught.value, GoneError)


@pytest.mark.parametrize(("answer", "code", "words"), [(404, 5, "has no"), (403, 12, "refuses")])
def test_pin_image_tells_why(
    answer: int, code: int, words: str, base: Base, builder: Builder, catalog: Path
) -> None:
    published, proxy, _ = base
    file = catalog / "recipes" / "bases" / "them.toml"
    text = 'name = "them"\nsummary = "x"\nlicense = "MIT"\nfamily = "published"\n'
    file.write_text(f'{text}\n[published]\nimage = "{published.image}"\nnote = "not yet"\n')
    proxy.faults.append(Fault("/manifests/", answer, 99))
    done = builder("pin", "image", "them", "--catalog", catalog)
    assert done.returncode == code
    assert f"{proxy.address} {words}" in done.stderr


def test_an_image_on_a_base_that_upstream_deleted_is_named(
    base: Base, builder: Builder, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, proxy, _ = base
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "mmdebstrap")
    name = "vllm-0.20.2"
    text = (REPOSITORY / "recipes" / f"{name}.toml").read_text()
    (catalog / "recipes" / f"{name}.toml").write_text(re.sub(r"(?m)^disk .*$", "disk = 1.0", text))
    (catalog / "patches").symlink_to(REPOSITORY / "patches")
    file = catalog / "recipes" / "bases" / "vllm-openai-0.20.2.toml"
    pinned = f'image = "{published.image}"\ndigest = "sha256:{"1" * 64}"'
    text = re.sub(r"(?m)^disk .*$", "disk = 1.0", file.read_text())
    file.write_text(re.sub(r"(?m)^image .*$\n^note .*$", pinned, text))
    plan = Resolver(load(catalog), "amd64", "mmdebstrap", namespace=f"{proxy.address}/me")
    image = plan.resolve(name)
    done = builder("build", name, "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert f"{proxy.address} has no " in done.stderr
    assert "is in the registry" not in done.stderr
    made = put_image(Repository(image.repository, print), image.key, image.immutable_tag)
    done = builder("build", name, "--catalog", catalog)
    assert done.returncode == 5
    assert (
        f"{image.repository}:{image.immutable_tag} ({made.digest}) was built of it" in done.stderr
    )
