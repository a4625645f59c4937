"""Docker Hub's own API: descriptions and the deletion of tags, which the registry protocol lacks.

https://docs.docker.com/reference/api/hub/latest/ (2-beta) documents the login, the list of tags
and the limits, but not how a description is written or a tag is deleted.  Docker's own clients send
these requests: the newer path (docker/hub-mcp) and, where it does not exist, the
older one (docker/actions-toolkit, docker/hub-tool).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pydantic import BaseModel, StringConstraints, ValidationError
from pydantic_core import from_json

from builder.build.record import newest_good
from builder.core.errors import FetchError, RegistryError, plain
from builder.core.json_model import JsonModel, first_error
from builder.core.sizes import version_order
from builder.core.web import Client, Follow, Response, RetryPolicy, WebError, cause
from builder.docker.engine import HUB
from builder.engines.families import complete
from builder.engines.layout import REVISION
from builder.image.code_paths import text_of
from builder.plan.explain import explained
from builder.plan.inputs import where
from builder.publish.transport import TAG, Login, Token, login_for
from builder.publish.verdicts import PublicSigner
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from simulator.selection import Capability

SHORT = 100
"""Bytes of a short description; the response to a longer one is 400.

peter-evans/dockerhub-description has the same limit (src/main.ts, SHORT_DESCRIPTION_MAX_BYTES)."""
FULL = 25_000
"""Bytes of a full description, which is Markdown; likewise."""
PAGE = 100  # tags: the maximum of a page
LARGEST_PAGE = 16 << 20  # bytes: the images of 100 tags
MOST_PAGES = 1000
ABSENT = frozenset({404, 405})
DELETED = frozenset({200, 202, 204, 404})  # undocumented
SCOPE = (
    "use a personal access token with the scopes Read, Write and Delete, of a user who "
    "administers the repository: set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
)


Model = TypeVar("Model", bound=BaseModel)


class Grant(JsonModel):
    """The token of a login ("Create access token")."""

    access_token: Token


class _Tag(JsonModel):
    name: Annotated[str, StringConstraints(pattern=TAG)]


class TagPage(JsonModel):
    """A page of tags ("List repository tags"); ``next`` is the address of the following one."""

    results: list[_Tag] | None = None
    next: str | None = None


class Shown(JsonModel):
    """The descriptions of a repository ("Get repository")."""

    description: str | None = None
    full_description: str | None = None


class Hub:
    """Docker Hub at ``api`` ("https://hub.docker.com"), with the login for it.

    Repositories are named by their path, NAMESPACE/NAME.  ``log`` gets a line before a wait.  A
    temporary failure (429, 5xx, a broken connection) is retried and ends in ``FetchError``; any
    other raises ``RegistryError`` at once.
    """

    def __init__(self, api: str, log: Callable[[str], None]) -> None:
        self._api = api.rstrip("/")
        self._client = Client()
        self._retry = RetryPolicy("Docker Hub", log)
        self._login: Login | None = None
        self._token = ""

    def describe(self, repository: str, short: str, full: str) -> None:
        """Write the two descriptions of a repository, then verify that Docker Hub has them.

        ``short`` has at most ``SHORT`` characters, ``full`` is Markdown of at most ``FULL`` bytes.
        """
        body = {"description": short, "full_description": full}
        response = self._either("PATCH", repository, "", body)
        if response.status == 200:
            response = self._either("GET", repository, "")
        if response.status != 200:
            raise self._error(response, f"describe {repository}")
        shown = checked(Shown, response.content)
        for sent, there in ((short, shown.description), (full, shown.full_description)):
            if (there or "").split() != sent.split():
                raise RegistryError(
                    f"Docker Hub accepted the description of {repository}, but shows another one",
                    f"{len(sent)} characters were sent, {len(there or '')} are shown",
                    f"look at https://hub.docker.com/r/{repository}, and try again",
                )

    def tags(self, repository: str) -> list[str]:
        """All tags, sorted; none where the repository does not exist."""
        namespace, name = _parts(repository)
        path = f"/v2/namespaces/{namespace}/repositories/{name}/tags"
        found: set[str] = set()
        for page in range(1, MOST_PAGES + 1):
            response = self._authorized("GET", f"{path}?page={page}&page_size={PAGE}")
            if response.status == 404:
                break
            if response.status != 200:
                raise self._error(response, f"list the tags of {repository}")
            listed = checked(TagPage, response.content)
            found.update(tag.name for tag in listed.results or ())
            if not listed.results or not listed.next:
                break
        return sorted(found)

    def delete_tag(self, repository: str, tag: str) -> None:
        """Delete a tag if it exists, and no other tag of the same image."""
        response = self._either("DELETE", repository, f"/tags/{tag}")
        if response.status not in DELETED:
            raise self._error(response, f"delete the tag {tag} of {repository}")

    def _either(self, method: str, repository: str, rest: str, body: Any = None) -> Response:
        """The response of the newer path, or of the older one where that does not exist."""
        namespace, name = _parts(repository)
        response = self._authorized(
            method, f"/v2/namespaces/{namespace}/repositories/{name}{rest}", body
        )
        if response.status in ABSENT:
            response = self._authorized(method, f"/v2/repositories/{namespace}/{name}{rest}/", body)
        return response

    def _authorized(self, method: str, path: str, body: Any = None) -> Response:
        """The response to a request with a token; a token is valid for ten minutes."""
        if self._token:
            response = self._ask(method, path, body)
            if response.status != 401:
                return response
        self._log_in()
        return self._ask(method, path, body)

    def _log_in(self) -> None:
        self._token = ""
        self._login = login_for(HUB)
        if self._login is None:
            raise RegistryError(
                "Docker Hub: login required",
                hint="docker login, or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN",
            )
        body = {"identifier": self._login.user, "secret": self._login.password}
        response = self._ask("POST", "/v2/auth/token", body)
        if response.status != 200:
            raise self._error(response, "log in")
        self._token = checked(Grant, response.content).access_token

    def _ask(self, method: str, path: str, body: Any) -> Response:
        """A response that a retry would not change."""

        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"

        def once() -> Response:
            response = self._client.request(
                method,
                self._api + path,
                headers=headers,
                data=None if body is None else json.dumps(body).encode(),
                limit=LARGEST_PAGE,
                follow=Follow.SAME_HOST,
            )
            failure = response.error(error_text(response.content))
            if failure.temporary:
                raise failure
            return response

        what = f"{method} {path.partition('?')[0]}"
        try:
            return self._retry.call(once)
        except WebError as error:
            if not error.temporary:
                raise RegistryError(
                    f"Docker Hub's response cannot be used: {what}",
                    error.why,
                    "check BUILDER_HUB_API, and the proxy",
                ) from error
            raise FetchError(
                f"Docker Hub {error.outcome}: {what}",
                cause(error),
                "try again later: finished changes are not repeated",
            ) from error

    def _error(self, response: Response, what: str) -> RegistryError:
        status, why = response.status, response.error(error_text(response.content)).why
        who = self._login.user if self._login else "access without a login"
        if status == 401:
            return RegistryError(f"Docker Hub: authentication failed as {who}: {what}", why, SCOPE)
        if status == 403:
            return RegistryError(f"{who} has no permission on Docker Hub: {what}", why, SCOPE)
        if status in ABSENT:
            return RegistryError(
                f"Docker Hub cannot {what}: not found, or not visible to {who}",
                why,
                "`builder push` creates the repository; check the namespace (BUILDER_NAMESPACE)",
            )
        return RegistryError(f"Docker Hub refuses: {what}", why)


def _parts(repository: str) -> tuple[str, str]:
    namespace, _, name = repository.partition("/")
    if not namespace or not name or "/" in name:
        raise RegistryError(
            f"{repository} is not the name of a Docker Hub repository",
            "it must be NAMESPACE/NAME",
            "check BUILDER_NAMESPACE, and image.repository in the recipe",
        )
    return namespace, name


def checked(model: type[Model], content: bytes) -> Model:
    """Parse the JSON of a good response as that model."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise FetchError(
            "a response of Docker Hub is damaged, or is not from Docker Hub",
            first_error(error),
            "check BUILDER_HUB_API, and the proxy; try again",
        ) from None


