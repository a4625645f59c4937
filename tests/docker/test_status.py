"""What `status` tells of channels whose upstream does all that upstreams do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine

from builder.cli.nightly import overview_of_statuses
from builder.core import web
from builder.core.errors import FetchError, StaleError
from builder.core.settings import Settings
from builder.publish import nights, tags
from builder.publish import registry as client
from builder.publish.registry import Repository
from builder.sources.mirrors import Repositories
from builder.upstream.status import Status, require_fresh, statuses
from support import catalogs, indexes, upstreams
from support.commands import Builder
from support.environment import REPOSITORY
from support.nights import night
from support.registries import Fault, Proxy, proxied, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]
DAY = 86400
START = 1_795_000_000  # 2026-11-18
CREATED = "org_opencontainers_image_created"
REVISION = "org_opencontainers_image_revision"
VERSION = "org_opencontainers_image_version"


class World:
    """A catalog of one channel, its upstream and its registry, at a time that can be chosen."""

    def __init__(self, root: Path, registry: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.root = root / "catalog"
        shutil.copytree(REPOSITORY / "recipes" / "bases", self.root / "recipes" / "bases")
        self.upstream = upstreams.Upstream(root / "upstream")
        self.upstream.clock = START
        self.repository = Repository(f"{registry}/me/llama-cpp", print)
        self.settings = Settings(namespace=f"{proxy.address}/me")
        self.work = root / "work"
        self.skew = 0.0
        self.text = (REPOSITORY / "recipes" / "llama-cpp-master.toml").read_text()
        self.follow('tag     = "b[0-9]*"')

    def follow(self, track: str, name: str = "llama-cpp-master") -> None:
        text = self.text.replace("https://github.com/ggml-org/llama.cpp", self.upstream.url, 2)
        text = text.replace('tag     = "b[0-9]*"', track)
        (self.root / "recipes" / f"{name}.toml").write_text(text)

    def release(self, tag: str = "", days: int = 0) -> str:
        """A commit of upstream, and perhaps a tag, so many days after the start."""
        self.upstream.clock = START + days * DAY
        commit = self.upstream.commit(f"{tag} {days}", a=f"{tag} {days}\n")
        if tag:
            self.upstream.git("tag", "--force", tag)
        return commit

    def serve(self, commit: str, version: str, day: int = 0, tag: str = "master") -> None:
        made = {CREATED: f"2026-11-{18 + day:02}T03:00:00+00:00", REVISION: commit}
        put_image(self.repository, "key", tag, **made, **{VERSION: version})

    def status(self, day: int, *names: str, **options: Any) -> Status:
        return self.all(day, *names, **options)[0]

    def all(self, day: int, *names: str, **options: Any) -> list[Status]:
        found = catalogs.load(self.root)
        self.proxy.ahead = self.skew  # it has the time of this process, which travels
        with time_machine.travel(START + day * DAY + 3600):
            repositories = Repositories(self.work, self.work / "scratch", print)
            return list(statuses(found, self.settings, names, repositories, **options))


@pytest.fixture
def world(tmp_path: Path, registry: str) -> Iterator[World]:
    with proxied(registry) as proxy:
        yield World(tmp_path, registry, proxy)


def told(status: Status) -> tuple[str, int | None, int | None]:
    return status.state, status.commits, status.days


def test_a_channel_grows_old(world: World) -> None:
    first = world.release("b9")
    assert told(world.status(0)) == ("empty", 0, 0)
    world.serve(first, "master-b9")
    assert told(world.status(0)) == ("current", 0, 0)
    assert told(world.status(30)) == ("current", 0, 0)  # nothing newer: it is not old
    assert world.status(30).still == 30
    world.release("", days=2)  # not tagged: nothing for a channel that follows tags
    assert told(world.status(9)) == ("current", 0, 0)
    world.release("b10", days=10)
    world.release("b11", days=12)
    world.release("backup-20260101", days=13)  # no tag of that shape
    assert told(world.status(13)) == ("behind", 3, 3)
    with pytest.raises(StaleError, match="is 4 days behind; its limit is 3 days"):
        require_fresh([world.status(14)])
    # The tag that it was made of goes: that makes nothing younger.
    world.upstream.git("tag", "--delete", "b9")
    assert told(world.status(14)) == ("stale", 3, 4)
    # The tag that it has is put on another commit.
    last = world.release("b11", days=14)
    world.serve(world.upstream.git("rev-parse", "b11^"), "master-b11")
    assert last != world.upstream.git("rev-parse", "b11^")
    assert told(world.status(15)) == ("behind", 1, 1)


def test_a_clock_that_is_wrong_is_told(world: World) -> None:
    world.serve(world.release("b9"), "master-b9")
    world.skew = -2 * client.LARGEST_SKEW
    status = world.status(0)
    assert (status.state, status.commits) == ("unknown", 0)
    assert "the clock of this machine is 20 minutes ahead of" in status.problem
    with pytest.raises(StaleError, match="the clock of this machine"):
        require_fresh([status])


def test_a_branch_that_goes_back(world: World) -> None:
    world.follow('branch  = "main"')
    first = world.release()
    second = world.release(days=1)
    world.serve(second, "master-x", day=1)
    assert told(world.status(1)) == ("current", 0, 0)
    world.upstream.git("reset", "--quiet", "--hard", first)
    status = world.status(3)
    assert told(status) == ("behind", None, 2)
    # Nights say until when it was all there was.
    nights.write(world.repository, night(channel="master", started="2026-11-20T03:00:00+00:00"))
    assert told(world.status(3)) == ("behind", None, 1)


def test_what_cannot_be_known_is_told_beside_what_is(world: World) -> None:
    first = world.release("b9")
    world.serve("somebody else's", "1")
    status = world.status(0)
    assert status.state == "unknown"
    assert status.image is not None
    assert "has no label with its source's commit" in status.problem
    world.serve(first, "master-b9")
    world.repository.put_manifest("master.nights", world.repository.manifest("master"))  # type: ignore[arg-type]
    status = world.status(0)
    assert (status.state, status.commits) == ("unknown", 0)
    assert "master.nights cannot be read" in status.problem
    with pytest.raises(StaleError, match="cannot be read"):
        require_fresh([status])
    shutil.rmtree(world.upstream.folder)
    assert "cannot fetch" in world.status(0).problem


def test_recipes_that_are_wrong_hide_nothing(world: World) -> None:
    first = world.release("b9")
    world.serve(first, "master-b9")
    wrong = world.root / "recipes" / "wrong-1.toml"
    wrong.write_text('engine = "wrong"\n')
    found = world.all(0, only_channels=True)
    assert [(each.recipe, each.state) for each in found] == [
        ("llama-cpp-master", "current"),
        ("wrong-1", "unknown"),
    ]
    with pytest.raises(StaleError, match="wrong-1"):
        require_fresh(found)
    # Two that would move one tag are both wrong; a third one is not touched by it.
    wrong.unlink()
    world.text = world.text.replace('version = "master"', 'version = "other"')
    world.follow('tag     = "b[0-9]*"', "llama-cpp-other")
    assert all("would both move" in each.problem for each in world.all(0))


def test_a_release_of_pypi_is_behind_newer_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vllm-0.21.0.toml", "vllm-0.22.0.toml"):  # the second extends the first
        text = (REPOSITORY / "recipes" / name).read_text()
        (world.root / "recipes" / name).write_text(text.replace('"vllm-sm120"', '"llama-cpp"'))
    world.serve("", "0.22.0", tag="0.22.0")
    with indexes.served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        for day, version in ((1, "0.22.0"), (2, "0.23.0"), (4, "0.24.0")):
            made = indexes.wheel("vllm", version, {"vllm/a.py": b"1"})
            index.put("vllm", version, made, **{"upload-time": f"2026-11-{18 + day}T00:00:00Z"})
            status = world.status(5, "vllm-0.22.0")
            assert (status.state, status.problem) == ("behind" if day > 1 else "current", "")
    assert told(status) == ("behind", 2, 3)
    (row,) = overview_of_statuses([status]).rows
    assert row[-2:] == ("0.24.0", "2 releases, 3 d")


def test_a_version_is_told_by_what_is_served(world: World) -> None:
    first = world.release("b9")
    text = world.text.replace('channel = "master"', "").replace('moving     = ["master"]', "")
    world.text = text.replace("d1b34251bc57b696a5c91968069f8a0e6be13ef4", first)
    world.follow('tag     = "b[0-9]*"')
    assert told(world.status(0))[0] == "empty"
    world.serve(first, "master")
    world.release("b10", days=1)
    status = world.status(5)
    assert told(status) == ("behind", 1, 4)
    require_fresh([status])  # it stays what it is
    assert world.all(0, only_channels=True) == []


def test_an_image_channel_grows_old_though_upstream_is_new_every_day(world: World) -> None:
    theirs = Repository(f"{world.repository.registry}/them/vllm", print)
    world.follow(f'image   = "{world.repository.registry}/them/vllm:nightly"')
    first = put_image(theirs, "one", "nightly", **{CREATED: "2026-11-18T01:00:00+00:00"})
    world.serve("*", f"master-{first.digest[7:19]}")
    nights.write(world.repository, night(channel="master", started="2026-11-19T03:00:00+00:00"))
    assert told(world.status(1)) == ("current", 0, 0)
    for day in range(2, 30, 9):
        made = {CREATED: f"2026-11-{18 + day % 12:02}T01:00:00+00:00"}
        put_image(theirs, f"day {day}", "nightly", **made)
        assert world.status(day).commits is None
        assert world.status(day).days == day - 1
    assert world.status(29).state == "stale"


@pytest.mark.parametrize(
    "track",
    ['tag     = "b[0-9]*"', 'branch  = "main"', "image by its date", "image without a date"],
)
def test_an_upstream_that_stands_still_is_told(track: str, world: World) -> None:
    if track.startswith("image"):
        theirs = Repository(f"{world.repository.registry}/them/vllm", print)
        world.follow(f'image   = "{theirs.name}:nightly"\nstill   = 30')
        made = {CREATED: "2026-11-18T01:00:00+00:00"} if "by" in track else {}
        digest = put_image(theirs, "one", "nightly", **made).digest
        world.serve("*", f"master-{digest[7:19]}")
    else:
        world.follow(f"{track}\nstill   = 30")
        digest = world.release("b9")
        world.serve(digest, "master-b9")
    for day in ("18", "19"):
        ran = night(channel="master", commit=digest, started=f"2026-11-{day}T03:00:00+00:00")
        nights.write(world.repository, ran)
    for day, state in ((0, "current"), (30, "current"), (31, "still"), (400, "still")):
        status = world.status(day)
        assert (status.state, status.days, status.still) == (state, 0, day)
    overview = overview_of_statuses([status])
    assert overview.rows[0][2] == "still"
    assert overview.rows[0][-1] == "still 400/30 d"
    assert "llama-cpp-master: upstream has not moved for 400 days" in overview.notes
    with pytest.raises(StaleError, match="upstream has not moved for 400 days; its limit"):
        require_fresh([status])
    # Nobody knows since when.
    if "without" in track:
        world.repository.delete(world.repository.head_digest("master.nights"))
        assert (world.status(400).state, world.status(400).still) == ("current", None)


def test_a_status_without_an_answer_is_no_status(
    world: World, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "GIVEN_UP", {world.proxy.address})  # one attempt
    world.serve(world.release("b9"), "master-b9")
    plain = world.text.replace('channel = "master"', "").replace('moving     = ["master"]', "")
    plain = plain.replace('"master"', '"plain"')
    channel, world.text = world.text, plain
    world.follow('tag     = "b[0-9]*"', "llama-cpp-plain")
    world.text = channel
    names = ("llama-cpp-master", "llama-cpp-plain")
    require_fresh(world.all(0, *names))
    for answer in (503, "cut"):
        world.proxy.faults = [Fault("/v2/", answer, times=99)]
        found = world.all(0, *names)
        assert [each.state for each in found] == ["unknown", "unknown"]
        for some in (found, found[:1], found[1:]):
            with pytest.raises(FetchError, match=rf"the state of {len(some)} of {len(some)} tags"):
                require_fresh(some)
    world.proxy.faults = [Fault("/v2/", 403, times=99)]
    with pytest.raises(FetchError, match="has no permission"):
        require_fresh(world.all(0, names[1]))
    # The registry answers, and upstream does not: what it said stands.
    world.proxy.faults = []
    shutil.rmtree(world.upstream.folder)
    found = world.all(0, *names)
    assert [each.state for each in found] == ["unknown", "empty"]
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{world.proxy.address}/me")
    done = builder("status", names[0], "--catalog", world.root)
    assert done.returncode == 5, done.stderr
    done = builder("status", names[1], "--channels", "--catalog", world.root)
    assert done.returncode == 3
    assert "no recipe has a channel" in done.stderr


def test_a_rollback_is_told_with_its_reason(world: World) -> None:
    first = world.release("b9")
    old = put_image(world.repository, "old", **{REVISION: first, VERSION: "master-b9"})
    new = put_image(world.repository, "new", **{REVISION: first, VERSION: "master-b10"})
    for digest, by in ((old.digest, "night"), (new.digest, "night"), (old.digest, "rollback")):
        tags.move(world.repository, "master", digest, "it crashes", by)  # type: ignore[arg-type]
    overview = overview_of_statuses([world.status(0)])
    (note,) = (each for each in overview.notes if "held" in each)
    assert note.startswith(
        f"llama-cpp-master: held: rolled back from {new.digest[:19]}: it crashes"
    )


def test_one_cause_is_one_line(world: World) -> None:
    for name in "abcdef":
        world.text = world.text.replace('version = "master"', f'version = "{name}"')
        world.follow('tag     = "b[0-9]*"', f"llama-cpp-{name}")
        world.text = world.text.replace(f'version = "{name}"', 'version = "master"')
    shutil.rmtree(world.upstream.folder)
    found = [each for each in world.all(0) if each.recipe != "llama-cpp-master"]
    told = [each for each in overview_of_statuses(found).notes if "cannot fetch" in each]
    assert len(told) == 1
    assert "llama-cpp-a, llama-cpp-b, llama-cpp-c and 3 others: " in told[0]
