"""Servers: ``ps``, ``logs``, ``stop``, ``rm``, ``update``, ``pull``; and ``clean``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, farm, flag, option, user_settings
from builder.cli.run import Target, agreed, build_image, download_bars, print_started, wanted
from builder.cli.terminal import can_ask, counted, line, log, paragraph, print_json, table
from builder.core import sizes
from builder.core.errors import Interrupted, UsageError, WorldError, suggestion
from builder.core.log import duration

if TYPE_CHECKING:
    from builder.build.clean import Row
    from builder.presets.images import Launch
    from builder.presets.run import Outdated, Running
    from builder.presets.servers import Found

ServerName = Annotated[
    str,
    options.argument(
        "NAME", "The preset, the recipe or the container of a server, or its beginning."
    ),
]
Servers = Annotated[
    list[str] | None, options.argument("NAME", "Servers. Default: all of this checkout.")
]
SECONDS = 900  # until a server is healthy
DAY = 86_400  # seconds
LONGEST = 36_500 * DAY


def ps(*, as_json: options.JsonOption = False) -> None:
    """List the servers that `builder run` started: address, health, and whether they are outdated.

    A server that another checkout started has its path in the last column.
    """
    from builder.presets.servers import all_servers

    root = str(farm().resolve())
    found = all_servers()
    own = {each.server.name: each.why for each in _compared(found)}
    rows = [
        {
            "server": each.title,
            "image": each.version,
            "address": each.address,
            "state": each.state,
            "since": each.since,
            "note": own.get(each.name, f"of {each.checkout or 'another checkout'}"),
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        log("no servers: `builder run PRESET` starts one")
    cells = [[*({**row, "since": _ago(row["since"])}).values()] for row in rows]
    table(["server", "image", "address", "state", "for", ""], cells, wraps="")
    if any(own.values()):
        log(f"`builder update` starts what is outdated anew ({root})")


def _ago(time: str) -> str:
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except ValueError:
        return ""
    if seconds >= LONGEST:  # it was never started
        return ""
    if seconds >= DAY:
        return f"{seconds / DAY:.0f} days"
    return f"{seconds / 3600:.0f} h" if seconds >= 3600 else duration(seconds)


def _compared(servers: list[Found]) -> Iterator[Outdated]:
    from builder.presets.run import compared

    recipes, loaded = catalog_at(), user_settings()
    for each in servers:
        if each.checkout == str(recipes.root.resolve()):
            yield compared(recipes, loaded, log, each)


def _named(*names: str) -> list[Found]:
    from builder.presets.servers import all_servers, named

    found, root = all_servers(), farm().resolve()
    chosen = [named(name, found, root) for name in names]
    return list({each.container: each for each in chosen}.values())


def logs(
    name: ServerName,
    *,
    follow: bool = flag("--follow -f", "Go on until Ctrl-C."),
    tail: str = option("--tail N|all", "Number of the last lines.", "100"),
) -> None:
    """Print the log of a server, without its API key."""
    from builder.presets.servers import log_lines

    if tail != "all" and not tail.isdecimal():
        raise typer.BadParameter(f"{tail} is neither a number nor all", param_hint="--tail")
    (found,) = _named(name)
    with suppress(Interrupted):  # how a person ends --follow
        for each in log_lines(found, tail, follow=follow):
            line(each)


def stop(
    names: Servers = None,
    *,
    every: bool = flag("--all", "All servers of this checkout."),
) -> None:
    """Stop servers; their containers and logs stay.

    A stopped server stays stopped after a reboot. `builder run` starts it anew.
    """
    from builder.presets import servers

    for each in _chosen(names, every=every):
        servers.stop(each)
        log(f"stopped {each.title}")


def rm(
    names: Servers = None,
    *,
    every: bool = flag("--all", "All servers of this checkout."),
) -> None:
    """Stop servers and remove their containers, with their logs; models and images stay."""
    from builder.presets import servers

    for each in _chosen(names, every=every):
        servers.remove(each)
        log(f"removed {each.title}")


def _chosen(names: list[str] | None, *, every: bool) -> list[Found]:
    from builder.presets.servers import all_servers

    if bool(names) == every:
        raise UsageError("name servers, or give --all", hint="`builder ps` lists them")
    if names:
        return _named(*names)
    root = str(farm().resolve())
    return [each for each in all_servers() if each.checkout == root]


def update(
    names: Servers = None,
    *,
    dry_run: options.DryRunOption = False,
    yes: bool = flag("--yes -y", "Build, pull and start without asking."),
) -> None:
    """Start servers anew whose recipe or preset has changed, for example by `git pull`.

    Their images are built or pulled first; then each is started with the options that it was
    started with. If a new server fails, the old one runs on. A stopped server stays stopped: only
    its image and its models are obtained.
    """
    from builder.presets.servers import all_servers

    found, root = _named(*names) if names else all_servers(), str(farm().resolve())
    if names and (other := next((each for each in found if each.checkout != root), None)):
        what = f"{other.name} is a server of another checkout"
        raise UsageError(what, hint=f"update it there: cd {other.checkout}")
    compared = [*_compared(found)]
    steps = list(dict.fromkeys(step for each in compared for step in each.steps()))
    for each in compared:
        if not each.why or each.job is None:
            log(f"{each.server.title}: {each.why or 'up to date'}")
    if dry_run or not steps:
        log("\n  ".join(["This machine would have to", *steps]) if steps else "nothing to do")
    elif agreed(steps, yes=yes):
        for each in compared:
            if each.why and each.job and not each.server.stopped:
                print_started(_obtained(each.job, each.server))
            elif each.why and each.job:
                _obtained(each.job, start=False)
    elif not can_ask():
        what = "nothing was updated: nobody can be asked here"
        raise WorldError(what, "\n".join(steps), "`builder update --yes` agrees to these steps")


def _obtained(job: Launch, replaces: Found | None = None, *, start: bool = True) -> Running:
    from builder.presets.run import launch

    with download_bars() as bars:
        return launch(
            job,
            job.wanted.card,
            SECONDS,
            build=build_image,
            progress=bars,
            agrees=partial(agreed, yes=True),
            replaces=replaces,
            start=start,
        )


def pull(target: Target) -> None:
    """Get the image and the models of a preset, and start nothing.

    A published image is pulled; any other one is built. An interrupted download continues.
    """
    _obtained(wanted(target), start=False)


# ``builder clean``.

MOST = 12  # things of a kind that are named


def clean(
    what: list[str] | None = argument(
        "WHAT",
        "Names of the table, or all. Default: images, bases, reproduced, work, which nobody needs.",
        None,
    ),
    model: list[str] | None = option(
        "--model NAME", "Remove this file of the models directory: OWNER/NAME/FILE; repeatable."
    ),
    dry_run: bool = flag("--dry-run", "Show what would be removed, and remove nothing."),
    yes: bool = option("--yes -y", "Remove without a question.", False),
    as_json: options.JsonOption = False,
) -> None:
    """Show what Docker, the caches and the state directory hold, and remove what nobody needs.

    First a table shows all kinds of things with their sizes. Then the ones that are named are
    removed, after a question or with --yes. What is in use stays: images of containers, of tags
    and of today's recipes, and everything while another run of this user is at work (exit code 9).
    Caches are removed only by name: they cost the time or the download to make them again; images
    of other checkouts only as gone, which all leaves out; models only with --model. Without Docker,
    the rest is cleaned.
    """
    from builder.build import clean as things
    from builder.docker.usage import usage as held

    recipes, loaded, usage = catalog_at(), user_settings(), None
    log("asking Docker what it holds")
    try:
        usage = held()
    except WorldError as error:
        if model or {*(what or ())} & {*things.OF_DOCKER}:
            raise
        log(f"{error.what}: only files are cleaned. {error.why}")
    rows = things.of_docker(recipes, usage) if usage else []
    rows += things.of_files(loaded, usage.images if usage else None)
    folder = loaded.models_dir.expanduser().absolute()
    models = things.models_of(folder, usage)
    chosen = things.chosen(rows, what or []) if what or not model else []
    chosen += _models(models, folder, model or [])
    if as_json:
        own = [row for row in chosen if row.name == models.name]
        found = [
            {**asdict(row), "size": row.size, "chosen": any(row is each for each in chosen)}
            for row in [*rows, models, *own]
        ]
        print_json({"rows": found, "bytes": sum(row.size for row in chosen)})
    else:
        _print([*rows, models], chosen)
    if dry_run or not chosen:
        return
    if not yes:
        if as_json or not can_ask():
            log("nothing is removed: --yes removes it")
            return
        if not typer.confirm("Remove this?", default=False, err=True):
            return
    stayed = [*things.remove(chosen, loaded, log)]
    for why in stayed:
        log(f"stays: {why}")
    if stayed:
        raise WorldError(f"{counted(len(stayed), 'thing')} could not be removed")


def _models(models: Row, folder: Path, names: Sequence[str]) -> list[Row]:
    from builder.build.clean import Row

    found = Row(models.name, models.about)
    for name in names:
        path = str(folder / name)
        if path not in models.things:
            known = [str(Path(each).relative_to(folder)) for each in models.things]
            if Path(path).is_file():
                raise UsageError(f"a container serves {name}", hint="`builder ps` lists servers")
            what = f"no model is named {name}{suggestion(name, known)}"
            raise UsageError(what, f"looked in {folder}", "`builder clean` lists the models")
        found.add(path, models.things[path])
    return [found] if names else []


def _print(rows: Sequence[Row], chosen: Sequence[Row]) -> None:
    cells = [(row.name, sizes.shown(row.size), row.about) for row in rows if row.things]
    table(("what", "size", "for"), cells, wraps="for")
    models = [row for row in rows if row.name == "models" and row not in chosen]
    for title, shown in (("Models", models), ("To remove", chosen)):
        for row in shown:
            names = [f"{sizes.shown(size)}  {name}" for name, size in row.things.items()]
            more = [f"and {len(names) - MOST} more: --json has all"] if len(names) > MOST else []
            of = f"{title}: {row.name}" if title != "Models" else title
            paragraph(f"{of}, {sizes.shown(row.size)}", [*names[:MOST], *more])
    if chosen:
        line(f"\ntogether {sizes.shown(sum(row.size for row in chosen))}")
    else:
        line("\nnothing to remove that nobody needs; name what else: `builder clean ccache`")
