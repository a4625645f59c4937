"""The application ``builder``: its commands in groups, and how each run ends."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
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
    image,
    nightly,
    pin,
    recipe,
    run,
    servers,
    show,
    tag,
)
from builder.cli.options import CATALOG, option
from builder.cli.terminal import print_error
from builder.core import errors

Command = Callable[..., None] | typer.Typer

PANELS: dict[str, dict[str, Command]] = {
    "Run": {
        "choose": choose.choose,
        "run": run.run,
        "ps": servers.ps,
        "logs": servers.logs,
        "stop": servers.stop,
        "rm": servers.rm,
        "update": servers.update,
        "pull": servers.pull,
        "export": run.export,
        "show": show.show,
        "fit": run.fit,
        "bench": bench.run_benchmark,
        "doctor": nightly.doctor,
    },
    "Build": {
        "list": show.list_recipes,
        "build": build.build,
        "smoke": build.smoke,
        "recipe": recipe.group,
        "patch": pin.patch_group,
        "pin": pin.group,
        "clean": servers.clean,
    },
    "Publish": {
        "push": tag.push,
        "tag": tag.group,
        "status": nightly.status,
        "nightly": nightly.nightly,
        "hub": tag.hub_group,
        "sbom": tag.sbom,
        "site": nightly.site,
    },
    "Inspect": {
        "compare": image.compare,
        "reproduce": image.reproduce,
        "kernels": image.kernels,
        "paths": run.paths,
        "ptx": image.ptx,
        "compilers": image.compilers,
        "bisect": nightly.bisect,
    },
    "Automate": {"ci": nightly.group, "receipts": bench.group_receipts},
}
"""The commands, in panels by reader, in the order of the help."""

ENGINE_COMMANDS = {"run", "export", "fit", "bench"}
"""Commands that take options of the engine after ``--``."""
OTHER_OPTIONS = {
    "--host": "--listen",
    "--api-key": "--api-key-file",
    "--print": "--dry-run",
    "--check": "--dry-run",
    "--delete": "--yes",
    "--force": "--yes",
    "--seconds": "--timeout",
}
"""What other programs call an option, and its name where the command has it."""
OTHER_WORDS = {
    **dict.fromkeys(("start", "serve", "up"), "run"),
    **dict.fromkeys(("down", "kill"), "stop"),
    **dict.fromkeys(("images", "ls", "recipes", "engines"), "list"),
    **dict.fromkeys(("models", "presets", "search", "recommend"), "choose"),
    **dict.fromkeys(("install", "download"), "pull"),
    "upgrade": "update",
    **dict.fromkeys(("uninstall", "remove", "delete"), "rm"),
    **dict.fromkeys(("log", "attach"), "logs"),
    **dict.fromkeys(("info", "inspect", "explain"), "show"),
    **dict.fromkeys(("benchmark", "measure"), "bench"),
    "verify": "smoke",
    **dict.fromkeys(("prune", "gc", "cleanup"), "clean"),
    **dict.fromkeys(("publish", "upload"), "push"),
    "containers": "ps",
}
"""What other programs call a command, and its name here."""
CHANGING = {"push", "tag", "nightly", "hub", "stop", "rm"}
"""Commands that no misspelt word is taken for: they change what others see, or remove things."""

_COMPLETION = {"_FARM_COMPLETE", "--install-completion", "--show-completion"}
GARBAGE = 100_000  # new objects after which Python looks for garbage
EPILOG = (
    "Exit codes: "
    + "; ".join(f"{code} {text}" for code, text in errors.EXIT_CODES.items())
    + ". The table in docs/commands.md says more."
)


class _Commands(TyperGroup):
    """Lists commands in the order of the panels, and names the command that a wrong word means."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for commands in PANELS.values() for name in commands]
        return sorted(self.commands, key=order.index) if ctx.parent is None else [*self.commands]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word in self.commands or word.startswith("-"):
            return super().resolve_command(ctx, args)
        path = "`" + " ".join(_names(ctx))
        words, changing = (OTHER_WORDS, CHANGING) if ctx.parent is None else ({}, set())
        if (meant := words.get(word)) in self.commands:
            raise errors.UsageError(f"no command is named {word}", hint=f"{path} {meant} --help`")
        near = errors.suggestion(word, [name for name in self.commands if name not in changing])
        raise errors.UsageError(
            f"no command is named {word}{near}", hint=f"{path} --help` has them all"
        )


def _application(panels: Mapping[str, Mapping[str, Command]]) -> typer.Typer:
    made = typer.Typer(
        name="builder",
        cls=_Commands,
        help="Choose and run language models on a GeForce RTX 50xx: checked Docker images of "
        "engines, built from recipes.",
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
                given = command.info.cls if isinstance(command.info.cls, type) else None
                made.add_typer(command, name=name, cls=given or _Commands, rich_help_panel=panel)
            else:
                made.command(name, rich_help_panel=panel)(command)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"builder {__version__}")
        raise typer.Exit


def _options_before_commands(
    version: bool = option(  # noqa: ARG001
        "--version",
        "Print the version of builder and exit.",
        False,
        callback=_print_version,
        is_eager=True,
    ),
    catalog: Path | None = option(
        "--catalog DIR",
        "Directory with recipes/. Default: BUILDER_CATALOG, else the repository around the working "
        "directory, else the repository that builder was installed from.",
    ),
) -> None:
    if catalog is not None:
        os.environ[CATALOG] = str(catalog)


app = _application(PANELS)


