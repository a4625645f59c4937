"""``builder hub``: describe."""

from __future__ import annotations

from dataclasses import asdict

import typer

from builder.cli.options import CatalogOption, DryRunOption, JsonOption, RecipeName, catalog_at
from builder.cli.terminal import line, log, print_json

group = typer.Typer(no_args_is_help=True, help="Write the page of a repository on Docker Hub.")


@group.callback()
def _group() -> None:
    """Keep ``describe`` a command of its own: typer would make the only one the group."""


@group.command()
def describe(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the description of a recipe's repository on Docker Hub.

    The page covers all recipes whose images have a tag in the repository: the engine, its
    GPUs, how to run it, each tag with its pin, patches, reasons and checks, licenses and notes. A
    page that is too long is cut at a paragraph and says so. With --dry-run, Docker Hub is not asked
    and all recipes of the repository are described.

    The access token needs the scopes Read, Write and Delete. The exit code is 5 if Docker Hub does
    not answer, and 12 if it refuses, or if the repository is in another registry.
    """
    from builder.core import settings
    from builder.core.errors import RegistryError
    from builder.docker.engine import HUB
    from builder.publish import hub_page
    from builder.publish.hub import Hub
    from builder.publish.tags import repository_of

    recipes = catalog_at(catalog)
    name = recipes.engine(recipe).recipe.image.repository
    repository = repository_of(recipes, recipe, log)
    if repository.registry != HUB:
        raise RegistryError(
            f"{repository.name} cannot have a description",
            f"{repository.registry} is not Docker Hub, and only Docker Hub has descriptions",
            "see the labels of the image: docker buildx imagetools inspect --raw",
        )
    chosen = settings.load()
    hub = Hub(chosen.hub_api, log)
    tags = None if dry_run else hub.tags(repository.path)
    page = hub_page.describe_repository(recipes, name, repository.path, tags, chosen.state_dir)
    if not dry_run:
        hub.describe(repository.path, page.short, page.full)
    if as_json:
        print_json({"written": not dry_run, **asdict(page)})
    elif dry_run:
        line(f"{page.short}\n\n{page.full.rstrip()}")
    else:
        line(f"described  {page.repository}, from {', '.join(page.recipes)}")
        line(f"           https://hub.docker.com/r/{page.repository}")
