"""``builder reproduce``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import completion
from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JobsOption,
    JsonOption,
    OfflineOption,
    OnePlatformOption,
)
from builder.cli.tables import counted, table
from builder.cli.terminal import line, log, print_json

if TYPE_CHECKING:
    from builder.build.reproduce import ReproducedImages, Reproduction


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|BASE|IMAGE",
            autocompletion=completion.recipes,
            help="A recipe or a base that was built here, or an image of a registry: "
            "`REGISTRY/REPOSITORY:TAG`.",
        ),
    ],
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    bases: Annotated[
        bool, typer.Option("--bases", help="Also build the bases of an engine again.")
    ] = False,
    attest: Annotated[
        bool,
        typer.Option(
            "--attest",
            help="If the digest is the same, attach the result to the image in its registry, "
            "signed with the cosign key of the settings.",
        ),
    ] = False,
    jobs: JobsOption = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build an image again without caches, and compare the digests.

    The compiler cache is not used either. With `--builder`, another machine builds the image. If
    digests differ, the files are listed, with ELF sections and kernels. The new images are removed
    afterwards.

    The exit code is 17 if a digest differs, also if only a layer's compression does.
    """
    from builder.build.attest import attestation
    from builder.build.reproduce import reproduce as build_again
    from builder.cli.session import build_session, reporter
    from builder.core.errors import DifferenceError

    with reporter() as progress, ExitStack() as stack:
        session = build_session(
            catalog, progress, offline=offline, jobs=jobs, builder=builder, platform=platform
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
        raise DifferenceError(
            f"{target} was not reproduced: {counted(len(differ), 'digest')} "
            f"{'differs' if len(differ) == 1 else 'differ'}",
            "\n".join(f"{each.name}: {_explained(each)}" for each in differ),
        )


def _json(result: ReproducedImages) -> dict[str, Any]:
    from builder.cli.compare_tables import comparison_json

    images = [
        {
            "name": each.name,
            "state": each.state,
            "reference": each.reference,
            "expected": each.expected,
            "found": each.found,
            "comparison": comparison_json(each.comparison, times=True) if each.comparison else None,
        }
        for each in result.reproductions
    ]
    plain = {"target": result.target, "reproduced": result.good, "builder": result.builder}
    return {**plain, "taken": result.taken, "images": images}


def _print(result: ReproducedImages) -> None:
    from builder.cli.compare_tables import print_comparison

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
        return (
            f"the same files and configuration; the compression differs in layer {numbers}: "
            "another version of BuildKit packs them"
        )
    return f"expected {each.expected}; found {each.found}"
