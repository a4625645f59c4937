"""Check: the CUDA packages of an image belong together, and the compilers that they start exist.

All layers count.  Whether an extension finds its symbols in the image's torch is decided from the
symbol tables: that takes half a second for torch 2.11 and needs neither a driver nor the platform.
An import with LD_BIND_NOW needs both, and names only the first missing symbol.
"""

from __future__ import annotations

import fnmatch
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from packaging.version import Version

from builder.checks.contract import RUNTIME_LIBRARY, driver_of, unusable
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.core import sizes
from builder.core.errors import listed
from builder.engines.layout import LAYOUT
from builder.image.code_paths import CodePaths, code_paths, text_of
from builder.image.contents import (
    FLASHINFER_CONTEXT,
    TOOLKIT_VERSION,
    TORCH_VERSION,
    TRITON_COMPILER,
    Contents,
    File,
    name_hash,
)
from builder.recipes.probes import LibraryProbe
from builder.recipes.schema import Recipe
from simulator.elf import ElfFile
from simulator.ledger import Body
from simulator.selection import Capability, runs_target
from simulator.selection import unread as unread_ptx
from simulator.work import demangled, short

# Check: the recipe's cards have a path through the device code of every library.
#
# All layers count, whoever built the library: a published image and wheels as much as the engine.

ARCHITECTURES = ("120",)  # of an image without a recipe
FILES = 8  # that a finding names
NAMED = 3  # names of kernels in a finding
WHEELS = "/site-packages/"  # the diet changes no other libraries; some of CUDA's have zeros, too


def cards(recipe: Recipe | None) -> list[Capability]:
    """The cards that an image is for, by its recipe's architectures."""
    wanted = recipe.cuda.arch if recipe else ARCHITECTURES
    return list(dict.fromkeys(map(Capability.of_arch, wanted)))


def code_path_table(contents: Contents, recipe: Recipe | None) -> tuple[CodePaths, ...]:
    """The device code of every library for every card, the largest library first."""
    found = [
        code_paths(file.path, parsed.modules, card, parsed.zeros if WHEELS in file.path else 0)
        for card in cards(recipe)
        for file, parsed in contents.elves()
        if parsed.modules and not file.shares
    ]
    return tuple(sorted(found, key=lambda each: (-each.whole, each.path)))


def check_code_paths(context: Context) -> Iterator[Check]:
    """No library is without code for a card, and the driver compiles nothing at the first use.

    ``context.code`` gets the table.
    """
    context.code = found = code_path_table(context.contents, context.subject.recipe)
    for card in cards(context.subject.recipe):
        on_card = [each for each in found if each.card == str(card)]
        without = [
            (each.path, f"{each.path}: none of {sizes.shown(each.dead)} runs")
            for each in on_card
            if each.pathless
        ]
        late = []
        for each in (each for each in on_card if each.compiled):
            names = _late(context.contents.files[each.path], card)
            late.append((each.path, f"{each.path}: {sizes.shown(each.compiled)} of PTX{names}"))
        fine = _fine(on_card)
        subject = f"every library has code for {card}"
        expected = "machine code or PTX in each"
        yield context.rules.check("code paths", subject, expected, without, fine)
        subject = f"the driver compiles nothing for {card}"
        expected = "machine code in every module that the card uses"
        # Also where they are accepted.
        fine = "; ".join([fine, *(text for _, text in late[:FILES])])
        yield context.rules.check("code paths", subject, expected, late, fine)
        yield _computing(context, card)


