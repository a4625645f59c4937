"""The pages of the site as HTML, from its facts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import date
from functools import cache
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.build.compilers import LIMIT
from builder.core import sizes
from builder.core.errors import WorldError
from builder.core.files import is_disk_full, require_writable
from builder.core.names import github_page
from builder.core.sizes import version_order
from builder.docker.gpus import version_numbers
from builder.image import code_paths as code
from builder.presets import manifest
from builder.publish.nights import NightlyRun
from builder.site.facts import CardFact, Fact, Site

WEB = re.compile(r"https?://[^\s<>\"'\\]+")
COMMIT = re.compile("[0-9a-f]{40}")
ASSETS = ("site.css", "scripted.js", "copy.js", "choose.js", "filter.js")
CARD = "5060-ti-16gb"  # the card that the first page shows first: a common one for desktops
KINDS = {
    "desktop": "GeForce RTX",
    "laptop": "GeForce RTX in laptops",
    "other": "Others",
    "unsupported": "No image has code for",
}
"""The words of a page for the kinds of cards, in their order."""
KNOWN = {
    "measured": ("measured on this card", "By a receipt of a run on such a card."),
    "published": ("published for this card", "Somebody published the run on such a card."),
    "computed": (
        "computed",
        "By the bytes that a token makes the card read: no measurement. Nine of ten runs are "
        "within the range. A number that was published for another card stands below it.",
    ),
    "unknown": (
        "not known to fit",
        "Neither the context nor the memory of the run is known.",
    ),
}
"""The words of a page for a standing of ``choose``; without an entry, its own name."""
BRAND = re.compile(r"^(NVIDIA )?(GeForce )?| (Blackwell|GPU|Edition|Generation)\b")


def pages(site: Site) -> Mapping[str, str]:
    """The texts of all pages, by their path below the output directory."""
    first = next((card for card in site.cards if card.card == CARD), site.cards[0])
    options = [option for card in site.cards for option in card.fits]
    drivers = {each.driver for each in options} - {""}
    # Each preset with each of its contexts once: on all cards it is started the same way.
    starts = {(each.preset, each.other_context): each for each in options}
    found = {
        "index.html": _page(
            "choose.html.j2",
            site,
            first=first,
            kinds=KINDS,
            drivers=sorted(drivers, key=version_numbers, reverse=True),
            models=_models(site),
            starts=sorted(starts.values(), key=lambda each: (each.preset, each.context)),
        ),
        "images.html": _page("images.html.j2", site, images=_by_engine(site)),
        "speeds.html": _page(
            "speeds.html.j2",
            site,
            fastest=max((speed["figures"][0]["most"] for speed in site.speeds), default=1),
        ),
    }
    if any(image["nights"] for image in site.images):
        found["nights.html"] = _page("nights.html.j2", site)
    if site.compilers:
        found["compilers.html"] = _page("compilers.html.j2", site, limit=LIMIT)
    for image in site.images:
        path = f"images/{image['recipe']}.html"
        found[path] = _page("image.html.j2", site, up="../", image=image)
    assets = files("builder.site").joinpath("templates")
    found |= site.composes
    return found | {name: assets.joinpath(name).read_text("utf-8") for name in ASSETS}


def _page(template: str, site: Site, up: str = "", **values: object) -> str:
    """A page; ``up`` leads from its directory to the one of ``index.html``."""
    values |= {"names": _names(site), "farm": _farm(site), "clone": _clone(site.repository)}
    values |= {"recipes": {image["recipe"] for image in site.images}, "known": KNOWN}
    return _environment().get_template(template).render(site=site, up=up, **values)


def _farm(site: Site) -> str:
    if site.repository:
        return _bare(site.repository)
    first, slash, _ = site.namespace.partition("/")
    named = slash and ("." in first or ":" in first)
    return site.namespace if named or not site.namespace else f"docker.io/{site.namespace}"


def _bare(text: str) -> str:
    return (
        text.partition("://")[2].rstrip("/").removesuffix(".git") if WEB.fullmatch(text) else text
    )


def _by_engine(site: Site) -> list[Fact]:
    found = sorted(site.images, key=lambda each: version_order(each["version"]), reverse=True)
    return sorted(found, key=lambda each: (each["kept"] != "", each["engine"]))


def _models(site: Site) -> dict[str, str]:
    found: dict[str, str] = {}
    names = [(each.short_name, each.model) for card in site.cards for each in card.fits]
    names += [(each.short_name, each.model) for card in site.cards for each in card.excluded]
    for short, model in names:
        found[short] = min(found.get(short, model), model, key=len)
    return dict(sorted(found.items(), key=lambda each: each[1].casefold()))


def _clone(repository: str) -> str:
    if not repository:
        return ""
    folder = repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return f"{shlex.join(['git', 'clone', repository])} && {shlex.join(['cd', folder])}"


def _names(site: Site) -> dict[str, str]:
    plain = {card.card: BRAND.sub("", card.name) for card in site.cards}
    count = Counter(plain.values())
    return {
        card.card: f"{name} {sizes.card(card.memory).partition(' (')[0]}"
        if count[name] > 1
        else name
        for card, name in zip(site.cards, plain.values(), strict=True)
    }


def _fastest(card: CardFact) -> float:
    figures = [figure for each in card.fits if (figure := each.own)]
    ends = [each.interval[1] if each.interval else each.tokens_per_second for each in figures]
    return max(ends, default=1)


def _nights(image: Fact) -> list[tuple[NightlyRun, str, bool]]:
    """The nights of a channel; of each the page on GitHub with the commits since the last good
    night before it, and whether it has the reason of the night before it."""
    page, found = github_page(image["source"][0]), []
    for place, run in enumerate(image["nights"]):
        earlier = image["nights"][place + 1 :]
        before = next((each.commit for each in earlier if each.good and each.commit), "")
        both = all(map(COMMIT.fullmatch, (before, run.commit))) and before != run.commit
        link = f"{page}/compare/{before}...{run.commit}" if page and both else ""
        again = bool(earlier and run.reason and earlier[0].reason == run.reason)
        found.append((run, link, again))
    return found


def _standing(image: Fact) -> tuple[NightlyRun | None, list[NightlyRun]]:
    since = list(takewhile(lambda run: run.outcome in {"failed", "held"}, image["nights"]))
    return next(iter(image["nights"][len(since) :]), None), since


def _age(day: str, now: str) -> int:
    """Days between two texts that begin with a day."""
    return (date.fromisoformat(now[:10]) - date.fromisoformat(day[:10])).days


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("builder.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "anchor": quote,
        "bare": _bare,
        "context": sizes.context_of,
        "day": lambda time: time[:10],  # of RFC 3339
        "minute": lambda time: f"{time[:10]} {time[11:16]} UTC",
        "age": _age,
        "card_size": sizes.card,
        "code_rows": code.rows,
        "code_text": code.text_of,
        "fastest": _fastest,
        "gib": sizes.gib,
        "named": lambda text: urlsplit(text).hostname if WEB.fullmatch(text) else text,
        "nightly": _nights,
        "rough": lambda number: f"~{float(f'{number:.2g}'):g}",
        "share": lambda value, whole: f"{min(100.0, 100 * value / whole):.3g}",
        "size": sizes.shown,
        "standing": _standing,
        "tokens": "{:g}".format,
    }
    environment.globals["CODE_HEADER"] = code.HEADER
    environment.tests["web"] = lambda text: bool(WEB.fullmatch(text))
    return environment


DATA = "index.json"
MARKER = ".builder-site"  # A file of the directory that lists the files of the site, a path a line
ANOTHER = "name another directory: --output DIR"


def write(site: Site, output: Path, signature: str = "") -> Mapping[str, int]:
    """Write all pages, ``index.json`` and ``manifest.json`` with its signature; bytes by path.

    Files of an earlier site in the directory that are no longer needed go; files of others,
    such as ``.git`` or ``CNAME``, stay.  No page is replaced before all new ones are written.
    Raises ``WorldError`` where the directory has files and no site, or is not writable.
    """
    before = _earlier(output)
    require_writable(output, ANOTHER)
    texts = {**pages(site), DATA: json.dumps(site.as_json(), indent=1) + "\n"}
    texts[manifest.NAME] = site.manifest.text()
    if signature:
        texts[f"{manifest.NAME}{manifest.SIGNED}"] = f"{signature}\n"
    try:
        _write(texts, before, output)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise WorldError(
            f"cannot write to the directory {output}", error.strerror or str(error), ANOTHER
        ) from error
    return {name: len(text.encode()) for name, text in texts.items()}


def _write(texts: Mapping[str, str], before: Collection[str], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    marker = output / MARKER
    if not marker.exists():
        marker.touch()  # a run that is killed leaves a directory that the next one accepts
    for left in output.glob(f"{MARKER}-*"):
        shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=f"{MARKER}-", dir=output))
    try:
        for name, text in texts.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        marker.write_text("".join(f"{name}\n" for name in sorted({*before, *texts})), "utf-8")
        for name in texts:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(output / name)
        for name in {*before} - {*texts}:
            (output / name).unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                (output / name).parent.rmdir()
        marker.write_text("".join(f"{name}\n" for name in sorted(texts)), "utf-8")
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _earlier(output: Path) -> list[str]:
    try:
        if (output / MARKER).is_file():
            names = (output / MARKER).read_text("utf-8").splitlines()
            return [each for each in names if ".." not in each and not each.startswith("/")]
        taken = output.exists() and any(output.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"cannot read the directory {output}", str(error), ANOTHER) from error
    if taken:
        raise WorldError(
            f"{output} exists and was not written by `builder site`",
            hint="name an empty or a new directory: --output DIR",
        )
    return []
