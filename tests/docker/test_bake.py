"""A bake file of recipes: bake reads it, builds it anywhere, and what it built is smoke-tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.bake import bakefile
from builder.bake.directory import lock_name
from builder.errors import BuildError
from builder.images.context import Context
from builder.plan.base_image import RootPolicy
from builder.plan.resolver import Resolver
from builder.tools.docker.blobs import blobs_of
from builder.tools.files import named_lock
from support.catalogs import load, with_image
from support.commands import Builder
from support.environment import REPOSITORY
from support.machines import REMOTE, Machine
from support.overlaid import PACKAGE, Build, StandIn, change, write_catalog
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]

SUMMARY = "What costs ${MONEY}, %{if 100}% of it"


@pytest.fixture
def pushed(published: StandIn, registry: str, made: set[str]) -> str:
    """The published image, on a registry and not in the engine: what pins it."""
    name = f"{registry}/builder-test/published:1.0"
    published.more = f"LABEL test={registry}\nUSER daemon"
    published.build(name)
    docker("push", "--quiet", name)
    digest = docker("image", "inspect", "--format={{.Id}}", name)
    docker("image", "rm", name)
    made.add(name)
    return f'image = "{name}"\ndigest = "{digest}"'


@pytest.fixture
def recipe(published: StandIn, pushed: str, tmp_path: Path) -> Path:
    return catalog_on(pushed, published, tmp_path)


@pytest.fixture
def unreachable(published: StandIn, tmp_path: Path) -> Path:
    """The same on an image that nobody can have."""
    pin = f'image = "127.0.0.1:9/published:1.0"\ndigest = "sha256:{"0" * 64}"'
    return catalog_on(pin, published, tmp_path)


@pytest.fixture
def compiler_root(build: Build, registry: str, made: set[str]) -> tuple[str, str]:
    """Debian with a C compiler on the registry, as the engine has it: its name and its digest."""
    build.once()  # its entrypoint is compiled there
    found = Resolver(load(REPOSITORY), "amd64", RootPolicy()).resolve_base("debian-trixie-gcc")
    name = f"{registry}/builder-test/compiler-root:1"
    docker("image", "tag", found.references["root"], name)
    made.add(name)
    docker("push", "--quiet", name)
    return name, docker("image", "inspect", "--format={{.Id}}", name)


def catalog_on(pushed: str, published: StandIn, tmp_path: Path) -> Path:
    """A catalog with overlaid-1 on the published image, and with a recipe that has no source."""
    root = tmp_path / "catalog"
    published.write(root / "package")
    (root / "patches").mkdir(parents=True)
    text = PACKAGE["vllm/ops.py"].replace("= 9", "= 12")
    (root / "patches" / "x.patch").write_text(change(tmp_path, ops=text))
    image, _, pin = pushed.partition("\n")
    parts = '[[patch]]\nfile = "x.patch"\nwhy = "so"'
    write_catalog(root, parts, image.split('"')[1], pin=pin)
    file = root / "recipes" / "overlaid-1.toml"
    text = file.read_text().replace("A package with something laid over it", SUMMARY)
    file.write_text(text)
    gone = text.replace('"overlaid"', '"sourceless"').replace('path = "package"', 'path = "gone"')
    gone = gone.replace('tags       = ["1"]', 'tags       = ["gone"]')
    (root / "recipes" / "sourceless-1.toml").write_text(gone)
    return root


def bake(folder: Path, *options: str, **variables: str) -> str:
    command = ["docker", "buildx", "bake", "--progress=plain", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_another_machine_bakes_is_smoke_tested_here(
    builder: Builder,
    compiler_root: tuple[str, str],
    recipe: Path,
    machine: Machine,
    made: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_image(recipe, *compiler_root, "debian-trixie-gcc")
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "registry")
    folder = tmp_path / "baked"
    done = builder("bake", "--output", folder, "--catalog", recipe, "--json")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert set(written["groups"]) == {"default", "bases", "on-stand-in"}
    assert written["groups"]["default"] == written["groups"]["on-stand-in"] == ["overlaid-1"]
    assert written["groups"]["bases"] == ["stand-in-runtime", "debian-trixie-gcc-root"]
    assert "no source tree" in written["left_out"]["sourceless-1"]
    laid_out = (folder / "contexts" / "engines" / "overlaid-1").iterdir()
    expected = {"context", "source", "inside", "entrypoint-source"}  # nothing of git's
    assert {path.name for path in laid_out} == expected
    candidate = written["images"]["overlaid-1"]
    made.update({candidate, f"{candidate.partition(':')[0]}:1"})
    moved = folder.rename(tmp_path / "moved")  # the file names its place only as a variable
    with machine.running("docker-registry", "serve", tmp_path / "registry.yml"):
        output = bake(moved, f"--builder={REMOTE}", "--load", CONTEXTS="contexts")
    assert f'building with "{REMOTE}" instance using remote driver' in output
    labels = json.loads(docker("image", "inspect", candidate))[0]["Config"]["Labels"]
    assert labels["org.opencontainers.image.description"] == SUMMARY
    created = docker("image", "inspect", "--format={{.Created}}", candidate)
    assert labels["org.opencontainers.image.created"].startswith(created.removesuffix("Z"))
    digest = docker("image", "inspect", "--format={{.Id}}", candidate)
    manifest = blobs_of(candidate, tmp_path).file(digest)
    annotations = json.loads(manifest.read_text())["annotations"]
    assert annotations == {name: labels[name] for name in annotations}
    assert {
        "org.opencontainers.image.title",
        "org.opencontainers.image.description",
    } <= annotations.keys()
    verified = builder("build", "overlaid-1", "--catalog", recipe, "--json")
    assert verified.returncode == 0, verified.stderr
    assert f"{candidate} exists; it is not built again" in verified.stderr
    record = json.loads(verified.stdout)
    made.update(record["references"])
    assert record["built"] is False
    assert record["log"] == ""
    checks = {(c["kind"], c["subject"]): c for c in record["verdict"]["checks"]}
    assert checks["contract", "user"]["found"] == "daemon"  # from the registry
    assert all(check["passed"] for check in record["verdict"]["checks"])
    assert docker("image", "ls", "--quiet", candidate) == ""


def test_bases_are_targets_that_recipes_share(
    builder: Builder,
    catalog: Path,
    pushed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = pushed.split('"')[1]
    with_image(catalog, name, pushed.split('"')[3])
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "registry")
    for engine in ("hello", "hallo"):
        text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
        text = text.replace('"hello-sm120"', f'"{engine}"').replace("s/hello-sm120", "s/hello")
        (catalog / "recipes" / f"{engine}-0.1.0.toml").write_text(text)
    shutil.copytree(REPOSITORY / "engines" / "hello-sm120", catalog / "engines" / "hello")
    lock = "recipes/locks/hello{}-0.1.0.debian.toml"
    (catalog / "recipes/locks").mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / lock.format("-sm120"), catalog / lock.format(""))
    for _ in range(2):  # the second time the first one's is replaced
        done = builder("bake", "--output", tmp_path, "--catalog", catalog)
        assert done.returncode == 0, done.stderr
    file = tmp_path / "docker-bake.json"
    written = json.loads(file.read_text())
    assert set(written["group"]["on-cuda-13_0"]["targets"]) == {"hello-0_1_0", "hallo-0_1_0"}
    for target in ("hello-0_1_0", "hallo-0_1_0"):
        contexts = written["target"][target]["contexts"]
        assert contexts["base-devel"] == "target:cuda-13_0-devel"
        assert contexts["base-runtime"] == "target:cuda-13_0-runtime"
    root = written["target"]["cuda-13_0-devel"]["contexts"]["base-root"]
    assert root == "target:debian-trixie-root"
    assert written["target"]["debian-trixie-root"]["labels"]["builder.base"] == "debian-trixie"
    wheels = tmp_path / "contexts" / "bases" / "cuda-13.0" / "wheels"
    assert any(wheels.iterdir())
    for secret in tmp_path.rglob("apt.sources"):
        assert secret.stat().st_mode & 0o077 == 0
        assert secret.read_text() not in file.read_text()


def test_a_recipe_that_cannot_be_laid_out_leaves_what_was_there(
    builder: Builder,
    recipe: Path,
    pushed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is built: any image stands in for the root that compiles, which mmdebstrap makes.
    with_image(recipe, pushed.split('"')[1], pushed.split('"')[3], "debian-trixie-gcc")
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "registry")
    folder = tmp_path / "baked"
    assert builder("bake", "--output", folder, "--catalog", recipe).returncode == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = builder("bake", "sourceless", "--output", folder, "--catalog", recipe)
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (recipe / "recipes" / "overlaid-1.toml").unlink()
    done = builder("bake", "--output", folder, "--catalog", recipe)
    assert done.returncode == 4
    assert "every recipe was left out" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"docker-bake.json", "contexts"}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_contexts_of_somebody_else_stay(
    builder: Builder, unreachable: Path, tmp_path: Path
) -> None:
    (tmp_path / "own" / "contexts" / "mine").mkdir(parents=True)
    done = builder("bake", "--output", tmp_path / "own", "--catalog", unreachable)
    assert done.returncode == 4
    assert "was not written by builder" in done.stderr
    assert (tmp_path / "own" / "contexts" / "mine").is_dir()
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"contexts"}


@pytest.mark.parametrize(
    ("name", "text"), [("docker-bake.json", '{"target": {}}'), ("contexts", "a file")]
)
def test_files_of_somebody_else_stay(
    builder: Builder, unreachable: Path, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / "own" / name
    file.parent.mkdir()
    file.write_text(text)
    done = builder("bake", "--output", file.parent, "--catalog", unreachable)
    assert (done.returncode, file.read_text()) == (4, text)
    assert f"{file} exists and was not written by builder" in done.stderr


def test_one_run_at_a_time_bakes_into_a_directory(
    builder: Builder, unreachable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "baked", tmp_path / "cache"
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(cache))
    with named_lock(cache, lock_name(folder)):
        done = builder("bake", "--output", folder, "--catalog", unreachable)
    assert done.returncode == 9
    assert "another run on this machine is at work" in done.stderr
    assert not folder.exists()


def target(folder: Path, text: str) -> dict[str, Any]:
    context = folder / "contexts" / "x"
    context.mkdir(parents=True, exist_ok=True)
    (context / "Dockerfile").write_text("FROM scratch AS image\n")
    platforms = {"image": ("linux/amd64",)}
    found = Context(context, {}, {}, {"ARGUMENT": text}, platforms, 0)
    return bakefile.target(folder, found, "image", "a:b", {"label": text})


AWKWARD = [
    *("${HOME}", "$${x}", "$$${x}", "%{if x}", "%%{x", "$%{", "100%", "$", '"q" \\n \n', "ü"),
    "${timestamp()} ",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_bake_evaluates_no_text_of_a_recipe(tmp_path: Path, text: str) -> None:
    targets = {"x": target(tmp_path, text)}
    bakefile.write(tmp_path / "docker-bake.json", tmp_path, targets, {"default": ["x"]})


def test_a_file_that_buildx_misreads_is_an_error(tmp_path: Path) -> None:
    file, groups = tmp_path / "docker-bake.json", {"default": ["x"]}
    evaluated = target(tmp_path, "x") | {"labels": {"label": '${upper("x")}'}}
    with pytest.raises(BuildError, match="labels, label: 'X'"):
        bakefile.write(file, tmp_path, {"x": evaluated}, groups)
    with pytest.raises(BuildError, match="buildx does not accept"):
        bakefile.write(file, tmp_path, {"x.y": target(tmp_path, "x")}, {"default": ["x.y"]})
