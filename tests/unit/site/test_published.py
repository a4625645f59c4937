"""The facts that come from a registry and from records: a real registry, real files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import html5lib
import pytest
import yaml

from builder.build import record
from builder.build.record import Record
from builder.core.errors import FetchError
from builder.core.settings import Settings
from builder.image.code_paths import CodePaths
from builder.presets import manifest
from builder.presets.cards import machine_with
from builder.presets.schema import PresetUse
from builder.publish import attachments, nights, tags
from builder.publish.registry import Manifest, RemotePlatform, Repository
from builder.publish.signing import Trust
from builder.publish.verdicts import REPRODUCTION, TEXT, VERDICT, Statement
from builder.site.facts import collect, image_fact, published_tags
from builder.site.pages import pages, write
from support.environment import REPOSITORY
from support.moves import attach_note
from support.nights import night
from support.prunes import image, index
from support.registries import attach, put_image
from support.reproductions import statement
from support.shipped import PRESETS, RECIPES
from support.verdicts import GOOD, verdict

pytestmark = pytest.mark.usefixtures("docker_config")
HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7*7 }}"
PRESET = "qwen3.6-35b-a3b-mtp@5090-laptop"
LOST = "the pin has no <b>mtp</b>"


@pytest.fixture
def moved(registry: str) -> tuple[Repository, Manifest, Manifest]:
    """A tag that was moved from one image to another, which is signed and has a verdict."""
    repository = Repository(f"{registry}/me/llama-cpp", print)
    first = image(repository, day=1)
    attach_note(repository, first, "b9261", "", "first")
    repository.put_manifest("b9261", first)
    second = image(repository, day=2, layers=[b"x" * 5000])
    tags.move(repository, "b9261", second.digest, HOSTILE)
    checks = {"libraries": 3, "help": 12}
    statement = Statement(
        recipe="llama-cpp-b9261",
        key="k",
        digest=second.digest,
        contract="c",
        checks=checks,
        created="2026-11-02T02:00:00+00:00",
    )
    attach(repository, second, VERDICT, {TEXT: statement.model_dump_json()})
    attach(repository, second, attachments.SPDX, {})
    repository.put_manifest(f"{second.digest.replace(':', '-')}.sig", image(repository, day=3))
    return repository, first, second


def test_a_tag_with_its_history(moved: tuple[Repository, Manifest, Manifest]) -> None:
    repository, first, second = moved
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    (tag,) = published_tags(repository, recipe, Settings())
    assert (tag["tag"], tag["digest"], tag["created"][:10]) == (
        *("b9261", second.digest, "2026-11-02"),
    )
    sizes = [layer.size for layer in second.body.layers or ()]
    assert tag["download_size"] == sum(sizes)
    assert tag["update_size"] == sum(sizes[1:])  # both have the first layer
    assert [move.digest for move in tag["moves"]] == [second.digest, first.digest]
    assert (tag["signed"], tag["documents"]) == (True, ("SPDX", "verdict"))
    assert tag["platforms"] == {"linux/amd64": RemotePlatform(second.digest, sum(sizes), "k")}
    assert tag["checks"] == {"libraries": 3, "help": 12}
    text = (REPOSITORY / "docs" / "development.md").read_text()
    for name in tag:
        assert f"`{name}`" in text, name


def test_a_tag_of_an_index_has_what_is_attached_to_its_images(
    moved: tuple[Repository, Manifest, Manifest],
) -> None:
    repository, _, second = moved
    arm64 = image(repository, day=4, config={"architecture": "arm64"})
    both = index(repository, of=[second, arm64], architectures=("amd64", "arm64"))
    repository.put_manifest("b9261", both)
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    (tag,) = published_tags(repository, recipe, Settings())
    assert (tag["digest"], [*tag["platforms"]]) == (both.digest, ["linux/amd64", "linux/arm64"])
    assert tag["platforms"]["linux/arm64"].digest == arm64.digest
    assert (tag["documents"], tag["checks"]) == (("SPDX", "verdict"), {"libraries": 3, "help": 12})
    # An image is signed, not the index.
    assert not tag["signed"]


def test_the_pages_of_a_published_image(
    moved: tuple[Repository, Manifest, Manifest], key: Path, tmp_path: Path
) -> None:
    repository, first, second = moved
    settings = Settings(
        namespace=repository.name.rpartition("/")[0],
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        trusted_keys=(str(key.with_name("cosign.pub")),),
        cosign_key="",
    )
    for day, signs in ((4, key), (5, None)):
        attach(repository, second, REPRODUCTION, statement(second.digest, day, signs))
    # Where a key is trusted, only signed notes count.
    (tag,) = published_tags(repository, RECIPES.engine("llama-cpp-b9261").recipe, settings)
    assert tag["moves"] == ()
    trust = Trust(str(key), (), tmp_path / "signing")
    attach_note(repository, second, "b9261", first.digest, HOSTILE, trust=trust)
    facts = collect(RECIPES, settings, print, {})
    write(facts, tmp_path / "site")
    page = (tmp_path / "site" / "images" / "llama-cpp-b9261.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    assert f"docker pull {repository.name}@{second.digest}" in page
    for file in ("images.html", "images/llama-cpp-b9261.html"):
        text = (tmp_path / "site" / file).read_text()
        assert f"<code>docker pull {repository.name}:b9261</code>" in text
        assert "./farm build llama-cpp-b9261<" not in text
    public = key.with_name("cosign.pub").read_text().strip()
    assert f"by the key <code>{public}</code>" in page
    verify = "cosign verify --insecure-ignore-tlog=true --key=cosign.pub"
    assert f"<code>{verify} {repository.name}@{second.digest}</code>" in page
    assert "help: 12" in page
    # A statement that no trusted key signed is not shown, although it is newer.
    assert 'with the same digest on <time datetime="2026-11-04' in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    data = json.loads((tmp_path / "site" / "index.json").read_text())
    laptop = next(each for each in data["cards"] if each["card"] == "5090-laptop")
    option = next(each for each in laptop["fits"] if each["recipe"] == "llama-cpp-b9261")
    # Its image is published, and the name of the model's file is not known.
    assert "compose" not in option
    assert [each["command"].split()[:2] for each in option["missing"]] == [
        ["hf", "download"],
        ["./farm", "export"],
    ]
    marks = {each["preset"]: each.get("marks", []) for each in data["speeds"]}
    # trials/ has its memory.
    assert marks[option["preset"]] == ["compiled", "run without a GPU", "run on a card"]
    for each in laptop["fits"]:
        preset = PRESETS.preset(each["preset"]).preset
        named = preset.recipe == "llama-cpp-b9261" and preset.model.file is not None
        assert ("compose" in each) is named, each["preset"]


def test_the_file_for_compose_of_a_published_image(registry: str, tmp_path: Path) -> None:
    """The preset names every file of its models."""
    repository = Repository(f"{registry}/me/buun-llama-cpp", print)
    there = image(repository, day=1)
    repository.put_manifest("b9304", there)
    facts = collect(RECIPES, Settings(namespace=f"{registry}/me", state_dir=tmp_path), print, {})
    write(facts, tmp_path / "site")
    laptop = next(each for each in facts.cards if each.card == "5090-laptop")
    (option,) = (each for each in laptop.fits if each.compose)
    assert (option.recipe, option.missing) == ("buun-b9304", ())
    file = yaml.safe_load((tmp_path / "site" / option.compose).read_text())
    (service,) = file["services"].values()
    assert service["image"] == f"{repository.name}@{there.digest}"
    assert not re.search(r"(MODEL|DRAFT|MMPROJ)(\.gguf)?\b", " ".join(service["command"]))
    # Programs get the same run, and a stranger's farm chooses it.
    found = manifest.fetch(str(tmp_path / "site")).manifest
    (tag,) = next(each.tags for each in found.images if each.recipe == "buun-b9304")
    assert (tag.tag, tag.digest) == ("b9304", there.digest)
    machine = machine_with(RECIPES.root, ["5090-laptop"])
    ((run, listed),) = manifest.choose(found, machine, 0, "")[0]
    assert run.preset == option.preset
    assert run.arguments == service["command"]
    start = manifest.commands(run, listed)[-1]
    assert f"{repository.name}@{there.digest}" in start
    page = (tmp_path / "site" / "index.html").read_text()
    assert f'<a href="compose/{option.preset.replace("@", "%40")}.yaml"' in page
    html5lib.HTMLParser(strict=True).parse(page)


def test_a_tag_with_the_image_of_another_recipe_is_left_out(registry: str) -> None:
    repository = Repository(f"{registry}/me/llama-cpp", print)
    put_image(repository, "k", "b9261", builder_recipe="llama-cpp-b9397")
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    others = ("llama-cpp-b9261", "llama-cpp-b9397")
    assert published_tags(repository, recipe, Settings(), others) == ()
    (tag,) = published_tags(repository, recipe, Settings(), ("llama-cpp-b9261",))
    parts = ("update_size", "signed", "documents", "checks")
    assert [tag[name] for name in parts] == [None, False, (), {}]


def test_a_preset_that_was_tried_has_the_memory_of_its_trial(tmp_path: Path) -> None:
    entry = PRESETS.preset(PRESET)
    use = PresetUse(
        *(entry.preset.identity, 262144, "5090-laptop", 1, 25_000_000_000, 22_500_000_000),
        *(500_000_000, {"weights": 22_000_000_000}),
    )
    checks = (GOOD, replace(GOOD, subject="other"))
    code = (CodePaths("/opt/_fa2.so", compiled=65_000_000, dead=232_000_000, card="12.0"),)
    tried = replace(verdict(*checks), presets={PRESET: use}, code=code)
    kept = Record(
        recipe="llama-cpp-b9261",
        key="k" * 64,
        contract="c" * 64,
        references=("llama-cpp:b9261",),
        digest=tried.digest,
        verdict=tried,
        created="2026-11-20T02:00:00+00:00",
        seconds={},
    )
    record.write(tmp_path, kept)
    facts = collect(RECIPES, Settings(state_dir=tmp_path), print, {})
    laptop = next(each for each in facts.cards if each.card == "5090-laptop")
    option = next(each for each in laptop.fits if each.preset == PRESET)
    assert option.memory_by == "trial"
    (marks,) = (each["marks"] for each in facts.speeds if each["preset"] == PRESET)
    assert marks == ["compiled", "run without a GPU", "run on a card"]
    image = next(each for each in facts.images if each["recipe"] == "llama-cpp-b9261")
    shown = [image[name] for name in ("digest", "checks", "repository")]
    assert shown == [tried.digest, {"runs": 2}, ""]
    assert (image["download_size"], image["unpacked_size"]) == (10_000_000, 20_000_000)
    page = pages(facts)["images/llama-cpp-b9261.html"]
    assert '<th scope="row">/opt/_fa2.so</th><td></td><td>65.0 MB</td><td>232.0 MB</td>' in page
    assert "the driver compiles 65.0 MB at the first use (_fa2.so)" in page
    assert facts.as_json()["images"][[*facts.images].index(image)]["device_code"][0]["dead"] > 0


def test_an_image_of_another_machine_has_not_the_figures_of_this_one(
    moved: tuple[Repository, Manifest, Manifest],
) -> None:
    repository, _, second = moved
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    there = published_tags(repository, recipe, Settings())
    ours = Record(
        recipe="llama-cpp-b9261",
        key="k" * 64,
        contract="c" * 64,
        references=(),
        digest=f"sha256:{'0' * 64}",
        verdict=verdict(GOOD),
        created="2026-11-20T02:00:00+00:00",
        seconds={},
    )
    found = image_fact(RECIPES, "llama-cpp-b9261", repository.name, [], ours, there)
    assert (found["digest"], found["unpacked_size"]) == (second.digest, None)
    assert found["checks"] == {"help": 12, "libraries": 3}


def test_a_registry_that_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    settings = Settings(namespace="127.0.0.1:1/me", state_dir=tmp_path)
    with pytest.raises(FetchError, match="does not answer"):
        collect(RECIPES, settings, print, {})
    assert collect(RECIPES, settings, print, {}, offline=True).images


def test_every_night_has_its_hour_its_reason_and_the_changes_of_upstream(
    registry: str, tmp_path: Path
) -> None:
    repository = Repository(f"{registry}/me/llama-cpp", print)
    shared = {"recipe": "llama-cpp-master", "channel": "master", "reason": LOST}
    old, new = "a" * 40, "b" * 40
    nights.write(repository, night(channel="master", outcome="moved", commit=old))
    failed = {"outcome": "failed", "commit": new, **shared}
    nights.write(repository, night(**failed, started="2026-11-22T03:17:09+00:00"))
    nights.write(repository, night(**failed, started="2026-11-23T03:18:09+00:00"))
    rolled = {**shared, "outcome": "held", "reason": "rolled back: garbage after 60K"}
    rolled |= {"commit": old, "upstream": "b9200", "day": "2026-10-01"}
    nights.write(repository, night(**rolled, started="2026-11-24T03:19:09+00:00"))
    settings = Settings(namespace=f"{registry}/me", state_dir=tmp_path / "state")
    facts = collect(RECIPES, settings, print, {})
    assert [each["recipe"] for each in facts.images if each["nights"]] == ["llama-cpp-master"]
    write(facts, tmp_path / "site")
    page = (tmp_path / "site" / "nights.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    rows = re.findall(r'<tr class="(\w+)">(.*?)</tr>', page, re.DOTALL)
    assert [outcome for outcome, _ in rows] == ["held", "failed", "failed", "moved"]
    told = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for _, row in rows]
    lost = "the pin has no &lt;b&gt;mtp&lt;/b&gt;"
    assert told == [
        "2026-11-24 03:19 UTC held b9200 aaaaaaaaa rolled back: garbage after 60K",
        f"2026-11-23 03:18 UTC failed bbbbbbbbb changes as in the night before: {lost}",
        f"2026-11-22 03:17 UTC failed bbbbbbbbb changes {lost}",
        "2026-11-21 03:00 UTC moved aaaaaaaaa",
    ]
    text = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert "Last good image: master, night of 2026-11-21. It stays there since" in text
    assert "since 2026-11-22 (3 nights): held: rolled back: garbage after 60K." in text
    days = (datetime.now(UTC).date() - date(2026, 10, 1)).days
    assert f"Upstream: b9200 of 2026-10-01, {days} days old." in text
    assert "<details" not in page  # nothing needs a click
    changes = f'href="https://github.com/ggml-org/llama.cpp/compare/{old}...{new}"'
    assert page.count(changes) == 2
    assert 'href="nights.html"' in (tmp_path / "site" / "index.html").read_text()
    image = (tmp_path / "site" / "images" / "llama-cpp-master.html").read_text()
    assert image.count("<tr class=") == len(rows)
