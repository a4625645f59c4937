"""``builder smoke``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.options import CatalogOption, JsonOption, JunitOption, PlatformOption, file_option
from builder.cli.tables import table
from builder.cli.terminal import line, log, print_json

if TYPE_CHECKING:
    from builder.checks.verdict import Verdict

GPU = "With a GPU"


def smoke(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE",
            autocompletion=completion.recipes,
            help="Name of a recipe whose image was built, or any image: it is checked against the "
            "recipe in its label builder.recipe; if there is none, only the checks for all images "
            "run.",
        ),
    ],
    catalog: CatalogOption = None,
    platform: PlatformOption = None,
    card: Annotated[
        list[str] | None,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=completion.known_cards,
            help="Simulated card on which the server is started: 5090, 5090-laptop, ... Default: "
            "the smallest card that runs the recipe's code.",
        ),
    ] = None,
    gpu: Annotated[
        bool | None,
        typer.Option(
            "--gpu/--no-gpu",
            help="Also run the checks that need a GPU. Default: if Docker has NVIDIA's runtime.",
            rich_help_panel=GPU,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        file_option(
            "--model",
            "Model for the collapse test. Default: the test model, with random weights.",
            GPU,
        ),
    ] = None,
    draft: Annotated[
        Path | None, file_option("--draft", "Draft model for speculative decoding.", GPU)
    ] = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Smoke-test an image and print every check with its expected and its actual result.

    First the image is read without running it. Then its programs run as the image's own user,
    without network and with a read-only root file system, and its server serves a test model,
    first on the CPU, then on a simulated card, where its own CUDA code runs.
    With a GPU, the device and the model on it are checked, and the *collapse test* repeats one
    prompt and fails if generation becomes slower.

    The exit code is 7 if a check failed and 8 if a check could not be run.
    """
    from builder.build import lookup
    from builder.build.verify import smoke_error
    from builder.checks.smoke_subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.presets import cards

    if card and len(card) > 1:
        raise typer.BadParameter("give one card: the server is started on one", param_hint="--card")
    if gpu is False and (model or draft):
        raise typer.BadParameter(
            "--model and --draft are for the checks on a GPU, which --no-gpu leaves out"
        )
    gpu_test = GpuTest(model, draft, wanted=gpu)
    if (model or draft) and not gpu_test.due():
        log("Docker offers no GPU: --model and --draft are not used")
    session = build_session(
        catalog,
        reporter(junit),
        gpu_test=gpu_test,
        card=card[0] if card else None,
        platform=platform,
    )
    if card:
        cards.load(session.catalog.root, card[0])  # before the image is looked for
    found = lookup.smoke_test(session, target)
    if as_json:
        described = [each.as_json() for each in found]
        print_json({"images": described} if len(found) > 1 else described[0])
    else:
        for each in found:
            if len(found) > 1:
                line(each.name)
            _print_verdict(each.verdict)
    # A failed check comes before one that could not be run.
    for each in sorted(found, key=lambda each: not each.verdict.failures):
        if not each.verdict.good:
            raise smoke_error(each.name, each.reference, each.verdict)


def _print_verdict(verdict: Verdict) -> None:
    from builder.image.code_paths import HEADER
    from builder.image.code_paths import rows as code_rows

    rows = [
        (
            check.state,
            check.kind,
            check.subject,
            check.expected,
            check.found,
            f"{check.seconds:.2f} s",
        )
        for check in verdict.checks
    ]
    table(("", "check", "of", "expected", "found", "took"), rows)
    if verdict.code:
        line("")
        table(HEADER, code_rows(verdict.code))
