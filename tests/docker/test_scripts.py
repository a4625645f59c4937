"""Patches that are scripts: run on a copy, sealed off, and their result taken as a diff."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import PatchError, UntriedError
from builder.plan.inputs import GitCommit, PlannedPatch
from builder.recipes.patches import Script, ScriptPatch
from builder.sources.mirrors import Repositories
from builder.sources.patches import PatchContext, apply_all
from builder.upstream.patches import PatchFinding, PatchSet, on_pin
from support.catalogs import rendered
from support.environment import REPOSITORY
from support.upstreams import Upstream

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]


class Bench:
    """An engine's tree, and a repository that holds scripts."""

    def __init__(self, folder: Path, image: str | None) -> None:
        self.folder = folder
        self.image = image
        self.engine = Upstream(folder / "engine")
        self.pin = self.engine.commit("one", **{"pkg__attn.py": "x = 1\n", "b.c": "b\n"})
        self.scripts = Upstream(folder / "scripts")
        self.count = 0

    def planned(self, program: str, name: str = "patch.py", **options: Any) -> PlannedPatch:
        commit = self.scripts.commit("script", **{name: program})
        about = {"git": self.scripts.url, "commit": commit, "path": name} | options
        patch = ScriptPatch(script=Script.model_validate(about), why="a test")
        return PlannedPatch(patch, self.scripts.url)

    def context(self) -> PatchContext:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        repositories = Repositories(self.folder / "cache", work, lambda _: None)
        return PatchContext(repositories, work, self.image, lambda _: None)

    def apply(self, planned: PlannedPatch) -> Path:
        context = self.context()
        tree = context.repositories.tree(self.engine.url, self.pin, moved={})
        target = self.folder / f"tree-{self.count}"
        context.scratch.export(apply_all(context, tree, (planned,)), target)
        assert not list(context.work.glob("script-*")), "the copy is gone"
        return target

    def finding(self, planned: PlannedPatch) -> PatchFinding:
        """What the doctor says of it on the pin."""
        source = GitCommit(self.engine.url, self.pin)
        (found,) = on_pin(PatchSet("engine", source, None, (planned,), self.context()))
        return found


@pytest.fixture
def bench(tmp_path: Path, hello: dict[str, Any]) -> Bench:
    """The image that scripts run in is the base's devel stage, which hello-sm120 stands on."""
    assert hello["built"] in {True, False}
    base = rendered(REPOSITORY, "hello-sm120-0.1.0").base
    return Bench(tmp_path, base.references["devel"])


EDIT = """
from pathlib import Path
import sys
file = Path(sys.argv[1] if len(sys.argv) > 1 else "pkg/attn.py")
file.write_text(file.read_text().replace("x = 1", "x = 2"))
"""


def test_a_scripts_result_is_the_patch(bench: Bench) -> None:
    assert (bench.apply(bench.planned(EDIT)) / "pkg/attn.py").read_text() == "x = 2\n"
    shell = "#!/bin/bash\nset -eu\nmkdir new\necho 'a b' > 'new/a b.txt'\nln -s attn.py pkg/l\n"
    tree = bench.apply(bench.planned(shell, "patch.sh"))
    assert (tree / "new" / "a b.txt").read_text() == "a b\n"
    assert (tree / "pkg" / "l").readlink() == Path("attn.py")
    deleting = bench.planned("#!/bin/sh\nrm b.c\n", "patch.sh", edits=["b.c"])
    assert not (bench.apply(deleting) / "b.c").exists()


def test_the_tree_may_stand_where_the_script_looks_for_it(bench: Bench) -> None:
    at = "/usr/local/lib/python3.12/dist-packages"
    planned = bench.planned(EDIT, at=at, arguments=[f"{at}/pkg/attn.py"])
    assert (bench.apply(planned) / "pkg/attn.py").read_text() == "x = 2\n"


