"""The lock of an image: its key on a farm that has moved on; nothing of a stranger runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.core.errors import FetchError, RecipeError, RegistryError
from builder.plan.inputs import lock_at
from builder.plan.plan import Plan
from builder.plan.resolver import LockedResolver
from builder.publish.attachments import catalog_of
from builder.publish.lock import LAYER, lock_of, unpacked
from builder.publish.registry import Repository
from builder.publish.verdicts import AttachedFile, attach_all
from support.catalogs import load, rendered
from support.commands import Builder
from support.environment import REPOSITORY
from support.registries import put_image

NAME = "hello-sm120-0.1.0"  # its source is a directory of the farm


@pytest.fixture
def plan() -> Plan:
    return rendered(REPOSITORY, NAME)


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    """The lock, on another farm."""
    (file,) = lock_of(plan, load(REPOSITORY)).files
    return unpacked(file, tmp_path / "lock")


def again(folder: Path, name: str = NAME) -> Plan:
    lock = lock_at(folder)
    assert lock is not None
    return LockedResolver(load(folder), lock.build, lock=lock).resolve(name)


def test_the_lock_alone_gives_the_image(plan: Plan, folder: Path) -> None:
    found = again(folder)
    assert (found.key, found.labels, found.text) == (plan.key, plan.labels, plan.text)
    assert found.root is plan.root is None
    assert [each.root for each in found.base.chain()] == [each.root for each in plan.base.chain()]
    assert not list(folder.rglob("*.j2"))
    assert lock_of(plan, load(REPOSITORY)) == lock_of(plan, load(REPOSITORY))


@pytest.mark.parametrize(
    ("name", "glob"),
    [
        (NAME, "engines/hello-sm120/src/*"),
        (NAME, f"recipes/{NAME}.toml"),
        (NAME, "dockerfiles/scripts/*"),
        ("ik-llama-cpp-8337e4c", "patches/*.patch"),
    ],
)
def test_a_changed_file_gives_another_key(name: str, glob: str, tmp_path: Path) -> None:
    (file,) = lock_of(rendered(REPOSITORY, name), load(REPOSITORY)).files
    folder = unpacked(file, tmp_path / "lock")
    assert again(folder, name)
    changed = [each for each in folder.glob(glob) if each.is_file()]
    assert changed
    for each in changed:
        text = each.read_text()
        other = text.replace('summary = "', 'summary = "Not ') if "recipes" in glob else f"{text} "
        each.write_text(other)
    with pytest.raises(RecipeError, match="do not give its key"):
        again(folder, name)


def test_a_lock_lacks_a_file(folder: Path) -> None:
    (folder / "dockerfiles" / f"{NAME}.Dockerfile").unlink()
    # Templates that come with a lock are not rendered: they are programs.
    (folder / "dockerfiles" / "cmake.Dockerfile.j2").write_text("{{ 1 / 0 }}")
    with pytest.raises(RecipeError, match=f"cannot read .*/{NAME}.Dockerfile"):
        again(folder)


def test_a_lock_is_of_one_platform(folder: Path) -> None:
    lock = lock_at(folder)
    assert lock is not None
    with pytest.raises(RecipeError, match="is of its image for linux/amd64"):
        LockedResolver(load(folder), "amd64", lock=lock).plans(NAME, "linux/arm64")
    (folder / "lock.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(RecipeError, match="is no lock of format 1"):
        lock_at(folder)


def test_what_is_no_lock_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="cannot be unpacked"):
        unpacked(AttachedFile("x", LAYER, b"\x1f\x8b damaged"), tmp_path / "damaged")
    (tmp_path / "made" / "x").mkdir(parents=True)
    other = shutil.make_archive(str(tmp_path / "other"), "gztar", tmp_path / "made")
    with pytest.raises(RegistryError, match=r"has no lock\.json"):
        unpacked(AttachedFile("x", LAYER, Path(other).read_bytes()), tmp_path / "empty")
    shutil.copy(folder / "recipes" / f"{NAME}.toml", folder / "recipes" / "other.toml")
    two = shutil.make_archive(str(tmp_path / "two"), "gztar", folder.parent)
    with pytest.raises(RegistryError, match="has 2 recipes"):
        unpacked(AttachedFile("x", LAYER, Path(two).read_bytes()), tmp_path / "two")


@pytest.mark.usefixtures("docker_config")
def test_the_lock_of_a_published_image_is_written(
    plan: Plan, builder: Builder, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    repository = Repository(f"{registry}/me/{plan.recipe.image.repository}", print)
    image = put_image(repository, plan.key, "1")
    done = builder("recipe", "lock", NAME, "1", "--output", tmp_path / "out")
    assert (done.returncode, "has no attachment of the type" in done.stderr) == (12, True)
    attach_all(repository, image, [lock_of(plan, load(REPOSITORY))])
    done = builder("recipe", "lock", NAME, "1", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"builder build {NAME} --catalog {tmp_path / 'out'}" in done.stderr
    told = json.loads(builder("show", NAME, "--catalog", tmp_path / "out", "--json").stdout)
    assert told["key"] == plan.key
    done = builder("recipe", "lock", NAME, "1", "--output", tmp_path / "out")
    assert "exists already" in done.stderr
    # A lock of another image, by whoever may push, is refused.
    other = lock_of(rendered(REPOSITORY, "whisper-cpp-1.8.5"), load(REPOSITORY))
    attach_all(repository, put_image(repository, plan.key, "2", other="x"), [other])
    done = builder("recipe", "lock", NAME, "2", "--output", tmp_path / "other")
    assert (done.returncode, "is of another image" in done.stderr) == (12, True)
    # The recipe alone is taken from it, too; a base that is there stays.
    done = builder("recipe", "export", NAME, "1", "--output", tmp_path / "recipes")
    assert done.returncode == 0, done.stderr
    own = (tmp_path / "recipes" / f"{NAME}.toml").read_text()
    assert own == (REPOSITORY / "recipes" / f"{NAME}.toml").read_text()
    base = tmp_path / "recipes" / "bases" / "cuda-13.0.toml"
    base.write_text("# moved on\n")
    assert builder("recipe", "export", NAME, "1", "--output", tmp_path / "recipes").returncode == 0
    assert base.read_text() == "# moved on\n"
    assert catalog_of(repository, "1", tmp_path / "read").name == NAME
