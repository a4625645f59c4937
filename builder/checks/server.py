"""A server of an image: started without network, and asked over the container's loopback."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.checks.answers import Answer, ModelList
from builder.checks.client import ServerClient, UnansweredError
from builder.core.errors import UntriedError
from builder.docker.containers import Container, started
from builder.docker.proxy import proxy
from builder.engines import entrypoint
from builder.engines.api_flavor import API_FLAVORS, ApiFlavor, filled
from builder.recipes.probes import Serve
from simulator.split_models import parts_of

PAUSE = 0.25  # seconds between two health checks
HEALTH_TIMEOUT = 10.0  # seconds for one health check
LOG_LINES = 15
ENDING = 1.0  # seconds from the end of a server's connections to the end of its container
LOCK = "--mlock"  # llama.cpp: keeps the model in memory
DRAFT = "{draft}"  # the file of the drafter
# llama.cpp's log: src/llama-model-loader.cpp names the file, src/llama-model.cpp counts its layers.
LOADED = re.compile(
    r"loaded meta data with \d{1,9} key-value pairs and \d{1,9} tensors "
    r"from (?P<file>[^\n(]{1,300}) \(version"
    r"|offloaded (?P<layers>\d{1,9})/(?P<of>\d{1,9}) layers to GPU"
)


class NotServingError(Exception):
    """A server ended, or was not healthy in time; the text has the end of its log."""


class NotReadyError(NotServingError):
    """A server still runs, and was not healthy in time."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """The mounted paths of the host, by path in the container, and variables that name them."""

    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Read-only; a socket can be written to all the same."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offloaded:
    """How many layers of a model are on the card."""

    model: str
    """The name of its file; empty where the log names none."""
    layers: int
    of: int

    def __str__(self) -> str:
        """As llama.cpp logs it, after the model."""
        name = f"{self.model}: " if self.model else ""
        return f"{name}offloaded {self.layers}/{self.of} layers to GPU"


def offloaded(log: str) -> list[Offloaded]:
    """The models in a log of llama.cpp's, a target before its drafter or behind it.

    A file that is loaded again counts as it was loaded last.
    """
    found: dict[str, Offloaded] = {}
    model = ""
    for match in LOADED.finditer(log):
        if match["file"]:
            model = match["file"].rpartition("/")[2]
        else:
            key = model or str(len(found))
            found[key] = Offloaded(model, int(match["layers"]), int(match["of"]))
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """The model that a server serves, and how it is started.

    ``model``, ``draft`` and ``projector`` are files of the host, mounted read-only; a ``model`` may
    be a folder.
    """

    model: Path
    context: int
    draft: Path | None = None
    extra: Sequence[str] = ()
    """More arguments, after the recipe's; with ``{draft}`` they replace the recipe's own for it."""
    gpus: str | None = None
    driver_stub: Path | None = None
    simulator: Mounts | None = None
    """Simulated cards in the place of GPUs; the recipe's arguments for a GPU are added."""
    verbose: bool = False
    """Add the recipe's arguments for a verbose log."""
    limited: bool = True
    """Apply the recipe's memory limit, which is meant for the test model."""
    projector: Path | None = None
    """The multimodal projector; the API flavor names its option."""
    compiles: bool = False
    """It compiles libraries in /tmp, and loads them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A started server."""

    container: Container
    client: ServerClient
    api_flavor: ApiFlavor

    def wait(self, seconds: float) -> float:
        """Wait until its health page returns 200; the seconds that it took.

        Raises like ``require_running``, and ``NotReadyError`` after ``seconds``.
        """
        last = "it does not listen"
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            self.require_running()
            try:
                status = self.client.status(self.api_flavor.health, HEALTH_TIMEOUT)
                if status == 200:
                    return time.monotonic() - start
                last = f"{self.api_flavor.health} answers {status}"
            except UnansweredError as error:
                last = str(error)
            time.sleep(PAUSE)
        raise NotReadyError(f"not healthy after {seconds:.0f} s ({last}); {self._log()}")

    def models(self, seconds: float) -> list[str]:
        """The names of the models that it lists; raises ``UnansweredError``."""
        listed = self.client.get(self.api_flavor.models, ModelList, seconds)
        return [each.id for each in listed.data]

    def complete(self, body: Mapping[str, Any], seconds: float) -> Answer:
        """The answer to a completion; raises ``UnansweredError``."""
        whole = self.request(body, seconds)
        return self.client.post(self.api_flavor.completions, whole, Answer, seconds)

    def request(self, body: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """A request for text with all that the API flavor wants, such as its first model's name.

        Raises ``UnansweredError``.
        """
        more = self.api_flavor.asks
        if not self.api_flavor.names_model:
            return {**body, **more}
        return {**body, **more, "model": next(iter(self.models(seconds)), "")}

    def require_running(self, within: float = 0.0) -> None:
        """Raise ``NotServingError`` if it ends within so many seconds; ``UntriedError`` on another
        platform."""
        until = time.monotonic() + within
        while (state := self.container.state()).running and time.monotonic() < until:
            time.sleep(PAUSE)
        if not state.running and "exec format error" in self.container.end_of_log():
            raise UntriedError("Docker cannot run programs of the image's platform")
        if state.out_of_memory:
            raise NotServingError(f"killed: it used more memory than its limit; {self._log()}")
        if not state.running:
            raise NotServingError(f"ended with exit status {state.status}; {self._log()}")

    def explained(self, error: Exception) -> str:
        """An error, and how the server ended, where it did."""
        try:
            self.require_running(ENDING)
        except NotServingError as ended:
            return f"{error}; the server {ended}"
        return str(error)

    def _log(self) -> str:
        lines = [line for line in self.container.end_of_log().splitlines() if line.strip()]
        shown = "\n".join(line[:300] for line in lines[-LOG_LINES:])
        return f"its log ends:\n{shown}" if shown else "its log is empty"


@contextmanager
def launched(reference: str, serve: Serve, port: int, spec: ServeSpec) -> Iterator[Server]:
    """Start the image's server in a container without network; it is removed at the end.

    Raises ``UntriedError`` if no container can be started or reached.
    """
    command = arguments(serve, spec)
    mounts = spec.simulator or Mounts()
    volumes = mounts_of("/model", spec.model)
    for folder, file in (("/draft", spec.draft), ("/projector", spec.projector)):
        volumes |= mounts_of(folder, file) if file else {}
    on_cpu = spec.gpus is None and spec.simulator is None
    running = started(
        reference,
        command,
        env={**(entrypoint.CPU if on_cpu else {}), **serve.env, **mounts.env},
        volumes={**volumes, **mounts.volumes},
        memory=serve.memory if spec.limited else None,
        # The simulator's libraries make mlock do nothing.
        locks_memory=LOCK in command and spec.simulator is None,
        compiles=spec.compiles,
        driver_stub=spec.driver_stub,
        gpus=spec.gpus,
    )
    with running as container, proxy(container, port) as url:
        yield Server(container, ServerClient(url), API_FLAVORS[serve.api_flavor])


def arguments(serve: Serve, spec: ServeSpec) -> list[str]:
    """The arguments after the entrypoint."""
    own = {"draft": f"/draft/{spec.draft.name}"} if spec.draft is not None else {}
    values = {"model": f"/model/{spec.model.name}", "context": str(spec.context), **own}
    words = filled(arguments_of(serve, spec), values)
    option = API_FLAVORS[serve.api_flavor].projector
    if spec.projector is not None and option is not None:
        words += [option, f"/projector/{spec.projector.name}"]
    return words + filled(spec.extra, own)


def arguments_of(serve: Serve, spec: ServeSpec) -> list[str]:
    """The recipe's arguments, with their placeholders."""
    words = [*serve.arguments]
    words += serve.gpu if spec.gpus is not None or spec.simulator is not None else []
    words += serve.verbose if spec.verbose else []
    named = any(DRAFT in word for word in spec.extra)
    return words + (serve.draft if spec.draft is not None and not named else [])


def shared_folder(folder: Path) -> Path:
    """Make a directory that the image's own user may enter."""
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def mounts_of(folder: str, file: Path) -> dict[str, Path]:
    """The mounts of a model; of a split model, all its parts.

    Links are followed: model caches link to files elsewhere.
    """
    parts = parts_of(file.name, (each.name for each in file.parent.iterdir()))
    return {f"{folder}/{part}": (file.parent / part).resolve() for part in parts}