def hollow(file: File, card: Capability) -> str:
    """Why code of a file does nothing on a card; empty: it computes, or is not known.

    A kernel may be empty, or only trap, where it is never launched: CUB's EmptyKernel; CUTLASS's
    for other cards, of which the wheel vllm 0.33.0 has 72 on 12.0, real for 9.0 alone.  It is wrong
    where code for another card of the same major version computes, or where nothing in the file
    does.
    """
    bodies = [body for each in file.fat_binaries if (body := each.body(card)) is not None]
    names = [name for body in bodies for name in body.hollow]
    if names:
        code = ", ".join(sorted({body.code.name for body in bodies if body.hollow}))
        return f"{_named(names)}: empty or a trap in {code}, not for another card of the family"
    kernels = sum(body.kernels for body in bodies)
    if any(body.messages for body in bodies) and not any(body.computing for body in bodies):
        return f"none of {kernels} kernels computes: they trap, print or are empty"
    return ""


def _computing(context: Context, card: Capability) -> Check:
    elves = context.contents.elves()
    files = [file for file, parsed in elves if parsed.modules and not file.shares]
    known = cards(context.subject.recipe)[0].major == card.major  # it is read for the first card
    read = [file for file in files if file.fat_binaries and known]
    found = [(file.path, f"{file.path}: {why}") for file in read if (why := hollow(file, card))]
    bodies = [body for file in read for each in file.fat_binaries if (body := each.body(card))]
    kernels = sum(body.kernels for body in bodies)
    messages = sum(body.messages for body in bodies)
    unread = len(files) - len(read)
    subject, expected = f"the kernels for {card} compute", "no stub in the place of one"
    if unread and not read:
        return Check.skipped("code paths", subject, expected, "the kernels of no library were read")
    fine = f"{kernels} kernels, {messages} only trap or print"
    fine += f"; libraries not read: {unread}" if unread else ""
    fine = fine if files else _fine(())
    return context.rules.check("code paths", subject, expected, found, fine)


def _late(file: File, card: Capability) -> str:
    """The kernels of a file of which a card takes PTX, as far as they were read."""
    names = [
        kernel.name
        for each in file.fat_binaries
        if (body := each.body(card)) is not None and body.code.name == each.code
        for kernel in (each.kernels if body.code.kind == "ptx" else ())
    ]
    return f", {_named(names)}" if names else ""


def _named(names: Sequence[str]) -> str:
    kinds = Counter(short(demangled(name)).partition("<")[0][:60] for name in names)
    most = ", ".join(f"{name} ({count})" for name, count in kinds.most_common(NAMED))
    more = f", {len(kinds) - NAMED} more names" if len(kinds) > NAMED else ""
    return f"{len(names)} kernels: {most}{more}"


def _fine(found: Sequence[CodePaths]) -> str:
    names = listed([posixpath.basename(each.path) for each in found], 3, ", ")
    return f"{text_of(found)}: {names}" if found else "no library has device code"


# The CUDA packages of an image, and the compilers that they start.

CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*= *['\"]([^'\"]+)['\"]", re.MULTILINE)
VERSION_OF_TORCH = re.compile(r"^__version__ = ['\"](\d+)\.(\d+)", re.MULTILINE)
NAMED_FOR_TORCH = re.compile(r"torch(\d{2,3})(?!\d)")
TORCHS = ("libtorch", "libc10")
# The names that only torch gives: its C++ namespaces, the C functions of its stable ABI.
NAME_OF_TORCH = re.compile(r"_Z(?:T[VTIS]|GV)?N?[KVr]*(?:2at|3c10|5torch|6caffe2)|aoti_torch_")
FLASHINFER = "/flashinfer/jit/cpp_ext.py"
PARTS = {
    **dict.fromkeys(("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvlink"), True),
    "nvvm/bin/cicc": True,
    "nvvm/libdevice/libdevice.10.bc": False,
    **dict.fromkeys(("include/cuda_runtime.h", "include/crt/host_config.h"), False),
    "include/cuda_runtime_api.h": False,
}
"""The files with which nvcc compiles (``nvcc --dryrun``), and whether they are programs."""
STATED = re.compile(r'"(cuda|cuda_nvcc)"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)')
NVCC_PACKAGE = re.compile(r"/nvidia_cuda_nvcc(?:_cu\d+)?-(\d+\.\d+)[\w.]*\.dist-info/METADATA")
NEEDS_CUDA = re.compile(r'"SM ([\w.+]+) requires CUDA >= ([\d.]+)"')
FAMILY_12 = 12
PACKAGE = re.compile(r"/(flashinfer_\w+)-([^/]+)\.dist-info/METADATA$")
META = re.compile(r"/(flashinfer\w*)/_build_meta\.py$")
META_VERSION = re.compile(r"^__version__ = ['\"]([^'\"]+)", re.MULTILINE)
CUDA_LOCAL = re.compile(r"cu(\d\d)(\d)\b")  # "cu130", and "cu130.sm120" of one GPU family
BLACKWELL = 10  # major version of the compute capability


