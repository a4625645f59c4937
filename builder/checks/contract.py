"""Check: the image keeps the promises of its recipe.

Its configuration (entrypoint, user, ports, labels, driver) and its sizes are the recipe's; no layer
carries files that a later one hides; no time is later than its newest input: none is a clock's;
nothing is empty, and nothing is secret.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from builder.checks.subject import DRIVER_STUB, Context, excerpt
from builder.checks.verdict import Check
from builder.docker import containers
from builder.docker.containers import copy_out
from builder.docker.engine import epoch_of
from builder.docker.gpus import is_older
from builder.engines import layout
from builder.engines.families import ENGINES
from builder.engines.layout import LAYOUT
from builder.image.contents import (
    Contents,
    File,
    Layer,
    arguments_of,
    found_in,
    found_in_configuration,
)
from builder.recipes.schema import Recipe

# The programs that a command line leads to, followed through wrappers and scripts.

MACHINES = {"linux/amd64": "x86-64", "linux/arm64": "aarch64"}
PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)?t?$")
SHELLS = {"sh", "bash", "dash", "ash"}
WRAPPERS: Mapping[str, tuple[str, int]] = {
    "env": ("-C --chdir -u --unset", 0),
    "nice": ("-n --adjustment", 0),
    **dict.fromkeys(("nohup", "catatonit"), ("", 0)),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    **dict.fromkeys(("tini", "tini-static"), ("-p -e", 0)),
    "dumb-init": ("-r --rewrite", 0),
    **dict.fromkeys(("gosu", "su-exec"), ("", 1)),
}
"""Programs that become another one: the options whose value is a word of its own, and how many
words are before the program."""
SPLIT = re.compile(r"(?:-[i0v]*S|--split-string=?)")
DEFAULT_PATH = "/bin:/usr/bin"  # execvp(3), where PATH is not set
MOST = 8  # programs that start each other


@dataclass(frozen=True, slots=True)
class Start:
    """The programs that a command line leads to."""

    chain: tuple[str, ...] = ()
    fault: str = ""
    """Why the last one cannot be started."""
    at: str = ""
    unknown: str = ""
    """Why it is not known what follows."""
    python: tuple[str, ...] = ()
    """The words to Python, with its own options; empty: it is not known to be Python."""
    module: str = ""
    file: str = ""


def followed(words: Sequence[str], contents: Contents, *, by_docker: bool = False) -> Start:
    """The programs that an image starts by these words; ``by_docker``: Docker starts the first."""
    start, left = Start(), list(words)
    prefix: list[str] = []
    while left and len(start.chain) < MOST:
        path, fault = _program(left[0], contents)
        start = replace(start, chain=(*start.chain, path), fault=fault, at=path if fault else "")
        file = contents.files.get(contents.resolve(path) or "")
        if fault or file is None:
            return start
        name = posixpath.basename(left[0])
        if file.elf is None:
            if why := _unstarted(path, file, contents, by_docker=by_docker and not start.chain[1:]):
                return replace(start, fault=why, at=path)
            # A text without "#!" is the shell's: execvp(3), ENOEXEC.
            line = file.script.removeprefix("#!").strip(" \t") or "/bin/sh"
            left, prefix = [*re.split(r"[ \t]+", line, maxsplit=1), path, *left[1:]], []
        elif PYTHON.match(name) or PYTHON.match(posixpath.basename(file.path)):
            return _of_python(start, [*prefix, left[0]], left[1:], contents)
        elif name in WRAPPERS:
            after, given = _after_options(name, left[1:])
            contents = _changed(contents, given)
            # Words of one that is split (env -S) are none of the command line's.
            prefix, left = [*prefix, *left[: max(0, len(left) - len(after))]], after
        elif name in SHELLS:
            return _of_shell(start, left[1:], contents)
        else:
            return start
    why = "programs start each other without end" if left else "it names no program"
    return replace(start, fault=why, at=start.chain[-1] if start.chain else "")


def _unstarted(path: str, file: File, contents: Contents, *, by_docker: bool) -> str:
    """Why no interpreter is started for a text; empty: one is."""
    if not _may(file, contents, 4):
        return f"{path} cannot be read by the image's user"
    if file.script.endswith("\r"):
        return f"the first line of {path} ends with a carriage return: write it as on Linux"
    if by_docker and not file.script:
        return f"{path} is neither an ELF file nor begins with #!: Docker cannot start it"
    return ""


def _after_options(name: str, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words after the options, and the variables, of ``env`` or a wrapper.

    Also the variables and the directory that ``env`` sets; the latter is "-C".
    """
    values, operands = WRAPPERS[name]
    left, given = list(words), dict[str, str]()
    while left:
        word = left[0]
        if word == "--":
            left = left[1:]
            break
        if name == "env" and (split := SPLIT.match(word)):
            texts = [each for each in (word[split.end() :], *left[1:]) if each.strip()]
            left = [*_split(texts[0]), *texts[1:]] if texts else []
        elif word in values.split():
            given["-C"] = left[1] if word in {"-C", "--chdir"} and left[1:] else given.get("-C", "")
            left = left[2:]
        elif name == "env" and (set_ := re.match(r"(\w+|--chdir)=(.*)", word, re.DOTALL)):
            given["-C" if set_[1] == "--chdir" else set_[1]] = set_[2]
            left = left[1:]
        elif word.startswith("-"):
            left = left[1:]
        else:
            break
    return left[operands:], given


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # it has one quote
        return text.split()