def error_text(content: bytes) -> str:
    """The error in a response; empty where it cannot be read.

    Docker Hub has ``message`` or ``detail``, and an error for each field.
    """
    try:
        found = from_json(content)
        text = found.get("message") or found.get("detail") or ""
        fields = (found.get("errinfo") or {}).get("fielderrors") or {}
        parts = [str(text), *(f"{name}: {wrong}" for name, wrong in fields.items())]
    except (ValueError, AttributeError, TypeError):
        return ""
    return ": ".join(filter(None, parts))[:1000]


# The page of a repository on Docker Hub, written from the recipes whose images it has.
#
# Docker Hub takes a short text and a long one, in Markdown.  ``hub_page.md.j2`` is the long one:
# its text comes from the recipes, and from the records of images the figures of simulated cards
# and the sums of the device code.

SPECIAL = re.compile(r"[\\`*<\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;)")
"""Characters that begin markup within a line (CommonMark 0.31, section 6; GFM's strikethrough)."""
BLOCK = re.compile(r"^(?:(?=[-+]\s|#{1,6}(?:\s|$)|>|[-+=]+\s*$)|(\d{1,9})(?=[.)](?:\s|$)))")
"""Characters that begin a block at the start of a line (CommonMark 0.31, sections 4 and 5)."""


