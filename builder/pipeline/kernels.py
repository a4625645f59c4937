"""The kernel ledger of an image of the engine."""

from __future__ import annotations

from builder.contents import reading
from builder.contents.options import ReadOptions
from builder.errors import UntriedError
from builder.kernels.ledger import Ledger
from builder.kernels.selection import Capability
from builder.pipeline.lookup import located
from builder.pipeline.session import BuildSession
from builder.tools.docker.blobs import blobs_of
from builder.tools.files import workspace


def ledger_of(session: BuildSession, target: str, card: Capability) -> Ledger:
    """Every kernel that a card finds in the image of a recipe, or in any image of the engine.

    The image is read, not run.  Raises ``WorldError`` where there is no such image,
    ``UntriedError`` where it, or the GPU code of a file, cannot be read, or there is none.
    """
    session.settings.require_directories()
    image = located(session, target)
    with workspace(session.settings.cache_dir) as work:
        blobs = blobs_of(image.reference, work, image.digest)
        options, cache = ReadOptions(card=card), session.settings.cache_dir
        contents = reading.read(blobs, work, options, cache)
    libraries = sorted(contents.libraries(), key=lambda library: library.path)
    if not libraries:
        raise UntriedError(
            f"{target} has no GPU code",
            "no library or program in it has a fat binary",
            "an engine that compiles its kernels when it runs has none",
        )
    return Ledger(target, image.digest, card, tuple(libraries))
