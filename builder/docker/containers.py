"""Sandboxed containers, always removed afterwards, and the files of images.

Programs and servers of an image run in them; its files and its blobs are copied to this machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

from builder.core import archives
from builder.core.errors import FetchError, UntriedError, WorldError
from builder.core.parallel import input_of, output_of
from builder.core.platforms import PLATFORMS, architecture
from builder.docker import engine as docker
from builder.docker.engine import MOST_OUTPUT, Finished, LateError, call, engine, output, stream

OWNER = "builder.owner"
SANDBOX = (
    *("--network=none", "--read-only", "--pids-limit=4096"),
    *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
)
TMP = "--tmpfs=/tmp"  # mounted noexec without more options (docker run(1))
LOGS = ("--log-driver=json-file", "--log-opt=max-size=4m", "--log-opt=max-file=2")
LONGEST_LOG = 8 << 20  # bytes: what LOGS keeps
LOG_TAIL = 64 << 10  # letters of a log's end
ENGINE_FAILED = 125  # docker run(1), "Exit status": the engine's own error
ENGINE_TIMEOUT = 60.0  # seconds for the engine to answer
NUMBER = re.compile(r"[0-9a-f]{64}")  # of a container: what `docker run --detach` prints
ADVICE = re.compile("(Run|See) 'docker run --help'")  # clients since 28, and before
NO_GPU_DRIVER = "could not select device driver"  # moby, daemon/devices.go
TOOLKIT = (
    "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker` and "
    "restart Docker"
)
"""How an engine gets NVIDIA's runtime (the toolkit's installation guide)."""


class TimedOutError(UntriedError):
    """A container was stopped because it did not end in time."""


class NotRunnableError(UntriedError):
    """The image does not have the program, or it cannot be run."""


class ContainerState(NamedTuple):
    """Whether a container runs; if not, its exit status."""

    running: bool
    status: int
    out_of_memory: bool


# Whose containers they are, and how they are removed.


def owner() -> str:
    """This process, by host, id and start time: the label of its containers, for example."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}"


