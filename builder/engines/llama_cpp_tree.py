"""Reads a tree of llama.cpp for a recipe of the family ``llama-cpp``.

A value is taken only where the tree's own text decides it: option values out of
``common/arg.cpp`` and ``common/speculative.cpp``, names of cache types out of ``ggml/src/ggml.c``.
Computed values, and values that are written in another way, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from builder.core.errors import RecipeError
from builder.engines.tree import Draft, ReadableTree, is_lfs_pointer
from builder.recipes.draft import DraftTable, Line
from builder.recipes.schema import Cuda

MARKS = {"CMakeLists.txt", "ggml/CMakeLists.txt", "include/llama.h"}
PROGRAMS = ("llama-server", "llama-cli", "llama-bench")
# tools/server/CMakeLists.txt of older trees, scripts/ui-assets.cmake of newer ones.
PAGES = (
    *("tools/server/public/index.html.gz", "tools/server/public/index.html"),
    "tools/ui/dist/index.html",
)
BASE = "cuda-13.0"
DISK = 8.0  # GiB: a build directory of libggml-cuda and three programs takes less
OPTIONS = "common/arg.cpp"
DRAFTERS = "common/speculative.cpp"
TYPES = "ggml/src/ggml.c"
CUDA = "ggml/src/ggml-cuda/CMakeLists.txt"
GGML = "ggml/CMakeLists.txt"
SWITCHES = ("GGML_CUDA", "GGML_CUDA_NO_VMM")
"""ggml's options that the family sets and that no later check of the tree replaces."""
NUMBER = ("CMakeLists.txt", "cmake/build-info.cmake")

FORK = f'Read from {OPTIONS}. Add [[probe]] option = "--NAME" for an option of this fork alone.'

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
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

    ``cuda`` is the code that the image shall have.  Raises ``RecipeError`` where the family cannot
    build the tree, with the reasons.
    """
    if not tree.paths >= MARKS:
        return None
    lists = [
        path for path in tree.paths if re.fullmatch(r"tools/(?:[\w-]+/)?CMakeLists\.txt", path)
    ]
    texts = tree.texts([*lists, *NUMBER, GGML, CUDA, OPTIONS, DRAFTERS, TYPES])
    targets = [name for name in PROGRAMS if _is_target(name, [texts[path] for path in lists])]
    _require_buildable(tree, targets, texts)
    return Draft(
        BASE,
        {
            "cuda": [_cuda(cuda, rewrites=rewrites_120(texts.get(CUDA, "")))],
            "llama": [DraftTable("[llama]", [_number(tree), _page(tree)])],
            "cmake": [DraftTable("[[cmake]]", [Line("targets", targets)])],
            "build": [DraftTable("[build]", [Line("disk", DISK)])],
            "probe": [*_probes(texts)],
        },
        frozenset(_options(COMMENT.sub("", texts.get(OPTIONS, "")))),
    )


def _require_buildable(tree: ReadableTree, targets: list[str], texts: Mapping[str, str]) -> None:
    reasons = []
    if "llama-server" not in targets:
        missing = "no CMakeLists.txt below tools/ makes llama-server"
        if "examples/server/CMakeLists.txt" in tree.paths:
            missing += (
                ", examples/server does: builder does not write the override that builds examples"
            )
        reasons.append(missing)
    options = re.findall(r"(?i)\boption\s*\(\s*(\w+)", NOT_CMAKE.sub("", texts[GGML]))
    for name in SWITCHES:
        if name not in options:
            found = ", ".join(each for each in options if re.search("CUDA|CUBLAS", each))
            reasons.append(
                f"{GGML} has no option {name}, which the family sets; its options for CUDA: "
                f"{found or 'none'}"
            )
    if _overwrites_number(texts):
        reasons.append(
            "its cmake overwrites LLAMA_BUILD_NUMBER: --version would show neither the build "
            "number nor the commit"
        )
    if reasons:
        raise RecipeError(
            "the tree is one of llama.cpp's, but no recipe can be written for it",
            "\n".join(reasons),
            "take another commit with --ref, or write a recipe by hand: docs/recipes.md",
        )


def _overwrites_number(texts: Mapping[str, str]) -> bool:
    """Whether cmake sets the number and ignores -D."""
    text = "\n".join(NOT_CMAKE.sub("", texts.get(path, "")) for path in NUMBER)
    settings = re.findall(r"set\(LLAMA_BUILD_NUMBER\s([^)]*)\)", text)
    looks = re.search(r"NOT\s+DEFINED\s+LLAMA_BUILD_NUMBER", text) is not None
    return any("CACHE" not in setting for setting in settings) and not looks


def _is_target(name: str, texts: list[str]) -> bool:
    call = re.compile(rf'\b(?i:set\s*\(\s*\w+|add_executable\s*\()\s*"?{re.escape(name)}"?[\s)]')
    return any(call.search(NOT_CMAKE.sub("", text)) for text in texts)


def rewrites_120(cmake: str) -> bool:
    """Whether ggml's cmake turns a plain 120 into 120a."""
    return TO_12XA.search(NOT_CMAKE.sub("", cmake)) is not None


def _cuda(cuda: Cuda, *, rewrites: bool) -> DraftTable:
    values = cuda.model_dump(exclude_unset=True)
    if rewrites:
        comment = "ggml's cmake makes 120a of it" if cuda.arch == ["120"] else ""
    else:
        values["arch"] = [re.sub(r"^(12[0-9])(?=-|$)", r"\1a", each) for each in cuda.arch]
        comment = f"not 120: the cmake of this tree makes no {values['arch'][0]} of it"
    values = {"arch": values.pop("arch"), "vmm": values.pop("vmm", False)} | values
    return DraftTable(
        "[cuda]",
        [Line(key, value, comment if key == "arch" else "") for key, value in values.items()],
    )


def _number(tree: ReadableTree) -> Line:
    count, named = tree.commits(), re.match(r"(?:.*-)?b([0-9]+)(?![0-9.])", tree.name)
    other = named is not None and int(named[1]) != count
    return Line("build_number", count, f"the commits up to {tree.name}" if other else "")


def _page(tree: ReadableTree) -> Line:
    page = next((path for path in PAGES if path in tree.paths), None)
    if page is None:
        return Line("ui", value=False, comment="the built page is not in the tree")
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


def _probes(texts: Mapping[str, str]) -> Iterator[DraftTable]:
    options = COMMENT.sub("", texts.get(OPTIONS, ""))
    known = {
        "--spec-type": _drafters(options, COMMENT.sub("", texts.get(DRAFTERS, ""))),
        "--cache-type-k": _cache_types(options, COMMENT.sub("", texts.get(TYPES, ""))),
    }
    read = {option: values for option, values in known.items() if values}
    for option, values in read.items():
        comment = FORK if option == next(iter(read)) else ""
        yield DraftTable("[[probe]]", [Line("option", option), Line("has", values)], comment)


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


def _options(options: str) -> Iterator[str]:
    """The options of the server."""
    for found in OPTION.finditer(options):
        if _of_server(options, found.end()):
            yield from re.findall(r'"([^"]+)"', found[1])


def _of_server(options: str, at: int) -> bool:
    """Whether the option that is added at a place is one of the server."""
    end = options.find("add_opt(", at)
    programs = EXAMPLES.search(options, at, end if end > 0 else len(options))
    return programs is None or "LLAMA_EXAMPLE_SERVER" in programs[1]


def _cache_types(options: str, types: str) -> list[str]:
    """The values of --cache-type-k."""
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
