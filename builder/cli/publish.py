"""Commands that give tags on a registry, and tell how they came to be."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    EVERYDAY,
    CatalogOption,
    ChannelTag,
    JsonOption,
    RecipeName,
    app,
    build_session,
    catalog_at,
    print_json,
    reference_option,
    repository_of,
    tag_group,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from builder.images.session import BuildSession
    from builder.publish.tag_history import Move
    from builder.tools.registry.client import Repository


def _said(reason: str | None) -> str | None:
    if reason is not None and not reason.strip():
        raise typer.BadParameter("the reason is empty: write why the tag is moved")
    return reason


Reason = Annotated[
    str,
    typer.Option(
        metavar="TEXT", callback=_said, help="Why; attached to the image that the tag is moved to."
    ),
]


@app.command(rich_help_panel=EVERYDAY)
def push(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Take immutable tags from another image. Requires --reason."
        ),
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            callback=_said,
            help="With --replace: why; attached to the image that gets the tags.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only check the namespace, the login and the signing key: push nothing."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Push the verified image of a recipe to its registry, then give it its tags.

    Exactly the digest that was verified: with its verdict, its bills of materials, its provenance,
    its recipe and, where BUILDER_COSIGN_KEY is set, a signature; then under its immutable tag,
    compared with what the registry then has, and only then under the others, without a second
    upload. An image that the registry has under the same key stays, where this machine verified it
    or its verdict is signed by that key or one of BUILDER_TRUSTED_KEYS; any other is pulled and
    smoke-tested. A version that is there with other contents is refused; tags that the recipe calls
    moving are moved, but not its channel, which only nights move. The login is Docker's, or
    DOCKERHUB_USERNAME and DOCKERHUB_TOKEN. Pushing again continues a push that broke. The exit code
    is 4 when there is no verified image, 5 when the registry does not answer, 7 when the registry
    has an image of that key that fails its smoke test, 9 while another run moves or deletes tags
    here, 12 when the registry refuses or a tag is taken; the message lists the tags that were
    given before that.
    """
    from builder.cli import console
    from builder.images.lookup import verified
    from builder.images.release import release
    from builder.nightly.channels import tag_of
    from builder.publish import push as pushing
    from builder.tools.files import workspace

    if replace != (reason is not None):
        raise typer.BadParameter("--replace and --reason are only valid together")
    session = build_session(catalog)
    if check:
        _check(recipe, session, as_json=as_json)
        return
    image, record = verified(session, recipe)
    entry = session.catalog.engine(recipe)
    tags = pushing.tags_of(record, entry.recipe)
    files = {entry.file.name: entry.text}
    with _alone(), workspace(session.settings.cache_dir) as work:
        done = release(session, image, record, tags, work, files, reason)
    if as_json:
        print_json(asdict(done))
        return
    console.line(f"pushed   {done.repository}@{done.digest}  ({done.uploaded} blobs uploaded)")
    console.line(f"tags     {', '.join(done.tags)}")
    channel = tag_of(entry)
    if channel:
        console.line(f"channel  {channel} is moved by `builder nightly {recipe}` alone")
    for tag, before in done.replaced.items():
        console.line(f"replaced {tag}, which was {before}")


def _check(recipe: str, session: BuildSession, *, as_json: bool) -> None:
    """See whether an image of a recipe could be pushed, before it is built."""
    from builder.cli import console
    from builder.publish.verdicts import require_signing
    from builder.tools.files import workspace

    repository = repository_of(session.catalog, recipe)
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    repository.require_push()
    if as_json:
        print_json({"repository": repository.name, "signed": bool(session.settings.cosign_key)})
    else:
        signed = "signed" if session.settings.cosign_key else "not signed"
        console.line(f"{repository.name} takes a push; images are {signed}")