def _start_of(process: int) -> str:
    """When a process began, in ticks of the kernel (proc(5), stat, field 22); empty if gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def has_ended(owner: str) -> bool:
    """Whether a process of this host, as ``owner`` names it, has ended; not of another host."""
    host, _, rest = owner.partition(":")
    process, _, start = rest.partition(":")
    return host == socket.gethostname() and process.isdigit() and _start_of(int(process)) != start


def remove_orphans() -> None:
    """Remove the containers of runs on this host that were killed before they could do so."""
    template = '--format={{.ID}} {{.Label "' + OWNER + '"}}'
    listed = call("ps", "--all", f"--filter=label={OWNER}", template).stdout.splitlines()
    found = (line.partition(" ") for line in listed)
    remove(*(container for container, _, process in found if has_ended(process)))


def remove(*names: str) -> None:
    """Remove containers, also running ones; absence is no error."""
    if names:
        docker.refused(docker.whales().container.remove, [*names], force=True, volumes=True)


_ended: ContextVar[list[str] | None] = ContextVar("_ended", default=None)
"""Containers that have ended, or never ran, and are removed later; None: each at once."""


@contextmanager
def removed_together() -> Iterator[None]:
    """Remove the containers that end in the body together, at its end.

    With each removal Docker waits for a garbage collection of containerd, a second where an engine
    has many images and a large build cache; removals at the same time wait for the same collection.
    """
    ended: list[str] = []
    token = _ended.set(ended)
    try:
        yield
    finally:
        _ended.reset(token)
        remove(*ended)


def _remove_later(name: str) -> None:
    together = _ended.get()
    if together is None:
        remove(name)
    else:
        together.append(name)


# Programs of an image.

_platform: ContextVar[tuple[str, ...]] = ContextVar("_platform", default=())
"""Options of ``docker run``."""


@contextmanager
def of_platform(platform: str) -> Iterator[None]:
    """The body runs programs of an image for this platform: "linux/arm64".

    Where that is not the engine's own platform and ``docker run`` does not name it, Docker prints a
    warning into the program's output.
    """
    own = f"linux/{architecture(engine().architecture) or ''}"
    foreign = platform in PLATFORMS and platform != own
    token = _platform.set((f"--platform={platform}",) if foreign else ())
    try:
        yield
    finally:
        _platform.reset(token)


def mount_options(volumes: Mapping[str, Path], env: Mapping[str, str]) -> list[str]:
    """The options of ``docker run`` for files by their paths in the container, and variables."""
    mounted = [f"--volume={file}:{place}:ro" for place, file in volumes.items()]
    return [*mounted, *(f"--env={variable}={value}" for variable, value in env.items())]


def _options(name: str, driver_stub: Path | None) -> list[str]:
    """The options of every container that runs; ``driver_stub`` stands in for libcuda.so.1."""
    options = [f"--name={name}", f"--label={OWNER}={owner()}", *SANDBOX, *LOGS, *_platform.get()]
    if driver_stub is not None:
        place = "/run/driver"
        volumes = {f"{place}/libcuda.so.1": driver_stub}
        options += mount_options(volumes, {"LD_LIBRARY_PATH": place})
    return options


def run(
    reference: str,
    command: Sequence[str],
    *,
    entrypoint: str,
    timeout: float,
    driver_stub: Path | None = None,
    extra: Sequence[str] = (),
    once: bool = False,
    most: int = MOST_OUTPUT,
) -> Finished:
    """Run a program of an image in a sandbox: no network, read-only root, no privileges.

    ``driver_stub`` stands in for the driver's libcuda.so.1; ``extra`` are more options of
    ``docker run``; ``most``: bytes that are kept of the beginning of the output, and of its end.  A
    program that prints nothing runs a second time, in a new container, unless
    ``once``: on a busy machine, Docker sometimes loses all output of a program that ends at once,
    and its log has none either (the daemon says "stream copy error: reading from a closed fifo").
    Raises ``UntriedError`` when the container cannot be started, ``TimedOutError`` when it does
    not end within ``timeout`` seconds.
    """
    arguments = [TMP, f"--entrypoint={entrypoint}", *extra, "--", reference, *command]

    def in_sandbox() -> Finished:
        name, ended = f"builder-{uuid4().hex[:12]}", False
        options = [*_options(name, driver_stub), *([] if _ended.get() is not None else ["--rm"])]
        try:
            done = output("run", *options, *arguments, timeout=timeout, most=most)
            ended = 0 <= done.status < ENGINE_FAILED
            return done
        finally:
            if not ended:
                remove(name)
            elif _ended.get() is not None:
                _remove_later(name)

    try:
        done = in_sandbox()
        if not done.output and not once:
            done = in_sandbox()
    except LateError as error:
        what = f"{' '.join([entrypoint, *command])} did not end"
        raise TimedOutError(what, f"stopped after {timeout:.0f} s") from error
    if done.status == ENGINE_FAILED:
        raise UntriedError("Docker cannot start a container", reason_of(done.output))
    if done.status != 0 and "exec format error" in done.output:
        raise UntriedError("Docker cannot run programs of the image's platform", done.output)
    return done


def reason_of(printed: str) -> str:
    """The client's reason why a container did not start, without its number and its advice."""
    lines = [line.strip() for line in printed.splitlines()]
    return "\n".join(
        line for line in lines if line and not NUMBER.fullmatch(line) and not ADVICE.match(line)
    )


