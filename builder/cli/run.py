"""``builder run``."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from builder.cli import options
from builder.cli.options import catalog_at, contexts, flag, one_context, option, user_settings
from builder.cli.terminal import can_ask, err, line, log, pairs, print_json, table
from builder.core import sizes
from builder.core.errors import PROGRAM, FitError, WorldError
from builder.core.files import atomic_write, require_writable
from builder.core.log import duration
from builder.core.platforms import platform_of

if TYPE_CHECKING:
    from builder.build.build import BuildSession
    from builder.build.reports import EnginePaths
    from builder.presets.fit import Fit, FitTrial
    from builder.presets.images import Launch
    from builder.presets.models import Progress
    from builder.presets.run import Running
    from builder.presets.service import Service

# Shared by ``builder run`` and ``builder export``: a preset or recipe, its models, its address.

LOOPBACK = "127.0.0.1"  # presets.service.HOST, which is slow to import


def _checked_policy(value: str) -> str:
    if re.fullmatch(r"no|always|unless-stopped|on-failure(:\d{1,6})?", value):
        return value
    raise typer.BadParameter(f"{value} is none of no, always, unless-stopped, on-failure[:N]")


Target = Annotated[
    str,
    options.argument(
        "PRESET|RECIPE",
        "A preset (see `builder list --presets`), its short name, or a recipe.",
        autocompletion=options.presets_and_recipes,
    ),
]
Options = Annotated[
    list[str] | None,
    options.argument(
        "OPTION", "More options for the engine, after --. They win over the preset's own."
    ),
]
ModelOption = Annotated[
    Path | None,
    option(
        "--model FILE",
        "The model: a GGUF, or the directory of a model. Default: the preset's, from the models "
        "directory (BUILDER_MODELS_DIR, else ~/models).",
        ...,
    ),
]
DraftOption = Annotated[
    Path | None, option("--draft FILE", "The draft model, instead of the preset's.", ...)
]
ProjectorOption = Annotated[Path | None, option("--mmproj FILE", "The multimodal projector.", ...)]
ContextOption = Annotated[
    str | None,
    option("--context TOKENS", "Size of the context: 65536 or 64K; K is 1024.", ...),
]
PortOption = Annotated[
    int | None,
    option("--port N", "Port of that address. Default: the image's.", ..., min=1, max=65535),
]
ListenOption = Annotated[
    str,
    option(
        "--listen ADDRESS",
        "Address of this machine that the server is published on: 0.0.0.0 is every one, so that "
        "the LAN reaches it. Any but 127.0.0.1 and ::1 needs --api-key-file.",
        ...,
    ),
]
KeyOption = Annotated[
    str | None,
    option(
        "--api-key-file FILE",
        "File with the API key that the server asks for. It is made, with a random key, if it is "
        "not there. none: the server asks for no key.",
        ...,
    ),
]
RestartOption = Annotated[
    str,
    option(
        "--restart POLICY",
        "When Docker starts it again: unless-stopped (also after a reboot), always, "
        "on-failure[:N], no.",
        ...,
        callback=_checked_policy,
    ),
]


def wanted(
    target: str,
    model: Path | None = None,
    draft: Path | None = None,
    mmproj: Path | None = None,
    context: str | None = None,
    port: int | None = None,
    options: list[str] | None = None,
    *,
    key_file: str | None = None,
    **more: Any,
) -> Launch:
    """What these options start: a short name means a preset of this machine, or of ``card``."""
    from builder.presets.choose import resolved
    from builder.presets.images import OPEN, LaunchRequest, prepared

    given = {"model": model, "draft": draft, "mmproj": mmproj}
    size = one_context(context) if context is not None else None
    named = {place: file for place, file in given.items() if file is not None}
    if key_file not in {None, OPEN}:
        key_file = str(Path(key_file or "").expanduser().absolute())
    made = LaunchRequest(target, named, size, port, tuple(options or ()))
    asked = replace(made, key_file=key_file or "", **more)
    recipes, loaded = catalog_at(), user_settings()
    found, size = resolved(
        recipes, target, loaded.state_dir, log, card=asked.card, context=size, cpu=asked.cpu
    )
    return prepared(recipes, replace(asked, target=found, context=size), loaded, log)


# ``builder run``.


def run(
    target: Target,
    options: Options = None,
    *,
    model: ModelOption = None,
    draft: DraftOption = None,
    mmproj: ProjectorOption = None,
    context: ContextOption = None,
    card: str = option(
        "--card CARD",
        "Card of this machine: 5090-laptop, ... Default: the first that suffices. With --dry-run, "
        "any card of cards/.",
        "auto",
        autocompletion=options.known_cards,
    ),
    port: PortOption = None,
    listen: ListenOption = LOOPBACK,
    key_file: KeyOption = None,
    restart: RestartOption = "unless-stopped",
    yes: bool = flag(
        "--yes -y",
        "Build or pull a missing image and download missing models to the models directory, "
        "without asking; an interrupted download continues.",
    ),
    old: bool = flag(
        "--old",
        "Start the image that Docker or the registry has, although it is of another state of the "
        "recipe.",
    ),
    cpu: bool = flag("--cpu", "Run on the CPU: slow, and needs no GPU."),
    printed: bool = flag(
        "--dry-run", "Print the `docker run` command; build, download and start nothing."
    ),
    seconds: float = option("--timeout SECONDS", "Time limit until it is healthy.", 900, min=1),
) -> None:
    """Run a preset on this machine: a server with its model, options and GPU.

    The short name of a model, qwen3.6-27b, means the preset that `builder choose` recommends for
    this machine; qwen3.6-27b:dflash means the best preset of that kind.

    First the GPU, its driver and memory, the engine, the image, the models, the port, a container
    of that name and the disk space are checked. The image has to be of the recipe as it is now, by
    its build key. If only the image or models are missing, one question lists the builds and
    downloads.
    Then the container starts; its log is shown until the server is healthy. It keeps running in the
    background, also after a reboot. `builder ps`, `logs`, `stop` and `update` look after it.

    The exit code is 4 if the machine lacks something, and 8 if the server does not start.
    """
    from builder.presets import exports
    from builder.presets import run as server
    from builder.presets.images import described
    from builder.presets.run import refusal

    given = (target, model, draft, mmproj, context, port, options)
    job = wanted(
        *given, listen=listen, key_file=key_file, card=card, restart=restart, cpu=cpu, old=old
    )
    unfit = refusal(job, card)
    if unfit is not None and not printed:
        raise unfit
    if printed:
        service = described(job)
        for each in (*service.incomplete, *service.missing, *service.caveats):
            log(each)
        if unfit is not None:
            log(f"warning: {unfit.what}: {unfit.why}")
        typer.echo(exports.line(service))
        return
    with download_bars() as progress:
        build, agrees = build_image, partial(agreed, yes=yes)
        started = server.launch(job, card, seconds, build=build, progress=progress, agrees=agrees)
    print_started(started)


def build_image(recipe: str) -> None:
    """Build and check the image of a recipe for the engine's platform, else its only image."""
    from builder.build import build
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.docker import engine as docker

    with reporter() as progress:
        session = build_session(progress, gpu_test=GpuTest())
        plans = session.plans(recipe)
        here = platform_of(docker.engine().architecture)
        plans = tuple(plan for plan in plans if plan.platform == here) or plans
        build.require_all(plans, build.build_all(plans, session))


