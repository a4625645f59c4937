"""``builder push``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import CatalogOption, DropOption, JsonOption, RecipeName, reason_option
from builder.cli.tag import only_run_with_tags
from builder.cli.terminal import line, log, print_json
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.build import BuildSession
    from builder.publish.push import Allowed, Pushed


def push(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    platform: Annotated[
        Platform | None,
        typer.Option(
            "--platform",
            metavar="OS/ARCHITECTURE",
            help="Push only the image for this platform, under its immutable tag. Default: the "
            "images of all platforms and their index.",
        ),
    ] = None,
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
    drop_platform: DropOption = None,
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
    the registry's image. The other tags follow without a second upload.

    If the registry already has an image with the same build key, that image is kept. This machine
    must have built the same digest, or the image's verdict must be signed by BUILDER_COSIGN_KEY or
    one of BUILDER_TRUSTED_KEYS; otherwise nothing is pushed (see --replace). An image that this
    machine did not build is not pushed either.

    For a recipe with several platforms, each image is pushed under its immutable tag, then an index
    of all images, which gets the other tags. If a platform has no verified image, neither here nor
    in the registry, nothing is pushed: use --platform on the machine that has the image.

    A version tag that points to another image is an error (see --replace). Moving tags are moved,
    except channels, which only `builder nightly` moves. No tag loses a platform without
    --drop-platform. First, push shows the download of the
    update: the layers that the tag's current image lacks. If it exceeds the recipe's
    [budget] update, nothing is uploaded (see --over-budget).

    The login is Docker's own, or DOCKERHUB_USERNAME and DOCKERHUB_TOKEN. A push that was
    interrupted continues when it is started again. The exit code is 4 if there is no verified
    image; 5 if the registry does not answer; 9 if another run on this machine moves or deletes
    tags; and 12 if no namespace is set, the registry refuses the push, a tag is taken, nothing
    vouches for the registry's image, an update exceeds its budget, or a tag would lose a platform.
    The error lists the tags that
    were already pushed.
    """
    from builder.cli.session import build_session
    from builder.core.files import workspace
    from builder.publish.push import Allowed
    from builder.publish.tags import repository_of

    if (replace or over_budget) != (reason is not None):
        raise typer.BadParameter("--reason and --replace or --over-budget are only valid together")
    session = build_session(catalog, platform=platform)
    if check:
        _check(recipe, session, as_json=as_json)
        return
    repository_of(session.catalog, recipe, log)  # without a namespace, a build would not help
    allowed = Allowed(
        replace=reason if replace else None,
        over_budget=reason if over_budget else None,
        dropped=tuple(drop_platform or ()),
    )
    with only_run_with_tags(), workspace(session.settings.cache_dir) as work:
        done = _pushed(session, recipe, allowed, work)
    if as_json:
        print_json(asdict(done))
        return
    line(f"pushed   {done.repository}@{done.digest}  ({done.uploaded} blobs uploaded)")
    for name, digest in done.platforms.items():
        line(f"         {name} is {digest}")
    line(f"tags     {', '.join(done.tags)}")
    for update in done.updates:
        line(f"download {update.text}")
    channel = session.catalog.engine(recipe).recipe.channel
    if channel:
        line(f"channel  {channel} is only moved by `builder nightly {recipe}`")
    for tag, before in done.replaced.items():
        line(f"replaced {tag}, which was {before}")


def _pushed(session: BuildSession, recipe: str, allowed: Allowed, work: Path) -> Pushed:
    from builder.build.lookup import verified
    from builder.publish.push import key_of_index, push_image, push_index
    from builder.publish.tags import Tags, tags_of, tags_of_index

    entry = session.catalog.engine(recipe)
    texts = entry.texts()
    several = len(entry.recipe.platform) > 1
    if several and session.platform is None:
        plans = session.plans(recipe)
        tags = tags_of_index(entry.recipe, key_of_index(plans))
        return push_index(session, plans, tags, texts, work, allowed)
    image, record = verified(session, recipe)
    tags = Tags(image.immutable_tag, (), ()) if several else tags_of(record, entry.recipe)
    return push_image(session, image, record, tags, texts, work, allowed)


def _check(recipe: str, session: BuildSession, *, as_json: bool) -> None:
    from builder.core.files import workspace
    from builder.publish.tags import repository_of
    from builder.publish.verdicts import require_signing

    repository = repository_of(session.catalog, recipe, log)
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    repository.require_push()
    signed = bool(session.settings.cosign_key)
    if as_json:
        print_json({"repository": repository.name, "signed": signed})
    else:
        how = "will be signed" if signed else "will not be signed"
        line(f"{repository.name} accepts pushes; images {how}")