def check(context: Context) -> Iterator[Check]:
    """Torch, the CUDA runtimes, torch's extensions, and the compilers of Triton and FlashInfer."""
    contents, rules = context.contents, context.rules
    for path, file in contents.files.items():
        if path.endswith(TORCH_VERSION):
            found = CUDA_OF_TORCH.search(file.text or "")
            without = [] if found else [(path, f"{path}: built without CUDA")]
            version = f"CUDA {found[1]}" if found else ""
            yield rules.check("cuda", "torch has CUDA", "a version of CUDA", without, version)
    subject, expected = "one CUDA runtime", "libcudart of one major version"
    yield rules.check("cuda", subject, expected, _older_runtimes(contents), "one or none")
    yield _ptx(context)
    if of_torch := {path: file for path, file in contents.files.items() if _of_torch(file)}:
        subject, expected = "torch has the symbols of its extensions", "every symbol is defined"
        without = [*_without_symbols(of_torch, for_other_torch(contents))]
        yield rules.check("cuda", subject, expected, without, "all are")
    for path, file in contents.files.items():
        if path.endswith(TRITON_COMPILER):
            blackwell = max(cards(context.subject.recipe)).major >= BLACKWELL
            places = _ptxas(path, file.text or "", contents, blackwell=blackwell)
            yield _compiler(context, path, "ptxas for Triton", places)
        if path.endswith(FLASHINFER):
            nvcc = [*_nvcc(contents)]
            yield _compiler(context, path, "nvcc for FlashInfer", nvcc)
            if place := _found(contents, nvcc):
                folder = path.removesuffix(FLASHINFER)
                subject, expected = "the toolkit of nvcc", "all parts, of one fitting version"
                faults, versions = _toolkit(context, place, folder)
                yield rules.check("cuda", subject, expected, faults, versions)
    yield from _flashinfer(context)


def _older_runtimes(contents: Contents) -> list[tuple[str, str]]:
    majors = {
        path: int(match[1])
        for path, file in contents.files.items()
        if file.elf is not None and (match := RUNTIME_LIBRARY.search(path))
    }
    newest = max(majors.values(), default=0)
    older = sorted(path for path, major in majors.items() if major < newest)
    return [(path, f"{path} beside version {newest}") for path in older]


def _ptx(context: Context) -> Check:
    """The oldest driver that the image runs with compiles the PTX that its cards take.

    An ``[[accept]]`` of ``code paths`` says that the driver may compile a library; it says nothing
    of whether the driver can.
    """
    contents, recipe = context.contents, context.subject.recipe
    subject = "the driver compiles the PTX"
    driver = (recipe and recipe.cuda.driver) or driver_of(contents)
    found, unread = [], 0
    versions: set[str] = set()
    for path, file in contents.files.items():
        texts = {(body.version, body.target) for body in _taken(file, cards(recipe))}
        if file.ptx is not None and any(runs_target(file.ptx[1], card) for card in cards(recipe)):
            texts.add(file.ptx)
        elf = file.elf
        unread += bool(elf and elf.modules and not file.fat_binaries and not file.shares)
        versions |= {version for version, _ in texts}
        why = dict.fromkeys(_unread(text, driver, cards(recipe)) for text in sorted(texts))
        if reasons := "; ".join(filter(None, why)):
            found.append((path, f"{path}: {reasons}"))
    expected = "PTX of its CUDA or older"
    if unread and not versions and not any(file.fat_binaries for file in contents.files.values()):
        return Check.skipped("cuda", subject, expected, "the code of no library was read")
    fine = f"PTX {', '.join(sorted(versions))}, driver {driver}" if versions else "none is taken"
    fine += f"; libraries not read: {unread}" if unread else ""
    return context.rules.check("cuda", subject, expected, found, fine)


