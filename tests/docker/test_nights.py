"""Nights: an upstream that grows, breaks and conflicts, a registry that goes away and returns."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

from builder.core.files import named_lock
from builder.publish.registry import Repository
from support import upstreams
from support.commands import ForkServer
from support.cubins import ANNOTATIONS, STL, Function, cubin, instruction
from support.fatbins import ELF, ZSTD, entry, library, region
from support.nightly_world import BETTER, DAY, OPS, World, get, put
from support.overlaid import PACKAGE, SITE, StandIn, write_catalog
from support.publishing import PUSHED, digest_of, tags
from support.registries import Fault, proxied, put_image
from support.smoke_tests import docker, images_at

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("nights"),
    pytest.mark.usefixtures("own_cache"),
]


def test_ten_nights(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken upstream on days 3 and 4, a conflict on 8, no registry on 10."""
    conflicting = PACKAGE[OPS].replace("tma(capability)", "tma(gpu)")
    releases: dict[int, dict[str, str]] = {
        1: {},
        2: {"worker": "NIGHT = 2\n"},
        3: {"ops": PACKAGE[OPS].replace("return", "retrun")},
        4: {"worker": "NIGHT = 4\n"},
        7: {"ops": PACKAGE[OPS]},
        8: {"ops": conflicting},
        9: {"ops": BETTER},
        10: {"worker": "NIGHT = 10\n"},
        11: {"worker": "NIGHT = 11\n"},
    }
    moved: dict[int, str] = {}
    assert world.builder("status", expect=14)[0]["state"] == "empty"
    for day in NIGHTS:
        world.on(day)
        if day in releases:
            world.release(f"b{8 + day}", **releases[day])
        if day == 7:
            # A channel that is too old says so, before the night that mends it.
            assert world.status(expect=14)["state"] == "stale"
            assert "is 4 days behind; its limit is 2 days" in world.said
        if day == 9:
            # The image that it is laid over has the new file as well.
            world.stand_in.files[OPS] = BETTER
            world.stand_in.build()
        world.proxy.faults = [Fault(".", 503, 9999, {"Retry-After": "9999"})] if day == 10 else []
        before = world.channel
        night = world.night(expect=13 if day in FAILED else 0)
        world.proxy.faults = []
        if day in FAILED:
            assert night["outcome"] == "failed"
            assert world.channel == before
        elif day == 12:
            assert (night["outcome"], night["upstream"]) == ("unchanged", "b19")
            assert world.channel == before
        else:
            assert (night["outcome"], night["upstream"]) == ("moved", f"b{8 + day}")
            assert world.channel == night["digest"] != before
            moved[day] = night["digest"]
        left_out = f"overlaid-nightly-b{8 + day}: left out pull 1: upstream has it"
        assert (left_out in world.said) == (day in {9, 11})
        status = world.status()
        assert status["image"]["digest"] == world.channel
        assert status["upstream"] == f"b{8 + max(d for d in releases if d <= day)}"
        check = EXPECTED[day]
        assert (status["state"], status["commits"], status["days"]) == check[:3], day
        assert day_of(world, status["good"]) == check[3]
        assert day_of(world, status["failed"]) == check[4]
        if day == 8:
            assert "do not apply to b16" in night["reason"]
            assert "pull 1: conflicts" in night["reason"]
            assert "conflicts" in status["failed"]["reason"]
    assert len(set(moved.values())) == len(moved) == 5
    # A machine that has never seen any of it tells the same.
    here = world.status()
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "elsewhere" / "state"))
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "elsewhere" / "cache"))
    assert world.status() == here
    told = world.builder("tag", "history", "overlaid-1", "nightly")
    assert [move["digest"] for move in told] == [moved[day] for day in sorted(moved, reverse=True)]
    # Only tags that say what they hold, and the channel.
    own = {name for name in tags(world.registry) if name not in {"nightly", "nightly.nights"}}
    assert {name.rpartition("-")[0] for name in own} == {f"nightly-b{8 + day}" for day in moved}
    # The names of old nights' images leave the engine.
    kept = docker("image", "ls", "--format", "{{.Tag}}", f"{world.proxy.address}/me/*/*").split()
    assert {name for name in kept if len(name.split("-")) == 2} == {"nightly-b17", "nightly-b19"}
    assert len(kept) == 4  # both names of two nights