def _changed(contents: Contents, given: Mapping[str, str]) -> Contents:
    config = dict(contents.config)
    if folder := given.get("-C"):
        config["WorkingDir"] = _absolute(folder, contents)
    if "PATH" in given:
        config["Env"] = [*(config.get("Env") or []), f"PATH={given['PATH']}"]
    return replace(contents, image={**contents.image, "config": config})


def _of_python(start: Start, prefix: list[str], words: list[str], contents: Contents) -> Start:
    # Python documentation, "Command line and environment".
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        option = left.pop(0)
        letter = re.match(r"-(?![XW])[A-Za-z]*?([mc])", option)
        if letter:
            value = option[letter.end() :] or (left[0] if left else "")
            if letter[1] == "m":
                flags = option[: letter.end() - 1]
                more = [flags] if flags != "-" else []
                return replace(start, python=(*prefix, *more), module=value)
            return replace(start, unknown=f"Python runs code of its command line: {value[:60]}")
        prefix.append(option)
        if option in {"-X", "-W", "--check-hash-based-pycs"} and left:
            prefix.append(left.pop(0))
    if not left or left[0] == "-":
        return replace(start, unknown="Python is given no program")
    path = _absolute(left[0], contents)
    file = contents.files.get(contents.resolve(path) or "")
    if file is None:
        return replace(start, fault=f"{path}, which Python is to run, does not exist", at=path)
    if not _may(file, contents, 4):
        return replace(start, fault=f"{path} cannot be read by the image's user", at=path)
    return replace(start, python=tuple(prefix), file=path)


def _of_shell(start: Start, words: list[str], contents: Contents) -> Start:
    scripts = [word for word in words[:1] if not word.startswith("-")]
    for script in scripts:
        path = _absolute(script, contents)
        # A shell looks for a name also in PATH.
        if "/" in script and contents.resolve(path) is None:
            return replace(start, fault=f"{path}, which a shell is to run, does not exist", at=path)
    what = scripts[0] if scripts else "a command line"
    return replace(start, unknown=f"{what} is a shell's: the programs that it starts are not known")


