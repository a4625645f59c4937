"""The entrypoint of engine images: real programs, a driver that answers as a test wants, and a
directory in the place of the root.  (tests/docker/test_entrypoint.py has the images.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from simulator import elf
from simulator.selection import Capability, Code, runs

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "dockerfiles" / "entrypoint"
NEEDS = "recipe engine-1\ncode sm_120a\ncuda 13.0\ndriver 580\n"
CARD = "12.0:33680457728:NVIDIA GeForce RTX 5090"
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@x)\n"
WSL = "5.15.167.4-microsoft-standard-WSL2\n"
CONFIGURATION = 78


@dataclass
class Machine:
    """A root directory, and the programs that take it for ``/``."""

    programs: Path
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str = "") -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def driver(
        self,
        *devices: str,
        cards: str = CARD,
        version: str = "580.65.06",
        library: str = "lib/libcuda.so.1",
    ) -> None:
        """Install the driver: its library, what the kernel tells of it, and devices."""
        file = self.root / library
        file.parent.mkdir(parents=True)
        shutil.copy(self.programs / "libcuda.so.1", file)
        if file.name != "libcuda.so.1":
            (file.parent / "libcuda.so.1").symlink_to(file.name)
        self.env |= {"LD_LIBRARY_PATH": str(file.parent), "DRIVER_CARDS": cards}
        self.write("/proc/driver/nvidia/version", VERSION.format(version))
        for device in devices or ("nvidiactl", "nvidia0", "nvidia-uvm"):
            self.write(f"/dev/{device}")

    def start(
        self, *arguments: str, engine: tuple[str, ...] = ("sh", "-c", 'echo "$@"', "engine")
    ) -> subprocess.CompletedProcess[str]:
        command = [self.programs / "entrypoint", *engine, "--", *arguments]
        env = {"PATH": os.environ["PATH"], **self.env}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def check(self) -> dict[str, Any]:
        done = self.start("--check", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if found["usable"] else CONFIGURATION)
        return found

    def problem(self) -> tuple[str, str, str]:
        """The problem, and the lines that say what is missing and what to do; JSON has the same."""
        done = self.start("never")
        assert (done.returncode, done.stdout) == (CONFIGURATION, "")
        what, remedy, cpu = done.stderr.splitlines()
        assert "BUILDER_CPU=1" in cpu
        found = self.check()
        shown = [what.removeprefix("error: "), remedy.removeprefix("  to do: ")]
        assert [*shown, cpu.removeprefix("  or: ").partition(";")[0]] == found["lines"]
        return found["problem"], *shown


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entrypoint")
    make = ["make", "-s", "-C", str(SOURCES), f"OUT={folder}", f"ROOT={folder}/root"]
    subprocess.run(make, check=True)
    driver = REPOSITORY / "tests/data/driver/libcuda.c"
    gcc = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(driver)]
    subprocess.run(gcc, check=True)
    return folder


@pytest.fixture
def machine(programs: Path) -> Machine:
    """A machine without a driver."""
    root = programs / "root"
    shutil.rmtree(root, ignore_errors=True)
    found = Machine(programs, root)
    found.write("/opt/builder/needs", NEEDS)
    found.write("/proc/sys/kernel/osrelease", "6.12.0\n")
    shutil.copy(programs / "probe", root / "opt/builder/probe")
    return found


def test_the_entrypoint_is_static_and_the_probe_runs_with_an_old_glibc(programs: Path) -> None:
    with (programs / "entrypoint").open("rb") as stream:
        entrypoint = elf.read(stream)
    assert entrypoint is not None
    assert (entrypoint.needed, entrypoint.interpreter) == ((), None)
    assert (programs / "entrypoint").stat().st_size < 1_000_000
    with (programs / "probe").open("rb") as stream:
        probe = elf.read(stream)
    assert probe is not None
    [(_, versions)] = probe.versions_needed
    newest = max(tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in versions)
    assert newest <= (2, 34)


def test_with_a_card_the_engine_gets_its_arguments(machine: Machine) -> None:
    machine.driver()
    done = machine.start("--port", "1", "--", "--check", "two words")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "--port 1 -- --check two words\n"


def test_the_engine_is_the_same_process_with_the_same_environment(machine: Machine) -> None:
    machine.env |= {"BUILDER_CPU": "1", "KEPT": "yes"}
    show = "import os, signal; print(os.getpid(), os.environ['KEPT'], os.environ['BUILDER_CPU'])"
    more = "; print(signal.pthread_sigmask(0, []), sorted(os.listdir('/proc/self/fd')))"
    command = [machine.programs / "entrypoint", "python3", "-c", show + more, "--"]
    env = {"PATH": os.environ["PATH"], **machine.env}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = process.stdout.read().splitlines()
    assert first == f"{process.pid} yes 1"
    assert second == "set() ['0', '1', '2', '3']"  # 3 is the directory itself


def test_check_is_the_engines_own_unless_it_comes_alone(machine: Machine) -> None:
    machine.driver()
    for arguments in (["--check", "--json", "x"], ["--check", "x"], ["x", "--check"]):
        assert machine.start(*arguments).stdout == " ".join(arguments) + "\n"


def test_check_tells_all_that_was_found(machine: Machine) -> None:
    machine.driver("nvidiactl", "nvidia0", "nvidia-uvm")
    assert machine.check() == {
        "version": 1,
        "usable": True,
        "problem": None,
        "lines": [],
        "image": {
            "recipe": "engine-1",
            "code": ["sm_120a"],
            "cpu": [],
            "cuda": "13.0",
            "driver": "580",
        },
        "driver": {
            "version": "580.65.06",
            "cuda": "13.0",
            "library": str(machine.root / "lib/libcuda.so.1"),
            "error": None,
            "simulated": False,
        },
        "devices": ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"],
        "wsl": False,
        "cpu": {"model": None, "missing": None, "unknown": None},
        "cards": [
            {
                "name": "NVIDIA GeForce RTX 5090",
                "capability": "12.0",
                "memory": 33680457728,
                "code": "sm_120a",
            }
        ],
    }
    done = machine.start("--check")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == [
        "card 0   NVIDIA GeForce RTX 5090; compute capability 12.0; 32120 MiB; runs sm_120a",
        "result   the engine uses the card",
    ]


def test_a_report_has_what_the_check_found_without_paths(machine: Machine) -> None:
    machine.driver()
    done = machine.start("--report")
    found = machine.check()
    for name in ("lines", "devices"):
        del found[name]
    for name in ("library", "error"):
        del found["driver"][name]
    assert (done.returncode, json.loads(done.stdout)) == (0, found)
    assert machine.start("--report", "x").stdout == "--report x\n"
    shutil.rmtree(machine.root / "lib")
    done = machine.start("--report")
    assert (done.returncode, json.loads(done.stdout)["problem"]) == (CONFIGURATION, "no-toolkit")
    assert str(machine.root) not in done.stdout


def test_without_a_driver_on_the_host(machine: Machine) -> None:
    problem, what, remedy = machine.problem()
    assert problem == "no-gpu"
    assert "has not loaded NVIDIA's driver" in what
    assert "driver 580 or newer and the NVIDIA Container Toolkit" in remedy


def test_a_container_that_was_started_without_the_gpu(machine: Machine) -> None:
    machine.write("/proc/driver/nvidia/version", VERSION.format("580.65.06"))
    problem, what, remedy = machine.problem()
    assert problem == "no-gpu"
    assert "though the host has NVIDIA's driver 580.65.06" in what
    assert "--gpus all" in remedy


def test_a_container_of_wsl(machine: Machine) -> None:
    machine.write("/proc/sys/kernel/osrelease", WSL)
    assert "/dev/dxg is missing" in machine.problem()[1]
    machine.write("/dev/dxg")
    problem, what, _ = machine.problem()
    assert problem == "no-toolkit"
    assert "/usr/lib/wsl/lib" in what
    (machine.root / "proc/driver").mkdir()
    machine.driver("dxg")
    assert machine.check()["usable"]


def test_devices_without_the_drivers_library(machine: Machine) -> None:
    machine.write("/dev/nvidiactl")
    problem, what, remedy = machine.problem()
    assert problem == "no-toolkit"
    assert "libcuda.so.1 is not" in what
    assert "NVIDIA Container Toolkit" in remedy
    machine.env["NVIDIA_DRIVER_CAPABILITIES"] = "utility"
    assert machine.problem()[2] == "add compute to NVIDIA_DRIVER_CAPABILITIES"


def test_a_library_of_another_machine(machine: Machine) -> None:
    machine.driver()
    library = machine.root / "lib/libcuda.so.1"
    content = bytearray(library.read_bytes())
    content[4] = 1  # EI_CLASS: ELFCLASS32
    library.write_bytes(content)
    problem, what, _ = machine.problem()
    assert problem == "driver-library"
    assert "wrong ELF class: ELFCLASS32" in what


def test_a_library_that_needs_another_one(machine: Machine) -> None:
    machine.driver()
    library = machine.root / "lib/libcuda.so.1"
    missing = machine.root / "libmissing.so"
    gcc = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o"]
    subprocess.run([*gcc, str(missing), "-Wl,-soname,libmissing.so", "/dev/null"], check=True)
    link = ["-Wl,--no-as-needed", "/dev/null", "-x", "none", str(missing)]
    subprocess.run([*gcc, str(library), *link], check=True)
    problem, what, _ = machine.problem()
    assert problem == "driver-library"
    assert "libmissing.so: cannot open shared object file" in what


def test_a_driver_that_is_too_old_is_named_with_the_one_that_is_needed(machine: Machine) -> None:
    machine.driver(version="570.133.07")
    machine.env["DRIVER_CUDA"] = "12080"
    problem, what, remedy = machine.problem()
    assert problem == "old-driver"
    assert what == "the driver 570.133.07 supports CUDA 12.8, and this image has CUDA 13.0"
    assert remedy == "install NVIDIA's driver 580 or newer on the host"


def test_minor_versions_of_cuda_go_together(machine: Machine) -> None:
    machine.driver()
    machine.write("/opt/builder/needs", NEEDS.replace("cuda 13.0", "cuda 13.2"))
    assert machine.check()["usable"]


def test_a_recipe_may_need_a_newer_driver_than_its_cuda(machine: Machine) -> None:
    machine.driver(version="580.65.06")
    machine.write("/opt/builder/needs", NEEDS.replace("driver 580", "driver 580.126.09"))
    problem, what, _ = machine.problem()
    assert problem == "old-driver"
    assert what == "the driver is 580.65.06, and this image needs 580.126.09"


def test_the_compatibility_libraries_of_cuda(machine: Machine) -> None:
    machine.driver(version="570.133.07")
    machine.env["DRIVER_ERROR"] = "804"
    problem, what, remedy = machine.problem()
    assert problem == "compat"
    assert "does not belong to the host's driver 570.133.07" in what
    assert "CDI" in remedy


COMPAT = "usr/local/cuda-13.0/compat/libcuda.so.580.82.07"
OWN = "usr/lib/x86_64-linux-gnu/libcuda.so.595.58.03"


@pytest.mark.parametrize("error", ["803", "804"])
@pytest.mark.parametrize(
    ("library", "version", "own", "problem", "remedy"),
    [
        # A compatibility library before a driver that needs none.
        (COMPAT, "595.58.03", None, "compat", "remove {folder} from LD_LIBRARY_PATH"),
        ("cuda/compat/libcuda.so.1", "595.58.03", None, "compat", "remove {folder} from LD_"),
        ("opt/conda/cuda-compat/libcuda.so.1", "580.1", None, "compat", "remove {folder}"),
        ("usr/local/cuda/compat/lib.real/libcuda.so.1", "590.1", None, "compat", "remove {folder}"),
        # One that the image has elsewhere.
        ("opt/x/libcuda.so.570.1", "595.58.03", OWN, "compat", "remove {folder} from LD_"),
        # One before a driver that is too old.
        (COMPAT, "570.133.07", None, "compat", "install NVIDIA's driver 580 or newer"),
        # The driver was upgraded, and its module was not reloaded.
        ("lib/libcuda.so.580.82.07", "580.65.06", None, "driver-mismatch", "to 580.82.07, and"),
        ("lib/libcuda.so.595.58.03", "570.133.07", None, "driver-mismatch", "reboot the host"),
        ("lib/libcuda.so.1", "595.58.03", None, "driver-mismatch", "reboot the host"),
        # The module was reloaded, and the container has the older library.
        ("lib/libcuda.so.580.65.06", "595.58.03", None, "driver-mismatch", "a new container"),
    ],
)
def test_a_library_that_does_not_belong_to_the_driver(
    machine: Machine,
    error: str,
    library: str,
    version: str,
    own: str | None,
    problem: str,
    remedy: str,
) -> None:
    machine.driver(version=version, library=library)
    if own is not None:
        machine.write(own)
    machine.env["DRIVER_ERROR"] = error
    found, what, step = machine.problem()
    assert found == problem
    assert version in what
    assert remedy.format(folder=machine.env["LD_LIBRARY_PATH"]) in step
    if problem == "driver-mismatch" or not version.startswith("570"):
        assert "install" not in step


def test_a_compatibility_library_that_the_loader_puts_first(
    machine: Machine, tmp_path: Path
) -> None:
    machine.driver(version="595.58.03", library=COMPAT)
    machine.write(OWN)
    folder = machine.env["LD_LIBRARY_PATH"]
    (tmp_path / "link").symlink_to(folder)
    machine.env |= {"DRIVER_ERROR": "803", "LD_LIBRARY_PATH": f"/nowhere:{tmp_path}/link"}
    assert f"remove {tmp_path}/link from LD_LIBRARY_PATH" in machine.problem()[2]
    # In an image the list of ld.so has it: here the probe does, which the variable cannot show.
    del machine.env["LD_LIBRARY_PATH"]
    link = ["gcc", str(SOURCES / "probe.c"), "-ldl", f"-Wl,-rpath,{folder}"]
    subprocess.run([*link, "-o", str(machine.root / "opt/builder/probe")], check=True)
    step = machine.problem()[2]
    assert "-e LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu" in step
    assert f"remove {folder} from /etc/ld.so.conf.d" in step


@pytest.mark.parametrize(
    ("library", "problem", "remedy"),
    [
        ("usr/local/cuda-12.8/compat/libcuda.so.570.86", "compat", "from LD_LIBRARY_PATH"),
        ("lib/libcuda.so.570.86", "driver-mismatch", "start a new container"),
        ("lib/libcuda.so.1", "driver-mismatch", "start a new container"),
    ],
)
def test_an_older_library_hides_a_driver_that_is_new_enough(
    machine: Machine, library: str, problem: str, remedy: str
) -> None:
    machine.driver(version="595.58.03", library=library)
    machine.env["DRIVER_CUDA"] = "12080"
    found, what, step = machine.problem()
    assert found == problem
    assert "supports CUDA 12.8, this image has CUDA 13.0" in what
    assert "the host's newer driver 595.58.03 is not used" in what
    assert remedy in step
    assert "install" not in step


def test_an_older_library_cannot_compile_the_ptx_that_the_driver_can(machine: Machine) -> None:
    machine.driver(version="595.58.03", library=COMPAT)
    machine.write("/opt/builder/needs", "code compute_120\ncuda 13.2\ndriver 580\n")
    problem, what, step = machine.problem()
    assert (problem, "from LD_LIBRARY_PATH" in step, "install" in step) == ("compat", True, False)
    assert "libcuda.so.580.82.07 supports CUDA 13.0" in what


def test_an_older_library_in_an_image_that_does_not_name_its_driver(machine: Machine) -> None:
    machine.driver(version="595.58.03", library="cuda/compat/libcuda.so.570.86")
    machine.write("/opt/builder/needs", "code sm_120a\n")
    machine.env |= {"CUDA_VERSION": "13.0.1", "DRIVER_CUDA": "12080"}
    assert machine.problem()[0] == "compat"


def test_a_compatibility_library_that_works(machine: Machine) -> None:
    """On a data center card: the older driver is no fault."""
    machine.driver(version="570.133.20", library=COMPAT)
    assert machine.check()["usable"]


@pytest.mark.parametrize("env", [{"DRIVER_ERROR": "804"}, {"DRIVER_CUDA": "12080"}])
def test_a_compatibility_library_in_wsl(machine: Machine, env: dict[str, str]) -> None:
    machine.driver("dxg", library=COMPAT)
    (machine.root / "proc/driver/nvidia/version").unlink()
    machine.write("/proc/sys/kernel/osrelease", WSL)
    machine.env |= env
    problem, _, step = machine.problem()
    assert (problem, "from LD_LIBRARY_PATH" in step) == ("compat", True)


def test_a_windows_driver_that_was_upgraded_while_wsl_ran(machine: Machine) -> None:
    machine.driver("dxg")
    (machine.root / "proc/driver/nvidia/version").unlink()
    machine.write("/proc/sys/kernel/osrelease", WSL)
    machine.env["DRIVER_ERROR"] = "803"
    assert "wsl --shutdown" in machine.problem()[2]


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        ("34", "stub", "start the container with --gpus all"),
        ("35", "old-driver", "install NVIDIA's newest driver on the host"),
        ("36", "old-driver", "at least the driver 580 or newer"),
        ("46", "busy", "nvidia-smi -c DEFAULT"),
        ("101", "driver-error", "nvidia-smi works on the host"),
        ("102", "driver-error", "license"),
        ("214", "driver-error", "nvidia-smi --gpu-reset"),
        ("802", "not-ready", "systemctl start nvidia-fabricmanager"),
        ("805", "mps", "nvidia-cuda-mps-control -d"),
        ("807", "mps", "CUDA_MPS_PIPE_DIRECTORY"),
        ("999", "driver-error", "nvidia-smi works on the host"),
    ],
)
def test_each_error_of_the_driver_has_its_next_step(
    machine: Machine, error: str, problem: str, remedy: str
) -> None:
    machine.driver()
    machine.env["DRIVER_ERROR"] = error
    found, what, step = machine.problem()
    assert (found, remedy in step) == (problem, True), (what, step)


def test_a_card_whose_compute_mode_is_prohibited(machine: Machine) -> None:
    machine.driver()
    machine.env["DRIVER_MODE"] = "3"  # one process at a time: the engine is one
    assert machine.check()["usable"]
    machine.env["DRIVER_MODE"] = "2"
    problem, what, remedy = machine.problem()
    assert (problem, remedy) == ("busy", "run nvidia-smi -c DEFAULT on the host")
    assert "RTX 5090 is Prohibited" in what
    machine.env["DRIVER_CARDS"] = f"{CARD};{CARD}"
    assert machine.check()["usable"]


DEVICES = "Character devices:\n  1 mem\n195 {}\n509 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
NODES = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (509, 0)}


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device files")
@pytest.mark.parametrize("error", ["100", "304", "999"])
@pytest.mark.parametrize(
    ("node", "number", "modules", "problem", "what", "remedy"),
    [
        ("nvidia-uvm", (510, 0), DEVICES, "stale-device", "510:0, and the driver's is 509:0", "-u"),
        ("nvidia0", (1, 3), DEVICES, "stale-device", "1:3, and the driver's is 195:3", "-c=3"),
        ("nvidia-uvm", (509, 0), "195 nvidia\n", "no-module", "module nvidia-uvm", "-u -c=0"),
        ("nvidiactl", (195, 255), "1 mem\n", "no-module", "its module nvidia", "nvidia-modprobe"),
        ("nvidia0", None, DEVICES, "no-device", "/dev/nvidia0", "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_a_device_that_cannot_be_used(
    machine: Machine,
    error: str,
    node: str,
    number: tuple[int, int] | None,
    modules: str,
    problem: str,
    what: str,
    remedy: str,
) -> None:
    machine.driver()
    machine.write(
        "/proc/devices", modules.format("nvidia" if error == "100" else "nvidia-frontend")
    )
    machine.env["DRIVER_ERROR"] = error
    # Nodes that can be opened here: what is wrong is the number.
    for name in NODES:
        (machine.root / "dev" / name).unlink()
        if name != node:
            machine.write(f"/dev/{name}")
        elif number is not None:
            os.mknod(machine.root / "dev" / name, 0o20666, os.makedev(*number))
    found, shown, step = machine.problem()
    assert found == problem, (shown, step)
    assert what in shown
    assert remedy in step
    assert ("restart the host" in step, "the driver finds no card" in shown) == (False, False)
    assert error == "100" or f"({error})" in shown


def test_devices_whose_module_the_kernel_does_not_name(machine: Machine) -> None:
    machine.driver()
    (machine.root / "proc/driver/nvidia/version").unlink()
    machine.env["DRIVER_ERROR"] = "100"
    assert machine.problem()[0] == "no-module"
    machine.write("/proc/devices", "Character devices:\n195 nvidia\n509 nvidia-uvm\n")
    assert machine.problem()[0] == "no-card"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_device_that_the_user_may_not_open(machine: Machine) -> None:
    machine.driver()
    machine.env |= {"DRIVER_ERROR": "100", "CUDA_VISIBLE_DEVICES": "0"}
    device = machine.root / "dev/nvidia0"
    os.chown(device, 65534, 65534)
    device.chmod(0o660)
    rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = [*rights, machine.programs / "entrypoint", "never", "--"]
    env = {"PATH": os.environ["PATH"], **machine.env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == CONFIGURATION
    assert "/dev/nvidia0 may not be opened by the user of this container" in done.stderr


def test_a_mount_that_docker_made_where_no_device_was(machine: Machine) -> None:
    machine.driver("nvidiactl", "nvidia-uvm")
    (machine.root / "dev/nvidia0").mkdir()
    machine.env["DRIVER_ERROR"] = "100"
    assert "/dev/nvidia0 is a directory" in machine.problem()[1]


def test_a_hidden_card(machine: Machine) -> None:
    machine.driver(cards="")
    machine.env["CUDA_VISIBLE_DEVICES"] = ""
    assert machine.problem()[:2] == ("hidden", 'CUDA_VISIBLE_DEVICES="" leaves no card')


@pytest.mark.parametrize("value", ["0", "0,1"])
def test_a_variable_that_hides_no_card(machine: Machine, value: str) -> None:
    """The card 0 is there if any is."""
    machine.driver("nvidiactl", "nvidia0")
    machine.env |= {"CUDA_VISIBLE_DEVICES": value, "DRIVER_ERROR": "100"}
    assert "/dev/nvidia-uvm is missing" in machine.problem()[1]
    machine.write("/dev/nvidia-uvm")
    assert machine.problem()[0] == "no-card"


def test_a_jetson_has_other_devices(machine: Machine) -> None:
    machine.driver("nvmap")
    (machine.root / "proc/driver/nvidia/version").unlink()
    assert machine.check()["usable"]
    machine.env["DRIVER_ERROR"] = "999"
    assert machine.problem()[0] == "driver-error"


def test_the_library_without_devices(machine: Machine) -> None:
    machine.driver()
    machine.env["DRIVER_ERROR"] = "100"
    assert machine.problem()[:2] == ("no-card", "the driver finds no card")
    shutil.rmtree(machine.root / "dev")
    assert machine.problem()[0] == "no-gpu"


def test_a_driver_that_does_not_start(machine: Machine) -> None:
    machine.driver("nvidiactl", "nvidia0")
    machine.env["DRIVER_ERROR"] = "999"
    problem, what, remedy = machine.problem()
    assert (problem, what) == (
        "driver-error",
        "the driver does not start: CUDA_ERROR_UNKNOWN (999)",
    )
    assert "nvidia-modprobe" in remedy
    machine.write("/dev/nvidia-uvm")
    assert "restart the host" in machine.problem()[2]


def test_a_driver_that_crashes(machine: Machine) -> None:
    machine.driver()
    machine.env["DRIVER_SIGNAL"] = "11"
    problem, what, _ = machine.problem()
    assert problem == "probe"
    assert "signal 11" in what


def test_an_image_without_its_probe(machine: Machine) -> None:
    (machine.root / "opt/builder/probe").unlink()
    assert "No such file" in machine.problem()[1]


def test_a_card_that_the_image_has_no_code_for(machine: Machine) -> None:
    machine.driver(cards="9.0:150754820096:NVIDIA H200")
    problem, what, remedy = machine.problem()
    assert problem == "no-code"
    assert what == (
        "the NVIDIA H200 has compute capability 9.0, and this image has code for sm_120a alone"
    )
    assert "code for compute capability 9.0" in remedy


def test_one_card_of_several_is_enough(machine: Machine) -> None:
    machine.driver(cards=f"8.6:25757220864:NVIDIA GeForce RTX 3090;{CARD}")
    assert [card["code"] for card in machine.check()["cards"]] == [None, "sm_120a"]


def test_an_image_whose_code_is_not_known_takes_any_card(machine: Machine) -> None:
    machine.driver(cards="8.6:25757220864:NVIDIA GeForce RTX 3090")
    machine.write("/opt/builder/needs", "recipe overlaid-1\n")
    machine.env["CUDA_VERSION"] = "13.0.1"
    found = machine.check()
    assert found["usable"]
    assert found["image"]["cuda"] == "13.0"


CODES = [
    Code(kind, arch, suffix)
    for kind in ("elf", "ptx")
    for arch in (80, 86, 89, 90, 100, 103, 120, 121)
    for suffix in (("", "a", "f") if arch >= 90 else ("",))
]
CAPABILITIES = ("8.0", "8.6", "9.0", "10.0", "12.0", "12.1")


def test_cards_run_the_code_that_builder_says_they_run(machine: Machine) -> None:
    machine.driver(cards=";".join(f"{card}:1:x" for card in CAPABILITIES))
    for code in CODES:
        machine.write("/opt/builder/needs", f"code {code.name}\n")
        found = {card["capability"]: card["code"] == code.name for card in machine.check()["cards"]}
        expected = {card: runs(code, Capability.parse(card)) for card in CAPABILITIES}
        assert found == expected, code.name


def test_machine_code_comes_before_ptx(machine: Machine) -> None:
    machine.driver()
    machine.write("/opt/builder/needs", "code compute_90\ncode sm_120\ncode compute_120\n")
    assert machine.check()["cards"][0]["code"] == "sm_120"


@pytest.mark.parametrize(
    ("codes", "cuda", "card", "problem"),
    [
        ("compute_120", "13.2", CARD, "old-driver"),
        ("compute_80", "13.3", CARD, "old-driver"),
        ("sm_120a compute_120", "13.2", "12.1:1:GB10", "old-driver"),
        ("compute_120f", "13.1", "12.1:1:GB10", "old-driver"),
        ("sm_120 compute_120", "13.2", CARD, None),  # machine code needs no compiler
        ("compute_120", "13.0", CARD, None),
        ("compute_120", "12.9", CARD, None),
        ("sm_90a compute_90a", "13.2", CARD, "no-code"),
        ("sm_120a compute_90", "13.2", f"9.0:1:H100;{CARD}", None),  # the second card is enough
    ],
)
def test_ptx_of_a_newer_cuda_needs_a_newer_driver(
    machine: Machine, codes: str, cuda: str, card: str, problem: str | None
) -> None:
    machine.driver(cards=card)
    machine.env["DRIVER_CUDA"] = "13000"
    lines = "".join(f"code {code}\n" for code in codes.split())
    machine.write("/opt/builder/needs", f"{lines}cuda {cuda}\ndriver 580\n")
    assert machine.check()["problem"] == problem
    if problem == "old-driver":
        _, what, remedy = machine.problem()
        assert f"cannot compile this image's PTX ({codes.split()[-1]}) of CUDA {cuda}" in what
        assert f"a driver for CUDA {cuda} or newer" in remedy.replace("an NVIDIA", "a")


def test_the_cpu_is_used_when_asked_for(machine: Machine) -> None:
    machine.env["BUILDER_CPU"] = "1"
    assert machine.start("x").stdout == "x\n"
    machine.env["BUILDER_CPU"] = "0"
    assert machine.start("x").returncode == CONFIGURATION
    machine.env["BUILDER_CPU"] = "yes"
    done = machine.start("x")
    assert (done.returncode, done.stdout) == (CONFIGURATION, "")
    assert 'BUILDER_CPU is "yes"' in done.stderr


def test_help_and_version_need_no_card(machine: Machine) -> None:
    for word in ("--help", "-h", "--version"):
        assert machine.start(word).stdout == f"{word}\n"
        assert machine.start(word, "x").returncode == CONFIGURATION


INSTRUCTIONS = {
    **{name: name for name in ("ssse3", "fma", "cx16", "movbe", "popcnt", "avx", "f16c", "avx2")},
    **{name: name for name in ("bmi2", "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")},
    **{name: name.replace("-", "_") for name in ("avx512vbmi", "amx-tile", "amx-int8", "amx-bf16")},
    **{name: name.replace(".", "_") for name in ("sse4.1", "sse4.2")},
    **{f"avx512{name}": f"avx512_{name}" for name in ("vnni", "bf16")},
    "sse3": "pni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "avxvnni": "avx_vnni",
}
"""gcc's name of instructions, and the kernel's in /proc/cpuinfo."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64's instructions")
def test_the_entrypoint_knows_the_instructions_that_the_kernel_knows(machine: Machine) -> None:
    text = Path("/proc/cpuinfo").read_text()
    [flags, *_] = [line.split() for line in text.splitlines() if line.startswith("flags")]
    machine.driver()
    lines = "".join(f"cpu {name}\n" for name in INSTRUCTIONS)
    machine.write("/opt/builder/needs", f"{NEEDS}{lines}cpu native\n")
    machine.write("/proc/cpuinfo", text)
    found = machine.check()
    lacking = [name for name, flag in INSTRUCTIONS.items() if flag not in flags]
    assert (found["cpu"]["missing"] or "").split(", ") == (lacking or [""])
    assert found["cpu"]["unknown"] == "native"
    assert found["cpu"]["model"] in text
    assert found["problem"] == ("cpu" if lacking else None)


