"""``builder kernels``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import options
from builder.cli.fit import FOLDER, require_fits
from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JsonOption,
    OnePlatformOption,
    RecipeName,
    catalog_at,
    checked_capability,
    output_option,
    reference_option,
)
from builder.cli.terminal import filled, first_rows, line, log, out, pairs, print_json, table
from builder.core import sizes
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from builder.build.compiler_table import Table
    from builder.build.session import BuildSession
    from builder.build.trials import EnginePaths
    from simulator.ledger import Kernel, Ledger
    from simulator.work import WorkPath

DIGITS = 12  # of a digest
FIGURES = ("registers", "spills", "local", "shared", "threads", "cluster", "size")


def kernels(
    image: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE",
            autocompletion=options.recipes,
            help="Name of a recipe, or any image.",
        ),
    ],
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--capability",
            metavar="MAJOR.MINOR",
            callback=checked_capability,
            help="Compute capability of the card, for which the driver chooses the code.",
        ),
    ] = "12.0",
    library: Annotated[
        list[str] | None,
        typer.Option(
            "--library",
            metavar="NAME",
            help="Only libraries whose path ends in NAME, with or without a version. May be "
            "repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List every kernel of an image with its resources.

    The figures come from the machine code; no GPU is needed and nothing is run. *registers*
    and *local* memory are counted for each thread; *spills* are the bytes of the instructions that
    move registers to local memory and back; *shared* is the static shared memory of a block; *size*
    is the machine code in bytes. Kernels that spill most come first. `builder compare` compares the
    kernels of two images.

    A terminal gets the first kernels and, last, a summary of each library; a pipe gets every
    kernel.

    *idle* kernels compute nothing: their body is empty, or only traps or prints a message. The exit
    code is 8 if no kernel of the image computes on the card.
    """
    from builder.build.lookup import ledger_of
    from builder.cli.session import build_session
    from simulator.selection import Capability

    session = build_session(catalog, platform=platform)
    ledger = ledger_of(session, image, Capability.parse(card))
    print_ledger(_runnable(_only(ledger, library)), as_json=as_json)


def _only(ledger: Ledger, names: Sequence[str] | None) -> Ledger:
    from builder.core.errors import UntriedError

    if not names:
        return ledger
    found = tuple(
        each
        for each in ledger.libraries
        if any(each.path.endswith(name) or each.name == name for name in names)
    )
    if not found:
        raise UntriedError(
            f"{ledger.image} has no library {' or '.join(names)} with GPU code",
            "it has " + ", ".join(each.path for each in ledger.libraries),
            "name one of these, by its file name or its path, with --library",
        )
    return replace(ledger, libraries=found)


def _runnable(ledger: Ledger) -> Ledger:
    """The same ledger; raises ``UntriedError`` where the card can run none of its code."""
    from builder.core.errors import UntriedError

    found = [kernel for library in ledger.libraries for kernel in library.kernels]
    if not all(kernel.idle for kernel in found):
        return ledger
    if found:
        raise UntriedError(
            f"no kernel of {ledger.image} computes on a card of compute capability {ledger.card}",
            f"its {len(found)} kernels for it are empty, trap, or print a message",
            "name the compute capability of another card with --capability",
        )
    code = sorted({code for library in ledger.libraries for code in library.offered})
    raise UntriedError(
        f"no kernel of {ledger.image} runs on a card of compute capability {ledger.card}",
        f"its code is for {', '.join(code)}" if code else "",
        "name the compute capability of another card with --capability",
    )


