"""Exact commits out of real repositories, over file and smart HTTP, in good and bad times."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.core import web
from builder.core.errors import BuilderError, FetchError, GoneError
from builder.sources import git
from builder.sources.mirrors import Mirror
from support.mirrored import Mirrored, names
from support.upstreams import Upstream, numbered, smart_http

pytestmark = pytest.mark.usefixtures("no_waiting")


def test_a_commit_is_exported_whole_byte_for_byte_and_without_git(
    upstream: Upstream, mirrored: Mirrored
) -> None:
    tree = mirrored.export(upstream.url, upstream.head())
    assert names(tree) == [".gitattributes", "a.txt", "left-out.txt", "link", "program"]
    assert (tree / "link").readlink() == Path("a.txt")
    assert (tree / "program").stat().st_mode & 0o111
    assert (tree / "a.txt").read_bytes() == b"one\n"  # no attribute of the tree rewrites it


@pytest.mark.parametrize("transport", ["file", "http"])
def test_an_older_commit_is_the_one_that_was_pinned_at_depth_1(
    upstream: Upstream, mirrored: Mirrored, transport: str
) -> None:
    upstream.commit("two", **{"a.txt": "two\n"})
    commit = upstream.head()
    upstream.commit("three", **{"a.txt": "three\n"})
    with smart_http(upstream.folder.parent) as served:
        url = upstream.url if transport == "file" else f"{served.url}/engine/.git"
        assert (mirrored.export(url, commit) / "a.txt").read_text() == "two\n"
        counted = git.text(mirrored.pins(url), "rev-list", "--count", commit)
        assert counted == "1"


def test_a_mirrored_commit_needs_no_upstream(upstream: Upstream, mirrored: Mirrored) -> None:
    commit = upstream.head()
    mirrored.export(upstream.url, commit)
    upstream.folder.rename(upstream.folder.with_name("gone"))
    assert (mirrored.export(upstream.url, commit, offline=True) / "a.txt").read_text() == "one\n"


def test_offline_what_is_not_mirrored_is_named(upstream: Upstream, mirrored: Mirrored) -> None:
    with pytest.raises(FetchError, match=f"{upstream.head()} of file://.* is not mirrored"):
        mirrored.export(upstream.url, upstream.head(), offline=True)


def test_a_commit_that_is_not_there_is_named_and_not_asked_for_again(
    upstream: Upstream, mirrored: Mirrored
) -> None:
    with smart_http(upstream.folder.parent) as served:
        with pytest.raises(FetchError, match="cannot fetch " + "0" * 40) as caught:
            mirrored.export(f"{served.url}/engine/.git", "0" * 40)
        assert "not our ref" in caught.value.why
        assert len([r for r in served.requests if r.startswith("POST")]) == 1


@pytest.mark.parametrize("kind", ["tag", "tree"])
def test_a_tag_object_or_a_tree_is_no_commit(
    upstream: Upstream, mirrored: Mirrored, kind: str
) -> None:
    upstream.git("tag", "-a", "-m", "x", "v1")
    name = {"tag": "v1", "tree": "HEAD^{tree}"}[kind]
    with pytest.raises(FetchError, match=r"is not a commit[^~]*it is a " + kind):
        mirrored.export(upstream.url, upstream.git("rev-parse", name))


def test_gits_own_configuration_rewrites_urls(
    upstream: Upstream, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{upstream.folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.invalid/engine")
    tree = mirrored.export("https://git.example.invalid/engine", upstream.head())
    assert (tree / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("faults", [[429], [503, 503], ["cut"], [429, 503, "cut"], [None, "cut"]])
def test_a_server_that_falters_is_asked_again(
    upstream: Upstream, mirrored: Mirrored, faults: list[int | str]
) -> None:
    upstream.write("big.bin", bytes(range(256)) * 4000)
    commit = upstream.record("big")
    with smart_http(upstream.folder.parent) as served:
        served.faults = list(faults)
        tree = mirrored.export(f"{served.url}/engine/.git", commit)
        assert (tree / "big.bin").stat().st_size == 1_024_000
        assert served.faults == []


def test_a_server_that_stops_answering_half_way_is_asked_again(
    upstream: Upstream, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "GIVE_UP", 1.5)  # shorter than the transfer that breaks off
    monkeypatch.setenv("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
    monkeypatch.setenv("GIT_HTTP_LOW_SPEED_TIME", "3")
    upstream.write("big.bin", bytes(range(256)) * 4000)
    commit = upstream.record("big")
    with smart_http(upstream.folder.parent) as served:
        served.faults = [None, "stall"]
        tree = mirrored.export(f"{served.url}/engine/.git", commit)
        assert (tree / "big.bin").stat().st_size == 1_024_000
        assert len(served.requests) == 4
        assert any("trying again in 1 s" in line for line in mirrored.said), mirrored.said


@pytest.mark.parametrize("status", [401, 403, 404])
def test_no_is_an_answer_and_is_not_asked_again(
    upstream: Upstream, mirrored: Mirrored, status: int
) -> None:
    with smart_http(upstream.folder.parent) as served:
        served.faults = [status] * 9
        with pytest.raises(FetchError, match="cannot fetch") as caught:
            mirrored.export(f"{served.url}/engine/.git", upstream.head())
        assert len(served.requests) <= 2  # git itself asks twice where it is not let in
        assert ("authentication failed" in caught.value.what) == (status in {401, 403})


def test_a_server_that_never_recovers_is_given_up(upstream: Upstream, mirrored: Mirrored) -> None:
    with smart_http(upstream.folder.parent) as served:
        served.faults = [503] * 99
        with pytest.raises(FetchError, match="does not answer"):
            mirrored.export(f"{served.url}/engine/.git", upstream.head())
        assert len(served.requests) == web.ATTEMPTS
        with pytest.raises(FetchError, match="does not answer"):
            mirrored.export(f"{served.url}/engine/.git", upstream.head())
        assert len(served.requests) == web.ATTEMPTS + 1, "the next recipe asks once"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "git://127.0.0.1:9/x"])
def test_nobody_there_is_no_answer(mirrored: Mirrored, url: str) -> None:
    with pytest.raises(FetchError, match="does not answer") as caught:
        mirrored.export(url, "1" * 40)
    assert not isinstance(caught.value, GoneError)


def test_what_a_killed_fetch_left_is_no_obstacle(upstream: Upstream, mirrored: Mirrored) -> None:
    mirrored.export(upstream.url, upstream.head())
    commit = upstream.commit("two", **{"a.txt": "two\n"})
    pins = mirrored.pins(upstream.url)
    for lock in ("shallow.lock", "config.lock", "packed-refs.lock", f"refs/pins/{commit}.lock"):
        (pins / lock).touch()
    (pins / "objects" / "pack" / "tmp_pack_x").write_bytes(b"half")
    assert (mirrored.export(upstream.url, commit) / "a.txt").read_text() == "two\n"
    assert not list(pins.rglob("*.lock"))
    assert not list(pins.rglob("tmp_pack*"))


def test_a_killed_builder_starts_clean(upstream: Upstream, mirrored: Mirrored) -> None:
    """SIGKILL in the midst of a fetch, then the same again."""
    upstream.write("big.bin", b"".join(str(n * n).encode() for n in range(400_000)))
    commit = upstream.record("big")
    program = (
        "import sys; from pathlib import Path; from builder.sources.mirrors import Mirror; "
        "Mirror(sys.argv[1], Path(sys.argv[2]), print).pin(sys.argv[3])"
    )
    killed = 0
    for wait in (0.2, 0.3, 0.4, 0.5, 0.6):
        process = subprocess.Popen(
            [sys.executable, "-c", program, upstream.url, str(mirrored.cache), commit],
            stdout=subprocess.DEVNULL,
        )
        try:
            assert process.wait(wait) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert killed
    assert names(mirrored.export(upstream.url, commit))


def test_a_fetch_that_was_killed_before_its_last_step_is_begun_again(
    upstream: Upstream, mirrored: Mirrored
) -> None:
    """The objects have come; that history ends at the commit was not written yet."""
    mirrored.export(upstream.url, upstream.head())
    upstream.write("big.txt", numbered(3000))
    upstream.record("parent")
    commit = upstream.commit("two", **{"a.txt": "two\n"})
    other = Mirrored(mirrored.folder / "other")
    other.folder.mkdir()
    other.export(upstream.url, commit)
    ours, theirs = mirrored.pins(upstream.url), other.pins(upstream.url)
    git.run(theirs, "repack", "-a", "-d", "--quiet")
    for file in (theirs / "objects" / "pack").iterdir():
        shutil.copy(file, ours / "objects" / "pack")
    assert (mirrored.export(upstream.url, commit) / "a.txt").read_text() == "two\n"
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
    upstream: Upstream, mirrored: Mirrored, damage: object
) -> None:
    upstream.write("big.txt", numbered(3000))
    commit = upstream.record("big")
    before = mirrored.export(upstream.url, commit)
    assert callable(damage)
    damage(mirrored.pins(upstream.url))
    after = mirrored.export(upstream.url, commit)
    assert names(after) == names(before)
    assert (after / "big.txt").read_text() == numbered(3000)


def test_several_builds_use_one_mirror_at_once(upstream: Upstream, mirrored: Mirrored) -> None:
    commits = [upstream.commit(f"{n}", **{"a.txt": f"{n}\n"}) for n in range(6)]
    worlds = [Mirrored(mirrored.folder / f"w{n}") for n in range(6)]
    for each in worlds:
        each.folder.mkdir()
        each.cache = mirrored.cache
    with ThreadPoolExecutor(6) as pool:
        jobs = [
            pool.submit(each.export, upstream.url, commit)
            for each, commit in zip(worlds, commits, strict=True)
        ]
        for n, job in enumerate(jobs):
            assert (job.result() / "a.txt").read_text() == f"{n}\n"


@pytest.mark.parametrize("commit", ["--upload-pack=x", "HEAD", "0" * 39, "g" * 40, "0" * 40 + "\n"])
def test_only_a_full_commit_reaches_git(
    upstream: Upstream, mirrored: Mirrored, commit: str
) -> None:
    with pytest.raises(BuilderError, match="is not a full commit"):
        mirrored.export(upstream.url, commit)


def test_history_has_every_commit_and_contents_only_by_request(
    upstream: Upstream, mirrored: Mirrored
) -> None:
    commits = [upstream.commit(f"{n}", **{"a.txt": numbered(n + 1)}) for n in range(5)]
    repositories = mirrored.repositories()
    repositories.pin(upstream.url, commits[2])  # a shallow pin does not cut the history
    repositories.walk(upstream.url, commits[-1])
    scratch = repositories.scratch
    assert scratch.text("rev-list", "--count", commits[-1]) == "6"
    blob = scratch.text("rev-parse", f"{commits[1]}:a.txt")
    assert scratch.missing([blob]) == [blob]
    repositories.contents(upstream.url, [blob])
    assert scratch.missing([blob]) == []
    assert scratch.read(blob).decode() == numbered(2)


@pytest.mark.parametrize("server", ["file", "http"])
def test_a_shallow_repository_is_refused_until_it_is_whole(
    upstream: Upstream, mirrored: Mirrored, tmp_path: Path, server: str
) -> None:
    """git would fetch each missing parent, by one process inside of the other, without end."""
    commits = [upstream.commit(f"{n}", **{"a.txt": f"{n}\n"}) for n in range(5)]
    mine = tmp_path / "mine"
    subprocess.run(["git", "clone", "-q", "--depth=2", upstream.url, mine], check=True)
    shallow = Upstream(mine)
    with smart_http(mine / ".git") as http:
        url = shallow.url if server == "file" else http.url
        assert names(mirrored.export(url, commits[-1]))  # which needs no history
        for _ in range(2):
            with pytest.raises(FetchError, match="is a shallow repository") as caught:
                mirrored.repositories().walk(url, commits[-1])
            assert "git fetch --unshallow" in caught.value.hint
        # A run that was killed before it refused.
        history = next(mirrored.cache.rglob("history.git"))
        git.run(history, "update-ref", f"refs/walked/{commits[-1]}", commits[-1])
        (history / "shallow").write_text(f"{commits[-2]}\n")
        with pytest.raises(FetchError, match="is a shallow repository"):
            mirrored.repositories().walk(url, commits[-1])
        shallow.git("fetch", "--unshallow")
        repositories = mirrored.repositories()
        repositories.walk(url, commits[-1])
        assert repositories.scratch.text("rev-list", "--count", commits[-1]) == "6"


def test_offline_knows_the_refs_of_the_last_time(upstream: Upstream, mirrored: Mirrored) -> None:
    upstream.git("tag", "-a", "-m", "x", "v1")
    first = Mirror(upstream.url, mirrored.cache, mirrored.said.append).advertised()
    upstream.commit("two", **{"a.txt": "two\n"})
    again = Mirror(upstream.url, mirrored.cache, mirrored.said.append, offline=True).advertised()
    assert again == first
    assert first.head == "refs/heads/main"
    assert first.commit("refs/tags/v1") == first.commit("refs/heads/main")


def test_refs_that_cannot_be_read_are_not_mirrored(upstream: Upstream, mirrored: Mirrored) -> None:
    odd = b"refs/tags/\xff".decode("utf-8", "surrogateescape")
    upstream.git("update-ref", odd, "HEAD")
    online = Mirror(upstream.url, mirrored.cache, mirrored.said.append)
    first = online.advertised()
    assert first.commit("refs/tags/\\xff") == first.commit("refs/heads/main")
    offline = Mirror(upstream.url, mirrored.cache, mirrored.said.append, offline=True)
    assert offline.advertised() == first
    file = online.folder / "advertised.json"
    for text in ('{"refs": {"refs/heads/main": 1}, "head": ""}', '{"refs": {}}', "{", "[]"):
        file.write_text(text)
        with pytest.raises(FetchError, match="is not mirrored"):
            Mirror(upstream.url, mirrored.cache, mirrored.said.append, offline=True).advertised()
