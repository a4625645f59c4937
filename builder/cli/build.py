"""``builder build`` and ``smoke``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import argument, file_option, flag, option, output_option
from builder.cli.terminal import line, log, pairs, print_json, table
from builder.core import sizes
from builder.core.errors import BuilderError
from builder.core.log import duration

if TYPE_CHECKING:
    from builder.build.build import BuildOutcome
    from builder.checks.verdict import Verdict
    from builder.plan.plan import Plan


def build(
    recipes: options.RecipeNames,
    platform: options.PlatformOption = None,
    rebuild: bool = flag(
        "--rebuild",
        "Build even if the image exists. The base image and the compiler cache are kept.",
    ),
    jobs: options.JobsOption = None,
    builder: options.BuilderOption = None,
    offline: options.OfflineOption = False,
    output: Path | None = output_option(
        "Also write the files of an artifact (a library, not an engine) to this directory."
    ),
    junit: options.JunitOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Build the images of recipes, check them, and tag them.

    All inputs are downloaded and verified, then the engine is compiled without a network, and the
    image is checked against the recipe. If a verified image with the same build key exists, nothing
    is built. A build that was interrupted can be started again.
    """
    from builder.build import build as pipeline
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter

    if output is not None and len(recipes) > 1:
        raise typer.BadParameter("--output takes the files of one recipe")
    with reporter(junit) as progress:
        session = build_session(
            progress,
            gpu_test=GpuTest(),
            rebuild=rebuild,
            offline=offline,
            jobs=jobs,
            builder=builder,
            platform=platform,
        )
        wanted = {each.name: each.recipe for each in map(session.catalog.engine, recipes)}
        artifact = None
        if output is None:
            plans = [plan for name in wanted for plan in session.plans(name)]
        else:  # the files of an artifact have the same names on each platform
            ((name, recipe),) = wanted.items()
            artifact = pipeline.require_artifact(recipe, output)
            plans = [session.resolve(name)]
        results = pipeline.build_all(plans, session)
    good = [result for result in results if isinstance(result, pipeline.BuildOutcome)]
    files: list[Path] = []
    if artifact is not None and output is not None and good:
        files = pipeline.deliver(artifact, plans[0].references[0], output)
    if as_json:
        _print_json(plans, results, files)
    else:
        for outcome in good:
            _print_outcome(outcome)
        for file in files:
            line(f"written     {file}")
    pipeline.require_all(plans, results)


def _print_json(
    plans: Sequence[Plan], results: Sequence[BuildOutcome | BuilderError], files: Sequence[Path]
) -> None:
    described: list[dict[str, Any]] = [
        {"recipe": plan.name, "platform": plan.platform, "error": str(result)}
        if isinstance(result, BuilderError)
        else {"built": result.built, "checked": result.checked, **result.record.as_json()}
        for plan, result in zip(plans, results, strict=True)
    ]
    if len(plans) > 1:
        print_json({"images": described})
    elif "error" not in described[0]:
        print_json({**described[0], "delivered": [str(file) for file in files]})


def _print_outcome(outcome: BuildOutcome) -> None:
    from builder.image.code_paths import text_of

    state = "unchanged: built and verified before"
    if outcome.checked:
        state = "built and verified" if outcome.built else "built before, verified now"
    record = outcome.record
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in record.seconds.items())
    code = text_of(record.verdict.code)
    counts, skipped = record.verdict.passed_by_kind, len(record.verdict.skipped)
    kinds = [f"{kind} {count}" if count > 1 else kind for kind, count in counts.items()]
    passed = f"{sum(counts.values())} passed: {', '.join(kinds)}"
    download, unpacked = record.verdict.download_size, record.verdict.unpacked_size
    lines = {
        "image": f"{record.references[0]}  ({state})",
        "platform": "" if record.platform == "linux/amd64" else record.platform,
        "other tags": "  ".join(record.references[1:]),
        "digest": record.digest,
        "key": record.key,
        "checks": f"{passed}; {skipped} skipped" if skipped else passed,
        "way": record.way,
        "device": record.verdict.device.text if record.verdict.device else "",
        "code": code and f"{code}  (`builder recipe explain {record.recipe}` shows each library)",
        "size": f"{sizes.shown(download)} to download, {sizes.shown(unpacked)} unpacked",
        "time": times,
        "compiler cache": f"{record.reused} of {record.objects} objects" if record.objects else "",
        "log": record.log,
    }
    pairs(lines)


# ``builder smoke``.

GPU = "With a GPU"


def smoke(
    target: str = argument(
        "RECIPE|IMAGE",
        "Name of a recipe whose image was built, or any image: it is checked against the recipe "
        "in its label builder.recipe; if there is none, only the checks for all images run.",
        autocompletion=options.recipes,
    ),
    platform: options.PlatformOption = None,
    card: list[str] | None = option(
        "--card CARD",
        "Simulated card on which the server is started: 5090, 5090-laptop, ... Default: the "
        "smallest card that runs the recipe's code.",
        autocompletion=options.known_cards,
    ),
    gpu: bool | None = option(
        "--gpu/--no-gpu",
        "Also run the checks that need a GPU. Default: if Docker has NVIDIA's runtime.",
        rich_help_panel=GPU,
        show_default=False,
    ),
    model: Path | None = file_option(
        "--model", "Model for the collapse test. Default: the test model, with random weights.", GPU
    ),
    draft: Path | None = file_option("--draft", "Draft model for speculative decoding.", GPU),
    junit: options.JunitOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run all checks of an image, and print what they expect and find.

    Its programs run without network, and its server serves a test model on the CPU and on a
    simulated card. With a GPU, it serves one there, too. docs/checks.md has all checks.
    """
    from builder.build import lookup
    from builder.checks.subject import GpuTest
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
    one = card[0] if card else None
    session = build_session(reporter(junit), gpu_test=gpu_test, card=one, platform=platform)
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
            raise lookup.smoke_error(each.name, each.reference, each.verdict)


def _print_verdict(verdict: Verdict) -> None:
    from builder.image import code_paths

    rows = [
        (each.state, each.kind, each.subject, each.expected, each.found, f"{each.seconds:.2f} s")
        for each in verdict.checks
    ]
    table(("", "check", "of", "expected", "found", "took"), rows)
    if verdict.code:
        line("")
        table(code_paths.HEADER, code_paths.rows(verdict.code))
