"""A signed statement that an image of a registry was built again, with the same digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from builder import __version__
from builder.build.published import place_of
from builder.build.reproduce import ReproducedImages
from builder.build.session import BuildSession
from builder.core.errors import WorldError
from builder.core.files import workspace
from builder.docker import buildx
from builder.publish import cosign
from builder.publish.referrers import attach
from builder.publish.remote_image import images_in
from builder.publish.reproductions import REPRODUCTION, SIGNATURE, TEXT, ReproductionStatement
from builder.publish.tag_history import no_image
from builder.publish.verdicts import require_signing


@contextmanager
def attestation(session: BuildSession, target: str) -> Iterator[Callable[[ReproducedImages], str]]:
    """What attaches the statement of a result to an image of a registry; it gives the digest there.

    An index gets it at its image that was built.  Before the build it is known that the registry
    answers, and that there is a key.  Raises ``UsageError`` where ``target`` is no image of a
    registry, ``WorldError`` without a key; then ``WorldError`` where the registry has another
    image, or signing fails; ``RegistryError``, ``FetchError``.
    """
    settings = session.settings
    with workspace(settings.cache_dir) as work:
        if not settings.cosign_key:
            raise WorldError(
                "there is no key that signs the statement",
                hint="set cosign_key (BUILDER_COSIGN_KEY) to a key of cosign",
            )
        require_signing(settings, work)
        repository, tag = place_of(session, target)
        manifest = repository.manifest(tag)
        if manifest is None:
            raise no_image(repository, tag)

        def attached(result: ReproducedImages) -> str:
            (image,) = result.reproductions
            images = [each.manifest for each in images_in(repository, manifest)]
            found = next((each for each in images if each.digest == image.found), None)
            if found is None:
                there = " and ".join(each.digest for each in images)
                raise WorldError(
                    f"the statement is not attached: {repository.name} has another image",
                    f"it has {there}; the build has {image.found}",
                    "reproduce the image of the registry: "
                    "`builder reproduce REGISTRY/REPOSITORY:TAG`",
                )
            statement = ReproductionStatement(
                digest=found.digest,
                recipe=image.name,
                architecture=buildx.builder(settings.buildx).architecture,
                version=__version__,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            text = statement.model_dump_json()
            signature = cosign.sign_text(text, settings.cosign_key, work / "cosign")
            attach(repository, found, REPRODUCTION, {TEXT: text, SIGNATURE: signature})
            return found.digest

        yield attached