def _program(name: str, contents: Contents) -> tuple[str, str]:
    """The path of a program, and why it cannot be started; by execvp(3)."""
    if "/" in name:
        path = _absolute(name, contents)
        return path, _fault(path, contents)
    search = contents.environment.get("PATH") or DEFAULT_PATH
    places = [
        posixpath.join(_absolute(folder, contents), name) for folder in search.split(":") if folder
    ]
    faults = {path: _fault(path, contents) for path in places if contents.resolve(path)}
    # The first that can be started, else the first; False is before True.
    for path, fault in sorted(faults.items(), key=lambda each: bool(each[1])):
        return path, fault
    return name, f"{name} is in no directory of PATH ({search})"


def _fault(path: str, contents: Contents) -> str:
    place = contents.resolve(path)
    file = contents.files.get(place) if place else None
    if place is None or file is None:
        there = contents.files.get(path)
        to = f" (a link to {there.target})" if there and there.kind == "link" else ""
        return f"{path} does not exist{to}"
    for folder in (*_parents(path), *_parents(place)):
        above = contents.files.get(contents.resolve(folder) or "")
        if above is not None and not _may(above, contents, 1):
            return f"{path} is below {folder}, which the image's user cannot enter"
    why = unusable(file, contents)
    return f"{path} {why}" if why else ""


def unusable(file: File, contents: Contents) -> str:
    """Why the kernel, or ld.so, does not start a file for the image's user; empty: it does."""
    parsed, machine = file.elf, MACHINES.get(contents.platform)
    if file.kind != "file":
        return f"is no file: it is a {file.kind}"
    if file.size == 0:
        return "is empty"
    if not _may(file, contents, 1):
        return f"cannot be executed by the image's user (mode {file.mode & 0o7777:04o})"
    if file.malformed:
        return f"is damaged: {file.malformed}"
    if parsed is None:
        return ""
    if parsed.type not in {"exec", "dyn"}:
        return "is no program"
    if machine and parsed.machine != machine:
        return f"is a program for {parsed.machine}"
    if parsed.interpreter and contents.resolve(parsed.interpreter) is None:
        return f"needs the loader {parsed.interpreter}, which does not exist"
    return ""


def _may(file: File, contents: Contents, right: int) -> bool:
    """Whether the image's user has a right (4: read, 1: execute, or enter) to a file.

    Where the user is a name, any user's right counts.
    """
    user, _, group = str(contents.config.get("User") or "0").partition(":")
    if right == 4 and user in {"0", "root"}:
        return True
    if not user.isdigit() or user == "0":
        return bool(file.mode & right * 0o111)
    if int(user) == file.user:
        return bool(file.mode & right << 6)
    if group.isdigit() and int(group) == file.group:
        return bool(file.mode & right << 3)
    return bool(file.mode & right)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _absolute(path: str, contents: Contents) -> str:
    return posixpath.join("/", contents.config.get("WorkingDir") or "/", path)


MOST_HIDDEN = 16  # MB of a layer that later layers may remove or replace
MB = 1_000_000
MOUNTED = {"/dev", "/proc", "/sys"}
"""BuildKit mounts file systems there; it makes the directories that a published base lacks."""
ZSTD = "zstd"
RUNTIME_LIBRARY = re.compile(r"/libcudart(?:[-.][0-9a-f]{8})?\.so\.(\d+)(?:\.\d+)*$")
"""Also the names that auditwheel gives, with eight digits of a hash."""


def check_extended(context: Context) -> Iterator[Check]:
    """Some checks read only the files above the image that this one extends."""
    below = len(context.contents.layers) - len(context.added.layers)
    files = len(context.contents.files) - len(context.added.files)
    why = f"{files} files of {below} layers come from the image below: docs/checks.md"
    yield Check.skipped("extended", "the image that it extends", "every check reads it", why)


