"""The pages of the site as HTML, from its facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.site.facts import Site
from builder.tools import sizes
from builder.tools.docker.gpus import version_numbers

WEB = re.compile(r"https?://[^\s<>\"'\\]+")
ASSETS = ("site.css", "choose.js")


def pages(site: Site) -> Mapping[str, str]:
    """The texts of all pages, by their path below the output directory."""
    found = {
        "index.html": _page("choose.html.j2", site, drivers=_drivers(site), models=_models(site)),
        "images.html": _page("images.html.j2", site),
        "speeds.html": _page("speeds.html.j2", site),
    }
    if any(image.nights for image in site.images):
        found["nights.html"] = _page("nights.html.j2", site)
    for image in site.images:
        path = f"images/{image.recipe}.html"
        found[path] = _page("image.html.j2", site, up="../", image=image)
    assets = files("builder.site").joinpath("templates")
    found |= site.composes
    return found | {name: assets.joinpath(name).read_text("utf-8") for name in ASSETS}


def _page(template: str, site: Site, up: str = "", **values: object) -> str:
    """A page; ``up`` leads from its directory to that of ``index.html``."""
    names = {image.recipe for image in site.images}
    return _environment().get_template(template).render(site=site, up=up, recipes=names, **values)


def _drivers(site: Site) -> list[str]:
    """The oldest drivers of all presets that run on a card, the newest first."""
    found = {option.driver for card in site.cards for option in card.fits if option.driver}
    return sorted(found, key=version_numbers, reverse=True)


def _models(site: Site) -> list[str]:
    """The models of all presets."""
    fits = {each.model for card in site.cards for each in card.fits}
    return sorted(fits | {each.model for card in site.cards for each in card.excluded})


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
    environment.filters |= {"size": sizes.shown, "anchor": _anchor, "day": _day, "tokens": _tokens}
    environment.tests["web"] = lambda text: bool(WEB.fullmatch(text))
    return environment


def _anchor(name: str) -> str:
    """A name, or a path, as part of an address."""
    return quote(name)


def _day(time: str) -> str:
    """The day of a time (RFC 3339)."""
    return time[:10]


def _tokens(count: float) -> str:
    return f"{count:g}"
