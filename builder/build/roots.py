"""Which image a base starts from today, asked of the engine and of registries; its configuration,
and the pull into the engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from builder.core.errors import (
    BuilderError,
    FetchError,
    GoneError,
    RecipeError,
    RegistryError,
    WorldError,
)
from builder.core.log import Log
from builder.core.platforms import Architecture, Platforms, architecture
from builder.core.settings import Settings
from builder.docker import buildx
from builder.docker import engine as docker
from builder.docker.buildx import config, registry_digest
from builder.engines.layout import LABEL_KEY
from builder.plan.inputs import RegistryRoot, RootChoice, lock_at
from builder.plan.plan import AnyPlan
from builder.plan.resolver import LockedResolver, Resolver, bootstrapped_root, plan_base
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import BaseRecipe, Published

PATIENCE = 10.0  # seconds for a registry to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingResolver(Resolver):
    """A resolver that asks the engine and registries which image a base starts from today."""

    log: Log
    offline: bool = False  # ask no registry

    def root_of(self, base: str, platforms: Platforms) -> RootChoice:
        """The Debian root or the published image below a base.

        "auto" prefers the root that the engine has, so that a registry that comes or goes does not
        change the key of every engine; else it tries the registry, then mmdebstrap.
        """
        entry, below = self.lowest(base)
        if isinstance(below, Published):
            return choose(below, self.log, offline=self.offline)
        pinned = RegistryRoot(below.image, below.digest) if below.digest else None
        bootstrapped = bootstrapped_root(entry, below, platforms)
        if self.root_way == "mmdebstrap":
            return bootstrapped
        if self.root_way == "auto":
            for choice in (pinned, bootstrapped) if pinned else (bootstrapped,):
                plan = plan_base(self.catalog, entry.name, platforms, choice)
                if in_engine(plan, plan.references["root"]):
                    return choice
        if self.offline:
            return pinned or bootstrapped
        try:
            reference = f"{below.image}@{below.digest}" if below.digest else below.image
            digest = registry_digest(reference, PATIENCE)
        except (FetchError, RegistryError) as error:
            if self.root_way == "registry":
                error.hint += '; debian_root = "mmdebstrap" (BUILDER_DEBIAN_ROOT) needs no registry'
                raise
            self.log(f"{error.what}: mmdebstrap makes the Debian root")
            return bootstrapped
        if pinned is None:
            self.log(f"{below.image} is not pinned; its digest today is {digest}")
        return pinned or RegistryRoot(below.image, digest)


def resolver_of(
    catalog: Catalog,
    settings: Settings,
    log: Log,
    build_architecture: str | None = None,
    *,
    offline: bool = False,
) -> Resolver:
    """By the user's settings; with ``build_architecture`` it asks neither engine nor registry."""
    way, namespace = settings.debian_root, settings.namespace
    if lock := lock_at(catalog.root):
        return LockedResolver(catalog, lock.build, way, namespace, lock=lock)
    build = compiles_on(settings, build_architecture)
    if build_architecture is not None:
        return Resolver(catalog, build, way, namespace)
    return AskingResolver(catalog, build, way, namespace, log=log, offline=offline)


def compiles_on(settings: Settings, build_architecture: str | None = None) -> Architecture:
    """The setting ``compile_on``, else ``build_architecture``, else the builder's architecture."""
    machine = settings.compile_on or build_architecture
    machine = machine or buildx.builder(settings.buildx).architecture
    found = architecture(machine)
    if found is None:
        raise WorldError(f"builder does not compile on {machine}", hint="use amd64 or arm64")
    return found


def in_engine(plan: AnyPlan, reference: str) -> docker.Image | None:
    """The image of a plan, if the engine has it under this name."""
    found = docker.image(reference)
    return found if found and found.labels.get(LABEL_KEY) == plan.key else None


def choose(published: Published, log: Log, *, offline: bool) -> RegistryRoot:
    """A published image by its pin, else by the digest of its tag today, which is logged.

    Docker's copy counts offline, and where the registry fails or does not answer; not where it has
    no such tag, or refuses the login.
    """
    name = published.image
    if published.digest is not None:
        return RegistryRoot(name, published.digest)
    error = BuilderError("nothing is fetched (--offline)")
    if not offline:
        try:
            digest = registry_digest(name, PATIENCE)
        except (FetchError, RegistryError) as failed:
            error = failed
        else:
            log(f"{name} is not pinned ({published.note}); its digest today is {digest}")
            return RegistryRoot(name, digest)
    found = docker.image(name)
    if found is None:
        raise FetchError(
            f"the digest of {name} is not known: {error.what}, and Docker does not have the image",
            "\n".join(filter(None, (f"it is not pinned: {published.note}", error.why))),
            error.hint or f"run `docker pull {name}` where the registry answers",
        )
    made = f"{found.digest}, created {datetime.fromtimestamp(found.epoch, UTC):%Y-%m-%d}"
    if isinstance(error, GoneError | RegistryError):
        error.why += f"\nDocker has a copy of it: {made}"
        error.hint += "; to build on the copy all the same: --offline"
        raise error
    log(f"{name} is not pinned ({published.note}); {error.what}: using Docker's copy, {made}")
    return RegistryRoot(name, found.digest)


def digest_today(entry: Entry[BaseRecipe]) -> str:
    """The digest that the image of a base has in the registry today."""
    starts_from = entry.recipe.published or entry.recipe.root
    if starts_from is None:
        raise RecipeError(f"{entry.name} starts from no image, so there is nothing to pin")
    return registry_digest(starts_from.image, PATIENCE)


def reference(root: RegistryRoot) -> str:
    """The reference of that image by digest.  Raises ``FetchError`` where it is not known."""
    if not root.digest:
        raise FetchError(
            f"the digest of {root.image} is not known",
            hint="ask the registry: `builder pin image BASE`",
        )
    return f"{root.image.rpartition(':')[0]}@{root.digest}"


def created(root: RegistryRoot, target: str, *, offline: bool) -> int:
    """When an image for linux/``target`` was created, in seconds since 1970."""
    exact = reference(root)
    for name in (exact, root.image):
        found = docker.image(name)
        if found is not None and root.digest in found.digests:
            return found.epoch
    if offline:
        raise FetchError(
            f"the configuration of {root.image} is not known: Docker does not have the image",
            "nothing is fetched (--offline)",
        )
    return docker.epoch_of(config(exact, f"linux/{target}", PATIENCE).get("created"))


def fetch(
    base: str,
    published: Published,
    digest: str,
    log: Log,
    *,
    target: str = "amd64",
    offline: bool = False,
) -> docker.Image:
    """A published image in the engine; the name of its base and the digest are in its name."""
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
