"""The site: its pages, their links, and what each of them shows."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from dataclasses import fields, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import html5lib
import pytest

from builder.build.compilers import Compiler, Table, Thread
from builder.core import sizes
from builder.core.errors import WorldError
from builder.core.settings import Settings
from builder.engines.families import load_catalog
from builder.presets import cards
from builder.presets.choose import Obstacle, Refusal, known
from builder.presets.proposals import Unserved
from builder.presets.service import mounted
from builder.presets.shapes import Figure
from builder.publish.nights import NightlyRun
from builder.publish.tags import Move
from builder.site import facts as choices
from builder.site.facts import (
    CardFact,
    Option,
    Site,
    collect,
    measurements,
)
from builder.site.pages import ASSETS, CARD, KINDS, write
from support import receipts
from support.commands import Builder
from support.environment import REPOSITORY
from support.receipts import DIGEST, receipt
from support.shipped import PRESETS, RECIPES

HOSTILE = "'\"><script>alert(1)</script><img src=x onerror=alert(1)>"
LOADING = {"src", "srcset", "data", "poster", "action", "background"}
"""Attributes by which a browser loads what they name."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Site:
    state = tmp_path_factory.mktemp("state")
    found = collect(RECIPES, Settings(namespace="", state_dir=state), print, {})
    return replace(found, repository="")  # the checkout's remote is not of these tests


