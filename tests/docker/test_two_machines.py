"""Two machines publish at the same time, with clocks that are off by minutes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.publish import tag_history
from builder.publish.attachments import RECIPE
from builder.publish.referrers import referrers
from builder.publish.tag_history import MOVE
from builder.publish.verdicts import UNSIGNED, VERDICT, Trust
from builder.tools.registry.client import Repository
from support.commands import ForkServer
from support.nightly_world import World
from support.overlaid import Build, change
from support.publishing import PUSHED, made, own, tags, verified
from support.registries import CONFIGURATION, Proxy, proxied, serving
from support.two_machines import TwoMachines, parsed

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("pushed"),
    pytest.mark.usefixtures("own_cache"),
]
MOVED = re.compile(
    "was moved by another client|another move of .* was at work|is not what was pushed"
)
"""What a client reports that lost, or does not know: it may be both of them."""
ROUNDS = int(os.environ.get("BUILDER_TEST_ROUNDS", "1"))


@pytest.fixture
def machines(fork_server: ForkServer, tmp_path: Path) -> TwoMachines:
    return TwoMachines(fork_server, tmp_path)


def require_consistent(repository: Repository, tag: str, done: list[tuple[int, str, str]]) -> None:
    """Each push that reported success is in the history of the tag, and the newest has the tag."""
    told = tag_history.moves(repository, tag, UNSIGNED)
    assert told[0].digest == repository.head_digest(tag)
    digests = [move.digest for move in told]
    for each in done:
        if each[0] == 0:
            assert parsed(each)["digest"] in digests, (tag, told)


def test_two_pushes_at_once(
    image: dict[str, Any],
    build: Build,
    proxy: Proxy,
    machines: TwoMachines,
    tmp_path: Path,
) -> None:
    catalog = tmp_path / "catalog"
    command = ["push", "overlaid-1", "--json", "--catalog", str(catalog)]
    first = catalog.rename(tmp_path / "first")
    others = []
    for number in range(2):
        change_of = tmp_path / f"change-{number}"
        change_of.mkdir()
        patch = change(change_of, worker=f"x = {number}\n")
        others.append((made(build, patch=patch), catalog.rename(tmp_path / f"other-{number}")))
    for number in range(ROUNDS):
        with serving(tmp_path / f"registry-{number}", CONFIGURATION) as registry:
            proxy.registry = registry
            command[-1] = str(first)
            done = machines.at_once(command, command)
            assert [each[0] for each in done] == [0, 0], done
            assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])
            repository = Repository(f"{registry}/{PUSHED}", print)
            kinds = [each["artifactType"] for each in referrers(repository, image["digest"])]
            assert {MOVE, VERDICT} <= {*kinds}
            require_consistent(repository, "latest", done)
            commands = [
                [*command[:-1], str(folder), "--replace", "--reason", f"image {at}"]
                for at, (_, folder) in enumerate(others)
            ]
            done = machines.at_once(*commands)
            assert all(each[0] in {0, 12} for each in done), done
            lost = [each[2] for each in done if each[0]]
            assert all(map(MOVED.search, lost)), "\n".join(lost)
            for tag in ("1", "latest"):
                require_consistent(repository, tag, done)


@pytest.fixture
def second(world: World) -> Iterator[Proxy]:
    """Another address of the registry."""
    with proxied(world.registry) as found:
        yield found


@pytest.mark.parametrize("signed", [False, True])
def test_two_machines_have_one_night(
    world: World,
    machines: TwoMachines,
    second: Proxy,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    signed: bool,
) -> None:
    """Each builds every release, and moves the channel at the same time as the other."""
    public = request.getfixturevalue("key").with_name("cosign.pub") if signed else None
    trust = Trust("", (str(public),), tmp_path / "reader") if public else UNSIGNED
    repository = Repository(f"{world.registry}/{PUSHED}", print)
    command = ["nightly", "--json", "--catalog", str(world.catalog)]
    machines = replace(machines, other=f"{second.address}/me")
    nights: list[str] = []
    built: set[int] = set()
    for day in range(1 + ROUNDS):  # the first night makes the channel
        world.on(day)
        second.ahead = world.proxy.ahead
        world.release(f"b{9 + day}", worker=f"x = {day}\n")
        done = machines.at_once(command, command, ahead=world.proxy.ahead)
        assert [each[0] for each in done] == [0, 0], done
        runs = [parsed(each)[0] for each in done]
        outcomes = [each["outcome"] for each in runs]
        assert "moved" in outcomes
        assert {*outcomes} <= {"moved", "unchanged"}
        assert {each["digest"] for each in runs} == {world.channel}
        assert world.channel not in nights
        nights.insert(0, world.channel)
        built |= {at for at, each in enumerate(done) if "building overlaid-nightly" in each[2]}
        # Whoever moves the tag next knows each night once; with a key, all notes are signed.
        known = tag_history.past_moves(repository, "nightly", trust)
        assert [move.digest for move in known] == nights
        assert [move.before for move in known] == [*nights[1:], ""]
        assert known == tag_history.past_moves(repository, "nightly", UNSIGNED)
        (immutable,) = [tag for tag in tags(world.registry) if f"-b{9 + day}-" in tag]
        assert repository.head_digest(immutable) == world.channel
        kinds = {each["artifactType"] for each in referrers(repository, world.channel)}
        assert {RECIPE, VERDICT} <= kinds
        if public:
            assert verified(f"{world.proxy.address}/{PUSHED}@{world.channel}", public)
    assert built == {0, 1}
