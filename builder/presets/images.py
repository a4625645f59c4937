"""The image of a run: in the engine, in the registry, and whether the recipe asks for it now."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from builder.core.errors import BuilderError, FetchError, GoneError, RegistryError, WorldError
from builder.core.log import Log
from builder.core.platforms import PLATFORMS, Platform, platform_of
from builder.core.settings import Settings
from builder.core.web import GIVEN_UP
from builder.docker import engine as docker
from builder.docker.engine import split
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE, LABEL_RECIPE_KEY, VERSION
from builder.plan.resolver import Resolver
from builder.publish.registry import Repository
from builder.publish.remote_image import remote_image
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

UNVERIFIED = "unverified-"
"""The beginning of a candidate's tag: ``Plan.candidate``."""


@dataclass(frozen=True, slots=True)
class RunImage:
    """The image of a run."""

    name: str
    """By digest, where that is known."""
    local: bool = True
    """Docker has it."""
    size: int = 0
    """Bytes to download."""
    key: str = ""
    """Its build key; empty: not known."""
    what: str = ""
    """Why it is not the image that the recipe asks for, or that there is none; empty: it is."""
    hint: str = ""
    builds: bool = False
    """Whether a build is the next step."""
    note: str = ""
    """What is not known of an image that can be started."""


@dataclass(frozen=True, slots=True)
class _Image:
    name: str
    key: str
    current: bool
    digests: frozenset[str]
    local: bool = True
    built: bool = False
    """It has an immutable tag of the recipe's key: a build, or an earlier pull, gave it."""
    size: int = 0