class Container:
    """A container that runs in the background; ``UntriedError`` says that it is gone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _inspected(self, template: str) -> str:
        done = call("inspect", f"--format={template}", self.name, timeout=ENGINE_TIMEOUT)
        if done.returncode != 0:
            raise UntriedError("a container is gone", done.stderr.strip())
        return done.stdout

    def state(self) -> ContainerState:
        """Its state."""
        state = json.loads(self._inspected("{{json .State}}"))
        return ContainerState(state["Running"], state["ExitCode"], state["OOMKilled"])

    def identity(self) -> tuple[str, int]:
        """Its id, and the id that its process has where the engine runs; 0: it does not run."""
        identity, process = self._inspected("{{.Id}} {{.State.Pid}}").split()
        return identity, int(process)

    def health_test(self) -> list[str]:
        """The command of the image's HEALTHCHECK; empty where it has none."""
        found = json.loads(self._inspected("{{json .Config.Healthcheck}}")) or {}
        kind, *command = found.get("Test") or ["NONE"]
        return {"CMD": command, "CMD-SHELL": ["/bin/sh", "-c", *command]}.get(kind, [])

    def log(self) -> str:
        """Its output, as far as Docker keeps it."""
        return output("logs", self.name, timeout=ENGINE_TIMEOUT, most=LONGEST_LOG).output

    def end_of_log(self) -> str:
        """The end of its output, for a message."""
        printed = output("logs", "--tail=400", self.name, timeout=ENGINE_TIMEOUT).output
        return printed[-LOG_TAIL:]

    def execute(self, command: Sequence[str], timeout: float) -> Finished:
        """Run another program in it.  Raises ``TimedOutError``."""
        try:
            return output("exec", self.name, *command, timeout=timeout)
        except LateError as error:
            what = f"{' '.join(command)} did not end"
            raise TimedOutError(what, f"waited {timeout:.0f} s") from error

    def stop(self, seconds: int) -> tuple[ContainerState, float]:
        """Send SIGTERM, and SIGKILL after ``seconds``; its state, and the seconds that it took."""
        started = time.monotonic()
        output("stop", f"--time={seconds}", self.name, timeout=ENGINE_TIMEOUT + seconds)
        return self.state(), time.monotonic() - started


@contextmanager
def started(
    reference: str,
    arguments: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    volumes: Mapping[str, Path] | None = None,
    memory: float | None = None,
    locks_memory: bool = False,
    compiles: bool = False,
    driver_stub: Path | None = None,
    gpus: str | None = None,
) -> Iterator[Container]:
    """A sandboxed container that runs the image's entrypoint; only ``proxy`` reaches it.

    ``volumes`` are files of the host by their path in the container, read-only; ``memory`` is in
    GiB; ``locks_memory``: without a limit of locked memory (memlock), which not every engine
    allows; ``compiles``: libraries in /tmp may be loaded; ``gpus`` is as for ``docker run``.

    Raises ``UntriedError`` when the engine cannot start it, ``NotRunnableError`` when that is the
    image's fault.
    """
    name = f"builder-{uuid4().hex[:12]}"
    options = ["--detach", *_options(name, driver_stub), f"{TMP}:exec" if compiles else TMP]
    options += mount_options(volumes or {}, env or {})
    options += [f"--memory={int(memory * 1024)}m"] if memory is not None else []
    options += ["--ulimit=memlock=-1"] if locks_memory else []
    options += [f"--gpus={gpus}"] if gpus is not None else []
    try:
        done = output("run", *options, "--", reference, *arguments, timeout=ENGINE_TIMEOUT)
        if done.status in {126, 127}:  # docker run(1), "Exit status": the program's fault
            raise NotRunnableError("its program cannot be run", reason_of(done.output))
        if done.status != 0:
            hint = TOOLKIT if gpus is not None and NO_GPU_DRIVER in done.output else ""
            raise UntriedError("Docker cannot start a container", reason_of(done.output), hint)
        yield Container(name)
    finally:
        remove(name)


# A proxy to a server in a container without a network, which itself reaches nothing.
#
# Root connects from inside the container's network where the engine is on this machine (setns(2),
# network_namespaces(7)).  Elsewhere each connection goes through ``docker exec``: bash in the
# container connects to the container's loopback (/dev/tcp).

LOOPBACK = "127.0.0.1"
CLONE_NEWNET = 0x40000000  # linux/sched.h
# The end of the server's connection ends the program, even where standard input stays open.
BRIDGE = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&0 >&3 & cat <&3; kill $!"
BLOCK = 1 << 16
ENDING = 3.0  # seconds from the end of a program to the end of its container, under load


