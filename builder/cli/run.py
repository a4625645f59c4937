"""``builder run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    catalog_at,
    known_cards,
    one_context,
    output_option,
    presets_and_recipes,
)
from builder.cli.terminal import err, line, log
from builder.core import sizes

if TYPE_CHECKING:
    from builder.presets.images import LaunchRequest
    from builder.presets.models import Progress
    from builder.presets.run import Running


# The shared options of ``builder run`` and ``builder export``: a preset or recipe, its models.

Target = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|RECIPE",
        help="A preset (see `builder list --presets`), its short name, or a recipe.",
        autocompletion=presets_and_recipes,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPTION",
        help="More options for the engine, after --. They win over the preset's own.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE",
        help="The model: a GGUF, or the directory of a model. Default: the preset's, from the "
        "models directory (BUILDER_MODELS_DIR, else ./models).",
    ),
]
DraftOption = Annotated[
    Path | None,
    typer.Option("--draft", metavar="FILE", help="The draft model, instead of the preset's."),
]
ProjectorOption = Annotated[
    Path | None,
    typer.Option("--mmproj", metavar="FILE", help="The multimodal projector."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="TOKENS", help="Size of the context: 65536 or 64K; K is 1024."
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="N", min=1, max=65535, help="Port on 127.0.0.1. Default: the image's."
    ),
]


def wanted(
    target: str,
    model: Path | None,
    draft: Path | None,
    mmproj: Path | None,
    context: str | None,
    port: int | None,
    options: list[str] | None,
) -> LaunchRequest:
    """The request of these options."""
    from builder.presets.images import LaunchRequest

    given = {"model": model, "draft": draft, "mmproj": mmproj}
    size = one_context(context) if context is not None else None
    named = {place: file for place, file in given.items() if file is not None}
    return LaunchRequest(target, named, size, port, tuple(options or ()))


# ``builder run``.


def run(
    target: Target,
    options: Options = None,
    *,
    model: ModelOption = None,
    draft: DraftOption = None,
    mmproj: ProjectorOption = None,
    context: ContextOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=known_cards,
            help="Card of this machine: 5090-laptop, ... Default: the first that suffices. "
            "With --print, any card of cards/.",
        ),
    ] = "auto",
    port: PortOption = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Build or pull a missing image and download missing models to the models "
            "directory, without asking; an interrupted download continues.",
        ),
    ] = False,
    old: Annotated[
        bool,
        typer.Option(
            "--old",
            help="Start the image that Docker or the registry has, although it is of another state "
            "of the recipe.",
        ),
    ] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Run on the CPU: slow, and needs no GPU.")
    ] = False,
    printed: Annotated[
        bool,
        typer.Option(
            "--print",
            "--dry-run",
            help="Print the `docker run` command; build, download and start nothing.",
        ),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="SECONDS", min=1, help="Time limit until it is healthy."),
    ] = 900,
    catalog: CatalogOption = None,
) -> None:
    """Run a preset on this machine: a server with its model, options and GPU.

    The short name of a model, qwen3.6-27b, means the preset that `builder choose` recommends for
    this machine; qwen3.6-27b:dflash means the best preset of that kind.

    First the GPU, its driver and memory, the engine, the image, the models, the port, a container
    of that name and the disk space are checked. The image has to be of the recipe as it is now, by
    its build key. If only the image or models are missing, one question lists the builds and
    downloads.
    Then the container starts; its log is shown until the server is healthy. It keeps running in the
    background, published on 127.0.0.1.

    The exit code is 4 if the machine lacks something, and 8 if the server does not start.
    """
    from builder.core import settings
    from builder.presets import exports
    from builder.presets import run as server
    from builder.presets.choose import resolved
    from builder.presets.images import described, prepared
    from builder.presets.run import refusal

    recipes, loaded = catalog_at(catalog), settings.load()
    asked = replace(wanted(target, model, draft, mmproj, context, port, options), cpu=cpu, old=old)
    found, size = resolved(
        recipes, target, loaded.state_dir, log, card=card, context=asked.context, cpu=cpu
    )
    job = prepared(recipes, replace(asked, target=found, context=size), loaded, log)
    unfit = refusal(job, card)
    if unfit is not None and not printed:
        raise unfit
    if printed:
        service = described(job)
        for each in (*service.incomplete, *service.missing, *service.caveats):
            log(each)
        if unfit is not None:
            log(f"warning: {unfit.what}: {unfit.why}")
        typer.echo(exports.line(replace(service, restart=None)))
        return
    with _progress() as progress:
        build, agrees = partial(_build, catalog), partial(_agrees, yes=yes)
        started = server.launch(job, card, seconds, build=build, progress=progress, agrees=agrees)
    _print(started)


def _build(catalog: Path | None, recipe: str) -> None:
    """Build and check the image of a recipe for the engine's platform, else its only image."""
    from builder.build import build
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.core.platforms import platform_of
    from builder.docker import engine as docker

    with reporter() as progress:
        session = build_session(catalog, progress, gpu_test=GpuTest())
        plans = session.plans(recipe)
        here = platform_of(docker.engine().architecture)
        plans = tuple(plan for plan in plans if plan.platform == here) or plans
        build.require_all(plans, build.build_all(plans, session))


