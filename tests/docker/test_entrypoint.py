"""hello-sm120 through its entrypoint: without a card, on the CPU, and on simulated cards."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.checks import contract, simulated
from builder.engines import layout
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents
from builder.presets import cards
from support.environment import REPOSITORY
from support.smoke_tests import context_of, docker, hello_recipe, run_image

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def image(hello: dict[str, Any]) -> str:
    return str(hello["references"][0])


def started(image: str, *arguments: str, options: tuple[str, ...] = ()) -> Done:
    return run_image("--network=none", *options, image, *arguments)


@pytest.fixture
def simulation(simulator_libraries: Path, tmp_path: Path) -> Iterator[simulated.Simulation]:
    """The simulated 5090."""
    files = {"cards": cards.text([cards.load(REPOSITORY, "5090")]), "code": ""}
    with simulated.simulation(simulator_libraries, files, tmp_path / "simulator") as found:
        yield found


@pytest.fixture
def on_card(image: str, simulation: simulated.Simulation, tmp_path: Path) -> Run:
    """Runs the image on the simulated card; ``needs`` replaces those that it was built with."""
    mounts = simulation.mounts
    options = [f"--volume={folder}:{place}:ro" for place, folder in mounts.volumes.items()]
    options += [f"--env={name}={value}" for name, value in mounts.env.items()]

    def start(*arguments: str, needs: str = "") -> Done:
        file = tmp_path / "needs"
        file.write_text(needs)
        mounted = (f"--volume={file}:{LAYOUT.needs}:ro",) if needs else ()
        return started(image, *arguments, options=(*options, *mounted))

    return start


def test_without_a_card_it_ends_at_once_unless_the_cpu_is_asked_for(image: str) -> None:
    done = started(image, "--no-such-option")
    assert (done.returncode, done.stdout) == (layout.NO_CARD, "")
    assert len(done.stderr.splitlines()) == contract.LINES
    assert "this container has no GPU" in done.stderr
    done = started(image, "--no-such-option", options=("--env=BUILDER_CPU=1",))
    assert done.returncode == 2  # of the engine
    assert "--no-such-option" in done.stderr


def test_on_a_card_the_engine_starts_and_the_check_says_that_it_is_simulated(on_card: Run) -> None:
    done = on_card("--device", "cuda", "--check")
    assert "NVIDIA GeForce RTX 5090" in done.stdout  # of the engine's own --check
    assert "note: the cards are simulated" in done.stderr
    done = on_card("--check", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["driver"]["simulated"]
    assert found["driver"]["library"] == f"{simulated.LIBRARIES}/libcuda.so.1"
    assert found["image"]["recipe"] == "hello-sm120-0.1.0"
    assert found["cards"] == [
        {
            "name": "NVIDIA GeForce RTX 5090",
            "capability": "12.0",
            "memory": 33_680_457_728,
            "code": "sm_120",
        }
    ]


def test_a_card_or_a_driver_that_the_image_is_not_made_for(on_card: Run) -> None:
    done = on_card(needs="recipe x-1\ncode sm_90\ncuda 13.0\n")
    assert done.returncode == layout.NO_CARD
    first = done.stderr.splitlines()[0]
    assert first == (
        "error: the NVIDIA GeForce RTX 5090 has compute capability 12.0, and this image has code "
        "for sm_90 alone"
    )
    done = on_card(needs="recipe x-1\ncode sm_120\ncuda 14.0\ndriver 640\n")
    assert done.returncode == layout.NO_CARD
    first, second, _ = done.stderr.splitlines()
    assert first == "error: the driver supports CUDA 13.0, and this image has CUDA 14.0"
    assert "driver 640 or newer" in second


def test_the_probe_sends_no_report_of_its_own(
    on_card: Run, simulation: simulated.Simulation
) -> None:
    assert on_card("--check").returncode == 0
    assert simulation.receiver.messages() == {}


def test_an_image_that_starts_its_engine_itself_fails(image: str) -> None:
    words = ["/opt/engine/bin/hello-server"]
    bare = Contents({}, {"config": {"Entrypoint": words}}, (), 0)
    context = context_of(bare, hello_recipe(), reference=image)
    [check] = contract.check_entry(context)
    assert (check.state, check.found) == ("failed", words[0])
    [static] = contract.check_static(context)
    assert static.found == "no such program"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("recipe other-1", "other-1, code not known"),
        ("recipe hello-sm120-0.1.0\ncode sm_90", "hello-sm120-0.1.0, code sm_90"),
    ],
)
def test_needs_that_are_not_the_recipes_fail(
    image: str, made: set[str], lines: str, found: str
) -> None:
    name = "builder-test/entrypoint:needs"
    made.add(name)
    text = f"FROM {image}\nCOPY <<EOF {LAYOUT.needs}\n{lines}\nEOF\n"
    docker("buildx", "build", "--provenance=false", f"--tag={name}", "-", text=text)
    words = layout.command(["/opt/engine/bin/hello-server"])
    contents = Contents({}, {"config": {"Entrypoint": words}}, (), 0)
    refused, reported = contract.check_entry(context_of(contents, hello_recipe(), reference=name))
    assert refused.passed
    assert (reported.state, reported.found) == ("failed", found)


def test_an_image_that_asks_for_the_cpu_itself_fails(image: str) -> None:
    words = layout.command(["/opt/engine/bin/hello-server"])
    config = {"Entrypoint": words, "Env": ["PATH=/usr/bin", "BUILDER_CPU=1"]}
    contents = Contents({}, {"config": config}, (), 0)
    refused, reported = contract.check_entry(context_of(contents, hello_recipe(), reference=image))
    assert reported.passed
    assert not refused.passed
    assert refused.found.startswith("exit status 78: this container has no GPU")
    assert refused.found.endswith("; the image sets BUILDER_CPU=1")


@pytest.mark.parametrize(
    ("options", "arguments", "answer"),
    [
        ((), ("--port", "9000"), "127.0.0.1:9000: /health answers 200"),
        (("--env=HELLO_ARG_PORT=9000",), (), "127.0.0.1:9000: /health answers 200"),
        (("--env=HELLO_ARG_HOST=::1",), (), "[::1]:8080: /health answers 200"),
        (("--init", "--read-only", "--cap-drop=ALL"), ("--port", "9000"), "127.0.0.1:9000: /h"),
    ],
)
def test_the_health_check_follows_the_server(
    image: str, options: tuple[str, ...], arguments: tuple[str, ...], answer: str
) -> None:
    """As the engine runs it: a user's option must not make a good server unhealthy."""
    start = ("run", "--detach", "--env=BUILDER_CPU=1", "--health-interval=1s", *options)
    name = docker(*start, image, *arguments)
    try:
        state: dict[str, Any] = {}
        for _ in range(300):
            state = json.loads(docker("inspect", "--format={{json .State.Health}}", name))
            if state["Status"] != "starting":
                break
            time.sleep(0.1)
        assert state["Status"] == "healthy", state
        assert answer in state["Log"][-1]["Output"]
    finally:
        docker("rm", "--force", name)


