"""``builder kernels``, ``ptx``, ``compilers``, ``compare``, ``reproduce``."""

from __future__ import annotations

import posixpath
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, flag, option, output_option, reference_option
from builder.cli.terminal import counted, line, log, out, pairs, print_json, table
from builder.core import sizes
from builder.core.errors import DifferenceError, UntriedError, UsageError
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from builder.build.build import BuildSession
    from builder.build.compare import ReproducedImages, Reproduction
    from builder.build.compilers import Table
    from builder.checks.kernel_test import CaseResult
    from builder.image.compare import (
        Comparison,
        Difference,
        FileDifference,
        LayerDifference,
    )
    from builder.image.device_code import FunctionDifference
    from builder.image.layers import Node
    from simulator.ledger import Kernel, Ledger

DIGITS = 12  # of a digest
FIGURES = ("registers", "spills", "local", "shared", "threads", "cluster", "size")

FIRST_ROWS = 15  # rows that fit on a terminal together with a summary


def kernels(
    image: str = argument(
        "RECIPE|IMAGE", "Name of a recipe, or any image.", autocompletion=options.recipes
    ),
    platform: options.OnePlatformOption = None,
    card: str = option(
        "--capability MAJOR.MINOR",
        "Compute capability of the card, for which the driver chooses the code.",
        "12.0",
        callback=options.checked_capability,
    ),
    library: list[str] | None = option(
        "--library NAME",
        "Only libraries whose path ends in NAME, with or without a version. May be repeated.",
    ),
    as_json: options.JsonOption = False,
) -> None:
    """List every kernel of an image with its resources.

    The figures come from the machine code; nothing is run. Kernels that spill most registers come
    first; a terminal gets the first ones and a summary of each library, a pipe all. The exit code
    is 8 if no kernel computes on the card.
    """
    from builder.build.lookup import ledger_of
    from builder.cli.session import build_session
    from simulator.selection import Capability

    session = build_session(platform=platform)
    ledger = ledger_of(session, image, Capability.parse(card))
    print_ledger(_runnable(_only(ledger, library)), as_json=as_json)


def _first_rows(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: str = "more row"
) -> None:
    if not out().is_terminal:
        table(header, rows)
        return
    table(header, rows[:FIRST_ROWS], single_lines=True)
    if len(rows) > FIRST_ROWS:
        line(f"{counted(len(rows) - FIRST_ROWS, left)}: a pipe or a file gets them all")


def _only(ledger: Ledger, names: Sequence[str] | None) -> Ledger:
    if not names:
        return ledger
    ends = tuple(names)
    found = tuple(
        each for each in ledger.libraries if each.path.endswith(ends) or each.name in names
    )
    if not found:
        raise UntriedError(
            f"{ledger.image} has no library {' or '.join(names)} with GPU code",
            "it has " + ", ".join(each.path for each in ledger.libraries),
            "name one of these, by its file name or its path, with --library",
        )
    return replace(ledger, libraries=found)


