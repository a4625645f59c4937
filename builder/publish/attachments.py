"""The attachments of an image in a registry: bills of materials, provenance, recipe, and PTX."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from builder.build import ccache
from builder.build.record import Record
from builder.core.errors import RegistryError
from builder.docker import engine as docker
from builder.plan.plan import Plan
from builder.publish import spdx
from builder.publish.referrers import AttachedFile, Attachment, files_of, referrers
from builder.publish.registry import Repository
from builder.publish.sbom import installed
from builder.publish.spdx import platform
from builder.publish.tag_history import no_image

NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
RECIPE_FILE = re.compile(rf"(?:{NAME}/)*{NAME}\.toml")
RECIPE = "application/vnd.builder.recipe.v1+toml"
NAMES = {spdx.SPDX: "bom.spdx.json", spdx.PROVENANCE: "slsa.json"}


def documents(plan: Plan, record: Record, work: Path) -> dict[str, str]:
    """The bill of materials and the provenance of an image of the engine, by media type.

    ``work`` is an empty directory.  Raises ``UntriedError`` where the engine does not give a file
    of the image.
    """
    packages = installed(record.digest, work)
    return spdx.documents_of(plan, record, packages, platform(os.environ))


def missing_attachments(
    plan: Plan,
    record: Record,
    recipe: Mapping[str, str],
    attached: Collection[str],
    state: Path,
    work: Path,
) -> list[Attachment]:
    """The attachments that a verified image lacks; ``attached`` are the types that it has.

    They describe the files of the image: if the engine does not have it, it is pulled first.
    ``recipe`` has the texts of the recipe's files by their paths, ``state`` the PTX of images.
    """
    missing = []
    if not {*NAMES, RECIPE} <= {*attached}:
        texts = tuple(AttachedFile(name, RECIPE, text.encode()) for name, text in recipe.items())
        files: dict[str, tuple[AttachedFile, ...]] = {RECIPE: texts}
        for kind, text in _documents_of(plan, record, work).items():
            files[kind] = (AttachedFile(NAMES[kind], kind, text.encode()),)
        missing += [Attachment(kind, each) for kind, each in files.items() if kind not in attached]
    ptx_file = ccache.path_of(state, plan.name, plan.key)
    if ccache.KIND not in attached and ptx_file.exists():
        file = AttachedFile(ccache.NAME, ccache.KIND, ptx_file.read_bytes())
        missing.append(Attachment(ccache.KIND, (file,)))
    return missing


def _documents_of(plan: Plan, record: Record, work: Path) -> dict[str, str]:
    """The documents of an image of the engine, or of a registry.

    The provenance of the latter names no build platform: it may have been built elsewhere.
    """
    if docker.image(record.digest) is not None:
        return documents(plan, record, work)
    repository = record.references[0].rpartition(":")[0]
    with docker.pulled(f"{repository}@{record.digest}", plan.platform):
        return spdx.documents_of(plan, record, installed(record.digest, work))


def recipe_texts(files: Sequence[AttachedFile]) -> dict[str, str]:
    """The texts of an attached recipe, by their paths below ``recipes/``.

    Raises ``RegistryError`` for a path that is not below ``recipes/``, or a file that is not text.
    """
    found = {}
    for file in files:
        if not RECIPE_FILE.fullmatch(file.name):
            raise RegistryError(
                f"the attached recipe has a file with the path {file.name!r}",
                "a recipe's files are NAME.toml, locks/NAME.toml, bases/NAME.toml and the like",
                "nothing is written",
            )
        try:
            found[file.name] = file.content.decode()
        except UnicodeDecodeError as error:
            raise RegistryError(
                f"{file.name} of the attached recipe is not UTF-8 text", hint="nothing is written"
            ) from error
    return found


def attached(
    repository: Repository, reference: str, kind: str, platform: str | None = None
) -> list[AttachedFile]:
    """The files of one type that are attached to the image of a tag or a digest.

    ``platform`` ("linux/amd64") names an image of an index; None: the first one, for recipes only,
    which all images of an index share.  Raises ``RegistryError`` where there is no such image, or
    no attachment of that type with a file.
    """
    manifest = repository.manifest(reference)
    if manifest is None:
        raise no_image(repository, reference)
    digest = manifest.digest
    entries = manifest.body.manifests or ()
    listed = {each.platform.name: each.digest for each in entries if each.platform}
    if listed:
        name = next(iter(listed)) if kind == RECIPE and platform is None else platform
        if name not in listed:
            what = f"has no image for {platform}" if platform else "is an index of several images"
            raise RegistryError(
                f"{repository.name}:{reference} {what}",
                f"its platforms are {' and '.join(listed)}",
                f"name one of them: --platform {next(iter(listed))}",
            )
        digest = listed[name]
    found = [each for each in referrers(repository, digest) if each.get("artifactType") == kind]
    artifact = repository.manifest(found[-1]["digest"]) if found else None
    files = files_of(repository, artifact) if artifact else []
    if not files:
        raise RegistryError(
            f"{repository.name}:{reference} has no attachment of the type {kind}",
            f"the image is {digest}",
            "builder did not push it, or the attachment was deleted",
        )
    return files
