"""Repositories read through GitPython: what is open, what is sealed, and what fails how."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.sources import git
from builder.sources.git import GitError, GitRepository, Scratch
from builder.sources.mirrors import Repositories
from support.upstreams import Upstream, numbered, smart_http


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "served" / "engine")
    made.commit("one", **{"a.txt": "one\n", "deep__er__b.txt": "b\n"})
    return made


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[Repositories]:
    (tmp_path / "work").mkdir()
    made = Repositories(tmp_path / "cache", tmp_path / "work", print)
    yield made
    made.close()


@pytest.fixture
def scratch(upstream: Upstream, tmp_path: Path) -> Scratch:
    """A repository that sees the objects of ``upstream``."""
    made = Scratch(tmp_path / "scratch.git")
    made.add_objects([upstream.folder / ".git" / "objects"])
    return made


def readers(folder: Path) -> list[list[bytes]]:
    """The children of this process that read objects of repositories below ``folder``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, ppid = stat.read_text().rpartition(")")[2].split()[:2]
            arguments = stat.with_name("cmdline").read_bytes().split(b"\0")
            ours = int(ppid) == os.getpid() and b"cat-file" in arguments
            found += [arguments] if ours and os.fsencode(folder) in b" ".join(arguments) else []
    return found


def test_files_are_found_by_path_and_read_by_one_process(
    upstream: Upstream, scratch: Scratch, tmp_path: Path
) -> None:
    upstream.write("program", "#!/bin/sh\n")
    (upstream.folder / "program").chmod(0o755)
    (upstream.folder / "link").symlink_to("a.txt")
    upstream.write("blanks and ünïcode\t/\xff.txt", "odd\n")
    commit = upstream.record("more")
    tree = scratch.tree_of(commit)
    listed = {item.path: item for item in scratch.items(tree)}
    for name in listed:  # the listing of git, and each path by GitPython's trees
        assert scratch.entry(tree, name) == scratch.entry(commit, name) == listed[name]
    assert [listed[name].mode for name in ("a.txt", "program", "link")] == [
        *("100644", "100755", "120000")
    ]
    for name in ("deep", "deep/er", "a.txt/x", "none", "deep/none", "", "a.txt/"):
        assert scratch.file(tree, name) is None, name
    assert scratch.file(tree, "deep/er/b.txt") == b"b\n"
    assert scratch.file(tree, "blanks and ünïcode\t/\xff.txt") == b"odd\n"
    assert scratch.symlinks(tree) == {"link": "a.txt"}
    name = listed["a.txt"].object
    assert scratch.missing([name[:9], "0" * 9]) == ["0" * 9]
    assert len(readers(tmp_path)) == 2  # one for contents, one for names
    assert scratch.close()
    assert readers(tmp_path) == []
    assert not scratch.close()
    assert scratch.read(name) == b"one\n"  # and opens again


def test_names_that_are_not_utf_8(upstream: Upstream, scratch: Scratch) -> None:
    upstream.write(os.fsdecode(b"latin-\xe9.txt"), "e\n")
    tree = scratch.tree_of(upstream.record("latin"))
    assert scratch.file(tree, os.fsdecode(b"latin-\xe9.txt")) == b"e\n"
    assert os.fsdecode(b"latin-\xe9.txt") in {item.path for item in scratch.items(tree)}


def test_ancestry(upstream: Upstream, scratch: Scratch) -> None:
    base = upstream.head()
    upstream.git("checkout", "--quiet", "-b", "side")
    side = upstream.commit("side", **{"side.txt": "1\n"})
    upstream.git("checkout", "--quiet", "main")
    main = upstream.commit("main", **{"a.txt": "2\n"})
    upstream.git("checkout", "--quiet", "--orphan", "other")
    other = upstream.record("nothing in common")
    assert scratch.is_ancestor(base, side)
    assert scratch.is_ancestor(side, side)
    assert not scratch.is_ancestor(side, main)
    assert scratch.merge_bases(side, main) == [base]
    assert scratch.merge_bases(other, main) == []
    with pytest.raises(GitError):
        scratch.merge_bases("0" * 40, main)
    with pytest.raises(GitError):
        scratch.is_ancestor("0" * 40, main)