def test_a_python_script_sees_no_installed_package(bench: Bench) -> None:
    """Nor an engine of the image, which it would edit in place of the tree."""
    paths = "import sys\nopen('pkg/attn.py', 'w').write('\\n'.join(sys.path))\n"
    seen = (bench.apply(bench.planned(paths)) / "pkg/attn.py").read_text()
    assert "/lib-dynload" in seen
    assert "-packages" not in seen
    assert "/patch" not in seen


def test_a_script_is_the_one_that_was_pinned(bench: Bench) -> None:
    good = hashlib.sha256(EDIT.encode()).hexdigest()
    bench.apply(bench.planned(EDIT, sha256=good))
    with pytest.raises(PatchError, match="differs from its pin"):
        bench.apply(bench.planned(EDIT + "\n", sha256=good))
    with pytest.raises(PatchError, match="does not exist"):
        bench.apply(bench.planned(EDIT, path="other.py"))


def test_exit_0_without_a_change_is_an_error(bench: Bench) -> None:
    logs = "from pathlib import Path\nif not Path('gone.py').exists(): print('skipped')\n"
    with pytest.raises(PatchError, match="exited 0 and changed nothing"):
        bench.apply(bench.planned(logs))


def test_a_script_that_fails_shows_what_it_printed(bench: Bench) -> None:
    with pytest.raises(PatchError, match="failed with exit status 3") as caught:
        bench.apply(bench.planned("import sys\nprint('anchor not found')\nsys.exit(3)\n"))
    assert "anchor not found" in caught.value.why


# Like patch_tolist_cudagraph.py: it edits what it finds, prints that, and exits 0.
TWO_SITES = """
from pathlib import Path
file = Path("pkg/attn.py")
text = file.read_text()
found = {}
for site, old in {"A": "y = max(", "B": "x = 1"}.items():
    found[site] = "applied" if old in text else "anchor-not-found"
    text = text.replace(old, "guarded: " + old)
file.write_text(text.replace("guarded: ", "z = 0; "))
print(f"Patched {file}. Site A={found['A']}, Site B={found['B']}")
"""
CONTAINS = ["Site A=applied", "Site B=applied"]


def test_a_script_that_applied_in_part_is_no_patch(bench: Bench) -> None:
    with pytest.raises(PatchError, match="exited 0 and did not print 'Site A=applied'") as caught:
        bench.apply(bench.planned(TWO_SITES, contains=CONTAINS))
    assert "Patched pkg/attn.py. Site A=anchor-not-found, Site B=applied" in caught.value.why
    half = bench.finding(bench.planned(TWO_SITES, contains=CONTAINS))
    assert (half.state, half.good) == ("conflicts", False)
    assert "Site A=anchor-not-found, Site B=applied" in "\n".join(half.details)
    # Without contains it passes, and its output is shown.
    (shown,) = bench.finding(bench.planned(TWO_SITES)).details
    assert shown == "it printed: Patched pkg/attn.py. Site A=anchor-not-found, Site B=applied"
    bench.pin = bench.engine.commit("two", **{"pkg__attn.py": "x = 1\ny = max([1])\n"})
    tree = bench.apply(bench.planned(TWO_SITES, contains=CONTAINS))
    assert (tree / "pkg/attn.py").read_text() == "z = 0; x = 1\nz = 0; y = max([1])\n"
    both = bench.finding(bench.planned(TWO_SITES, contains=CONTAINS))
    assert (both.state, both.good) == ("applies", True)
    assert both.details == ("it printed: Patched pkg/attn.py. Site A=applied, Site B=applied",)


def test_a_script_that_never_ends_is_stopped(bench: Bench) -> None:
    with pytest.raises(PatchError, match="did not end") as caught:
        bench.apply(bench.planned("while True: pass\n", seconds=2))
    assert "stopped after 2 s" in caught.value.why


@pytest.mark.parametrize(
    "program",
    [
        "open('/etc/owned', 'w')",
        "open('/usr/owned', 'w')",
        "open('/patch/patch.py', 'a').write('x')",
        "open('../owned', 'w')",
        "import os; os.mknod('dev', 0o600 | 0o020000, 259)",
        "import os; os.setuid(0) or os.chroot('/')",
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "import socket; socket.getaddrinfo('example.com', 80)",
        "open('big', 'wb').truncate(1 << 40)",
    ],
)
def test_a_script_reaches_nothing_but_its_tree(bench: Bench, program: str) -> None:
    with pytest.raises(PatchError, match="failed with exit status"):
        bench.apply(bench.planned(program))