@tag_group.command()
def promote(
    recipe: RecipeName,
    tag: ChannelTag,
    reason: Reason,
    to: Annotated[
        str | None,
        reference_option("--to", "Default: the recipe's own immutable tag."),
    ] = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a tag to an image that the registry has already, by digest.

    Without --to the recipe's image need not be in the engine: the registry is asked for its key,
    and the image counts as it does for `builder push`. Of an image that --to names only the label
    builder.key is checked, which anybody who may push can write. The exit code is 7 when that image
    is refused, 9 while another run moves tags here or `builder tag prune` deletes, and 12 when the
    registry does not have the image; then the tag stays where it was.
    """
    from builder.publish import push as pushing

    repository = _repository(recipe, catalog, moving=tag)
    with _alone():
        _tell_what_is_checked(to)
        wanted = to or _found_by_key(recipe, catalog, repository)
        done = pushing.move(repository, tag, wanted, reason)
    _tell(done, as_json)


def _found_by_key(recipe: str, catalog: CatalogOption, repository: Repository) -> str:
    """The digest of the recipe's verified image in the registry, or its tag where there is none."""
    from builder.images.verified import find_published
    from builder.tools.files import workspace

    session = build_session(catalog)
    image = session.resolve(recipe)
    with workspace(session.settings.cache_dir) as work:
        found = find_published(session, image, repository, work)
    return found.digest if found else image.immutable_tag


@tag_group.command()
def rollback(
    recipe: RecipeName,
    tag: ChannelTag,
    reason: Reason,
    to: Annotated[
        str | None,
        reference_option("--to", "Default: what the tag was before its last move."),
    ] = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a tag back to what it was, by digest; a second time to what it was before that.

    A channel that was rolled back stays there until a night has a new image. Only the label
    builder.key of the image is checked: anybody who may push can write it. The exit code is 9 while
    `builder tag prune` deletes here, and 12 when what it was is not known, or gone; then the tag
    stays where it is.
    """
    from builder.publish import push as pushing
    from builder.publish.tag_history import previous

    repository = _repository(recipe, catalog, moving=tag)
    with _alone():
        _tell_what_is_checked(to)
        wanted = to or previous(repository, tag)
        done = pushing.move(repository, tag, wanted, reason, "rollback")
    _tell(done, as_json)


@tag_group.command()
def history(
    recipe: RecipeName,
    tag: ChannelTag,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how a tag came to where it is: each move with its reason, newest first.

    The moves are attached to the images: they go back as far as the registry still has those. Each
    digest can be given to `--to`. A version's tag has no move until it is replaced. The exit code
    is 12 when there is no such tag.
    """
    from builder.cli import console
    from builder.publish.tag_history import moves, require_tag

    repository = _repository(recipe, catalog)
    found = moves(repository, tag)
    there = found[0].digest if found else require_tag(repository, tag)
    if as_json:
        print_json([asdict(move) for move in found])
        return
    rows = [(move.created[:16], move.version, move.digest, move.reason) for move in found]
    console.table(("when", "version", "digest", "why"), rows)
    if not found:
        console.line(f"{tag} is {there}; no move of it is known")
    elif found[-1].before:
        console.line(f"before that it was {found[-1].before}")


def _repository(recipe: str, catalog: CatalogOption, *, moving: str = "") -> Repository:
    """The repository of a recipe's images, in which a tag may be moved."""
    from builder.publish import push as pushing

    recipes = catalog_at(catalog)
    found = recipes.engine(recipe).recipe
    repository = repository_of(recipes, recipe)
    if moving:
        known = [entry.recipe for entry in recipes.engines.values() if entry.recipe]
        pushing.require_moving(known, repository, found.image.repository, moving)
    return repository


def _alone() -> AbstractContextManager[None]:
    """Nothing else gives a tag here meanwhile, or deletes what it is moved to."""
    from builder import settings
    from builder.publish.push import TAGS
    from builder.tools.files import named_lock

    chosen = settings.load()
    chosen.require_directories()
    return named_lock(chosen.cache_dir, TAGS)


def _tell_what_is_checked(to: str | None) -> None:
    """An image that somebody names is neither smoke-tested nor looked up by its key."""
    from builder.cli import console

    if to is not None:
        console.log(
            f"of {to} only the label builder.key is checked, which anybody who may push can write: "
            "its verdict is not checked"
        )


def _tell(move: Move, as_json: bool) -> None:
    from builder.cli import console

    if as_json:
        print_json(asdict(move))
    elif move.before == move.digest:
        console.line(f"{move.tag} is {move.digest} already")
    else:
        before = f", which was {move.before}" if move.before else ""
        console.line(f"{move.tag} is {move.digest}{before}")
