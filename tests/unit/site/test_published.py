"""The facts that come from a registry and from records: a real registry, real files."""

from __future__ import annotations

import json
from pathlib import Path

import html5lib
import pytest
import yaml

from builder import sbom
from builder.families import load_catalog
from builder.nightly import history
from builder.publish.referrers import attach
from builder.publish.tag_history import attach_note
from builder.publish.verdicts import TEXT, VERDICT, Statement
from builder.settings import Settings
from builder.site.collect import collect
from builder.site.published import published
from builder.site.write import write
from builder.tools.registry.client import Manifest, Repository
from support.environment import REPOSITORY
from support.nights import night
from support.prunes import image

pytestmark = pytest.mark.usefixtures("docker_config")
HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7*7 }}"
LOST = "the pin has no <b>mtp</b>"


@pytest.fixture
def moved(registry: str) -> tuple[Repository, Manifest, Manifest]:
    """A tag that was moved from one image to another, which is signed and has a verdict."""
    repository = Repository(f"{registry}/me/llama-cpp", print)
    first = image(repository, day=1)
    attach_note(repository, first, "b9261", "", "first")
    repository.put_manifest("b9261", first)
    second = image(repository, day=2, layers=[b"x" * 5000])
    attach_note(repository, second, "b9261", first.digest, HOSTILE)
    repository.put_manifest("b9261", second)
    checks = {"libraries": 3, "help": 12}
    statement = Statement(
        recipe="llama-cpp-b9261",
        key="k",
        digest=second.digest,
        contract="c",
        checks=checks,
        created="2026-11-02T02:00:00+00:00",
    )
    attach(repository, second, VERDICT, {TEXT: statement.text})
    attach(repository, second, sbom.SPDX, {})
    repository.put_manifest(f"{second.digest.replace(':', '-')}.sig", image(repository, day=3))
    return repository, first, second


def test_a_tag_with_its_history(moved: tuple[Repository, Manifest, Manifest]) -> None:
    repository, first, second = moved
    recipe = load_catalog(REPOSITORY).engine("llama-cpp-b9261").recipe
    (tag,) = published(repository, recipe).tags
    assert (tag.tag, tag.digest, tag.created[:10]) == ("b9261", second.digest, "2026-11-02")
    sizes = [layer.size for layer in second.body.layers or ()]
    assert tag.download_size == sum(sizes)
    assert tag.update_size == sum(sizes[1:])  # the first layer is that of both
    assert [move.digest for move in tag.moves] == [second.digest, first.digest]
    assert (tag.signed, tag.documents, tag.platforms) == (True, ("SPDX",), ("linux/amd64",))
    assert tag.checks == {"libraries": 3, "help": 12}


def test_the_pages_of_a_published_image(
    moved: tuple[Repository, Manifest, Manifest], tmp_path: Path
) -> None:
    repository, _, second = moved
    settings = Settings(namespace=repository.name.rpartition("/")[0], state_dir=tmp_path / "state")
    facts = collect(load_catalog(REPOSITORY), settings, print)
    write(facts, tmp_path / "site")
    page = (tmp_path / "site" / "images" / "llama-cpp-b9261.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    assert f"docker pull {repository.name}@{second.digest}" in page
    assert "cosign verify" in page
    assert "help: 12" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    data = json.loads((tmp_path / "site" / "index.json").read_text())
    laptop = next(each for each in data["cards"] if each["card"] == "5090-laptop")
    option = next(each for each in laptop["fits"] if each["recipe"] == "llama-cpp-b9261")
    file = yaml.safe_load((tmp_path / "site" / option["compose"]).read_text())
    (service,) = file["services"].values()
    assert service["image"] == f"{repository.name}@{second.digest}"
    marks = {each["preset"]: each.get("marks", []) for each in data["speeds"]}
    assert marks[option["preset"]] == ["compiled", "run on a card"]
    # Only published images have a file for Docker Compose.
    assert {each["recipe"] for each in laptop["fits"] if "compose" in each} == {"llama-cpp-b9261"}


def test_every_night_is_shown_and_why_it_failed(registry: str, tmp_path: Path) -> None:
    repository = Repository(f"{registry}/me/llama-cpp", print)
    history.write(repository, night(channel="master", outcome="moved"))
    history.write(repository, night(channel="master", outcome="failed", reason=LOST))
    settings = Settings(namespace=f"{registry}/me", state_dir=tmp_path / "state")
    facts = collect(load_catalog(REPOSITORY), settings, print)
    assert [each.recipe for each in facts.images if each.nights] == ["llama-cpp-master"]
    write(facts, tmp_path / "site")
    page = (tmp_path / "site" / "nights.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    assert page.index('<li class="failed">') < page.index('<li class="moved">')
    assert "the pin has no &lt;b&gt;mtp&lt;/b&gt;" in page
    assert 'href="nights.html"' in (tmp_path / "site" / "index.html").read_text()
