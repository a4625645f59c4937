"""What a plan deletes, over random repositories: nothing that is in use, now or after rollbacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from builder.publish.prune import PrunePlan, SurveyedImage, plan_prune
from builder.publish.registry import MANIFESTS, Manifest
from builder.publish.tags import Move, Note, rollback_targets

TAGS = ("nightly", "latest", "stable")
DAY = datetime(2026, 11, 1, tzinfo=UTC)


def manifest(number: int, listed: Sequence[Manifest] = ()) -> Manifest:
    body = {"number": number, "manifests": [{"digest": each.digest} for each in listed]}
    return Manifest(json.dumps(body).encode(), MANIFESTS[0])


@dataclass
class World:
    """A repository: its images, where tags point, and the moves that led there, newest first."""

    manifests: list[Manifest]
    parts: dict[int, Manifest]
    """An image that an index lists, by the number of the index."""
    ages: list[int | None]
    extra: list[tuple[str, ...]]
    signed: list[bool]
    moves: dict[str, list[Move]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def move(self, tag: str, number: int, *, back: bool) -> None:
        past = self.moves.setdefault(tag, [])
        digest = self.manifests[number].digest
        before = past[0].digest if past else ""
        if digest != before:
            made = Move(
                tag, digest, before, "2026", "", "rollback" if back else "", number=len(past) + 1
            )
            self.notes.append(Note(made, tuple(past)))
            past.insert(0, made)

    def rolled_back(self, tag: str) -> str:
        """Move a tag back, as `builder tag rollback` does; where it goes to."""
        target = next(iter(rollback_targets(self.moves[tag])), "")
        if target:
            digests = [each.digest for each in self.manifests]
            self.move(tag, digests.index(target), back=True)
        return target

    @property
    def images(self) -> list[SurveyedImage]:
        found = []
        for number, made in enumerate(self.manifests):
            named = [tag for tag, past in self.moves.items() if past[0].digest == made.digest]
            part = self.parts.get(number)
            age = self.ages[number]
            found.append(
                SurveyedImage(
                    made.digest,
                    tuple(
                        sorted((f"nightly-b{number}-{number:012x}", *named, *self.extra[number]))
                    ),
                    DAY + timedelta(days=age) if age is not None else None,
                    {made.digest: made} | ({part.digest: part} if part else {}),
                    {},
                    (),
                    self.signed[number],
                    tuple(note for note in self.notes if note.move.digest == made.digest),
                )
            )
        return found


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 8))
    parts: dict[int, Manifest] = {}
    manifests: list[Manifest] = []
    for number in range(count):
        if manifests and draw(st.integers(0, 4)) == 0:
            parts[number] = draw(st.sampled_from(manifests))
        manifests.append(manifest(number, [parts[number]] if number in parts else []))
    each = {"min_size": count, "max_size": count}
    world = World(
        manifests,
        parts,
        draw(st.lists(st.none() | st.integers(0, 9), **each)),
        draw(st.lists(st.sampled_from([(), (), ("0.1",), ("edge-1",)]), **each)),
        draw(st.lists(st.integers(0, 4).map(lambda n: n == 0), **each)),
    )
    step = st.tuples(st.sampled_from(TAGS), st.integers(0, count - 1), st.booleans())
    for tag, number, rolls in draw(st.lists(step, max_size=12)):
        if not (rolls and tag in world.moves and world.rolled_back(tag)):
            world.move(tag, number, back=False)
    return world


def deleted(found: PrunePlan) -> set[str]:
    return {image.digest for image in found.deletions}


@given(worlds(), st.integers(1, 4), st.booleans())
def test_nothing_that_a_tag_points_to_is_deleted(world: World, keep: int, signed: bool) -> None:
    found = plan_prune(world.images, "nightly", keep, signed=signed)
    gone = deleted(found)
    for tag, past in world.moves.items():
        assert past[0].digest not in gone, tag
    for number, image in enumerate(world.images):
        if world.extra[number] or world.ages[number] is None or (image.signed and not signed):
            listed = image.digest in {part.digest for part in world.parts.values()}
            assert image.digest not in gone or listed
    aged = [image for image in world.images if image.created and image.digest in gone]
    for image in aged:
        newer = [each for each in world.images if each.created and each.created >= image.created]
        assert len(newer) > keep or image.digest in {part.digest for part in world.parts.values()}


@given(worlds(), st.integers(1, 4))
def test_as_many_rollbacks_as_nightlies_are_possible_afterwards(world: World, keep: int) -> None:
    found = plan_prune(world.images, "nightly", keep, signed=True)
    gone = deleted(found)
    for tag in [*world.moves]:
        for _ in range(keep):
            target = world.rolled_back(tag)
            assert target not in gone, tag


@given(worlds(), st.integers(1, 4))
def test_what_stays_is_whole(world: World, keep: int) -> None:
    found = plan_prune(world.images, "nightly", keep, signed=True)
    gone = deleted(found)
    for image in world.images:
        if image.digest not in gone:
            assert gone.isdisjoint(image.manifests), "an index stays, and an image of it goes"
            assert {*image.names} <= found.kept
    assert gone.isdisjoint(found.kept)


@given(worlds(), st.integers(1, 4))
def test_more_to_keep_deletes_no_more(world: World, keep: int) -> None:
    fewer = deleted(plan_prune(world.images, "nightly", keep + 1, signed=True))
    assert fewer <= deleted(plan_prune(world.images, "nightly", keep, signed=True))
