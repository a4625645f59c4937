"""``builder push``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    JsonOption,
    RecipeName,
    build_session,
    reason_option,
    repository_of,
)
from builder.cli.tag import only_run_with_tags
from builder.cli.terminal import line, print_json

if TYPE_CHECKING:
    from builder.images.session import BuildSession


def push(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Take immutable tags and version tags from another image. Requires --reason.",
        ),
    ] = False,
    over_budget: Annotated[
        bool,
        typer.Option(
            "--over-budget",
            help="Move tags although the update exceeds [budget] update. Requires --reason.",
        ),
    ] = False,
    reason: Annotated[
        str | None,
        reason_option(
            "Why tags are replaced, or an update is large; attached to the image that gets them."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only check the namespace, the login and the signing key; push nothing."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Push the verified image of a recipe and its tags to the registry.

    Exactly the verified digest is pushed, with its verdict, SBOMs, provenance and recipe, and with
    a signature if BUILDER_COSIGN_KEY is set. The immutable tag is pushed first and compared with
    what the registry then has. The other tags follow without a second upload.

    If the registry already has an image with the same build key, that image is kept. It must have
    been verified on this machine, or its verdict must be signed by BUILDER_COSIGN_KEY or one of
    BUILDER_TRUSTED_KEYS; otherwise it is pulled and smoke-tested first.

    A version tag that points to another image is an error (see --replace). Moving tags are moved,
    except channels, which only `builder nightly` moves. Before that, the download of an update is
    shown: the layers that the image lacks to which the tag points now. If it exceeds the recipe's
    [budget] update, nothing is uploaded (see --over-budget).

    The login is that of Docker, or DOCKERHUB_USERNAME and DOCKERHUB_TOKEN. A push that was
    interrupted continues when it is started again. The exit code is 4 if there is no verified
    image; 5 if the registry does not answer; 7 if the registry's image fails its smoke test; 9 if
    another run on this machine moves or deletes tags; and 12 if no namespace is set, the
    registry refuses the push, a tag is taken, or an update exceeds its budget. The error lists the
    tags that were already pushed.
    """
    from builder.images.lookup import verified
    from builder.images.release import Release, release
    from builder.nightly.channels import tag_of
    from builder.publish.tags import tags_of
    from builder.tools.files import workspace

    if (replace or over_budget) != (reason is not None):
        raise typer.BadParameter("--reason and --replace or --over-budget are only valid together")
    session = build_session(catalog)
    if check:
        _check(recipe, session, as_json=as_json)
        return
    repository_of(session.catalog, recipe)  # without a namespace, a build would not help
    image, record = verified(session, recipe)
    entry = session.catalog.engine(recipe)
    tags = tags_of(record, entry.recipe)
    wanted = Release(
        image,
        record,
        tags,
        entry.texts(),
        replace=reason if replace else None,
        over_budget=reason if over_budget else None,
    )
    with only_run_with_tags(), workspace(session.settings.cache_dir) as work:
        done = release(session, wanted, work)
    if as_json:
        print_json(asdict(done))
        return
    line(f"pushed   {done.repository}@{done.digest}  ({done.uploaded} blobs uploaded)")
    line(f"tags     {', '.join(done.tags)}")
    for update in done.updates:
        line(f"download {update.text}")
    channel = tag_of(entry)
    if channel:
        line(f"channel  {channel} is only moved by `builder nightly {recipe}`")
    for tag, before in done.replaced.items():
        line(f"replaced {tag}, which was {before}")


def _check(recipe: str, session: BuildSession, *, as_json: bool) -> None:
    """Check whether an image of the recipe could be pushed, before it is built."""
    from builder.publish.verdicts import require_signing
    from builder.tools.files import workspace

    repository = repository_of(session.catalog, recipe)
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    repository.require_push()
    signed = bool(session.settings.cosign_key)
    if as_json:
        print_json({"repository": repository.name, "signed": signed})
    else:
        how = "will be signed" if signed else "will not be signed"
        line(f"{repository.name} accepts pushes; images {how}")