NIGHTS = (1, 2, 3, 4, 7, 8, 9, 10, 11, 12)
FAILED = {3, 4, 8, 10}
# By day: state, commits and days behind, the last good and the last failed night.
EXPECTED: dict[int, tuple[str, int, int, int, int | None]] = {
    1: ("current", 0, 0, 1, None),
    2: ("current", 0, 0, 2, None),
    3: ("behind", 1, 0, 2, 3),
    4: ("behind", 2, 1, 2, 4),
    7: ("current", 0, 0, 7, 4),
    8: ("behind", 1, 0, 7, 8),
    9: ("current", 0, 0, 9, 8),
    10: ("behind", 1, 0, 9, 8),  # the run could not be recorded: no registry took it
    11: ("current", 0, 0, 11, 8),
    12: ("current", 0, 0, 12, 8),
}


def day_of(world: World, night: dict[str, Any] | None) -> int | None:
    """On which day of the world a night began."""
    if night is None:
        return None
    started = datetime.fromisoformat(night["started"]).timestamp()
    return round((started - world.start) / DAY)


def test_what_was_taken_back_stays_until_there_is_something_newer(world: World) -> None:
    first = world.night()
    world.release("b9", worker="NIGHT = 2\n")
    second = world.night()
    world.builder("tag", "rollback", "overlaid-1", "nightly", "--reason", "it crashes")
    assert world.channel == first["digest"]
    night = world.night()
    assert (night["outcome"], night["upstream"]) == ("held", "b9")
    assert f"it was rolled back from {second['digest']}: it crashes" in night["reason"]
    assert world.channel == first["digest"]
    # A release that appears while the night runs belongs to the next one.
    world.release("b10", worker="NIGHT = 3\n")
    growing = threading.Thread(target=release_at, args=(world, "PUT .*-[0-9a-f]{12}$", "b11"))
    growing.start()
    night = world.night()
    growing.join()
    assert (night["outcome"], night["upstream"]) == ("moved", "b10")
    assert world.channel == night["digest"]
    assert world.status()["upstream"] == "b11"


def test_a_channel_does_not_move_to_an_update_over_its_budget(world: World) -> None:
    recipe, base = world.catalog / "recipes" / "overlaid-1.toml", world.upstream.head()
    text = recipe.read_text() + "\n[budget]\nupdate = 1\n"
    recipe.write_text(text)
    first = world.night()
    assert (first["outcome"], first["update"]) == ("moved", None)
    data = f"DATA = '{Random(1).randbytes(1_500_000).hex()}'\n"
    head = world.upstream.pull(2, {"vllm/data.py": data}, base=base)
    recipe.write_text(text + DATA.format(base=base, head=head, site=SITE))
    world.release("b9")
    night = world.night(expect=13)
    assert "nightly is not moved: the update has more than the 1 MB" in night["reason"]
    assert world.channel == first["digest"] == night["digest"]
    # A person who accepts it promotes the image, which is in the registry.
    (tag,) = [tag for tag in tags(world.registry) if tag.startswith("nightly-b9-")]
    assert (
        f"tag promote overlaid-1 nightly --to {digest_of(world.registry, tag)}" in night["reason"]
    )
    arguments = ("tag", "promote", "overlaid-1", "nightly", "--to", tag, "--reason", "new data")
    moved = world.builder(*arguments)
    assert moved["update"] > 1_000_000
    assert world.status()["update"] == moved["update"]
    assert world.night()["outcome"] == "unchanged"
    # The next night is compared with that image, and lacks the data.
    recipe.write_text(text)
    world.release("b10")
    night = world.night()
    assert (night["outcome"], night["update"] < 1_000_000) == ("moved", True)
    assert world.status()["update"] == night["update"]


DATA = """
[[patch]]
pull  = 2
base  = "{base}"
head  = "{head}"
why   = "it brings data"
[patch.probe]
file = "{site}/vllm/data.py"
"""


