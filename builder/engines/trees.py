"""Reads a source tree for a recipe: its servers, its options, how CUDA is switched on.

A value is taken only where the tree's own text decides it: computed values, and values that are
written in another way, are left out.  No build needs this.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from builder.core.errors import RecipeError
from builder.core.sizes import RELEASE
from builder.engines.family import is_lfs_pointer
from builder.engines.layout import LAYOUT
from builder.engines.llama_cpp import (
    COMMIT_DIGITS,
    FEATURES,
    PAGE_SOURCE,
    PAGES,
    SERVER,
    page_files,
)
from builder.recipes.edit import DraftTable, Line, lines_of
from builder.recipes.schema import Cuda

# A tree with CMakeLists.txt, and servers in it.

PROGRAM = re.compile(r"(?:(?i:\badd_executable)\s*\(\s*|(?i:\bset)\s*\(\s*TARGET\s+)\"?([\w.-]+)")
SWITCH = re.compile(
    r"(?i:\boption)\s*\(\s*((?:\w*_)?(?:CUDA|CUBLAS))\b(?:\s+\"[^\"]*\")?\s*(\w*)\s*\)"
)
"""An option that decides whether CUDA code is compiled: its name, and its default."""
LANGUAGE = re.compile(r"(?i)\b(?:project|enable_language)\s*\([^)]*\bCUDA\b")
SERVES = re.compile(r"(?:.*[-_.])?serv(?:er|e)")
NOT_CMAKE = re.compile(r"#[^\n]*")
SOURCE = re.compile(
    r"(?!.*(?:^|/)(?:tests?|bench|third_?party|vendor)/).*serve.*\.(?:c|cc|cpp|h|hpp)"
)
NO_SERVERS = re.compile(r"(?:^|/)(?:tests?|bindings|bench|third_?party|vendor)/")
HOST = re.compile(r'"(--(?:host|listen-ip|listen|ip|address|bind))"')
PORT = re.compile(r'"(--(?:listen-)?port)"')
HEALTH = ("health", "healthz", "v1/models")
SHARED = re.compile(r"(?i:\boption)\s*\(\s*(\w+_BUILD_SHARED_GGML\w*)")
MODULES = re.compile(r"pkg_check_modules\s*\(\s*\w+\s+REQUIRED\s+([^)]*)\)")
NEWEST_CUDA = re.compile(r"CUDA_COMPILER_VERSION\}?\s+VERSION_LESS\s+\"?([0-9.]+)")
PORT_OF_IMAGE = 8080
VERSION = re.compile(r"(?i:\bproject)\s*\([^)]*\bVERSION\s+([0-9]+(?:\.[0-9]+)+)")
LLAMA_VERSION = re.compile(r"\bset\(LLAMA_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)\)")
TESTS = re.compile(r"(?:ggml/)?tests/test-backend-ops\.cpp")
SYNCED = "scripts/sync-ggml.last"
"""The commit of ggml that whisper.cpp has."""
GGML_HOME = "https://github.com/ggml-org/ggml"
KINDS = ("CMakeLists.txt", "Makefile", "meson.build", "Cargo.toml", "go.mod", "pyproject.toml")
"""Files at the top that say how a tree is built."""


class ReadableTree(Protocol):
    """A source as a family reads it to write a recipe: a commit, or a tree of an sdist."""

    @property
    def name(self) -> str:
        """The tag, the branch or the release that names it, else the commit."""

    @property
    def commit(self) -> str:
        """Its commit; empty: not known."""

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""

    def texts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """The texts of the files that exist."""

    def commits(self) -> int | None:
        """The number of commits in its history; None: it has none."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a recipe that a family reads from a tree."""

    base: str
    tables: Mapping[str, Sequence[DraftTable]]
    """By name: "cuda", "cmake", "probe" and so on."""
    options: frozenset[str] = frozenset()
    """Options that ``--help`` of the engine will list; more may be there."""

    @property
    def values(self) -> Mapping[str, Sequence[str]]:
        """The values of the options that it probes, as far as the tree shows them."""
        probes = [{line.key: line.value for line in each.lines} for each in self.tables["probe"]]
        return {probe["option"]: probe["has"] for probe in probes if "option" in probe}


