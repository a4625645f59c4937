"""All checks of an image, in their order."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.errors import UntriedError
from builder.families.layout import LAYOUT
from builder.kernels.selection import Capability
from builder.kernels.summary import KernelSummary, summary
from builder.platforms import Platform
from builder.presets.schema import Preset
from builder.recipes.schema import (
    Budget,
    FileProbe,
    LibraryProbe,
    OptionProbe,
    Probe,
    PythonProbe,
    Recipe,
    RunProbe,
)
from builder.smoke import (
    answers,
    architectures,
    closure,
    contract,
    device,
    entry,
    files,
    gpu,
    leftovers,
    loads,
    permissions,
    preset_options,
    preset_trial,
    reading,
    serves,
    sizes,
    starts,
    times,
)
from builder.smoke.contents import Contents, ExtendedImage
from builder.smoke.rules import Rules
from builder.smoke.verdict import Check, Verdict, timed
from builder.smoke.wanted import Wanted, WantedCode
from builder.tools.docker import containers
from builder.tools.docker.blobs import blobs_of

CHECKS_VERSION = 8
"""Raised when checks are added: images whose verdict has fewer are smoke-tested again."""
DRIVER_STUB = "/usr/local/cuda/lib64/stubs/libcuda.so.1"
ARCHITECTURES = ("120",)


@dataclass(frozen=True, slots=True)
class Subject:
    """An image of the engine, and what it is checked against."""

    reference: str
    digest: str
    """Of its manifest."""
    recipe: Recipe | None = None
    """None: only the checks that hold for every image are made."""
    platform: Platform = "linux/amd64"
    """The platform that the recipe's image is for."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the image must have."""
    devel: str | None = None
    """The base's image to compile in, with the driver's stub; an engine with ``vmm = true`` does
    not start without it."""
    gpu_test: gpu.GpuTest | None = None
    """The checks on a GPU; None: none."""
    device_test: device.DeviceTest | None = None
    """The checks on a simulated card; None: none."""
    extended: ExtendedImage | None = None
    """The published image that it extends; its own files are not checked."""
    cache: Path | None = None
    """The cache directory, which keeps scans of layers; None: they are not kept."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """The presets of the recipe, by name."""


def check_image(subject: Subject, work: Path) -> Verdict:
    """Run all checks of an image, without network; with a GPU only if ``gpu_test`` asks for it.

    ``work`` is a directory for temporary files.  A check that cannot be run has ``passed`` None.
    Raises ``UntriedError`` if the image itself cannot be read.
    """
    containers.remove_orphans()
    with containers.removed_together():
        return _checked(subject, work)


def _checked(subject: Subject, work: Path) -> Verdict:
    started = time.monotonic()
    contents = _read(subject, work)
    found = f"{len(contents.layers)} layers, {len(contents.files)} files"
    seconds = round(time.monotonic() - started, 3)
    checks = [Check("image", "its layers", "can be read", found, True, seconds)]
    checks += timed(_static(subject, contents))
    use, uses = None, {}
    if subject.recipe is not None:
        with containers.of_platform(contents.platform):
            checks += timed(_dynamic(subject.recipe, subject, contents, work))
        tried = device.Tried(
            subject.reference, subject.recipe, contents, subject.devel, subject.extended
        )
        result = _on_device(tried, subject, work)
        checks += result.checks
        use = result.use
        presets = _on_their_cards(tried, subject, work)
        checks += [check for each in presets.values() for check in each.checks]
        uses = {name: each.use for name, each in presets.items() if each.use is not None}
    sizes = contents.download_size, contents.unpacked_size
    return Verdict(
        subject.digest, tuple(checks), *sizes, _kernels(subject.recipe, contents), use, uses
    )


def _kernels(recipe: Recipe | None, contents: Contents) -> KernelSummary | None:
    """The engine's own kernels; None where it has none, or they cannot be read: a check says so."""
    try:
        found = list(contents.libraries())
    except UntriedError:
        return None
    return summary(found, _card(recipe)) if found and recipe else None


