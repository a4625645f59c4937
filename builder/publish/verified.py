"""Which image of a registry counts: the one rule for tags, attachments and signatures.

Any user with push access can write the label ``builder.key``, and no check shows that a backdoor is
absent.  So an image that is found by its key counts only where this machine built exactly that
digest, or where a trusted key signed a verdict on it.  Both count for the present contract only.
An image for which nothing vouches counts once this machine has built the same: builds are
reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.build import record
from builder.build.build import BuildSession
from builder.build.lookup import contract_of
from builder.build.record import Record
from builder.core.errors import RegistryError, UnvouchedError
from builder.engines.layout import LABEL_KEY
from builder.plan.plan import Plan
from builder.publish.referrers import referrers
from builder.publish.registry import Repository
from builder.publish.remote_image import configuration
from builder.publish.verdicts import trust_of, verdict_signers


@dataclass(frozen=True, slots=True)
class Verified:
    """An image of a registry that counts.

    ``record`` is this machine's record of the build; None: a trusted key signed the verdict."""

    digest: str
    record: Record | None


def find_published(
    session: BuildSession, plan: Plan, repository: Repository, work: Path
) -> Verified | None:
    """The image of this key that a registry has under its immutable tag, or None.

    Raises ``UnvouchedError`` where nothing vouches for it and this machine has not built the image,
    ``RegistryError`` where this machine built another one of that key, or an index or an image of
    another key stands under the tag; ``FetchError``.
    """
    digest = repository.head_digest(plan.immutable_tag)
    if not digest:
        return None
    own = built_here(session, plan)
    if own is not None and own.digest == digest:
        return Verified(digest, own)
    trust = trust_of(session.settings, work)
    if trust.signing or trust.trusted:
        entries = referrers(repository, digest)
        if any(verdict_signers(entries, digest, plan.key, contract_of(plan), trust)):
            return Verified(digest, None)
    _require_image_of_key(repository, plan, digest)
    raise _refused(plan, repository, digest, own)


def built_here(session: BuildSession, plan: Plan) -> Record | None:
    """The record of an image that this machine built, with a good verdict on today's contract."""
    kept = record.read(session.settings.state_dir, plan.name, plan.key)
    if kept is None or not (kept.built_here and kept.verdict.good):
        return None
    return kept if kept.contract == contract_of(plan) else None


def require_built_here(kept: Record) -> None:
    """Raise ``UnvouchedError`` where a record does not say that this machine built the image."""
    if not kept.built_here:
        raise UnvouchedError(
            f"this machine has no record that it built the image of {kept.recipe}",
            f"{kept.references[0]} is {kept.digest}: it was pulled, or its record is from an "
            "earlier version of builder",
            f"nothing was uploaded, tagged or signed. Build it here: "
            f"`builder build {kept.recipe} --rebuild`",
        )


def _require_image_of_key(repository: Repository, plan: Plan, digest: str) -> None:
    """Raise ``RegistryError`` for an index, or an image of another key, under an immutable tag.

    Which image of an index is run depends on the machine.
    """
    there = repository.manifest(digest)
    if there is None:
        return
    name = f"{repository.name}:{plan.immutable_tag}"
    hint = "delete that tag in the registry, or replace it: `builder push --replace --reason TEXT`"
    if there.body.manifests is not None:
        raise RegistryError(
            f"{name} is an index of images",
            f"it is {digest}; builder gives that tag to the image of one platform",
            f"nothing was tagged or signed; {hint}",
        )
    found = configuration(repository, there).labels.get(LABEL_KEY, "")
    if found != plan.key:
        raise RegistryError(
            f"{name} has a different build key",
            f"its label {LABEL_KEY} is {found or 'absent'}; the recipe's key is {plan.key}",
            hint,
        )


def _refused(plan: Plan, repository: Repository, digest: str, own: Record | None) -> RegistryError:
    there, name = f"{repository.name}:{plan.immutable_tag}", plan.name
    unsigned = "no trusted key signed a verdict on it"
    if own is not None:
        return RegistryError(
            f"{there} is not the image that this machine built",
            f"it is {digest}, and {unsigned}; this machine built {own.digest} from the same inputs",
            "nothing was tagged or signed. To see how they differ: `builder compare "
            f"{own.references[0]} {repository.name}@{digest}`, and `builder reproduce {name}`; to "
            "replace it with your own: `builder push --replace --reason TEXT`",
        )
    return UnvouchedError(
        f"nothing vouches for {there}",
        f"it is {digest}; this machine did not build it, and {unsigned}",
        "nothing was tagged or signed. Build it here, and the same digest is the proof: "
        f"`builder build {name} --rebuild --platform {plan.platform}`; or trust the key of the "
        "machine that built it (BUILDER_TRUSTED_KEYS)",
    )
