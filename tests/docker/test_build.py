"""The build as a user sees it: what comes out, what is not done twice, what goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.recipes import locks as debian_lock
from support.commands import Builder, ForkServer
from support.environment import REPOSITORY, abandoned
from support.smoke_tests import docker
from support.variants import REPOSITORY_NAME, Begin, edit, labels, lasting, wait_for_log

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]


def tags() -> set[str]:
    listed = docker("image", "ls", "--format={{.Tag}}", REPOSITORY_NAME)
    return {tag for tag in listed.splitlines() if not tag.startswith("unverified-")}


def source(catalog: Path) -> Path:
    return catalog / "engines" / "variant" / "one.c"


# What comes out


def test_the_image_says_what_it_is(hello: dict[str, Any]) -> None:
    found = labels(hello["references"][0])
    assert found["org.opencontainers.image.title"] == "hello-sm120"
    assert found["org.opencontainers.image.version"] == "0.1.0"
    assert found["org.opencontainers.image.licenses"] == "MIT"
    assert found["org.opencontainers.image.source"] == "engines/hello-sm120"
    assert len(found["org.opencontainers.image.revision"]) == 64
    # The Debian packages are the newest input that has a date.
    created = docker("image", "inspect", "--format={{.Created}}", hello["references"][0])
    locks = REPOSITORY.glob("recipes/**/locks/*.debian.toml")
    assert created in {
        f"{debian_lock.read(lock, lock.stem).as_of:%Y-%m-%dT%H:%M:%SZ}" for lock in locks
    }
    assert found["org.opencontainers.image.created"] == created.replace("Z", "+00:00")
    assert found["org.opencontainers.image.base.name"].startswith("builder-base/cuda-13.0:runtime-")
    base = docker(
        "image", "inspect", "--format={{.Id}}", found["org.opencontainers.image.base.name"]
    )
    assert found["org.opencontainers.image.base.digest"] == base
    assert found["builder.recipe"] == "hello-sm120-0.1.0"
    assert found["builder.architectures"] == "120"
    assert found["builder.key"] == hello["key"] == hello["plan"]["key"]
    assert hello["references"] == [f"hello-sm120:0.1.0-{hello['key'][:12]}", "hello-sm120:0.1.0"]
    assert docker("image", "inspect", "--format={{.Id}}", "hello-sm120:0.1.0") == hello["digest"]


@pytest.fixture
def served(hello: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A container of hello-sm120 that serves, with little memory: its name and its URL."""
    name = f"builder-test-serves-{os.getpid()}"
    sealed = ["--read-only", "--cap-drop=ALL", "--memory=512m", "--env=BUILDER_CPU=1"]
    docker(
        "run", "--detach", f"--name={name}", *sealed, "--publish=127.0.0.1::8080", hello["digest"]
    )
    try:
        url = "http://" + docker("port", name, "8080").splitlines()[0]
        for _ in range(100):
            try:
                if requests.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        yield name, url
    finally:
        docker("rm", "--force", name)


def test_it_serves_as_a_user_without_rights_and_stops_when_told(served: tuple[str, str]) -> None:
    name, url = served
    asked = {"prompt": "hello", "n_predict": 16}
    answer = requests.post(f"{url}/completion", json=asked, timeout=30).json()
    assert answer["tokens_predicted"] == 16
    assert len(answer["content"]) == 16
    assert docker("exec", name, "id", "-u") == "10001"
    docker("exec", name, "/usr/local/bin/healthcheck", "8080", "health")
    wrong = ["docker", "exec", name, "/usr/local/bin/healthcheck", "8080", "nowhere"]
    assert subprocess.run(wrong, capture_output=True, check=False).returncode != 0
    docker("stop", "--time=20", name)
    assert docker("inspect", "--format={{.State.ExitCode}}", name) == "0"


BOMB = b"half a gigabyte"  # compressed by the test: every process reads the parameters


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"prompt": ', {}, 400),
        (b'{"prompt": 1}', {}, 400),
        (b'{"prompt": "a", "n_predict": 4097}', {}, 400),
        (b'{"prompt": "a", "n_predict": 1.5}', {}, 400),
        (b"[" * 1_000_000, {}, 400),
        (b'{"prompt": "' + b"a" * (1 << 20) + b'"}', {}, 413),
        (BOMB, {"Content-Encoding": "gzip"}, 400),
    ],
    ids=["cut", "type", "number", "fraction", "nested", "large", "compressed"],
)
def test_a_wrong_or_hostile_request_is_refused_and_the_next_is_served(
    served: tuple[str, str], body: bytes, headers: dict[str, str], status: int
) -> None:
    _, url = served
    sent = gzip.compress(bytes(1 << 29)) if body == BOMB else body
    refused = requests.post(f"{url}/completion", data=sent, headers=headers, timeout=30)
    assert refused.status_code == status
    assert refused.json()["error"]["code"] == status
    assert requests.get(f"{url}/health", timeout=5).json() == {"status": "ok"}


