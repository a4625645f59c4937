"""Benchmarks an image of the engine, or a server at a URL; compares two; makes receipts."""

from __future__ import annotations

import getpass
import hashlib
import math
import platform
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from builder import __version__
from builder.checks import server as serving
from builder.checks.speed import RunSettings, measure
from builder.core.errors import ReceiptError, SmokeError, UntriedError, WorldError
from builder.core.json_model import first_error
from builder.core.log import Log
from builder.docker import containers, gpus
from builder.docker import engine as docker
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.engines.servers import API_FLAVORS, flavor_of
from builder.presets import receipts
from builder.presets.schema import Generation
from builder.recipes.fields import Text, Value
from builder.recipes.probes import Serve
from simulator import report


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the engine's log states that it put the models; both are empty where it does not."""

    layers: tuple[tuple[int, int], ...] = ()  # on the GPU and in all, of each model
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes on all GPUs by kind: weights, KV cache, compute."""


@dataclass(frozen=True, slots=True)
class Point:
    """The runs with one context size."""

    context: int | None  # tokens; None if the server was not started by us
    warm_ups: tuple[Generation, ...]
    runs: tuple[Generation, ...]
    loaded: Loaded | None = None  # as the context; None also from an older builder


class Benchmark(BaseModel):
    """All points of one benchmark, with subject, model, machine and settings."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[1] = 1
    subject: Mapping[str, Any]
    """The image (reference, digest, recipe, key) or the URL, and its flags."""
    model: Mapping[str, Any]
    """Files by role: name, size in bytes, sha256; or the name that the server lists."""
    machine: Mapping[str, Any]
    """GPUs (name, compute capability, driver, memory in MiB), CPU, engine, kernel."""
    settings: Mapping[str, Any]  # prompt, tokens, sampling, seeds, warm-ups
    points: tuple[Point, ...]
    created: str  # RFC 3339, UTC
    builder: str


def parse_results(text: str) -> Benchmark:
    """The benchmark in the text of a file; raises ``ValueError`` for any other text."""
    try:
        return Benchmark.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"it is no benchmark of builder: {first_error(error)}") from error


# Compares two benchmarks: is the second one faster, and is that significant?

# Differences in these settings make two benchmarks incomparable.
DECISIVE = frozenset({"gpus", "files", "prompt", "tokens", "temperature", "top_k", "min_p", "fill"})


def compare(first: Benchmark, second: Benchmark) -> dict[str, list[dict[str, Any]]]:
    """Compare the context sizes that both have; raises ``ValueError`` if there is none.

    ``rows`` have a context each: means of tokens per second, their ratio (second / first) with its
    interval by ``ratio_interval``, a verdict, and the mean shares of the drafted tokens that were
    accepted.  ``differences`` are settings and facts; a decisive one makes the two incomparable.
    """
    others = {point.context: point for point in second.points}
    pairs = [(p, others[p.context]) for p in first.points if p.context in others]
    if not pairs:
        raise ValueError("they have no context size in common")
    rows = [_row(one, other) for one, other in pairs]
    return {"rows": rows, "differences": [*_differences(first, second)]}


def _row(first: Point, second: Point) -> dict[str, Any]:
    one, other = ([run.tokens_per_second for run in each.runs] for each in (first, second))
    if not any(one) or not any(other):
        raise ValueError("one of them has no runs, or no speed")
    means = statistics.fmean(one), statistics.fmean(other)
    interval = ratio_interval(one, other)
    shown = interval is not None and not interval[0] <= 1 <= interval[1]
    ratio = means[1] / means[0]
    verdict = "faster" if ratio > 1 else "slower"
    return {
        "context": first.context,
        "first": means[0],
        "second": means[1],
        "ratio": ratio,
        "interval": interval,
        "verdict": verdict if shown else "no difference shown",
        "acceptance": (_acceptance(first), _acceptance(second)),
    }