@pytest.mark.skipif(shutil.which("qemu-x86_64-static") is None, reason="needs qemu-user-static")
@pytest.mark.parametrize(
    ("cpu", "lacks"),
    [
        ("qemu64", "sse4.2, avx, f16c, fma, bmi2, avx2"),
        ("Nehalem", "avx, f16c, fma, bmi2, avx2"),
        ("SandyBridge", "f16c, fma, bmi2, avx2"),
        ("IvyBridge", "fma, bmi2, avx2"),
        ("Haswell,-xsave", "avx, f16c, fma, avx2"),  # the system does not save the registers
        ("Haswell", ""),
    ],
)
def test_a_cpu_without_the_instructions_of_the_engine(
    machine: Machine, cpu: str, lacks: str
) -> None:
    machine.driver()
    names = ("sse4.2", "avx", "f16c", "fma", "bmi2", "avx2")
    machine.write("/opt/builder/needs", NEEDS + "".join(f"cpu {name}\n" for name in names))
    for arguments, env in (
        (["x"], {}),
        (["x"], {"BUILDER_CPU": "1"}),
        (["--version"], {}),
        (["--check"], {}),
    ):
        command = ["qemu-x86_64-static", "-cpu", cpu, machine.programs / "entrypoint", "echo", "--"]
        env = {"PATH": os.environ["PATH"], **machine.env, **env}
        done = subprocess.run(
            [*command, *arguments], env=env, capture_output=True, text=True, check=False
        )
        text = done.stdout + done.stderr
        assert done.returncode == (CONFIGURATION if lacks else 0), text
        assert f"lacks instructions that the engine is compiled for: {lacks}\n" in text or not lacks
        assert "BUILDER_CPU" not in text