def test_a_cgroup_that_forbids_the_devices_is_named(image: str, tmp_path: Path) -> None:
    """What systemctl daemon-reload does to a running container: the device is there."""
    make = ["make", "-s", "-C", str(REPOSITORY / "dockerfiles/entrypoint"), f"OUT={tmp_path}"]
    subprocess.run([*make, "ROOT=/fake"], check=True)
    library = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*library, str(REPOSITORY / "tests/data/driver/libcuda.c")], check=True)
    script = """
        mkdir -p /fake/dev /fake/proc /fake/opt/builder
        mknod -m 666 /fake/dev/nvidiactl c 195 255
        mknod -m 666 /fake/dev/nvidia0 c 195 0
        mknod -m 666 /fake/dev/nvidia-uvm c 509 0
        printf 'Character devices:\\n195 nvidia\\n509 nvidia-uvm\\n' >/fake/proc/devices
        cp /in/probe /fake/opt/builder
        exec /in/entrypoint never --
    """
    options = ("--user=0:0", f"--volume={tmp_path}:/in:ro", "--env=LD_LIBRARY_PATH=/in")
    options = (*options, "--env=DRIVER_ERROR=100", "--env=CUDA_VISIBLE_DEVICES=0")
    done = started(image, "-c", script, options=(*options, "--entrypoint=sh"))
    assert done.returncode == layout.NO_CARD
    what, remedy, _ = done.stderr.splitlines()
    assert what == "error: the container may not open /dev/nvidiactl: its cgroup forbids it"
    assert "start a new container" in remedy