class Markdown(str):
    """A text that is Markdown already: ``escaped`` leaves it as it is."""

    __slots__ = ()


def escaped(text: object) -> Markdown:
    """A value in one line that Markdown shows as it is written."""
    if isinstance(text, Markdown):
        return text
    line = SPECIAL.sub(lambda found: "\\" + found[0], " ".join(plain(str(text)).split()))
    return Markdown(BLOCK.sub(lambda found: (found[1] or "") + "\\", line))


def code(text: str) -> Markdown:
    """A text in one line as code (CommonMark 0.31, section 6.1)."""
    line = " ".join(plain(text).split())
    ticks = _ticks(line, 1)
    space = " " if "`" in line else ""
    return Markdown(f"{ticks}{space}{line}{space}{ticks}")


def console(commands: Sequence[str]) -> Markdown:
    """Shell commands as a fenced block of code (CommonMark 0.31, section 4.5)."""
    return fenced("\n".join(f"$ {plain(command)}" for command in commands), "console")


def fenced(text: str, language: str = "") -> Markdown:
    """A text as a fenced block of code."""
    fence = _ticks(text, 3)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def _ticks(text: str, least: int) -> str:
    """More back ticks than any run of them in a text, and at least ``least``."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


GPUS = {"12.0": "GeForce RTX 50xx", "12.1": "GB10"}
MODEL = "/models/model.gguf"
CONTEXT = "8192"  # tokens
WIDE = 80  # characters of a command in one line
NUMBERED = re.compile(r"[A-Za-z]{0,2}\d+(?:[._]\d+)*(?:[.-].*)?")
LINK = re.compile(r"https?://[^\s<>\\]+")
CUT = Markdown("\x1e")
"""Marks in a page where it may end; no text of a recipe has this character (``errors.plain``)."""


@dataclass(frozen=True, slots=True)
class Description:
    """The page of a repository: ``short`` has at most 100 bytes, ``full`` 25,000."""

    repository: str
    recipes: tuple[str, ...]
    """The recipes that it was written from, newest version first."""
    short: str
    full: str


class _Item(NamedTuple):
    """A line of a list, and the versions that it holds for; none: it holds for all."""

    text: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ListedVersion:
    """A recipe as the page lists it; ``explained`` is its ``plan.explain``.

    ``device`` is the run of its server on a simulated card, ``code`` the sums of its device code,
    both by the newest record; empty: there is none.
    """

    recipe: Recipe
    explained: dict[str, Any]
    device: str = ""
    code: str = ""

    @property
    def moving_tags(self) -> tuple[str, ...]:
        return tuple(self.recipe.image.moving)

    @property
    def version_tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in self.recipe.image.tags if tag not in self.moving_tags)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.version_tags, *self.moving_tags)

    @property
    def channel(self) -> str | None:
        return self.recipe.track.channel if self.recipe.track else None

    @property
    def follows(self) -> Markdown:
        """The upstream that a channel follows; its images are not made from the recipe's pin."""
        track = self.recipe.track
        if track is None:
            return Markdown()
        if track.tag:
            return Markdown(f"the newest tag like {code(track.tag)}")
        if track.branch:
            return Markdown(f"the head of {code(track.branch)}")
        return Markdown(f"the image {code(track.image)}") if track.image else Markdown()

    @property
    def source(self) -> str:
        """Its pin; for a recipe that has only a channel the repository: the pin is in no image."""
        if self.channel and not self.version_tags:
            found = where(self.recipe.source)
            return f"{found}; the label {REVISION} of each image names its commit"
        pin = ", ".join(self.explained["source"])
        return pin.replace("this repository", "the farm's repository")

    @property
    def bases(self) -> list[str]:
        return [base["published"] for base in self.explained["bases"] if base["published"]]