def release_at(world: World, request: str, tag: str) -> None:
    """Release when the registry is first asked for something like that."""
    seen = world.proxy.count(request)
    for _ in range(1200):
        if world.proxy.count(request) > seen:
            world.release(tag, worker=f"TAG = {tag!r}\n")
            return
        time.sleep(0.05)


def test_nothing_moves_where_it_must_not(world: World) -> None:
    # A night that nobody can read about has failed.
    put_runs = "PUT .*manifests/nightly.nights"  # the first two try whether the tag moves
    world.proxy.faults = [Fault(put_runs, "pass", 2), Fault(put_runs, 403, 9)]
    night = world.night(expect=13)
    assert night["outcome"] == "failed"
    assert "the run could not be recorded" in night["reason"]
    assert world.channel == night["digest"]
    # What another machine did first is no failure.
    first = night
    world.release("b9", worker="NIGHT = 2\n")

    def faster() -> None:
        (tag,) = [tag for tag in tags(world.registry) if tag.startswith("nightly-b9-")]
        put(world.registry, "nightly", get(world.registry, tag))

    world.proxy.faults = [Fault("GET .*manifests/nightly-b9-", "pass", 1, {}, faster)]
    night = world.night()
    assert not any(fault.times for fault in world.proxy.faults)
    assert (night["outcome"], night["upstream"]) == ("unchanged", "b9")
    assert world.channel == night["digest"] != first["digest"]
    # A clock that is wrong.
    world.release("b10", worker="NIGHT = 3\n")
    world.proxy.ahead = world.lead - 3 * DAY
    told = world.night(expect=13)
    assert "the clock of this machine is 3 days ahead of" in told["reason"]
    assert world.channel == night["digest"]
    world.proxy.ahead = world.lead
    # Somebody moves the channel while the night runs.
    mover = threading.Thread(target=move_at, args=(world, "HEAD .*blobs"))
    mover.start()
    told = world.night(expect=13)
    mover.join()
    assert "nightly was moved by another client" in told["reason"]
    assert world.channel not in {"", night["digest"]}
    # Two nights at once, on one machine.
    cache = Path(os.environ["BUILDER_CACHE_DIR"])
    with named_lock(cache, "nightly"):
        done = world.run("nightly")
    assert done.returncode == 9
    assert "another run on this machine builds the nightly images" in done.stderr
    # Two recipes that would move one tag.
    recipe = world.catalog / "recipes" / "overlaid-1.toml"
    other = recipe.read_text().replace('version = "1"\n', 'version = "2"\n', 1)
    other = other.replace('tags       = ["1"]', 'tags       = ["2"]')
    recipe.with_name("overlaid-2.toml").write_text(other)
    world.failing("nightly", expect=13, said="overlaid-1 and overlaid-2 would both move")


def test_what_a_night_needs_is_checked_before_anything_is_built(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.proxy.faults = [Fault("POST .*uploads", 401, 1)]
    world.night(expect=13)
    assert "building" not in world.said
    world.proxy.requests.clear()
    (tmp_path / "no.key").write_text("this is no key\n")
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(tmp_path / "no.key"))
    world.failing("nightly", expect=4, said="check BUILDER_COSIGN_KEY")
    assert not world.proxy.requests


def move_at(world: World, request: str) -> None:
    """Move the channel when the registry is first asked for something like that."""
    seen = world.proxy.count(request)
    for _ in range(1200):
        if world.proxy.count(request) > seen:
            put(world.registry, "nightly", get(world.registry, "nightly.nights"))
            return
        time.sleep(0.05)