@contextmanager
def proxy(container: Container, port: int) -> Iterator[str]:
    """The URL of a server that listens on ``port`` in the container, within this context.

    Raises ``UntriedError`` where the container can only be reached through bash, and has none.
    """
    with (
        network_of(container) as network,
        socket.create_server((LOOPBACK, 0), backlog=64) as listener,
    ):
        if network is not None:
            bridge = partial(_bridge_network, network, port)
        else:
            _require_bash(container)
            bridge = partial(_bridge_exec, container.name, port)
        _beside(_accept, listener, bridge)
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            with suppress(OSError):  # some systems do not shut down what only listens
                listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def network_of(container: Container) -> Iterator[int | None]:
    """A descriptor of the network of a container; None where this process cannot enter it."""
    identity, process = container.identity()
    try:
        descriptor = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        # The process may belong to another machine's engine: its id says nothing here.
        own = identity in Path(f"/proc/{process}/cgroup").read_text("utf-8")
        if own:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(_enter, descriptor).result()
    except OSError:
        own = False
    try:
        yield descriptor if own else None
    finally:
        os.close(descriptor)


def _enter(network: int) -> None:
    """Move the calling thread into a network: a socket stays in the one that it was made in."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is new in Python 3.12
    if libc.setns(network, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _require_bash(container: Container) -> None:
    tried = container.execute(["bash", "-c", "type cat"], 30)
    until = time.monotonic() + ENDING  # a container that is ending runs nothing
    while tried.status != 0 and container.state().running:
        if time.monotonic() >= until:
            raise UntriedError(
                "the image has no bash, which is needed to reach its server", tried.output
            )
        time.sleep(0.1)


def _beside(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _accept(listener: socket.socket, bridge: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            _beside(bridge, listener.accept()[0])


def _forward(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    with suppress(OSError):
        while block := read(BLOCK):
            write(block)


def _shut_down(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _bridge_network(network: int, port: int, connection: socket.socket) -> None:
    def send(server: socket.socket) -> None:
        _forward(connection.recv, server.sendall)
        _shut_down(connection, server)

    with connection, suppress(OSError):
        _enter(network)
        with socket.create_connection((LOOPBACK, port)) as server:
            _beside(send, server)
            _forward(server.recv, connection.sendall)
            _shut_down(server, connection)


def _bridge_exec(name: str, port: int, connection: socket.socket) -> None:
    def send(server: IO[bytes]) -> None:
        _forward(connection.recv, server.write)
        with suppress(OSError):
            server.close()

    execute = ("exec", "--interactive", name, "bash", "-c", BRIDGE, str(port))
    with connection, stream(*execute, stdin=subprocess.PIPE, bufsize=0) as process:
        _beside(send, input_of(process))
        _forward(output_of(process).read, connection.sendall)
        _shut_down(connection)


# Copies of an image's files on this machine.
#
# The image may be hostile: `docker cp` to a directory would make its devices, pipes and set-uid
# files here.  Its files come through a pipe, and nothing but their bytes is taken.

LARGEST = 4 << 30  # bytes of a file; libcublasLt.so.13 has 0.6 GB


@contextmanager
def created(reference: str) -> Iterator[str]:
    """The name of a container of an image that never runs.  Raises ``UntriedError``."""
    name = f"builder-{uuid4().hex[:12]}"
    create = ["create", f"--name={name}", f"--label={OWNER}={owner()}", reference, "true"]
    try:
        done = output(*create, timeout=ENGINE_TIMEOUT)
        if done.status != 0:
            raise UntriedError(f"cannot read the files of {reference}", done.output.strip())
        yield name
    finally:
        _remove_later(name)


def copy_out(reference: str, path: str, target: Path) -> None:
    """Copy a file of an image to ``target``; raises like ``copy_all_out``."""
    copy_all_out(reference, {path: target})


def copy_all_out(reference: str, targets: Mapping[str, Path]) -> None:
    """Copy files of an image, each to its target, following links within the image.

    Raises ``UntriedError`` where one is missing, is no file, or has more than 4 GiB.
    """
    with created(reference) as container:
        for path, target in targets.items():
            fault = _copy(container, path, target)
            if fault:
                raise UntriedError(f"cannot read {path} of {reference}", fault)


def _copy(container: str, path: str, target: Path) -> str:
    """Copy a file out of a container; empty, or why not."""
    copy = ("cp", "--follow-link", f"{container}:{path}", "-")
    with (
        tempfile.TemporaryFile() as errors,
        stream(*copy, stderr=errors, timeout=ENGINE_TIMEOUT) as process,
    ):
        try:
            with tarfile.open(fileobj=output_of(process), mode="r|") as tar:
                member = tar.next()
                content = tar.extractfile(member) if member and member.isreg() else None
                if member is None or content is None:
                    return "it is not a file"
                if member.size > LARGEST:
                    return f"it has {member.size >> 20} MiB, more than {LARGEST >> 20} MiB"
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                target.chmod(member.mode & 0o777)
        except tarfile.TarError:
            process.wait()
            errors.seek(0)
            return errors.read().decode(errors="replace").strip() or "Docker did not give it"
    return ""


# The blobs of the engine's images: in containerd's store, or in a saved OCI image layout.

CONTENT = "io.containerd.content.v1.content/blobs/sha256"
CONTAINERD = Path("/var/lib/containerd")


@dataclass(frozen=True, slots=True)
class Blobs:
    """A directory of blobs, named by the 64 hex digits of their sha256, and an image in it.

    Of an ``index`` (OCI image-spec, image-index.md) for several platforms, the image for
    ``platform`` is read.
    """

    folder: Path
    index: Mapping[str, Any]
    platform: str = "linux/amd64"

    def file(self, digest: str) -> Path:
        """The file of a blob, whether it exists or not."""
        return self.folder / digest.removeprefix("sha256:")


def blobs_of(reference: str, work: Path, digest: str = "") -> Blobs:
    """The blobs of an image of the engine; ``work`` takes a copy where containerd's is unreadable.

    ``digest`` is the image's, where it is known.

    Root reads them in containerd's store (containerd, docs/content-flow.md): ``docker image save``
    manages about 50 MB/s.  Raises ``UntriedError`` where the engine does not give them.
    """
    if not digest:
        found = docker.image(reference)
        if found is None:
            raise UntriedError(f"Docker has no image {reference}")
        digest = found.digest
    for store in (engine().root / "containerd" / "daemon", CONTAINERD):
        blobs = Blobs(store / CONTENT, {"manifests": [{"digest": digest}]})
        if os.access(blobs.file(digest), os.R_OK):
            return blobs
    folder = work / f"image-{digest[-12:]}"
    if not (folder / "index.json").exists():
        try:
            save_layout(reference, folder)
        except WorldError as error:
            raise UntriedError(error.what, error.why, error.hint) from error
    index = json.loads((folder / "index.json").read_bytes())
    return Blobs(folder / "blobs" / "sha256", index)


def build_contexts(images: Mapping[str, str], folder: Path, *, seen: bool) -> dict[str, str]:
    """Images of the engine by any name, as ``--build-context`` takes them.

    A builder that has ``seen`` the images of the engine takes them by name.  For any other they
    are written below ``folder``, and only the layers that it lacks are sent
    (https://docs.docker.com/reference/cli/docker/buildx/build/#source-oci-layout).  Raises
    ``WorldError`` where the engine does not give one.
    """
    if seen:
        return {name: f"docker-image://{image}" for name, image in images.items()}
    found = {}
    for name, image in images.items():
        saved = docker.image(image)
        if saved is None:
            raise WorldError(f"Docker lost the image {image}", hint="build again")
        save_layout(image, folder / name)
        found[name] = f"oci-layout://{folder / name}@{saved.digest}"
    return found


def save_layout(reference: str, folder: Path) -> None:
    """Unpack an image of the engine into the new ``folder``, as an OCI image layout."""
    what = f"Docker does not give the image {reference}"
    with tempfile.TemporaryFile() as errors:
        cause: FetchError | None = None
        with docker.stream("image", "save", reference, stderr=errors) as process:
            saved = output_of(process)
            try:
                archives.unpack_stream(saved, folder)
                while saved.read(1 << 20):
                    pass  # the end of a tar is not the end of the stream
            except FetchError as error:
                cause = error
            # A truncated stream is no tar; the engine's own message explains more.
            status = 0
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(5)
        errors.seek(0)
        if status > 0:
            raise WorldError(what, errors.read().decode(errors="replace").strip()) from cause
    if cause is not None:
        raise WorldError(what, cause.why) from cause
    if not (folder / "index.json").is_file():
        raise WorldError(
            f"`docker image save` gives no OCI layout of {reference}",
            hint="use Docker 25 or newer with the containerd image store",
        )
