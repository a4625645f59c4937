"""Which image of a registry counts as verified.

Anybody who may push can write the label ``builder.key``. An image that is found by its key counts
only where this machine's record has a good verdict on exactly that digest, or where a verdict that
is attached to it is signed by a trusted key. Both hold for today's contract alone. Any other image
is pulled and smoke-tested here, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder import pipeline
from builder.errors import BuilderError, RegistryError, SmokeError, UntriedError
from builder.pipeline import Run
from builder.plan.dockerfile import Rendered
from builder.plan.inputs import Plan
from builder.publish.referrers import referrers
from builder.publish.remote_image import served
from builder.publish.verdicts import KEY, attached_verdicts, trust_of
from builder.records import record
from builder.records.record import Record
from builder.tools.docker import engine as docker
from builder.tools.registry.client import Repository

PLATFORM = "linux/amd64"


@dataclass(frozen=True, slots=True)
class Verified:
    """An image of a registry that counts; ``record`` is this machine's record of it; None: a
    trusted key signed the verdict."""

    digest: str
    record: Record | None


def find_verified(
    run: Run, rendered: Rendered, repository: Repository, work: Path
) -> Verified | None:
    """The image of this key that a registry has under its immutable tag, or None.

    An image that neither this machine's record nor a signed verdict speaks for is pulled and
    smoke-tested.  Raises ``RegistryError`` where an index or another image stands under that tag,
    ``SmokeError`` or ``UntriedError`` where the image is refused, ``FetchError``.
    """
    own = pipeline.own_tag(run, rendered)
    digest = repository.head_digest(own)
    if not digest:
        return None
    kept = _recorded(run, rendered, digest)
    if kept is not None or _is_signed(run, rendered, repository, digest, work):
        return Verified(digest, kept)
    _require_single(repository, own, digest)
    _require_key(repository, own, digest, rendered.key)
    run.log(f"{own} in the registry has no verdict that counts here: it is pulled and smoke-tested")
    try:
        kept = _pulled(run, rendered, f"{repository.name}@{digest}", work)
    except (SmokeError, UntriedError) as error:
        raise _refused(error, repository, own, digest) from error
    record.write(run.settings.state_dir, kept, apart=True)
    return Verified(digest, kept)


def _recorded(run: Run, rendered: Rendered, digest: str) -> Record | None:
    """This machine's record of a good verdict on exactly that image, for today's contract."""
    assert isinstance(rendered.plan, Plan)
    contract = pipeline.contract_of(rendered.plan.recipe)
    for apart in ("", digest):
        kept = record.read(run.settings.state_dir, rendered.plan.name, rendered.key, apart)
        if kept and kept.verdict.good and (kept.digest, kept.contract) == (digest, contract):
            return kept
    return None


def _is_signed(
    run: Run, rendered: Rendered, repository: Repository, digest: str, work: Path
) -> bool:
    assert isinstance(rendered.plan, Plan)
    trust = trust_of(run.settings, work)
    if not (trust.signing or trust.trusted):
        return False
    contract = pipeline.contract_of(rendered.plan.recipe)
    entries = referrers(repository, digest)
    return any(map(trust.counts, attached_verdicts(entries, digest, rendered.key, contract)))


def _require_single(repository: Repository, own: str, digest: str) -> None:
    """Raise ``RegistryError`` where an image is an index: builder pushes single images only, and
    which image of an index is run depends on the machine."""
    there = repository.manifest(digest)
    if there is not None and there.body.manifests is not None:
        raise RegistryError(
            f"{repository.name}:{own} is an index of images, which builder never pushes",
            f"it is {digest}",
            "nothing was pulled, tagged or signed. Delete that tag in the registry, or replace it: "
            "`builder push --replace --reason TEXT`",
        )


def _require_key(repository: Repository, own: str, digest: str, key: str) -> None:
    """Raise ``RegistryError`` where an image does not even claim to be of that key."""
    there = served(repository, digest)
    told = there.labels.get(KEY, "") if there else ""
    if told != key:
        raise RegistryError(
            f"{repository.name}:{own} has a different build key",
            f"its label {KEY} is {told or 'absent'}; the recipe's key is {key}",
            "delete that tag in the registry, or replace it: "
            "`builder push --replace --reason TEXT`",
        )


def _pulled(run: Run, rendered: Rendered, reference: str, work: Path) -> Record:
    """Have the engine pull an image, and smoke-test it.

    Raises ``SmokeError`` or ``UntriedError`` where a check fails or could not be tried.
    """
    folder = work / "pulled"
    folder.mkdir()
    with in_engine(reference):
        kept = pipeline.check_pulled(run, rendered, reference, folder)
    if not kept.verdict.good:
        raise pipeline.smoke_error(rendered.plan.name, reference, kept.verdict)
    return kept


@contextmanager
def in_engine(reference: str) -> Iterator[None]:
    """The engine has an image of a registry meanwhile; it is removed again where it was not there.

    Raises ``FetchError`` where it cannot be pulled.
    """
    was_there = docker.image(reference) is not None
    if not was_there:
        docker.pull(reference, PLATFORM)
    try:
        yield
    finally:
        if not was_there:
            docker.untag(reference)


def _refused(error: BuilderError, repository: Repository, own: str, digest: str) -> BuilderError:
    return type(error)(
        f"{repository.name}:{own} is refused: its smoke test did not pass",
        f"it is {digest}\n{error.what}\n{error.why}",
        "no trusted key signed a verdict on it. Nothing was tagged or signed. Delete that tag in "
        "the registry, or replace it with your own image: `builder push --replace --reason TEXT`",
    )
