"""Where an image lies: its repository, and what it is there."""

from __future__ import annotations

from builder.errors import UsageError
from builder.images.lookup import REFERENCE, is_recipe
from builder.images.session import BuildSession
from builder.publish.tags import open_repository
from builder.tools.registry.client import Repository


def place_of(session: BuildSession, target: str) -> tuple[Repository, str]:
    """The repository of an image, and its tag or digest there.

    ``target`` is a recipe, or the name of an image.  Raises ``UsageError`` where an image of a
    registry cannot have that name.
    """
    if is_recipe(session, target):
        image = session.resolve(target)
        return open_repository(image.repository, session.log), image.immutable_tag
    name, _, digest = target.partition("@")
    repository, colon, tag = name.rpartition(":")
    if REFERENCE.fullmatch(target) and (digest or (colon and "/" not in tag)):
        place = repository if colon and "/" not in tag else name
        return open_repository(place, session.log), digest or tag
    raise UsageError(
        f"{target} is no image of a registry: nothing is attached to it",
        hint="name a recipe, or an image: REGISTRY/REPOSITORY:TAG",
    )
