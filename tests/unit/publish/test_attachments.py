"""The recipe and the PTX of an image in a real registry, written back by builder's commands."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from builder.build import ccache
from builder.build.record import Record
from builder.core.errors import RegistryError
from builder.publish.attachments import RECIPE, SPDX, missing_attachments, recipe_texts
from builder.publish.registry import Repository
from builder.publish.verdicts import SLSA, AttachedFile, Attachment, attach_all
from support.catalogs import load, rendered
from support.commands import Builder
from support.environment import REPOSITORY
from support.registries import attach, put_image

NAME = "lucebox-f12a87c"


@pytest.mark.usefixtures("docker_config")
def test_a_recipe_comes_back_with_its_locks(
    builder: Builder, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    entry = load(REPOSITORY).engine(NAME)
    repository = Repository(f"{registry}/me/{entry.recipe.image.repository}", print)
    image = put_image(repository, NAME, "1")
    files = [AttachedFile(name, RECIPE, text.encode()) for name, text in entry.texts().items()]
    attach(repository, image, RECIPE, {}, files)
    done = builder("recipe", "export", NAME, "1", "--output", tmp_path / "recipes")
    assert done.returncode == 0, done.stderr
    written = {
        str(file.relative_to(tmp_path / "recipes")): file.read_text()
        for file in (tmp_path / "recipes").rglob("*.toml")
    }
    assert written == {
        name: (REPOSITORY / "recipes" / name).read_text()
        for name in (f"{NAME}.toml", f"locks/{NAME}.toml", f"locks/{NAME}.debian.toml")
    }


@pytest.mark.parametrize(
    "name", ["../x.toml", "/x.toml", "locks/../x.toml", ".git/x.toml", "x.py", "a//x.toml"]
)
def test_a_path_that_is_not_below_the_recipes_is_refused(name: str) -> None:
    with pytest.raises(RegistryError, match="has a file with the path"):
        recipe_texts([AttachedFile(name, RECIPE, b"x = 1\n")])


@pytest.mark.usefixtures("docker_config")
def test_attached_ptx_comes_back(
    builder: Builder, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    plan = rendered(REPOSITORY, NAME)
    file = ccache.path_of(tmp_path, plan.name, plan.key)
    described = {SPDX, SLSA, RECIPE}

    def made(attached: set[str]) -> list[Attachment]:
        # What describes the image is there, so that its record is not read.
        record = Record.model_construct()
        return missing_attachments(plan, record, {}, attached, tmp_path, tmp_path)

    assert made(described) == []
    folder = tmp_path / "kept"
    folder.mkdir()
    texts = {"ab" * 32: b".version 9.0 // one", "cd" * 32: b".version 9.0 // two"}
    for digest, text in texts.items():
        (folder / f"{digest}.gz").write_bytes(gzip.compress(text))
    ccache.pack(folder, file)
    assert ccache.digests(file) == {*texts}
    assert made({*described, ccache.KIND}) == []
    [attachment] = made(described)
    repository = Repository(f"{registry}/me/{plan.recipe.image.repository}", print)
    attach_all(repository, put_image(repository, NAME, "1"), [attachment])
    done = builder("ptx", NAME, "--from", "1", "--output", tmp_path / "taken")
    assert done.returncode == 0, done.stderr
    written = {file.name: file.read_bytes() for file in (tmp_path / "taken").iterdir()}
    assert written == {f"{digest}.ptx": text for digest, text in texts.items()}
    # An attachment without a file, which anybody with push access can add later.
    attach(repository, put_image(repository, NAME, "1"), ccache.KIND, {})
    done = builder("ptx", NAME, "--from", "1", "--output", tmp_path / "none")
    assert done.returncode == 12
    assert f"has no attachment of the type {ccache.KIND}" in done.stderr