def main() -> NoReturn:
    """Run the command line: here every exception becomes a message and an exit code."""
    # Models live as long as the command: after a few hundred, Python would look at all of them.
    gc.set_threshold(GARBAGE)
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = _run(_words())
    except (errors.Interrupted, typer.Abort):
        typer.echo(f"{errors.PROGRAM}: interrupted; the command can be run again", err=True)
        code = errors.INTERRUPTED
    except Exception as error:
        code = _fail(error)
    sys.exit(code)


def _fail(error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        return errors.UsageError.exit_code  # Click has printed the help
    known: errors.BuilderError
    if hasattr(error, "format_message"):
        known = _of_click(error)
    else:
        from builder.build import log  # slow to import

        known = log.as_builder_error(error) or errors.BugError(
            f"internal error: {type(error).__name__}: {error}",
            hint=f"this is a bug in builder; the report is {log.write_report(error)}",
        )
    print_error(known)
    return known.exit_code


def _of_click(error: Any) -> errors.UsageError:
    ctx, kind = error.ctx, type(error).__name__
    param: Any = getattr(error, "param", None)
    called = " ".join(_names(ctx))
    hint, usage = f"`{called} --help`", ctx.get_usage() if ctx else ""
    if kind == "NoSuchOption":
        return _no_option(error, called)
    if kind == "MissingParameter":
        return errors.UsageError(f"{_name_of(param)} is missing: {param.help}", usage, hint)
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message):
        return errors.UsageError(f"too many words: {extra[1]}", usage, hint)
    text = re.sub(r"^Option '(.*)' requires an argument.$", r"\1 needs a value", error.message)
    text = errors.in_words(text)
    if choice := re.fullmatch(r"'(.*)' is not one of (.*?)\.?", text):
        known = re.findall(r"'([^']+)'", choice[2])
        text = f"{choice[1]} is none of {', '.join(known)}{errors.suggestion(choice[1], known)}"
    name = getattr(error, "param_hint", None) or (_name_of(param) if param else "")
    return errors.UsageError(f"{name}: {text}" if name else text, hint=hint)


def _no_option(error: Any, called: str) -> errors.UsageError:
    name = error.option_name
    # Click names -n alone for -ngl.
    word = next((each for each in sys.argv if each.startswith(name)), name)
    other = OTHER_OPTIONS.get(name.partition("=")[0])
    if other in {each for param in error.ctx.command.params for each in param.opts}:
        return errors.UsageError(f"no option is named {word}", hint=f"here it is {other}")
    near = " or ".join(sorted(error.possibilities or ()))
    hint = f"`{called} --help` has all options"
    if error.ctx.command.name in ENGINE_COMMANDS:
        hint = f"options of the engine go after --: ... -- {word}"
    meant = f"; did you mean {near}?" if near else ""
    return errors.UsageError(f"no option is named {word}{meant}", hint=hint)


def _name_of(param: Any) -> str:
    is_option = param.param_type_name == "option"
    return str(max(param.opts, key=len) if is_option else param.metavar or param.name)


def _names(ctx: Any) -> list[str]:
    return [*_names(ctx.parent), ctx.info_name] if ctx and ctx.parent else ["builder"]


def _words() -> list[str]:
    """The words of the command line; ``help COMMAND`` is ``COMMAND --help``."""
    match sys.argv[1:]:
        case ["help", *words]:
            return [*words, "--help"]
        case ["version"]:
            return ["--version"]
        case words:
            return _catalog_first(words)


def _catalog_first(words: list[str]) -> list[str]:
    """``--catalog DIR`` may stand anywhere before ``--``: the application takes it first."""
    end = words.index("--") if "--" in words else len(words)
    for at, word in enumerate(words[:end]):
        if word == "--catalog" and at + 1 == end:
            raise errors.UsageError("--catalog needs a value", hint="--catalog DIR")
        if word.partition("=")[0] == "--catalog":
            size = 1 if "=" in word else 2
            return [*words[at : at + size], *_catalog_first(words[:at] + words[at + size :])]
    return words


@cache
def all_commands() -> Any:
    """The group of all commands, as Click has them; it takes 30 ms to make."""
    return typer.main.get_command(app)


def _commands(words: Sequence[str]) -> Any:
    after = words[2:] if words[:1] == ["--catalog"] else words
    name = next((word for word in after if not word.startswith("--catalog=")), "")
    for panel, commands in PANELS.items():
        if name in commands:
            return typer.main.get_command(_application({panel: {name: commands[name]}}))
    return all_commands()


def _run(words: list[str]) -> int:
    """Run the command; its usage and help name the program as the user called it."""
    try:  # where it was removed, git would call the repositories of others damaged
        Path.cwd()
    except FileNotFoundError:
        raise errors.WorldError(
            "the working directory does not exist", hint="cd to a directory that exists"
        ) from None
    command = _commands(words)
    _name_program(command)
    name = errors.PROGRAM if "BUILDER_PROGRAM" in os.environ else None
    if name and _COMPLETION & {*os.environ, *words}:
        name = Path(name).name  # a shell knows ./farm by its last part
    return command(words, prog_name=name, standalone_mode=False) or 0


def _name_program(command: Any) -> None:
    for part in (command, *command.params):
        for attribute in ("help", "epilog"):
            if getattr(part, attribute, None):
                setattr(part, attribute, errors.as_started(getattr(part, attribute)))
    for below in getattr(command, "commands", {}).values():
        _name_program(below)


def _interrupt(signum: int, frame: Any) -> NoReturn:  # noqa: ARG001
    raise errors.Interrupted