def describe_repository(
    catalog: Catalog,
    repository: str,
    name: str,
    there: Collection[str] | None = None,
    state: Path | None = None,
    signers: Sequence[PublicSigner] = (),
) -> Description:
    """The page of the images that recipes call ``repository``, and people ``name``.

    Only versions that have one of the tags ``there`` are listed; None: all.  ``state`` is the
    directory of the records, which have the figures of images.  ``signers`` sign them.  Raises
    ``RecipeError`` where one of the recipes is wrong, ``RegistryError`` where none is left.
    """
    versions = _versions(catalog, repository, there, state)
    if not versions:
        raise RegistryError(
            f"{name} has none of the tags that recipes name",
            hint="push an image first: `builder push`",
        )
    newest = versions[0]
    recipe, url = newest.recipe, newest.explained["url"]
    page = _template().render(
        title=name.rpartition("/")[2],
        url=Markdown(url) if LINK.fullmatch(url) else "",
        newest=newest,
        gpus=_gpus(versions),
        commands=_commands(newest.recipe, f"{name}:{newest.tags[0]}"),
        port=recipe.image.port if recipe.artifact is None else None,
        health=f"/{recipe.image.health}" if recipe.image.health else "",
        versions=versions,
        checks=_items(versions, "checks"),
        licenses=_licenses(catalog, versions),
        signers=[(each, each.commands(f"{name}:{newest.tags[0]}")) for each in signers],
        notes=_items(versions, "notes"),
    )
    return Description(
        name,
        tuple(version.recipe.name for version in versions),
        shortened(plain(recipe.summary), SHORT),
        cut_page(page, FULL),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("builder", "publish"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escaped,
        autoescape=False,  # noqa: S701  (it is for HTML; ``finalize`` escapes for Markdown)
    )
    environment.filters |= {"code": code, "console": console, "fenced": fenced, "link": Markdown}
    environment.globals["CUT"] = CUT
    return environment.get_template("hub_page.md.j2")


def _versions(
    catalog: Catalog, repository: str, there: Collection[str] | None, state: Path | None
) -> list[_ListedVersion]:
    found = []
    for name in (recipe.name for recipe in catalog.of_repository(repository)):
        entry = catalog.engine(name)
        # The page names the followed upstream beside the tags, so not among the sources.
        pinned = replace(entry, recipe=entry.recipe.model_copy(update={"track": None}))
        details = explained(replace(catalog, engines={name: pinned}), name)
        kept = newest_good(state, name) if state is not None else None
        device = kept.verdict.device if kept is not None else None
        version = _ListedVersion(
            complete(entry.recipe),
            details,
            device.text if device else "",
            text_of(kept.verdict.code) if kept is not None else "",
        )
        if there is None or not set(version.tags).isdisjoint(there):
            found.append(version)
    return sorted(found, key=lambda version: _age(version.recipe.version), reverse=True)


def _age(version: str) -> tuple[object, ...]:
    """The order of versions: numbers come after names ("master") and commits; of two versions with
    the same number the plain one is newer."""
    numbers, release, rest = version_order(version)
    return bool(NUMBERED.fullmatch(version)), numbers, release, not rest, rest


def _gpus(versions: Sequence[_ListedVersion]) -> str:
    archs: dict[str, set[str]] = {}
    for recipe in (each.recipe for each in versions):
        for platform in recipe.platform:
            archs.setdefault(platform, set()).update(recipe.on(platform).cuda.arch)
    texts = []
    for name, found in archs.items():
        names = [str(each) for each in sorted({Capability.of_arch(arch) for arch in found})]
        cards = (f"{each} ({GPUS[each]})" if each in GPUS else each for each in names)
        texts.append(f"{' or '.join(cards)}, on {name}")
    return ", and ".join(texts)


def _commands(recipe: Recipe, reference: str) -> list[str]:
    """The commands that run an image, or that copy the files of an image that runs nothing."""
    if recipe.artifact is not None:
        copies = [f"docker cp $id:/{file} ." for file in recipe.artifact.names]
        return [f"id=$(docker create {reference} none)", *copies, "docker rm $id"]
    image, serve = recipe.image, recipe.serve
    arguments = [*serve.arguments, *serve.gpu] if serve is not None else []
    filled = [each.replace("{model}", MODEL).replace("{context}", CONTEXT) for each in arguments]
    options = [f"-p 127.0.0.1:{image.port}:{image.port}"] if image.port is not None else []
    options += ["-v ~/models:/models:ro"] if filled != arguments else []
    command = " ".join(["docker run --rm --gpus all", *options])
    runs = " ".join([reference, *([shlex.join(filled)] if filled else [])])
    separator = " \\\n    " if len(command) + len(runs) > WIDE else " "
    return [f"{command}{separator}{runs}"]


def _items(versions: Sequence[_ListedVersion], field: str) -> list[_Item]:
    """The lines that ``plan.explain`` has under a name, each once, in their first order."""
    found: dict[str, list[str]] = {}
    for version in versions:
        for text in version.explained[field]:
            found.setdefault(text, []).append(version.recipe.version)
    several = len(versions)
    return [_Item(text, tuple(of) if len(of) < several else ()) for text, of in found.items()]


def _licenses(catalog: Catalog, versions: Sequence[_ListedVersion]) -> list[tuple[str, list[str]]]:
    under: dict[str, set[str]] = {}
    for each in versions:
        under.setdefault(each.recipe.license, set()).add(each.recipe.engine)
        for name in catalog.chain(each.recipe.base):
            base = catalog.base(name).recipe
            under.setdefault(base.license, set()).add(base.name)
    return [(terms, sorted(names)) for terms, names in sorted(under.items())]


def shortened(text: str, limit: int) -> str:
    """A text of at most ``limit`` bytes, cut at a word where it is longer."""
    if len(text.encode()) <= limit:
        return text
    cut = text.encode()[: limit - 3].decode(errors="ignore")
    words, space, _ = cut.rpartition(" ")
    return (words.rstrip(" ,;:.") if space else cut) + "..."


def cut_page(page: str, limit: int) -> str:
    """A page without its marks, of at most ``limit`` bytes.

    A longer page ends at a mark, and its last line says how much was left out.
    """
    parts = page.split(CUT)
    full = "".join(parts)
    for count in range(len(parts) - 1, -1, -1):
        if len(full.encode()) <= limit:
            break
        left = len(parts) - count
        more = "1 more paragraph" if left == 1 else f"{left} more paragraphs"
        note = f"*({more} left out: a page has at most {limit} bytes.)*"
        full = "".join([*parts[:count], f"\n{note}\n"])
    return full