def _card(recipe: Recipe) -> Capability:
    return Capability.of_arch(recipe.cuda.arch[0])


def _read(subject: Subject, work: Path) -> Contents:
    """The contents of the image; read twice if the file of a probe is a link."""
    wanted = _wanted(subject.recipe)
    if subject.recipe is not None:
        above = subject.extended.layers if subject.extended else 0
        code = WantedCode(_card(subject.recipe), above, outside=LAYOUT.cuda)
        wanted = replace(wanted, code=code)
    blobs = blobs_of(subject.reference, work, subject.digest)
    contents = reading.read(blobs, work, wanted, subject.cache)
    more = _behind_links(subject.recipe, contents, wanted)
    if more == wanted:
        return contents
    return reading.read(blobs, work, more, subject.cache)


def _behind_links(recipe: Recipe | None, contents: Contents, wanted: Wanted) -> Wanted:
    """``wanted``, with the targets of wanted files that are links."""
    targets = {contents.resolve(path) for path in wanted.texts}
    texts = {path for path in targets if path and not wanted.text(path)}
    libraries = {
        posixpath.basename(file.path)
        for probe in _symbol_probes(recipe)
        for name in (probe.library, *probe.alternatives)
        for file, _ in architectures.matching(contents, name)
        if file.symbols is None
    }
    return replace(wanted, texts=wanted.texts | texts, symbols=wanted.symbols | libraries)


def _symbol_probes(recipe: Recipe | None) -> list[LibraryProbe]:
    probes = [probe for _, probe in _probes(recipe)] if recipe else []
    libraries = [probe for probe in probes if isinstance(probe, LibraryProbe)]
    return [
        probe for probe in libraries if probe.symbols or probe.symbols_not or probe.symbols_at_least
    ]


def _probes(recipe: Recipe) -> list[tuple[str, Probe]]:
    """The probes of a recipe, each with the name of the patch that it belongs to."""
    return [("", probe) for probe in recipe.probe] + [
        (patch.name, patch.probe) for patch in recipe.patch if patch.probe is not None
    ]


def _wanted(recipe: Recipe | None) -> Wanted:
    """The texts and symbols that the recipe's probes look at."""
    probes = [probe for _, probe in _probes(recipe)] if recipe else []
    texts = {probe.file for probe in probes if isinstance(probe, FileProbe)}
    texts |= {LAYOUT.needs}
    if recipe is not None and recipe.start:
        texts.add(starts.PLAN)
    texts |= {probe.python for probe in probes if isinstance(probe, PythonProbe)}
    libraries = {
        posixpath.basename(name).partition(".so")[0]
        for probe in _symbol_probes(recipe)
        for name in (probe.library, *probe.alternatives)
    }
    return Wanted(frozenset(texts), frozenset(libraries))


def _static(subject: Subject, contents: Contents) -> Iterator[Check]:
    """The checks of the layers: no program of the image is run."""
    recipe, extended = subject.recipe, subject.extended
    rules = Rules(recipe.accept if recipe else ())
    arch = recipe.cuda.arch if recipe else ARCHITECTURES
    added = contents.above(extended) if extended else contents
    if extended:
        skipped = f"{len(contents.files) - len(added.files)} files of {extended.layers} layers"
        yield Check("extended", "the image that it extends", "is not checked", skipped, True)
    artifact = recipe is not None and recipe.artifact is not None
    if not artifact:
        if not extended or any(parsed.code for _, parsed in added.elves()):
            yield from architectures.check(arch, added, rules)
        vmm = recipe is None or recipe.cuda.vmm
        yield from closure.check(added, rules, vmm=vmm, image=contents)
    yield from leftovers.check(added, rules)
    yield device.check_absent(contents)
    yield from permissions.check(added, rules)
    yield from contract.check_texts(added, rules)
    if recipe is not None:
        yield from times.check(added, contents, extends=extended is not None)
    yield from sizes.check(added, contents, recipe.budget if recipe else Budget())
    if recipe is not None:
        yield from contract.check(recipe, subject.labels, contents, extended, subject.platform)
        if not artifact:
            yield entry.check_static(contents)
    yield from rules.unused()


