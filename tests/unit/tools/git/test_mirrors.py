"""Exact commits out of real repositories, over file and smart HTTP, in good and bad times."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import BuilderError, FetchError, GoneError
from builder.tools.git import command as git
from builder.tools.git.arguments import checked_url
from builder.tools.git.mirrors import Mirror
from builder.tools.git.repositories import Repositories
from builder.tools.web import retry
from support.upstreams import Upstream, numbered, smart_http


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    import tenacity.nap

    monkeypatch.setattr(tenacity.nap, "sleep", lambda _: None)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "served" / "engine")
    made.write("left-out.txt", "archives leave me out\n")
    made.write(".gitattributes", "left-out.txt export-ignore\n*.txt text eol=crlf\n")
    made.write("program", "#!/bin/sh\n")
    (made.folder / "program").chmod(0o755)
    (made.folder / "link").symlink_to("a.txt")
    made.commit("one", **{"a.txt": "one\n"})
    return made


class World:
    """A cache, and the trees that come out of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.said: list[str] = []
        self.count = 0

    def repositories(self, *, offline: bool = False) -> Repositories:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        return Repositories(self.cache, work, self.said.append, offline=offline)

    def export(
        self,
        url: str,
        commit: str,
        *,
        offline: bool = False,
        submodules: bool = True,
        moved: dict[str, str] | None = None,
    ) -> Path:
        repositories = self.repositories(offline=offline)
        target = self.folder / f"tree-{self.count}"

        def work() -> None:
            tree = repositories.tree(url, commit, submodules=submodules, moved=moved or {})
            shutil.rmtree(target, ignore_errors=True)
            repositories.scratch.export(tree, target)

        repositories.repairing(work)
        return target

    def pins(self, url: str) -> Path:
        return Mirror(url, self.cache, self.said.append).pins.folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def names(tree: Path) -> list[str]:
    return sorted(
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def test_a_commit_is_exported_whole_byte_for_byte_and_without_git(
    upstream: Upstream, world: World
) -> None:
    tree = world.export(upstream.url, upstream.head())
    assert names(tree) == [".gitattributes", "a.txt", "left-out.txt", "link", "program"]
    assert (tree / "link").readlink() == Path("a.txt")
    assert (tree / "program").stat().st_mode & 0o111
    assert (tree / "a.txt").read_bytes() == b"one\n"  # no attribute of the tree rewrites it


@pytest.mark.parametrize("transport", ["file", "http"])
def test_an_older_commit_is_the_one_that_was_pinned_at_depth_1(
    upstream: Upstream, world: World, transport: str
) -> None:
    upstream.commit("two", **{"a.txt": "two\n"})
    commit = upstream.head()
    upstream.commit("three", **{"a.txt": "three\n"})
    with smart_http(upstream.folder.parent) as served:
        url = upstream.url if transport == "file" else f"{served.url}/engine/.git"
        assert (world.export(url, commit) / "a.txt").read_text() == "two\n"
        counted = git.text(world.pins(url), "rev-list", "--count", commit)
        assert counted == "1"


def test_a_mirrored_commit_needs_no_upstream(upstream: Upstream, world: World) -> None:
    commit = upstream.head()
    world.export(upstream.url, commit)
    upstream.folder.rename(upstream.folder.with_name("gone"))
    assert (world.export(upstream.url, commit, offline=True) / "a.txt").read_text() == "one\n"


def test_offline_what_is_not_mirrored_is_named(upstream: Upstream, world: World) -> None:
    with pytest.raises(FetchError, match=f"{upstream.head()} of file://.* is not mirrored"):
        world.export(upstream.url, upstream.head(), offline=True)


def test_a_commit_that_is_not_there_is_named_and_not_asked_for_again(
    upstream: Upstream, world: World
) -> None:
    with smart_http(upstream.folder.parent) as served:
        with pytest.raises(FetchError, match="cannot fetch " + "0" * 40) as caught:
            world.export(f"{served.url}/engine/.git", "0" * 40)
        assert "not our ref" in caught.value.why
        assert len([r for r in served.requests if r.startswith("POST")]) == 1


@pytest.mark.parametrize("kind", ["tag", "tree"])
def test_a_tag_object_or_a_tree_is_no_commit(upstream: Upstream, world: World, kind: str) -> None:
    upstream.git("tag", "-a", "-m", "x", "v1")
    name = {"tag": "v1", "tree": "HEAD^{tree}"}[kind]
    with pytest.raises(FetchError, match=r"is not a commit[^~]*it is a " + kind):
        world.export(upstream.url, upstream.git("rev-parse", name))


def test_gits_own_configuration_rewrites_urls(
    upstream: Upstream, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{upstream.folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.invalid/engine")
    tree = world.export("https://git.example.invalid/engine", upstream.head())
    assert (tree / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("faults", [[429], [503, 503], ["cut"], [429, 503, "cut"], [None, "cut"]])
def test_a_server_that_falters_is_asked_again(
    upstream: Upstream, world: World, faults: list[int | str]
) -> None:
    upstream.write("big.bin", bytes(range(256)) * 4000)
    commit = upstream.record("big")
    with smart_http(upstream.folder.parent) as served:
        served.faults = list(faults)
        tree = world.export(f"{served.url}/engine/.git", commit)
        assert (tree / "big.bin").stat().st_size == 1_024_000
        assert served.faults == []


def test_a_server_that_stops_answering_half_way_is_asked_again(
    upstream: Upstream, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "GIVE_UP", 1.5)  # shorter than the transfer that breaks off
    monkeypatch.setenv("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
    monkeypatch.setenv("GIT_HTTP_LOW_SPEED_TIME", "1")
    upstream.write("big.bin", bytes(range(256)) * 4000)
    commit = upstream.record("big")
    with smart_http(upstream.folder.parent) as served:
        served.faults = [None, "stall"]
        tree = world.export(f"{served.url}/engine/.git", commit)
        assert (tree / "big.bin").stat().st_size == 1_024_000
        assert len(served.requests) == 4
        assert any("trying again in 1 s" in line for line in world.said), world.said


@pytest.mark.parametrize("status", [401, 403, 404])
def test_no_is_an_answer_and_is_not_asked_again(
    upstream: Upstream, world: World, status: int
) -> None:
    with smart_http(upstream.folder.parent) as served:
        served.faults = [status] * 9
        with pytest.raises(FetchError, match="cannot fetch") as caught:
            world.export(f"{served.url}/engine/.git", upstream.head())
        assert len(served.requests) <= 2  # git itself asks twice where it is not let in
        assert ("authentication failed" in caught.value.what) == (status in {401, 403})


def test_a_server_that_never_recovers_is_given_up(upstream: Upstream, world: World) -> None:
    with smart_http(upstream.folder.parent) as served:
        served.faults = [503] * 99
        with pytest.raises(FetchError, match="does not answer"):
            world.export(f"{served.url}/engine/.git", upstream.head())
        assert len(served.requests) == retry.ATTEMPTS


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "git://127.0.0.1:9/x"])
def test_nobody_there_is_no_answer(world: World, url: str) -> None:
    with pytest.raises(FetchError, match="does not answer") as caught:
        world.export(url, "1" * 40)
    assert not isinstance(caught.value, GoneError)


def test_what_a_killed_fetch_left_is_no_obstacle(upstream: Upstream, world: World) -> None:
    world.export(upstream.url, upstream.head())
    commit = upstream.commit("two", **{"a.txt": "two\n"})
    pins = world.pins(upstream.url)
    for lock in ("shallow.lock", "config.lock", "packed-refs.lock", f"refs/pins/{commit}.lock"):
        (pins / lock).touch()
    (pins / "objects" / "pack" / "tmp_pack_x").write_bytes(b"half")
    assert (world.export(upstream.url, commit) / "a.txt").read_text() == "two\n"
    assert not list(pins.rglob("*.lock"))
    assert not list(pins.rglob("tmp_pack*"))


def test_a_killed_builder_starts_clean(upstream: Upstream, world: World) -> None:
    """SIGKILL in the midst of a fetch, then the same again."""
    upstream.write("big.bin", b"".join(str(n * n).encode() for n in range(400_000)))
    commit = upstream.record("big")
    program = (
        "import sys; from pathlib import Path; from builder.tools.git.mirrors import Mirror; "
        "Mirror(sys.argv[1], Path(sys.argv[2]), print).pin(sys.argv[3])"
    )
    killed = 0
    for wait in (0.2, 0.3, 0.4, 0.5, 0.6):
        process = subprocess.Popen(
            [sys.executable, "-c", program, upstream.url, str(world.cache), commit],
            stdout=subprocess.DEVNULL,
        )
        try:
            assert process.wait(wait) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert killed
    assert names(world.export(upstream.url, commit))


def test_a_fetch_that_was_killed_before_its_last_step_is_begun_again(
    upstream: Upstream, world: World
) -> None:
    """The objects have come; that history ends at the commit was not written yet."""
    world.export(upstream.url, upstream.head())
    upstream.write("big.txt", numbered(3000))
    upstream.record("parent")
    commit = upstream.commit("two", **{"a.txt": "two\n"})
    other = World(world.folder / "other")
    other.folder.mkdir()
    other.export(upstream.url, commit)
    ours, theirs = world.pins(upstream.url), other.pins(upstream.url)
    git.run(theirs, "repack", "-a", "-d", "--quiet")
    for file in (theirs / "objects" / "pack").iterdir():
        shutil.copy(file, ours / "objects" / "pack")
    assert (world.export(upstream.url, commit) / "a.txt").read_text() == "two\n"
    assert not list(ours.parent.glob("damaged-*"))


def damage_pack(pins: Path) -> None:
    for pack in pins.glob("objects/pack/*.pack"):
        pack.chmod(0o644)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 0xFF
        content[len(content) // 3] ^= 0xFF
        pack.write_bytes(content)


def cut_pack(pins: Path) -> None:
    for pack in pins.glob("objects/pack/*.pack"):
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[:50])


def lose_pack(pins: Path) -> None:
    shutil.rmtree(pins / "objects" / "pack")


def lose_config(pins: Path) -> None:
    (pins / "config").write_text("[core\nnonsense")


def lose_head(pins: Path) -> None:
    (pins / "HEAD").unlink()


def garble_ref(pins: Path) -> None:
    for ref in (pins / "refs" / "pins").iterdir():
        ref.write_text("nonsense\n")


@pytest.mark.parametrize(
    "damage", [damage_pack, cut_pack, lose_pack, lose_config, lose_head, garble_ref]
)
def test_a_damaged_mirror_is_noticed_and_made_anew(
    upstream: Upstream, world: World, damage: object
) -> None:
    upstream.write("big.txt", numbered(3000))
    commit = upstream.record("big")
    before = world.export(upstream.url, commit)
    assert callable(damage)
    damage(world.pins(upstream.url))
    after = world.export(upstream.url, commit)
    assert names(after) == names(before)
    assert (after / "big.txt").read_text() == numbered(3000)


def test_several_builds_use_one_mirror_at_once(upstream: Upstream, world: World) -> None:
    commits = [upstream.commit(f"{n}", **{"a.txt": f"{n}\n"}) for n in range(6)]
    worlds = [World(world.folder / f"w{n}") for n in range(6)]
    for each in worlds:
        each.folder.mkdir()
        each.cache = world.cache
    with ThreadPoolExecutor(6) as pool:
        jobs = [
            pool.submit(each.export, upstream.url, commit)
            for each, commit in zip(worlds, commits, strict=True)
        ]
        for n, job in enumerate(jobs):
            assert (job.result() / "a.txt").read_text() == f"{n}\n"


# Submodules


@pytest.fixture
def nested(tmp_path: Path) -> tuple[Upstream, Upstream, Upstream]:
    """An engine that pins deps/inner, which pins vendor/leaf by a relative URL."""
    leaf = Upstream(tmp_path / "served" / "leaf")
    leaf.commit("leaf", **{"leaf.h": "1\n"})
    inner = Upstream(tmp_path / "served" / "inner")
    inner.commit("inner", **{"inner.h": "1\n"})
    inner.git("submodule", "--quiet", "add", "../leaf", "vendor/leaf")
    inner.record("with leaf")
    outer = Upstream(tmp_path / "served" / "outer")
    outer.commit("outer", **{"main.c": "1\n"})
    outer.git("submodule", "--quiet", "add", inner.url, "deps/inner")
    outer.record("with inner")
    leaf.commit("newer", **{"leaf.h": "2\n"})
    inner.commit("newer", **{"inner.h": "2\n"})
    return outer, inner, leaf


def test_submodules_come_recursively_by_the_commits_that_the_tree_pins(
    nested: tuple[Upstream, Upstream, Upstream], world: World
) -> None:
    tree = world.export(nested[0].url, nested[0].head())
    assert (tree / "deps/inner/inner.h").read_text() == "1\n"
    assert (tree / "deps/inner/vendor/leaf/leaf.h").read_text() == "1\n"
    assert not list(tree.rglob(".git"))


def test_submodules_can_be_left_out(
    nested: tuple[Upstream, Upstream, Upstream], world: World
) -> None:
    tree = world.export(nested[0].url, nested[0].head(), submodules=False)
    assert names(tree) == [".gitmodules", "main.c"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_submodule_that_has_moved_is_told_where(
    nested: tuple[Upstream, Upstream, Upstream], world: World, inside: bool
) -> None:
    outer, inner, leaf = nested
    who, path = (leaf, "deps/inner/vendor/leaf") if inside else (inner, "deps/inner")
    moved = who.folder.with_name("renamed")
    who.folder.rename(moved)
    with pytest.raises(FetchError, match="cannot fetch"):
        world.export(outer.url, outer.head())
    urls = {path: f"file://{moved}"}
    if not inside:
        urls["deps/inner/vendor/leaf"] = leaf.url
    tree = world.export(outer.url, outer.head(), moved=urls)
    assert (tree / "deps/inner/vendor/leaf/leaf.h").read_text() == "1\n"


def test_gitlinks_without_gitmodules_are_an_error_that_says_what_to_do(
    nested: tuple[Upstream, Upstream, Upstream], world: World
) -> None:
    outer = nested[0]
    commit = outer.commit("no .gitmodules", **{".gitmodules": ""})
    with pytest.raises(FetchError, match="has no URL for it") as caught:
        world.export(outer.url, commit)
    assert "deps/inner" in caught.value.what
    assert "submodules = false" in caught.value.hint
    assert "main.c" in names(world.export(outer.url, commit, submodules=False))


def test_a_url_for_a_path_that_is_no_submodule_is_an_error(
    nested: tuple[Upstream, Upstream, Upstream], world: World
) -> None:
    with pytest.raises(FetchError, match="has no submodule deps/other"):
        world.export(nested[0].url, nested[0].head(), moved={"deps/other": nested[1].url})


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/owned",
        "--upload-pack=touch /tmp/owned",
        "-x",
        "fd::17",
        "/etc",
        "C:\\x",
        "http://x y",
        "http://x\ny",
    ],
)
def test_gitmodules_cannot_make_git_run_commands(
    nested: tuple[Upstream, Upstream, Upstream], world: World, url: str
) -> None:
    outer = nested[0]
    outer.git("config", "--file", ".gitmodules", "submodule.deps/inner.url", url)
    commit = outer.record("hostile")
    with pytest.raises(FetchError, match="is not a supported git URL"):
        world.export(outer.url, commit)


@pytest.mark.parametrize("commit", ["--upload-pack=x", "HEAD", "0" * 39, "g" * 40, "0" * 40 + "\n"])
def test_only_a_full_commit_reaches_git(upstream: Upstream, world: World, commit: str) -> None:
    with pytest.raises(BuilderError, match="is not a full commit"):
        world.export(upstream.url, commit)


def test_an_ssh_address_without_a_scheme_is_an_ssh_url() -> None:
    url = checked_url("git@git.example.invalid:a/b.git")
    assert url == "ssh://git@git.example.invalid/a/b.git"


# History


def test_history_has_every_commit_and_contents_only_by_request(
    upstream: Upstream, world: World
) -> None:
    commits = [upstream.commit(f"{n}", **{"a.txt": numbered(n + 1)}) for n in range(5)]
    repositories = world.repositories()
    repositories.pin(upstream.url, commits[2])  # a shallow pin does not cut the history
    repositories.walk(upstream.url, commits[-1])
    scratch = repositories.scratch
    assert scratch.text("rev-list", "--count", commits[-1]) == "6"
    blob = scratch.text("rev-parse", f"{commits[1]}:a.txt")
    assert scratch.missing([blob]) == [blob]
    repositories.contents(upstream.url, [blob])
    assert scratch.missing([blob]) == []
    assert scratch.read(blob).decode() == numbered(2)


def test_offline_knows_the_refs_of_the_last_time(upstream: Upstream, world: World) -> None:
    upstream.git("tag", "-a", "-m", "x", "v1")
    first = Mirror(upstream.url, world.cache, world.said.append).advertised()
    upstream.commit("two", **{"a.txt": "two\n"})
    again = Mirror(upstream.url, world.cache, world.said.append, offline=True).advertised()
    assert again == first
    assert first.head == "refs/heads/main"
    assert first.commit("refs/tags/v1") == first.commit("refs/heads/main")
