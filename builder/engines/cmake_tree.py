"""Reads a tree with CMakeLists.txt for a recipe: its servers, and how CUDA is switched on.

A value is taken only where the tree's own text has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from builder.engines.family import Draft, ReadableTree
from builder.engines.layout import LAYOUT
from builder.recipes.draft import DraftTable, Line

PROGRAM = re.compile(r"(?:(?i:\badd_executable)\s*\(\s*|(?i:\bset)\s*\(\s*TARGET\s+)\"?([\w.-]+)")
SWITCH = re.compile(
    r"(?i:\boption)\s*\(\s*((?:\w*_)?(?:CUDA|CUBLAS))\b(?:\s+\"[^\"]*\")?\s*(\w*)\s*\)"
)
"""An option that decides whether CUDA code is compiled: its name, and its default."""
LANGUAGE = re.compile(r"(?i)\b(?:project|enable_language)\s*\([^)]*\bCUDA\b")
SERVES = re.compile(r"(?:.*[-_.])?serv(?:er|e)")
COMMENT = re.compile(r"#[^\n]*")
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
GGML = "https://github.com/ggml-org/ggml"
KINDS = ("CMakeLists.txt", "Makefile", "meson.build", "Cargo.toml", "go.mod", "pyproject.toml")
"""Files at the top that say how a tree is built."""


@dataclass(frozen=True, slots=True)
class CmakeServers:
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
    text = COMMENT.sub("", tree.texts(["CMakeLists.txt"]).get("CMakeLists.txt", ""))
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
    text = COMMENT.sub("", "\n".join(tree.texts(lists).values()))
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


def draft(tree: ReadableTree, cuda: DraftTable, base: str) -> Draft | None:
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
        tests = [Line("git", GGML), Line("commit", synced)]
        ggml.append(
            DraftTable("[ggml.tests]", tests, f"The tree has none; {SYNCED} names its ggml.")
        )
    probe = [Line("run", [server, "--help"]), Line("contains", [found.port])]
    return Draft(
        base,
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
