"""The life of a server: ``ps``, ``logs``, ``stop``, ``rm``, ``update``, ``pull``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import options
from builder.cli.options import catalog_at, farm, flag, option, user_settings
from builder.cli.run import Target, agreed, build_image, download_bars, print_started, wanted
from builder.cli.terminal import can_ask, line, log, print_json, table
from builder.core.errors import Interrupted, UsageError, WorldError
from builder.core.log import duration

if TYPE_CHECKING:
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


def _own(names: list[str]) -> list[Found]:
    found, root = _named(*names), str(farm().resolve())
    for each in found:
        if each.checkout != root:
            what = f"{each.name} is a server of another checkout"
            raise UsageError(what, hint=f"update it there: cd {each.checkout}")
    return found


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

    found = _own(names) if names else all_servers()
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