def _unread(text: tuple[str, str], driver: str | None, wanted: list[Capability]) -> str:
    """Why a driver does not compile PTX of a version for a target; empty: it does."""
    version, target = text
    if not any(runs_target(target, card) for card in wanted):
        return f"its target is {target or 'not stated'}"
    return unread_ptx(version, driver) if driver else "no driver is known"


def _taken(file: File, wanted: list[Capability]) -> Iterator[Body]:
    for each in file.fat_binaries:
        for card in wanted:
            body = each.body(card)
            if body is not None and body.code.kind == "ptx" and (body.kernels or body.version):
                yield body


def _of_torch(file: File) -> bool:
    """Whether a file is one of torch's libraries, or an extension that needs them."""
    names = (file.elf.soname or "", *file.elf.needed) if file.elf else ()
    return any(name.startswith(TORCHS) for name in names)


def _without_symbols(files: Mapping[str, File], others: set[str]) -> Iterator[tuple[str, str]]:
    """The libraries that the image's torch does not fit, each with a symbol."""
    defined = frozenset[int]().union(*(file.defines for file in files.values()))
    for path, file in sorted(files.items()):
        names = filter(NAME_OF_TORCH.match, file.needs)
        lacking = [name for name in names if name_hash(name) not in defined]
        if lacking and path not in others and not file.shares:
            yield path, f"{path} needs {listed(lacking, 1)}"


def for_other_torch(contents: Contents) -> set[str]:
    """The libraries that are named for another torch than the image's, and not loaded.

    A package may have a library for each torch, and load the one for its own: torch-c-dlpack-ext
    0.1.5 has ``libtorch_c_dlpack_addon_torch25-cuda.so`` beside torch 2.11.
    """
    own = {
        "".join(match.groups())
        for path, file in contents.files.items()
        if path.endswith(TORCH_VERSION) and (match := VERSION_OF_TORCH.search(file.text or ""))
    }
    return {
        path
        for path, file in contents.files.items()
        if own and _of_torch(file)
        if (named := NAMED_FOR_TORCH.search(posixpath.basename(path))) and named[1] not in own
    }


def _compiler(context: Context, path: str, subject: str, places: list[str]) -> Check:
    contents = context.contents
    place = _found(contents, places)
    if not place:
        offenders = [(path, f"none of {', '.join(places)} exists")]
    else:
        why = _no_program(contents, place)
        file = contents.files[contents.resolve(place) or ""]
        if not why and "ptxas" in subject and file.release:
            why = _older(file.release, _oldest(max(cards(context.subject.recipe))))
        offenders = [(file.path, f"{place} {why}")] if why else []
    return context.rules.check("cuda", subject, "one of its places has it", offenders, place)


def _found(contents: Contents, places: list[str]) -> str:
    there = [place for place in places if contents.resolve(place) in contents.files]
    programs = (place for place in there if not _no_program(contents, place))
    return next(programs, next(iter(there), ""))


def _no_program(contents: Contents, place: str) -> str:
    """Why a path, which exists, cannot be run; empty: it is an executable ELF file or script."""
    file = contents.files[contents.resolve(place) or ""]
    if why := unusable(file, contents):
        return why
    script = file.elf is not None or (file.text or "").startswith("#!")
    return "" if script else "is neither an ELF file nor a script"