def print_ledger(ledger: Ledger, *, as_json: bool) -> None:
    """Print the libraries and kernels of an image; a terminal gets the libraries last."""
    from simulator.work import demangled, short

    rows = [(library, kernel) for library in ledger.libraries for kernel in library.kernels]
    rows.sort(key=lambda row: (-(row[1].spills or 0), -row[1].local, -row[1].registers))
    if as_json:
        found = [
            {"library": library.path, "mangled": kernel.name}
            | asdict(kernel)
            | {"name": demangled(kernel.name), "spills": kernel.spills}
            for library, kernel in rows
        ]
        libraries = [
            {"path": each.path, "code": each.codes} | ({"ptx": each.ptx} if each.ptx else {})
            for each in ledger.libraries
        ]
        names = {"image": ledger.image, "digest": ledger.digest, "capability": str(ledger.card)}
        print_json({**names, "libraries": libraries, "kernels": found})
        return
    lines = [
        (
            library.name,
            short(demangled(each.name)),
            *_figures(each),
            each.idle,
            each.digest[:DIGITS],
        )
        for library, each in rows
    ]
    header = ("library", "kernel", *FIGURES, "idle", "digest")
    if out().is_terminal:
        first_rows(header, lines, "more kernel")
        line("")
        _print_libraries(ledger)
    else:
        _print_libraries(ledger)
        line("")
        table(header, lines)


def _print_libraries(ledger: Ledger) -> None:
    rows = []
    for library in ledger.libraries:
        spills = [kernel.spills for kernel in library.kernels if kernel.spills]
        size = sum(kernel.size for kernel in library.kernels)
        codes = ", ".join(f"{count} {code}" for code, count in sorted(library.codes.items()))
        codes += "".join(f", PTX {version}" for version in library.ptx)
        for idle in ("traps", "empty"):
            count = sum(kernel.idle == idle for kernel in library.kernels)
            codes += (
                f", {count} {'only trap or print' if idle == 'traps' else 'empty'}" if count else ""
            )
        figures = (len(library.kernels), len(spills), sum(spills), size)
        rows.append((library.path, codes, *(f"{figure:,}" for figure in figures)))
    header = ("library", "code", "kernels", "spilling", "spills", "size")
    table(header, rows, single_lines=True)


def _figures(kernel: Kernel) -> list[str]:
    """The figures of a kernel for people; a kernel of PTX has none yet."""
    unlimited = {name: getattr(kernel, name) or "" for name in ("threads", "cluster")}
    if not kernel.digest:
        return [str(unlimited["threads"]) if name == "threads" else "" for name in FIGURES]
    spills = "unknown" if kernel.spills is None else kernel.spills
    values = {name: getattr(kernel, name) for name in FIGURES} | unlimited | {"spills": spills}
    return [f"{value:,}" if isinstance(value, int) else value for value in values.values()]


# ``builder paths``.

CONTEXT = 2048  # tokens with which a model is started, which every model has


