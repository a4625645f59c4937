"""From a plan to the tree that is compiled, for every kind of source, patched and unpatched."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from builder.core.errors import FetchError, PatchError
from builder.plan.plan import Plan
from builder.sources.apt import debian_sources
from builder.sources.gather import BuildContext, GatherOptions, fetch, fetch_commits, gather
from support.catalogs import rendered, write_lock
from support.upstreams import Upstream

RECIPE = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "cmake"
base    = "cuda-13.0"
source  = {source}
cuda    = {{ arch = ["120"] }}

[[cmake]]

[image]
repository = "x"
tags       = ["1"]
entrypoint = ["/x"]

[[probe]]
run = ["x"]
"""
BASE_EPOCH = 1795132800  # 2026-11-20
PATCH = '\n[[patch]]\nfile = "x.patch"\nwhy = "x"\n'
DIFF = "--- a/a.c\n+++ b/a.c\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
TEXT = b"one\ntwo\nthree\n"


class Farm:
    """A catalog with one engine, and the directory that its inputs are gathered in."""

    def __init__(self, catalog: Path, folder: Path) -> None:
        self.catalog = catalog
        self.folder = folder
        self.said: list[str] = []
        self.count = 0
        (catalog / "patches").mkdir()
        (catalog / "patches" / "x.patch").write_text(DIFF)

    def cached(self, name: str, content: bytes) -> str:
        """A file of the package index, fetched before: the source that pins it."""
        digest = hashlib.sha256(content).hexdigest()
        folder = self.folder / "cache" / "pypi" / digest
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        return digest

    def tree(self, source: str, patch: str = "", recipe: str = RECIPE) -> Path:
        return Path(self.gathered(source, patch, recipe).named["source"]) / "tree"

    def gathered(self, source: str, patch: str = "", recipe: str = RECIPE) -> BuildContext:
        (self.catalog / "recipes" / "x-1.toml").write_text(recipe.format(source=source) + patch)
        plan = rendered(self.catalog, "x-1")
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        materials = GatherOptions(self.folder / "cache", self.said.append, epoch=BASE_EPOCH)
        return gather(plan, materials, work)


@pytest.fixture
def farm(catalog: Path, tmp_path: Path) -> Farm:
    return Farm(catalog, tmp_path)