@dataclass(frozen=True)
class Images:
    """Finds the image of a recipe by its build key, whatever its names are.

    The image of a channel is the one that the channel points to, which has the key of a frozen
    recipe.
    """

    catalog: Catalog
    recipe: Recipe
    settings: Settings
    log: Log

    @property
    def repository(self) -> str:
        """The image's repository, with the user's namespace."""
        return self.settings.repository(self.recipe.image.repository)

    @property
    def tagged(self) -> str:
        """``NAMESPACE/REPOSITORY:TAG``: the tag of the recipe's version."""
        return f"{self.repository}:{self.recipe.image.tags[0]}"

    @property
    def _channel(self) -> str:
        """The recipe's channel, where its image is the channel's; else empty."""
        channel = (self.recipe.track.channel if self.recipe.track else None) or ""
        return channel if channel == self.recipe.image.tags[0] else ""

    @cached_property
    def platform(self) -> Platform:
        """The platform of the image for the engine's machine; else its first one, emulated."""
        try:
            own = platform_of(docker.engine().architecture)
        except WorldError:
            own = None
        return own if own in self.recipe.platform else self.recipe.platform[0]

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of the recipe as it is now, by all ways to build it."""
        resolver = Resolver(self.catalog, PLATFORMS[self.platform])
        return resolver.recipe_keys(self.recipe.name, self.platform)

    def find(self, *, old: bool = False, published_first: bool = False) -> RunImage:
        """The image to start, or why there is none.

        ``old``: an image of another state of the recipe will do; ``published_first``: where the
        registry has the image, too, its name there.  Raises ``WorldError`` where no engine answers.
        """
        here, there, error, silent = [], None, None, None
        try:
            here = self._here()
        except WorldError as failed:
            if not published_first:
                raise
            silent = failed
        follows = bool(self._channel and self.settings.namespace)
        current = next((each for each in here if each.current), None)
        if current and not published_first and (current.built or not follows):
            return RunImage(current.name, key=current.key)
        try:
            there = self._published(once=bool(current or (follows and here)))
        except (FetchError, RegistryError) as failed:
            error = failed
        if there and (there.current or follows):
            same = (each for each in here if each.digests & there.digests)
            found = there if published_first else next(same, there)
            return RunImage(found.name, found.local, found.size, found.key)
        if follows and error and here:
            chosen, channel = here[0], self._channel
            note = f"{error.what}: whether {channel} has moved from {chosen.name} is not known"
            return RunImage(chosen.name, key=chosen.key, note=note)
        if current:
            note = f"{error.what}: whether it is published is not known" if error else ""
            return RunImage(current.name, key=current.key, note=note)
        if silent:
            raise silent
        other = here[0] if here else there
        what, hint = self._lacking(here, there, error)
        if old and other:
            return RunImage(other.name, other.local, other.size, other.key, note=what)
        name, local = (other.name, other.local) if other else (self.tagged, True)
        builds = not isinstance(error, FetchError) or isinstance(error, GoneError)
        return RunImage(name, local, what=what, hint=hint, builds=builds)

    def _lacking(
        self, here: list[_Image], there: _Image | None, error: BuilderError | None
    ) -> tuple[str, str]:
        """Why there is no image of the recipe as it is now, and the next step."""
        parts = [f"there is no image {self.tagged} in Docker"]
        if here:
            parts = [f"the image {here[0].name} in Docker {self._other(here[0])}"]
        build = f"build it: `builder build {self.recipe.name}`"
        if error:
            gone = isinstance(error, GoneError)
            so = "" if gone else ", so whether it is published is not known"
            parts.append(f"{error.what}{so}" + (f" ({error.why})" if error.why else ""))
            build = f"{error.hint}; or {build}" if error.hint else build
        elif there:
            parts.append(f"the published image {there.name} {self._other(there)}")
        elif self.settings.namespace:
            parts.append("and it is not published")
        else:
            build += ", or set BUILDER_NAMESPACE to the account that publishes it"
        if here or there:
            build += "; to start the image of the other state: `builder run` with --old"
        return "; ".join(parts).replace("; and", ", and"), build

    def _other(self, image: _Image) -> str:
        key = f"its build key is {image.key[:12] or 'absent'}"
        return f"is of another state of {self.recipe.name}, mostly an older one ({key})"

    def _here(self) -> list[_Image]:
        """The engine's images of the recipe: the one with the version tag, then the newest."""
        store = docker.engine().containerd_store
        found = []
        for digest in dict.fromkeys(docker.image_digests(self.repository)):
            image = docker.image(digest)
            if image is None or not self._belongs(image):
                continue
            names = {n for n in image.names if n.rpartition(":")[0] == self.repository}
            if names and all(f":{UNVERIFIED}" in name for name in names):
                continue  # a candidate without a verdict
            known = [f"{self.tagged}@{each}" for each in (image.digest, *sorted(image.digests))]
            fitting = (each for each in known if docker.image(each) is not None)
            tag = self.tagged if self.tagged in names else min(names, default="")
            name = tag if tag and not store else next(fitting, tag or digest)
            key = image.labels.get(LABEL_KEY, "")
            current = image.labels.get(LABEL_RECIPE_KEY, key) in self.keys
            built = current and any(each.endswith(f"-{key[:12]}") for each in names)
            one = _Image(name, key, current, image.digests, built=built)
            found.append(((self.tagged in names, image.epoch), one))
        return [image for _, image in sorted(found, key=lambda each: each[0], reverse=True)]

    def _belongs(self, image: docker.Image) -> bool:
        """Whether an image is of the recipe, or of a frozen recipe of its channel, for the
        platform."""
        named = image.labels.get(LABEL_RECIPE) == self.recipe.name
        frozen = image.labels.get(VERSION, "").startswith(f"{self._channel}-")
        return image.platform == self.platform and (named or bool(self._channel and frozen))

    def _published(self, *, once: bool) -> _Image | None:
        """The registry's image of the version tag; None where it has none.

        ``once``: Docker has an image to start, so the registry gets one attempt.  Without a
        namespace nothing is asked: the name is then somebody else's image.  Raises
        ``RegistryError``, ``FetchError``; ``GoneError`` where it is for other platforms.
        """
        if not self.settings.namespace:
            return None
        if once:
            GIVEN_UP.add(split(self.repository)[0])
        repository = Repository(self.repository, self.log, self.settings.token_hosts)
        found = remote_image(repository, self.recipe.image.tags[0])
        if found is None:
            return None
        own = found.platforms.get(self.platform)
        if found.platforms and own is None:
            raise GoneError(
                f"{self.tagged} in the registry has no image for {self.platform}",
                f"it has {' and '.join(found.platforms)}",
            )
        key = own.key if own else found.labels.get(LABEL_KEY, "")
        return _Image(
            f"{self.tagged}@{found.digest}",
            key,
            ((own.recipe_key if own else "") or key) in self.keys,
            frozenset({found.digest, own.digest if own else found.digest}),
            local=False,
            size=own.download_size if own else found.download_size,
        )


def pull(images: Images, name: str) -> None:
    """Pull a published image, and give it the tags by which everything finds it without a registry.

    Raises like ``docker.pull``.
    """
    images.log(f"pulling {name}")
    docker.pull(name, images.platform)
    found = docker.image(name)
    labels = found.labels if found else {}
    version, key = labels.get(VERSION), labels.get(LABEL_KEY)
    if version and key:
        docker.tag(name, f"{images.repository}:{version}-{key[:12]}")
    docker.tag(name, images.tagged)
