"""New pins for recipes: a pull request as it is today, a source as upstream has it now."""

from __future__ import annotations

from builder import upstream
from builder.catalogue import Entry
from builder.desk import Change, Desk
from builder.editing import frozen, moved
from builder.errors import RecipeError
from builder.pulls import ends_of
from builder.schema import GitSource, PullPatch, Recipe, checked_ref, checked_url


def freeze(
    desk: Desk,
    entry: Entry[Recipe],
    pull: int,
    *,
    repository: str | None = None,
    onto: str | None = None,
    why: str | None = None,
) -> Change:
    """A recipe with a pull request's base and head of today.

    Raises ``RecipeError`` for a URL or a branch that git is not given, ``FetchError`` when there
    is no such request, ``PatchError`` when its commits are not its own.
    """
    recipe = entry.recipe
    assert recipe is not None
    home = recipe.source.git if isinstance(recipe.source, GitSource) else None
    url = repository or home
    if url is None:
        raise RecipeError(
            f"{entry.name} has no git repository", hint="name one with --repository URL"
        )
    checked_url(url)
    ends = ends_of(url, pull, desk.repositories, onto and checked_ref(onto))
    known = [patch.why for patch in recipe.patch if getattr(patch, "pull", None) == pull]
    patch = PullPatch(
        pull=pull,
        base=ends.base,
        head=ends.head,
        git=None if url == home else url,
        why=why or (known[0] if known else ends.subject),
    )
    return desk.change(entry, frozen(entry.text, recipe, patch))


def update(desk: Desk, entry: Entry[Recipe], to: str | None = None) -> Change:
    """A recipe with its pin at ``to`` (a tag, a branch or a commit), or at upstream's newest.

    Raises ``RecipeError`` where the source is no git repository, ``FetchError`` for a ref that
    does not exist.
    """
    recipe = entry.recipe
    assert recipe is not None
    source = recipe.source
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is no git repository",
            hint="edit version and sha256 of [source] by hand",
        )
    if to is None:
        target = upstream.tracked(source.git, recipe.track, desk.repositories)
    else:
        target = upstream.resolve(source.git, checked_ref(to), desk.repositories)
    if target.commit == source.commit:
        return desk.change(entry, entry.text)
    number = upstream.build_number(source.git, target.commit, desk.repositories)
    refs = desk.repositories.mirror(source.git).advertised().refs
    moving = f"refs/heads/{source.ref}" in refs and f"refs/tags/{source.ref}" not in refs
    return desk.change(entry, moved(entry.text, recipe, target, number, moving=moving))
