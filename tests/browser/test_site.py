"""The site in headless Chromium: with and without JavaScript, light and dark, narrow and wide.

The screenshots are in pytest's directory of the run (--basetemp), with found.json: the first paint
of each page in milliseconds, and all that the tests look at.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import html5lib
import pytest

from builder.core.settings import Settings
from builder.engines.families import load_catalog
from builder.presets import cards, named
from builder.presets.choose import known
from builder.publish.registry import RemotePlatform
from builder.publish.tags import Move
from builder.site import pages
from builder.site.facts import Fact, Site, collect, measurements
from builder.site.pages import write
from support.environment import REPOSITORY
from support.loopback import Quiet, listening
from support.nights import night
from support.receipts import receipt
from support.shipped import PRESETS as SHIPPED
from support.shipped import RECIPES

pytestmark = pytest.mark.browser
CI = REPOSITORY / ".ci"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
FARM = "https://example.org/me/farm"
CARD = "document.querySelector('.card.chosen')"
SHOWN = "filter((each) => each.offsetHeight)"
TEXTS = "map((each) => each.textContent)"
NAMES = f"[...document.querySelectorAll('.card')].{SHOWN}.map((each) => each.dataset.card)"
COUNT = f"{CARD}.querySelector('.count').textContent"
PRESETS = f"[...{CARD}.querySelectorAll('tbody tr')].{SHOWN}.map((row) => row.dataset.preset)"
PICKS = f"[...{CARD}.querySelectorAll('.picks .preset')].{TEXTS}"
REFUSED = f"[...{CARD}.querySelectorAll('.excluded li:not([hidden]) li:not([hidden])')].{TEXTS}"
PICKED = (
    f"(() => {{ const picks = {CARD}.querySelector('.picks').cloneNode(true);"
    "for (const each of picks.querySelectorAll('.copy, details > :not(summary)')) each.remove();"
    "return picks.textContent; })()"
)
HEIGHT = "document.getElementById('choose').offsetHeight"
SEARCH = "location.search"
SORTED = (
    f"[...{CARD}.querySelectorAll('th[aria-sort]')]"
    ".map((each) => [each.textContent, each.ariaSort])"
)
UNCUT = (
    "(() => { const select = document.querySelector('[name=card]');"
    "const style = getComputedStyle(select);"
    "const pen = document.createElement('canvas').getContext('2d'); pen.font = style.font;"
    "const room = select.clientWidth - 2 * parseFloat(style.paddingLeft) - 24;"  # and the arrow
    "return [...select.options].filter((each) => pen.measureText(each.text).width > room)"
    ".map((each) => each.text); })()"
)
"""The names of cards that the select cuts."""
ROWS = f"[...document.querySelectorAll('table.images tbody tr')].{SHOWN}.length"
PLACES = (
    "[...document.querySelectorAll('select')].map((each) => each.getBoundingClientRect())"
    ".map((each) => [each.left, each.bottom])"
)
PAUSE = "new Promise((resolve) => setTimeout(resolve, 300))"
SORTS = "5090-laptop"  # has presets whose memory is not known
ASKED = (
    "card=5090",
    "card=5090-laptop&model=qwen3.6-27b",
    "card=5090-laptop&context=131072",
    "card=5090-laptop&context=65536&driver=older",
    "card=5080&model=gemma-4-e2b&driver=580",
    "card=5060",
)
"""Questions to the first page, by its address."""


class Files(Quiet, SimpleHTTPRequestHandler):
    """The files of a folder."""


def full(image: Fact) -> Fact:
    """An image of which all is known."""
    created = "2026-11-20T02:00:00+00:00"
    platforms = {
        "linux/amd64": RemotePlatform(DIGEST, 500_000_000),
        "linux/arm64": RemotePlatform(DIGEST, 480_000_000),
    }
    move = Move("b9261", DIGEST, "", created, "upstream moved", by="night")
    tag = {
        "tag": "b9261",
        "digest": DIGEST,
        "created": created,
        "version": "b9261",
        "commit": "ab" * 20,
        "platforms": platforms,
        "download_size": 500_000_000,
        "update_size": 40_000_000,
        "signed": True,
        "reproduced": created,
        "documents": ("SPDX", "SLSA"),
        "checks": {"help": 12},
        "moves": (move, replace(move, by="rollback")),
    }
    nights = [night(outcome=each, reason="it failed: x") for each in ("failed", "held", "moved")]
    return {
        **image,
        "repository": "me/llama-cpp",
        "digest": DIGEST,
        "created": created,
        "download_size": 500_000_000,
        "unpacked_size": 700_000_000,
        "checks": {"help": 12, "libraries": 3},
        "passed": 15,
        "known_by": "registry",
        "tags": (tag,),
        "nights": tuple(nights * 10),
    }


def facts(state: Path) -> Site:
    settings = Settings(namespace="", state_dir=state, farm_url=FARM)
    found = collect(load_catalog(REPOSITORY), settings, print, {})
    images = [full(each) if each["recipe"] == "llama-cpp-b9261" else each for each in found.images]
    shown = measurements([receipt(recipe="llama-cpp-b9261", by="@me")])
    return replace(found, images=tuple(images), measurements=shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pages") / "site"
    write(facts(found.parent), found)
    return found


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with listening(
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    ) as at:
        yield f"http://{at}"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("axe")
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(CI / name, folder)
    npm = Path(sys.executable).with_name("npm")
    subprocess.run([npm, "ci", "--silent", "--prefix", folder], check=True)
    return folder / "node_modules" / "axe-core" / "axe.min.js"


def views() -> list[dict[str, Any]]:
    """Each page in each width and color scheme, and the first one in use."""
    names = ("index", "images", "speeds", "nights", "compilers")
    names += ("images/llama-cpp-b9261", "images/beellama-0.1.1")
    found = [
        {
            "name": f"{Path(page).name}-{width}-{'dark' if dark else 'light'}",
            "page": page,
            "width": width,
            "dark": dark,
            "script": True,
            "steps": [],
        }
        for page in names
        for width in (390, 1400)
        for dark in (False, True)
    ]
    looks = {"page": "index", "width": 390, "dark": False, "script": True}
    head = "Tab to .card.chosen th[data-key=memory] button"
    typed = "field.value = 'vllm 0.2'; field.dispatchEvent(new Event('input'))"  # of filter.js
    filters = [ROWS, typed, ROWS]
    sorts = [head, "Enter", PRESETS, SORTED, SEARCH, "Enter", PRESETS, "Enter", PRESETS, SEARCH]
    folds = [
        "Tab to .card.chosen tbody summary",
        "Enter",
        f"{CARD}.querySelector('tbody details[open]').textContent",
    ]
    copies = [
        "Tab to .card.chosen .pick .copy",
        "Enter",
        PAUSE,
        "navigator.clipboard.readText()",
        "document.activeElement.textContent",
    ]
    changes = [
        "Tab to [name=card]",
        "ArrowDown",
        NAMES,
        SEARCH,
        chosen("context", "131072"),
        SEARCH,
        "history.length",
        "Go images.html",
        "Back",
        NAMES,
        "document.querySelector('[name=context]').value",
        f"history.pushState(null, '', '?card=5080'); history.back(); {PAUSE}",
        f"history.forward(); {PAUSE}",
        NAMES,
        f"history.back(); {PAUSE}",
        NAMES,
    ]
    opens = ["Tab to [href='#card-5080']", "Enter", NAMES, HEIGHT]
    return [
        *found,
        {**looks, "steps": changes, "name": "changes"},
        {**looks, "steps": sorts, "name": "sorts", "width": 1400, "query": f"?card={SORTS}"},
        {**looks, "steps": filters, "name": "filters", "page": "images"},
        {
            **looks,
            "steps": [NAMES, HEIGHT, "document.getElementById('answer').textContent"],
            "name": "unsupported",
            "query": "?card=3090",
        },
        {**looks, "steps": copies, "name": "copies"},
        {**looks, "steps": folds, "name": "folds"},
        {**looks, "steps": [PLACES, PICKED, UNCUT], "name": "first"},
        {**looks, "steps": opens, "script": False, "name": "plain"},
        *(
            {
                **looks,
                "query": f"?{asked}",
                "steps": [COUNT, PRESETS, PICKS, REFUSED],
                "name": f"asked-{place}",
            }
            for place, asked in enumerate(ASKED)
        ),
    ]


def chosen(name: str, value: str) -> str:
    select = f"document.querySelector('[name={name}]')"
    change = "new Event('change', { bubbles: true })"
    return f"{select}.value = '{value}'; {select}.dispatchEvent({change})"


@pytest.fixture(scope="module")
def visits(
    address: str, axe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("there is no chromium: apt-get install chromium")
    shots = tmp_path_factory.mktemp("shots")
    wanted = [
        {**view, "url": f"{address}/{view['page']}.html{view.get('query', '')}"} for view in views()
    ]
    (shots / "visits.json").write_text(json.dumps(wanted))
    node = Path(sys.executable).with_name("node")
    script = REPOSITORY / "tests" / "support" / "visit.mjs"
    command = [node, script, program, axe, shots, shots / "visits.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (shots / "found.json").write_text(done.stdout)
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_no_page_has_an_accessibility_error(visits: dict[str, dict[str, Any]]) -> None:
    assert len(visits) == len(views())
    assert {name: each["faults"] for name, each in visits.items() if each["faults"]} == {}


def test_no_page_is_wider_than_the_screen(visits: dict[str, dict[str, Any]]) -> None:
    assert {name: each["wide"] for name, each in visits.items() if each["wide"] > 0} == {}


def test_pages_load_their_own_files_without_errors(
    visits: dict[str, dict[str, Any]], address: str
) -> None:
    for name, each in visits.items():
        assert each["errors"] == [], name
        assert all(url.startswith((address, "data:")) for url in each["requests"])
        if name != "changes":  # it goes to another page
            assert len(each["requests"]) <= 6


def test_no_page_moves_while_it_loads(visits: dict[str, dict[str, Any]]) -> None:
    moved = {each["name"]: visits[each["name"]]["moved"] for each in views() if not each["steps"]}
    assert {name: far for name, far in moved.items() if far > 0.1} == {}  # web.dev: "good" CLS


def test_a_phone_shows_the_names_of_all_cards_uncut(visits: dict[str, dict[str, Any]]) -> None:
    places, _, cut = visits["first"]["values"]
    assert cut == []
    assert len({left for left, _ in places}) == 2
    assert len({bottom for _, bottom in places}) == 3  # context and driver share a row


def test_an_unsupported_card_says_so(visits: dict[str, dict[str, Any]]) -> None:
    names, height, answer = visits["unsupported"]["values"]
    assert names == ["3090"]
    assert height > 0
    assert "No image of this farm has code for this card of compute capability 8.6." in answer


def test_the_field_filters_the_images(visits: dict[str, dict[str, Any]], folder: Path) -> None:
    images = json.loads((folder / "index.json").read_text())["images"]
    wanted = [each for each in images if "vllm" in each["recipe"] and "0.2" in each["recipe"]]
    before, _, after = visits["filters"]["values"]
    assert before == len(images)
    assert len(wanted) <= after < before


def first(folder: Path, name: str = pages.CARD) -> Any:
    """What index.json has of a card, the first page's own."""
    cards = json.loads((folder / "index.json").read_text())["cards"]
    return next(each for each in cards if each["card"] == name)