def _oldest(card: Capability) -> str:
    """The oldest CUDA that compiles for a card: its release notes, "New Features"."""
    return "12.9" if card >= (12, 1) or card == (10, 3) else "12.8" if card >= (10, 0) else "0"


def _older(version: str, needed: str) -> str:
    """Why a version is not enough; empty: it is."""
    older = Version(version) < Version(needed)
    return f"is of CUDA {version}, and the card needs {needed} or newer" if older else ""


def _toolkit(context: Context, place: str, folder: str) -> tuple[list[tuple[str, str]], str]:
    """The faults of the toolkit of an nvcc, by path, and its versions.

    ``folder`` has the package flashinfer, which asks nvcc for its version.
    """
    contents, card = context.contents, max(cards(context.subject.recipe))
    real = contents.resolve(place) or place
    homes = [*dict.fromkeys(posixpath.dirname(posixpath.dirname(each)) for each in (place, real))]
    versions = {"nvcc": contents.files[real].release, **_stated(contents, real, homes)}
    faults = []
    # A script may start an nvcc elsewhere, which has the parts.
    for part, program in PARTS.items() if contents.files[real].elf is not None else ():
        there = [f"{home}/{part}" for home in homes if contents.resolve(f"{home}/{part}")]
        if not there:
            faults.append(f"{homes[0]}/{part} does not exist")
        elif program and (why := _no_program(contents, there[0])):
            faults.append(f"{there[0]} {why}")
        else:
            release = contents.files[contents.resolve(there[0]) or ""].release
            versions[posixpath.basename(part)] = release
    versions = {name: version for name, version in versions.items() if version}
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    if len({*versions.values()}) > 1:
        faults.append(f"different versions of CUDA: {shown}")
    needed = _needed(contents.files.get(folder + FLASHINFER_CONTEXT), card)
    older = (f"{name} {_older(version, needed)}" for name, version in versions.items())
    faults += [why for why in older if why.endswith("newer")][:1]
    if not versions:
        faults.append("its version is not known")
    return [(real, f"{place}: {why}") for why in faults], shown


def _stated(contents: Contents, nvcc: str, homes: list[str]) -> dict[str, str]:
    found = {}
    for home in homes:
        file = contents.files.get(contents.resolve(home + TOOLKIT_VERSION) or "")
        for name, version in STATED.findall((file and file.text) or ""):
            found[f"version.json ({name})"] = version
    site, inside, _ = nvcc.partition("/nvidia/")
    for path in contents.files if inside else ():
        if path.startswith(site) and (package := NVCC_PACKAGE.fullmatch(path[len(site) :])):
            found["package"] = package[1]
    return found


def _needed(context: File | None, card: Capability) -> str:
    """The oldest CUDA that FlashInfer takes for a card.

    0.6.8 says "SM 12.x requires CUDA >= 12.9"; 0.7.2 "SM 120 requires CUDA >= 12.8" and "SM 12.1+
    requires CUDA >= 12.9" (``flashinfer/compilation_context.py``).
    """
    own = {f"{card.major}.x", f"{card.major}{card.minor}", f"{card.major}.{card.minor}+"}
    rules = NEEDS_CUDA.findall((context and context.text) or "")
    stated = [version for which, version in rules if which in own]
    fallback = "12.9" if card.major == FAMILY_12 and not rules else _oldest(card)
    return max([*stated, fallback], key=Version) if stated else fallback


