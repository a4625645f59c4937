"""The stage that builds a web page: out of its packages alone, and twice with the same bytes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import FetchError
from builder.engines.families import load_catalog
from builder.plan.resolver import Resolver
from builder.sources.gather import BuildContext, GatherOptions, gather
from support import npm
from support.environment import SHARED_CACHE
from support.upstreams import Upstream

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("llama"),
    pytest.mark.usefixtures("devel"),
]

RECIPE = """
engine  = "paged"
version = "1"
summary = "A tree with the source of its page"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
cuda    = {{ arch = ["120"] }}
llama   = {{ build_number = 7, ui = "tools/ui" }}

[source]
git    = "{url}"
commit = "{commit}"

[[cmake]]
targets = ["llama-server"]

[image]
repository = "paged"
tags       = ["1"]
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[npm.Registry]:
    with npm.served() as found:
        monkeypatch.setenv("npm_config_registry", found.url)
        yield found


@pytest.fixture
def upstream(tmp_path: Path, registry: npm.Registry) -> Upstream:
    found = Upstream(tmp_path / "upstream")
    found.commit("one", **npm.page_source(registry))
    return found


def gathered(catalog: Path, upstream: Upstream, work: Path) -> tuple[BuildContext, str]:
    """The build context of the tree's newest commit, and the recipe's key."""
    recipe = RECIPE.format(url=upstream.url, commit=upstream.head())
    (catalog / "recipes" / "paged-1.toml").write_text(recipe)
    plan = Resolver(load_catalog(catalog), "amd64").resolve("paged-1")
    bases = {stage: f"docker-image://{name}" for stage, name in plan.base_references.items()}
    work.mkdir()
    options = GatherOptions(SHARED_CACHE, lambda _: None, bases=bases, epoch=plan.epoch)
    return gather(plan, options, work), plan.key


def built(context: BuildContext, target: Path, *options: str) -> tuple[dict[str, bytes], str]:
    """The files of the page, and the progress of its stage."""
    words = [f"--output=type=local,dest={target}", "--progress=plain", *options]
    command = ["docker", "buildx", "build", "--target=page", *words, *context.arguments("image")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {each.name: each.read_bytes() for each in target.iterdir()}, done.stderr


def test_two_builds_of_a_page_have_the_same_bytes(
    catalog: Path, upstream: Upstream, registry: npm.Registry, tmp_path: Path
) -> None:
    first, key = gathered(catalog, upstream, tmp_path / "one")
    registry.files.clear()  # the second has its packages from the cache
    page, _ = built(first, tmp_path / "a", "--no-cache-filter=npm")
    again, _ = built(first, tmp_path / "b", "--no-cache-filter=npm")
    assert again == page
    assert {*page} == {"index.html", "bundle.js"}
    milliseconds, day = first.epoch * 1000, first.created[:19]
    assert f'["tiny","7",{milliseconds},"{day}.000Z"]' in page["bundle.js"].decode()
    # A change elsewhere in the tree, at the same time, makes another image with the same page.
    upstream.commit("two", **{"kernel.cu": "int x;"})
    second, other = gathered(catalog, upstream, tmp_path / "two")
    assert second.epoch == first.epoch
    assert other != key
    same, progress = built(second, tmp_path / "c")
    assert same == page
    assert re.search(r"#(\d+) \[npm [^]]*\] RUN [^\n]*\n#\1 CACHED", progress), progress


def test_a_package_with_other_bytes_than_the_lock_names_is_no_part_of_a_page(
    catalog: Path, upstream: Upstream, tmp_path: Path
) -> None:
    changed = npm.package("tiny", "1.0.0", {"index.js": f"export const word = '{tmp_path}';"})
    lock = npm.lock({"tiny": npm.entry("tiny", "1.0.0", changed)})
    upstream.commit("two", **{"tools/ui/package-lock.json": lock.decode()})
    with pytest.raises(FetchError, match=r"tiny-1\.0\.0\.tgz does not have the pinned digest"):
        gathered(catalog, upstream, tmp_path / "work")
