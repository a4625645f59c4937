"""Libraries and symbols of an image, of files that gcc made: below and above an extended image."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.checks import libraries
from builder.checks import libraries as leftovers
from builder.checks.subject import Rules
from builder.checks.verdict import Check
from builder.image.contents import read_contents
from builder.recipes.probes import Accept
from support.layouts import Image, layer
from support.smoke_tests import context_of, extended_image, hello_recipe

SITE = "opt/venv/lib/python3.12/site-packages"
LIBRARIES = "every needed library is in the image"
SYMBOLS = "every symbol that is needed is defined"
READ = "every ELF file can be read"
HOST = Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/x86_64-linux-gnu/libc.so.6")


@dataclass
class Root:
    """An image's files; ``library`` and ``program`` compile one."""

    work: Path
    files: dict[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def library(self, path: str, source: str, *needs: str, flags: tuple[str, ...] = ()) -> bytes:
        return self._compiled(path, source, ["-shared", "-fPIC", *self._linked(needs), *flags])

    def program(self, path: str, source: str, *needs: str, flags: tuple[str, ...] = ()) -> bytes:
        allowed = ["-Wl,--unresolved-symbols=ignore-all", "-rdynamic"]
        return self._compiled(path, source, [*allowed, *self._linked(needs), *flags])

    def _linked(self, names: tuple[str, ...]) -> list[str]:
        """Options for libraries that need not be there: the linker is given empty ones."""
        folder = self.work / "stand-ins"
        folder.mkdir(exist_ok=True)
        for name in names:
            empty = ["gcc", "-shared", f"-Wl,-soname,{name}", "-o", folder / name, "-x", "c", "-"]
            subprocess.run(empty, input=b"", check=True)
        options = [f"-L{folder}", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
        return [*options, *(f"-l:{name}" for name in names)]

    def _compiled(self, path: str, source: str, options: list[str]) -> bytes:
        out = self.work / "out"
        command = ["gcc", "-x", "c", "-", "-x", "none", "-w", "-o", out, *options]
        subprocess.run(command, input=source.encode(), check=True)
        self.files[path] = out.read_bytes()
        return self.files[path]

    def checked(self, *, extends: bool = False, **accept: str) -> dict[str, Check]:
        """The checks by subject; ``extends``: all files are of the image below."""
        image = Image()
        base = dict(self.files)
        for path, host in zip(("lib64/ld-linux-x86-64.so.2", "lib/libc.so.6"), HOST, strict=True):
            base.setdefault(path, host.read_bytes())
        folders = {
            str(parent) for path in base for parent in Path(path).parents if str(parent) != "."
        }
        entries = [(each, None) for each in sorted(folders)] + list(base.items())
        layers = [layer(*entries), layer(("opt/builder/x", b"x"))]
        blobs = image.in_folder(
            Path(tempfile.mkdtemp(dir=self.work)) / "blobs", image.manifest(*layers)
        )
        contents = read_contents(blobs, self.work)
        contents.config["Env"] = [f"{name}={text}" for name, text in self.env.items()]
        context = context_of(
            contents, hello_recipe(), extended=extended_image(1, {}) if extends else None
        )
        rules = [Accept(why="so", check=check, path=path) for check, path in accept.items()]
        context.__dict__["rules"] = Rules(rules)
        found = [*libraries.check(context), *leftovers.check_leftovers(context)]
        return {each.subject: each for each in found}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def nope(root: Root, where: str) -> None:
    """A file that needs ``nope_fn``, which nothing defines."""
    call = "extern int nope_fn(void); int f(void) { return nope_fn(); }"
    match where:
        case "a plugin":
            root.library("opt/engine/lib/libggml-cuda.so", call, "libc.so.6")
        case "a library of a program":
            root.library("opt/engine/lib/liba.so", call, "libc.so.6")
            options = ("-Wl,-rpath,$ORIGIN/../lib",)
            root.program("opt/engine/bin/p", "int main() {}", "liba.so", flags=options)
        case "a program":
            root.program("opt/engine/bin/p", call + "int main() { return f(); }")
        case "a Python extension":
            root.library(f"{SITE}/vllm/_C.abi3.so", call, "libc.so.6")
        case "data":
            source = "extern int nope_fn; int *f(void) { return &nope_fn; }"
            root.library("opt/engine/lib/liba.so", source, "libc.so.6")
        case "a library without section headers":
            root.library("opt/engine/lib/liba.so", call, "libc.so.6")
            header = bytearray(root.files["opt/engine/lib/liba.so"])
            header[0x28:0x30] = bytes(8)  # e_shoff
            header[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
            root.files["opt/engine/lib/liba.so"] = bytes(header)
        case "defined only where nobody looks":
            root.library("opt/engine/lib/libggml-cuda.so", call, "libc.so.6")
            root.library("opt/other/libother.so", "int nope_fn(void) { return 1; }")


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize(
    "where",
    [
        "a plugin",
        "a library of a program",
        "a program",
        "a Python extension",
        "data",
        "a library without section headers",
        "defined only where nobody looks",
    ],
)
def test_an_undefined_symbol_is_found(root: Root, where: str, *, extends: bool) -> None:
    nope(root, where)
    found = root.checked(extends=extends)[SYMBOLS]
    assert not found.passed
    assert "needs nope_fn" in found.found


def test_symbols_are_defined_by_whatever_is_loaded_with_a_file(root: Root) -> None:
    call = "extern int {0}(void); int f_{0}(void) {{ return {0}(); }}"
    # The interpreter's, for an extension; the program's own, for its plugin.
    root.program("usr/bin/python3.12", "int PyList_New() { return 1; } int main() {}")
    root.library(f"{SITE}/a/_a.abi3.so", call.format("PyList_New"), "libc.so.6")
    root.library("usr/lib/plugins/p.so", call.format("PyList_New"), "libc.so.6")
    # A package's that is imported before: ld.so does not find it.
    root.library(f"{SITE}/torch/lib/libc10.so", "int c10_f() { return 1; }", "libc.so.6")
    root.library(f"{SITE}/vllm/_C.abi3.so", call.format("c10_f"), "libc10.so", "libc.so.6")
    # The driver's; what may be missing.
    root.library("usr/lib/libd.so", call.format("cuMemCreate"), "libcuda.so.1", "libc.so.6")
    weak = "extern int w(void) __attribute__((weak)); int g(void) { return w ? w() : 0; }"
    root.library("usr/lib/libw.so", weak, "libc.so.6")
    # The library's that needs it, as of UCX: libucs.so needs libucm.so, which calls libucs.so.
    root.library("usr/lib/libucm.so", call.format("ucs_f"), "libc.so.6")
    root.library("usr/lib/libucs.so", "int ucs_f() { return 1; }", "libucm.so", "libc.so.6")
    # The preloaded library's; a package's, for an extension in a source tree.
    root.env = {"LD_PRELOAD": "libearly.so"}
    root.library("usr/lib/libearly.so", "int early_f() { return 1; }")
    root.program("usr/bin/q", call.format("early_f") + "int main() {}", "libc.so.6")
    root.library("src/v/_C.abi3.so", call.format("c10_f"), "libc10.so", "libc.so.6")
    # A library in a directory that ld.so names.
    root.library("opt/q/lib/x86_64-linux-gnu/libl.so", "int l_f() { return 1; }")
    options = ("-Wl,-rpath,$ORIGIN/../$LIB",)
    root.program("opt/q/bin/q", call.format("l_f") + "int main() {}", "libl.so", flags=options)
    # A program's library that finds its own by the program's run path: it is loaded already.
    root.library("opt/p/l/libb.so", "int b_f() { return 1; }", flags=("-Wl,-soname,libb.so",))
    root.library("opt/p/l/liba.so", call.format("b_f"), "libb.so")
    options = ("-Wl,-rpath,/opt/p/l",)
    root.program("opt/p/p", "int main() {}", "liba.so", "libb.so", flags=options)
    found = root.checked()
    assert found[SYMBOLS].found == "all are"
    assert found[LIBRARIES].passed, found[LIBRARIES].found


@pytest.mark.parametrize(
    ("path", "needs"),
    [
        (f"{SITE}/nixl_ep/nixl_ep_cpp.so", "libcudart.so.12"),
        (f"{SITE}/vllm/_C.abi3.so", "libnowhere.so.7"),
        ("usr/lib/liba.so", "libnowhere.so.7"),
    ],
)
def test_a_missing_library_below_an_extension_is_accepted_only_by_path(
    root: Root, path: str, needs: str
) -> None:
    root.library(path, "int f;", needs, "libc.so.6")
    root.library(f"{SITE}/nvidia/lib/libcudart.so.13", "int f;")
    for extends in (False, True):
        found = root.checked(extends=extends)[LIBRARIES]
        assert (found.passed, found.found) == (False, f"/{path} needs {needs}")
    assert root.checked(extends=True, closure=f"/{path}")[LIBRARIES].passed


def test_the_loader_of_a_program_must_exist(root: Root) -> None:
    root.program("usr/bin/p", "int main() {}", flags=("-Wl,-dynamic-linker,/lib/ld-musl.so.1",))
    assert root.checked(extends=True)[LIBRARIES].found == "/usr/bin/p needs /lib/ld-musl.so.1"


def test_a_damaged_library_below_an_extension_is_found(root: Root) -> None:
    path = f"{SITE}/vllm/_C.abi3.so"
    root.files[path] = root.library(path, "int f;")[:700]
    assert path in root.checked(extends=True)[READ].found


@pytest.mark.parametrize(
    ("path", "conf", "env", "hides"),
    [
        ("usr/local/cuda/compat/libcuda.so.1", "/usr/local/cuda/compat", {}, True),
        (
            "usr/local/cuda/compat/libcuda.so.1",
            "",
            {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"},
            True,
        ),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.1", "", {}, True),
        ("usr/lib/libnvidia-ptxjitcompiler.so.1", "", {}, True),
        ("usr/local/cuda/lib64/stubs/libcuda.so", "", {}, False),  # for a linker
        ("usr/local/cuda/compat/libcuda.so.1", "", {}, False),
    ],
)
def test_a_library_of_the_driver_below_an_extension_must_not_hide_the_cards(
    root: Root, path: str, conf: str, env: dict[str, str], *, hides: bool
) -> None:
    root.library(path, "int f;")
    root.files["etc/ld.so.conf.d/00-cuda-compat.conf"] = f"{conf}\n".encode()
    root.env = env
    found = root.checked(extends=True)["no driver stub"]
    assert found.passed is not hides
    assert not hides or f"/{path}" in found.found
    assert not hides or root.checked(extends=True, leftovers=f"/{path}")["no driver stub"].passed
    assert not hides or not root.checked()["no driver stub"].passed