@pytest.mark.skipif(shutil.which("qemu-x86_64-static") is None, reason="needs qemu-user-static")
@pytest.mark.parametrize(("release", "step"), [("6.12.0\n", "-cpu host"), (WSL, "a machine whose")])
def test_a_virtual_machine_may_hide_instructions_and_wsl_does_not(
    machine: Machine, release: str, step: str
) -> None:
    machine.write("/opt/builder/needs", "cpu avx2\n")
    machine.write("/proc/sys/kernel/osrelease", release)
    command = ["qemu-x86_64-static", "-cpu", "Nehalem", machine.programs / "entrypoint", "x", "--"]
    env = {"BUILDER_CPU": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert step in done.stderr


@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64-static") and shutil.which("aarch64-linux-gnu-gcc")),
    reason="needs qemu-user-static and gcc-aarch64-linux-gnu",
)
@pytest.mark.parametrize(
    ("cpu", "lacks"),
    [("cortex-a53", "armv8.2-a, dotprod, i8mm"), ("cortex-a76", "i8mm"), ("max", "")],
)
def test_a_cpu_of_arm64_without_the_instructions_of_the_engine(
    machine: Machine, tmp_path: Path, cpu: str, lacks: str
) -> None:
    make = ["make", "-s", "-C", str(SOURCES), f"OUT={tmp_path}", f"ROOT={machine.root}"]
    subprocess.run([*make, "CROSS=aarch64-linux-gnu-", f"{tmp_path}/entrypoint"], check=True)
    machine.write("/opt/builder/needs", "cpu armv8.2-a\ncpu dotprod\ncpu i8mm\n")
    command = ["qemu-aarch64-static", "-cpu", cpu, tmp_path / "entrypoint", "echo", "--", "x"]
    env = {"PATH": os.environ["PATH"], "BUILDER_CPU": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (CONFIGURATION if lacks else 0)
    assert f": {lacks}\n" in done.stderr or not lacks


def test_an_image_that_extends_another_keeps_its_entrypoint_and_command(machine: Machine) -> None:
    machine.env["BUILDER_CPU"] = "1"
    words = "entrypoint echo\nentrypoint serve it\ncommand --default\ncommand two\n"
    machine.write("/opt/builder/needs", NEEDS + words)
    assert machine.start(engine=()).stdout == "serve it --default two\n"
    assert machine.start("--model", "x", engine=()).stdout == "serve it --model x\n"
    machine.write("/opt/builder/needs", NEEDS)
    assert machine.start(engine=()).returncode == 127


def test_an_engine_that_cannot_be_run(machine: Machine, tmp_path: Path) -> None:
    machine.env["BUILDER_CPU"] = "1"
    done = machine.start(engine=("/nowhere",))
    assert done.returncode == 127
    assert done.stderr == "error: /nowhere cannot be run: No such file or directory\n"
    (tmp_path / "text").write_text("x")
    assert machine.start(engine=(str(tmp_path / "text"),)).returncode == 126


def test_the_benchmark_measures_the_entrypoint() -> None:
    command = [sys.executable, "studies/entrypoint.py", "--runs", "1", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert figures.keys() == {"alone", "card", "cpu", "bytes"}
    assert all(figure > 0 for figure in figures.values())