class CmakeServers(NamedTuple):
    """The servers of a tree, and what a recipe of it needs."""

    servers: Sequence[str]
    """Programs with "server" or "serve" as the last part of their names."""
    switches: Sequence[str]
    """Options for CUDA."""
    language: bool
    """CUDA is a language of the project."""
    modules: Sequence[str]
    """Libraries that pkg-config must know."""
    cuda: str
    """The oldest CUDA that it takes; empty: it does not say so."""
    host: str
    port: str
    health: str
    """Options and page of its servers; empty: their sources name none, or several."""
    shared: Sequence[str]
    """Options that make ggml a library of its own."""

    @property
    def lacks(self) -> list[str]:
        """What a server of it cannot do without, and was not found."""
        code = self.switches or self.language
        lacking = [] if code else ["an option for CUDA, or CUDA as a language"]
        if not self.servers:
            return [*lacking, "a program that is named like a server"]
        of_server = {"host": self.host, "port": self.port, "health page": self.health}
        return lacking + [
            f"a {name} in its sources" for name, there in of_server.items() if not there
        ]

    @property
    def text(self) -> str:
        """What was found, in one line."""
        found = f"option {' or '.join(self.switches)}" if self.switches else ""
        how = found or ("always compiled" if self.language else "none")
        parts = ["CMakeLists.txt", f"CUDA: {how}", f"servers: {', '.join(self.servers) or 'none'}"]
        parts += [f"CUDA {self.cuda} or newer"] if self.cuda else []
        parts += [f"libraries by pkg-config: {', '.join(self.modules)}"] if self.modules else []
        return "; ".join(parts)


def switches(cmake: str) -> dict[str, str]:
    """The options that decide whether CUDA code is compiled, with their defaults.

    GGML_CUDA_FORCE_CUBLAS is a choice within GGML_CUDA.
    """
    found = {each[1]: each[2] or "OFF" for each in SWITCH.finditer(cmake)}
    return {
        name: value
        for name, value in found.items()
        if not any(name.startswith(f"{other}_") for other in found)
    }


def own_version(tree: ReadableTree) -> str:
    """The version that the CMakeLists.txt at the top says: "1.8.5", "0.5.0-dev"; empty: none."""
    text = NOT_CMAKE.sub("", tree.texts(["CMakeLists.txt"]).get("CMakeLists.txt", ""))
    if len(parts := LLAMA_VERSION.findall(text)) == 3:
        return ".".join(parts) + ("-dev" if "LLAMA_BUILD_IS_DEV" in text else "")
    found = VERSION.search(text)
    return found[1] if found else ""


def read(tree: ReadableTree) -> CmakeServers | None:
    """The servers of a tree; None: it has no CMakeLists.txt at its top."""
    if "CMakeLists.txt" not in tree.paths:
        return None
    lists = [
        path
        for path in sorted(tree.paths)
        if re.search(r"(?:^|/)CMakeLists\.txt$", path) and not NO_SERVERS.search(path)
    ]
    text = NOT_CMAKE.sub("", "\n".join(tree.texts(lists).values()))
    code = "\n".join(tree.texts(filter(SOURCE.fullmatch, tree.paths)).values())
    oldest = NEWEST_CUDA.search(text)
    return CmakeServers(
        servers=sorted({each[1] for each in PROGRAM.finditer(text) if SERVES.fullmatch(each[1])}),
        switches=sorted(switches(text)),
        language=LANGUAGE.search(text) is not None,
        modules=[
            word for each in MODULES.finditer(text) for word in each[1].split() if word.islower()
        ],
        cuda=oldest[1] if oldest else "",
        host=_only(HOST, code),
        port=_only(PORT, code),
        health=next((page for page in HEALTH if f'"/{page}"' in code), ""),
        shared=sorted(each[1] for each in SHARED.finditer(text)),
    )


def described(tree: ReadableTree) -> str:
    """What a tree has and lacks of a CUDA server that is built by cmake, in one line."""
    found = read(tree)
    if found is None:
        kinds = " and ".join(kind for kind in KINDS if kind in tree.paths)
        return f"{kinds or 'no file that says how it is built'}; lacks: CMakeLists.txt at its top"
    return f"{found.text}; lacks: {', '.join([*found.lacks, 'a directory ggml'])}"