def _agrees(lines: Sequence[str], *, yes: bool) -> bool:
    """Show the steps, and ask a person at a terminal; elsewhere nobody agrees."""
    if not (yes or (sys.stdin.isatty() and err().is_terminal)):
        return False
    log("This machine has to")
    for each in lines:
        log(f"  {each}")
    return yes or typer.confirm("Go on?", default=True, err=True)


def _print(started: Running) -> None:
    service, flavor = started.service, started.flavor
    if started.seconds is None:
        log(f"{service.name} runs already")
    else:
        log(f"healthy after {started.seconds:.1f} s")
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    line(f"{service.url}{flavor.chat.removesuffix('/chat/completions')}")
    line(
        f"  ask    curl {service.url}{flavor.chat} -H 'Content-Type: application/json' -d '{body}'"
    )
    line(f"  log    docker logs --follow {service.name}")
    line(f"  stop   docker rm --force {service.name}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line for each file."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    tasks: dict[tuple[str, int], TaskID] = {}  # two repositories may have a file of one name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bars = Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=err(), transient=True
    )
    live = err().is_terminal

    def show(name: str, done: int, size: int) -> None:
        if live and (name, size) not in tasks:
            bars.start()  # not before: a question and a build write to the terminal, too
            tasks[name, size] = bars.add_task(name, total=size)
        if live:
            bars.update(tasks[name, size], completed=done)
        elif done == size:
            log(f"  {name}: {sizes.shown(size)}")

    try:
        yield show
    finally:
        if live:
            bars.stop()


# ``builder export``.


class Format(StrEnum):
    """The keys of ``exports.FORMATS``, which are slow to import: help names them."""

    COMPOSE = "compose"
    SCRIPT = "docker-run"
    HELM = "helm"
    KUBERNETES = "kubernetes"
    LLAMA_SWAP = "llama-swap"
    QUADLET = "quadlet"


def export(
    target: Target,
    options: Options = None,
    *,
    model: ModelOption = None,
    draft: DraftOption = None,
    mmproj: ProjectorOption = None,
    context: ContextOption = None,
    port: PortOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=known_cards,
            help="Card of cards/ for which a short name is resolved: 5090-laptop, ... "
            "Default: the cards of this machine.",
        ),
    ] = "auto",
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="Program that reads the files; docker-run is a shell script."
        ),
    ] = Format.SCRIPT,
    output: Annotated[
        Path | None,
        output_option("Write the files to this directory. Default: a single file is printed."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there and differ.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Write files that cannot start yet; their first lines name the missing parts.",
        ),
    ] = False,
    catalog: CatalogOption = None,
) -> None:
    """Write files that start a preset: for compose, Podman, Kubernetes and others.

    A short name means the preset that `builder choose` recommends for the card.

    The files have the image by digest, the health check, the GPU, the models directory
    (BUILDER_MODELS_DIR, else ./models) and the reason for each option as a comment. Nothing is
    started or downloaded; the Hub is asked for missing file names.

    The exit code is 4 if the image exists nowhere, or a model's file name is not known.
    """
    from builder.core import settings
    from builder.core.errors import WorldError
    from builder.presets.choose import resolved
    from builder.presets.exports import FORMATS
    from builder.presets.images import described, prepared
    from builder.presets.run import refusal

    recipes, loaded = catalog_at(catalog), settings.load()
    asked = wanted(target, model, draft, mmproj, context, port, options)
    found, size = resolved(recipes, target, loaded.state_dir, log, card=card, context=asked.context)
    job = prepared(recipes, replace(asked, target=found, context=size), loaded, log)
    if unfit := refusal(job, card):
        raise unfit
    service = described(job)
    if service.incomplete and not allow_incomplete:
        what, why = f"files for {target} would not start", "\n".join(service.incomplete)
        raise WorldError(what, why, "or write them all the same: --allow-incomplete")
    chosen = FORMATS[form]
    files = chosen.files(service)
    if output is None:
        if len(files) > 1:
            raise typer.BadParameter(f"{form} has several files: give --output DIR")
        typer.echo("".join(files.values()), nl=False)
        return
    _write(files, output, force=force)
    log(f"written to {output}: {', '.join(sorted(files))}")
    log(f"next, in that directory: {chosen.usage.format(name=service.name)}")


def _write(files: Mapping[str, str], output: Path, *, force: bool) -> None:
    """Write all files; raises ``WorldError`` before the first where one is there and differs."""
    from builder.core.errors import WorldError
    from builder.core.files import atomic_write, require_writable

    another = "name another directory: --output DIR"
    require_writable(output, another)
    try:
        differ = [name for name, text in files.items() if _differs(output / name, text)]
        if differ and not force:
            names = ", ".join(str(output / name) for name in differ)
            raise WorldError(
                f"cannot replace {names}",
                "it has other contents: it was edited, or is of another export",
                f"{another}, or --force",
            )
        for name, text in files.items():
            with atomic_write(output / name) as temporary:
                temporary.write_text(text, "utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise WorldError(f"cannot write to {output}", why, another) from error


def _differs(file: Path, text: str) -> bool:
    return file.exists() and (not file.is_file() or file.read_bytes() != text.encode())