def test_no_reader_outlives_an_error_or_its_repository(
    upstream: Upstream, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = upstream.git("rev-parse", "HEAD:a.txt")
    assert scratch.read(blob) == b"one\n"
    assert readers(tmp_path)
    for name in ("0" * 40, upstream.git("rev-parse", "HEAD^{tree}")):
        with pytest.raises(GitError, match="git cat-file failed"):
            scratch.read(name)
        assert readers(tmp_path) == []
        assert scratch.read(blob) == b"one\n"  # no answer of before is left in a pipe
    stream = scratch.reader.CatFileContentStream
    monkeypatch.setattr(stream, "read", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        scratch.read(blob)
    monkeypatch.undo()
    assert readers(tmp_path) == []
    assert scratch.read(blob) == b"one\n"
    other = GitRepository(upstream.folder / ".git")
    other.read(blob)
    assert len(readers(tmp_path)) == 2
    del other
    assert len(readers(tmp_path)) == 1
    scratch.close()
    assert readers(tmp_path) == []


def test_no_reader_outlives_a_killed_builder(upstream: Upstream) -> None:
    folder, blob = upstream.folder / ".git", upstream.git("rev-parse", "HEAD:a.txt")
    program = (
        "import sys, time; from pathlib import Path\n"
        "from builder.sources.git import GitRepository\n"
        "repository = GitRepository(Path(sys.argv[1])); repository.read(sys.argv[2])\n"
        "print(repository.processes[0].pid, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), blob], stdout=subprocess.PIPE, text=True
    )
    with process:
        reader = Path("/proc") / (process.stdout or sys.stdin).readline().strip()
        assert reader.exists()
        process.kill()
    for _ in range(100):
        if not reader.exists():
            break
        time.sleep(0.05)
    assert not reader.exists()


def test_contents_of_a_partial_clone_are_fetched_only_on_request(
    upstream: Upstream, repositories: Repositories
) -> None:
    """Also with a reader that is running, and has no such object when it starts."""
    commits = [upstream.commit(f"{n}", **{"a.txt": numbered(n + 1)}) for n in range(3)]
    with smart_http(upstream.folder.parent) as served:
        url = f"{served.url}/engine/.git"
        repositories.walk(url, commits[-1])
        scratch = repositories.scratch
        tree = scratch.tree_of(commits[0])
        item = scratch.entry(tree, "a.txt")
        assert item is not None
        served.requests.clear()
        with pytest.raises(GitError, match="missing or damaged"):
            scratch.read(item.object)
        with pytest.raises(GitError):
            GitRepository(repositories.mirror(url).history).read(item.object)
        assert scratch.missing([item.object]) == [item.object]
        assert served.requests == []
        assert scratch.entry(tree, "a.txt") == item
        repositories.contents(url, [item.object])
        assert scratch.read(item.object).decode() == numbered(1)


@pytest.mark.parametrize("how", ["by a command", "by the reader"])
def test_a_mirror_that_is_damaged_while_it_is_read_is_repaired(
    upstream: Upstream, repositories: Repositories, how: str
) -> None:
    """Everything that this run asked of it is fetched again, and the damaged one is set aside."""
    commits = [upstream.commit(f"{n}", **{"a.txt": numbered(n + 1)}) for n in range(3)]
    repositories.walk(upstream.url, commits[-1])
    scratch = repositories.scratch
    blob = upstream.git("rev-parse", f"{commits[0]}:a.txt")
    repositories.contents(upstream.url, [blob])
    mirror = repositories.mirror(upstream.url)
    for pack in mirror.history.glob("objects/pack/*.pack"):
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[:50])
    if how == "by a command":
        assert scratch.text("rev-list", "--count", commits[-1]) == "4"
    assert scratch.read(blob).decode() == numbered(1)
    assert scratch.text("rev-list", "--count", commits[-1]) == "4"
    assert list(mirror.folder.glob("damaged-*-history.git"))
    with pytest.raises(GitError):
        scratch.read("1" * 40)


def test_another_repository_in_the_environment_is_not_used(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a git hook sets it, which runs builder."""
    other = Upstream(tmp_path / "other")
    other.commit("other", **{"other.txt": "x\n"})
    blob = upstream.git("rev-parse", "HEAD:a.txt")
    before = sorted(path.name for path in (other.folder / ".git").rglob("*"))
    for name, value in {
        "GIT_DIR": other.folder / ".git",
        "GIT_COMMON_DIR": other.folder / ".git",
        "GIT_WORK_TREE": other.folder,
        "GIT_INDEX_FILE": other.folder / ".git" / "index",
        "GIT_OBJECT_DIRECTORY": other.folder / ".git" / "objects",
        "GIT_EXTERNAL_DIFF": "false",
    }.items():
        monkeypatch.setenv(name, str(value))
    environment = dict(os.environ)
    scratch = Scratch(tmp_path / "scratch.git")
    scratch.add_objects([upstream.folder / ".git" / "objects"])
    assert scratch.read(blob) == b"one\n"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.txt").write_text("two\n")
    tree = scratch.tree_from(tmp_path / "new")
    assert [item.path for item in scratch.items(tree)] == ["a.txt"]
    assert sorted(path.name for path in (other.folder / ".git").rglob("*")) == before
    assert dict(os.environ) == environment  # what builder starts later may want them


def test_the_users_configuration_does_not_change_contents(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[core]\nautocrlf = true\nquotePath = false\n[init]\ntemplateDir = /nowhere\n"
        "[diff]\nnoprefix = true\nrenames = copies\n[log]\nshowSignature = true\n"
    )
    old, new = upstream.head(), upstream.commit("two", **{"a.txt": "one\r\ntwo\n"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    scratch = Scratch(tmp_path / "scratch.git")
    scratch.add_objects([upstream.folder / ".git" / "objects"])
    assert b"--- a/a.txt\n+++ b/a.txt\n" in scratch.diff(old, new)
    scratch.export(scratch.tree_of(new), tmp_path / "tree")
    assert (tmp_path / "tree" / "a.txt").read_bytes() == b"one\r\ntwo\n"
    assert scratch.tree_from(tmp_path / "tree") == scratch.tree_of(new)


def test_without_git_the_first_use_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = (
        "from pathlib import Path; from builder.core.errors import WorldError\n"
        "from builder.sources import git as command, git as scratch\n"
        "assert command.version() is None\n"
        f"at = Path({str(tmp_path)!r})\n"
        "for use in (lambda: scratch.Scratch(at / 'x'), lambda: command.run(at, 'version')):\n"
        "    try:\n        use()\n"
        "    except WorldError as error:\n        print(error.what, '->', error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "git is not installed -> install git: apt-get install git\n" * 2


@pytest.mark.parametrize("damage", ["config", "HEAD", "objects"])
def test_a_damaged_repository_is_an_error_of_git(tmp_path: Path, damage: str) -> None:
    repository = GitRepository(tmp_path / "x.git")
    repository.create()
    if damage == "config":
        (repository.folder / "config").write_text("[core\nnonsense")
    else:
        (repository.folder / damage).rename(tmp_path / damage)
    with pytest.raises(GitError):
        GitRepository(repository.folder).text("rev-parse", "HEAD")
    assert not git.is_intact(repository.folder)


def test_the_reason_of_git_is_kept(scratch: Scratch) -> None:
    with pytest.raises(GitError, match="git rev-parse failed") as caught:
        scratch.text("rev-parse", "--verify", "refs/heads/none")
    assert caught.value.why == "fatal: Needed a single revision"
    assert caught.value.status == 128
    with pytest.raises(WorldError, match="git merge-base failed") as again:
        scratch.merge_bases("0" * 40, "1" * 40)
    assert "Not a valid commit name" in again.value.why