def _acceptance(point: Point) -> float | None:
    shares = [run.acceptance for run in point.runs if run.acceptance is not None]
    return statistics.fmean(shares) if shares else None


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """The interval of mean(second) / mean(first) with 95 % confidence.

    By the delta method on the logarithm of the ratio (Casella and Berger, Statistical Inference,
    5.5.4), with the degrees of freedom of Welch and Satterthwaite.  None for fewer than two runs.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    # Variances of the means, over their squares.
    parts = [
        statistics.variance(values) / len(values) / statistics.fmean(values) ** 2
        for values in (first, second)
    ]
    ratio = statistics.fmean(second) / statistics.fmean(first)
    total = sum(parts)
    if total == 0:
        return ratio, ratio
    sizes = (len(first), len(second))
    freedom = total**2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
    reach = receipts.quantile(freedom) * math.sqrt(total)
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _differences(first: Benchmark, second: Benchmark) -> Iterator[dict[str, Any]]:
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        (_hardware(first), _hardware(second)),
        (first.machine, second.machine),
        ({"files": _files(first)}, {"files": _files(second)}),
        (first.settings, second.settings),
        ({"flags": first.subject.get("flags")}, {"flags": second.subject.get("flags")}),
    ]
    seen = set()
    for one, other in pairs:
        for name in [*one, *(name for name in other if name not in one)]:
            if name not in seen and one.get(name) != other.get(name):
                values = {"first": _shown(one.get(name)), "second": _shown(other.get(name))}
                yield {"what": name, **values, "decisive": name in DECISIVE}
            seen.add(name)


def _hardware(found: Benchmark) -> dict[str, Any]:
    """GPUs by name and memory; the driver apart, because it may differ."""
    gpus = found.machine.get("gpus") or []
    return {
        "gpus": [f"{gpu['name']}, {gpu['memory']} MiB" for gpu in gpus],
        "driver": sorted({gpu["driver"] for gpu in gpus}),
    }


def _files(found: Benchmark) -> dict[str, Any]:
    return {role: file.get("sha256") or file.get("name") for role, file in found.model.items()}


def _shown(value: Any) -> str:
    return "none" if value in (None, [], {}, "") else str(value)


LOADING = 1800.0  # seconds: a large model from a slow disk
LIST_TIMEOUT = 30.0  # seconds


def of_image(
    image: docker.Image,
    serve: Serve,
    port: int,
    spec: serving.ServeSpec,
    contexts: Sequence[int],
    settings: RunSettings,
    fill: float,
    log: Log,
    *,
    cpu: bool = False,
) -> Benchmark:
    """Start the image's server once for each size of the context, and measure.

    ``spec`` has the model, the draft model, and flags for the server after the recipe's.

    ``fill`` is the share of the context that is filled before the prompt, from 0 to below 1; on the
    ``cpu`` no GPU of Docker's is used.
    """
    if not flavor_of(serve).generates:
        raise UntriedError(f"{image.reference} generates no text whose speed could be measured")
    containers.remove_orphans()
    offered = not cpu and docker.engine().has_nvidia_runtime
    if not offered:
        log("measuring on the CPU" if cpu else "Docker offers no GPU: measuring on the CPU")
    files = {"model": spec.model, "draft": spec.draft}
    model = {role: _described(file, log) for role, file in files.items() if file is not None}
    points: list[Point] = []
    seen: tuple[gpus.Gpu, ...] = ()
    spec = replace(spec, gpus=gpus.ALL if offered else None)
    for context in contexts:
        log(f"context of {context} tokens: starting {image.reference}")
        started = replace(spec, context=context, limited=False)
        with serving.launched(image.reference, serve, port, started) as server:
            try:
                server.wait(LOADING)
            except serving.NotServingError as error:
                what = f"{image.reference} does not serve {model['model']['name']}"
                raise SmokeError(what, str(error)) from error
            seen = gpus.visible_in(server.container) if offered else ()
            filled = replace(settings, fill=int(context * fill))
            point = _point(server.client, serve, filled, "", context, log)
            points.append(replace(point, loaded=loaded(server.container.log())))
    subject = {
        "image": image.reference,
        "digest": image.digest,
        "recipe": image.labels.get(LABEL_RECIPE, ""),
        "key": image.labels.get(LABEL_KEY, ""),
        "flags": [*serving.arguments_of(serve, spec), *spec.extra],
    }
    given = {**asdict(settings), "fill": fill}
    here = {"gpus": [asdict(gpu) for gpu in seen], "cpu": _cpu()}
    here |= {"engine": docker.engine().version, "kernel": platform.release()}
    return _benchmark(points, subject=subject, model=model, machine=here, settings=given)


def of_url(url: str, model: str, key: str, settings: RunSettings, log: Log) -> Benchmark:
    """Measure a running server with OpenAI's API; without ``model`` it must list only one."""
    client = serving.ServerClient(url, key)
    try:
        listed = [
            each.id for each in client.get("/v1/models", serving.ModelList, LIST_TIMEOUT).data
        ]
    except serving.UnansweredError as error:
        hint = "start the server, or give its URL, without /v1: http://localhost:8000"
        raise WorldError(f"{url} does not list its models", str(error), hint) from error
    if not model and len(listed) != 1:
        what = f"{url} lists {len(listed)} models"
        raise WorldError(what, ", ".join(listed), "choose one: --name MODEL")
    name = model or listed[0]
    serve = Serve(api_flavor="openai")
    point = _point(client, serve, settings, name, None, log)
    named, given = {"model": {"name": name}}, asdict(settings)
    return _benchmark([point], subject={"url": url}, model=named, machine={}, settings=given)


