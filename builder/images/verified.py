"""Which image of a registry counts as verified.

Any user with push access can write the label ``builder.key``. An image that is found by its key
counts only where this machine's record has a good verdict on exactly that digest, or where a
verdict that is attached to it is signed by a trusted key. Both hold for today's contract alone. Any
other image is pulled and smoke-tested here, or refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuilderError, RegistryError, SmokeError, UntriedError
from builder.families.layout import LABEL_KEY
from builder.images.check import check_pulled, contract_of, require_good
from builder.images.session import BuildSession
from builder.plan.rendered import EngineImage
from builder.publish.referrers import referrers
from builder.publish.remote_image import pulled, remote_image
from builder.publish.verdicts import attached_verdicts, trust_of
from builder.records import record
from builder.records.record import Record
from builder.tools.registry.client import Repository


@dataclass(frozen=True, slots=True)
class Verified:
    """An image of a registry that counts; ``record`` is this machine's record of it; None: a
    trusted key signed the verdict."""

    digest: str
    record: Record | None


def find_published(
    session: BuildSession, image: EngineImage, repository: Repository, work: Path
) -> Verified | None:
    """The image of this key that a registry has under its immutable tag, or None.

    An image confirmed neither by a record nor by a signed verdict is pulled and
    smoke-tested.  Raises ``RegistryError`` where an index or another image stands under that tag,
    ``SmokeError`` or ``UntriedError`` where the image is refused, ``FetchError``.
    """
    immutable = image.immutable_tag
    digest = repository.head_digest(immutable)
    if not digest:
        return None
    kept = _recorded(session, image, digest)
    if kept is not None or _is_signed(session, image, repository, digest, work):
        return Verified(digest, kept)
    _require_single(repository, immutable, digest)
    _require_key(repository, immutable, digest, image.key)
    session.log(
        f"{immutable} in the registry has no verdict that counts here: pulling and testing it"
    )
    try:
        kept = _pulled(session, image, f"{repository.name}@{digest}", work)
    except (SmokeError, UntriedError) as error:
        raise _refused(error, repository, immutable, digest) from error
    record.write(session.settings.state_dir, kept, apart=True)
    return Verified(digest, kept)


def _recorded(session: BuildSession, image: EngineImage, digest: str) -> Record | None:
    """This machine's record of a good verdict on exactly that image, for today's contract."""
    contract = contract_of(image)
    for apart in ("", digest):
        kept = record.read(session.settings.state_dir, image.plan.name, image.key, apart)
        if kept and kept.verdict.good and (kept.digest, kept.contract) == (digest, contract):
            return kept
    return None


def _is_signed(
    session: BuildSession, image: EngineImage, repository: Repository, digest: str, work: Path
) -> bool:
    trust = trust_of(session.settings, work)
    if not (trust.signing or trust.trusted):
        return False
    contract = contract_of(image)
    entries = referrers(repository, digest)
    return any(map(trust.is_trusted, attached_verdicts(entries, digest, image.key, contract)))


def _require_single(repository: Repository, immutable: str, digest: str) -> None:
    """Raise ``RegistryError`` where an index stands under the immutable tag of one image: which
    image of an index is run depends on the machine."""
    there = repository.manifest(digest)
    if there is not None and there.body.manifests is not None:
        raise RegistryError(
            f"{repository.name}:{immutable} is an index of images",
            f"it is {digest}; builder gives that tag to the image of one platform",
            "nothing was pulled, tagged or signed. Delete that tag in the registry, or replace it: "
            "`builder push --replace --reason TEXT`",
        )


def _require_key(repository: Repository, immutable: str, digest: str, key: str) -> None:
    """Raise ``RegistryError`` where an image does not have the label of that key."""
    there = remote_image(repository, digest)
    found = there.labels.get(LABEL_KEY, "") if there else ""
    if found != key:
        raise RegistryError(
            f"{repository.name}:{immutable} has a different build key",
            f"its label {LABEL_KEY} is {found or 'absent'}; the recipe's key is {key}",
            "delete that tag in the registry, or replace it: "
            "`builder push --replace --reason TEXT`",
        )


def _pulled(session: BuildSession, image: EngineImage, reference: str, work: Path) -> Record:
    """Have the engine pull an image, and smoke-test it.

    Raises ``SmokeError`` or ``UntriedError`` where a check fails or could not be run.
    """
    folder = work / "pulled"
    folder.mkdir()
    with pulled(reference, image.platform):
        kept = check_pulled(image, reference, session.options, session.reporter, folder)
    require_good(kept, reference)
    return kept


def _refused(
    error: BuilderError, repository: Repository, immutable: str, digest: str
) -> BuilderError:
    return type(error)(
        f"{repository.name}:{immutable} is refused: its smoke test did not pass",
        f"it is {digest}\n{error.what}\n{error.why}",
        "no trusted key signed a verdict on it. Nothing was tagged or signed. Delete that tag in "
        "the registry, or replace it with your own image: `builder push --replace --reason TEXT`",
    )