def _runnable(ledger: Ledger) -> Ledger:
    found = [kernel for library in ledger.libraries for kernel in library.kernels]
    if not all(kernel.idle for kernel in found):
        return ledger
    code = sorted({code for library in ledger.libraries for code in library.offered})
    why = f"its code is for {', '.join(code)}" if code else ""
    if found:
        why = f"its {len(found)} kernels for it are empty, trap, or print a message"
    raise UntriedError(
        f"no kernel of {ledger.image} {'computes' if found else 'runs'} on a card of compute "
        f"capability {ledger.card}",
        why,
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
        _first_rows(header, lines, "more kernel")
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
        for idle, shown in (("traps", "only trap or print"), ("empty", "empty")):
            count = sum(kernel.idle == idle for kernel in library.kernels)
            codes += f", {count} {shown}" if count else ""
        figures = (len(library.kernels), len(spills), sum(spills), size)
        rows.append((library.path, codes, *(f"{figure:,}" for figure in figures)))
    table(("library", "code", "kernels", "spilling", "spills", "size"), rows, single_lines=True)


def _figures(kernel: Kernel) -> list[str]:
    """The figures of a kernel for people; a kernel of PTX has none yet."""
    unlimited = {name: getattr(kernel, name) or "" for name in ("threads", "cluster")}
    if not kernel.digest:
        return [str(unlimited["threads"]) if name == "threads" else "" for name in FIGURES]
    spills = "unknown" if kernel.spills is None else kernel.spills
    values = {name: getattr(kernel, name) for name in FIGURES} | unlimited | {"spills": spills}
    return [f"{value:,}" if isinstance(value, int) else value for value in values.values()]


# ``builder ptx``.


def ptx(
    recipe: options.RecipeName,
    platform: options.OnePlatformOption = None,
    builder: options.BuilderOption = None,
    output: Path | None = output_option(
        "Write the PTX to this new directory: DIGEST.ptx, by the sha256 of the machine code."
    ),
    published: str | None = reference_option(
        "--from", "Write the PTX that is attached to this image in the registry."
    ),
    compiles: bool = flag(
        "--compile",
        "Where some PTX is not known, compile the engine again without the compiler cache. The "
        "image stays as it is.",
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Show how much of an image's PTX is kept, or write it out.

    PTX is kept while an engine is compiled, and `builder push` attaches it. Machine code from an
    older compiler cache has none: `--compile` compiles it again.
    """
    from builder.build import ccache
    from builder.build.build import ptx_of_image
    from builder.build.lookup import Images
    from builder.cli.session import build_session, reporter
    from builder.publish.attachments import attached
    from builder.publish.tags import repository_of

    if published is not None:
        if output is None or compiles:
            raise typer.BadParameter("--from needs --output DIR, and takes no --compile")
        repository = repository_of(catalog_at(), recipe, log)
        found = attached(repository, published, ccache.KIND, platform)
        with tempfile.NamedTemporaryFile() as packed:
            packed.write(found[0].content)
            packed.flush()
            ccache.unpack(Path(packed.name), output)
        return
    with reporter() as progress:
        session = build_session(progress, platform=platform, builder=builder)
        plan = session.resolve(recipe)
        image = Images(session).require(plan)
        kept = ptx_of_image(plan, image, session, compiles=compiles)
    if output is not None and kept.known:
        ccache.unpack(kept.file, output)
    size = kept.file.stat().st_size if kept.known else 0
    missing = sorted(kept.missing)
    if as_json:
        print_json(
            {"modules": kept.modules, "missing": missing, "file": str(kept.file), "size": size}
        )
        return
    file = f"{kept.file} ({sizes.shown(size)})" if kept.known else ""
    modules = f"{kept.modules}, the PTX of {kept.known} is known"
    pairs({"modules": modules, "file": file})
    for digest in missing:
        line(f"not known: {digest}")


# ``builder compilers``.


def compilers(
    recipe: options.RecipeName,
    versions: list[str] | None = option(
        "--nvcc VERSION",
        "Only this version, as the package index has it: 13.2.51. May be repeated. Default: all "
        "releases for CUDA 13.",
    ),
    save: bool = flag("--save", "Write the table to compilers/RECIPE.toml of the catalog."),
    as_json: options.JsonOption = False,
) -> None:
    """Find releases of nvcc that miscompile a tree's quantizations.

    Each release of nvcc compiles ggml's quantization kernels to PTX, and an interpreter computes
    them. The table has each type's error against gguf-py; above 5e-4, ggml's own limit, the type is
    wrong. A release takes half a minute and 110 MB of the cache; the machine needs g++ and make.
    """
    from builder.build import compilers as tables

    if save and versions:
        raise UsageError("--save writes the table of all releases", hint="leave out --nvcc")
    loaded = catalog_at()
    found = tables.tabled(loaded, recipe, options.user_settings(), log, versions)
    if save:
        log(f"written  {tables.write(found, loaded.root)}")
    if as_json:
        print_json(found.model_dump() | {"limit": tables.LIMIT})
    else:
        _print_table(found)


def _print_table(found: Table) -> None:
    columns = found.compiler

    def cell(result: float | str) -> str:
        """The error, or the kind of end: its place follows the table."""
        return f"{result:.1e}" if isinstance(result, float) else result.partition(",")[0]

    rows = [(name, *(cell(each.results.get(name, "")) for each in columns)) for name in found.types]
    table(("type", *(each.nvcc for each in columns)), rows)
    for each in found.compiler:
        for name, words in each.ended.items():
            line(f"nvcc {each.nvcc}, {name}: {words}")
    for name, why in found.not_compared.items():
        line(f"not compared: {name}: {why}")


# ``builder compare``.

KINDS = "RECIPE|IMAGE|PATH"


def compare(
    before: str = argument(
        f"A={KINDS}",
        "Name of a recipe, an image of Docker or of a registry, a directory, a file, or the "
        "output of `bench --json`: FILE.json.",
    ),
    after: str = argument(f"B={KINDS}", "Compared with A."),
    platform: Platform | None = option(
        "--platform OS/ARCHITECTURE",
        "Compare the images for this platform: linux/amd64 or linux/arm64. Default: linux/amd64.",
        show_default=False,
    ),
    times: bool = flag(
        "--times", "Also count modification times of files and dates of images as differences."
    ),
    numbers: bool = flag(
        "--numbers", "Compare instead the results of the kernels of two recipes' images."
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Compare two images, directories, files or saved benchmarks.

    No program of an image is run. The exit code is 17 if something differs, and 4 if two benchmarks
    are of different hardware, models or prompts. docs/compare.md says what is compared.
    """
    if all(name.endswith(".json") and Path(name).is_file() for name in (before, after)):
        from builder.cli import bench

        bench.compare(Path(before), Path(after), as_json=as_json)
        return
    from builder.build.compare import compare_named
    from builder.cli.session import build_session
    from builder.image.compare import summary

    if numbers:
        if platform is not None or times:
            raise typer.BadParameter("--numbers takes neither --platform nor --times")
        _compare_numbers(build_session(), before, after, as_json=as_json)
        return
    found = compare_named(build_session(), before, after, platform)
    print_comparison(found, times=times, as_json=as_json)
    if not found.same(times=times):
        raise DifferenceError(f"{before} and {after} differ", summary(found, times=times)[0])


def _compare_numbers(session: BuildSession, before: str, after: str, *, as_json: bool) -> None:
    from builder.build.compare import compare_numbers

    found = compare_numbers(session, before, after)
    if as_json:
        print_json(asdict(found))
    else:
        line(f"{counted(found.same, 'case')} with the same outcome, {len(found.parted)} without")
        parted = found.parted
        rows = [(each.name, _said(each.before), _said(each.after), each.launch) for each in parted]
        _first_rows(("case", "A", "B", "first launch that differs"), rows)
    if found.parted:
        what = f"{before} and {after} compute different numbers"
        raise DifferenceError(what, f"{len(found.parted)} cases differ")


def _said(result: CaseResult | None) -> str:
    if result is None:
        return "no such case"
    return f"{result.outcome}: {result.why}" if result.why else result.outcome


NAMED = 3  # paths that a row names
Row = tuple[str, ...]


def print_comparison(found: Comparison, *, times: bool, as_json: bool) -> None:
    """Print the verdict, then the differences; a terminal gets the first rows of each table."""
    from builder.image.code_paths import HEADER
    from builder.image.compare import summary

    if as_json:
        print_json(comparison_json(found, times=times))
        return
    for text in summary(found, times=times):
        line(text)
    named = (replace(of, path=found.after) if of.path == "/" else of for of in found.files)
    found = replace(found, files=tuple(named))
    values = [*found.config, *(found.times if times else ())]
    files = list(_files(found.differing(times=times), times=times))
    tables: list[tuple[str, Row, list[Row]]] = [
        ("Files", ("", "path", "difference"), files),
        ("ELF files", ("file", "part", "A", "B"), list(_elf(found.files))),
        ("Device code", CODE, list(_codes(found.files))),
        ("Device code on the card", ("file", "card", *HEADER[1:]), list(_on_card(found.files))),
        ("Kernels and device functions", KERNELS, list(_functions(found.files))),
        ("Other parts of modules", OTHERS, list(_others(found.files))),
        ("Configuration", ("value", "A", "B"), list(map(_value, values))),
        ("Layers", ("A", "B", "difference", "size", "made by"), list(map(_layer, found.layers))),
    ]
    for title, header, rows in tables:
        if rows:
            line(f"\n{title}")
            _first_rows(header, rows)


def _files(found: Sequence[FileDifference], *, times: bool) -> Iterator[Row]:
    for each in found:
        name = f"{each.former} -> {each.path}" if each.former else each.path
        yield each.state, name, "; ".join(_aspects(each, times=times))


def _aspects(of: FileDifference, *, times: bool) -> Iterator[str]:
    old, new = of.before, of.after
    if old is None or new is None:
        node = old or new
        if node is not None:
            yield f"{node.kind}, {node.size:,} bytes" if node.kind == "file" else node.kind
    else:
        for aspect in of.aspects:
            if aspect == "content":
                lines = f": {of.lines[0]!r} -> {of.lines[1]!r}" if of.lines else ""
                yield f"content {_between(old.size, new.size)} bytes{lines}"
            elif aspect != "name" and (aspect != "time" or times):
                yield f"{aspect} {_shown(old, aspect)} -> {_shown(new, aspect)}"
    if of.unread:
        yield f"device code and sections not compared: {of.unread}"


def _shown(node: Node, aspect: str) -> str:
    match aspect:
        case "mode":
            return f"{node.mode:o}"
        case "owner":
            return f"{node.user}:{node.group}"
        case "attributes":
            return ", ".join(f"{name}={value}" for name, value in node.attributes) or "none"
        case "hard link":
            return node.same_file or "none"
        case "time":
            return f"{datetime.fromtimestamp(node.time, UTC):%Y-%m-%dT%H:%M:%SZ}"
        case _:
            return str(getattr(node, aspect))


def _between(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


def _elf(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        if each.elf is None:
            continue
        for value in each.elf.values:
            yield (each.path, *_value(value))
        for symbol in each.elf.symbols_removed:
            yield each.path, "symbol", symbol, ""
        for symbol in each.elf.symbols_added:
            yield each.path, "symbol", "", symbol
        for section in each.elf.sections:
            sizes = (section.before, section.after)
            yield each.path, section.name, *("" if n is None else f"{n:,} bytes" for n in sizes)


def _value(value: Difference[tuple[str, ...]]) -> Row:
    return value.name, " ".join(value.before), " ".join(value.after)


CODE = ("file", "code", "entries", "equal", "changed", "added", "removed")


def _codes(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        if each.code is None:
            continue
        for total in each.code.totals:
            states = Counter(of.state for of in each.code.functions if of.code == total.code)
            counts = (f"{states[state]:,}" for state in ("changed", "added", "removed"))
            entries = _between(total.before, total.after)
            yield each.path, total.code, entries, f"{total.equal:,}", *counts


def _on_card(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        if each.on_card is None:
            continue
        old, new = each.on_card
        pairs = ((old.native, new.native), (old.compiled, new.compiled), (old.dead, new.dead))
        texts = [[sizes.shown(size) if size else "0" for size in pair] for pair in pairs]
        if any(was != now for was, now in texts):
            shown = (" -> ".join(dict.fromkeys(pair)) for pair in texts)
            yield each.path, new.card or old.card, *shown


KERNELS = ("", "file", "code", "differs in", "size", "registers", "spills", "name")


def _functions(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        for of in each.code.functions if each.code else ():
            name = posixpath.basename(each.path)
            # The other sections of a function follow from its SASS.
            parts = "SASS" if "SASS" in of.parts else ", ".join(of.parts)
            figures = [_figure(of, figure) for figure in ("size", "registers", "spills")]
            yield of.state, name, of.code, parts, *figures, of.name


def _figure(of: FunctionDifference, name: str) -> str:
    values = [getattr(side, name) if side else None for side in (of.before, of.after)]
    texts = ["" if value is None else f"{value:,}" for value in values]
    return texts[1] if texts[0] == texts[1] else " -> ".join(filter(None, texts))


OTHERS = ("file", "code", "part", "modules", "bytes")


def _others(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        for of in each.code.others if each.code else ():
            size = _between(of.before, of.after)
            yield posixpath.basename(each.path), of.code, of.name, f"{of.modules:,}", size


def _layer(of: LayerDifference) -> Row:
    sides, side = (of.before, of.after), of.after or of.before
    places = [f"{of.number} {of.digest.partition(':')[2][:DIGITS]}" if of else "" for of in sides]
    state: str = of.state
    if of.paths:
        more = f" and {len(of.paths) - NAMED:,} more" if len(of.paths) > NAMED else ""
        state = f"{state}: {', '.join(of.paths[:NAMED])}{more}"
    made_by = (sizes.shown(side.size), side.created_by) if side else ("", "")
    return places[0], places[1], state, *made_by


def comparison_json(found: Comparison, *, times: bool) -> dict[str, Any]:
    """The comparison, with the verdict first; a mode is octal, as in ``chmod``."""
    from builder.image.compare import summary

    plain = asdict(found)
    for difference, each in zip(plain["files"], found.files, strict=True):
        difference["state"] = each.state
        for side in filter(None, (difference["before"], difference["after"])):
            side["mode"] = f"{side['mode']:o}"
            del side["head"]
        if each.code:
            rows = zip(difference["code"]["functions"], each.code.functions, strict=True)
            for function, of in rows:
                function["state"] = of.state
    return {
        "same": found.same(times=times),
        "same_device_code": found.same_code,
        "summary": summary(found, times=times),
        **plain,
    }


# ``builder reproduce``.


def reproduce(
    target: str = argument(
        "RECIPE|BASE|IMAGE",
        "A recipe or a base that was built here, or an image of a registry: "
        "`REGISTRY/REPOSITORY:TAG`.",
        autocompletion=options.recipes,
    ),
    platform: options.OnePlatformOption = None,
    bases: bool = flag("--bases", "Also build the bases of an engine again."),
    attest: bool = flag(
        "--attest",
        "If the digest is the same, attach the result to the image in its registry, signed with "
        "the cosign key of the settings.",
    ),
    jobs: options.JobsOption = None,
    builder: options.BuilderOption = None,
    offline: options.OfflineOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Build an image again without caches, and compare the digests.

    With `--builder`, another machine builds it. If digests differ, the files are listed, down to
    ELF sections and kernels, and the exit code is 17.
    """
    from builder.build.compare import attestation
    from builder.build.compare import reproduce as build_again
    from builder.cli.session import build_session, reporter

    with reporter() as progress, ExitStack() as stack:
        session = build_session(
            progress, offline=offline, jobs=jobs, builder=builder, platform=platform
        )
        attested = stack.enter_context(attestation(session, target)) if attest else None
        result = build_again(session, target, with_bases=bases)
        if attested is not None and result.good:
            log(f"the statement is attached to {attested(result)}")
    if as_json:
        print_json(_json(result))
    else:
        _print(result)
    if not result.good:
        differ = [each for each in result.reproductions if each.state != "reproduced"]
        count = f"{counted(len(differ), 'digest')} {'differs' if len(differ) == 1 else 'differ'}"
        why = "\n".join(f"{each.name}: {_explained(each)}" for each in differ)
        raise DifferenceError(f"{target} was not reproduced: {count}", why)


def _json(result: ReproducedImages) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    for each in result.reproductions:
        names = ("name", "state", "reference", "expected", "found")
        images.append({name: getattr(each, name) for name in names} | {"comparison": None})
        if each.comparison:
            images[-1]["comparison"] = comparison_json(each.comparison, times=True)
    plain = {"target": result.target, "reproduced": result.good, "builder": result.builder}
    return {**plain, "taken": result.taken, "images": images}


def _print(result: ReproducedImages) -> None:
    rows = [(each.name, each.state, each.found) for each in result.reproductions]
    table(("image", "", "digest of the new build"), rows)
    for name in result.taken:
        line(f"not built again: {name}")
    for each in result.reproductions:
        if each.comparison is not None:
            line(f"\n{each.name}: {_explained(each)}")
            print_comparison(each.comparison, times=True, as_json=False)


def _explained(each: Reproduction) -> str:
    if each.state == "compression":
        numbers = ", ".join(map(str, each.packed))
        what = f"the same files and configuration; the compression differs in layer {numbers}"
        return f"{what}: another version of BuildKit packs them"
    return f"expected {each.expected}; found {each.found}"