@pytest.fixture(scope="module")
def site(facts: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "out"
    write(facts, folder)
    return folder


class Links(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name == "href":
                (self.loaded if tag == "link" else self.links).append(value or "")
            elif name in LOADING:
                self.loaded.append(value or "")


class Attributes(HTMLParser):
    """The names of all attributes of a page, and the models of its rows."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.models: set[str | None] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.names |= {name for name, _ in attrs}
        self.models |= {value for name, value in attrs if name == "data-model"}


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_is_valid_html(site: Path) -> None:
    assert len(pages(site)) > 25
    for page in pages(site):
        html5lib.HTMLParser(strict=True).parse(page.read_text("utf-8"))


def test_every_link_leads_to_a_page_and_its_anchor(site: Path) -> None:
    anchors = {page.resolve(): Links(page).anchors for page in pages(site)}
    for page in pages(site):
        found = Links(page)
        assert found.links
        for link in (*found.links, *found.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
            assert target.is_file(), f"{page.name}: {link}"
            assert unquote(parts.fragment) in {"", *anchors.get(target, ())}, f"{page.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        found = Links(page)
        assert {urlsplit(link).scheme for link in found.loaded} <= {"", "data"}
        assert {urlsplit(link).scheme for link in found.links} <= {"", "https", "http"}
        text = page.read_text()
        assert "default-src 'none'; script-src 'self' file:; style-src 'self' file:;" in text
        assert " style=" not in text
    for asset in (site / name for name in ASSETS):
        assert "http" not in asset.read_text()
        assert "url(" not in asset.read_text()


@pytest.mark.parametrize("card", ["5090", "5090-laptop", CARD])
def test_the_first_page_answers_as_choose_does(site: Path, builder: Builder, card: str) -> None:
    """The same presets in the same order, the same reasons and the same recommendations."""
    answer = json.loads(builder("choose", "--card", card, "--json").stdout)
    found = next(each for each in data(site)["cards"] if each["card"] == card)
    shown = [each["preset"] for each in found.get("fits", [])]
    assert shown == [each["preset"] for each in answer["fits"]]
    refused = {each["preset"]: each["why"] for each in found["excluded"]}
    assert refused == {each["preset"]: each["why"] for each in answer["excluded"]}
    here = cards.machine_with(REPOSITORY, [card])
    recommended = known(RECIPES, PRESETS.valid(), REPOSITORY / "none").choice(here).recommended
    assert [each["preset"] for each in found.get("fits", []) if each["recommended"]] == [
        each.preset for each in recommended
    ]
    page = section(site, card)
    picks, _, table = page.partition("<table")
    rows = dict(re.findall(r'<tr data-preset="([^"]+)"(.*?)</tr>', table, re.DOTALL))
    assert [*rows] == shown
    marked = [name for name, row in rows.items() if ">recommended<" in row]
    assert marked == [each.preset for each in recommended]
    first = marked if card == CARD else []  # the script shows other cards' figures
    picks = picks.partition("</ul>")[0]
    assert re.findall(r"<code>./farm run ([^ <]+)", picks) == first
    count = f'<b class="count">{len(shown)} of {len(shown) + len(refused)}</b>'
    assert count in section(site, card)


def section(site: Path, card: str) -> str:
    """What the first page says of a card."""
    sections = re.split(r"<section ", (site / "index.html").read_text())
    return next(each for each in sections if f'data-card="{card}"' in each)


def test_a_card_without_code_says_so_first_and_has_no_tables(site: Path) -> None:
    shown = section(site, "3090")
    assert "No image of this farm has code for this card" in shown
    assert "<table" not in shown
    options = (site / "index.html").read_text().partition("<select")[2].partition("</select>")[0]
    groups = re.findall(r'<optgroup label="([^"]+)">(.*?)</optgroup>', options, re.DOTALL)
    assert [label for label, _ in groups] == [*KINDS.values()]
    cards_of = {label: re.findall(r'value="([^"]+)"', text) for label, text in groups}
    assert {"3090", "4090", "a100-80gb"} == {*cards_of["No image has code for"]}
    desktop = cards_of["GeForce RTX"]
    assert desktop[:3] == ["5090", "5080", "5070-ti"]
    assert desktop.index("5060-ti-16gb") < desktop.index("5060-ti-8gb") < desktop.index("5060")
    assert f'value="{CARD}" selected>RTX 5060 Ti 16 GB<' in options


def test_a_model_without_a_preset_has_a_next_step(site: Path, builder: Builder) -> None:
    card = next(each for each in data(site)["cards"] if "proposals" in each)
    name = card["card"]
    answer = json.loads(builder("choose", "--card", name, "--json").stdout)
    served = {each["short_name"] for each in card["fits"] if each["recommended"]}
    models = {each["short_name"] for each in (*card["fits"], *card["excluded"])}
    proposals, unserved = card["proposals"], card.get("unserved", [])
    assert {each["short_name"] for each in (*proposals, *unserved)} == models - served
    shown = unescape(section(site, name))
    for mine, its in zip(proposals, answer["proposals"], strict=True):
        for fact in ("short_name", "recipe", "quantization", "context", "memory"):
            assert mine[fact] == its[fact]
        assert mine["command"].startswith(f"./farm run {mine['recipe']} --model ~/models/")
        assert f"<code>{mine['command']}</code>" in shown
        assert f"<code>{mine['get']}</code>" in shown
    for each in unserved:
        assert each["why"] in shown
        assert each.get("command", "") in shown


def data(site: Path) -> Any:
    return json.loads((site / "index.json").read_text())


def test_what_is_not_known_is_absent(site: Path) -> None:
    image = next(each for each in data(site)["images"] if each["recipe"] == "beellama-0.1.1")
    assert image["code"] == ["sm_120a"]
    assert not {"digest", "checks", "tags", "nights", "channel", "unpacked_size"} & image.keys()
    page = (site / "images" / "beellama-0.1.1.html").read_text()
    for word in ("Digest", "Checks passed", "Tags", "Nights", "docker pull", "None"):
        assert word not in page
    assert not (site / "nights.html").exists()
    hello = next(each for each in data(site)["images"] if each["recipe"] == "hello-sm120-0.1.0")
    assert not {"created", "download_size", "passed", "known_by"} & hello.keys()


def test_the_table_of_images_has_the_facts_of_trials(site: Path) -> None:
    images = {each["recipe"]: each for each in data(site)["images"]}
    rows = re.findall(r"<tr>\n(.*?)</tr>", (site / "images.html").read_text(), re.DOTALL)
    texts = {re.findall(r"images/(.+?)\.html", row)[0]: words(row) for row in rows}
    assert texts.keys() == images.keys()
    for name, image in images.items():
        kept = REPOSITORY / "trials" / f"{name}.json"
        assert (image.get("known_by") == "trials") == kept.exists(), name
        assert texts[name].endswith(f"./farm build {name}")
        assert image["version"] in texts[name]
        if not kept.exists():
            continue
        tried = json.loads(kept.read_text())
        assert tried["created"][:10] in texts[name]
        assert sizes.shown(tried["download_size"]) in texts[name]
        refused = " and ".join(f"{n} of {kind} failed" for kind, n in tried["failed"].items())
        state = f"refused: {refused}" if refused else f"{tried['checks']} passed"
        assert state in texts[name]
        source = RECIPES.engine(name).recipe.source
        other = getattr(source, "commit", tried["commit"]) != tried["commit"]
        assert ("copy of the source" in texts[name]) == other, name


def test_the_versions_of_an_engine_stand_together_the_newest_first(site: Path) -> None:
    names = re.findall(r'<b><a href="images/(.+?)\.html', (site / "images.html").read_text())
    llama = [name for name in names if re.fullmatch(r"llama-cpp-b\d+", name)]
    assert llama[:2] == ["llama-cpp-b10018", "llama-cpp-b9831"]
    places = [names.index(name) for name in llama]
    assert places == [*range(places[0], places[0] + len(llama))]


def test_an_image_without_a_tag_has_the_command_that_builds_it(site: Path) -> None:
    for image in data(site)["images"]:
        page = (site / "images" / f"{image['recipe']}.html").read_text()
        assert f"<code>./farm build {image['recipe']}</code>" in page


def test_a_site_is_replaced_and_nothing_else(facts: Site, tmp_path: Path) -> None:
    target = tmp_path / "site"
    write(facts, target)
    own = {each.relative_to(target) for each in target.rglob("*")}
    (target / "CNAME").touch()
    (target / "images" / "mine.png").touch()
    (target / ".builder-site-killed").mkdir()
    write(replace(facts, images=(), composes={"compose/a.yaml": "a"}), target)
    assert not (target / "images" / "hello-sm120-0.1.0.html").exists()
    assert (target / "compose" / "a.yaml").read_text() == "a"
    write(facts, target)
    left = {each.relative_to(target) for each in target.rglob("*")}
    assert left == own | {Path("CNAME"), Path("images/mine.png")}
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(WorldError, match="was not written by"):
        write(facts, other)
    assert [each.name for each in other.iterdir()] == ["thesis.tex"]


def test_the_directory_itself_stays(facts: Site, tmp_path: Path) -> None:
    (real := tmp_path / "real").mkdir()
    (link := tmp_path / "link").symlink_to("real")
    before = real.stat().st_ino
    write(facts, link)
    write(facts, real)
    assert link.is_symlink()
    assert real.stat().st_ino == before
    assert (real / "index.html").exists()


def test_a_directory_that_cannot_be_made(facts: Site) -> None:
    with pytest.raises(WorldError, match="cannot write to the directory /proc/no"):
        write(facts, Path("/proc/no"))


def test_no_text_becomes_markup_or_a_script(facts: Site, tmp_path: Path) -> None:
    card = next(each for each in facts.cards if each.fits)
    option = replace(
        card.fits[0],
        model=HOSTILE,
        preset=HOSTILE,
        short_name=HOSTILE,
        quantization=HOSTILE,
        known=HOSTILE,
        figure=Figure(1.0, card=HOSTILE, by=HOSTILE),
        command=HOSTILE,
        capabilities=(HOSTILE,),
        caveats=(HOSTILE,),
        missing=({"why": HOSTILE, "command": HOSTILE},),
    )
    proposals = (each.proposals for each in facts.cards)
    proposal = next(each for each in proposals if each)[0]
    proposal = replace(proposal, model=HOSTILE, quantization=HOSTILE, get=HOSTILE, command=HOSTILE)
    refusal = Refusal(HOSTILE, "other", HOSTILE, (HOSTILE,), Obstacle.MEMORY)
    figure = {**facts.speeds[0]["figures"][0], "differs": HOSTILE}
    script = "javascript:alert(1)"
    speed = {**facts.speeds[0], "by": HOSTILE, "url": script, "figures": (figure, figure)}
    patch = {**dict.fromkeys(("name", "why", "drop_when"), HOSTILE), "where": script}
    patch["applied"] = True
    image = {**facts.images[0], "summary": HOSTILE, "notes": (HOSTILE,), "patches": (patch,)}
    hostile = replace(
        facts,
        cards=(
            replace(
                card,
                name=HOSTILE,
                fits=(option,),
                excluded=(refusal,),
                proposals=(proposal,),
                unserved=(Unserved(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
            ),
        ),
        images=(image,),
        speeds=(speed,),
    )
    write(hostile, tmp_path / "site")
    for page in pages(tmp_path / "site"):
        text = page.read_text()
        html5lib.HTMLParser(strict=True).parse(text)
        assert "<script>" not in text
        assert "<img" not in text
        assert 'href="javascript:' not in text
    first = Attributes(tmp_path / "site" / "index.html")
    assert HOSTILE in first.models
    assert not {name for name in first.names if name.startswith("on")}


def test_the_figures_of_receipts_are_attributed(facts: Site, tmp_path: Path) -> None:
    made = receipt(recipe=facts.images[0]["recipe"], by="@me", driver="580.65.06")
    shown = replace(facts, measurements=measurements([made]))
    write(shown, tmp_path / "site")
    page = (tmp_path / "site" / "speeds.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    told = " ".join(page.split())
    speed = "<b>102 tokens/s</b> (95 % confidence 76.59 to 127.41; 2 runs, 100 to 104)"
    assert f"{speed} with 32768 tokens of context" in told
    assert "NVIDIA GeForce RTX 5090, driver 580.65.06" in told
    assert f"<code>{DIGEST}</code>" in told
    assert f"<code>{'e' * 64}</code>, by @me" in told
    (found,) = data(tmp_path / "site")["measurements"]
    assert (found["runs"], found["model_sha256"]) == ([100.0, 104.0], "e" * 64)
    assert found["interval"] == [76.59, 127.41]


def test_without_receipts_there_is_no_section_for_them(facts: Site, tmp_path: Path) -> None:
    write(replace(facts, measurements=()), tmp_path / "site")
    assert "Receipts" not in (tmp_path / "site" / "speeds.html").read_text()
    assert "measurements" not in data(tmp_path / "site")


def test_a_broken_file_is_left_out_and_named(catalog: Path, tmp_path: Path) -> None:
    (catalog / "recipes" / "broken-1.toml").write_text("family = 'none'")
    (catalog / "presets").mkdir(exist_ok=True)
    (catalog / "presets" / "odd@5090.toml").write_text("recipe = 1")
    said: list[str] = []
    found = collect(load_catalog(catalog), Settings(state_dir=tmp_path / "state"), said.append, {})
    assert "broken-1" not in {image["recipe"] for image in found.images}
    assert [line.split()[0] for line in said] == ["odd@5090", "broken-1"]


def test_the_manual_names_every_field(facts: Site) -> None:
    text = (REPOSITORY / "docs" / "development.md").read_text()
    for kind in (CardFact, Option, Figure, Refusal, Move):
        for field in fields(kind):
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"
    patched = next(each for each in facts.images if each["patches"])
    (measured,) = measurements([receipt()])
    speed = facts.speeds[0]
    for fact in (patched, patched["patches"][0], speed, speed["figures"][0], measured):
        for name in fact:
            assert f"`{name}`" in text, name
    for name in NightlyRun.model_fields:
        assert f"`{name}`" in text, name


def test_the_first_page_is_light(site: Path) -> None:
    names = ("index.html", *ASSETS)
    assert sum(len(gzip.compress((site / name).read_bytes())) for name in names) < 64_000


def test_the_command(builder: Builder, tmp_path: Path) -> None:
    done = builder("site", "--output", tmp_path / "site", "--offline")
    assert done.returncode == 0, done.stderr
    assert "written" in done.stdout
    assert (tmp_path / "site" / "index.html").is_file()
    (tmp_path / "file").touch()
    assert builder("site", "--output", tmp_path / "file" / "x", "--offline").returncode == 4


def test_an_invalid_receipt_is_left_out_and_named(
    builder: Builder, farm_copy: Path, tmp_path: Path
) -> None:
    folder = farm_copy / "receipts"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(receipts.data()))
    stopped = receipts.measured(receipts.run(50.0, 3, tokens_per_second=0.0))
    (folder / "b.json").write_text(json.dumps(receipts.data(measured=[stopped])))
    (folder / "c.json").write_text("{")
    (folder / "d.json").write_text(json.dumps(receipts.data("gone-1.0")))
    target = tmp_path / "site"
    done = builder("site", "--output", target, "--offline", "--catalog", farm_copy)
    assert done.returncode == 16, done.stderr
    assert "3 receipts are left out" in done.stderr
    told = " ".join(done.stderr.split())
    assert "b.json is no valid receipt: context 32768: a run has 0 tokens/s" in told
    assert "c.json is not a receipt" in told
    assert "d.json is no valid receipt: no recipe is named gone-1.0" in told
    assert [each["tokens_per_second"] for each in data(target)["measurements"]] == [102.0]
    listed = builder("receipts", "--catalog", farm_copy, "--json")
    assert (listed.returncode, len(json.loads(listed.stdout))) == (16, 1)


def with_option(facts: Site, **changes: Any) -> Site:
    """The site of one card with one preset."""
    card = next(each for each in facts.cards if each.fits)
    option = replace(card.fits[0], recommended=True, computed=None, **changes)
    return replace(facts, cards=(replace(card, fits=(option,)),))


def words_of(page: Path) -> str:
    """The text of a page without its tags."""
    return words(page.read_text())


def words(html: str) -> str:
    """The text without tags."""
    apart = re.sub(r"<(/?)div", r" <\1div", html)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", apart)).split())


def test_the_first_page_has_the_speed_of_a_receipt(facts: Site, tmp_path: Path) -> None:
    figure = Figure(102.0, (76.59, 127.41), 32768, runs=2, by="@me", receipt="a")
    write(with_option(facts, known="measured", figure=figure, context=65536), tmp_path / "site")
    shown = words_of(tmp_path / "site" / "index.html")
    assert "102 tokens/s measured on this card76.59 to 127.41 with 95 % confidence, 2 runs" in shown
    assert "at 32,768 tokens of context, by @me (receipt)" in shown
    page = (tmp_path / "site" / "index.html").read_text()
    # The scale ends where the interval does.
    assert '<rect width="80.1%" height="8"/><line x1="60.1%" x2="100%" y1="4" y2="4"/>' in page
    assert data(tmp_path / "site")["cards"][0]["fits"][0]["figure"]["by"] == "@me"


def shown_speed(facts: Site, folder: Path, **changes: Any) -> str:
    """What the first page says of the speed of the only preset, in its recommendation."""
    write(with_option(facts, **changes), folder)
    page = (folder / "index.html").read_text()
    cell = page[page.index('<div class="speed">') : page.index('<div class="memory">')]
    inside = cell.removeprefix('<div class="speed">').rpartition("</div>")[0]
    assert page.count(f'<td class="speed">{inside}</td>') == 1  # and so in the row of the table
    return cell


def test_the_speed_on_the_own_card_is_large_and_the_badge_says_how_it_is_known(
    facts: Site, tmp_path: Path
) -> None:
    cases = {
        "published": (Figure(88.0), '<span class="badge published">published for this card</span>'),
        "computed": (
            Figure(123.4, (98.7, 151.2)),
            '<span class="badge computed">computed</span><span class="quiet">99 to 150</span>',
        ),
        "guessed": (Figure(88.0), '<span class="badge guessed">guessed</span>'),
    }
    for known_as, (figure, badge) in cases.items():
        cell = shown_speed(facts, tmp_path / known_as, known=known_as, figure=figure)
        large = "~120" if known_as == "computed" else "88"
        assert f'<span class="figure"><b>{large}</b> tokens/s</span>' in cell
        assert badge in cell


def test_the_speed_of_another_card_is_small_and_below_the_computed_one(
    facts: Site, tmp_path: Path
) -> None:
    elsewhere = Figure(88.0, card=facts.cards[0].card, cards=2)
    cell = shown_speed(facts, tmp_path / "without", known="elsewhere", figure=elsewhere)
    assert words(cell) == "speed not known 88 on 2 x RTX 5090"
    assert "<b>" not in cell  # no large number
    shown = with_option(facts, known="elsewhere", figure=elsewhere)
    (option,) = shown.cards[0].fits
    option = replace(option, computed=Figure(123.4, (98.7, 176.0)))
    write(replace(shown, cards=(replace(shown.cards[0], fits=(option,)),)), tmp_path / "with")
    page = (tmp_path / "with" / "index.html").read_text()
    cell = page[page.index('<div class="speed">') : page.index('<div class="memory">')]
    assert words(cell) == "~120 tokens/s computed99 to 180 88 on 2 x RTX 5090"
    # The scale and the order of the table are of the own card's numbers.
    assert 'data-speed="123.4"' in page
    assert '<rect width="70.1%" height="8"/>' in cell


def test_a_speed_that_nobody_knows_has_the_reason(facts: Site, tmp_path: Path) -> None:
    why = "it drafts, and its acceptance is not known"
    unknown = {"known": "unknown", "figure": None, "not_computed": why}
    cell = shown_speed(facts, tmp_path / "site", **unknown)
    assert words(cell) == f"speed not known {why} not known to fit"
    (fact,) = data(tmp_path / "site")["cards"][0]["fits"]
    assert fact["not_computed"] == why


def test_a_bar_is_the_share_of_the_cards_memory(facts: Site, tmp_path: Path) -> None:
    card = next(each for each in facts.cards if each.fits)
    write(with_option(facts, memory=card.memory // 4, memory_by="trial"), tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    assert re.search(r'<svg class="bar room"[^>]*><rect width="25%" height="8"/></svg>', page)
    told = f"of {sizes.gib(card.memory)}, tried"
    assert told in words_of(tmp_path / "site" / "index.html")


def test_a_file_for_compose_is_complete_or_its_steps_are_shown(facts: Site, tmp_path: Path) -> None:
    """No link leads to a file that cannot start, as `export` refuses one."""
    names = [image["recipe"] for image in facts.images]
    presets = known(RECIPES, PRESETS.valid(), tmp_path)
    for published in ([], names):
        cards = choices.every_card(presets, published)
        seen = {option.preset: option for card in cards for option in card.fits}
        for name, option in seen.items():
            files = PRESETS.preset(name).preset.files
            lacks = mounted(files, "~/models", {}).incomplete
            assert bool(option.compose) == (not lacks and bool(published)), name
            assert bool(option.missing) != bool(option.compose), name
            commands = [each["command"] for each in option.missing]
            builds = [each for each in commands if each.startswith("./farm build ")]
            assert len(builds) == (0 if published else 1), name
            assert len(commands) in {0, len(builds) + len(lacks) + 1}, name
            for line in lacks:
                download = line.partition("\n  ")[2]
                assert download in commands or "No repository" in line, line
        assert any(option.compose for option in seen.values()) == bool(published)


def test_a_model_without_a_repository_is_named_by_the_user(facts: Site) -> None:
    options = {option.preset: option for card in facts.cards for option in card.fits}
    option = options["qwen3.6-27b-dflash-lucebox@5090"]
    given = "qwen3.6-27b-dflash-lucebox@5090 --model FILE --draft FILE"
    assert option.needs_file
    assert option.command == f"./farm run {given}"
    assert option.missing[-1]["command"].startswith(f"./farm export {given} --format compose")
    why = [each["why"] for each in option.missing]
    assert "No repository of Qwen3.6 27B DFlash is known" in why
    assert not options["qwen3.6-27b-dflash@5090-laptop"].needs_file


def test_every_page_says_what_it_is_whose_it_is_and_how_to_get_it(
    facts: Site, tmp_path: Path
) -> None:
    farm = "https://example.org/me/farm.git"
    clone = "<code>git clone https://example.org/me/farm.git &amp;&amp; cd farm</code>"
    write(replace(facts, repository=farm, namespace="me"), tmp_path / "known")
    write(replace(facts, namespace="me"), tmp_path / "images")
    write(facts, tmp_path / "unknown")
    titles = set()
    for each in pages(tmp_path / "known"):
        page = each.read_text()
        titles.add(title := re.findall(r"<title>(.+)</title>", page)[0])
        assert title.endswith(" | builder at example.org/me/farm")
        about = re.findall(r'<meta name="description" content="([^"]{40,})">', page)[0]
        assert about.endswith(" Written by builder, the farm at example.org/me/farm.")
        assert f'<a class="farm" href="{farm}">example.org/me/farm</a>' in page
        assert page.count(clone) == 1
        assert page.count("builder makes Docker images of LLM engines") == 1
    assert len(titles) == len(pages(tmp_path / "known"))
    for each in pages(tmp_path / "images"):
        page = each.read_text()
        assert " | builder at docker.io/me</title>" in page
        assert "git clone" not in page
    for each in pages(tmp_path / "unknown"):
        page = each.read_text()
        assert " | builder</title>" in page
        assert "git clone" not in page
        assert "its owner sets <code>BUILDER_FARM_URL</code>" in page


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://github.com/me/farm.git", "https://github.com/me/farm.git"),
        ("https://me:secret@example.org:8443/farm", "https://example.org:8443/farm"),
        ("git@github.com:me/farm.git", ""),
        ("/srv/farm.git", ""),
        (None, ""),
    ],
)
def test_the_repository_is_the_checkouts_remote_if_it_is_https(
    tmp_path: Path, remote: str | None, url: str
) -> None:
    assert choices.remote_of(tmp_path) == ""  # no checkout
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    if remote:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert choices.remote_of(tmp_path) == url


def test_speeds_have_a_row_for_each_preset(facts: Site, tmp_path: Path) -> None:
    assert len({speed["preset"] for speed in facts.speeds}) == len(facts.speeds)
    figures = sum(len(speed["figures"]) for speed in facts.speeds)
    assert figures == sum(len(entry.preset.result) for entry in PRESETS.valid())
    speed = next(e for e in facts.speeds if e["preset"] == "qwen3.6-27b-dflash@5090-laptop")
    # The preset's own figure is first, then the larger contexts.
    assert [each["context"] for each in speed["figures"]] == [262144, 204800, 131072, 98304]
    assert speed["figures"][0]["tokens_per_second"] == 107.54
    write(facts, tmp_path / "site")
    page = (tmp_path / "site" / "speeds.html").read_text()
    rows = page[page.index("<tbody>") : page.index("</tbody>")]
    assert rows.count("<tr ") == len(facts.speeds)
    assert "<b>116</b> (107.12 to 127.32), 5 runs, 131,072 tokens of context" in rows


def test_cards_of_one_name_are_told_apart(facts: Site, tmp_path: Path) -> None:
    card = facts.cards[0]
    small = replace(card, card="small", memory=8_000_000_000)
    write(replace(facts, cards=(card, small)), tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    assert "<h2>RTX 5090 8 GB</h2>" in page
    assert "<h2>RTX 5090 32 GB</h2>" in page


def test_the_tables_of_compilers_are_shown(facts: Site, tmp_path: Path) -> None:
    good = Compiler(nvcc="13.2.86", released="2026-07-16", nmse={"q4_0": 1.5e-7, "iq3_s": 3e-14})
    bad = Compiler(
        nvcc="13.2.51",
        released="2026-03-09",
        nmse={"q4_0": 1.5e-7},
        ended={"iq3_s": f"{HOSTILE}, PTX line 7"},
    )
    table = Table(
        recipe=facts.images[0]["recipe"],
        source="javascript:alert(1)",
        tried="2026-11-23",
        architecture="compute_120a",
        compiler=[bad, good],
        not_compared={"q1_0": HOSTILE},
    )
    thread = Thread(thread="a/b#7", about=HOSTILE, nvcc=["13.2.51"], types=["iq3_s"], answer="yes")
    write(replace(facts, compilers=(table,), compiler_threads=(thread,)), tmp_path / "site")
    page = (tmp_path / "site" / "compilers.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    assert "<script>" not in page
    assert 'href="javascript:' not in page
    row = page[page.index('<th scope="row">iq3_s</th>') : page.index('<th scope="row">q4_0</th>')]
    first, second = row.split("<td>")[1:]
    assert first.startswith('<b class="wrong">wrong: ')
    assert second.startswith("3.0e-14</td>")
    assert (
        '<a href="https://github.com/a/b/issues/7" rel="noreferrer">a/b#7</a>, nvcc 13.2.51' in page
    )
    assert 'href="compilers.html"' in (tmp_path / "site" / "index.html").read_text()
    (found,) = data(tmp_path / "site")["compilers"]
    assert [each["nvcc"] for each in found["compiler"]] == ["13.2.51", "13.2.86"]
    assert found["compiler"][1]["nmse"]["q4_0"] == 1.5e-7
    write(replace(facts, compilers=()), tmp_path / "other")
    assert not (tmp_path / "other" / "compilers.html").exists()
    assert "compilers.html" not in (tmp_path / "other" / "index.html").read_text()


def test_the_shipped_table_is_on_the_site(site: Path) -> None:
    (found,) = data(site)["compilers"]
    assert {"13.2.51", "13.2.78", "13.2.86"} <= {each["nvcc"] for each in found["compiler"]}
    page = (site / "compilers.html").read_text()
    first, _, folded = page.partition("<details>")
    for part in (first, folded):
        assert part.count('<b class="wrong">') == 6  # three types of two releases
    assert "Without a wrong type: 13.0.48, " in first
    assert "ggml-org/llama.cpp#28581" in page
