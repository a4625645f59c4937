"""The site in headless Chromium: with and without JavaScript, light and dark, narrow and wide.

The screenshots are in pytest's directory of the run (--basetemp), with found.json: the first paint
of each page in milliseconds, and all that the tests look at.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builder.families import load_catalog
from builder.publish.remote_image import RemotePlatform
from builder.publish.tag_history import Move
from builder.settings import Settings
from builder.site.collect import collect
from builder.site.facts import ImageFact, Site
from builder.site.pages import write
from builder.site.published import PublishedTag
from builder.site.speeds import measurements
from support.environment import REPOSITORY
from support.nights import night
from support.receipts import receipt

pytestmark = pytest.mark.browser
CI = REPOSITORY / ".ci"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
FOCUSED = "document.activeElement.name || document.activeElement.textContent.trim()"
ANSWER = "document.getElementById('answer').textContent"
COUNT = "document.querySelector('#card-3090 summary').textContent"
OPEN = "[...document.querySelectorAll('details.card')].filter((each) => each.open).length"
HIDDEN = "document.getElementById('choose').hidden"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def full(image: ImageFact) -> ImageFact:
    """An image of which all is known."""
    created = "2026-11-20T02:00:00+00:00"
    platforms = {
        "linux/amd64": RemotePlatform(DIGEST, 500_000_000),
        "linux/arm64": RemotePlatform(DIGEST, 480_000_000),
    }
    move = Move("b9261", DIGEST, "", created, "upstream moved", by="night")
    tag = PublishedTag(
        *("b9261", DIGEST, created, "b9261", "ab" * 20, platforms, 500_000_000, 40_000_000),
        *(
            True,
            created,
            ("SPDX", "SLSA"),
            {"help": 12},
            (move, replace(move, by="rollback")),
        ),
    )
    nights = [night(outcome=each, reason="it failed: x") for each in ("failed", "held", "moved")]
    return replace(
        image,
        repository="me/llama-cpp",
        digest=DIGEST,
        created=created,
        download_size=500_000_000,
        unpacked_size=700_000_000,
        checks={"help": 12, "libraries": 3},
        tags=(tag,),
        nights=tuple(nights * 10),
    )


def known(state: Path) -> Site:
    found = collect(load_catalog(REPOSITORY), Settings(namespace="", state_dir=state), print)
    images = [full(each) if each.recipe == "llama-cpp-b9261" else each for each in found.images]
    shown = measurements([receipt(recipe="llama-cpp-b9261", by="@me")])
    return replace(found, images=tuple(images), measurements=shown)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pages") / "site"
    write(known(folder.parent), folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
    pages = ("index", "images", "speeds", "nights", "images/llama-cpp-b9261")
    found = [
        {"page": page, "width": width, "dark": dark, "script": True, "steps": []}
        for page in pages
        for width in (360, 1400)
        for dark in (False, True)
    ]
    looks = {"page": "index", "width": 360, "dark": False}
    # From the top: skip link, four pages, then the card; the first one below "all".
    keys = [*["Tab"] * 6, FOCUSED, "ArrowDown", ANSWER, OPEN]
    opens = ["Tab", "Tab", "Tab", "Tab", "Tab", "Tab", "Enter", OPEN, HIDDEN]
    return [
        *found,
        {**looks, "script": True, "steps": keys, "name": "keys"},
        {**looks, "script": False, "steps": opens, "name": "plain"},
        {**looks, "script": True, "steps": [chosen("card", "3090"), ANSWER], "name": "none"},
        {
            **looks,
            "script": True,
            "steps": [chosen("model", "Gemma 4 E2B"), COUNT],
            "name": "model",
        },
    ]


def chosen(name: str, value: str) -> str:
    select = f"document.querySelector('[name={name}]')"
    return f"{select}.value = '{value}'; {select}.form.dispatchEvent(new Event('change'))"


@pytest.fixture(scope="module")
def visits(
    address: str, axe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("there is no chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("shots")
    wanted = []
    for view in views():
        name = f"{Path(view['page']).name}-{view['width']}-{'dark' if view['dark'] else 'light'}"
        wanted.append({"name": name, **view, "url": f"{address}/{view['page']}.html"})
    (folder / "visits.json").write_text(json.dumps(wanted))
    node = Path(sys.executable).with_name("node")
    script = REPOSITORY / "tests" / "support" / "visit.mjs"
    command = [node, script, program, axe, folder, folder / "visits.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (folder / "found.json").write_text(done.stdout)
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_no_page_has_an_accessibility_error(visits: dict[str, dict[str, Any]]) -> None:
    assert len(visits) == 24
    assert {name: each["faults"] for name, each in visits.items() if each["faults"]} == {}


def test_no_page_is_wider_than_the_screen(visits: dict[str, dict[str, Any]]) -> None:
    assert {name: each["wide"] for name, each in visits.items() if each["wide"] > 0} == {}


def test_pages_load_their_own_files_without_errors(
    visits: dict[str, dict[str, Any]], address: str
) -> None:
    for each in visits.values():
        assert each["errors"] == []
        assert all(url.startswith((address, "data:")) for url in each["requests"])
        assert len(each["requests"]) <= 4


def test_the_keyboard_alone_finds_an_answer(visits: dict[str, dict[str, Any]]) -> None:
    focused, answer, opened = visits["keys"]["values"]
    assert focused == "card"
    assert "The fastest preset that runs on NVIDIA GeForce RTX 5090" in answer
    assert "builder run " in answer
    assert opened == 1


def test_without_javascript_a_card_can_be_opened(visits: dict[str, dict[str, Any]]) -> None:
    opened, hidden = visits["plain"]["values"]
    assert (opened, hidden) == (1, True)


def test_a_card_that_runs_nothing_says_why(visits: dict[str, dict[str, Any]]) -> None:
    answer = visits["none"]["values"][-1]
    assert "No preset runs on NVIDIA GeForce RTX 3090" in answer
    assert "presets: its image has no code for compute capability 8.6" in answer


def test_a_card_counts_the_presets_that_were_asked_for(visits: dict[str, dict[str, Any]]) -> None:
    assert visits["model"]["values"][-1].endswith(": 0 of 1 presets run")
