"""The tags of a push: their present images, the updates that follow, and giving the tags."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.core.errors import BuilderError, RegistryError
from builder.publish.referrers import Attachment
from builder.publish.registry import Manifest, Repository
from builder.publish.remote_image import PlatformImage
from builder.publish.tag_history import By, Move, new_note, notes_in
from builder.publish.tags import Tags, require_points_to
from builder.publish.update_size import Update, require_within, updates_of
from builder.publish.verdicts import Trust

OVER_BUDGET = (
    "`builder compare` shows the layers of two images; to push it all the same: "
    "--over-budget --reason TEXT"
)


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

    @property
    def others(self) -> dict[str, str]:
        """The tags that point to another image, with its digest."""
        return {tag: there for tag, there in self.before.items() if there not in {"", self.digest}}

    @property
    def replaced(self) -> dict[str, str]:
        """Tags that do not move, unless there is a reason."""
        return {tag: was for tag, was in self.others.items() if tag not in self.tags.moving}

    @property
    def followed(self) -> dict[str, list[str]]:
        """The digests that tags point to now, each with its tags, but the immutable one."""
        found: dict[str, list[str]] = {}
        for tag, there in self.others.items():
            if tag != self.tags.immutable:
                found.setdefault(there, []).append(tag)
        return found

    def updates(
        self, new: Sequence[PlatformImage], budget: int | None, dropped: Collection[str] = ()
    ) -> dict[str, tuple[Update, ...]]:
        """The updates to the new images, by the digest that tags point to now.

        Raises ``RegistryError`` where one has more than ``budget`` megabytes, or a tag would lose a
        platform that is not in ``dropped``.
        """
        found = {}
        log = self.repository.log
        for was, tags in self.followed.items():
            found[was] = updates_of(self.repository, tags, was, new, log, dropped)
            what = f"{self.name} is not pushed"
            require_within(found[was], budget, log, what, OVER_BUDGET)
        return found

    def notes(
        self,
        entries: Iterable[Mapping[str, Any]],
        reason: str,
        updates: Mapping[str, Sequence[Update]],
        trust: Trust,
    ) -> list[Attachment]:
        """The notes of the moves, to be attached before the tags are given.

        A new immutable or version tag needs none.  ``entries`` are the referrers of the image.
        Raises ``RegistryError``, ``FetchError``; ``WorldError`` where a note cannot be signed.
        """
        noted = [*notes_in(entries, self.digest, self.repository.path, trust)]
        version = self.tags.immutable.rpartition("-")[0]
        found = []
        for tag, was in self.before.items():
            if was != self.digest and (was or tag in self.tags.moving):
                by: By = "replacement" if tag in self.replaced else ""
                wanted = Move(tag, self.digest, was, "", reason, by, version=version)
                taken = [note for note in noted if note.move.tag == tag]
                update = updates.get(was, ())
                found.append(new_note(self.repository, wanted, update, trust, taken)[1])
        return found

    def give(self, read: Callable[[], Manifest]) -> tuple[str, ...]:
        """Give the tags, the immutable one first; they are returned.

        ``read`` gives the manifest; it is not called where all tags point to it.  Raises
        ``RegistryError``, also where somebody else has moved a tag meanwhile; ``FetchError``.
        """
        given: list[str] = []
        try:
            for tag, was in self.before.items():
                if was != self.digest:
                    self.repository.put_tag(tag, read(), was)
                    immutable = tag == self.tags.immutable
                    require_points_to(self.repository, tag, self.digest, by_content=immutable)
                given.append(tag)
        except BuilderError as error:
            if given:
                error.why += f"\nthese tags were already pushed: {', '.join(given)}"
            raise
        return tuple(given)


def push_tags(
    repository: Repository,
    name: str,
    tags: Tags,
    digest: str,
    known: Collection[str],
    *,
    replace: bool = False,
    there: str = "",
) -> PushTags:
    """Look up the present images of the tags of a push; absent tags are not asked for.

    ``known`` are the tags of the repository, ``there`` the known digest of the immutable tag.
    Raises ``RegistryError``, also where immutable or version tags are taken and ``replace`` does
    not allow it; ``FetchError``; ``WorldError`` where this machine's clock is wrong.
    """
    before = {}
    for tag in (tags.immutable, *tags.versions, *tags.moving):
        if tag == tags.immutable and there:
            before[tag] = there
        else:
            before[tag] = repository.head_digest(tag) if tag in known else ""
    repository.require_clock()
    order = PushTags(repository, name, tags, digest, before)
    if order.replaced and not replace:
        taken = (f"{repository.name}:{tag} is {there}" for tag, there in order.replaced.items())
        raise RegistryError(
            f"{name} is not pushed: its tags are taken",
            "\n".join([*taken, f"the image to push is {digest}"]),
            "give the recipe another version, or replace the image: --replace --reason TEXT",
        )
    return order
