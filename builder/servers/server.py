"""A server of an image: started sealed off, waited for, spoken to through its own loopback."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import UntriedError
from builder.recipes.schema import Serve
from builder.servers.api_flavor import API_FLAVORS, ApiFlavor
from builder.servers.client import Client, UnansweredError
from builder.tools.docker.containers import Container, Start, started
from builder.tools.docker.exec_proxy import exec_proxy

PAUSE = 0.25  # seconds between two looks
LOOK = 10.0  # seconds for one look at the health page
LOG_LINES = 15
LOCK = "--mlock"  # llama.cpp's: the model stays in memory
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # as llama-gguf-split names them


class NotServingError(Exception):
    """A server ended, or was not healthy in time; the text says how, with the end of its log."""


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """What a server is given to serve, and how.

    ``model`` and ``draft`` are files of the host; the server sees their directories read-only.
    """

    model: Path
    context: int
    draft: Path | None = None
    extra: Sequence[str] = ()
    """More arguments, after those of the recipe."""
    gpus: str | None = None
    driver_stub: Path | None = None
    verbose: bool = False
    """Told to log more, as the recipe says."""
    limited: bool = True
    """Held to the recipe's limit of memory, which is meant for the tiny model."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was started."""

    container: Container
    client: Client
    api_flavor: ApiFlavor

    def wait(self, seconds: float) -> float:
        """Wait until its health page answers 200; the seconds that it took.

        Raises ``NotServingError``.
        """
        begun = time.monotonic()
        said = "it does not listen"
        while time.monotonic() - begun < seconds:
            self.must_run()
            try:
                status = self.client.status(self.api_flavor.health, LOOK)
                if status == 200:
                    return time.monotonic() - begun
                said = f"{self.api_flavor.health} answers {status}"
            except UnansweredError as error:
                said = str(error)
            time.sleep(PAUSE)
        raise NotServingError(f"not healthy after {seconds:.0f} s ({said}); {self._log()}")

    def must_run(self) -> None:
        """Raises ``NotServingError`` where it has ended.

        ``UntriedError`` where it is for another platform.
        """
        state = self.container.state()
        if not state.running and "exec format error" in self.container.log():
            raise UntriedError("the engine cannot run programs of the image's platform")
        if state.out_of_memory:
            raise NotServingError(f"killed: it took more memory than it may; {self._log()}")
        if not state.running:
            raise NotServingError(f"ended with exit status {state.status}; {self._log()}")

    def _log(self) -> str:
        lines = [line for line in self.container.log().splitlines() if line.strip()]
        shown = "\n".join(line[:300] for line in lines[-LOG_LINES:])
        return f"its log ends:\n{shown}" if shown else "its log is empty"


@contextmanager
def launched(reference: str, serve: Serve, port: int, load: ServeSpec) -> Iterator[Server]:
    """A server of the image with a model, in a container without network; gone at the end.

    Raises ``UntriedError`` when no container can be started or spoken to.
    """
    told = arguments(serve, load)
    start = Start(
        arguments=told,
        env=serve.env,
        volumes=_volumes(load),
        memory=serve.memory if load.limited else None,
        locks_memory=LOCK in told,
        driver_stub=load.driver_stub,
        gpus=load.gpus,
    )
    with started(reference, start) as container, exec_proxy(container, port) as url:
        yield Server(container, Client(url), API_FLAVORS[serve.api_flavor])


def arguments(serve: Serve, load: ServeSpec) -> list[str]:
    """What the server is told after its entrypoint."""
    places = {
        "{model}": f"/model/{load.model.name}",
        "{draft}": f"/draft/{load.draft.name}" if load.draft else "",
        "{context}": str(load.context),
    }
    return [_filled(argument, places) for argument in given(serve, load)] + list(load.extra)


def given(serve: Serve, load: ServeSpec) -> list[str]:
    """The recipe's arguments for such a load, with the names of what will stand there."""
    words = [*serve.arguments]
    words += serve.gpu if load.gpus is not None else []
    words += serve.verbose if load.verbose else []
    return words + (serve.draft if load.draft is not None else [])


def _filled(argument: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        argument = argument.replace(name, value)
    return argument


def _volumes(load: ServeSpec) -> dict[str, Path]:
    """The files themselves, behind links: a cache of models links into elsewhere."""
    volumes = _parts("/model", load.model)
    return volumes | (_parts("/draft", load.draft) if load.draft else {})


def _parts(folder: str, file: Path) -> dict[str, Path]:
    """A model and, where it is split, its other parts, by their places."""
    split = SPLIT.search(file.name)
    pattern = f"{file.name[: split.start()]}-*-of-{split[2]}.gguf" if split else file.name
    parts = sorted(file.parent.glob(pattern)) if split else [file]
    return {f"{folder}/{part.name}": part.resolve() for part in parts}