def loaded(text: str) -> Loaded:
    """Where a server's log states that it put the models."""
    layers = tuple((found.layers, found.of) for found in serving.offloaded(text))
    return Loaded(layers, {str(kind): size for kind, size in report.logged(text).items()})


def _point(
    client: serving.ServerClient,
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
    except serving.UnansweredError as error:
        raise SmokeError("the server did not complete a run", str(error)) from error


def _benchmark(points: Sequence[Point], **about: Any) -> Benchmark:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Benchmark(**about, points=tuple(points), created=created, builder=__version__)


def _described(file: Path, log: Log) -> dict[str, Any]:
    log(f"hashing {file.name}")
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        size = file.stat().st_size
    except OSError as error:
        raise UntriedError(f"cannot read {file}", str(error)) from error
    return {"name": file.name, "size": size, "sha256": digest.hexdigest()}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    count = len(re.findall(r"^processor\s*:", text, re.M))
    return f"{found[1] if found else platform.machine()} x {count}"


# Makes a receipt of a benchmark, without anything private.

TEXTS = TypeAdapter[dict[str, str]](dict[str, Text])
FLAGS = TypeAdapter[list[str]](list[Value])
SHORTEST = 4  # characters of a name that is looked for
COMMON = frozenset({"root", "user", "localhost"})  # names that identify nobody


def require_receipt(image: docker.Image, spec: serving.ServeSpec, by: str | None) -> None:
    """Raise ``ReceiptError`` where a benchmark of an image could have no receipt.

    The image must have a key, and no name or flag anything private.  The server's flags lose
    directories and secrets before.
    """
    labels, leave_out = image.labels, "leave out --receipt"
    named = {"recipe": labels.get(LABEL_RECIPE, ""), "key": labels.get(LABEL_KEY, "")}
    words = receipts.redacted(spec.extra)
    files = {"--model": spec.model, "--draft": spec.draft}
    names = {option: file.name for option, file in files.items() if file is not None}
    texts = names | ({"--by": by} if by else {})
    try:
        receipts.MeasuredImage(**named, digest=image.digest)
        FLAGS.validate_python(words)
        TEXTS.validate_python(texts)
    except ValidationError as error:
        raise ReceiptError("this run can have no receipt", first_error(error), leave_out) from error
    found = [receipts.private_argument(words)]
    for own in sorted(_own_names()):
        pattern = re.compile(rf"(?<!\w){re.escape(own)}(?!\w)", re.IGNORECASE)
        having = [*filter(pattern.search, words)]
        having += [option for option, text in names.items() if pattern.search(text)]
        if having:
            found.append(f"{having[0]!r} has the name of this machine or of its user: {own}")
    for name, text in texts.items():
        what = receipts.private(text)
        found += [f"{name} has {what}"] if what else []
    if any(found):
        why = "\n".join(filter(None, found))
        raise ReceiptError("the receipt would not be accepted", why, f"change that, or {leave_out}")


def _own_names() -> set[str]:
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    return {name for name in names if len(name) >= SHORTEST} - COMMON


def of_benchmark(found: Benchmark, by: str | None = None) -> receipts.Receipt:
    """The receipt of a benchmark of an image; ``by`` is who measured."""
    gpus, settings = found.machine["gpus"], found.settings
    shared = {name: settings[name] for name in ("temperature", "tokens", "top_k", "min_p", "fill")}
    shared["prompt"] = hashlib.sha256(settings["prompt"].encode()).hexdigest()
    fields = receipts.MeasuredCard.model_fields
    image = {name: found.subject[name] for name in receipts.MeasuredImage.model_fields}
    try:
        measured = [
            receipts.ReceiptFigures(
                context=point.context or 0,
                layers=list((point.loaded or Loaded()).layers),
                memory=dict((point.loaded or Loaded()).memory),
                warm_ups=list(point.warm_ups),
                runs=list(point.runs),
            )
            for point in found.points
        ]
        return receipts.Receipt(
            image=receipts.MeasuredImage(**image),
            device="GPU" if gpus else "CPU",
            cards=[receipts.MeasuredCard(**{key: gpu[key] for key in fields}) for gpu in gpus],
            driver=gpus[0]["driver"] if gpus else "",
            cpu=found.machine["cpu"],
            model=receipts.ReceiptModel(**found.model["model"]),
            draft=receipts.ReceiptModel(**found.model["draft"]) if "draft" in found.model else None,
            arguments=receipts.redacted(found.subject["flags"]),
            request=receipts.Request(**shared),
            measured=measured,
            by=by or None,
            created=datetime.fromisoformat(found.created),
            builder=found.builder,
        )
    except ValidationError as error:
        raise ReceiptError("this run can have no receipt", first_error(error)) from error
