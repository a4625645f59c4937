"""``builder run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.options import CatalogOption, catalog_at
from builder.cli.run_options import (
    ContextOption,
    DraftOption,
    ModelOption,
    Options,
    PortOption,
    ProjectorOption,
    Target,
    wanted,
)
from builder.cli.terminal import err, line, log
from builder.core import sizes

if TYPE_CHECKING:
    from builder.presets.download import Progress
    from builder.presets.run import Running


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
            autocompletion=completion.known_cards,
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
    from builder.presets import docker_run
    from builder.presets import run as server
    from builder.presets.described import described, prepared
    from builder.presets.short import refusal, resolved

    recipes, loaded = catalog_at(catalog), settings.load()
    asked = replace(wanted(target, model, draft, mmproj, context, port, options), cpu=cpu, old=old)
    asked = resolved(recipes, asked, card, loaded.state_dir, log)
    job = prepared(recipes, asked, loaded, log)
    unfit = refusal(job, card)
    if unfit is not None and not printed:
        raise unfit
    if printed:
        service = described(job)
        for each in (*service.incomplete, *service.missing, *service.caveats):
            log(each)
        if unfit is not None:
            log(f"warning: {unfit.what}: {unfit.why}")
        typer.echo(docker_run.line(replace(service, restart=None)))
        return
    with _progress() as progress:
        build, agrees = partial(_build, catalog), partial(_agrees, yes=yes)
        started = server.launch(job, card, seconds, build=build, progress=progress, agrees=agrees)
    _print(started)


def _build(catalog: Path | None, recipe: str) -> None:
    """Build and check the image of a recipe for the engine's platform, else its only image."""
    from builder.build import build
    from builder.checks.smoke_subject import GpuTest
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