def agreed(lines: Sequence[str], *, yes: bool) -> bool:
    """Show the steps, and ask a person at a terminal; elsewhere nobody agrees."""
    if not (yes or can_ask()):
        return False
    log("This machine has to")
    for each in lines:
        log(f"  {each}")
    return yes or typer.confirm("Go on?", default=True, err=True)


def print_started(started: Running) -> None:
    """The address of a server, how to ask it, and how to look after it."""
    from builder.presets.servers import has_page

    service, flavor = started.service, started.flavor
    if started.seconds is None:
        log(f"{service.name} runs already")
    else:
        log(f"healthy after {started.seconds:.1f} s")
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    chat, kind = f"{service.url}{flavor.chat}", "Content-Type: application/json"
    file = service.key_file
    key = f' -H "Authorization: Bearer $(cat {quote(file)})"' if file else ""
    line(chat.removesuffix("/chat/completions"))
    for network in _networks(service):
        line(f"  LAN    {network}{flavor.chat.removesuffix('/chat/completions')}")
    line(f"  page   {f'{service.url}/' if has_page(service) else 'this engine has no web page'}")
    line(f"  ask    curl {chat} -H '{kind}'{key} -d '{body}'")
    line(f"  log    {PROGRAM} logs {service.run}")
    line(f"  stop   {PROGRAM} stop {service.run}")