def check(context: Context) -> Iterator[Check]:
    """Platform, user, entrypoint, port, health check, environment, labels, compression, driver.

    Where the recipe says nothing, an image keeps the configuration of the image that it extends.
    """
    recipe, contents, extended = context.recipe, context.contents, context.subject.extended
    image, config = recipe.image, contents.config
    before = extended.config if extended else {}
    yield _equal("platform", context.subject.platform, contents.platform)
    user = (before.get("User") or "root") if extended else LAYOUT.user
    yield _equal("user", image.user or user, config.get("User") or "root")
    starts = [] if recipe.artifact else layout.command(image.entrypoint)
    yield _equal("entrypoint", _shown(starts), _shown(config.get("Entrypoint") or []))
    # A new entrypoint resets the command of the base (Dockerfile reference, "ENTRYPOINT").
    yield _equal("command", _shown(image.command), _shown(config.get("Cmd") or []))
    if extended and not image.entrypoint:
        yield _kept_start(before, contents)
    if extended:
        folder = before.get("WorkingDir") or "/"
        yield _equal("working directory", folder, config.get("WorkingDir") or "/")
    exposed = {*(before.get("ExposedPorts") or {}), *([f"{image.port}/tcp"] if image.port else [])}
    ports = ", ".join(sorted(config.get("ExposedPorts") or {})) or "none"
    yield _equal("exposed port", ", ".join(sorted(exposed)) or "none", ports)
    if image.port and image.health:
        test = " ".join((config.get("Healthcheck") or {}).get("Test") or ["none"])
        wanted = f"{image.port} {image.health}"
        yield Check.of("contract", "health check", f"asks {wanted}", test, test.endswith(wanted))
    for name, value in image.env.items():
        found = contents.environment.get(name)
        shown = "not set" if found is None else found
        yield Check.of("contract", f"environment {name}", value, shown, found == value)
    there = config.get("Labels") or {}
    for name, value in context.subject.labels.items():
        shown = there.get(name, "not set")
        yield Check.of("contract", f"label {name}", value, shown, shown == value)
    yield _compression(image.compression, context.added.layers)
    if recipe.cuda.driver is not None or not (extended or recipe.artifact):
        yield _driver(recipe, contents)


def _compression(wanted: str, layers: Sequence[Layer]) -> Check:
    """Clients that read only gzip get no zstd, and the layers of one image are of one kind."""
    zstd = [layer.media_type.endswith(ZSTD) for layer in layers]
    right = all(zstd) if wanted == ZSTD else not any(zstd)
    found = f"{sum(zstd)} of {len(zstd)} layers are {ZSTD}"
    return Check.of("contract", "compression", wanted, found, right)


def _kept_start(before: Mapping[str, Any], contents: Contents) -> Check:
    """The entrypoint starts the same program as the image that it extends."""
    file = contents.files.get(LAYOUT.needs)
    lines = (file.text or "").splitlines() if file else []
    found = [
        [line.partition(" ")[2] for line in lines if line.startswith(f"{kind} ")]
        for kind in ("entrypoint", "command")
    ]
    expected = [before.get(kind) or [] for kind in ("Entrypoint", "Cmd")]
    return _equal(
        "words after the entrypoint",
        *(" and ".join(map(_shown, words)) for words in (expected, found)),
    )


def _equal(subject: str, expected: str, found: str) -> Check:
    return Check.of("contract", subject, expected, found, expected == found)


def _shown(words: list[str]) -> str:
    return json.dumps(words) if words else "none"


def driver_of(contents: Contents) -> str | None:
    """The oldest driver that the image's CUDA runs with; None if it has no CUDA runtime."""
    versions = [int(match[1]) for path in contents.files if (match := RUNTIME_LIBRARY.search(path))]
    return layout.OLDEST_DRIVERS.get(max(versions, default=0))


def _driver(recipe: Recipe, contents: Contents) -> Check:
    needed = driver_of(contents)
    oldest, found = recipe.cuda.driver, "no libcudart of a known CUDA in the image"
    if oldest is None:
        found = f"{needed} or newer" if needed else found
        return Check.of("contract", "driver", "a known CUDA", found, needed is not None)
    enough = needed is not None and not is_older(oldest, needed)
    found = f"its CUDA needs {needed}" if needed else found
    return Check.of("contract", "driver", f"runs with {oldest}", found, enough)


