"""Servers that misbehave, each in a real container: every one ends in a verdict, and is gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.checks import serves
from builder.checks.server import ServeSpec, launched
from builder.checks.speed import RunSettings
from builder.checks.subject import GpuTest
from builder.checks.verdict import Check
from builder.docker import containers
from builder.docker import engine as docker_client
from builder.image.contents import Contents
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from support.environment import REPOSITORY
from support.smoke_tests import SmokeTest, context_of, docker, hello_recipe

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCE = REPOSITORY / "tests/data/trees/faulty_server"
IMAGE = "builder-test/faulty-server:1"
HELLO = Serve(api_flavor="hello")
NOTHING = Contents({}, {}, (), 0)
EVERYTHING = [
    *("starts", "lists its model", "completes text", "streams", "tokenizes and back"),
    *("answers a chat", "answers two at once", "stops"),
]


@pytest.fixture(scope="module")
def image(devel: str) -> Iterator[str]:
    """All the servers in one image, on the base to compile in, which has Python."""
    dockerfile = (
        f"FROM {devel}\nCOPY server.py /server.py\nUSER 10001:10001\n"
        'ENTRYPOINT ["python3", "/server.py"]\n'
    )
    subprocess.run(
        ["docker", "buildx", "build", "--provenance=false", f"--tag={IMAGE}", "--file=-", SOURCE],
        input=dockerfile.encode(),
        check=True,
        capture_output=True,
    )
    yield IMAGE
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], capture_output=True, check=False)


def recipe_of(serve: Serve) -> Recipe:
    recipe = hello_recipe()
    image = recipe.image.model_copy(update={"health": None})
    return recipe.model_copy(update={"serve": serve, "image": image})


@pytest.fixture
def verdict_of(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The checks of a server with a fault, by subject; nothing may be left of its container."""
    monkeypatch.setattr(serves, "ANSWER", 3.0)
    monkeypatch.setattr(serves, "STOP", 2)

    def smoke_test(fault: str, **more: Any) -> dict[str, Check]:
        serve = Serve(api_flavor="hello", arguments=[fault], **{"seconds": 6, **more})
        checks = serves.check(context_of(NOTHING, recipe_of(serve), tmp_path, image))
        return {check.subject: check for check in checks}

    yield smoke_test
    left = subprocess.run(
        [
            "docker",
            "ps",
            "--all",
            "--quiet",
            f"--filter=label={containers.OWNER}={containers.owner()}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == ""


def test_a_good_server_passes_every_step(verdict_of: Any) -> None:
    found = verdict_of("nothing")
    assert list(found) == EVERYTHING
    assert [check for check in found.values() if not check.passed] == []


@pytest.mark.parametrize(
    ("fault", "subject", "found"),
    [
        ("two-models", "lists its model", "it lists 2 models: 'a', 'b'"),
        ("hangs", "completes text", "not complete after 3 seconds"),
        ("drips", "completes text", "not complete after 3 seconds"),
        ("garbage", "completes text", "not JSON: '<html>it works</html>'"),
        ("error", "completes text", "status 500"),
        ("list", "completes text", "has an unexpected format"),
        ("empty", "completes text", "12 tokens: ''"),
        ("short", "completes text", "3 tokens"),
        ("half-a-reply", "streams", "ended early, after 6 pieces"),
        ("other-text", "streams", "'abc?efghijkl' in pieces, 'abcdefghijkl' at once"),
        ("one-piece", "streams", "in one piece"),
        ("error-in-stream", "streams", "out of memory"),
        ("loses-tokens", "tokenizes and back", "become 'ello'"),
        ("wrong-role", "answers a chat", "the role 'user'"),
        ("deaf", "stops", "was killed after 2."),
        ("status-after-stop", "stops", "exit status 1 after"),
    ],
)
def test_each_fault_fails_its_own_step(
    verdict_of: Any, fault: str, subject: str, found: str
) -> None:
    checks = verdict_of(fault)
    assert checks[subject].state == "failed"
    assert found in checks[subject].found
    # What needs a completion fails with it.
    others = {"streams", "answers two at once"} if subject == "completes text" else set()
    failed = {name for name, check in checks.items() if not check.passed}
    assert failed - others == {subject}


def test_a_server_that_dies_is_reported_with_its_exit_status(verdict_of: Any) -> None:
    checks = verdict_of("dies")
    assert "closed the connection without a response" in checks["completes text"].found
    assert "the server ended with exit status 7" in checks["completes text"].found


@pytest.mark.parametrize(
    ("fault", "more", "found"),
    [
        ("crashes", {}, "ended with exit status 1; its log ends:\nerror: tensor 'output.weight'"),
        ("loads-forever", {"seconds": 2}, "not healthy after 2 s (/health answers 503)"),
        ("takes-memory", {"memory": 0.25}, "it used more memory than its limit"),
    ],
)
def test_a_server_that_does_not_start_has_one_failed_check(
    verdict_of: Any, fault: str, more: dict[str, Any], found: str
) -> None:
    checks = verdict_of(fault, **more)
    assert list(checks) == ["starts"]
    assert found in checks["starts"].found


def test_a_server_that_prints_a_hundred_megabytes_is_served_all_the_same(verdict_of: Any) -> None:
    checks = verdict_of("prints", seconds=60)
    assert [check for check in checks.values() if not check.passed] == []


def test_an_entrypoint_that_is_not_there_is_the_images_fault(
    image: str, smoke_test: SmokeTest, tmp_path: Path
) -> None:
    name = smoke_test.build(f'FROM {image}\nENTRYPOINT ["/nowhere"]\n')
    (check,) = serves.check(context_of(NOTHING, recipe_of(HELLO), tmp_path, name))
    assert check.state == "failed"
    assert "/nowhere" in check.found


def test_an_image_of_another_platform_is_untried(smoke_test: SmokeTest, tmp_path: Path) -> None:
    dockerfile = 'FROM scratch\nCOPY --chmod=755 <<EOF /x\n\x7fELF\nEOF\nENTRYPOINT ["/x"]\n'
    name = smoke_test.build(dockerfile, "--platform=linux/arm64")
    (check,) = serves.check(context_of(NOTHING, recipe_of(HELLO), tmp_path, name))
    reason = "Docker cannot run programs of the image's platform"
    assert (check.state, check.found) == ("untried", reason)


@pytest.mark.parametrize(
    ("fault", "passed", "found"),
    [
        ("nothing", [True, True], "steady: the deviation is 0.0% of the mean"),
        ("collapses", [False, True], "collapse: 2 fast, 1 slow: 54 and 11"),
        ("loses-drafts", [True, False], "steady"),
        ("hangs-up", [False], "status 404"),
    ],
)
def test_runs_of_one_prompt_are_evaluated_by_the_servers_own_timings(
    image: str, tmp_path: Path, fault: str, passed: list[bool], found: str
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    serve = Serve(api_flavor="hello", arguments=[fault])
    with launched(image, serve, 8080, ServeSpec(model, 512)) as server:
        server.wait(20)
        checks = list(serves.collapse(server, RunSettings(runs=3, warm_ups=0)))
    assert [check.passed for check in checks] == passed
    assert found in checks[0].found


def test_the_check_on_a_gpu_fails_for_a_server_that_runs_on_the_cpu(
    hello: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    recipe = hello_recipe()
    assert recipe.serve is not None
    with launched(hello["references"][0], recipe.serve, 8080, ServeSpec(model, 512)) as server:
        checks = list(serves.on_gpu(server, recipe.serve, GpuTest(runs=4, warm_ups=1)))
    assert [check.subject for check in checks] == ["starts", "model", "speed over runs"]
    assert (checks[1].passed, checks[1].found) == (False, "it runs on cpu")
    assert "mean" in checks[2].found


def test_containers_of_a_killed_run_are_removed_by_the_next(image: str) -> None:
    gone = subprocess.Popen(["sleep", "0"])
    gone.wait()
    host = containers.owner().split(":")[0]
    label = f"--label={containers.OWNER}={host}:{gone.pid}:1"
    mine = f"--label={containers.OWNER}={containers.owner()}"
    names = []
    for option in (label, mine):
        run = ["docker", "run", "--detach", option, image, "nothing"]
        names.append(subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip())
    try:
        containers.remove_orphans()
        time.sleep(0.5)
        ps = ["docker", "ps", "--all", "--quiet", "--no-trunc"]
        there = subprocess.run(ps, capture_output=True, text=True, check=True).stdout.split()
        assert names[0] not in there
        assert names[1] in there
    finally:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)


def test_containers_that_ended_are_removed_together(image: str) -> None:
    def there() -> int:
        mine = f"--filter=label={containers.OWNER}={containers.owner()}"
        return len(docker("ps", "--all", "--quiet", mine).split())

    @containers.removed_together()
    def interrupted() -> None:
        for _ in range(2):
            assert containers.run(image, ["x"], entrypoint="echo", timeout=60).status == 0
        with pytest.raises(containers.TimedOutError):  # it still runs: it is removed at once
            containers.run(image, ["60"], entrypoint="sleep", timeout=2)
        assert there() == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert there() == 0


LOSES = """\
#!/bin/sh
[ "$1" = run ] || exec {docker} "$@"
echo >> {runs}
[ "$(wc -l < {runs})" = 1 ] || exec {docker} "$@"
exec {docker} "$@" > {lost} 2>&1
"""


def test_a_program_whose_output_docker_loses_runs_again(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, lost, client = (tmp_path / name for name in ("runs", "lost", "docker"))
    client.write_text(LOSES.format(docker=docker_client.executable(), runs=runs, lost=lost))
    client.chmod(0o755)
    monkeypatch.setattr(docker_client, "executable", lambda: str(client))

    def echo(*, once: bool) -> tuple[str, int]:
        runs.unlink(missing_ok=True)
        done = containers.run(image, ["good"], entrypoint="echo", timeout=60, once=once)
        return done.output, len(runs.read_text().splitlines())

    assert echo(once=False) == ("good\n", 2)
    assert lost.read_text() == "good\n"
    assert echo(once=True) == ("", 1)


def test_a_log_is_read_from_its_beginning(image: str) -> None:
    """A verbose engine names its first model far above its last one."""
    with containers.started(image, ["talks"]) as container:
        while "last\n" not in container.end_of_log():
            time.sleep(0.1)
        assert container.log().startswith("first\n")
        assert "first" not in container.end_of_log()


def test_the_container_reaches_nothing_but_itself(image: str) -> None:
    with containers.started(image, ["nothing"]) as container:
        done = container.execute(["cat", "/proc/net/route", "/proc/net/dev"], 20)
        assert "lo:" in done.output
        assert "eth0" not in done.output
        assert container.execute(["touch", "/x"], 20).status == 1
