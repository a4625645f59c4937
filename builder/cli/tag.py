"""``builder tag``: promote, rollback, history, prune."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from builder.cli import options
from builder.cli.options import catalog_at, flag, option, reason_option, reference_option
from builder.cli.terminal import can_ask, line, log, minute, print_json, table
from builder.core import sizes
from builder.core.errors import RegistryError, UsageError
from builder.core.files import named_lock, workspace
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from builder.build.build import BuildSession
    from builder.publish.prune import PrunePlan
    from builder.publish.push import Allowed, Pushed
    from builder.publish.registry import Repository
    from builder.publish.signing import Trust
    from builder.publish.tags import Move

group = typer.Typer(
    no_args_is_help=True, help="Move the tags of published images, and delete old nightlies."
)

Reason = Annotated[
    str,
    reason_option("Why the tag is moved; attached to the image that it is moved to.", default=...),
]


@group.command()
def promote(
    recipe: options.RecipeName,
    tag: options.TagName,
    reason: Reason,
    to: str | None = reference_option(
        "--to", "Image to move to. Default: the image with the recipe's build key."
    ),
    drop_platform: options.DropOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Move a tag to an image that is already in the registry.

    Without --to, it is the image with the recipe's build key. The tag is not moved if the registry
    lacks the image, nothing vouches for it, or the tag would lose a platform.
    """
    from builder.publish import tags

    with _moving(recipe, tag, to) as (repository, trust):
        target, dropped = to or _image_of_key(recipe, repository), drop_platform or ()
        done = tags.move(repository, tag, target, reason, trust=trust, dropped=dropped)
    _print_move(done, as_json)


def _image_of_key(recipe: str, repository: Repository) -> str:
    """The digest of the recipe's verified image, else its immutable tag; or its index's tag."""
    from builder.cli.session import build_session
    from builder.publish.push import find_published, published_index

    session = build_session()
    plans = session.plans(recipe)
    with workspace(session.settings.cache_dir) as work:
        if len(plans) > 1:
            return published_index(session, plans, repository, work)
        found = find_published(session, plans[0], repository, work)
    return found.digest if found else plans[0].immutable_tag


