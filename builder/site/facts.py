"""The facts that the pages of the site and ``index.json`` show.

A fact that is not known is empty or None, and then stands neither on a page nor in the file.
docs/development.md says what each fact is; sizes are bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from builder import __version__
from builder.build import compilers as tables
from builder.build.compilers import Table, Thread
from builder.build.record import Record, newest_good
from builder.build.reports import kept_of
from builder.core import errors
from builder.core.errors import WorldError
from builder.core.files import workspace
from builder.core.log import Log
from builder.core.settings import Settings
from builder.engines.device_code import codes_of
from builder.engines.families import complete
from builder.engines.layout import LABEL_RECIPE
from builder.plan.explain import explained
from builder.presets import cards, choose, exports, manifest
from builder.presets import catalog as preset_files
from builder.presets.cards import Card
from builder.presets.catalog import PresetEntry
from builder.presets.choose import Known, Obstacle, Refusal, known
from builder.presets.manifest import Manifest
from builder.presets.proposals import Proposal, Unserved, proposals
from builder.presets.receipts import Receipt, interval
from builder.presets.schema import Preset, PresetUse
from builder.presets.service import Run, Service, mounted, service
from builder.publish import attachments
from builder.publish import verdicts as signed
from builder.publish.nights import NightlyRun, nightly_runs
from builder.publish.prune import SIGNATURES
from builder.publish.registry import Repository, described
from builder.publish.signing import trust_of
from builder.publish.tags import moves, open_repository
from builder.recipes.catalog import BrokenEntry, Catalog
from builder.recipes.schema import GitSource, Recipe
from builder.sources import git

Fact = Mapping[str, Any]
"""A tag, an image, a speed or a measurement, with the names of ``index.json``."""

# A recipe's tags in the registry: digests, sizes, attachments, moves and nights.

DOCUMENTS = {
    attachments.SPDX: "SPDX",
    signed.SLSA: "SLSA provenance",
    attachments.VEX: "OpenVEX",
    signed.VERDICT: "verdict",
}
"""The attached documents that a page names, by their kind."""


def published_tags(
    repository: Repository, recipe: Recipe, settings: Settings, recipes: Collection[str] = ()
) -> tuple[Fact, ...]:
    """A recipe's tags in the registry.

    A tag is left out if the registry lacks it, or its image belongs to another one of ``recipes``:
    several may have the same moving tag.  ``settings`` name the trusted keys.
    """
    names = dict.fromkeys((*recipe.image.tags, *recipe.image.moving))
    others = {*recipes} - {recipe.name}
    found = [_tag(repository, name, settings, others) for name in names]
    return tuple(each for each in found if each is not None)


def _tag(
    repository: Repository, tag: str, settings: Settings, others: Collection[str]
) -> Fact | None:
    manifest = repository.manifest(tag)
    if manifest is None:
        return None
    image = described(repository, manifest)
    if image.labels.get(LABEL_RECIPE) in others:
        return None
    with workspace(settings.cache_dir) as work:
        noted = moves(repository, tag, trust_of(settings, work))
    digests = dict.fromkeys((manifest.digest, *(each.digest for each in image.platforms.values())))
    attached = {digest: signed.referrers(repository, digest) for digest in digests}
    entries = [entry for found in attached.values() for entry in found]
    kinds = {signed.kind_of(entry) for entry in entries}
    own = [str(entry.get("artifactType")) for entry in attached[manifest.digest]]
    images = [each.digest for each in image.platforms.values()] or [manifest.digest]
    verdicts = [each for digest in digests for each in signed.verdicts_on(attached[digest], digest)]
    again = signed.of_all([signed.reproduced(attached[each], each, settings) for each in images])
    return {
        "tag": tag,
        "digest": manifest.digest,
        "created": image.created,
        "version": image.version,
        "commit": image.revision,
        "platforms": image.platforms,
        "download_size": image.download_size,
        "update_size": noted[0].update if noted else None,
        "signed": any(kind.startswith(SIGNATURES) for kind in own)
        or bool(repository.head_digest(f"{manifest.digest.replace(':', '-')}.sig")),
        "reproduced": again.created if again and again.key else "",
        "documents": tuple(name for kind, name in DOCUMENTS.items() if kind in kinds),
        "checks": next((each.checks for each in verdicts), {}),
        "moves": tuple(noted),
    }


# All facts of the site.

FORMAT = 3  # the format of ``index.json``


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(choose.Option):
    """A preset that runs on a card."""

    compose: str
    missing: tuple[Fact, ...]
    """The steps before it can be started: why, and the command; empty: the user has to bring it."""


CardKind = Literal["desktop", "laptop", "other", "unsupported"]
"""``desktop`` and ``laptop``: of GeForce; ``unsupported``: no preset's image has code for it."""
KINDS: tuple[CardKind, ...] = ("desktop", "laptop", "other", "unsupported")


