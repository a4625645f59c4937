"""`clean` where Docker does not answer: caches, logs, records and models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.build.clean import models_of
from builder.core.files import file_lock, named_lock
from builder.docker.usage import Usage
from support.commands import Builder


@pytest.fixture(autouse=True)
def _no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    monkeypatch.setenv("BUILDER_MODELS_DIR", str(tmp_path / "models"))
    for name in ("git/a/objects", "pypi/b/wheel", "debian/c/deb", "simulator/d/lib.so"):
        write(own_cache / name)
    for name in ("logs/eng-1.log", "crashes/1.txt", "records/eng-1/0123456789ab.json"):
        write(tmp_path / "state" / name)
    write(tmp_path / "models/me/tiny/tiny.gguf")
    write(tmp_path / "models/me/tiny/other.gguf")


def write(file: Path, size: int = 5000) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))


def rows(builder: Builder, *arguments: str) -> dict[str, list[str]]:
    found = json.loads(builder("clean", "--json", *arguments).stdout)["rows"]
    return {row["name"]: [*row["things"]] for row in found if row["things"]}


def files(*roots: Path) -> set[str]:
    found = (file for root in roots for file in root.rglob("*") if file.is_file())
    return {file.name for file in found if not file.name.endswith("lock")}


def test_without_docker_the_files_are_shown_with_their_sizes(
    builder: Builder, own_cache: Path, tmp_path: Path
) -> None:
    before = files(tmp_path)
    done = builder("clean")
    assert done.returncode == 0
    assert "Docker does not answer: only files are cleaned." in done.stderr
    table = {line.split("\t")[0]: line for line in done.stdout.splitlines() if "\t" in line}
    assert [*table] == ["what", "git", "pypi", "debian", "programs", "logs", "models"]
    assert "\t0.0 MB\tmirrors of sources and patches" in table["git"]
    assert str(tmp_path / "models/me/tiny/tiny.gguf") in done.stdout
    found = json.loads(builder("clean", "git", "--json").stdout)["rows"]
    (git,) = (row for row in found if row["name"] == "git")
    assert git["things"] == {str(own_cache / "git/a"): git["size"]}
    assert 8192 <= git["size"] <= 16384
    assert files(tmp_path) == before


def test_only_what_is_named_is_removed(builder: Builder, own_cache: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    assert builder("clean", "git", "logs").returncode == 0
    assert files(tmp_path) == before, "nobody agreed"
    done = builder("clean", "git", "logs", "--yes")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == before - {"objects", "eng-1.log", "1.txt"}
    assert builder("clean", "all", "--yes").returncode == 0
    assert files(own_cache) == set()
    # A record may be of an image that Docker has; models go by name alone.
    left = {"0123456789ab.json", "tiny.gguf", "other.gguf"}
    assert files(tmp_path / "state", tmp_path / "models") == left


def test_a_model_is_removed_by_its_name_alone(builder: Builder, tmp_path: Path) -> None:
    before = files(tmp_path)
    assert builder("clean", "models", "--yes").returncode == 2
    # Without Docker nobody knows whether a server has it.
    assert builder("clean", "--model", "me/tiny/tiny.gguf", "--yes").returncode == 4
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("source", "command", "free"),
    [
        ("", "", {"a-1-of-2.gguf", "a-2-of-2.gguf", "b.gguf", "config.json"}),
        ("me/A/a-1-of-2.gguf", "-m /models/me/A/a-1-of-2.gguf", {"b.gguf", "config.json"}),
        ("", "serve /models/me/B", {"a-1-of-2.gguf", "a-2-of-2.gguf", "b.gguf"}),
        ("me/B", "serve /model", {"a-1-of-2.gguf", "a-2-of-2.gguf", "b.gguf"}),
        ("link", "serve /models/me/B", {"a-1-of-2.gguf", "a-2-of-2.gguf", "b.gguf"}),
    ],
)
def test_a_model_that_a_container_serves_is_not_free(
    source: str, command: str, free: set[str], tmp_path: Path
) -> None:
    models = tmp_path / "own"
    for name in ("A/a-1-of-2.gguf", "A/a-2-of-2.gguf", "C/deep/b.gguf", "B/config.json"):
        write(models / "me" / name)
    (tmp_path / "link").symlink_to(models)
    place = tmp_path / "link" if source == "link" else models / source
    usage = Usage((), (), ((str(place), command),) if command else ())
    assert {Path(each).name for each in models_of(models, usage).things} == free


def test_nothing_is_removed_while_another_run_is_at_work(
    builder: Builder, own_cache: Path, tmp_path: Path
) -> None:
    before = files(tmp_path)
    with named_lock(own_cache, "llama-cpp-b1"):
        done = builder("clean", "pypi", "--yes")
    assert done.returncode == 9
    assert "another run on this machine is at work\n  it holds llama-cpp-b1\n" in done.stderr
    with file_lock(own_cache / "git" / "a" / "lock"):
        assert builder("clean", "pypi", "--yes").returncode == 9
    assert files(tmp_path) == before
    assert builder("clean", "pypi", "--yes").returncode == 0
    assert files(tmp_path) == before - {"wheel"}


def test_directories_of_dead_runs_go_and_of_living_ones_stay(
    builder: Builder, own_cache: Path
) -> None:
    write(own_cache / "work/dead/tree")
    write(own_cache / "work/alive/tree")
    with file_lock(own_cache / "work/alive.lock"):
        assert rows(builder)["work"] == [str(own_cache / "work/dead")]
    assert builder("clean", "--yes").returncode == 0
    assert not (own_cache / "work/dead").exists()


def test_an_unknown_name_is_told(builder: Builder) -> None:
    done = builder("clean", "ccahe")
    assert done.returncode == 2
    assert "nothing that clean removes is named ccahe; did you mean ccache?" in done.stderr
    assert "there are: images, bases, reproduced, work, gone, layers, ccache" in done.stderr