def check_texts(context: Context) -> Iterator[Check]:
    """No label, variable or build argument is empty."""
    contents = context.added
    labels = contents.config.get("Labels") or {}
    empty = [f"label {name}" for name, text in labels.items() if not text]
    empty += [f"environment {name}" for name, text in contents.environment.items() if not text]
    for number, step in enumerate(contents.image.get("history") or [], 1):
        arguments = arguments_of(str(step.get("created_by", "")))
        empty += [f"argument {name} of step {number}" for name, text in arguments if not text]
    subject = "labels, environment and build arguments"
    yield Check.of("contract", subject, "none is empty", "; ".join(empty) or "none", not empty)


def check_secrets(context: Context) -> Iterator[Check]:
    """No layer, label, variable or build argument has a secret."""
    contents = context.added
    found = found_in(contents)
    yield context.rules.check("secrets", "files of every layer", "none", found)
    texts = list(found_in_configuration(contents.image))
    subject = "environment, labels and history"
    yield Check.of("secrets", subject, "none", "; ".join(texts) or "none", not texts)


def check_layers(context: Context) -> Iterator[Check]:
    """The sizes of each added layer."""
    added = context.added.layers
    for number, layer in enumerate(added, len(context.contents.layers) - len(added) + 1):
        found = (
            f"{layer.size / MB:.1f} MB stored, {layer.unpacked / MB:.1f} MB unpacked, "
            f"{layer.hidden / MB:.1f} MB of it hidden: {layer.created_by[:120] or 'unknown'}"
        )
        limit = f"at most {MOST_HIDDEN} MB that later layers remove or replace"
        few = layer.hidden <= MOST_HIDDEN * MB
        yield Check.of("layers", f"layer {number}", limit, found, few)


def check_budget(context: Context) -> Iterator[Check]:
    """The limits of the image."""
    budget, contents = context.recipe.budget, context.contents
    for what, most, size in (
        ("to download", budget.download, contents.download_size),
        ("unpacked", budget.unpacked, contents.unpacked_size),
    ):
        if most is not None:
            found = f"{size / MB:.1f} MB"
            yield Check.of("budget", what, f"at most {most} MB", found, size <= most * MB)


def check_times(context: Context) -> Iterator[Check]:
    """The times of the files in the added layers, and of the steps of the history.

    The time of the newest input is the image's own (``created``).  The history of an image
    that extends another one is in part the others'.
    """
    contents, added = context.contents, context.added
    epoch = epoch_of(contents.image.get("created"))
    newer = [
        (file.path, f"{file.path} is of {_date(file.modified)}")
        for layer in added.layers
        for file in layer.files
        if file.modified > epoch and file.path not in MOUNTED
    ]
    expected, rules = f"none after {_date(epoch)}", context.rules
    yield rules.check("times", f"files of {len(added.layers)} layers", expected, newer)
    steps = [] if context.subject.extended else contents.image.get("history") or []
    later = [
        ("", f"{str(step.get('created_by', ''))[:60]} is of {step['created']}")
        for step in steps
        if epoch_of(step.get("created")) > epoch
    ]
    yield rules.check("times", f"{len(steps)} steps of the history", expected, later)


