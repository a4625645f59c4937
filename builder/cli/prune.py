"""The command that deletes old nightlies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import (
    CatalogOption,
    JsonOption,
    RecipeName,
    catalog_at,
    print_json,
    tag_group,
)

if TYPE_CHECKING:
    from builder.publish.prune import Plan


@tag_group.command()
def prune(
    recipe: RecipeName,
    keep: Annotated[
        int, typer.Option(min=1, max=10_000, help="So many of the newest nightlies stay.")
    ] = 7,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; without it what would go is only shown.")
    ] = False,
    signed: Annotated[
        bool, typer.Option("--signed", help="Also what is signed goes, and its signature with it.")
    ] = False,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which old nightlies of a recipe's channel are no longer needed; delete them if told so.

    Nightlies are the tags CHANNEL-WHAT-KEY that a night pushes; their age is what the images say.
    The newest ones stay, what `builder tag rollback` of any tag would go to, and all that something
    else refers to: another tag, another channel, an index, a signature. With an image go the notes
    and bills of materials that are attached to it, after the image: one that stays keeps them.
    Before each deletion it is looked once more where the channel leads. On Docker Hub tags are
    deleted, by its API; elsewhere manifests. A run that was stopped goes on when it is started
    again; to finish the image that it was at, it has to be on the same machine. The exit code is 3
    for a recipe without a channel, 5 when the registry does not answer, 9 while a night, a push, a
    promotion or a rollback goes on here, 12 when the registry allows no deletion.
    """
    from contextlib import ExitStack

    from builder import settings
    from builder.cli import console
    from builder.nightly import channels
    from builder.publish import prune as pruning
    from builder.publish import push
    from builder.publish.survey import survey
    from builder.tools.files import named_lock
    from builder.tools.registry.credentials import HUB
    from builder.tools.registry.hub import Hub

    recipes, chosen = catalog_at(catalog), settings.load()
    (own,) = channels.channels(recipes, chosen, [recipe])
    repository = push.opened(own.repository, console.log)
    on_hub = repository.registry == HUB
    names = {
        name
        for entry in recipes.engines.values()
        if entry.recipe and chosen.repository(entry.recipe.image.repository) == own.repository
        for name in (entry.recipe.version, *entry.recipe.image.tags, *entry.recipe.image.moving)
    }
    chosen.require_directories()
    file = pruning.path_of(chosen.state_dir, repository)
    gone: tuple[str, ...] = ()
    with ExitStack() as held:
        for lock in (push.NIGHTLY, push.TAGS) if delete else ():
            held.enter_context(named_lock(chosen.cache_dir, lock))
        images = survey(repository, own.tag)
        plan = pruning.plan(images, own.tag, keep, signed=signed, names=names)
        if delete and on_hub:
            hub = Hub(chosen.hub_api, console.log)
            gone = pruning.delete_tags(repository, hub, plan, file, console.log)
        elif delete:
            gone = pruning.delete(repository, plan, file, console.log)
    if as_json:
        print_json({"repository": repository.name, "deleted": list(gone), **_as_json(plan)})
        return
    _tell(plan, gone, delete=delete)
    if gone and not on_hub:
        console.log("the registry frees the space when its garbage is collected")


def _tell(plan: Plan, gone: Collection[str], *, delete: bool) -> None:
    from builder.cli import console

    rows = []
    for fate in plan.fates:
        made = f"{fate.image.created:%Y-%m-%d %H:%M}" if fate.image.created else ""
        state, why = "stays", fate.why or "it is needed now"
        if not fate.why and (not delete or not set(gone).isdisjoint(fate.tags)):
            state, why = "gone" if delete else "goes", ""
        rows.append((state, ", ".join(fate.tags), made, fate.image.digest[:19], why))
    console.table(("", "nightly", "made", "image", "why"), rows)
    going = sum(row[0] != "stays" for row in rows)
    console.line(
        f"{going} of {len(rows)} nightlies of {plan.channel} {'are gone' if delete else 'go'}; "
        f"{len(plan.others)} other tags stay"
    )
    if not delete and going:
        console.line(f"{plan.freed / 1e6:.1f} MB would be referred to by nothing else")
        console.log("nothing was deleted: say --delete")


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "channel": plan.channel,
        "nightlies": [
            {
                "tags": list(fate.tags),
                "digest": fate.image.digest,
                "created": fate.image.created.isoformat() if fate.image.created else "",
                "stays": fate.why,
            }
            for fate in plan.fates
        ],
        "others": list(plan.others),
        "bytes": plan.freed,
    }