def _flashinfer(context: Context) -> Iterator[Check]:
    """The packages of FlashInfer have one version, and are built for torch's CUDA.

    It refuses other public versions (``flashinfer/jit/env.py``).  Kernels for another CUDA need its
    runtime.
    """
    files = context.contents.files
    stated: list[tuple[str, str, str]] = []  # path, package, version
    for path, file in files.items():
        if found := PACKAGE.search(path):
            stated.append((path, found[1], found[2]))
        elif (found := META.search(path)) and (meta := META_VERSION.search(file.text or "")):
            package = "flashinfer_python" if found[1] == "flashinfer" else found[1]
            stated.append((path, package, meta[1]))
    texts = (file.text or "" for path, file in files.items() if path.endswith(TORCH_VERSION))
    torch = {found[1] for text in texts if (found := CUDA_OF_TORCH.search(text))}
    python = (version for _, package, version in stated if package == "flashinfer_python")
    own = {version.partition("+")[0] for version in python}
    faults = []
    for path, package, version in stated:
        others = {each for _, name, each in stated if name == package} - {version}
        public, _, local = version.partition("+")
        cuda = CUDA_LOCAL.match(local)
        if others:
            faults.append((path, f"{path} is of {version}, another file of {', '.join(others)}"))
        elif own and public not in own:
            faults.append((path, f"{package} {version} beside flashinfer_python {', '.join(own)}"))
        elif cuda and torch and f"{cuda[1]}.{cuda[2]}" not in torch:
            faults.append((path, f"{package} {version} beside torch for CUDA {', '.join(torch)}"))
    subject, expected = "FlashInfer's packages", "one version, for torch's CUDA"
    shown = ", ".join(dict.fromkeys(f"{package} {version}" for _, package, version in stated))
    if stated:
        yield context.rules.check("cuda", subject, expected, faults, shown)


def _ptxas(compiler: str, text: str, contents: Contents, *, blackwell: bool) -> list[str]:
    """Where Triton 3.6.0 looks, in its order (knobs.py: ``env_nvidia_tool``; compiler.py:
    ``get_ptxas`` takes the one for Blackwell from compute capability 10.0 on)."""
    name = "ptxas-blackwell" if blackwell and "ptxas_blackwell" in text else "ptxas"
    variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
    own = posixpath.join(posixpath.dirname(compiler), "bin", name)
    return [*filter(None, [contents.environment.get(variable)]), own]


def _nvcc(contents: Contents) -> Iterator[str]:
    """Where FlashInfer 0.6.8 looks, in its order (jit/cpp_ext.py: ``get_cuda_path`` and the rule
    ``nvcc``)."""
    env = contents.environment
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if "FLASHINFER_NVCC" in env:
        yield env["FLASHINFER_NVCC"]
    elif home:
        yield f"{home}/bin/nvcc"
    else:
        yield from (f"{folder}/nvcc" for folder in env.get("PATH", "").split(":") if folder)
        yield "/usr/local/cuda/bin/nvcc"


# Check: the engine's libraries contain machine code for the GPUs that the recipe names.
#
# The libraries of the base are not the farm's to compile: ``code_paths`` checks them.

ENGINE = f"{LAYOUT.engine}/"
GLIBC = re.compile(r"GLIBC_(.+)")


def _summary(code: ElfFile) -> str:
    names = Counter(entry.name for entry in code.code)
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items())) or "no GPU code"


def _machine_code(code: ElfFile) -> set[str]:
    return {entry.name for entry in code.code if entry.kind == "elf"}


def _satisfied(expected: str, found: set[str]) -> bool:
    """Whether machine code for ``expected`` is there; without a suffix, any variant is enough.

    llama.cpp's cmake turns 120 into 120a, and both run on compute capability 12.0.
    """
    if expected[-1] in "af":
        return expected in found
    return bool(found & {expected, f"{expected}a", f"{expected}f"})