def _dynamic(recipe: Recipe, subject: Subject, contents: Contents, work: Path) -> Iterator[Check]:
    """The checks that run programs of the image: its probes, and its server."""
    try:
        stub = _stub(recipe, subject, work)
    except UntriedError as error:
        yield Check("runs", "a stub of the driver", "exists", str(error), None)
        return
    sandbox = answers.Sandbox(subject.reference, stub)
    for patch, probe in _probes(recipe):
        checks = _check_probe(probe, recipe, sandbox, contents)
        yield from _of_patch(patch, checks) if patch else checks
    if recipe.probe and recipe.artifact is None:
        yield from _guarded(
            entry.check(recipe, subject.reference, contents), entry.KIND, "a start without a card"
        )
    yield from _preset_options(recipe, subject, sandbox)
    steps = starts.check(recipe, subject.reference, contents, subject.extended)
    yield from _guarded(steps, "start", "the steps before the engine")
    yield from _guarded(
        loads.check(recipe, subject.reference, subject.devel, work), "loads", "LD_PRELOAD"
    )
    yield from serves.check(recipe, subject.reference, work, stub)
    if subject.gpu_test is not None and subject.gpu_test.due():
        driver = contract.driver_of(contents)
        yield from gpu.check(recipe, subject.reference, subject.gpu_test, driver, work)


def _preset_options(recipe: Recipe, subject: Subject, sandbox: answers.Sandbox) -> Iterator[Check]:
    """The options of the recipe's presets."""
    before = subject.extended.config if subject.extended else {}
    starts = recipe.image.entrypoint or before.get("Entrypoint") or []
    for name, preset in subject.presets.items():
        checks = preset_options.check(name, preset, recipe, sandbox, starts)
        yield from _guarded(checks, "preset", name)


def _on_device(tried: device.Tried, subject: Subject, work: Path) -> device.Result:
    """The checks on a simulated card."""
    if subject.device_test is None:
        return device.Result(())
    folder = work / "device"
    folder.mkdir()
    return device.check(tried, subject.device_test, folder)


def _on_their_cards(
    tried: device.Tried, subject: Subject, work: Path
) -> dict[str, preset_trial.Result]:
    """The presets of the recipe, each on its own simulated card."""
    test = subject.device_test
    if test is None:
        return {}
    found = {}
    for name, preset in subject.presets.items():
        with TemporaryDirectory(dir=work) as folder:
            Path(folder).chmod(0o755)  # the image's own user reads the models
            found[name] = preset_trial.check(name, preset, tried, test, Path(folder))
    return found


def _of_patch(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    for check in checks:
        yield replace(check, kind="patch", subject=f"{name}: {check.subject}")


def _stub(recipe: Recipe, subject: Subject, work: Path) -> Path | None:
    if not recipe.cuda.vmm or subject.devel is None:
        return None
    stub = work / "libcuda.so.1"
    containers.copy_out(subject.devel, DRIVER_STUB, stub)
    return stub


def _check_probe(
    probe: Probe, recipe: Recipe, sandbox: answers.Sandbox, contents: Contents
) -> Iterator[Check]:
    match probe:
        case RunProbe():
            checks = answers.check_run(probe, sandbox)
        case OptionProbe():
            checks = answers.check_option(probe, recipe, sandbox)
        case LibraryProbe():
            checks = architectures.check_library(probe, contents)
        case FileProbe():
            checks = files.check_file(probe, contents)
        case PythonProbe():
            checks = files.check_python(probe, contents)
    return _guarded(checks, "runs", answers.subject_of(probe))


def _guarded(checks: Iterator[Check], kind: str, subject: str) -> Iterator[Check]:
    """A timeout becomes a failed check, a program that cannot be started an untried one."""
    try:
        yield from checks
    except containers.TimedOutError as error:
        yield Check(kind, subject, "an answer", str(error), False)
    except UntriedError as error:
        yield Check(kind, subject, "an answer", str(error), None)