# What is not done twice


def test_an_unchanged_recipe_begins_no_build(
    builder: Builder, hello: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(hello["state"]))
    logs = set(hello["state"].glob("logs/*"))
    again = json.loads(builder("build", "hello-sm120", "--json").stdout)
    assert again["built"] is False
    assert again["digest"] == hello["digest"]
    assert set(hello["state"].glob("logs/*")) == logs


def test_an_image_whose_steps_buildkit_has_keeps_the_facts_of_its_build(
    builder: Builder, one_file: Path, tmp_path: Path
) -> None:
    jobs = str(100 + time.time_ns() % 3_989)  # a compile with this number is in no layer cache
    command = ("build", "variant", "--catalog", one_file, "--jobs", jobs, "--json")
    assert json.loads(builder(*command).stdout)["built"] is True
    (file,) = (tmp_path / "state" / "records" / "variant-0.1.0").glob("*.json")
    first = json.loads(file.read_text())
    assert first["objects"] > 0
    docker("rmi", *(f"{REPOSITORY_NAME}:{tag}" for tag in tags()))
    assert json.loads(builder(*command).stdout)["built"] is True
    again = json.loads(file.read_text())
    for fact in ("created", "log", "digest", "objects", "reused"):
        assert again[fact] == first[fact], fact
    build = "build variant-0.1.0"
    assert again["seconds"][build] == first["seconds"][build]


def test_what_decides_the_image_builds_it_anew(builder: Builder, one_file: Path) -> None:
    command = ("build", "variant", "--catalog", one_file)
    jobs = str(100 + time.time_ns() % 3_989)  # a compile with this number is in no layer cache
    first = json.loads(builder(*command, "--jobs", jobs, "--json").stdout)
    assert first["built"] is True
    assert f" jobs: {jobs} (" in Path(first["log"]).read_text()
    edit(one_file, '"first"', '"second"')
    edit(one_file, "answer_first", "answer_second")
    second = json.loads(builder(*command, "--json").stdout)
    assert second["built"] is True
    assert second["key"] != first["key"]
    assert tags() == {f"0.1.0-{first['key'][:12]}", f"0.1.0-{second['key'][:12]}", "0.1.0"}
    # Back to what was: the image is there, and the moving name goes back to it.
    edit(one_file, '"second"', '"first"')
    edit(one_file, "answer_second", "answer_first")
    third = json.loads(builder(*command, "--json").stdout)
    assert third["built"] is False
    current = docker("image", "inspect", "--format={{.Id}}", f"{REPOSITORY_NAME}:0.1.0")
    assert current == first["digest"]
    # A probe that changes is checked again, though the image is the same.
    edit(one_file, "answer_first", "answer_third")
    broken = builder(*command)
    assert broken.returncode == 7
    assert "libone.so: expected: defines answer_third; found" in broken.stderr


# What goes wrong


KERNEL = "__global__ void kernel() {}\nvoid begin() { kernel<<<1, 1>>>(); }\n"


def test_failed_checks_move_no_tag(builder: Builder, one_file: Path, tmp_path: Path) -> None:
    source(one_file).with_name("one.cu").write_text(KERNEL)
    lists = source(one_file).with_name("CMakeLists.txt")
    text = lists.read_text().replace("(one C)", "(one C CUDA)").replace("one.c)", "one.c one.cu)")
    text = re.sub(r"(?m)^(project\(.*)$", r"\1\nset(CMAKE_CUDA_ARCHITECTURES 90)", text)
    lists.write_text(text)
    edit(one_file, '"first"', '"second"')
    edit(one_file, 'arch = ["120"]', 'arch = ["120", "90"]')
    edit(one_file, '["answer_first"]', '["answer_first"]\narchitectures = ["sm_120", "sm_90"]')
    done = builder("build", "variant", "--catalog", one_file)
    assert done.returncode == 7
    assert "libone.so: expected: defines answer_first; found" in done.stderr
    assert "found: 1 compute_90, 1 sm_90" in done.stderr
    assert "Traceback" not in done.stderr
    assert tags() == set()
    (kept,) = (tmp_path / "state" / "records" / "variant-0.1.0").glob("*.json")
    assert any(
        check["state"] == "failed" for check in json.loads(kept.read_text())["verdict"]["checks"]
    )


