"""Runs ``builder`` commands in forks of a process that has imported builder already.

Importing builder costs a second of CPU, and the tests run hundreds of commands.  Each command still
has a process, an environment, a working directory, files, signal handlers and module state of its
own.  Only the imports, the tree of commands, the schemas of recipes and scans, the compiled
templates, the parsed locks of Debian packages, pip's configuration files and the answer of ``docker
info`` are shared.  A template or a lock whose file has changed is read again, and a command with
another engine or configuration of Docker asks for itself.

A request is one JSON message on the socket that is the standard input: commands, of which each runs
when the one before it has succeeded; their directory and environment; whether they are a session of
their own, as a terminal's; and the time that their clock shows at the start, or null.  Four files
come with it: the standard input, output and error, and a socket for the answer.  The answer is the
process id at once, and the exit code when the commands have ended.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NoReturn

import time_machine

LONGEST = 1 << 20
LAZY = (
    *("git", "gguf", "packaging.licenses", "packaging.requirements", "pypi_simple"),
    *("python_on_whales", "requests", "rich._emoji_codes", "typer._adapters"),
)
"""What builder, or a library, imports inside of functions."""


def preload() -> None:
    import builder
    from builder.cli.app import all_commands
    from builder.core import farm
    from builder.core.errors import BuilderError
    from builder.docker import engine as docker
    from builder.image import contents
    from builder.plan.plan import templates
    from builder.recipes import locks
    from builder.recipes.catalog import parse
    from builder.recipes.schema import Recipe
    from builder.sources import pypi

    for module in walk_packages(builder.__path__, "builder."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in LAZY:
        import_module(name)
    all_commands()
    parse("unknown = 1", Path("x.toml"), Recipe)
    contents.adapter()
    compiled = templates(farm.installed() / "dockerfiles")
    for name in compiled.list_templates(["j2"]):
        compiled.get_template(name)
    for lock in (farm.installed() / "recipes/bases/locks").glob("*.debian.toml"):
        locks.read(lock, lock.name)
    for setting in ("cert", "index-url"):
        pypi._configured(setting)
    with suppress(BuilderError):
        docker.executable()
    gc.collect()
    gc.freeze()


def serve(client: socket.socket) -> None:
    with selectors.DefaultSelector() as waiting:
        waiting.register(client, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not client:
                    waiting.unregister(key.fileobj)
                    _answer(int(key.fd), *key.data)
                elif not _start(client, waiting):
                    return


def _start(client: socket.socket, waiting: selectors.BaseSelector) -> bool:
    message, files, _, _ = socket.recv_fds(client, LONGEST, 4)
    if not message:
        return False
    child = os.fork()
    if child == 0:
        _commands(json.loads(message), files)
    *streams, answer = files
    for file in streams:
        os.close(file)
    os.write(answer, f"{child}\n".encode())
    waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, answer))
    return True


def _answer(process: int, child: int, answer: int) -> None:
    _, status = os.waitpid(child, 0)
    os.close(process)
    with suppress(BrokenPipeError):  # a timeout has ended the wait
        os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os.close(answer)


def _commands(request: dict[str, Any], files: list[int]) -> NoReturn:
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if _docker(os.environ) != _docker(request["environment"]):
        from builder.docker import engine as docker

        docker.executable.cache_clear()
        docker._info.cache_clear()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    *first, last = request["commands"]
    for arguments in first:
        child = os.fork()
        if child == 0:
            _command(arguments, request["time"])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            os._exit(code)
    _command(last, request["time"])


def _docker(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say which engine is asked."""
    return {name: value for name, value in environment.items() if name.startswith("DOCKER_")}


def _command(arguments: list[str], at: float | None) -> NoReturn:
    code = 1
    try:
        sys.argv = ["builder", *arguments]
        from builder.cli.app import main

        with time_machine.travel(at) if at is not None else nullcontext():
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    serve(socket.socket(fileno=os.dup(0)))
