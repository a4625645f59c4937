"""Overlays of a package that lies in a directory of its repository, as SGLang's does."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.core.errors import PatchError
from builder.core.settings import Settings
from builder.engines import families
from builder.engines.family import PackagePaths
from builder.engines.overlay import Overlay
from builder.recipes.probes import Serve
from builder.sources.diff import PatchState
from builder.sources.gather import GatherOptions, gather
from builder.upstream.patches import on_pin, open_session
from support.catalogs import load, rendered
from support.upstreams import Upstream

OPS = "python/sglang/srt/ops.py"
OLD, NEW = "SHARED = 99\n", "SHARED = 100\n"
BASE = f"""
name    = "published"
summary = "What somebody else publishes"
license = "Apache-2.0"
family  = "published"

[published]
image  = "registry.example.invalid/sglang:1"
digest = "sha256:{"0" * 64}"
"""
RECIPE = """
engine  = "x"
version = "1"
summary = "x"
license = "Apache-2.0"
family  = "sglang-overlay"
base    = "published"
source  = {source}
overlay = {{ package = "sglang", version = "1.0" }}
cuda    = {{ arch = ["120"], vmm = true }}

[image]
repository = "x"
tags       = ["1"]

[[probe]]
run = ["x"]

[[patch]]
why = "it does not start without it"
{patch}
"""


class Sglang(Overlay):
    name = "sglang-overlay"
    package_paths = PackagePaths(
        package="sglang",
        root="python",
        compiled=("sgl-kernel/*",),
        needs=("python/pyproject*.toml",),
        elsewhere=("test/*", "docs/*"),
    )
    serve = Serve(api_flavor="openai", arguments=["--model-path", "{model}"])
    port = 30000


class Repository:
    """The repository, and a recipe of the engine in a catalog."""

    def __init__(self, catalog: Path, folder: Path) -> None:
        self.catalog = catalog
        self.folder = folder
        self.upstream = Upstream(folder / "sglang")
        self.said: list[str] = []
        files = {
            "python/sglang/__init__.py": "",
            OPS: OLD,
            "python/pyproject.toml": "[project]\n",
            "test/srt/test_ops.py": "pass\n",
            "sgl-kernel/csrc/a.cu": "a\n",
        }
        for path, text in files.items():
            self.upstream.write(path, text)
        self.commit = self.upstream.record("one")
        (catalog / "recipes" / "bases" / "published.toml").write_text(BASE)

    @property
    def git(self) -> str:
        return f'{{ git = "{self.upstream.url}", commit = "{self.commit}" }}'

    def wheel(self) -> str:
        """The package as it is released, in the cache."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as made:
            made.writestr("sglang/__init__.py", "")
            made.writestr("sglang/srt/ops.py", OLD)
            made.writestr("sglang-1.0.dist-info/METADATA", "Name: sglang\n")
        digest = hashlib.sha256(out.getvalue()).hexdigest()
        folder = self.folder / "cache" / "pypi" / digest
        folder.mkdir(parents=True)
        (folder / "sglang-1.0-py3-none-any.whl").write_bytes(out.getvalue())
        return f'{{ pypi = "sglang", version = "1.0", sha256 = "{digest}" }}'

    def pull(self, files: Mapping[str, str]) -> str:
        """A patch: a pull request that writes these files."""
        head = self.upstream.pull(1, files)
        url = self.upstream.url
        return f'pull = 1\ngit = "{url}"\nbase = "{self.commit}"\nhead = "{head}"\n'

    def overlaid(self, source: str, patch: str) -> dict[str, str]:
        """The files that are laid over the installed package."""
        self.write(source, patch)
        work = self.folder / "work"
        work.mkdir()
        options = GatherOptions(self.folder / "cache", self.said.append)
        found = gather(rendered(self.catalog, "x-1"), options, work)
        folder = Path(found.named["source"])
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {each["before"] for each in manifest} == {hashlib.sha256(OLD.encode()).hexdigest()}
        return {each["path"]: (folder / "files" / each["path"]).read_text() for each in manifest}

    def write(self, source: str, patch: str) -> None:
        text = RECIPE.format(source=source, patch=patch)
        (self.catalog / "recipes" / "x-1.toml").write_text(text)


@pytest.fixture
def repository(catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setitem(families.ENGINES, Sglang.name, Sglang())
    return Repository(catalog, tmp_path)


@pytest.fixture(params=["git", "wheel"])
def source(repository: Repository, request: pytest.FixtureRequest) -> str:
    return repository.git if request.param == "git" else repository.wheel()


def test_a_pull_request_changes_the_installed_file(repository: Repository, source: str) -> None:
    patch = repository.pull({OPS: NEW, "test/srt/test_ops.py": "assert 1\n"})
    assert repository.overlaid(source, patch) == {"sglang/srt/ops.py": NEW}
    left = "left out, because the installed package lacks it: test/srt/test_ops.py"
    assert f"pull 1: {left}" in repository.said


def test_a_pull_request_is_tried_on_the_installed_file(repository: Repository, source: str) -> None:
    """`patch check` reads the same paths as a build."""
    repository.write(source, repository.pull({OPS: NEW}))
    settings = Settings(cache_dir=repository.folder / "cache", state_dir=repository.folder)
    catalog = load(repository.catalog)
    with open_session(catalog, settings, repository.said.append, offline=False) as session:
        (finding,) = on_pin(session.patch_set(catalog.engine("x-1")))
    assert finding.state == PatchState.APPLIES


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("sgl-kernel/csrc/a.cu", "it changes compiled files: sgl-kernel/csrc/a.cu"),
        ("python/pyproject.toml", "they declare requirements of sglang"),
        ("sglang/srt/ops.py", "it is unknown whether an installed sglang contains it"),
    ],
)
def test_paths_of_the_table_are_the_repositorys(
    repository: Repository, path: str, message: str
) -> None:
    with pytest.raises(PatchError) as caught:
        repository.overlaid(repository.git, repository.pull({OPS: NEW, path: "b\n"}))
    assert message in caught.value.why


def test_a_file_that_nothing_installs_is_no_overlay(repository: Repository) -> None:
    other = Upstream(repository.folder / "other")
    commit = other.commit("one", **{"plugin__a.py": "A = 1\n"})
    where = f'git = "{other.url}", commit = "{commit}", path = "plugin", to = "sglang/plugin"'
    with pytest.raises(PatchError, match=r"sglang/plugin/a\.py is outside of python/"):
        repository.overlaid(repository.git, f"add = {{ {where} }}")