@dataclass(frozen=True, slots=True)
class CardFact:
    """A card, the presets that run on one of it, the best known and fastest first, and the rest."""

    card: str
    name: str
    kind: CardKind
    capability: str
    memory: int
    fits: tuple[Option, ...] = ()
    excluded: tuple[Refusal, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    unserved: tuple[Unserved, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """All facts."""

    created: str
    builder: str
    repository: str
    namespace: str
    cards: tuple[CardFact, ...]
    images: tuple[Fact, ...]
    speeds: tuple[Fact, ...]
    measurements: tuple[Fact, ...]
    compilers: tuple[Table, ...]
    compiler_threads: tuple[Thread, ...]
    signers: tuple[signed.PublicSigner, ...]
    manifest: Manifest
    composes: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The known facts as JSON data."""
        found: dict[str, Any] = _known(to_jsonable_python(self, exclude={"composes", "manifest"}))
        return {"format": FORMAT, **found}


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = {name: _known(each) for name, each in value.items()}
        return {name: each for name, each in pairs.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [_known(each) for each in value]
    return value


# The presets that run on each card: the answers of ``builder choose``, for every file of
# ``cards/``.

PROGRAM = "./farm"  # starts ``builder`` in a checkout, which the first page says how to get
MODELS = "~/models"  # the models directory, beside the file
SOME_HOME = Path("/home/somebody")
"""Stands for the home directory of a reader, which a shell knows as ~."""


def every_card(known: Known, published: Collection[str] = ()) -> tuple[CardFact, ...]:
    """The presets that run on one of each card, and why the others do not.

    GeForce cards come first, and of them those for desktops, the largest number first.
    ``published`` are the recipes whose images a registry has.
    """
    root = known.question.catalog.root
    found = [_card(name, card, known, published) for name, card in cards.every(root).items()]

    def place(card: CardFact) -> tuple[int, int, bool, int, str]:
        series = -int("0" + "".join(re.findall(r"\d+", card.name)[:1]))
        return KINDS.index(card.kind), series, " Ti" not in card.name, -card.memory, card.card

    return tuple(sorted(found, key=place))


def _card(name: str, card: Card, known: Known, published: Collection[str]) -> CardFact:
    presets = {entry.name: entry.preset for entry in known.entries}
    answer = known.choice(cards.machine_with(known.question.catalog.root, [name]))
    fits = tuple(
        _option(each, presets[each.preset], published=each.recipe in published)
        for each in answer.fits
    )
    kind: CardKind = "laptop" if "Laptop" in card.name else "desktop"
    kind = kind if "GeForce" in card.name else "other"
    obstacles = {each.obstacle for each in answer.excluded}
    if not fits and Obstacle.IMAGE in obstacles <= {Obstacle.IMAGE, Obstacle.REFUSED}:
        return CardFact(name, card.name, "unsupported", card.capability, card.memory)
    facts = (name, card.name, kind, card.capability, card.memory)
    proposed, unserved = proposals(known, answer, SOME_HOME / "models", name)
    own = (
        replace(each, get=_anywhere(each.get), command=_anywhere(each.command)) for each in proposed
    )
    lost = (replace(each, command=_anywhere(each.command)) for each in unserved)
    return CardFact(*facts, fits, answer.excluded, tuple(own), tuple(lost))


def _anywhere(command: str) -> str:
    here = command.replace(str(SOME_HOME), "~")
    return (
        f"{PROGRAM} {here.removeprefix(errors.PROGRAM).lstrip()}"
        if here.startswith(f"{errors.PROGRAM} ")
        else here
    )


def _option(found: choose.Option, preset: Preset, *, published: bool) -> Option:
    context = found.other_context
    words = choose.run_words(found.preset, preset, context)
    missing = _missing(preset, words, published=published)
    same: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)}
    same["command"] = _anywhere(found.command)
    path = f"compose/{found.preset}{f'-{context}' if context else ''}.yaml"
    return Option(**same, compose="" if missing else path, missing=missing)


def _missing(preset: Preset, words: list[str], *, published: bool) -> tuple[Fact, ...]:
    """The steps before a file for Docker Compose can be written, and the command that writes it.

    ``words`` name the run.  Empty where nothing is missing: the site has the file.
    """
    steps = []
    if not published:
        why = "The image is not published"
        steps.append((why, shlex.join([PROGRAM, "build", preset.recipe])))
    # A file needs the Hub, or the user, first where the preset does not name it.
    for file in (each for each in preset.files.values() if not each.whole and each.file is None):
        command = file.download(MODELS, [])
        lacks, known = ("The file", "not known") if command else ("No repository", "known")
        steps.append((f"{lacks} of {file.shown} is {known}", command))
    if steps:
        command = shlex.join([PROGRAM, "export", *words, "--format", "compose"])
        steps.append(("Then the file can be written", f"{command} --output ~/llm"))
    return tuple({"why": why, "command": command} for why, command in steps)


def manifest_of(
    known: Known, images: Sequence[Fact], options: Iterable[Option], **head: Any
) -> Manifest:
    """The manifest of a farm: the images that a registry has, and the presets of which nothing is
    missing; ``head`` are its other fields."""
    presets = {entry.name: entry.preset for entry in known.entries}
    there = {each["recipe"]: each for each in images if each["tags"]}
    runs = {}
    for option in options:
        if not option.compose or option.other_context or option.preset in runs:
            continue
        preset, image = presets[option.preset], there[option.recipe]
        made = _service(known, option, preset, image)
        figure = preset.published.tokens_per_second.middle if preset.published else None
        runs[option.preset] = manifest.Run(
            preset=option.preset,
            model=option.model,
            quantization=option.quantization,
            recipe=option.recipe,
            digest=image["digest"],
            context=option.context,
            download=option.download,
            memory=option.memory,
            cards=preset.cards,
            driver=option.driver,
            tokens_per_second=figure,
            on=preset.card if figure else "",
            port=made.port,
            arguments=made.words,
            environment={each.name: each.value for each in made.environment},
            models=[
                manifest.ModelPlace(repository=file.repository, file=file.file)
                for file in preset.files.values()
                if file.repository
            ],
        )
    return Manifest(
        **head,
        images=[
            manifest.Image(
                **{name: each[name] for name in ("recipe", "engine", "version", "repository")},
                architectures=list(each["code"]),
                driver=each["driver"],
                channel=each["channel"],
                tags=[
                    manifest.Tag(
                        **{name: tag[name] for name in ("tag", "digest", "created", "version")},
                        platforms={name: one.digest for name, one in tag["platforms"].items()},
                        size=tag["download_size"],
                        checks=dict(tag["checks"]),
                        signed=tag["signed"],
                        reproduced=tag["reproduced"],
                    )
                    for tag in each["tags"]
                ],
                presets=list(each["presets"]),
            )
            for each in there.values()
        ],
        runs=list(runs.values()),
    )


def _compose_files(
    known: Known, images: Iterable[Fact], options: Iterable[Option]
) -> dict[str, str]:
    presets = {entry.name: entry.preset for entry in known.entries}
    by_recipe = {each["recipe"]: each for each in images}
    named = sorted({each.compose: each for each in options if each.compose}.items())
    return {
        path: exports.compose(
            _service(known, option, presets[option.preset], by_recipe[option.recipe])
        )
        for path, option in named
    }


def _service(known: Known, option: Option, preset: Preset, image: Fact) -> Service:
    recipe = known.question.catalog.engine(preset.recipe).recipe
    run = Run(option.preset, recipe, preset, option.other_context)
    return service(
        run, f"{image['repository']}@{image['digest']}", mounted(preset.files, MODELS, {})
    )


# The facts of an image: from its recipe, the record of this machine, and the registry.


def image_fact(
    catalog: Catalog,
    name: str,
    repository: str,
    presets: Sequence[PresetEntry],
    record: Record | None,
    tags: Sequence[Fact] = (),
    nights: Sequence[NightlyRun] = (),
) -> Fact:
    """The known facts of a recipe's image.

    ``repository`` has the namespace; ``record`` describes this machine's newest verified image.
    """
    recipe = complete(catalog.engine(name).recipe)
    details = explained(catalog, name)
    # The version tag, else the channel: the registry may have one without the other.
    order = [*recipe.image.tags, *recipe.image.moving]
    tag = min(tags, key=lambda each: order.index(each["tag"]), default=None)
    # People get the registry's image: the record counts if it is of the same image.
    digests = {tag["digest"], *(one.digest for one in tag["platforms"].values())} if tag else set()
    same = record if record and (tag is None or record.digest in digests) else None
    verdict = same.verdict if same else None
    tried = None if tag or same else kept_of(catalog.root, name)
    sized, made = verdict or tried, same or tried
    checks = verdict.passed_by_kind if verdict else tag["checks"] if tag else {}
    own_commit = recipe.source.commit if isinstance(recipe.source, GitSource) else ""
    return {
        "recipe": name,
        "engine": recipe.engine,
        "version": recipe.version,
        "summary": recipe.summary,
        "kept": recipe.kept or "",
        "repository": repository if tag else "",
        "url": details["url"],
        "license": recipe.license,
        "source": tuple(details["source"]),
        "bases": tuple(base["published"] for base in details["bases"] if base["published"]),
        "channel": recipe.channel,
        "code": tuple(codes_of(recipe)),
        "driver": choose.oldest_driver(recipe, catalog),
        "port": recipe.image.port if recipe.artifact is None else None,
        "digest": tag["digest"] if tag else same.digest if same else "",
        "created": tag["created"] if tag else made.created if made else "",
        "download_size": tag["download_size"] if tag else sized.download_size if sized else None,
        "unpacked_size": verdict.unpacked_size if verdict else None,
        "device_code": verdict.code if verdict else (),
        "checks": dict(sorted(checks.items())),
        "passed": tried.checks if tried else sum(checks.values()) or None,
        "failed": tried.failed if tried else {},
        "known_by": "registry" if tag else "record" if same else "trials" if tried else None,
        # The commit that an image of ``trials/`` was built from, where the recipe has another one.
        "built_from": tried.commit if tried and own_commit and tried.commit != own_commit else "",
        "patches": [
            {
                "name": each["name"],
                "where": each["page"] or each["where"],
                "why": each["why"],
                "drop_when": each["drop_when"],
                "applied": each["expect"] == "applies",
            }
            for each in details["patches"]
        ],
        "starts": tuple(details["starts"]),
        "notes": tuple(details["notes"]),
        "presets": tuple(entry.name for entry in presets if entry.preset.recipe == name),
        "tags": tuple(tags),
        "nights": tuple(nights),
    }


# The published figures of each preset, the fastest first, with the facts of its runs.


def speeds(
    entries: Sequence[PresetEntry],
    images: Mapping[str, Fact],
    trials: Mapping[str, PresetUse],
) -> tuple[Fact, ...]:
    """The published figures of each preset that has any; ``images`` are by recipe."""
    found = []
    for entry in entries:
        preset, source = entry.preset, entry.preset.source
        image = images.get(preset.recipe)
        marks = {
            "compiled": image is not None and bool(image["passed"] and not image["failed"]),
            "run without a GPU": entry.name in trials,
            "run on a card": source is not None,
        }
        speed = {
            "preset": entry.name,
            "recipe": preset.recipe,
            "model": preset.model.name,
            "card": preset.card,
            "cards": preset.cards,
            "figures": [*_figures(preset)],
            "by": (source.title or source.url or "") if source else "",
            "url": (source.url or "") if source else "",
            "published": (source.published or "") if source else "",
            "marks": [mark for mark, known in marks.items() if known],
        }
        found += [speed] if preset.result else []

    def place(speed: Fact) -> tuple[float, str]:
        return -speed["figures"][0]["tokens_per_second"], speed["preset"]

    return tuple(sorted(found, key=place))


def measurements(receipts: Iterable[Receipt]) -> tuple[Fact, ...]:
    """Every figure of the receipts, the fastest first."""
    found: list[Fact] = [
        {
            "recipe": receipt.image.recipe,
            "digest": receipt.image.digest,
            "hardware": receipt.hardware,
            "driver": receipt.driver,
            "model": receipt.model.name,
            "model_sha256": receipt.model.sha256,
            "context": point.context,
            "tokens_per_second": round(point.mean, 2),
            "interval": interval(point),
            "runs": [round(run.tokens_per_second, 2) for run in point.runs],
            "by": receipt.by or "",
            "created": receipt.created.isoformat(timespec="seconds"),
        }
        for receipt in receipts
        for point in receipt.measured
    ]
    return tuple(sorted(found, key=lambda each: (-each["tokens_per_second"], each["recipe"])))


def _figures(preset: Preset) -> Iterator[Fact]:
    """The figures: runs as the preset says first, and of these the largest context first."""
    order = sorted(preset.result, key=lambda each: (not each.of_preset, -preset.context_of(each)))
    for result in order:
        figures = result.tokens_per_second
        accepted = result.acceptance.middle if result.acceptance else result.accepted_share
        differs = [shlex.join(result.arguments), result.differs or "", result.task or ""]
        yield {
            "context": preset.context_of(result) or None,
            "tokens_per_second": round(figures.middle, 2),
            "least": figures.least,
            "most": figures.most,
            "runs": figures.count or len(figures.runs) or None,
            "acceptance": None if accepted is None else round(accepted, 1),
            "baseline": result.baseline,
            "differs": "; ".join(filter(None, differs)),
        }


# All facts of the site, from the catalog, this machine's records, and the registry.

REMOTE = re.compile(r"https://(?:[^/@]*@)?([A-Za-z0-9.-]+(?::[0-9]+)?/[A-Za-z0-9._/-]+)")
"""The URL of a remote, whose login (a token, perhaps) is no part of a page."""


def remote_of(root: Path) -> str:
    """The https URL of the remote ``origin`` of the checkout at ``root``; empty without one."""
    with suppress(WorldError):  # no checkout, no such remote, no git
        found = REMOTE.fullmatch(git.text(root / ".git", "config", "--get", "remote.origin.url"))
        return f"https://{found[1]}" if found else ""
    return ""


def collect(
    catalog: Catalog,
    settings: Settings,
    log: Log,
    receipts: Mapping[str, Receipt],
    *,
    offline: bool = False,
) -> Site:
    """The facts of all valid recipes and presets; broken ones are logged and left out.

    The registry is asked if there is a namespace, and not ``offline``.  Raises ``RegistryError``
    and ``FetchError`` where it does not answer, ``RecipeError`` where a file of ``cards/``,
    ``compilers/`` or ``trials/`` is invalid.
    """
    presets = preset_files.load(catalog)
    entries = presets.valid()
    broken = [each.name for each in catalog.engines.values() if isinstance(each, BrokenEntry)]
    for name in (*sorted({*presets.entries} - {entry.name for entry in entries}), *broken):
        log(f"{name} is left out as invalid: see `builder recipe check`")
    asked, images = bool(settings.namespace) and not offline, []
    for name in catalog.engines:
        if name not in broken:
            recipe = catalog.engine(name).recipe
            repository = settings.repository(recipe.image.repository)
            tags, nights = tuple[Fact, ...](), list[NightlyRun]()
            if asked:
                opened = open_repository(repository, log)
                tags = published_tags(opened, recipe, settings, catalog.engines)
                channel = recipe.track.channel if recipe.track else None
                nights = nightly_runs(opened, channel) if channel else []
            record = newest_good(settings.state_dir, name)
            images.append(image_fact(catalog, name, repository, entries, record, tags, nights))
    facts = known(catalog, entries, settings.state_dir, receipts=receipts)
    cards = every_card(facts, [each["recipe"] for each in images if each["repository"]])
    options = [option for card in cards for option in card.fits]
    signers = signed.signers_of(settings)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    farm = settings.farm_url or remote_of(catalog.root)
    listed = [manifest.Signer(**asdict(each)) for each in signers]
    head = {"created": created, "builder": __version__, "farm": farm, "signers": listed}
    return Site(
        created=created,
        builder=__version__,
        repository=farm,
        namespace=settings.namespace,
        cards=cards,
        images=tuple(images),
        speeds=speeds(entries, {each["recipe"]: each for each in images}, facts.question.trials),
        measurements=measurements(receipts.values()),
        compilers=tables.load(catalog.root),
        compiler_threads=tables.threads(catalog.root),
        signers=signers,
        manifest=manifest_of(facts, images, options, **head),
        composes=_compose_files(facts, images, options),
    )
