"""Requests to git servers, retried after temporary failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from builder.errors import GoneError
from builder.tools.git import command
from builder.tools.git.arguments import COMMIT
from builder.tools.git.errors import GitError
from builder.tools.git.repository import GitRepository
from builder.tools.log import Log
from builder.tools.web.errors import WebError
from builder.tools.web.retry import RetryPolicy

# As GitHub, Gitea and Forgejo publish pull requests, and GitLab.
PULL_REFS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")


class Advertised(BaseModel):
    """The refs that a server advertises: commits by ref, and the branch that HEAD is.

    A byte of a name that is not UTF-8 is written as ``\\xNN``; git allows no backslash in names.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    refs: dict[str, str]
    head: str

    def commit(self, ref: str) -> str | None:
        """The commit of a full ref; for an annotated tag the tagged commit."""
        return self.refs.get(f"{ref}^{{}}", self.refs.get(ref))

    def pull(self, number: int) -> str | None:
        """The present head of a pull request."""
        found = (self.refs.get(ref.format(number)) for ref in PULL_REFS)
        return next(filter(None, found), None)


def ask(
    repository: Path,
    url: str,
    *arguments: str,
    stdin: bytes = b"",
    inherit: Sequence[int] = (),
    log: Log = lambda _: None,
) -> bytes:
    """Run a git command that talks to the server of ``url``, again after a temporary failure.

    Returns its standard output; ``inherit`` are file descriptors that git keeps open.  Raises
    ``GitError``.
    """

    def failure_of(error: BaseException) -> WebError | None:
        if not isinstance(error, GitError):
            return None
        if error.is_interrupted:
            policy.server_responded()
        return WebError(error.why.partition("\n")[0], temporary=error.is_temporary)

    policy = RetryPolicy(urlsplit(url).netloc.rpartition("@")[2], log, failure_of)
    output, _ = policy.call(
        lambda: command.run(repository, *arguments, stdin=stdin, network=True, inherit=inherit)
    )
    return output


def parse_refs(listing: bytes) -> Advertised:
    """The output of ``git ls-remote --symref``."""
    refs: dict[str, str] = {}
    head = ""
    for line in listing.decode("utf-8", "backslashreplace").splitlines():
        what, _, name = line.partition("\t")
        if what.startswith("ref: ") and name == "HEAD":
            head = what.removeprefix("ref: ")
        elif COMMIT.fullmatch(what):
            refs[name] = what
    return Advertised(refs=refs, head=head)


def require_commit(repository: GitRepository, commit: str, url: str) -> None:
    """Raise ``GoneError`` unless a fetched object is a commit."""
    kind = repository.text("cat-file", "-t", commit)
    if kind != "commit":
        raise GoneError(
            f"{commit} of {url} is not a commit",
            f"it is a {kind} object",
            "pin the commit behind it: `git rev-parse NAME^{commit}`",
        )