def paths_paths(
    recipe: RecipeName,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=options.recipes,
            help="Show what this recipe's image does otherwise.",
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar=FOLDER,
            help="Start the image's server now, with this model (as for fit) on --card.",
        ),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=options.known_cards,
            help="Card to simulate for --model: 5090, 5090-laptop, ...",
        ),
    ] = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which path an engine takes for its work on the card: attention, products, KV cache.

    An engine chooses kernels by card, model and options, and falls back to others without a word.
    The smoke test starts its server on a simulated card, with a small model and as each preset,
    and keeps the names of the kernels. Where this machine has no record of it, trials/ has what
    another one kept. With two recipes, the table has what differs. `fit` takes options of the
    engine, and shows the paths, too.

    The exit code is 4 if nobody started the recipe's server on a simulated card. With --model, it
    is 15 if the model does not fit, and 8 if the engine fails for another reason.
    """
    from builder.build.trials import paths_of
    from builder.cli.session import build_session
    from builder.core import settings

    if (model is None) != (card is None):
        raise typer.BadParameter("--model and --card go together", param_hint="--model")
    recipes, state = catalog_at(catalog), settings.load().state_dir
    names = [recipes.engine(name).recipe.name for name in filter(None, (recipe, other))]
    if model is not None and card is not None:
        session = build_session(catalog, platform="linux/amd64")
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
        table(("model", "work", "path", "launches"), list(_rows(found[0])))
    else:
        rows = list(_differences(*found))
        table(("model", "work", *names), rows)
        if not rows:
            log("no path differs with the models that both were started with")


def _started(session: BuildSession, name: str, model: str, card: str) -> EnginePaths:
    """The paths with a model on a card; raises like ``fit``, and ``FitError``."""
    from builder.build.trials import EnginePaths
    from builder.presets import cards
    from builder.presets.fit import FitRequest, fit

    wanted = [cards.load(session.catalog.root, card)]
    found = fit(session, name, FitRequest(model, None, None, wanted, [CONTEXT], search=False))
    require_fits(found)
    (trial,) = found.trials
    return EnginePaths(name, {found.model.name: trial.paths}, trial.stated)


def _rows(found: EnginePaths) -> Iterator[tuple[str, ...]]:
    for model, paths in found.by_model.items():
        for each in paths:
            yield model, each.work, each.text, f"{each.launches:,}"


def _differences(before: EnginePaths, after: EnginePaths) -> Iterator[tuple[str, ...]]:
    """The kinds of work that take other paths with the same model."""
    from simulator.work import texts_by_work

    for model in filter(after.by_model.__contains__, before.by_model):
        # Without the order, which is by launches.
        taken = [sorted(each.by_model[model], key=_text) for each in (before, after)]
        sides = [texts_by_work(paths) for paths in taken]
        for work in dict.fromkeys([*sides[0], *sides[1]]):
            row = [side.get(work, "none") for side in sides]
            if row[0] != row[1]:
                yield model, work, *row


def _text(path: WorkPath) -> str:
    return path.text


# ``builder ptx``.


def ptx(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    builder: BuilderOption = None,
    output: Annotated[
        Path | None,
        output_option(
            "Write the PTX to this new directory: DIGEST.ptx, by the sha256 of the machine code."
        ),
    ] = None,
    published: Annotated[
        str | None,
        reference_option("--from", "Write the PTX that is attached to this image in the registry."),
    ] = None,
    compiles: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Where some PTX is not known, compile the engine again without the compiler "
            "cache. The image stays as it is.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how much of an image's PTX is kept, or write it to a directory.

    nvcc compiles CUDA code to PTX, and the PTX to machine code. The PTX is no part of the image,
    but the kernels can be computed from it on a CPU: simulator/README.md. It is kept while an
    engine is compiled, and attached to the image by `push`. Machine code from an older
    compiler cache has no kept PTX: `--compile` compiles it again. The exit code is 8 if the
    image has no machine code that was compiled by nvcc, and 12 if the registry has no PTX.
    """
    from builder.cli.session import build_session, reporter

    if published is not None:
        if output is None or compiles:
            raise typer.BadParameter("--from needs --output DIR, and takes no --compile")
        _write_published(recipe, catalog, published, platform, output)
        return
    from builder.build import ccache as files
    from builder.build.ccache import of_image
    from builder.build.lookup import Images

    with reporter() as progress:
        session = build_session(catalog, progress, platform=platform, builder=builder)
        plan = session.resolve(recipe)
        kept = of_image(plan, Images(session).require(plan), session, compiles=compiles)
    if output is not None and kept.known:
        files.unpack(kept.file, output)
    size = kept.file.stat().st_size if kept.known else 0
    missing = sorted(kept.missing)
    if as_json:
        print_json(
            {"modules": kept.modules, "missing": missing, "file": str(kept.file), "size": size}
        )
        return
    file = f"{kept.file} ({sizes.shown(size)})" if kept.known else ""
    modules = f"{kept.modules}, the PTX of {kept.known} is known"
    pairs(filled({"modules": modules, "file": file}))
    for digest in missing:
        line(f"not known: {digest}")


