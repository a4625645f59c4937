"""A signed statement that an image of a registry was built again, with the same digest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder import __version__
from builder.errors import WorldError
from builder.pipeline.session import BuildSession
from builder.publish.referrers import attach
from builder.publish.remote_image import images_in
from builder.publish.reproductions import REPRODUCTION, SIGNATURE, TEXT, ReproductionStatement
from builder.publish.tag_history import no_image
from builder.publish.verdicts import require_signing
from builder.reproduce.published import place_of
from builder.reproduce.reproduction import ReproducedImages
from builder.tools.docker import buildx
from builder.tools.files import workspace
from builder.tools.registry import cosign
from builder.tools.registry.client import Manifest, Repository


@dataclass(frozen=True, slots=True)
class Attestation:
    """An image of a registry, to which a statement can be attached."""

    session: BuildSession
    repository: Repository
    manifest: Manifest
    """An image's, or an index's: then the statement is attached to its image that was built."""
    work: Path
    """A directory for the files of cosign."""

    def attach(self, result: ReproducedImages) -> str:
        """Attach the statement of a result; the digest that the image has there.

        Raises ``WorldError`` where the registry has another image, or signing fails;
        ``RegistryError``, ``FetchError``.
        """
        (image,) = result.reproductions
        images = [each.manifest for each in images_in(self.repository, self.manifest)]
        found = next((each for each in images if each.digest == image.found), None)
        if found is None:
            there = " and ".join(each.digest for each in images)
            raise WorldError(
                f"the statement is not attached: {self.repository.name} has another image",
                f"it has {there}; the build has {image.found}",
                "reproduce the image of the registry: `builder reproduce REGISTRY/REPOSITORY:TAG`",
            )
        settings = self.session.settings
        statement = ReproductionStatement(
            digest=found.digest,
            recipe=image.name,
            architecture=buildx.builder(settings.buildx).architecture,
            version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        text = statement.model_dump_json()
        signature = cosign.sign_text(text, settings.cosign_key, self.work / "cosign")
        annotations = {TEXT: text, SIGNATURE: signature}
        attach(self.repository, found, REPRODUCTION, annotations)
        return found.digest


@contextmanager
def attestation(session: BuildSession, target: str) -> Iterator[Attestation]:
    """A place for a statement on an image: its registry answers, and there is a key.

    Raises ``UsageError`` where ``target`` is no image of a registry, ``WorldError`` without a key,
    ``RegistryError``, ``FetchError``.
    """
    with workspace(session.settings.cache_dir) as work:
        if not session.settings.cosign_key:
            raise WorldError(
                "there is no key that signs the statement",
                hint="set cosign_key (BUILDER_COSIGN_KEY) to a key of cosign",
            )
        require_signing(session.settings, work)
        repository, tag = place_of(session, target)
        manifest = repository.manifest(tag)
        if manifest is None:
            raise no_image(repository, tag)
        yield Attestation(session, repository, manifest, work)
