"""The health check of engine images: real servers on real sockets, one of them the container's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SERVER = """
import os, socket, ssl, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(os.environ.get("STATUS", 200)) if self.path == sys.argv[2] else 404)
        self.end_headers()
    def address_string(self):
        return ""

class Server(HTTPServer):
    address_family = {":": socket.AF_INET6, "s": socket.AF_UNIX}.get(sys.argv[1][0], socket.AF_INET)
    def server_bind(self):
        if self.address_family == socket.AF_UNIX:
            self.server_name, self.server_port = "", 0
            self.socket.bind(self.server_address)
        else:
            super().server_bind()

host = sys.argv[1]
served = Server(host.removeprefix("s:") if host[0] == "s" else (host, 0), Page)
if "--ssl-keyfile" in sys.argv:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.socket = context.wrap_socket(served.socket, server_side=True)
print(served.server_port, flush=True)
served.serve_forever()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthcheck")
    make = ["make", "-s", "-C", str(REPOSITORY / "dockerfiles/entrypoint"), f"OUT={folder}"]
    subprocess.run([*make, f"ROOT={folder}/root", f"{folder}/healthcheck"], check=True)
    return folder


@pytest.fixture
def root(built: Path) -> Path:
    """The directory in the place of /, with the processes of the container."""
    proc = built / "root/proc"
    for file in proc.iterdir() if proc.exists() else ():
        file.unlink()
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "net").symlink_to("/proc/net")
    return built / "root"


Start = Callable[..., str]


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Starts a server, of the container unless told otherwise, and tells its port."""
    running = []

    def started(host: str, page: str, *arguments: str, own: bool = True, **env: str) -> str:
        command = [sys.executable, "-c", SERVER, host, page, *arguments]
        process = subprocess.Popen(
            command, env=env, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        running.append(process)
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if own:
            (root / f"proc/{process.pid}").symlink_to(f"/proc/{process.pid}")
        return port

    yield started
    for process in running:
        process.kill()
        process.wait()


def asked(root: Path, port: str, page: str = "health") -> tuple[int, str]:
    command = [root.parent / "healthcheck", port, page]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


NOWHERE = "1"  # the image's port, on which nothing listens


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "127.0.0.5", "::1", "::", "s:x.sock"])  # noqa: S104
def test_it_follows_the_server_wherever_it_listens(root: Path, start: Start, host: str) -> None:
    if host.startswith("s:"):
        (root / "x.sock").unlink(missing_ok=True)
    port = start(host, "/health")
    assert asked(root, NOWHERE)[0] == 0
    assert asked(root, NOWHERE, "nowhere")[0] == 1
    if port != "0":
        assert asked(root, port)[0] == 0


WITHOUT_IPV6 = """
import fcntl, socket, struct
open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w").write("1")
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
"""
ASKED = """
import subprocess, threading
threading.Thread(target=served.serve_forever, daemon=True).start()
os.symlink(f"/proc/{os.getpid()}", f"{sys.argv[3]}/root/proc/{os.getpid()}")
sys.exit(subprocess.call([sys.argv[3] + "/healthcheck", "1", "health"]))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="makes a network")
def test_a_server_on_all_addresses_of_a_container_without_ipv6(root: Path) -> None:
    """It listens on ::, and ::1 does not exist."""
    script = WITHOUT_IPV6 + SERVER.replace("served.serve_forever()\n", ASKED)
    command = ["unshare", "--net", sys.executable, "-c", script, "::", "/health", root.parent]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[::1]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["--api-prefix", "/x"], {}),
        (["--api-prefix=/x"], {}),
        ([], {"LLAMA_ARG_API_PREFIX": "/x"}),
        (["--api-prefix", "/x"], {"LLAMA_ARG_API_PREFIX": "/y"}),
    ],
)
def test_it_follows_the_prefix(
    root: Path, start: Start, arguments: list[str], env: dict[str, str]
) -> None:
    port = start("127.0.0.1", "/x/health", *arguments, **env)
    assert asked(root, port) == (0, f"127.0.0.1:{port}: /x/health answers 200\n")


@pytest.mark.parametrize(
    ("status", "healthy"),
    [("200", True), ("401", True), ("403", True), ("503", False), ("404", False), ("500", False)],
)
def test_a_server_that_still_loads_is_not_healthy(
    root: Path, start: Start, status: str, *, healthy: bool
) -> None:
    port = start("127.0.0.1", "/health", STATUS=status)
    assert (asked(root, port)[0] == 0) == healthy
    assert (asked(root, NOWHERE)[0] == 0) == healthy


def test_a_server_with_tls_is_not_judged(root: Path, start: Start) -> None:
    port = start("127.0.0.1", "/health", "--ssl-keyfile", "x")
    status, text = asked(root, port)
    assert status == 0
    assert "it speaks TLS: not known whether it works" in text


def test_another_containers_server_is_not_ours(root: Path, start: Start) -> None:
    """They share a network: --network host, or the pod of Kubernetes."""
    other = start("127.0.0.1", "/health", own=False)
    start("127.0.0.1", "/health", STATUS="503")
    assert asked(root, other)[0] == 1
    loading = subprocess.Popen(["sleep", "60"])
    for file in (root / "proc").glob("[0-9]*"):
        file.unlink()
    (root / f"proc/{loading.pid}").symlink_to(f"/proc/{loading.pid}")
    try:
        assert asked(root, other) == (1, "no process of this container listens\n")
    finally:
        loading.kill()
        loading.wait()


def test_a_helper_of_the_engine_is_not_its_server(root: Path, start: Start) -> None:
    """The engine comes first: its workers listen, too."""
    start("127.0.0.1", "/health", STATUS="503")
    worker = start("127.0.0.1", "/health")
    assert asked(root, NOWHERE)[0] == 1
    assert asked(root, worker)[0] == 0  # of an engine whose helper serves on the image's port


def test_without_the_files_of_processes_it_asks_the_images_port(root: Path, start: Start) -> None:
    port = start("127.0.0.1", "/health", own=False)
    assert asked(root, port)[0] == 0
    assert asked(root, NOWHERE)[0] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up a right of root")
def test_a_server_that_another_user_runs_is_asked_on_the_images_port(
    root: Path, start: Start
) -> None:
    """Root of a container without CAP_SYS_PTRACE does not see its files."""
    port = start("127.0.0.1", "/health")
    command = ["setpriv", "--bounding-set=-sys_ptrace", root.parent / "healthcheck", port, "health"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"127.0.0.1:{port}: /health answers 200\n")
