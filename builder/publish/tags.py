"""The tags of images in a registry: which ones an image gets, which move, moving one by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from builder.build.record import Record
from builder.core import settings
from builder.core.errors import RegistryError
from builder.core.log import Log
from builder.docker.engine import HUB
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.publish.referrers import attach_all
from builder.publish.registry import Repository
from builder.publish.remote_image import Update, images_in, of_images, remote_image, updates_of
from builder.publish.tag_history import By, Move, new_note, no_image, notes_of_tag, past_moves
from builder.publish.verdicts import UNSIGNED, Trust
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

NIGHTLY, TAGS = "nightly", "tags"
"""Locks on this machine: of a nightly run, and of moving tags; deleting takes both."""
IMMUTABLE = re.compile(r"-[0-9a-f]{12}$|\.nights$|^sha256-")
"""Immutable tags, and tags under which builder and others keep attachments."""

Approve = Callable[[Sequence[Update]], None]
"""Gets the updates of a move."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of an image in its repository."""

    immutable: str
    """``VERSION-KEY12``: one build."""
    versions: tuple[str, ...]
    """Tags that stay on their version; they are replaced for a reason only."""
    moving: tuple[str, ...]


def tags_of(record: Record, recipe: Recipe) -> Tags:
    """The tags that a push gives an image; the first reference of its record is immutable.

    The recipe's channel is none of them: a nightly run may have moved it to an image that is newer
    than the recipe's pin.
    """
    immutable, *named = (reference.rpartition(":")[2] for reference in record.references)
    return _tags(immutable, named, recipe)


def tags_of_index(recipe: Recipe, key: str) -> Tags:
    """The tags of the index of that key; its images have only their own immutable tags."""
    return _tags(f"{recipe.version}-{key[:12]}", recipe.image.tags, recipe)


def _tags(immutable: str, names: Iterable[str], recipe: Recipe) -> Tags:
    channel = recipe.track.channel if recipe.track else None
    versions = tuple(tag for tag in names if tag not in recipe.image.moving)
    return Tags(immutable, versions, tuple(tag for tag in recipe.image.moving if tag != channel))


def open_repository(name: str, log: Log) -> Repository:
    """A repository to push to; raises ``RegistryError`` where it is one of Docker's own."""
    loaded = settings.load()
    repository = Repository(name, log, loaded.token_hosts)
    if repository.registry == HUB and repository.path.startswith("library/"):
        if loaded.namespace:
            what = f"the namespace {loaded.namespace} belongs to Docker Hub's official images"
        else:
            what = "BUILDER_NAMESPACE is not set: there is no account to push to"
        raise RegistryError(
            what,
            f"the image would be {repository.name}",
            "set BUILDER_NAMESPACE to your account on Docker Hub or to REGISTRY/ACCOUNT, or set "
            f"namespace in {settings.settings_file()}",
        )
    return repository


def repository_of(recipes: Catalog, name: str, log: Log) -> Repository:
    """The repository of a recipe's images.

    Raises ``RecipeError`` for an unknown recipe, ``RegistryError`` without a namespace.
    """
    recipe = recipes.engine(name).recipe
    return open_repository(settings.load().repository(recipe.image.repository), log)


def require_points_to(
    repository: Repository, tag: str, digest: str, *, by_content: bool = False
) -> None:
    """Raise ``RegistryError`` where a tag that was just given does not point to its image.

    ``by_content``: the manifest is fetched and hashed, which Docker Hub counts as a pull.
    """
    found = repository.resolve(tag) if by_content else repository.head_digest(tag)
    if found != digest:
        raise RegistryError(
            f"{repository.name}:{tag} is not what was pushed",
            f"pushed {digest}, found {found or 'nothing'}: the registry altered it, or another "
            "machine moved the tag at the same moment",
            "the remaining tags were not given: see `builder tag history`, and decide again",
        )


def move(
    repository: Repository,
    tag: str,
    to: str,
    reason: str,
    by: By = "",
    before: str | None = None,
    *,
    trust: Trust = UNSIGNED,
    approve: Approve = lambda _: None,
    dropped: Collection[str] = (),
) -> Move:
    """Move a tag to the image ``to``, a tag or a digest, and attach the reason to that image.

    ``before`` is the digest that the tag pointed to when the move was decided; None: it is looked
    up.  ``trust`` signs the note of the move.  ``approve`` gets the updates, unless the
    tag is new; where it raises an error, the tag does not move.  ``dropped`` are platforms that
    the tag may lose.  A tag that points to the image already is not moved.
    Raises ``RegistryError`` where the tag does not move, there is no such image, it has no label
    with a build key (any user with push access can write it), the tag would lose another platform,
    or another machine has moved the tag meanwhile.
    """
    if IMMUTABLE.search(tag):
        raise RegistryError(
            f"{tag} is not a moving tag",
            "it names one build, or an attachment",
            "name a moving tag, such as latest",
        )
    wanted = repository.manifest(to)
    repository.require_clock()
    if wanted is None:
        raise no_image(repository, to)
    images = () if "artifactType" in wanted.parsed() else images_in(repository, wanted)
    image = of_images(wanted, images)
    if LABEL_KEY not in image.labels:
        raise RegistryError(
            f"{repository.name}:{to} is not an image that builder made",
            f"it is {wanted.digest}, without the label {LABEL_KEY}",
            "no tag was moved",
        )
    now = repository.head_digest(tag)
    if now == wanted.digest:
        return Move(tag, wanted.digest, now, "", "the tag points there already")
    before = now if before is None else before
    updates = updates_of(repository, (tag,), before, images, repository.log, dropped)
    if updates:
        approve(updates)
    done = Move(tag, wanted.digest, before, "", reason, by, version=image.version)
    taken = notes_of_tag(repository, tag, wanted.digest, trust)
    done, note = new_note(repository, done, updates, trust, taken)
    attach_all(repository, wanted, [note])
    repository.put_tag(tag, wanted, before)
    require_points_to(repository, tag, wanted.digest)
    return done


def require_moving(
    recipes: Iterable[Recipe], repository: Repository, name: str, tag: str, trust: Trust
) -> None:
    """Raise ``RegistryError`` where a tag is a version tag, which does not move.

    ``name`` is the repository's name in the recipes.  They declare version tags and moving tags.
    For a tag that none of them has, the label with the version counts, then the tag's history,
    where replacements do not count.  A tag that exists and is not known to move does not move; a
    new tag may be any.  Raises ``FetchError``.
    """
    known = [recipe for recipe in recipes if recipe.image.repository == name]
    if any(tag in recipe.image.moving for recipe in known):
        return
    owner = next((recipe.name for recipe in known if tag in recipe.image.tags), "")
    there = None if owner else remote_image(repository, tag)
    if there is not None and tag == there.version:
        named = there.labels.get(LABEL_RECIPE) or f"an image of version {there.version}"
        owner = f"{named}, whose recipe is not in this catalog"
    if owner:
        raise RegistryError(
            f"{tag} is the version tag of {owner}: it does not move",
            hint="to replace the image of that version: `builder push --replace --reason TEXT`",
        )
    if there is None:
        return
    if all(move.by == "replacement" for move in past_moves(repository, tag, trust)):
        raise RegistryError(
            f"{repository.name}:{tag} is not known to move",
            "no recipe of this catalog has it, and no move of it is noted",
            "add it to image.moving in the recipe; to replace the image of a version: "
            "`builder push --replace --reason TEXT`",
        )