def _write_published(
    recipe: str, catalog: Path | None, reference: str, platform: Platform | None, output: Path
) -> None:
    import tempfile

    from builder.build import ccache as files
    from builder.publish.attachments import attached
    from builder.publish.tags import repository_of

    found = attached(
        repository_of(catalog_at(catalog), recipe, log), reference, files.KIND, platform
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(found[0].content)
        file.flush()
        files.unpack(Path(file.name), output)


# ``builder compilers``.


def compilers(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--nvcc",
            metavar="VERSION",
            help="Only this version, as the package index has it: 13.2.51. May be repeated. "
            "Default: all releases for CUDA 13.",
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Write the table to compilers/RECIPE.toml of the catalog."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find compilers that miscompile the quantizations of a recipe's tree; no GPU is needed.

    Each release of nvcc for CUDA 13 that the package index has compiles ggml's quantization
    kernels to PTX, and the PTX interpreter computes them on random blocks. The table has the
    normalized mean square error against gguf-py for each type; above 5e-4, which is ggml's own
    limit, the type is wrong. `builder recipe check` warns of a base whose nvcc is wrong in a saved
    table, and `builder site` shows the tables.

    The machine needs g++ and make. The first run compiles the interpreter, which takes two minutes;
    then a release takes about half a minute. The wheels of a release have 110 MB and stay in the
    cache directory.
    """
    from builder.build import compiler_table as tables
    from builder.build.compilers import tabled
    from builder.core import settings
    from builder.core.errors import UsageError

    if save and versions:
        raise UsageError("--save writes the table of all releases", hint="leave out --nvcc")
    loaded = catalog_at(catalog)
    found = tabled(loaded, recipe, settings.load(), log, versions)
    if save:
        log(f"written  {tables.write(found, loaded.root)}")
    if as_json:
        print_json(found.model_dump() | {"limit": tables.LIMIT})
    else:
        print_table(found)


def print_table(found: Table) -> None:
    """Print a row for each type, and a column for each compiler; then the types without a row."""
    header = ("type", *(each.nvcc for each in found.compiler))
    rows = [
        (name, *(_cell(each.results.get(name, "")) for each in found.compiler))
        for name in found.types
    ]
    table(header, rows)
    for each in found.compiler:
        for name, words in each.ended.items():
            line(f"nvcc {each.nvcc}, {name}: {words}")
    for name, why in found.not_compared.items():
        line(f"not compared: {name}: {why}")


def _cell(result: float | str) -> str:
    """The error, or the kind of end: its place follows the table."""
    return f"{result:.1e}" if isinstance(result, float) else result.partition(",")[0]


# ``builder sbom``.


class BillFormat(StrEnum):
    """A document about the contents of an image, or about its build."""

    SPDX = "spdx"
    PROVENANCE = "provenance"


def sbom(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    form: Annotated[
        BillFormat,
        typer.Option(
            "--format",
            help="SPDX 2.3, or SLSA v1 provenance as an in-toto statement.",
        ),
    ] = BillFormat.SPDX,
    published: Annotated[
        str | None,
        reference_option(
            "--from",
            "Print the document that is attached to this image in the registry. Default: describe "
            "the verified image in the local engine.",
        ),
    ] = None,
) -> None:
    """Print the SBOM of a recipe's verified image, as JSON.

    It lists parts that scanners of the image cannot see: the fork and its commit, each patch and
    pull request with its reason, CUDA libraries from wheels, the base image and the GPUs; and the
    Debian packages in the image. Build tools are marked as such, and files of unknown origin are
    mentioned. The registry keeps the documents that an image was pushed with. The exit code is 4 if
    there is no verified image, and 12 if the registry has no such document.
    """
    from builder.publish import spdx as documents_of

    kind = documents_of.SPDX if form is BillFormat.SPDX else documents_of.PROVENANCE
    if published is None:
        text = _of_local_image(recipe, catalog, platform, kind)
    else:
        text = _of_published_image(recipe, catalog, published, platform, kind)
    typer.echo(text, nl=False)


def _of_local_image(recipe: str, catalog: Path | None, platform: Platform | None, kind: str) -> str:
    from builder.build.lookup import verified
    from builder.cli.session import build_session
    from builder.core.files import workspace
    from builder.publish.attachments import documents

    session = build_session(catalog, platform=platform)
    image, record = verified(session, recipe)
    with workspace(session.settings.cache_dir) as work:
        return documents(image, record, work)[kind]


def _of_published_image(
    recipe: str, catalog: Path | None, reference: str, platform: Platform | None, kind: str
) -> str:
    from builder.publish.attachments import attached
    from builder.publish.tags import repository_of

    files = attached(repository_of(catalog_at(catalog), recipe, log), reference, kind, platform)
    return files[0].content.decode("utf-8", "replace")