def test_an_image_that_failed_a_check_keeps_the_facts_of_its_build(
    builder: Builder, one_file: Path, tmp_path: Path
) -> None:
    edit(one_file, '"first"', '"second"')
    assert builder("build", "variant", "--catalog", one_file).returncode == 7
    (file,) = (tmp_path / "state" / "records" / "variant-0.1.0").glob("*.json")
    failed = json.loads(file.read_text())
    edit(one_file, '["answer_first"]', '["answer_second"]')
    done = builder("build", "variant", "--catalog", one_file, "--json")
    assert done.returncode == 0, done.stderr
    assert "exists; it is not built again" in done.stderr
    kept = json.loads(file.read_text())
    assert "build variant-0.1.0" in kept["seconds"]
    for fact in ("created", "way", "log", "digest", "built_here"):
        assert kept[fact] == failed[fact], fact
    assert kept["built_here"]


def test_the_first_error_of_a_compile_is_told(builder: Builder, one_file: Path) -> None:
    source(one_file).write_text("int wrong( { return }\n")
    done = builder("build", "variant", "--catalog", one_file)
    assert done.returncode == 6
    assert "/src/one.c:1:" in done.stderr
    assert "error:" in done.stderr
    assert "the full log is" in done.stderr
    assert "Traceback" not in done.stderr
    assert tags() == set()


def test_a_compile_has_no_network(builder: Builder, one_file: Path) -> None:
    lists = source(one_file).with_name("CMakeLists.txt")
    fetch = (
        'file(DOWNLOAD "http://files.example.invalid/x" x STATUS s)\nmessage(FATAL_ERROR ${s})\n'
    )
    lists.write_text(lists.read_text() + fetch)
    done = builder("build", "variant", "--catalog", one_file)
    assert done.returncode == 6
    assert "Could not resolve" in done.stderr
    assert "the build has no network" in done.stderr


def test_a_killed_build_leaves_nothing_in_the_way(
    one_file: Path, begin: Begin, builder: Builder, tmp_path: Path
) -> None:
    lasting(one_file)
    with begin(one_file) as process:
        wait_for_log(tmp_path / "state", "RUN --network=none")
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert tags() == set()
    done = builder("build", "variant", "--catalog", one_file, "--json")
    assert done.returncode == 0, done.stderr
    # Where BuildKit finished all the same, its layers are in the cache.
    assert "0.1.0" in tags()
    assert abandoned() == []


def test_ctrl_c_ends_with_one_message(one_file: Path, begin: Begin, tmp_path: Path) -> None:
    lasting(one_file)
    with begin(one_file, "--rebuild") as process:
        wait_for_log(tmp_path / "state", "RUN --network=none")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.rstrip().endswith("builder: interrupted; the command can be run again")
    assert "Traceback" not in errors
    assert tags() == set()
    assert abandoned() == []


def test_a_signal_ends_what_is_done_beside_the_compile(
    hello: dict[str, Any], fork_server: ForkServer, own_cache: Path
) -> None:
    lock = own_cache / "locks"
    with fork_server.running(["build", hello["plan"]["name"], "--rebuild"]) as process:
        for _ in range(600):
            if list(lock.glob("simulator-*.lock")) or process.poll() is not None:
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)  # not to its programs, as Ctrl-C is
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "compiling the simulator of the cards" in errors
    assert errors.rstrip().endswith("builder: interrupted; the command can be run again")
    assert "Traceback" not in errors
    assert "Exception" not in errors
    # BuildKit may have had it all: what is there is whole.
    assert all((made / "libcudart.so.13").exists() for made in own_cache.glob("simulator/*"))
    assert [path for path in (own_cache / "work").iterdir() if path.is_dir()] == []
    listed = subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True, check=True)
    assert str(own_cache) not in listed.stdout


def test_two_builds_of_one_recipe_at_once(
    one_file: Path, begin: Begin, builder: Builder, tmp_path: Path
) -> None:
    lasting(one_file)
    with begin(one_file) as process:
        wait_for_log(tmp_path / "state", "RUN --network=none")
        second = builder("build", "variant", "--catalog", one_file)
        assert second.returncode == 9
        assert "another run on this machine is at work on variant-0.1.0" in second.stderr
        assert f"process {process.pid}" in second.stderr
        assert process.wait(600) == 0
