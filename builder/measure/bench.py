"""Benchmarks an image of the engine, or a server at a URL."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder import __version__
from builder.checks.server import (
    ModelList,
    NotServingError,
    Server,
    ServerClient,
    ServeSpec,
    UnansweredError,
    arguments_of,
    launched,
    offloaded,
)
from builder.checks.speed import RunSettings, measure
from builder.core.errors import SmokeError, UntriedError, WorldError
from builder.core.log import Log
from builder.docker import containers, gpus
from builder.docker import engine as docker
from builder.engines.api_flavor import API_FLAVORS
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.measure.results import Benchmark, Loaded, Point
from builder.recipes.probes import Serve
from simulator import report

LOADING = 1800.0  # seconds: a large model from a slow disk
BLOCK = 8 << 20
LIST_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class ServedImage:
    """An image of the engine, the model that it serves, and how it is started."""

    reference: str
    image: docker.Image
    serve: Serve
    port: int
    model: Path
    draft: Path | None = None
    extra: Sequence[str] = ()
    """More flags for the server, after the recipe's."""
    verbose: bool = False
    """Add the recipe's flags for a log that states where the model was loaded."""


def of_image(
    target: ServedImage, contexts: Sequence[int], settings: RunSettings, fill: float, log: Log
) -> Benchmark:
    """Start the image's server once for each size of the context, and measure.

    ``fill`` is the share of the context that is filled before the prompt, from 0 to below 1.
    Raises ``SmokeError`` if the server does not serve, ``UntriedError`` if it cannot be started.
    """
    containers.remove_orphans()
    offered = docker.engine().has_nvidia_runtime
    if not offered:
        log("Docker offers no GPU: measuring the CPU")
    model = {"model": _described(target.model, log)}
    if target.draft is not None:
        model["draft"] = _described(target.draft, log)
    points: list[Point] = []
    seen: tuple[gpus.Gpu, ...] = ()
    for context in contexts:
        spec = ServeSpec(
            target.model,
            context,
            target.draft,
            target.extra,
            gpus.ALL if offered else None,
            verbose=target.verbose,
            limited=False,
        )
        log(f"context of {context} tokens: starting {target.reference}")
        with launched(target.reference, target.serve, target.port, spec) as server:
            _ready(server, target)
            seen = gpus.visible_in(server.container) if offered else ()
            filled = replace(settings, fill=int(context * fill))
            point = _point(server.client, target.serve, filled, "", context, log)
            points.append(replace(point, loaded=loaded(server.container.log())))
    spec = ServeSpec(
        target.model,
        0,
        target.draft,
        extra=target.extra,
        gpus=gpus.ALL if offered else None,
        verbose=target.verbose,
    )
    subject = {
        "image": target.reference,
        "digest": target.image.digest,
        "recipe": target.image.labels.get(LABEL_RECIPE, ""),
        "key": target.image.labels.get(LABEL_KEY, ""),
        "flags": [*arguments_of(target.serve, spec), *target.extra],
    }
    return _benchmark(subject, model, machine(seen), {**asdict(settings), "fill": fill}, points)


def of_url(url: str, model: str, key: str, settings: RunSettings, log: Log) -> Benchmark:
    """Measure a running server with OpenAI's API.

    ``model`` is the name to request; empty: the server lists only one.  Raises
    ``WorldError`` if it does not answer, ``SmokeError`` if a run fails.
    """
    client = ServerClient(url, key)
    try:
        listed = [each.id for each in client.get("/v1/models", ModelList, LIST_TIMEOUT).data]
    except UnansweredError as error:
        hint = "start the server, or give its URL, without /v1: http://localhost:8000"
        raise WorldError(f"{url} does not list its models", str(error), hint) from error
    if not model and len(listed) != 1:
        raise WorldError(
            f"{url} lists {len(listed)} models",
            ", ".join(listed),
            "choose one: --name MODEL",
        )
    name = model or listed[0]
    serve = Serve(api_flavor="openai")
    point = _point(client, serve, settings, name, None, log)
    return _benchmark({"url": url}, {"model": {"name": name}}, {}, asdict(settings), [point])


def _ready(server: Server, target: ServedImage) -> None:
    try:
        server.wait(LOADING)
    except NotServingError as error:
        raise SmokeError(
            f"{target.reference} does not serve {target.model.name}", str(error)
        ) from error


def loaded(text: str) -> Loaded:
    """Where a server's log states that it put the models."""
    layers = tuple((found.layers, found.of) for found in offloaded(text))
    return Loaded(layers, {str(kind): size for kind, size in report.logged(text).items()})


def _point(
    client: ServerClient,
    serve: Serve,
    settings: RunSettings,
    model: str,
    context: int | None,
    log: Log,
) -> Point:
    try:
        api_flavor = API_FLAVORS[serve.api_flavor]
        warm_ups, runs = measure(client, api_flavor, settings, model=model, log=log)
        return Point(context, tuple(warm_ups), tuple(runs))
    except UnansweredError as error:
        raise SmokeError("the server did not complete a run", str(error)) from error


def _benchmark(
    subject: dict[str, Any],
    model: dict[str, Any],
    where: dict[str, Any],
    settings: dict[str, Any],
    points: Sequence[Point],
) -> Benchmark:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Benchmark(
        subject=subject,
        model=model,
        machine=where,
        settings=settings,
        points=tuple(points),
        created=created,
        builder=__version__,
    )


def _described(file: Path, log: Log) -> dict[str, Any]:
    log(f"hashing {file.name}")
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        size = file.stat().st_size
    except OSError as error:
        raise UntriedError(f"cannot read {file}", str(error)) from error
    return {"name": file.name, "size": size, "sha256": digest.hexdigest()}


def machine(seen: Sequence[gpus.Gpu]) -> dict[str, Any]:
    """The machine: GPUs, CPU, engine and kernel."""
    return {
        "gpus": [asdict(gpu) for gpu in seen],
        "cpu": _cpu(),
        "engine": docker.engine().version,
        "kernel": platform.release(),
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    count = len(re.findall(r"^processor\s*:", text, re.M))
    return f"{found[1] if found else platform.machine()} x {count}"
