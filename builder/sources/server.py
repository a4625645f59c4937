"""What a git server advertises."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from builder.sources.arguments import COMMIT

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
