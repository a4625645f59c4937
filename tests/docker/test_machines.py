"""Another machine compiles; this one's engine has the image, and smoke-tests it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from builder.build.build import build_image
from builder.build.log import BuildLog
from builder.docker import buildx, engine
from builder.docker.containers import build_contexts
from builder.sources.gather import BuildContext
from support.commands import Builder
from support.environment import abandoned
from support.machines import CONTEXT, REMOTE, Machine
from support.overlaid import PACKAGE, StandIn, change, ran, write_catalog
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]


@pytest.fixture
def recipe(published: StandIn, tmp_path: Path) -> Path:
    """A catalog with overlaid-1, which lays a patch over a published image."""
    root = tmp_path / "catalog"
    published.write(root / "package")
    (root / "patches").mkdir(parents=True)
    text = PACKAGE["vllm/ops.py"].replace("= 9", "= 12")
    (root / "patches" / "x.patch").write_text(change(tmp_path, ops=text))
    parts = '[[patch]]\nfile = "x.patch"\nwhy = "so"'
    write_catalog(root, parts, published.build())
    return root


def run_steps(machine: Machine) -> str:
    """What the BuildKit of the second engine has run."""
    return machine.docker("buildx", "--builder=default", "du", "--verbose")


@pytest.mark.parametrize(("name", "driver"), [(CONTEXT, "docker"), (REMOTE, "remote")])
def test_it_compiles_there_and_is_smoke_tested_here(
    builder: Builder,
    recipe: Path,
    machine: Machine,
    made: set[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    driver: str,
) -> None:
    # Another namespace is another name: what the other parameter built is not found here, nor what
    # an earlier run of the tests left.
    monkeypatch.setenv("BUILDER_NAMESPACE", f"builder-test/on-{name}-{uuid.uuid4().hex[:12]}")
    monkeypatch.setenv("BUILDX_BUILDER", name if driver == "remote" else "nobody")
    option = [] if driver == "remote" else ["--builder", name]
    done = builder("build", "overlaid-1", *option, "--catalog", recipe, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    made.update(record["references"])
    assert record["built"]
    assert {check["state"] for check in record["verdict"]["checks"]} <= {"passed", "skipped"}
    log = Path(record["log"]).read_text()
    assert f'building with "{name}" instance using {driver} driver' in log
    assert "[context base-runtime] OCI load from client" in log
    assert "/run/inside/overlay.py" in run_steps(machine)
    for reference in record["references"]:
        assert docker("image", "inspect", "--format={{.Id}}", reference) == record["digest"]
    alone = ("--network=none",)
    said = ran(record["references"][0], "python3", "-c", RUNS, options=alone)
    assert said == "capability 12"
    assert machine.docker("image", "ls", "--quiet") == ""  # nothing is left there but the cache
    assert abandoned() == []
    again = builder("build", "overlaid-1", *option, "--catalog", recipe)
    assert "unchanged: built and verified before" in again.stdout
    # This machine's own engine makes the same image: nothing of the other one is in it.
    here = builder("reproduce", "overlaid-1", "--builder", "default", "--catalog", recipe)
    assert here.returncode == 0, here.stderr
    assert record["digest"] in here.stdout


RUNS = "import vllm.ops; print('capability', vllm.ops.CAPABILITY)"


@pytest.mark.parametrize(
    ("name", "why"),
    [("nobody", 'no builder "nobody" found'), ("gone", "Cannot connect to the Docker daemon")],
)
def test_a_builder_that_does_not_answer_is_told(
    builder: Builder,
    machine: Machine,  # noqa: ARG001
    name: str,
    why: str,
) -> None:
    done = builder("build", "hello-sm120", "--builder", name)
    assert done.returncode == 4
    assert f"the builder {name} does not answer" in done.stderr
    assert why in done.stderr
    assert "docker buildx ls" in done.stderr
    assert "Traceback" not in done.stderr


# Layers and roots, without recipes: a compile is a command that takes its time


def laid_out(
    work: Path, dockerfile: str, platform: str = "linux/amd64", **named: str
) -> BuildContext:
    folder = work / "context"
    folder.mkdir(parents=True)
    platforms = tuple(platform.split(","))
    (folder / "Dockerfile").write_text(dockerfile)
    return BuildContext(
        folder, named, {}, {}, dict.fromkeys(("image", "root", "devel"), platforms), 0
    )


def test_layers_that_a_registry_keeps_are_not_made_again_elsewhere(
    machine: Machine, images: dict[str, str], registry: str, made: set[str], tmp_path: Path
) -> None:
    # The other machine reaches the registry under its name: here another server of the same files.
    with machine.running("docker-registry", "serve", tmp_path / "registry.yml"):
        cached_elsewhere(images, registry, made, tmp_path)


def cached_elsewhere(images: dict[str, str], registry: str, made: set[str], tmp_path: Path) -> None:
    kept = f"{registry}/farm/cache:compiled"
    name = f"builder-test/cached:{registry.rpartition(':')[2]}"
    made.add(name)
    dockerfile = f"FROM base-root AS image\nRUN --network=none date +%N > /compiled # {registry}\n"
    nanoseconds = []
    for who in ("", REMOTE):
        work = tmp_path / f"work-{who}"
        builder = buildx.builder(who)
        bases = build_contexts({"root": images["root"]}, work, seen=builder.is_engine)
        found = laid_out(work, dockerfile, **{"base-root": bases["root"]})
        log = BuildLog(tmp_path / f"{who}.log")
        build_image(found, "image", name, {}, log, lambda _: None, builder, cache=kept)
        log.close()
        nanoseconds.append(ran(name, "cat", "/compiled", options=("--network=none",)))
    assert nanoseconds[0] == nanoseconds[1]
    assert docker("image", "ls", "--quiet", f"{name}-replaced") == ""


def test_a_registry_that_does_not_take_layers_fails_no_build(
    images: dict[str, str], made: set[str], tmp_path: Path
) -> None:
    made.add("builder-test/cached:not")
    base = f"docker-image://{images['root']}"
    found = laid_out(tmp_path, "FROM base-root AS image\nWORKDIR /x\n", **{"base-root": base})
    log = BuildLog(tmp_path / "log")
    built = build_image(
        found,
        "image",
        "builder-test/cached:not",
        {},
        log,
        lambda _: None,
        buildx.builder(),
        cache="127.0.0.1:1/farm/cache:x",
    )
    assert docker("image", "inspect", "--format={{.Id}}", built.reference) == built.digest
    assert "connection refused" in log.not_kept
    assert not log.errors or "importer" not in " ".join(log.errors)


def test_a_root_for_two_platforms_goes_there_and_comes_back(
    machine: Machine,  # noqa: ARG001
    made: set[str],
    tmp_path: Path,
) -> None:
    name = "builder-test/roots:two"
    made.add(name)
    builder = buildx.builder(REMOTE)
    for what in ("root", "devel"):
        (tmp_path / what).mkdir()
    both = laid_out(
        tmp_path / "root",
        "FROM scratch AS root\nARG TARGETARCH\nADD root-${TARGETARCH} /root\n",
        "linux/amd64,linux/arm64",
    )
    for architecture in ("amd64", "arm64"):
        (both.folder / f"root-{architecture}").write_text(architecture)
    log = BuildLog(tmp_path / "log")
    built = build_image(both, "root", name, {}, log, lambda _: None, builder)
    found = engine.image(name)
    assert found is not None
    assert found.digest == built.digest
    bases = build_contexts({"root": name}, tmp_path / "devel", seen=builder.is_engine)
    cross = laid_out(
        tmp_path / "devel",
        "FROM --platform=linux/arm64 base-root AS devel\n"
        "FROM base-root AS image\nCOPY --from=devel /root /devel\n",
        **{"base-root": bases["root"]},
    )
    made.add("builder-test/roots:cross")
    build_image(cross, "image", "builder-test/roots:cross", {}, log, lambda _: None, builder)
    container = docker("create", "builder-test/roots:cross", "none")
    for file, text in (("root", "amd64"), ("devel", "arm64")):
        docker("cp", f"{container}:/{file}", str(tmp_path / file / "taken"))
        assert (tmp_path / file / "taken").read_text() == text
    docker("rm", container)
