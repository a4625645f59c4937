"""The two ways to a Debian root: a registry's image by digest, and mmdebstrap."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build.build import ActiveBuild, ensure_bases
from builder.build.log import BuildLog
from builder.build.roots import AskingResolver
from builder.cli.session import BuildProgress
from builder.core import settings
from builder.core.errors import FetchError
from builder.core.platforms import Platforms, architecture
from builder.core.settings import RootWay
from builder.docker import engine as docker
from builder.docker.containers import blobs_of
from builder.image.compare import read_image
from builder.plan.inputs import RegistryRoot, RootChoice
from builder.plan.resolver import plan_base
from builder.recipes.catalog import Catalog
from support.catalogs import load, with_image
from support.commands import Builder

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]


def platforms() -> Platforms:
    found = architecture()
    assert found is not None
    return Platforms(found)


@pytest.fixture
def pushed(registry: str) -> Iterator[tuple[str, str]]:
    """A small image in the registry: its name with tag, and its digest."""
    name = f"{registry}/debian:small"
    dockerfile = "FROM scratch\nWORKDIR /etc\n"
    subprocess.run(
        [
            "docker",
            "buildx",
            "build",
            "--provenance=false",
            f"--output=type=image,name={name}",
            "-",
        ],
        input=dockerfile,
        text=True,
        check=True,
        capture_output=True,
    )
    subprocess.run(["docker", "push", "--quiet", name], check=True, capture_output=True)
    found = docker.image(name)
    assert found is not None
    yield name, found.digest
    docker.untag(name)


def chosen(found: Catalog, way: RootWay, said: list[str]) -> RootChoice:
    """The root of the base with CUDA, by this setting; ``said`` gets the lines for the user."""
    of_machine = platforms()
    resolver = AskingResolver(found, of_machine.build, way, log=said.append)
    return resolver.root_of("cuda-13.0", of_machine)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("way", ["registry", "auto"])
def test_a_registry_that_answers_gives_the_root_by_digest(
    catalog: Path, pushed: tuple[str, str], pinned: bool, way: RootWay
) -> None:
    name, digest = pushed
    found = with_image(catalog, name, digest if pinned else None)
    said: list[str] = []
    root = chosen(found, way, said)
    assert root == RegistryRoot(name, digest)
    assert pinned or digest in " ".join(said)


def test_the_base_is_built_from_that_digest(
    catalog: Path, pushed: tuple[str, str], tmp_path: Path
) -> None:
    name, digest = pushed
    found = with_image(catalog, name, digest)
    base = plan_base(found, "debian-trixie", platforms(), RegistryRoot(name, digest))
    active = ActiveBuild(settings.load(), BuildProgress(), BuildLog(tmp_path / "log"))
    images = ensure_bases(base, active)
    assert images["root"].labels["builder.key"] == base.key
    assert docker.image(images["root"].reference) == images["root"]
    docker.untag(images["root"].reference)


def test_a_registrys_root_gets_the_locked_packages(
    catalog: Path, registry: str, debian_root: str, tmp_path: Path
) -> None:
    name = f"{registry}/debian:lacks"
    text = f"FROM {debian_root}\nRUN dpkg --purge --force-depends ca-certificates\n"
    build = ["docker", "buildx", "build", "--provenance=false", f"--output=type=image,name={name}"]
    subprocess.run([*build, "-"], input=text, text=True, check=True, capture_output=True)
    subprocess.run(["docker", "push", "--quiet", name], check=True, capture_output=True)
    lacking = docker.image(name)
    assert lacking is not None
    root = RegistryRoot(name, lacking.digest)
    rendered = plan_base(load(catalog), "debian-trixie", platforms(), root)
    active = ActiveBuild(settings.load(), BuildProgress(), BuildLog(tmp_path / "log"))
    found = ensure_bases(rendered, active)["root"].reference
    query = ["docker", "run", "--rm", found, "dpkg-query", "-W", "-f", "${Package} ${Version}\n"]
    asked = subprocess.run(query, check=True, capture_output=True, text=True)
    locked = {f"{file.name} {file.version}" for file in rendered.debian.files}
    assert set(asked.stdout.splitlines()) == locked
    for each in (name, found):
        docker.untag(each)


def test_a_root_by_mmdebstrap_has_nothing_of_this_machine(debian_root: str, tmp_path: Path) -> None:
    files = read_image(debian_root, blobs_of(debian_root, tmp_path)).nodes
    assert "/etc/passwd" in files
    assert not {"/etc/hostname", "/etc/resolv.conf"} & files.keys()


def test_a_registry_that_is_away_is_an_error_only_where_it_was_asked_for(catalog: Path) -> None:
    found = with_image(catalog, "127.0.0.1:1/debian:none", None)
    said: list[str] = []
    root = chosen(found, "auto", said)
    assert root.way == "mmdebstrap"
    assert "127.0.0.1:1/debian:none" in " ".join(said)
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1 does not answer"):
        chosen(found, "registry", said)


def test_the_way_is_a_setting(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "mmdebstrap")
    shown = builder("show", "hello-sm120", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["base"]["base"]["root"]["suite"] == "trixie"
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "tarball")
    wrong = builder("show", "hello-sm120", "--inputs")
    assert wrong.returncode == 4
    assert "BUILDER_DEBIAN_ROOT" in wrong.stderr


def test_an_interrupted_mmdebstrap_leaves_no_mounts(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background\n"
        "from builder.plan.inputs import BootstrappedRoot\n"
        "from builder.sources.gather import bootstrap\n"
        "root = BootstrappedRoot('trixie', '', ())\n"
        "bootstrap(root, sys.argv[1], Path(sys.argv[2]), print)\n"
    )
    command = [sys.executable, "-c", code, platforms().build, str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while str(tmp_path) not in Path("/proc/mounts").read_text():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
