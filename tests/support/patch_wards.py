"""An upstream, and the patch doctor over its mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.plan.inputs import GitCommit, PlannedPatch
from builder.recipes.patches import FilePatch, Pick, PickPatch, PullPatch
from builder.recipes.schema import Track
from builder.sources.mirrors import Repositories
from builder.sources.patches import PatchContext
from builder.upstream.patches import PatchFinding, PatchSet, diagnose
from support.upstreams import Upstream

FUNCTION = """\
int {name}(struct state * s) {{
    if (s->{name} == 0) {{
        return -1;
    }}
    s->{name} += {value};
    return 0;
}}

"""


def functions(*names: str, **values: str) -> str:
    """A file of functions; ``a="2"`` gives the one of that name another number."""
    return "".join(FUNCTION.format(name=name, value=values.get(name, "1")) for name in names)


class Ward:
    """An upstream, and the doctor over its mirror."""

    def __init__(self, folder: Path) -> None:
        self.upstream = Upstream(folder / "upstream")
        self.notes: list[str] = []
        work = folder / "work"
        work.mkdir()
        self.cache = folder / "cache"
        repositories = Repositories(self.cache, work, self.notes.append)
        self.context = PatchContext(repositories, work, None, self.notes.append)

    def case(self, pin: str, *patches: PlannedPatch) -> PatchSet:
        source = GitCommit(self.upstream.url, pin, False, {})
        return PatchSet("x", source, Track(branch="main"), patches, self.context)

    def pull(self, base: str, head: str, **options: bool) -> PlannedPatch:
        patch = PullPatch(pull=6, base=base, head=head, why="a test", **options)
        return PlannedPatch(patch, self.upstream.url, recipe="engine-1")

    def pick(self, after: str, to: str) -> PlannedPatch:
        patch = PickPatch(pick=Pick(after=after, to=to), why="a test")
        return PlannedPatch(patch, self.upstream.url)

    def file(self, text: bytes, name: str = "x.patch") -> PlannedPatch:
        return PlannedPatch(FilePatch(file=name, why="a test"), content=text)

    def on_main(self, pin: str, patch: PlannedPatch) -> PatchFinding:
        """What the doctor says of a patch on today's main."""
        return list(diagnose(self.case(pin, patch)))[-1]

    def side(self, at: str, name: str) -> None:
        self.upstream.git("checkout", "--quiet", "-B", name, at)

    def main(self) -> None:
        self.upstream.git("checkout", "--quiet", "main")


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def brought(finding: PatchFinding) -> str:
    return finding.commits[0].split(" ", 2)[2] if finding.commits else ""


RECIPE = """\
engine  = "eng"
version = "1"
summary = "an engine"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
source  = {{ git = "{url}", commit = "{pin}" }}
track   = {{ branch = "main" }}
cuda    = {{ arch = ["120"] }}
llama   = {{ build_number = 1 }}
cmake   = [{{ targets = ["llama-server"] }}]
image   = {{ repository = "eng", tags = ["1"] }}
probe   = [{{ option = "--x" }}]

[[patch]]
pick = {{ after = "{after}", to = "{to}" }}   # all three
why  = "a test"
"""
