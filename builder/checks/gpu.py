"""Check on a GPU: the right device, the model on it, and a speed that does not collapse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.checks import series, serves, test_model
from builder.checks.answers import DevicePage, UnansweredError
from builder.checks.contract import driver_of
from builder.checks.series import Generation
from builder.checks.server import Server, ServeSpec, launched, offloaded
from builder.checks.speed import RunSettings, measure
from builder.checks.subject import Context, GpuTest
from builder.checks.verdict import Check
from builder.core.errors import UntriedError
from builder.docker import gpus
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator.selection import Capability

LOADING = 900.0  # seconds for a real model
CONTEXT = 8192


def check(context: Context) -> Iterator[Check]:
    """Start the server with all GPUs; check the devices, the model's place, and the speed."""
    recipe, gpu_test = context.recipe, context.subject.gpu_test
    if recipe.serve is None or recipe.image.port is None or gpu_test is None:
        return
    model, size = gpu_test.model, CONTEXT
    if model is None:
        model, size = context.work / f"{test_model.NAME}.gguf", test_model.CONTEXT
        test_model.write(model)
    spec = ServeSpec(model, size, gpu_test.draft, gpus=gpus.ALL, verbose=True, limited=False)
    try:
        with launched(context.subject.reference, recipe.serve, recipe.image.port, spec) as server:
            yield from _devices(
                gpus.visible_in(server.container), recipe, driver_of(context.contents)
            )
            yield from on_gpu(server, recipe.serve, gpu_test)
    except UntriedError as error:
        yield Check.untried("gpu", "a server with a GPU", "is started", error)


def _devices(found: Sequence[gpus.Gpu], recipe: Recipe, driver: str | None) -> Iterator[Check]:
    wanted = sorted({str(Capability.of_arch(arch)) for arch in recipe.cuda.arch})
    names = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in found) or "none"
    right = any(gpu.capability in wanted for gpu in found)
    yield Check.of("gpu", "device", f"compute capability {' or '.join(wanted)}", names, right)
    oldest = recipe.cuda.driver or driver
    if oldest is not None and found:
        known = filter(None, (gpu.driver for gpu in found))
        version = min(known, key=gpus.version_numbers, default="")
        if not version:
            why = "nvidia-smi does not know the driver's version"
            yield Check.untried("gpu", "driver", f"{oldest} or newer", why)
            return
        enough = not gpus.is_older(version, oldest)
        yield Check.of("gpu", "driver", f"{oldest} or newer", version, enough)


def on_gpu(server: Server, serve: Serve, gpu_test: GpuTest) -> Iterator[Check]:
    """The start, the model's place, and the speed."""
    patience = serve.seconds if gpu_test.model is None else LOADING
    started = serves.starts(server, patience, kind="gpu")
    yield started
    if started.passed:
        yield placed(server)
        yield from collapse(server, gpu_test.settings)


def placed(server: Server, kind: str = "gpu", subject: str = "model") -> Check:
    """Whether the weights are on the GPU, by the server's own report."""
    expected = "all of it on the GPU"
    if server.api_flavor.device_page is not None:
        try:
            page = server.client.get(server.api_flavor.device_page, DevicePage, 30.0)
        except UnansweredError as error:
            return Check.of(kind, subject, expected, str(error), False)
        found, whole = f"it runs on {page.backend}", page.backend == "cuda"
        return Check.of(kind, subject, expected, found, whole)
    models = offloaded(server.container.log())
    found = "; ".join(map(str, models)) or "its log does not mention offloaded layers"
    whole = bool(models) and all(each.layers == each.of for each in models)
    return Check.of(kind, subject, expected, found, whole)


def collapse(server: Server, settings: RunSettings) -> Iterator[Check]:
    """The collapse test: later runs must not be slower, nor the draft's acceptance drop."""
    expected = f"{settings.runs} runs, later ones as fast as earlier ones"
    try:
        _, runs = measure(server.client, server.api_flavor, settings)
    except UnansweredError as error:
        yield Check.of("gpu", "speed over runs", expected, str(error), False)
        return
    yield from check_runs(runs, expected)


def check_runs(runs: Sequence[Generation], expected: str) -> Iterator[Check]:
    """The speeds and the acceptance of runs, in their order."""
    speeds = [run.tokens_per_second for run in runs]
    found = series.evaluate(speeds)
    listed = " ".join(f"{speed:.1f}" for speed in speeds)
    figures = (
        f"{found.shape}: {found.why}; mean {found.mean:.2f} t/s, "
        f"{found.lowest:.2f} to {found.highest:.2f}, deviation {found.deviation:.2f}, "
        f"{found.shown_trend} ({listed})"
    )
    yield Check.of("gpu", "speed over runs", expected, figures, found.passed)
    shares = [run.acceptance for run in runs if run.acceptance is not None]
    if shares:
        accepted = series.evaluate_acceptance(shares)
        listed = " ".join(f"{share:.2f}" for share in shares)
        share = f"{accepted.shape}: {accepted.why} ({listed})"
        yield Check.of("gpu", "draft acceptance over runs", "does not drop", share, accepted.passed)
