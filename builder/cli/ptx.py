"""``builder ptx``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JsonOption,
    OnePlatformOption,
    RecipeName,
    catalog_at,
    output_option,
    reference_option,
)
from builder.cli.tables import filled, pairs
from builder.cli.terminal import line, log, print_json
from builder.core import sizes
from builder.core.platforms import Platform


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
    from builder.build import ptx as files
    from builder.build.kept_ptx import of_image
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

    from builder.build import ptx as files
    from builder.publish.attachments import attached
    from builder.publish.tags import repository_of

    found = attached(
        repository_of(catalog_at(catalog), recipe, log), reference, files.KIND, platform
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(found[0].content)
        file.flush()
        files.unpack(Path(file.name), output)
