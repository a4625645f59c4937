"""The names of an engine's image in the engine, and the labels of a build."""

from __future__ import annotations

from collections.abc import Collection

from builder.families.layout import BASE_DIGEST, BASE_NAME, LABEL_KEY
from builder.plan.plan import Plan
from builder.tools.docker import engine as docker


def find_image(plan: Plan) -> docker.Image | None:
    """The image of that key in the engine under its immutable tag, which follows a good verdict."""
    return _of_key(plan, plan.references[0])


def find_candidate(plan: Plan) -> docker.Image | None:
    """The image of that key in the engine that a stopped run left without a verdict."""
    return _of_key(plan, plan.candidate)


def _of_key(plan: Plan, reference: str) -> docker.Image | None:
    found = docker.image(reference)
    return found if found and found.labels.get(LABEL_KEY) == plan.key else None


def ensure_tags(plan: Plan, source: str, names: Collection[str] = ()) -> None:
    """Point every name of an image to the image that the name ``source`` has; the name of a
    candidate goes.  ``names``: what this image is named already."""
    for reference in plan.references:
        if reference not in names:
            docker.tag(source, reference)
    if source == plan.candidate:
        docker.untag(source)


def build_labels(plan: Plan, base: docker.Image | None) -> dict[str, str]:
    """The labels of a new image but its date; ``base`` is the image that it extends."""
    extends = {BASE_NAME: base.reference, BASE_DIGEST: base.digest} if base else {}
    return {**plan.labels, **extends}