def test_a_script_sees_nothing_of_this_machine(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    listing = (
        "import os\nfrom pathlib import Path\n"
        "Path('seen').write_text(repr((sorted(os.listdir('/tree')), sorted(os.listdir('/patch')),"
        " sorted(os.environ), sorted(os.listdir('/tmp')), os.listdir('/home'))))\n"
    )
    seen = eval((bench.apply(bench.planned(listing)) / "seen").read_text())  # noqa: S307
    assert seen[0] == ["b.c", "pkg"]
    assert seen[1] == ["patch.py"]
    assert "A_SECRET" not in seen[2]
    assert seen[3] == []


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.symlink('/etc/passwd', 'l')", "would be a link to /etc/passwd"),
        ("import os; os.symlink('../../x', 'pkg/l')", "would be a link to ../../x"),
        (
            "import os; os.symlink('..', 'pkg/l1'); os.symlink('pkg/l1/../../etc/passwd', 'l2')",
            "l2: would be a link to pkg/l1/../../etc/passwd",
        ),
    ],
)
def test_a_link_out_of_the_tree_is_refused(bench: Bench, program: str, message: str) -> None:
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.planned(program))
    assert message in str(caught.value)


def test_a_repository_in_the_tree_does_not_come_along(bench: Bench) -> None:
    nested = (
        "import os\nos.makedirs('.git/hooks')\nopen('.git/hooks/x', 'w').write('x')\n"
        "open('.git/config', 'w').write('[core]')\nopen('b.c', 'w').write('c')\n"
    )
    tree = bench.apply(bench.planned(nested))
    assert (tree / "b.c").read_text() == "c"
    assert not (tree / ".git").exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("mkdir pkg/.git && echo x > pkg/.git/HEAD", "pkg is a repository of its own"),
        ("echo 'gitdir: /nowhere' > pkg/.git", "pkg is a repository of its own"),
        ("mkdir pkg/.GIT && echo x > pkg/.GIT/x", "pkg/.GIT/x"),
    ],
)
def test_what_cannot_be_part_of_a_source_is_that_patchs_fault(
    bench: Bench, program: str, message: str
) -> None:
    shell = f"#!/bin/sh\nset -e\necho 'x = 2' > pkg/attn.py\n{program}\n"
    with pytest.raises(PatchError, match="leaves files that git cannot store") as caught:
        bench.apply(bench.planned(shell, "patch.sh"))
    assert message in caught.value.why


@pytest.mark.parametrize(
    ("program", "edits", "message"),
    [
        ("rm -r b.c pkg", [], "it deleted b.c, pkg/attn.py"),
        ("rm b.c", [], "it deleted b.c"),
        ("rm b.c", ["pkg/attn.py"], "it deleted b.c"),
        ("mv b.c c.c", ["pkg/attn.py", "c.c"], "it deleted b.c"),
        ("echo x > c.c", ["b.c"], "it changed c.c"),
        ("echo x > b.c; sed -i s/nope/x/ pkg/attn.py", ["b.c", "pkg/attn.py"], "pkg/attn.py"),
        ("echo x > b.c", ["b.c", "gone.c"], "did not change gone.c"),
        ("rm -r b.c pkg", ["b.c", "pkg/attn.py"], "deletes every file"),
    ],
)
def test_a_script_deletes_and_changes_what_the_recipe_names(
    bench: Bench, program: str, edits: list[str], message: str
) -> None:
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.planned(f"#!/bin/sh\n{program}\n", "patch.sh", edits=edits))
    assert message in str(caught.value)


def test_without_an_image_it_is_untried_and_not_wrong(bench: Bench) -> None:
    bench.image = None
    with pytest.raises(UntriedError, match="runs in a container"):
        bench.apply(bench.planned(EDIT))
