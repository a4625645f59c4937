"""An image built again without caches: the same digest, or what differs is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from builder.build import compare
from builder.docker import containers, engine
from builder.publish.registry import Repository
from support.commands import Builder
from support.prunes import image as image_of
from support.prunes import index
from support.smoke_tests import docker, images_at
from support.variants import CMAKE, RECIPE, REPOSITORY_NAME, edit

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]

# The compiler takes both from SOURCE_DATE_EPOCH.
DATED = 'const char *ANSWER(void) { return WHEN __DATE__ " " __TIME__; }\n'
RANDOM = 'string(RANDOM LENGTH 12 WHEN)\nadd_compile_definitions(WHEN="${WHEN}")\n'


def test_an_image_has_the_same_digest_or_the_difference_is_named(
    one_file: Path, builder: Builder
) -> None:
    source = one_file / "engines" / "variant"
    (source / "one.c").write_text(DATED.replace("WHEN", '""'))
    assert builder("build", "variant", "--catalog", one_file).returncode == 0
    done = builder("reproduce", "variant", "--catalog", one_file, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (image,) = found["images"]
    assert found["reproduced"] is True
    assert image["found"] == image["expected"]
    assert image["state"] == "reproduced"
    assert any(":devel-" in name for name in found["taken"])

    other = docker("image", "ls", "--quiet", "--filter=reference=builder-test/variant:0.1.0")
    assert other
    docker("image", "tag", "builder-test/variant:0.1.0", "builder-test/variant:before")
    (source / "one.c").write_text(DATED)
    (source / "CMakeLists.txt").write_text(CMAKE.replace("add_library", f"{RANDOM}add_library"))
    old = builder("reproduce", "builder-test/variant:before", "--catalog", one_file)
    assert old.returncode == 3
    assert "was not built from the recipe variant-0.1.0 as it is now" in old.stderr

    assert builder("build", "variant", "--catalog", one_file).returncode == 0
    done = builder("reproduce", "variant", "--catalog", one_file, "--json")
    assert done.returncode == 17
    (image,) = json.loads(done.stdout)["images"]
    assert image["state"] == "different"
    (file,) = image["comparison"]["files"]
    assert file["path"] == "/libone.so"
    assert ".rodata" in [section["name"] for section in file["elf"]["sections"]]
    assert "was not reproduced: 1 digest differs" in done.stderr
    assert docker("image", "ls", "--quiet", "--filter=reference=builder-reproduce/variant*") == ""


def test_a_published_image_has_its_own_recipe(
    one_file: Path,
    builder: Builder,
    registry: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/test")
    assert builder("build", "variant", "--catalog", one_file).returncode == 0
    assert builder("push", "variant", "--catalog", one_file).returncode == 0
    docker("image", "rm", *images_at(f"{registry}/test"))
    (one_file / "recipes" / "variant-0.1.0.toml").unlink()
    repository = Repository(f"{registry}/test/{REPOSITORY_NAME}", print)
    pushed = repository.manifest("0.1.0")
    assert pushed is not None
    arm64 = image_of(repository, config={"architecture": "arm64"})
    index(repository, "both", of=[pushed, arm64], architectures=("amd64", "arm64"))
    published = f"{repository.name}:both"
    done = builder("reproduce", published, "--catalog", one_file, "--json")
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    assert image["found"] == image["expected"] == pushed.digest
    assert f"looking for what is attached to {published}" in done.stderr
    assert not images_at(f"{registry}/test")

    # A farm whose recipe and source have moved on builds it again from the lock alone.
    (one_file / "engines" / "variant" / "one.c").write_text("int ANSWER(void) { return 2; }\n")
    moved = RECIPE.replace('ANSWER = "first"', 'ANSWER = "second"').replace("answer_f", "answer_s")
    (one_file / "recipes" / "variant-0.1.0.toml").write_text(moved)
    lock = tmp_path / "lock"
    written = builder("recipe", "lock", "variant", "0.1.0", "--output", lock, "--catalog", one_file)
    assert written.returncode == 0, written.stderr
    shutil.rmtree(one_file)
    done = builder("build", "variant", "--catalog", lock)
    assert done.returncode == 0, done.stderr
    key = json.loads((lock / "lock.json").read_text())["key"]
    name = f"{repository.name}:0.1.0-{key[:12]}"
    assert docker("image", "inspect", "--format={{.Id}}", name).strip() == pushed.digest
    docker("image", "rm", *images_at(f"{registry}/test"))


def killed_as() -> str:
    """The owner of a process that was killed."""
    program = "from builder.docker import containers as c; print(c.owner(), flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        process.kill()
    return owner


def test_images_of_killed_runs_are_removed(small_root: str, made: set[str]) -> None:
    host, process, start = killed_as().split(":")
    owners = {
        "killed": f"{host}:{process}:{start}",
        "another": f"another.example:{process}:{start}",
        "alive": containers.owner(),
    }
    key = "0123456789ab"
    names = {kind: compare.name_of(kind, "image", key, owner) for kind, owner in owners.items()}
    for name in names.values():
        docker("image", "tag", small_root, name)
    made.update(names.values())
    compare.remove_orphans()
    left = [kind for kind, name in names.items() if engine.image(name) is not None]
    assert left == ["another", "alive"]


def test_an_image_that_is_not_there_cannot_be_compared_with(
    one_file: Path, builder: Builder
) -> None:
    edit(one_file, '"0.1.0"]', '"0.1.0", "other"]')
    done = builder("reproduce", "variant", "--catalog", one_file)
    assert done.returncode == 4
    assert "Docker has no image of the current recipe variant-0.1.0" in done.stderr
    assert "builder build variant-0.1.0" in done.stderr


def test_a_statement_needs_a_key_and_a_registry(one_file: Path, builder: Builder) -> None:
    done = builder("reproduce", "variant", "--attest", "--catalog", one_file)
    assert done.returncode == 4
    assert "there is no key that signs the statement" in done.stderr


def test_an_image_that_was_compiled_on_another_platform(
    builder: Builder, made: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compile: an image that has the labels of one, but for a build on arm64."""
    monkeypatch.setenv("BUILDER_COMPILE_ON", "arm64")
    key = json.loads(builder("show", "hello-sm120", "--json").stdout)["key"]
    monkeypatch.delenv("BUILDER_COMPILE_ON")
    name = "builder-test/compiled-on:arm64"
    made.add(name)
    labels = f"builder.recipe=hello-sm120-0.1.0 builder.key={key}"
    docker("buildx", "build", f"--tag={name}", "-", text=f"FROM scratch\nLABEL {labels}\n")
    done = builder("reproduce", name)
    assert done.returncode == 3
    assert f"{name} was compiled on linux/arm64, and this build would be on" in done.stderr
    assert "set BUILDER_COMPILE_ON=arm64" in done.stderr
    smoked = builder("smoke", name)
    assert "the image was compiled on arm64, not on amd64" in smoked.stderr
