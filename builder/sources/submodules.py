"""The submodules of a tree: where .gitmodules says that they come from."""

from __future__ import annotations

from builder.core.errors import FetchError
from builder.sources.errors import GitError
from builder.sources.repository import GitRepository


def submodule_urls(repository: GitRepository, tree: str) -> dict[str, str]:
    """The URLs in .gitmodules of a tree, by path (gitmodules(5)).

    git parses it from standard input, so that nothing in it takes effect.  Raises ``FetchError``
    if it is not in git's configuration format.
    """
    content = repository.file(tree, ".gitmodules")
    if not content:
        return {}
    try:
        listing = repository.run(
            *("config", "--file", "-", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$"),
            stdin=content,
        )
    except GitError as error:
        if error.status == 1:
            return {}
        raise FetchError(".gitmodules cannot be read", error.why) from error
    found: dict[str, dict[str, str]] = {}
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, _, value = line.partition("\n")
        section, _, field = key.rpartition(".")
        found.setdefault(section, {})[field] = value
    return {m["path"]: m["url"] for m in found.values() if "path" in m and "url" in m}