def _date(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"


# Check: the programs that an image starts exist; the first is the entrypoint, which refuses to run
# without a card; the steps that patch the engine at start succeed.

KIND = "entrypoint"
TIMEOUT = 60.0  # seconds, beside the time of the steps at start
STEPS_ONLY = "BUILDER_START=only"
SAYS = "start: stopping before"  # the interpreter of the steps, at their end
LINES = 3  # what is missing, what to do, how to use the CPU
(CPU,) = (f"{name}={value}" for name, value in layout.CPU.items())
# Where NVIDIA's runtime is the engine's default, "void" makes it leave the container alone
# (NVIDIA Container Toolkit, "Specialized Configurations with Docker").
NO_GPU = "--env=NVIDIA_VISIBLE_DEVICES=void"


class _Needs(BaseModel):
    recipe: str | None
    code: tuple[str, ...]
    driver: str | None


class _Report(BaseModel):
    """The output of ``--check --json``, as far as it is looked at here."""

    version: Literal[1]
    usable: bool
    lines: tuple[str, ...]
    image: _Needs


def check_static(context: Context) -> Iterator[Check]:
    """The entrypoint needs no library of the image."""
    file = context.contents.files.get(LAYOUT.entrypoint)
    expected, found = "a static program", "no such program"
    if file and file.elf:
        libraries = ", ".join(filter(None, [file.elf.interpreter, *file.elf.needed]))
        found = f"it needs {libraries}" if libraries else expected
    yield Check.of(KIND, LAYOUT.entrypoint, expected, found, found == expected)


def engine_of(contents: Contents) -> list[str]:
    """The words that start the engine, without the entrypoint of ours (``entrypoint.c``)."""
    config = contents.config
    words, command = config.get("Entrypoint") or [], config.get("Cmd") or []
    if words[:1] != [LAYOUT.entrypoint]:
        return [*words, *command]
    engine = list(takewhile(lambda word: word != layout.SEPARATOR, words[1:]))
    if not engine:
        needs = contents.files.get(LAYOUT.needs)
        lines = [line.partition(" ") for line in ((needs and needs.text) or "").splitlines()]
        engine = [word for kind, _, word in lines if kind == "entrypoint"]
        command = command or [word for kind, _, word in lines if kind == "command"]
    return [*engine, *command]


def check_programs(context: Context) -> Iterator[Check]:
    """The programs of the entrypoint, of the steps at start and of the health check can be
    started."""
    contents, config = context.contents, context.contents.config
    engine = engine_of(contents)
    if (config.get("Entrypoint") or [""])[0] == LAYOUT.entrypoint:
        for each in (LAYOUT.entrypoint, LAYOUT.probe):
            yield from _started(context, each, [each])
    if engine or context.subject.recipe is not None:
        first = (config.get("Entrypoint") or [""])[0] != LAYOUT.entrypoint
        yield from _started(context, "the engine's program", engine, by_docker=first)
    if engine[1:2] == [LAYOUT.start] and (plan := contents.files.get(LAYOUT.start_plan)):
        words = json.loads(plan.text or "{}").get("entrypoint") or []
        yield from _started(context, "the program after the steps", words)
    kind, *test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if kind != "NONE":
        words = ["/bin/sh", "-c", *test] if kind == "CMD-SHELL" else test
        yield from _started(context, "the health check's program", words, by_docker=True)


def _started(
    context: Context, subject: str, words: Sequence[str], *, by_docker: bool = False
) -> Iterator[Check]:
    start = followed(words, context.contents, by_docker=by_docker)
    faults = [(start.at, start.fault)] if start.fault else []
    chain = " starts ".join(start.chain)
    expected = "exists, and the image's user can execute it"
    yield context.rules.check(KIND, subject, expected, faults, chain)
    if start.unknown:
        yield Check.skipped(KIND, f"{subject}: what follows it", "is known", start.unknown)


def check_entry(context: Context) -> Iterator[Check]:
    """Start the image without a GPU, and let it print its findings.  Raises ``UntriedError``.

    It decides on a card with ``--check`` as it does before it starts the engine, except where
    BUILDER_CPU is set: one container answers both questions.
    """
    contents, reference = context.contents, context.subject.reference
    words = contents.config.get("Entrypoint") or []
    if words[:1] != [LAYOUT.entrypoint]:
        expected = f"starts with {LAYOUT.entrypoint}"
        yield Check.of(KIND, "the image", expected, " ".join(words) or "no entrypoint", False)
        return
    program, *engine = words
    arguments = [*engine, "--check", "--json"]
    done = containers.run(reference, arguments, entrypoint=program, timeout=TIMEOUT, extra=[NO_GPU])
    try:
        report = _Report.model_validate_json(done.output)
    except ValidationError as error:
        why = f"{error.error_count()} faults in: {done.output.strip()[:200]}"
        yield Check.of(KIND, "--check --json", "a report of the entrypoint", why, False)
        return
    found = f"exit status {done.status}: {' | '.join(report.lines)}"
    if report.usable:
        found += "; it claims that a card is there"
    cpu = CPU in (contents.config.get("Env") or [])
    if cpu:
        found += f"; the image sets {CPU}"
    lines = len(report.lines) == LINES
    passed = done.status == layout.NO_CARD and lines and not report.usable and not cpu
    expected = f"exit status {layout.NO_CARD} and {LINES} lines"
    yield Check.of(KIND, "a start without a card", expected, found, passed)
    recipe, image = context.recipe, report.image
    code = tuple(ENGINES[recipe.family].machine_code(recipe))
    expected = _needs(recipe.name, code, recipe.cuda.driver)
    driver = image.driver if recipe.cuda.driver else None
    found = _needs(image.recipe or "no recipe", image.code, driver)
    yield Check.of(KIND, "--check --json", expected, found, found == expected)


def _needs(name: str, code: Sequence[str], driver: str | None) -> str:
    parts = [name, f"code {' '.join(code) or 'not known'}"]
    return ", ".join([*parts, *([f"driver {driver}"] if driver else [])])


def check_steps(context: Context) -> Iterator[Check]:
    """The entrypoint after the steps is the engine's own, and the steps pass without a GPU."""
    recipe, extended = context.recipe, context.subject.extended
    if not recipe.start:
        return
    file = context.contents.files.get(LAYOUT.start_plan)
    plan = json.loads(file.text or "{}") if file else {}
    expected = (extended.config if extended else {}).get("Entrypoint") or []
    found = plan.get("entrypoint") or []
    shown = json.dumps(expected), json.dumps(found)
    yield Check.of("start", "the entrypoint after the steps", *shown, found == expected)
    started = containers.run(
        context.subject.reference,
        recipe.image.entrypoint[1:],
        entrypoint=recipe.image.entrypoint[0],
        timeout=TIMEOUT + sum(step.seconds for step in recipe.start),
        # The patches are written into the container's own layer.
        extra=("--read-only=false", f"--env={STEPS_ONLY}"),
    )
    lines = started.output.strip().splitlines()
    found_status = f"exit status {started.status}: {' | '.join(lines[-3:])}"
    passed = started.status == 0 and SAYS in started.output
    yield Check.of("start", "the steps before the engine", "exit status 0", found_status, passed)


# Check: Python imports the server's modules, without a card and without a network.
#
# vLLM 0.33.0 takes 17 s and 1.1 GiB for it on two cores, vLLM 0.20.2 11 s.

IMPORTS = "imports"
IMPORT_TIMEOUT = 600.0  # seconds
DONE = "builder: imported "
RUNS = 4  # the program itself runs when it is imported, as an unguarded __main__ does
ENDS = "it ends with status "
UNKNOWN = 3  # the package has no server where the family knows it
KILLED = 137  # 128 + SIGKILL: the kernel's, where memory is short
# The user's caches are where it may write; nothing is asked of the Hub.
OPTIONS = ("--read-only=false", NO_GPU, "--env=HOME=/tmp", "--env=HF_HUB_OFFLINE=1")
# The errors of modules that ask for the card, or load the driver, when they are imported.
NO_CARD = re.compile(
    r"lib(?:cuda|nvidia-ml|nvcuvid)\.so|no NVIDIA driver|No CUDA GPUs|NVIDIA driver on your system"
    r"|no CUDA-capable device|CUDA driver|CUDA_ERROR|infer device type|NVMLError",
    re.IGNORECASE,
)
IMPORT_CODE = """
import importlib, importlib.util, os, runpy, sys, traceback
module, file, *modules = sys.argv[1:]
sys.argv[1:] = []
def exists(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            return False
        raise
ends = ""
def start(function, *arguments, **options):
    global ends
    try:
        function(*arguments, **options)
    except SystemExit as error:
        if isinstance(error.__context__, ImportError):
            raise
        ends = "it ends with status %s when it is imported without its arguments" % error.code
try:
    if not module:
        sys.path[:] = filter(None, sys.path)  # scripts are not given the working directory
    if file:
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
        start(runpy.run_path, file, run_name="imported")
    if module:
        importlib.import_module(module)
        if exists(module + ".__main__"):
            start(importlib.import_module, module + ".__main__")
    known = [name for name in modules if exists(name)]
    if modules and not known:
        print("none of these modules exists: " + ", ".join(modules), flush=True)
        os._exit(1 if any(exists(".".join(name.split(".")[:2])) for name in modules) else 3)
    for name in known:
        importlib.import_module(name)
    if ends:
        print("\\n" + ends, flush=True)
        os._exit(4)
    print("\\nbuilder: imported " + " ".join(filter(None, [file, module, *known])), flush=True)
    os._exit(0)
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
"""


def check_imports(context: Context) -> Iterator[Check]:
    """Import what the entrypoint starts with Python, and the modules of the family's server."""
    start = followed(engine_of(context.contents), context.contents)
    modules = ENGINES[context.recipe.family].modules
    if not (start.module or start.file or modules) or start.fault:
        return
    what, expected = " ".join(filter(None, [start.file, start.module, *modules])), "can be imported"
    program, *options = start.python or ("python3",)
    arguments = [*options, "-c", IMPORT_CODE, start.module, start.file, *modules]
    path = start.file or f"/{(start.module or modules[0]).replace('.', '/')}.py"
    printed = ""
    for extra in _tries(context):
        done = containers.run(
            context.subject.reference,
            arguments,
            entrypoint=program,
            timeout=IMPORT_TIMEOUT,
            extra=[*OPTIONS, *extra],
        )
        printed = done.output.strip()
        if done.status == 0 and DONE in printed:
            yield Check.of(IMPORTS, what, expected, printed.rpartition(DONE)[2], True)
        elif done.status == KILLED:
            yield Check.untried(IMPORTS, what, expected, "it was killed: too little memory?")
        elif done.status == RUNS:
            why = next(line for line in printed.splitlines() if line.startswith(ENDS))
            yield Check.skipped(IMPORTS, what, expected, why)
        elif done.status == UNKNOWN and not start.python:
            yield Check.skipped(IMPORTS, what, expected, _error(printed))
        elif not NO_CARD.search(_error(printed)):
            found = f"exit status {done.status}: {excerpt(_error(printed))}"
            yield context.rules.check(IMPORTS, what, expected, [(path, found)])
        else:
            continue
        return
    why = f"it cannot be imported without a card: {excerpt(_error(printed))}"
    yield Check.skipped(IMPORTS, what, expected, why)


def _tries(context: Context) -> Iterator[list[str]]:
    yield []
    if context.subject.devel is not None:
        stub = context.work / "imports-libcuda.so.1"
        copy_out(context.subject.devel, DRIVER_STUB, stub)
        folder = "/run/driver"
        found = context.contents.environment.get("LD_LIBRARY_PATH", "")
        yield [
            f"--volume={stub}:{folder}/libcuda.so.1:ro",
            f"--env=LD_LIBRARY_PATH={':'.join(filter(None, [folder, found]))}",
        ]


def _error(printed: str) -> str:
    return printed.rpartition("\n  ")[2].partition("\n")[2] or printed[-2000:]