def check_architectures(context: Context) -> Iterator[Check]:
    """Every library of the engine has machine code in the variants that the recipe names."""
    contents, rules, recipe = context.added, context.rules, context.subject.recipe
    wanted = recipe.cuda.arch if recipe else ARCHITECTURES
    expected = [
        f"sm_{arch.removesuffix('-real')}" for arch in wanted if not arch.endswith("-virtual")
    ]
    place = ENGINE if any(path.startswith(ENGINE) for path in contents.files) else "/"
    own = [each for each in contents.elves() if each[1].code and each[0].path.startswith(place)]
    if not own:
        needed = f"GPU code for {' '.join(expected)}"
        yield Check.of("architectures", place, needed, "none at all", False)
    for file, parsed in own:
        found, summary = _machine_code(parsed), _summary(parsed)
        complete = all(_satisfied(name, found) for name in expected)
        offenders = [] if complete else [(file.path, summary)]
        for card in cards(recipe) if complete else ():
            if why := hollow(file, card):
                offenders.append((file.path, f"{summary}; {file.path} on {card}: {why}"))
        yield rules.check("architectures", file.path, " ".join(expected), offenders, summary)
    for file in contents.files.values():
        if file.malformed or file.unread_code:
            damage = [(file.path, file.malformed or file.unread_code)]
            yield rules.check("architectures", file.path, "a readable ELF file", damage)


def matching(contents: Contents, name: str) -> list[tuple[File, ElfFile]]:
    """The ELF files whose path, or a link to them, ends in ``name``."""
    found: dict[str, tuple[File, ElfFile]] = {}
    for path in contents.files:
        if path.endswith("/" + name.lstrip("/")):
            file = contents.files.get(contents.resolve(path) or "")
            if file is not None and file.elf is not None:
                found[file.path] = (file, file.elf)
    return list(found.values())


def check_library(probe: LibraryProbe, contents: Contents) -> Iterator[Check]:
    """The checks of a recipe's ``[[probe]] library``."""
    names = [probe.library, *probe.alternatives]
    libraries = next(filter(None, (matching(contents, name) for name in names)), [])
    if not libraries:
        subject = " or ".join(names)
        yield Check.of("library", subject, "is in the image", "no such ELF file", False)
    for file, parsed in libraries:
        found = _machine_code(parsed)
        for name in probe.architectures:
            expected, passed = f"machine code for {name}", _satisfied(name, found)
            yield Check.of("library", file.path, expected, _summary(parsed), passed)
        needed, defined = ", ".join(parsed.needed), file.symbols or frozenset()
        for name in (*probe.needs, *probe.needs_not):
            wanted, there = name in probe.needs, name in parsed.needed
            expected = f"{'needs' if wanted else 'does not need'} {name}"
            yield Check.of("library", file.path, expected, needed, wanted is there)
        for name in (*probe.symbols, *probe.symbols_not):
            wanted, there = name in probe.symbols, name in defined
            lacks = f"not among {len(defined)} symbols" if wanted else "not there"
            expected = f"{'defines' if wanted else 'does not define'} {name}"
            found_name = name if there else lacks
            yield Check.of("library", file.path, expected, found_name, wanted is there)
        for pattern, least in probe.symbols_at_least.items():
            count = len(fnmatch.filter(defined, pattern))
            expected = f"defines at least {least} symbols like {pattern}"
            yield Check.of("library", file.path, expected, str(count), count >= least)
        if probe.glibc is not None:
            yield _glibc(probe.glibc, file, parsed)


def _glibc(newest: str, file: File, parsed: ElfFile) -> Check:
    """A library needs no glibc symbol version newer than ``newest``.

    A version without a number counts as newer than any: GLIBC_PRIVATE belongs to one glibc only,
    GLIBC_ABI_DT_RELR came with 2.36.
    """
    versions = {version for _, several in parsed.versions_needed for version in several}
    needed = [match[1] for version in versions if (match := GLIBC.fullmatch(version))]
    last = max(needed, key=_number, default="")
    passed = not last or _number(last) <= _number(newest)
    found = f"GLIBC_{last}" if last else "no version"
    return Check.of("library", file.path, f"needs glibc {newest} at most", found, passed)


def _number(version: str) -> list[float]:
    """``2.34`` as numbers; anything else counts as the newest."""
    numbers = version.split(".")
    return [float(number) if number.isdigit() else math.inf for number in numbers]