@group.command()
def rollback(
    recipe: options.RecipeName,
    tag: options.TagName,
    reason: Reason,
    to: str | None = reference_option(
        "--to", "Image to move the tag to. Default: the image before the last move."
    ),
    drop_platform: options.DropOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Move a tag back to its previous image; repeat it to go back further.

    A channel that was rolled back stays there until a nightly run has a new image. With
    BUILDER_COSIGN_KEY or BUILDER_TRUSTED_KEYS, only signed notes of moves count.
    """
    from builder.publish import tags
    from builder.publish.tags import require_previous

    with _moving(recipe, tag, to) as (repository, trust):
        target, dropped = to or require_previous(repository, tag, trust), drop_platform or ()
        done = tags.move(repository, tag, target, reason, "rollback", trust=trust, dropped=dropped)
    _print_move(done, as_json)


@group.command()
def history(
    recipe: options.RecipeName,
    tag: options.TagName,
    as_json: options.JsonOption = False,
) -> None:
    """Show all moves of a tag with their reasons, newest first.

    Each digest is valid for `--to`. Moves to images that were deleted are not shown.
    """
    from builder.publish.tags import moves, repository_of, require_tag

    repository = repository_of(catalog_at(), recipe, log)
    with _trust() as trust:
        found = moves(repository, tag, trust)
    digest = found[0].digest if found else require_tag(repository, tag)
    if as_json:
        print_json([asdict(move) for move in found])
        return
    rows = [(minute(of.created), of.version, of.digest, _update(of), of.reason) for of in found]
    table(("when", "version", "digest", "update", "reason"), rows)
    if not found:
        line(f"{tag} is {digest}; it was never moved")
    elif found[-1].before:
        line(f"before that it was {found[-1].before}")


@contextmanager
def _moving(recipe: str, tag: str, to: str | None) -> Iterator[tuple[Repository, Trust]]:
    """The repository of a recipe's images, whose tags no other run of this machine moves meanwhile;
    and the keys that count.  ``to`` is the image that the user names.
    """
    from builder.publish.tags import repository_of, require_moving

    with _only_run_with_tags(), _trust() as trust:
        recipes = catalog_at()
        name = recipes.engine(recipe).recipe.image.repository
        repository = repository_of(recipes, recipe, log)
        known = [entry.recipe for entry in recipes.engines.values() if entry.recipe]
        require_moving(known, repository, name, tag, trust)
        if to is not None:
            log(
                f"of {to} only the label builder.key is checked, which anybody with push access "
                "can set; its verdict is not checked"
            )
        yield repository, trust


@contextmanager
def _trust() -> Iterator[Trust]:
    from builder.publish.signing import trust_of

    loaded = options.user_settings()
    loaded.require_directories()
    with workspace(loaded.cache_dir) as work:
        yield trust_of(loaded, work)


def _only_run_with_tags() -> AbstractContextManager[None]:
    from builder.publish.tags import TAGS

    loaded = options.user_settings()
    loaded.require_directories()
    return named_lock(loaded.cache_dir, TAGS)


def _print_move(move: Move, as_json: bool) -> None:
    if as_json:
        print_json(asdict(move))
    elif move.before == move.digest:
        line(f"{move.tag} is already {move.digest}")
    else:
        before = f", which was {move.before}" if move.before else ""
        line(f"{move.tag} is {move.digest}{before}")
        if move.update is not None:
            line(f"download {_update(move)} for somebody who has the image before")


def _update(move: Move) -> str:
    if move.updates:
        return ", ".join(f"{sizes.shown(size)} ({name})" for name, size in move.updates.items())
    return sizes.shown(move.update) if move.update is not None else ""


@group.command()
def prune(
    recipe: options.RecipeName,
    keep: int | None = option(
        "--keep N",
        "Number of nightlies to keep, the newest ones, and number of rollbacks of each tag whose "
        "images are kept. Default: keep in [track] of the recipe, which is 7 by default.",
        min=1,
        max=10_000,
    ),
    yes: bool = option("--yes -y", "Delete them without asking.", False),
    dry_run: bool = flag("--dry-run", "Only show them."),
    signed: bool = flag("--signed", "Also delete signed images and their signatures."),
    as_json: options.JsonOption = False,
) -> None:
    """Show which nightlies of a recipe's channel are no longer needed, and delete them.

    A terminal is asked before; elsewhere nothing is deleted without --yes. The newest nightlies
    stay, and each image that a tag, an index, a signature or one of --keep rollbacks needs.
    """
    from builder.docker.engine import HUB
    from builder.publish.prune import prune as prune_channel
    from builder.publish.tags import open_repository
    from builder.recipes.catalog import require_channels

    recipes, loaded = catalog_at(), options.user_settings()
    (entry,) = require_channels([recipes.engine(recipe)])
    repository = open_repository(loaded.repository(entry.recipe.image.repository), log)
    others = recipes.of_repository(entry.recipe.image.repository)

    track = entry.recipe.track
    most = keep or (track.keep if track else 1)

    def pruned(*, delete: bool) -> tuple[PrunePlan, tuple[str, ...]]:
        channel = entry.recipe.channel
        return prune_channel(
            repository, channel, most, others, loaded, log, signed=signed, dry_run=not delete
        )

    plan, deleted = pruned(delete=yes and not dry_run)
    if as_json:
        nightlies = [
            {
                "tags": list(each.tags),
                "digest": each.image.digest,
                "created": each.image.created.isoformat() if each.image.created else "",
                "stays": each.kept_because,
            }
            for each in plan.candidates
        ]
        result: dict[str, Any] = {"repository": repository.name, "deleted": list(deleted)}
        result |= {"channel": plan.channel, "nightlies": nightlies}
        print_json(result | {"others": list(plan.others), "bytes": plan.freed_bytes})
        return
    going = _print_plan(plan, deleted, delete=yes and not dry_run)
    if going and not yes and not dry_run:
        if not can_ask() or not typer.confirm("Delete them?", err=True):
            log("nothing was deleted: --yes agrees")
            return
        plan, deleted = pruned(delete=True)
    if deleted and repository.registry != HUB:
        log("the registry frees the space at its next garbage collection")


def _print_plan(plan: PrunePlan, deleted: Collection[str], *, delete: bool) -> int:
    rows = []
    for each in plan.candidates:
        created = minute(each.image.created.isoformat()) if each.image.created else ""
        state, why = "kept", each.kept_because or "it is needed now"
        if not each.kept_because and (not delete or not set(deleted).isdisjoint(each.tags)):
            state, why = "deleted" if delete else "delete", ""
        rows.append((state, ", ".join(each.tags), created, each.image.digest[:19], why))
    table(("", "nightly", "created", "image", "why"), rows)
    going = sum(row[0] != "kept" for row in rows)
    verb = "were deleted" if delete else "can be deleted"
    others = len(plan.others)
    kept = "one other tag is kept" if others == 1 else f"{others} other tags are kept"
    line(f"{going} of {len(rows)} nightlies of {plan.channel} {verb}; {kept}")
    if not delete and going:
        line(f"{sizes.shown(plan.freed_bytes)} are referred to by nothing else")
    return going


# ``builder hub``: describe.

hub_group = typer.Typer(no_args_is_help=True, help="Write the page of a repository on Docker Hub.")


@hub_group.callback()
def _group() -> None:
    """Keep ``describe`` a command of its own: typer would make the only one the group."""


@hub_group.command()
def describe(
    recipe: options.RecipeName,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Write the description of a recipe's repository on Docker Hub.

    It covers all recipes whose images have a tag in the repository. The access token needs the
    scopes Read, Write and Delete. With --dry-run, the page is printed, and Docker Hub is not asked.
    """
    from builder.docker.engine import HUB
    from builder.publish import hub as hub_page
    from builder.publish.hub import Hub
    from builder.publish.tags import repository_of
    from builder.publish.verdicts import signers_of

    recipes = catalog_at()
    name = recipes.engine(recipe).recipe.image.repository
    repository = repository_of(recipes, recipe, log)
    if repository.registry != HUB:
        raise RegistryError(
            f"{repository.name} cannot have a description",
            f"{repository.registry} is not Docker Hub, and only Docker Hub has descriptions",
            "see the labels of the image: docker buildx imagetools inspect --raw",
        )
    chosen = options.user_settings()
    hub = Hub(chosen.hub_api, log)
    tags = None if dry_run else hub.tags(repository.path)
    page = hub_page.describe_repository(
        recipes, name, repository.path, tags, chosen.state_dir, signers_of(chosen)
    )
    if not dry_run:
        hub.describe(repository.path, page.short, page.full)
    if as_json:
        print_json({"written": not dry_run, **asdict(page)})
    elif dry_run:
        line(f"{page.short}\n\n{page.full.rstrip()}")
    else:
        line(f"described  {page.repository}, from {', '.join(page.recipes)}")
        line(f"           https://hub.docker.com/r/{page.repository}")


# ``builder push``.


def push(
    recipe: options.RecipeName,
    platform: Platform | None = option(
        "--platform OS/ARCHITECTURE",
        "Push only the image for this platform, under its immutable tag. Default: the images of "
        "all platforms and their index.",
    ),
    replace: bool = flag(
        "--replace", "Take immutable tags and version tags from another image. Requires --reason."
    ),
    over_budget: bool = flag(
        "--over-budget", "Move tags although the update exceeds [budget] update. Requires --reason."
    ),
    drop_platform: options.DropOption = None,
    reason: str | None = reason_option(
        "Why tags are replaced, or an update is large; attached to the image that gets them."
    ),
    dry_run: bool = flag(
        "--dry-run",
        "Check the namespace, the login, the signing key, and with a tiny artifact that the "
        "registry takes attachments; push nothing.",
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Push the verified image of a recipe and its tags to the registry.

    Exactly the verified digest is pushed, with its verdict, SBOMs, provenance, recipe and, with
    BUILDER_COSIGN_KEY, a signature. No tag is taken from another image without --replace, and
    channels are moved by `builder nightly` alone. The error of a push that stops lists the tags
    that were pushed; docs/publishing.md has the rest.
    """
    from builder.cli.session import build_session
    from builder.publish.push import Allowed
    from builder.publish.tags import repository_of
    from builder.publish.verdicts import require_attachments, require_signing

    if (replace or over_budget) != (reason is not None):
        raise typer.BadParameter("--reason and --replace or --over-budget are only valid together")
    session = build_session(platform=platform)
    repository = repository_of(session.catalog, recipe, log)
    if dry_run:
        with workspace(session.settings.cache_dir) as work:
            require_signing(session.settings, work)
        repository.require_push()
        require_attachments(repository)
        signed = bool(session.settings.cosign_key)
        if as_json:
            print_json({"repository": repository.name, "signed": signed})
        else:
            how = "will be signed" if signed else "will not be signed"
            line(f"{repository.name} accepts pushes; images {how}")
        return
    reasons = (reason if replace else None, reason if over_budget else None)
    allowed = Allowed(*reasons, tuple(drop_platform or ()))
    with _only_run_with_tags(), workspace(session.settings.cache_dir) as work:
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
    several = len(entry.recipe.platform) > 1
    if several and session.platform is None:
        plans = session.plans(recipe)
        tags = tags_of_index(entry.recipe, key_of_index(plans))
        return push_index(session, plans, tags, work, allowed)
    image, record = verified(session, recipe)
    tags = Tags(image.immutable_tag, (), ()) if several else tags_of(record, entry.recipe)
    return push_image(session, image, record, tags, work, allowed)


# ``builder sbom``.


def sbom(
    recipe: options.RecipeName,
    platform: options.OnePlatformOption = None,
    form: Literal["spdx", "provenance", "vex"] = option(
        "--format",
        "SPDX 2.3; or an in-toto statement: SLSA v1 provenance, or the known faults that the image "
        "mends or has (OpenVEX).",
        "spdx",
    ),
    published: str | None = reference_option(
        "--from",
        "Print the document that is attached to this image in the registry. Default: describe "
        "the verified image in the local engine.",
    ),
) -> None:
    """Print the SBOM of a recipe's verified image, as JSON.

    It lists what scanners of the image cannot see, too: the fork and its commit, each patch with
    its reason, CUDA libraries from wheels.
    """
    from builder.build.lookup import verified
    from builder.cli.session import build_session
    from builder.publish.attachments import SPDX, VEX, attached, documents
    from builder.publish.tags import repository_of
    from builder.publish.verdicts import SLSA

    kind = {"spdx": SPDX, "provenance": SLSA, "vex": VEX}[form]
    if published is not None:
        repository = repository_of(catalog_at(), recipe, log)
        files = attached(repository, published, kind, platform)
        typer.echo(files[0].content.decode("utf-8", "replace"), nl=False)
        return
    session = build_session(platform=platform)
    image, record = verified(session, recipe)
    with workspace(session.settings.cache_dir) as work:
        found = documents(image, record, work)
    if kind not in found:
        raise UsageError(f"{recipe} names no thread of upstream: it has no OpenVEX document")
    typer.echo(found[kind], nl=False)
