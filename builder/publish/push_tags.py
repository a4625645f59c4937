"""The tags of a push: their present images, the updates that follow, and giving the tags."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from builder.errors import BuilderError, RegistryError
from builder.publish.remote_image import PlatformImage
from builder.publish.tag_claims import claims_tag
from builder.publish.tag_history import By, Move, notes_in
from builder.publish.tag_move import Planned, make_move, plan_move
from builder.publish.tags import Tags, require_points_to
from builder.publish.update_size import Update, over_budget, updates_of
from builder.publish.verdicts import Trust
from builder.tools.log import Log
from builder.tools.registry.client import Manifest, Repository


@dataclass(frozen=True, slots=True)
class PushTags:
    """The tags that an image, or an index, is about to get."""

    repository: Repository
    name: str
    """The recipe's."""
    tags: Tags
    digest: str
    """The image or the index that gets the tags."""
    before: Mapping[str, str]
    """The digest that each tag points to, in the order in which they are given; empty: none."""
    known: Collection[str] = ()
    """The tags of the repository."""

    @property
    def others(self) -> dict[str, str]:
        """The tags that point to another image, with its digest."""
        return {tag: there for tag, there in self.before.items() if there not in {"", self.digest}}

    @property
    def replaced(self) -> dict[str, str]:
        """Tags that do not move, unless there is a reason."""
        return {tag: was for tag, was in self.others.items() if tag not in self.tags.moving}

    def require_free(self, replace: str | None) -> None:
        """Raise ``RegistryError`` where tags are taken and there is no reason to replace them."""
        if self.replaced and replace is None:
            name = self.repository.name
            raise RegistryError(
                f"{self.name} is not pushed: its tags are taken",
                "\n".join(f"{name}:{tag} is {there}" for tag, there in self.replaced.items())
                + f"\nthe image to push is {self.digest}",
                "give the recipe another version, or replace the image: --replace --reason TEXT",
            )

    @property
    def followed(self) -> dict[str, list[str]]:
        """The digests that tags point to now, each with its tags, but the immutable one."""
        found: dict[str, list[str]] = {}
        for tag, there in self.others.items():
            if tag != self.tags.immutable:
                found.setdefault(there, []).append(tag)
        return found

    def updates(
        self,
        new: Sequence[PlatformImage],
        budget: int | None,
        log: Log,
        dropped: Collection[str] = (),
    ) -> dict[str, tuple[Update, ...]]:
        """The updates to the new images, by the digest that tags point to now.

        Raises ``RegistryError`` where one has more than ``budget`` megabytes, or a tag would lose a
        platform that is not in ``dropped``.
        """
        found = {}
        for was, tags in self.followed.items():
            found[was] = updates_of(self.repository, tags, was, new, log, dropped)
            for each in found[was]:
                log(f"download: {each.text}")
            if why := over_budget(found[was], budget):
                raise RegistryError(
                    f"{self.name} is not pushed: the update has more than the {budget} MB of "
                    "[budget]",
                    why,
                    "`builder compare` shows the layers of two images; to push it all the same: "
                    "--over-budget --reason TEXT",
                )
        return found

    def plan(
        self,
        entries: Iterable[Mapping[str, Any]],
        reason: str,
        updates: Mapping[str, Sequence[Update]],
        trust: Trust,
    ) -> dict[str, Planned]:
        """Plan the moves of moving tags, and of tags that point to another image.

        A new immutable or version tag needs no note.  ``entries`` are the referrers of the image.
        The notes are to be attached before the tags are given.  Raises ``RegistryError``,
        ``FetchError``; ``WorldError`` where a note cannot be signed.
        """
        notes = [*notes_in(entries, self.digest, self.repository.path, trust)]
        version = self.tags.immutable.rpartition("-")[0]
        found = {}
        for tag, was in self.before.items():
            if was != self.digest and (was or tag in self.tags.moving):
                by: By = "replacement" if tag in self.replaced else ""
                wanted = Move(tag, self.digest, was, "", reason, by, version=version)
                taken = [note for note in notes if note.move.tag == tag]
                new = not was and claims_tag(tag) not in self.known
                found[tag] = plan_move(
                    self.repository, wanted, updates.get(was, ()), trust, taken, new=new
                )
        return found

    def give(
        self, read: Callable[[], Manifest], planned: Mapping[str, Planned], trust: Trust
    ) -> tuple[str, ...]:
        """Give the tags, the immutable one first; they are returned.

        ``read`` gives the manifest; it is not called where all tags point to it.  Raises
        ``RegistryError``, ``TagMovedError``, ``FetchError``.
        """
        given: list[str] = []
        with _naming_given_tags(given):
            for tag, was in self.before.items():
                if tag in planned:
                    make_move(self.repository, planned[tag], read(), trust)
                elif was != self.digest:
                    self.repository.put_tag(tag, read(), was)
                if was != self.digest and (tag not in planned or tag == self.tags.immutable):
                    immutable = tag == self.tags.immutable
                    require_points_to(self.repository, tag, self.digest, by_content=immutable)
                given.append(tag)
        return tuple(given)


def push_tags(
    repository: Repository,
    name: str,
    tags: Tags,
    digest: str,
    known: Collection[str],
    there: str = "",
) -> PushTags:
    """Look up the present images of the tags of a push; absent tags are not asked for.

    ``known`` are the tags of the repository, ``there`` the known digest of the immutable tag.
    Raises ``RegistryError``, ``FetchError``; ``WorldError`` where this machine's clock is wrong.
    """
    before = {}
    for tag in (tags.immutable, *tags.versions, *tags.moving):
        if tag == tags.immutable and there:
            before[tag] = there
        else:
            before[tag] = repository.head_digest(tag) if tag in known else ""
    repository.require_clock()
    return PushTags(repository, name, tags, digest, before, known)


@contextmanager
def _naming_given_tags(given: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except BuilderError as error:
        if not given:
            raise
        error.why += f"\nthese tags were already pushed: {', '.join(given)}"
        raise
