"""Images that others publish: the digest of a tag, the configuration, the pull into the engine."""

from __future__ import annotations

from typing import Any

from builder.errors import FetchError, RecipeError
from builder.plan.inputs import RegistryRoot
from builder.recipes.catalog import Entry
from builder.recipes.schema import BaseRecipe, Published
from builder.tools.docker import engine as docker
from builder.tools.docker import imagetools
from builder.tools.log import Log

PATIENCE = 10.0  # seconds for a registry to answer


def choose(published: Published, log: Log, *, ask: bool, offline: bool) -> RegistryRoot:
    """A published image by its pin, else by the digest of its tag today, which is logged.

    Raises ``FetchError`` where neither registry nor engine knows.
    """
    name = published.image
    if published.digest is not None or not ask:
        return RegistryRoot(name, published.digest or "")
    digest = None if offline else imagetools.digest(name, PATIENCE)
    if digest is not None:
        log(f"{name} is not pinned ({published.note}); its digest today is {digest}")
        return RegistryRoot(name, digest)
    why = "nothing is fetched (--offline)" if offline else "no registry answers for it"
    found = docker.image(name)
    if found is None:
        raise FetchError(
            f"the digest of {name} is not known: {why}, and Docker does not have the image",
            f"it is not pinned: {published.note}",
            f"run `docker pull {name}` where the registry answers, or choose a base of wheels",
        )
    log(f"{name} is not pinned ({published.note}) and {why}: using Docker's, {found.digest}")
    return RegistryRoot(name, found.digest)


def pinned(entry: Entry[BaseRecipe]) -> str:
    """The text of a base with the digest that its image has in the registry today.

    Raises ``RecipeError`` where it starts from none, ``FetchError`` when no registry answers.
    """
    base = entry.recipe
    table = "published" if base.published else "root"
    starts_from = base.published or base.root
    if starts_from is None:
        raise RecipeError(f"{entry.name} starts from no image, so there is nothing to pin")
    digest = imagetools.digest(starts_from.image, PATIENCE)
    if digest is None:
        raise FetchError(
            f"no registry answers for {starts_from.image}", hint="try again, or docker login"
        )
    from builder.recipes import edit  # slow to import

    changes: dict[edit.Keys, str | None] = {(table, "digest"): digest}
    if base.published is not None:
        changes[table, "note"] = None
    return edit.edited(entry.text, changes)


def reference(root: RegistryRoot) -> str:
    """The reference of that image by digest.

    Raises ``FetchError`` where the digest is not known.
    """
    if not root.digest:
        raise FetchError(
            f"the digest of {root.image} is not known",
            hint="ask the registry: `builder pin image BASE`",
        )
    return f"{root.image.rpartition(':')[0]}@{root.digest}"


def config(root: RegistryRoot, target: str, *, offline: bool) -> tuple[dict[str, Any], int]:
    """The "config" of an image for linux/``target``, and when it was created (seconds since 1970).

    From the engine, or else its registry.

    Raises ``FetchError`` where neither has it.
    """
    exact = reference(root)
    for name in (exact, root.image):
        found = docker.image(name)
        if found is not None and root.digest in found.digests:
            return dict(found.config), found.epoch
    if offline:
        raise FetchError(
            f"the configuration of {root.image} is not known: Docker does not have the image",
            "nothing is fetched (--offline)",
        )
    image = imagetools.config(exact, f"linux/{target}", PATIENCE)
    return image.get("config") or {}, docker.epoch_of(image.get("created"))


def fetch(
    base: str,
    published: Published,
    digest: str,
    log: Log,
    *,
    target: str = "amd64",
    offline: bool = False,
) -> docker.Image:
    """A published image in the engine; the name of its base and the digest are in its name.

    Raises ``FetchError`` when it cannot be had, or is for another platform than linux/``target``.
    """
    image = published.image
    local = f"builder-base/{base}:published-{digest.removeprefix('sha256:')[:12]}"
    if not _is(local, digest):
        source = image
        if not _is(image, digest):
            if offline:
                raise FetchError(
                    f"{image} ({digest}) is not in Docker",
                    "nothing is fetched (--offline)",
                    f"with a network, run `builder pin mirror` or `docker pull {image}@{digest}`",
                )
            source = reference(RegistryRoot(image, digest))
            log(f"pulling {source}")
            docker.pull(source, f"linux/{target}")
        docker.tag(source, local)
    if published.digest is None and docker.image(image) is None:
        docker.tag(local, image)  # so that an offline build finds the image by its tag
    found = docker.image(local)
    if found is None or found.platform != f"linux/{target}":
        raise FetchError(
            f"{image} is no image for linux/{target}",
            f"it is for {found.platform if found else 'an unknown platform'}",
            "name a tag of that platform",
        )
    return found


def _is(reference: str, digest: str) -> bool:
    found = docker.image(reference)
    return found is not None and digest in found.digests