def another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a machine that has no records and no cache."""
    monkeypatch.setenv("BUILDER_STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(folder / "cache"))


def test_another_machine_counts_an_image_that_it_has_built_as_well(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.night()
    (immutable,) = [tag for tag in tags(world.registry) if tag.startswith("nightly-b8-")]
    another_machine(tmp_path / "second", monkeypatch)
    # Where nothing moves, nobody has to vouch for the image.
    night = world.night()
    assert (night["outcome"], night["digest"]) == ("unchanged", first["digest"])
    assert "building" not in world.said
    # The channel's tag is deleted, and nothing else: docker-registry deletes digests only.
    (folder,) = (tmp_path / "registry").glob("**/_manifests/tags/nightly")
    rmtree(folder)
    assert world.channel == ""
    night = world.night()
    assert (night["outcome"], night["digest"]) == ("moved", first["digest"])
    assert f"nothing vouches for {world.proxy.address}/{PUSHED}:{immutable}" in world.said
    assert "building overlaid-nightly-b8" in world.said
    assert world.channel == first["digest"]
    # Somebody else's image stands under the tag of the build.
    labels = world.status()["image"]["labels"]
    repository = Repository(f"{world.registry}/{PUSHED}", print)
    forged = put_image(repository, labels["builder.key"], immutable)
    for machine, builds in (("second", False), ("third", True)):
        another_machine(tmp_path / machine, monkeypatch)
        night = world.night(expect=13)
        assert ("building overlaid-nightly-b8" in world.said) is builds
        assert f"{immutable} is not the image that this machine built" in night["reason"]
        assert f"it is {forged.digest}, and no trusted key signed" in night["reason"]
        assert f"this machine built {first['digest']} from the same inputs" in night["reason"]
        assert world.channel == night["digest"] == first["digest"]
        assert repository.head_digest(immutable) == forged.digest


def test_a_channel_follows_a_published_image(
    registry: str,
    published: StandIn,
    fork_server: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: set[str],
) -> None:
    upstream = f"{registry}/them/vllm:nightly"
    track = f'[track]\nimage = "{upstream}"\nchannel = "nightly"\n'
    catalog = tmp_path / "catalog"
    options = {"source": '[source]\ninstalled = "vllm"', "version": "*"}
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        write_catalog(catalog, track, upstream, more='moving = ["nightly"]', **options)
        none = upstreams.Upstream(tmp_path / "none")
        world = World(catalog, none, proxy, registry, published, fork_server)
        assert "has no tag nightly" in world.night(expect=13)["reason"]
        digests = []
        for day in range(2):
            published.files["vllm/worker.py"] = f"DAY = {day}\n"
            docker("push", "--quiet", published.build(upstream))
            assert day == 0 or world.status()["state"] == "behind"
            night = world.night()
            digest = world.builder("status")[0]["commit"]
            assert (night["outcome"], night["commit"]) == ("moved", digest)
            digests.append(digest)
            version = f"nightly-{digest.removeprefix('sha256:')[:12]}"
            assert world.status()["image"]["labels"]["org.opencontainers.image.version"] == version
            assert world.night()["outcome"] == "unchanged"
        assert len(set(digests)) == 2
        # The recipe and its bases, as they were: in an empty catalog they build the same key.
        folder = tmp_path / "again" / "recipes"
        arguments = ("recipe", "export", "overlaid-1", "nightly", "--output", str(folder))
        done = world.run(*arguments)
        assert done.returncode == 0, done.stderr
        (below,) = folder.glob(f"bases/*{digests[1].removeprefix('sha256:')[:12]}.toml")
        assert f'digest = "{digests[1]}"' in below.read_text()
        thawed = next(folder.glob("*.toml")).stem
        shown = world.run("show", thawed, "--catalog", str(folder.parent), "--json")
        key = world.status()["image"]["labels"]["builder.key"]
        assert json.loads(shown.stdout)["key"] == key
        made.update([*images_at(proxy.address), *images_at(registry)])


EXTENSION = """
[[patch]]
pull  = {number}
base  = "{base}"
head  = "{head}"
why   = "it brings GPU code"
[patch.probe]
library       = "_C.so"
architectures = ["sm_120"]
"""


def extension(spills: int) -> bytes:
    """A library for 12.0 whose only kernel spills so many bytes."""
    code = instruction(STL) * (spills // 4)
    marks = tuple(word for at in range(0, len(code), 16) for word in (1, at))
    kernel = Function("_Z9attentionPf", code, stack=spills, attributes=((ANNOTATIONS, marks),))
    return library(region(entry(ELF, 120, ZSTD, cubin(kernel)))).getvalue()


def test_a_night_whose_kernels_spill_more_says_so(world: World) -> None:
    """A pull request brings GPU code; the next one spills more."""
    base = world.upstream.head()
    file = world.catalog / "recipes" / "overlaid-1.toml"
    recipe = file.read_text()
    nights = []
    for day, spills in enumerate((8, 400), 1):
        head = world.upstream.pull(1 + day, {"vllm/_C.so": extension(spills)}, base=base)
        file.write_text(recipe + EXTENSION.format(number=1 + day, base=base, head=head))
        world.on(day)
        world.release(f"b{8 + day}")
        nights.append(world.night())
    assert [night["outcome"] for night in nights] == ["moved", "moved"]
    assert nights[0]["kernels"]["libraries"][0]["spills"] == 8
    assert [night["reason"] for night in nights] == [
        "",
        "more spills: _C.so: 1 of 1 kernels spill 400 bytes, before 1 of 1 kernels spill 8 bytes; "
        "attention: 8 -> 400 bytes",
    ]


def made_by_gcc(work: Path, needs: str, source: str = "int f;") -> bytes:
    """A library that needs another one, which need not be there."""
    stand_in, out = work / needs, work / "out.so"
    named = ["gcc", "-shared", f"-Wl,-soname,{needs}", "-o", stand_in, "-x", "c", "-"]
    subprocess.run(named, input=b"", check=True)
    linked = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-x", "c", "-", "-x", "none"]
    subprocess.run([*linked, stand_in, "-o", out], input=source.encode(), check=True)
    return out.read_bytes()


API_SERVER = "vllm/entrypoints/openai/api_server.py"
COMPAT = "/usr/local/cuda/compat"


def test_a_channel_does_not_move_to_an_image_that_cannot_start(
    world: World, tmp_path: Path
) -> None:
    """What upstream's image has wrong in its own layers; an accepted fault moves."""
    first = world.night()
    assert first["outcome"] == "moved"
    nixl = "nixl_ep/nixl_ep_cpp.so"
    needs_other = made_by_gcc(tmp_path, "libcudart.so.12")
    undefined = made_by_gcc(
        tmp_path, "libc.so.6", "int nope_fn(void); int f() { return nope_fn(); }"
    )
    faults: list[tuple[dict[str, str | bytes], str, str]] = [
        ({nixl: needs_other}, "", "nixl_ep_cpp.so needs libcudart.so.12"),
        ({"vllm/_C.abi3.so": undefined}, "", "_C.abi3.so needs nope_fn"),
        ({API_SERVER: "raise ImportError('torch 2.12')"}, "", "ImportError: torch 2.12"),
        ({}, "RUN rm /usr/local/bin/vllm", "vllm is in no directory of PATH"),
        (
            {"compat.so": needs_other},
            f"RUN mkdir -p {COMPAT} && mv {SITE}/compat.so {COMPAT}/libcuda.so.1 && mkdir -p "
            f"/etc/ld.so.conf.d && echo {COMPAT} >/etc/ld.so.conf.d/00-cuda-compat.conf",
            f"{COMPAT}/libcuda.so.1, which ld.so finds before the driver's own",
        ),
    ]  # fmt: skip
    for day, (files, more, said) in enumerate(faults, 1):
        world.on(day)
        world.stand_in.files = {**PACKAGE, OPS: PACKAGE[OPS], **files}
        world.stand_in.more = more
        world.stand_in.build()
        world.release(f"b{8 + day}", worker=f"NIGHT = {day}\n")
        night = world.night(expect=13)
        assert said in night["reason"], night["reason"]
        assert world.channel == first["digest"]
    # The maintainer accepts what the engine does without.
    world.stand_in.files, world.stand_in.more = {**PACKAGE, nixl: needs_other}, ""
    world.stand_in.build()
    recipe = world.catalog / "recipes" / "overlaid-1.toml"
    accepted = (
        f'\n[[accept]]\ncheck = "closure"\npath = "/*/{nixl}"\nwhy = "one card needs no NIXL"\n'
    )
    recipe.write_text(recipe.read_text() + accepted)
    assert world.night()["outcome"] == "moved"
