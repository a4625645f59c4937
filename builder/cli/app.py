"""The application ``builder``: its commands in groups, and how each run ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from builder import __version__
from builder.cli import (
    bench,
    build,
    choose,
    clean,
    image,
    nightly,
    pin,
    recipe,
    run,
    servers,
    show,
    tag,
)
from builder.cli.options import EngineCommand, option
from builder.core.errors import (
    EXIT_CODES,
    INTERNAL,
    INTERRUPTED,
    PROGRAM,
    Interrupted,
    WorldError,
    as_started,
)

Command = Callable[..., None] | typer.Typer

EVERYDAY: dict[str, Command] = {
    "list": show.list_recipes,
    "show": show.show,
    "choose": choose.choose,
    "build": build.build,
    "smoke": build.smoke,
    "push": tag.push,
    "nightly": nightly.nightly,
    "status": nightly.status,
    "bench": bench.run_benchmark,
    "fit": run.fit,
    "run": run.run,
    "ps": servers.ps,
    "logs": servers.logs,
    "stop": servers.stop,
    "update": servers.update,
    "rm": servers.rm,
    "pull": servers.pull,
    "export": run.export,
    "bisect": nightly.bisect,
    "doctor": nightly.doctor,
    "clean": clean.clean,
}
OTHERS: dict[str, Command] = {
    "recipe": recipe.group,
    "patch": pin.patch_group,
    "pin": pin.group,
    "tag": tag.group,
    "hub": tag.hub_group,
    "site": nightly.site,
    "sbom": tag.sbom,
    "kernels": image.kernels,
    "paths": run.paths,
    "ptx": image.ptx,
    "compilers": image.compilers,
    "reproduce": image.reproduce,
    "compare": image.compare,
    "receipts": bench.group_receipts,
    "ci": nightly.group,
}
ENGINE_COMMANDS: tuple[Command, ...] = (run.fit, run.run, run.export, bench.run_benchmark)
PANELS = {"Everyday commands": EVERYDAY, "Other commands": OTHERS}
_COMPLETION = {"_FARM_COMPLETE", "--install-completion", "--show-completion"}
GARBAGE = 100_000  # new objects after which Python looks for garbage
EPILOG = "Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()) + "."


class _InOrder(TyperGroup):
    """Lists the commands in the order of the panels above; typer lists groups first."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        order = [name for commands in PANELS.values() for name in commands]
        return sorted(self.commands, key=order.index)


def _application(panels: Mapping[str, Mapping[str, Command]]) -> typer.Typer:
    made = typer.Typer(
        name="builder",
        cls=_InOrder,
        help="Build Docker images of sm_120 inference engines from recipes, test them, publish "
        "them.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options_before_commands)
    for panel, commands in panels.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                made.add_typer(command, name=name, rich_help_panel=panel)
            else:
                kind = EngineCommand if command in ENGINE_COMMANDS else None
                made.command(name, cls=kind, rich_help_panel=panel)(command)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"builder {__version__}")
        raise typer.Exit


def _options_before_commands(
    version: bool = option(
        "--version",
        "Print the version of builder and exit.",
        False,
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    pass


app = _application(PANELS)


def main() -> NoReturn:
    """Run the command line: here every exception becomes a message and an exit code."""
    # Models live as long as the command: after a few hundred, Python would look at all of them.
    gc.set_threshold(GARBAGE)
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _run()
    except Interrupted:
        typer.echo("builder: interrupted; the command can be run again", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        from builder.build import log  # slow to import

        known = log.as_builder_error(error)
        if known is None:
            typer.echo(
                f"builder: internal error: {type(error).__name__}: {error}\n"
                f"  this is a bug in builder; the report is {log.write_report(error)}",
                err=True,
            )
            sys.exit(INTERNAL)
        lines = [f"builder: {known.what}", *(f"  {line}" for line in known.why.splitlines())]
        lines += [f"  -> {known.hint}"] if known.hint else []
        typer.echo(as_started("\n".join(lines)), err=True)
        sys.exit(known.exit_code)
    sys.exit(0)


@cache
def all_commands() -> Any:
    """The group of all commands, as Click has them; it takes 30 ms to make."""
    return typer.main.get_command(app)


def _commands() -> Any:
    """The group of the called command alone; of all commands if the name is another one."""
    name = next(iter(sys.argv[1:]), "")
    for panel, commands in PANELS.items():
        if name in commands:
            return typer.main.get_command(_application({panel: {name: commands[name]}}))
    return all_commands()


def _run() -> None:
    """Run the command; its usage and help name the program as the user called it.

    Raises ``WorldError`` where the working directory was removed: git would call the repositories
    of others damaged.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise WorldError(
            "the working directory does not exist", hint="cd to a directory that exists"
        ) from None
    command = _commands()
    _name_program(command)
    name = PROGRAM if "BUILDER_PROGRAM" in os.environ else None
    if name and _COMPLETION & {*os.environ, *sys.argv[1:]}:
        name = Path(name).name  # a shell knows ./farm by its last part
    command(prog_name=name)


def _name_program(command: Any) -> None:
    for part in (command, *command.params):
        for attribute in ("help", "epilog"):
            if getattr(part, attribute, None):
                setattr(part, attribute, as_started(getattr(part, attribute)))
    for below in getattr(command, "commands", {}).values():
        _name_program(below)


def _interrupt(signum: int, frame: Any) -> NoReturn:  # noqa: ARG001
    raise Interrupted