def test_the_script_shows_what_the_page_has_without_it(
    visits: dict[str, dict[str, Any]], folder: Path
) -> None:
    page = (folder / "index.html").read_text()
    card = f".//section[@data-card='{pages.CARD}']/ul[@class='picks']"
    found = html5lib.parse(page, namespaceHTMLElements=False).find(card)
    assert "".join(visits["first"]["values"][1].split()) == "".join(
        "".join(found.itertext()).split()
    )


@pytest.mark.parametrize("asked", ASKED)
def test_the_address_asks_as_choose_does(
    visits: dict[str, dict[str, Any]], asked: str, tmp_path: Path
) -> None:
    """The same presets in the same order, the same recommendations, and the same refused ones."""
    given = dict(parse_qsl(asked))
    presets = SHIPPED.valid()
    wanted = named(presets, given["model"]) if "model" in given else presets
    older = "560.1"  # than all on the list
    driver = older if given.get("driver") == "older" else given.get("driver", "")
    here = cards.machine_with(REPOSITORY, [given["card"]], driver)
    answer = known(RECIPES, presets, tmp_path).choice(here, int(given.get("context", "0")))
    names = {entry.name for entry in wanted}
    fits = [each.preset for each in answer.fits if each.preset in names]
    count, rows, picks, refused = visits[f"asked-{ASKED.index(asked)}"]["values"]
    assert count == f"{len(fits)} of {len(wanted)}"
    assert rows == fits
    assert picks == [each.preset for each in answer.recommended if each.preset in names]
    assert {*refused} == names - {*fits}


