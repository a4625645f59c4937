"""The patches of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints, Tag

from builder.recipes.fields import (
    PEP440,
    PLAIN,
    Commit,
    GitUrl,
    Model,
    PathGlob,
    PythonProject,
    Sha256,
    Text,
    TreePath,
    Value,
    by_only_key,
)
from builder.recipes.probes import Probe

Kind = Literal["file", "pull", "pick", "script", "add"]


class Origin(NamedTuple):
    """A patch as it describes itself: what it is, and where it comes from."""

    kind: Kind
    name: str
    """For people."""
    git: str = ""
    """Repository of its commits; empty: the source's, or, for a file, none."""
    before: str = ""
    """The commit before its changes; a program and added files have only ``after``."""
    after: str = ""
    path: str = ""
    """Path of the file, the program or the added files."""
    page: str = ""
    """Its page on GitHub, below the repository's."""
    diff: str = ""
    """Its text there.  GitHub compares from the merge base of two commits, which is ``before``:
    https://docs.github.com/en/rest/commits/commits#compare-two-commits."""


class AnyPatch(Model):
    """The keys of every kind of patch."""

    why: Text
    """Why the recipe needs it."""
    drop_when: Text | None = None
    """Condition for removing it."""
    upstream: Text | None = None
    """Where it is discussed: "OWNER/REPOSITORY#NUMBER"."""
    leave_out: list[PathGlob] = []
    """Files of the patch that the target does not have: "tests/*"."""
    expect: Literal["applies", "absent"] = "applies"
    """"absent": the build fails if the files that it changes exist."""
    probe: Probe | None = None
    """Check that shows in the finished image that the patch is in effect."""
    no_probe: Text | None = None
    """Why the finished image cannot show that: then ``recipe check`` has no warning."""

    def _faults(self) -> Iterator[str]:
        if self.probe is not None and self.no_probe is not None:
            yield "no_probe says why there is no probe: leave one of them out"

    @property
    def origin(self) -> Origin:
        """Its description of itself."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """For people."""
        return self.origin.name


class FilePatch(AnyPatch):
    """A diff in this repository."""

    file: TreePath
    """Below ``patches/``."""

    @property
    def origin(self) -> Origin:
        """The file."""
        return Origin("file", f"file {self.file}", path=self.file)


class PullPatch(AnyPatch):
    """A pull request, pinned as the diff between two commits."""

    pull: Annotated[int, Field(ge=1)]
    """Its number."""
    base: Commit
    """Where its branch left the target branch; an ancestor of ``head``."""
    head: Commit
    """The last commit of its branch."""
    git: GitUrl | None = None
    """Repository of the pull request; default: the source's."""

    @property
    def origin(self) -> Origin:
        """The pull request."""
        page, diff = f"pull/{self.pull}", f"compare/{self.base}...{self.head}.diff"
        name = f"pull {self.pull}"
        return Origin("pull", name, self.git or "", self.base, self.head, page=page, diff=diff)


class Pick(Model):
    """A range of commits, as ``git cherry-pick after..to`` takes it."""

    after: Commit
    """The last commit that is not taken."""
    to: Commit
    """The last commit that is taken."""
    without: list[Commit] = []
    """Commits of the range to omit, for example commits that the source contains."""
    git: GitUrl | None = None
    """Default: the source's."""


class PickPatch(AnyPatch):
    """Commits of some branch, one after the other."""

    pick: Pick

    @property
    def origin(self) -> Origin:
        """The range; GitHub has no diff that leaves out commits of one."""
        after, to = self.pick.after, self.pick.to
        less = "".join(f" without {commit[:9]}" for commit in self.pick.without)
        name, page = f"pick {after[:9]}..{to[:9]}{less}", f"compare/{after}...{to}"
        diff = "" if less else f"{page}.diff"
        return Origin("pick", name, self.pick.git or "", after, to, page=page, diff=diff)


