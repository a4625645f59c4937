"""Package URLs and download locations of the parts of an image.

Package URLs: https://github.com/package-url/purl-spec (purl-types: github, generic, pypi, oci).
Repositories at a commit: the download locations of SPDX 2.3, 7.7.  No address contains a user or
a path of the build machine.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from packageurl import PackageURL

from builder.core.address import GITHUB
from builder.docker.engine import split


def public(url: str) -> str:
    """A URL without user and query, which may be tokens; empty for a local path."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def at_commit(url: str, commit: str) -> str:
    """``git+URL@COMMIT``; empty where the repository has no public URL."""
    found = public(url)
    return f"git+{found}@{commit}" if found else ""


def commit_purl(url: str, commit: str, name: str) -> str:
    """The package URL of a commit; ``name`` is used where the repository is not on GitHub."""
    found = GITHUB.fullmatch(url)
    if found is not None:
        return PackageURL("github", found[1], found[2], commit).to_string()
    place = at_commit(url, commit)
    return generic_purl(name, commit, {"vcs_url": place} if place else {})


def generic_purl(name: str, version: str, qualifiers: dict[str, str] | None = None) -> str:
    """The package URL of something that is in no package manager."""
    return PackageURL("generic", None, name, version or None, qualifiers or None).to_string()


def python_purl(name: str, version: str = "") -> str:
    """The package URL of a Python project, or of one version of it."""
    return PackageURL("pypi", None, name, version or None).to_string()


def image_purl(repository: str, digest: str, tag: str = "") -> str:
    """The package URL of an image; a name of one part gets no registry.

    ``digest`` may be empty: then only the tag identifies the image.
    """
    qualifiers = {"tag": tag} if tag else {}
    if "/" in repository:
        qualifiers["repository_url"] = "/".join(split(repository))
    name = repository.rpartition("/")[2]
    return PackageURL("oci", None, name, digest or None, qualifiers or None).to_string()