def sdist(*more: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name in ("pkg-1/a.c", "pkg-1/vendor/part/a.c", "pkg-1/vendor/part/.gitignore", *more):
            content = b"*\n" if name.endswith("ignore") else TEXT
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return out.getvalue()


def wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("pkg/__init__.py", "")
        made.writestr("a.c", TEXT)
        made.writestr("pkg-1.dist-info/METADATA", "Name: pkg\n")
    return out.getvalue()


def test_a_tree_of_the_repository(farm: Farm) -> None:
    folder = farm.catalog / "engines" / "x"
    folder.mkdir(parents=True)
    (folder / "a.c").write_bytes(TEXT)
    (folder / ".gitignore").write_text("*\n")
    source = '{ path = "engines/x" }'
    assert (farm.tree(source) / "a.c").read_bytes() == TEXT
    patched = farm.tree(source, PATCH)
    assert (patched / "a.c").read_text() == "one\n2\nthree\n"
    assert (patched / ".gitignore").exists()  # what git ignores is part of a source all the same
    assert (folder / "a.c").read_bytes() == TEXT


def test_an_sdist_and_a_part_of_it(farm: Farm) -> None:
    digest = farm.cached("pkg-1.tar.gz", sdist())
    about = f'pypi = "pkg", version = "1", sha256 = "{digest}"'
    assert sorted(p.name for p in farm.tree(f"{{ {about} }}").iterdir()) == ["a.c", "vendor"]
    # A submodule's link leads out of its tree: with patches or without, it is not there.
    digest = farm.cached("pkg-1.tar.gz", sdist("pkg-1/vendor/part/.git"))
    about = f'pypi = "pkg", version = "1", sha256 = "{digest}"'
    part = f'{{ {about}, root = "vendor/part" }}'
    assert sorted(p.name for p in farm.tree(part).iterdir()) == [".gitignore", "a.c"]
    patched = farm.tree(part, PATCH)
    assert (patched / "a.c").read_text() == "one\n2\nthree\n"
    assert (patched / ".gitignore").exists()
    with pytest.raises(FetchError, match="has no directory vendor/other"):
        farm.tree(f'{{ {about}, root = "vendor/other" }}')


def test_a_wheel_is_what_it_installs(farm: Farm) -> None:
    digest = farm.cached("pkg-1-py3-none-any.whl", wheel())
    source = f'{{ pypi = "pkg", version = "1", sha256 = "{digest}" }}'
    names = sorted(path.name for path in farm.tree(source).iterdir())
    assert names == ["a.c", "pkg", "pkg-1.dist-info"]
    assert (farm.tree(source, PATCH) / "a.c").read_text() == "one\n2\nthree\n"


def test_a_commit(farm: Farm, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "upstream")
    commit = upstream.commit("one", **{"a.c": TEXT})
    source = f'{{ git = "{upstream.url}", commit = "{commit}" }}'
    assert (farm.tree(source) / "a.c").read_bytes() == TEXT
    assert (farm.tree(source, PATCH) / "a.c").read_text() == "one\n2\nthree\n"
    assert "file x.patch is applied" in farm.said


def test_a_pointer_of_git_lfs_is_no_content(farm: Farm, tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n"
    upstream = Upstream(tmp_path / "upstream")
    commit = upstream.commit("one", **{"a.c": TEXT, "doc__logo.png": pointer})
    farm.tree(f'{{ git = "{upstream.url}", commit = "{commit}" }}')
    assert "1 files of x-1 are pointers of Git LFS, without contents: doc/logo.png" in farm.said
    commit = upstream.commit("two", **{"tools__ui__dist__index.html": pointer})
    llama = RECIPE.replace('"cmake"', '"llama-cpp"').replace(
        "[[cmake]]", "[llama]\nbuild_number = 1\nui = true\n\n[[cmake]]\ntargets = ['llama-server']"
    )
    with pytest.raises(FetchError, match="lacks the contents of files") as caught:
        farm.tree(f'{{ git = "{upstream.url}", commit = "{commit}" }}', recipe=llama)
    assert "no built web page" in caught.value.why
    assert "tools/ui/dist/index.html" in caught.value.why


def test_a_pull_request_that_is_gone_is_found_without_a_base(farm: Farm, tmp_path: Path) -> None:
    """A base takes minutes; the commits are looked at before it is built."""
    upstream = Upstream(tmp_path / "upstream")
    commit = upstream.commit("one", **{"a.c": TEXT})
    source = f'{{ git = "{upstream.url}", commit = "{commit}" }}'
    pull = f'pull = 6\nbase = "{commit}"\nhead = "{"2" * 40}"\nwhy = "x"\n'
    recipe = RECIPE.format(source=source) + f"\n[[patch]]\n{pull}"
    (farm.catalog / "recipes" / "x-1.toml").write_text(recipe)
    (tmp_path / "cache").mkdir()
    options = GatherOptions(tmp_path / "cache", farm.said.append)
    with pytest.raises(FetchError, match="no longer has 222222222222"):
        fetch_commits(rendered(farm.catalog, "x-1"), options)


def test_the_newest_input_is_the_base_or_the_commit(farm: Farm, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "upstream")
    for date in (BASE_EPOCH - 60, BASE_EPOCH + 60):
        upstream.clock = date - 120  # each command of git is a minute later
        commit = upstream.commit("one", **{"a.c": f"{date}\n"})
        found = farm.gathered(f'{{ git = "{upstream.url}", commit = "{commit}" }}')
        assert found.epoch == max(BASE_EPOCH, int(upstream.git("log", "-1", "--format=%ct")))
    assert found.epoch > BASE_EPOCH
    folder = farm.catalog / "engines" / "x"
    folder.mkdir(parents=True)
    (folder / "a.c").write_bytes(TEXT)
    assert farm.gathered('{ path = "engines/x" }').epoch == BASE_EPOCH


def test_a_mirror_that_is_damaged_under_a_patch_is_made_anew(farm: Farm, tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "upstream")
    upstream.write("noise.bin", os.urandom(20_000))
    base = upstream.commit("one", **{"a.c": TEXT})
    head = upstream.pull(1, {"a.c": "one\n2\nthree\n"})
    source = f'{{ git = "{upstream.url}", commit = "{base}" }}'
    patch = f'\n[[patch]]\npull = 1\nbase = "{base}"\nhead = "{head}"\nwhy = "x"\n'
    farm.tree(source, patch)
    (mirror,) = (tmp_path / "cache" / "git").iterdir()
    for name in ("pins.git", "history.git"):
        for file in (mirror / name / "objects").rglob("*"):
            if file.is_file() and file.suffix != ".idx" and file.name != "alternates":
                file.chmod(0o644)
                file.write_bytes(file.read_bytes()[:-30] + b"\0" * 30)
        assert (farm.tree(source, patch) / "a.c").read_text() == "one\n2\nthree\n"
        assert list(mirror.glob(f"damaged-*-{name}"))


def test_a_patch_that_does_not_fit_stops_before_anything_is_built(farm: Farm) -> None:
    digest = farm.cached("pkg-1.tar.gz", sdist())
    (farm.catalog / "patches" / "x.patch").write_text(DIFF.replace("two", "zwei"))
    with pytest.raises(PatchError, match=r"file x\.patch does not apply"):
        farm.tree(f'{{ pypi = "pkg", version = "1", sha256 = "{digest}" }}', PATCH)


LOCK = """\
suite = "trixie"
as_of = 2026-11-21T02:10:46Z

[[install]]
stage = "build"
architecture = "amd64"
packages = ["aa"]
files = [
    {{ path = "debian/pool/main/a/aa/aa_1_amd64.deb", version = "1", size = 2, sha256 = "{0}" }},
    {{ path = "debian/pool/main/b/bb/bb_1_all.deb", version = "1", size = 2, sha256 = "{1}" }},
]

[[install]]
stage = "runtime"
architecture = "amd64"
packages = ["cc"]
files = []
"""


def with_debian(farm: Farm, lock: str = "") -> Plan:
    folder = farm.catalog / "engines" / "x"
    folder.mkdir(parents=True, exist_ok=True)
    text = RECIPE.format(source='{ path = "engines/x" }')
    text += f'\n[debian]\nbuild = ["aa"]\nruntime = ["cc"]\n{lock}'
    (farm.catalog / "recipes" / "x-1.toml").write_text(text)
    return rendered(farm.catalog, "x-1")


def test_locked_debian_packages_are_laid_out_for_each_stage(farm: Farm, tmp_path: Path) -> None:
    digests = [hashlib.sha256(content).hexdigest() for content in (b"aa", b"bb")]
    file = farm.catalog / "recipes" / "locks" / "x.debian.toml"
    write_lock(file, LOCK.format(*digests))
    plan = with_debian(farm, 'lock = "locks/x.debian.toml"')
    options = GatherOptions(tmp_path / "cache", farm.said.append, offline=True)
    (work := tmp_path / "first").mkdir()
    with pytest.raises(FetchError, match=r"not in the cache: aa_1_amd64\.deb, bb_1_all\.deb"):
        gather(plan, options, work)
    for name, content, digest in zip(
        ("aa_1_amd64.deb", "bb_1_all.deb"), (b"aa", b"bb"), digests, strict=True
    ):
        (folder := tmp_path / "cache" / "debian" / digest).mkdir(parents=True)
        (folder / name).write_bytes(content)
    (work := tmp_path / "second").mkdir()
    sources = gather(plan, options, work)
    assert "apt-sources" not in sources.secrets
    # The base has all that the runtime needs: nothing is installed there.
    assert [name for name in sources.named if name.startswith("debian-")] == ["debian-build"]
    folder = Path(sources.named["debian-build"])
    found = {file.name: file.read_bytes() for file in folder.glob("*/*")}
    assert found == {"aa_1_amd64.deb": b"aa", "bb_1_all.deb": b"bb"}
    assert (folder / "amd64").is_dir()


def test_what_has_a_digest_is_fetched_before_it_is_gathered(farm: Farm, tmp_path: Path) -> None:
    digests = [hashlib.sha256(content).hexdigest() for content in (b"aa", b"bb")]
    write_lock(farm.catalog / "recipes" / "locks" / "x.debian.toml", LOCK.format(*digests))
    plan = with_debian(farm, 'lock = "locks/x.debian.toml"')
    options = GatherOptions(tmp_path / "cache", farm.said.append, offline=True)
    with pytest.raises(FetchError, match=r"not in the cache: aa_1_amd64\.deb, bb_1_all\.deb"):
        fetch(plan, options)
    names = ("aa_1_amd64.deb", "bb_1_all.deb")
    for name, content, digest in zip(names, (b"aa", b"bb"), digests, strict=True):
        (folder := tmp_path / "cache" / "debian" / digest).mkdir(parents=True)
        (folder / name).write_bytes(content)
    fetch(plan, options)


def test_unlocked_debian_packages_are_those_of_today(farm: Farm, tmp_path: Path) -> None:
    options = GatherOptions(tmp_path / "cache", farm.said.append)
    (work := tmp_path / "work").mkdir()
    plan = with_debian(farm)
    sources = gather(plan, options, work)
    assert ("apt-sources" not in sources.secrets) == (not debian_sources("trixie"))
    assert farm.said == [
        "x-1 installs the Debian packages of today: `builder pin lock x-1` records them, so that "
        "the image can be built again"
    ]
    assert '"apt-install", "aa"' in rendered(farm.catalog, "x-1").text