def test_the_address_has_the_choice_and_back_returns_to_it(
    visits: dict[str, dict[str, Any]],
) -> None:
    names, first, _, second, length, again, context, *rest = visits["changes"]["values"]
    assert (names, first) == (["5060-ti-8gb"], "?card=5060-ti-8gb")  # the next one on the list
    assert second == "?card=5060-ti-8gb&context=131072"
    assert length == 2  # the empty page, and this one: a choice is no step to go back to
    assert (again, context) == (["5060-ti-8gb"], "131072")
    assert (rest[2], rest[4]) == (["5080"], ["5060-ti-8gb"])


def test_a_column_sorts_and_unknown_values_are_last(
    visits: dict[str, dict[str, Any]], folder: Path
) -> None:
    ascending, heads, sorted_at, descending, ranked, last = visits["sorts"]["values"]
    card = first(folder, SORTS)
    names = [each["preset"] for each in card["fits"]]
    memory = {each["preset"]: each.get("memory") for each in card["fits"]}
    unknown = [name for name in names if memory[name] is None]
    sized = [name for name in names if memory[name] is not None]
    assert unknown
    assert ascending == sorted(sized, key=lambda name: memory[name]) + unknown
    assert descending == sorted(sized, key=lambda name: -memory[name]) + unknown
    assert ranked == names
    assert heads == [["Memory", "ascending"]]
    assert (sorted_at, last) == (f"?card={SORTS}&sort=memory", f"?card={SORTS}")


def test_a_button_copies_the_command(visits: dict[str, dict[str, Any]], folder: Path) -> None:
    _, copied, label = visits["copies"]["values"]
    best = first(folder)["fits"][0]
    assert copied == best["command"]
    assert label == "Copied"


def test_a_row_unfolds_what_starts_its_preset(
    visits: dict[str, dict[str, Any]], folder: Path
) -> None:
    best = first(folder)["fits"][0]
    (shown,) = visits["folds"]["values"]
    for text in (
        best["command"],
        *best.get("caveats", ()),
        *(each["why"] for each in best["missing"]),
    ):
        assert text in shown


def test_without_javascript_a_link_opens_a_card(visits: dict[str, dict[str, Any]]) -> None:
    assert visits["plain"]["values"] == [["5080"], 0]