def _networks(service: Service) -> Iterator[str]:
    """The URL of a server for other machines, by the address that this one reaches them from."""
    if service.listen not in {"0.0.0.0", "::"}:  # noqa: S104
        return
    from builder.presets.service import in_url

    is_6 = service.listen == "::"
    family, far = (socket.AF_INET6, "2001:db8::1") if is_6 else (socket.AF_INET, "192.0.2.1")
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((far, 9))  # RFC 3849 and 5737: nothing is sent
        yield f"http://{in_url(probe.getsockname()[0])}:{service.published}"


@contextmanager
def download_bars() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line for each file."""
    from rich import progress

    tasks: dict[tuple[str, int], progress.TaskID] = {}  # repositories may share a file's name
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn())
    ends = (progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
    size_column = progress.DownloadColumn()
    bars = progress.Progress(*columns, size_column, *ends, console=err(), transient=True)
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


# The keys of ``exports.FORMATS``, which are slow to import: help names them.
Format = Literal["compose", "docker-run", "helm", "kubernetes", "llama-swap", "quadlet"]


def export(
    target: Target,
    options: Options = None,
    *,
    model: ModelOption = None,
    draft: DraftOption = None,
    mmproj: ProjectorOption = None,
    context: ContextOption = None,
    port: PortOption = None,
    listen: ListenOption = LOOPBACK,
    key_file: KeyOption = None,
    restart: RestartOption = "unless-stopped",
    card: str = option(
        "--card CARD",
        "Card of cards/ that a preset has to run on, and for which a short name is resolved: "
        "5090-laptop, ... Default: the cards of this machine.",
        "auto",
        autocompletion=options.known_cards,
    ),
    cpu: bool = flag("--cpu", "Run on the CPU: slow, and needs no GPU."),
    form: Format = option(
        "--format", "Program that reads the files; docker-run is a shell script.", "docker-run"
    ),
    output: Path | None = options.output_option(
        "Write the files to this directory. Default: a single file is printed."
    ),
    force: bool = flag("--force", "Replace files that are there and differ."),
    allow_incomplete: bool = flag(
        "--allow-incomplete",
        "Write files that cannot start yet; their first lines name the missing parts.",
    ),
    dry_run: bool = flag(
        "--dry-run", "Print the files; write nothing, and warn where it would be refused."
    ),
) -> None:
    """Write files that start a preset: for Compose, Podman, Kubernetes.

    A short name means the preset that `builder choose` recommends for the card.

    The files have the image by digest, the health check, the GPU, the models directory
    (BUILDER_MODELS_DIR, else ~/models) and the reason for each option as a comment. Nothing is
    started or downloaded; the Hub is asked for missing file names.

    The exit code is 4 if the image exists nowhere, or a model's file name is not known, and 15 if
    the preset does not run on the card.
    """
    from builder.presets.exports import FORMATS
    from builder.presets.images import described, write_key
    from builder.presets.run import refusal

    given = (target, model, draft, mmproj, context, port, options)
    job = wanted(*given, listen=listen, key_file=key_file, card=card, restart=restart, cpu=cpu)
    unfit = refusal(job, card)
    if unfit and not dry_run:
        raise unfit
    service = described(job)
    if service.incomplete and not (allow_incomplete or dry_run):
        what, why = f"files for {target} would not start", "\n".join(service.incomplete)
        hint = "do that first; or write files that you complete by hand: --allow-incomplete"
        raise WorldError(what, why, hint)
    if unfit:
        log(f"warning: {unfit.what}: {unfit.why}")
    files = FORMATS[form].files(service)
    if output is None and len(files) > 1 and not dry_run:
        raise typer.BadParameter(f"{form} has several files: give --output DIR")
    copy = job.key_copy if job.key else None
    if not dry_run and write_key(job) and job.key_copy != copy:
        files = FORMATS[form].files(described(job))  # the key is new
    if output is None or dry_run:
        for name, text in files.items():
            typer.echo(f"# {name}\n{text}" if len(files) > 1 else text, nl=False)
        return
    _write(files, output, force=force)
    log(f"written to {output}: {', '.join(sorted(files))}")
    log(f"next, in that directory: {FORMATS[form].usage(service)}".replace("\n", "\n  "))


def _write(files: Mapping[str, str], output: Path, *, force: bool) -> None:
    another = "name another directory: --output DIR"
    require_writable(output, another)
    try:
        there = {output / name: text for name, text in files.items() if (output / name).exists()}
        differ = [
            str(file)
            for file, text in there.items()
            if not file.is_file() or file.read_bytes() != text.encode()
        ]
        if differ and not force:
            raise WorldError(
                f"cannot replace {', '.join(differ)}",
                "it has other contents: it was edited, or is of another export",
                f"{another}, or --force",
            )
        for name, text in files.items():
            with atomic_write(output / name) as temporary:
                temporary.write_text(text, "utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise WorldError(f"cannot write to {output}", why, another) from error


# ``builder fit``.


MODEL = "FILE|URL|REPO:FILE"
FOLDER = f"{MODEL}|FOLDER|REPO"
MEMORY = ("memory", "context")  # the figures of a card that decide whether a model fits


def fit(
    target: str = options.argument(
        "RECIPE|IMAGE",
        "A recipe, whose image is tried, or an image of a recipe.",
        autocompletion=options.recipes,
    ),
    options: list[str] | None = options.argument(
        "OPTION", "More options for the engine, after --.", None
    ),
    *,
    model: str = option(
        f"--model {FOLDER}",
        "GGUF to try: a file, a URL, or a file of a repository on the Hugging Face Hub. For "
        "engines from wheels: a model folder, or a repository. No weights are read but their "
        "headers. HF_ENDPOINT and HF_TOKEN are used as by the Hub's client.",
        ...,
    ),
    draft: str | None = option(f"--draft {MODEL}", "Draft model for speculative decoding."),
    mmproj: str | None = option(f"--mmproj {MODEL}", "Multimodal projector."),
    card: list[str] = option(
        "--card CARD",
        "Card to simulate: 5090, 5090-laptop, 5060-ti-16gb, ... Twice: two cards.",
        ...,
        autocompletion=options.known_cards,
    ),
    context: str | None = option(
        "--context TOKENS[,...]",
        "Sizes of the context to try; K is 1024, and 262K is 256K: 262144.",
        show_default="32K,64K,128K,262K; for engines from wheels the model's maximum",
    ),
    search: bool = option(
        "--search/--no-search",
        "Search the largest context that fits, in steps of 1024 tokens.",
        True,
    ),
    seconds: float = option("--timeout SECONDS", "Time limit until a server is ready.", 900, min=1),
    as_json: options.JsonOption = False,
) -> None:
    """Try how much context of a model fits on a card, without the card.

    The image's real server starts on a simulated card, with the real header of the model and a hole
    for its weights, and answers a long request. For each context, the table has the peak by kind
    and the refused allocation. The exit code is 15 if no context fits, and 8 if the engine fails
    for another reason.
    """
    from builder.cli.session import build_session
    from builder.presets import cards
    from builder.presets.fit import FitRequest, OptionError
    from builder.presets.fit import fit as try_on_cards

    sizes_to_try = contexts(context) if context is not None else []
    # The simulated cards are for a PC.
    session = build_session(platform="linux/amd64")
    found_cards = [cards.load(session.catalog.root, name) for name in card]
    given = (model, draft, mmproj, found_cards, sizes_to_try, tuple(options or ()))
    wanted = FitRequest(*given, search, seconds)
    try:
        found = try_on_cards(session, target, wanted)
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint="OPTION") from error
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print_fit(found)
    _require_fits(found)


def _require_fits(found: Fit) -> None:
    from builder.presets.fit import advice

    if found.largest is None:
        what = f"{found.model['name']} does not fit on {_cards(found)}"
        raise FitError(what, found.trials[0].why, advice(found))


def _print_fit(found: Fit) -> None:
    kinds = list(dict.fromkeys(kind for trial in found.trials for kind in trial.by_kind))
    places = ("card",) if len(found.cards) > 1 else ()
    header = ("context", "", *places, "peak", *kinds, "CUDA context", "why not")
    table(header, [row for trial in found.trials for row in _rows(trial, kinds)])
    unverified = {
        f"{card['name']}: {', '.join(named)}": None
        for card in found.cards
        if (named := [figure for figure in MEMORY if figure in card["unverified"]])
    }
    line("")
    pairs(
        {
            "largest": largest(found),
            "warning": warning(found),
            "model": _model(found.model),
            "draft model": _model(found.draft),
            "projector": _model(found.projector),
            "cards": _cards(found),
            "unverified": "; ".join(unverified),
            "engine's log": found.trials[-1].stated,
            "paths": _paths(found.trials),
            "took": duration(found.seconds),
        }
    )


def largest(found: Fit) -> str:
    """The largest context that fits, and the reason that no larger one does."""
    if found.largest is None:
        return "none"
    refused = [each.context for each in found.trials if each.context > found.largest]
    why = f"{refused[0]} does not fit" if refused else "the largest that was tried"
    if found.largest == found.model["context"]:
        why = "the model's maximum"
    return f"{found.largest} tokens: {why}"


def warning(found: Fit) -> str:
    """A warning about contexts that the model does not have, that were not filled, for which the
    card had just enough room, or that do not fit although a larger one does."""
    maximum, fitting = found.model["context"], [each for each in found.trials if each.fits]
    beyond = [str(each.context) for each in fitting if maximum and each.context > maximum]
    texts = [f"more than the model's maximum of {maximum}: {', '.join(beyond)}"] if beyond else []
    part = [f"{each.filled} of {each.context}" for each in fitting if not each.is_filled]
    texts += [f"the requests filled only {', '.join(part)} tokens"] if part else []
    again = [each.context for each in fitting if each.retried]
    if again:
        texts.append(f"from {min(again)} on the engine had to free memory while it answered")
    failing = [each.context for each in found.trials if not each.fits]
    smaller = [str(context) for context in failing if context < (found.largest or 0)]
    if smaller:
        texts.append(f"{', '.join(smaller)} tokens do not fit, although {found.largest} do")
    return "; ".join(texts)


def _model(file: Mapping[str, Any] | None) -> str:
    if file is None:
        return ""
    longest = f", the model's maximum: {file['context']} tokens" if file["context"] else ""
    size, read = sizes.shown(file["size"]), sizes.shown(file["read"])
    return f"{file['name']}, {size}: {read} read{longest}"


def _paths(trials: Sequence[FitTrial]) -> str:
    from simulator.work import texts_by_work

    *_, last = [trial for trial in trials if trial.fits] or trials
    return "; ".join(f"{work}: {text}" for work, text in texts_by_work(last.paths).items())


def _cards(found: Fit) -> str:
    return " and ".join(f"{card['name']}, {sizes.card(card['memory'])}" for card in found.cards)


def _rows(trial: FitTrial, kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    from simulator.report import mib

    state = "fits" if trial.fits else "does not fit"
    for number, card in enumerate(trial.cards):
        named = (f"{number} {card.name}",) if len(trial.cards) > 1 else ()
        parts = (mib(card.by_kind.get(kind, 0)) for kind in kinds)
        why = trial.why if number == 0 else ""
        yield str(trial.context), state, *named, mib(card.peak), *parts, mib(card.context), why


# ``builder paths``.

CONTEXT = 2048  # tokens with which a model is started, which every model has


def paths(
    recipe: options.RecipeName,
    other: str | None = options.argument(
        "RECIPE",
        "Show what this recipe's image does otherwise.",
        None,
        autocompletion=options.recipes,
    ),
    *,
    model: str | None = option(
        f"--model {FOLDER}", "Start the image's server now, with this model (as for fit) on --card."
    ),
    card: str | None = option(
        "--card CARD",
        "Card to simulate for --model: 5090, 5090-laptop, ...",
        autocompletion=options.known_cards,
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Show which kernels an engine takes for its work on the card.

    The smoke test keeps the names of the kernels that a server starts; with two recipes, the table
    has what differs. With --model, the server is started now.
    """
    from builder.build.reports import paths_of
    from builder.cli.session import build_session

    if (model is None) != (card is None):
        raise typer.BadParameter("--model and --card go together", param_hint="--model")
    recipes, state = catalog_at(), user_settings().state_dir
    names = [recipes.engine(name).recipe.name for name in filter(None, (recipe, other))]
    if model is not None and card is not None:
        session = build_session(platform="linux/amd64")
        found = [_started(session, name, model, card) for name in names]
    else:
        found = [paths_of(recipes, name, state) for name in names]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        if each.kept:
            log(f"{each.recipe}: from trials/, as no record of this machine has its server's start")
        if each.stated:
            line(f"{each.recipe}: {each.stated}")
    if len(found) == 1:
        rows = [
            (model, each.work, each.text, f"{each.launches:,}")
            for model, paths in found[0].by_model.items()
            for each in paths
        ]
        table(("model", "work", "path", "launches"), rows)
    else:
        differences = list(_path_differences(*found))
        table(("model", "work", *names), differences)
        if not differences:
            log("no path differs with the models that both were started with")


def _started(session: BuildSession, name: str, model: str, card: str) -> EnginePaths:
    from builder.build.reports import EnginePaths
    from builder.presets import cards
    from builder.presets.fit import FitRequest, fit

    here = [cards.load(session.catalog.root, card)]
    found = fit(session, name, FitRequest(model, None, None, here, [CONTEXT], search=False))
    _require_fits(found)
    (trial,) = found.trials
    return EnginePaths(name, {found.model["name"]: trial.paths}, trial.stated)


def _path_differences(before: EnginePaths, after: EnginePaths) -> Iterator[tuple[str, ...]]:
    from simulator.work import texts_by_work

    for model in filter(after.by_model.__contains__, before.by_model):
        # Without the order, which is by launches.
        taken = [
            sorted(each.by_model[model], key=lambda path: path.text) for each in (before, after)
        ]
        sides = [texts_by_work(paths) for paths in taken]
        for work in dict.fromkeys([*sides[0], *sides[1]]):
            row = [side.get(work, "none") for side in sides]
            if row[0] != row[1]:
                yield model, work, *row
