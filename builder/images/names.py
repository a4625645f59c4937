"""The names of an engine's image in the engine, and the labels of a build."""

from __future__ import annotations

from collections.abc import Collection

from builder.families.layout import LABEL_KEY
from builder.plan.rendered import EngineImage
from builder.publish.remote_image import BASE_DIGEST, BASE_NAME
from builder.tools.docker import engine as docker


def find_image(image: EngineImage) -> docker.Image | None:
    """The image of that key in the engine under its immutable tag, which follows a good verdict."""
    return _of_key(image, image.references[0])


def find_candidate(image: EngineImage) -> docker.Image | None:
    """The image of that key in the engine whose verdict is not known: baked elsewhere, or built by
    a run that was stopped."""
    return _of_key(image, image.candidate)


def _of_key(image: EngineImage, reference: str) -> docker.Image | None:
    found = docker.image(reference)
    return found if found and found.labels.get(LABEL_KEY) == image.key else None


def ensure_tags(image: EngineImage, source: str, names: Collection[str] = ()) -> None:
    """Point every name of an image to the image that the name ``source`` has; that of a candidate
    goes.  ``names`` are those that this image has already."""
    for reference in image.references:
        if reference not in names:
            docker.tag(source, reference)
    if source == image.candidate:
        docker.untag(source)


def build_labels(image: EngineImage, base: docker.Image | None) -> dict[str, str]:
    """The labels of a new image but its date; ``base`` is the image that it extends."""
    extends = {BASE_NAME: base.reference, BASE_DIGEST: base.digest} if base else {}
    return {**image.labels, **extends}