class Script(Model):
    """A program that edits the tree."""

    git: GitUrl
    """Repository of the program."""
    commit: Commit
    """Commit of that repository."""
    path: TreePath
    """The program in the tree of ``commit``: Python (.py), or anything with a #! line.

    Python has its standard library only: it cannot import packages of the image.
    """
    sha256: Sha256 | None = None
    """sha256 of the program, if its author publishes one."""
    arguments: list[Value] = []
    """Arguments of the program."""
    at: Annotated[str, StringConstraints(pattern=r"^(?:/[A-Za-z0-9._+-]+)+$"), PLAIN] = "/tree"
    """Where the program finds the tree, and its working directory."""
    seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Time limit."""
    edits: list[TreePath] = []
    """The files that it must change or delete, and no others; empty: it may change any and delete
    none."""
    contains: list[Text] = []
    """Texts that the output must contain; otherwise the patch fails, whatever the exit status."""

    def _faults(self) -> Iterator[str]:
        if ".." in self.at.split("/") or self.at.split("/")[1] in SYSTEM_DIRECTORIES:
            yield f"at = {self.at!r} would hide a file that the program needs"


SYSTEM_DIRECTORIES = frozenset(
    {"bin", "dev", "etc", "lib", "lib64", "patch", "proc", "sbin", "sys"}
)


class ScriptPatch(AnyPatch):
    """A program that edits the tree; its changes are the patch."""

    script: Script

    @property
    def origin(self) -> Origin:
        """The program."""
        script, name = self.script, f"script {self.script.path}"
        page = f"blob/{script.commit}/{script.path}"
        return Origin("script", name, script.git, "", script.commit, script.path, page)

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.expect == "absent" and not self.script.edits:
            yield "name the files that it would change in edits: they must be absent"


ENTRY_POINT = r"^[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?$"
EntryPointName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$"), PLAIN]
EntryPoint = Annotated[str, StringConstraints(pattern=ENTRY_POINT), PLAIN]


class Distribution(Model):
    """Metadata that makes added files an installed Python project for pip and importlib.metadata.

    Python packaging, "Recording installed projects" and "Entry points specification".
    """

    name: PythonProject
    """Name of the project."""
    version: Annotated[str, StringConstraints(pattern=PEP440), PLAIN]
    """Version of the project (PEP 440)."""
    entry_points: dict[EntryPointName, dict[EntryPointName, EntryPoint]] = {}
    """"module:function" by group and name."""

    def __str__(self) -> str:
        points = [
            f"{group}: {name} = {value}"
            for group, found in self.entry_points.items()
            for name, value in found.items()
        ]
        return ", ".join([f"{self.name} {self.version}", *points])


class Add(Model):
    """A directory, or a file, of a pinned commit, as new files of the tree."""

    git: GitUrl
    """Repository of the files."""
    commit: Commit
    """Commit of that repository."""
    path: TreePath
    """In the tree of ``commit``."""
    to: TreePath
    """Target path in the source; it must not exist."""
    distribution: Distribution | None = None
    """Python project that the files are installed as."""


class AddPatch(AnyPatch):
    """Files of another repository, copied into the tree."""

    add: Add

    @property
    def origin(self) -> Origin:
        """The files."""
        add, page = self.add, f"tree/{self.add.commit}/{self.add.path}"
        return Origin("add", f"add {add.to}", add.git, "", add.commit, add.path, page)

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.expect == "absent":
            yield 'expect = "absent" is not allowed: the source never has it'


PATCHES = ("file", "pull", "pick", "script", "add")

Patch = Annotated[
    Annotated[FilePatch, Tag("file")]
    | Annotated[PullPatch, Tag("pull")]
    | Annotated[PickPatch, Tag("pick")]
    | Annotated[ScriptPatch, Tag("script")]
    | Annotated[AddPatch, Tag("add")],
    by_only_key("patch", PATCHES),
]
