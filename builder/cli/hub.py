"""The command that writes what a repository's page on Docker Hub says."""

from __future__ import annotations

from dataclasses import asdict

from builder.cli.options import (
    CatalogOption,
    DryRunOption,
    JsonOption,
    RecipeName,
    catalog_at,
    hub_group,
    print_json,
    repository_of,
)


@hub_group.command()
def describe(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the description of a recipe's repository on Docker Hub.

    It is made from all recipes whose images are in that repository and have a tag there: what the
    engine is and for which GPUs, how it is run, each tag with its pin, its patches and their
    reasons, checks, licenses and notes. What is too long is cut at a paragraph, and says
    so. With --dry-run Docker Hub is not asked, and all recipes of the repository are described.
    The token must have the scopes Read, Write and Delete. The exit code is 12 when Docker Hub
    refuses, and for any other registry, which has no descriptions; 5 when it does not answer.
    """
    from builder import settings
    from builder.cli import console
    from builder.errors import RegistryError
    from builder.publish import hub_page
    from builder.tools.registry.credentials import HUB
    from builder.tools.registry.hub import Hub

    recipes = catalog_at(catalog)
    found = recipes.engine(recipe).recipe
    assert found is not None
    repository = repository_of(recipes, recipe)
    if repository.registry != HUB:
        raise RegistryError(
            f"there is no description of {repository.name}",
            f"{repository.registry} is not Docker Hub, and registries have none",
            "what there is to say is in the labels: docker buildx imagetools inspect --raw",
        )
    hub = Hub(settings.load().hub_api, console.log)
    there = None if dry_run else hub.tags(repository.path)
    text = hub_page.described(recipes, found.image.repository, repository.path, there)
    if not dry_run:
        hub.describe(repository.path, text.short, text.full)
    if as_json:
        print_json({"written": not dry_run, **asdict(text)})
    elif dry_run:
        console.line(f"{text.short}\n\n{text.full.rstrip()}")
    else:
        console.line(f"described  {text.repository}, from {', '.join(text.recipes)}")
        console.line(f"            https://hub.docker.com/r/{text.repository}")