def _ggml_server(tree: ReadableTree, cuda: DraftTable) -> Draft | None:
    """The recipe of a tree with ggml inside; None: it has none in ``ggml``, or more or less than
    one server that can be started."""
    found = read(tree)
    modules = tree.texts([".gitmodules"]).get(".gitmodules", "")
    inside = "ggml/CMakeLists.txt" in tree.paths or re.search(r"(?m)path\s*=\s*ggml\s*$", modules)
    if found is None or not inside or found.lacks or len(found.servers) > 1:
        return None
    (server,) = found.servers
    own = [name for name in found.switches if name != "GGML_CUDA"]
    define = {**dict.fromkeys(found.shared, True)}
    call = [Line("targets", [server]), *([Line("define", define)] if define else [])]
    address = [found.host, "0.0.0.0", found.port, str(PORT_OF_IMAGE)]  # noqa: S104
    image = [
        Line("entrypoint", [f"{LAYOUT.programs}/{server}", *address]),
        Line("port", PORT_OF_IMAGE),
        Line("health", found.health),
    ]
    ggml = [DraftTable("[ggml]", [Line("switch", own[0])])] if own else []
    synced = tree.texts([SYNCED]).get(SYNCED, "").strip()
    if re.fullmatch("[0-9a-f]{40}", synced) and not any(map(TESTS.fullmatch, tree.paths)):
        tests = [Line("git", GGML_HOME), Line("commit", synced)]
        ggml.append(
            DraftTable("[ggml.tests]", tests, f"The tree has none; {SYNCED} names its ggml.")
        )
    probe = [Line("run", [server, "--help"]), Line("contains", [found.port])]
    return Draft(
        BASE,
        {
            "cuda": [cuda],
            "ggml": ggml,
            "cmake": [DraftTable("[[cmake]]", call)],
            "image": [DraftTable("[image]", image)],
            "probe": [DraftTable("[[probe]]", probe)],
        },
    )


def _only(pattern: re.Pattern[str], text: str) -> str:
    found = {*pattern.findall(text)}
    return str(found.pop()) if len(found) == 1 else ""


# A tree of llama.cpp.

MARKS = {"CMakeLists.txt", "ggml/CMakeLists.txt", "include/llama.h"}
PROGRAMS = (SERVER, "llama-cli", "llama-bench")
MADE_IN = re.compile(r"(tools|examples)/(?:[\w-]+/)?CMakeLists\.txt")
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
NUMBER = ("CMakeLists.txt", "cmake/build-info.cmake")
VERSION_PARTS = ("MAJOR", "MINOR", "PATCH")

FORK = f'Read from {OPTIONS}. Add [[probe]] option = "--NAME" for an option of this fork alone.'

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TARGET = r'\b(?i:set\s*\(\s*\w+|add_executable\s*\()\s*"?{}"?[\s)]'
TO_12XA = re.compile(r'REGEX\s+REPLACE\s+"\^\(12\[0-9\]\)[^"]*"\s+"\\\\1a')
SPEC_LITERAL = re.compile(r'\{\s*"--spec-type"\s*\}\s*,\s*"\[([\w.+|-]+)\]"')
SPEC_FUNCTION = re.compile(r'\{\s*"--spec-type"\s*\}\s*,\s*common_speculative_all_types_str\(\)')
SPEC_NAMES = re.compile(r"common_speculative_type_from_name_map\s*=\s*\{(.*?)\};", re.DOTALL)
SPEC_TEXTS = re.compile(r"common_speculative_type_to_str\([^)]*\)\s*\{(.*?)\n\}", re.DOTALL)
CACHE_OPTION = re.compile(r'"--cache-type-k"\s*\}\s*,(?:(?!add_opt).)*get_all_kv_cache_types', re.S)
CACHE_TYPES = re.compile(r"kv_cache_types\s*=\s*\{([^}#]*)\}")
OPTION = re.compile(r'common_arg[({]\s*\{((?:\s*"--?[A-Za-z][\w-]*"\s*,?)+)\}')
EXAMPLES = re.compile(r"set_examples\(\{([^}]*)\}\)")


def _llama_cpp(tree: ReadableTree, cuda: Cuda) -> Draft | None:
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
    if page is None and {*page_files(PAGE_SOURCE)} <= tree.paths:
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


def _ggml(tree: ReadableTree, cuda: Cuda) -> Draft | None:
    """The recipe of a tree with ggml inside, where its files say how to start its server."""
    text = tree.texts([CUDA]).get(CUDA)
    unread = "ggml is a submodule, which is not read: 120a where its cmake leaves 120 as it is"
    table = _cuda(cuda, rewrites=text is None or rewrites_120(text))
    if text is None:
        table = DraftTable("[cuda]", [replace(line, comment="") for line in table.lines], unread)
    return _ggml_server(tree, table)


READERS: Mapping[str, Callable[[ReadableTree, Cuda], Draft | None]] = {
    "llama-cpp": _llama_cpp,
    "ggml": _ggml,
}
"""The families whose trees are recognized: each makes the recipe of a tree, with such CUDA code;
None: it is a tree of another kind."""
