"""The probes of a recipe for libraries, files and Python code, on images that fail them."""

from __future__ import annotations

import pytest

from builder.recipes.patches import FilePatch
from builder.recipes.probes import FileProbe, LibraryProbe, PythonProbe
from support.smoke_tests import SmokeTest, as_root, compiled, of, small

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]


def test_the_symbols_of_a_library(images: dict[str, str], smoke_test: SmokeTest) -> None:
    how = (
        "mkdir /out && echo 'int used; static int hidden; int f(void) { return hidden; }' "
        "| gcc -x c -shared -fPIC -o /out/other-name.so - && ln -s other-name.so /out/libs.so"
    )
    probe = [LibraryProbe(library="libs.so", symbols=["f", "hidden"], symbols_not=["g", "used"])]
    verdict = smoke_test(compiled(images, how), probe=probe)
    assert [(check.expected, check.passed) for check in of(verdict, "library")] == [
        ("defines f", True),
        ("defines hidden", False),
        ("does not define g", True),
        ("does not define used", False),
    ]


GLIBC = [
    ("-O1", "2.14", "GLIBC_2.14", True),
    ("-O1", "2.4", "GLIBC_2.14", False),
    ("-Wl,-z,pack-relative-relocs", "2.41", "GLIBC_ABI_DT_RELR", False),
]


def test_the_glibc_that_a_library_needs(images: dict[str, str], smoke_test: SmokeTest) -> None:
    code = "#include <string.h>\\nvoid *copies = memcpy; void *own = &own;"
    how = "mkdir /out" + "".join(
        f" && printf '{code}' | gcc -x c -shared -fPIC {option} -o /out/libs{number}.so -"
        for number, (option, *_) in enumerate(GLIBC)
    )
    probe = [
        LibraryProbe(library=f"libs{number}.so", glibc=newest)
        for number, (_, newest, *_) in enumerate(GLIBC)
    ]
    verdict = smoke_test(compiled(images, how), probe=probe)
    assert [(check.expected, check.found, check.passed) for check in of(verdict, "library")] == [
        (f"needs glibc {newest} at most", found, passed) for _, newest, found, passed in GLIBC
    ]


SOURCE = """\
import torch

class Attention:
    def forward(self, x):
        # comment
        if torch.cuda.get_device_capability()[0]  <  12:
            limit = [1,
                     2]
        return x.tolist()

if torch:
    def late(): ...
"""


def test_facts_of_an_installed_python_file(images: dict[str, str], smoke_test: SmokeTest) -> None:
    copy = (
        f"COPY <<EOF /opt/lib/pkg/ops.py\n{SOURCE}EOF\nCOPY <<EOF /opt/lib/pkg/bad.py\ndef (\nEOF\n"
    )
    probe = [
        PythonProbe(
            python="/opt/lib/*/ops.py",
            inside="Attention.forward",
            has=["torch.cuda.get_device_capability()[0] < 12", "limit = [1, 2]", "x.cpu()"],
            missing=["x.tolist()", "y"],
            defines=["limit"],
        ),
        PythonProbe(python="/opt/lib/pkg/ops.py", defines=["late", "Attention", "absent"]),
        PythonProbe(python="/opt/lib/pkg/ops.py", inside="Attention.backward"),
        PythonProbe(python="/opt/lib/pkg/bad.py"),
        PythonProbe(python="/opt/lib/pkg/none.py"),
    ]
    verdict = smoke_test(small(images) + copy, probe=probe)
    assert [(check.expected, check.passed) for check in of(verdict, "python")] == [
        ("exists", True),
        ("defines limit", True),
        ("has torch.cuda.get_device_capability()[0] < 12", True),
        ("has limit = [1, 2]", True),
        ("has x.cpu()", False),
        ("does not have x.tolist()", False),
        ("does not have y", True),
        ("defines late", True),
        ("defines Attention", True),
        ("defines absent", False),
        ("exists", False),
        ("is Python", False),
        ("exists", False),
    ]


def test_text_of_a_file_behind_a_link(images: dict[str, str], smoke_test: SmokeTest) -> None:
    lines = "COPY <<EOF /opt/real/a.txt\nspeed = 12\nEOF\n" + as_root("ln -s real/a.txt /opt/b.txt")
    probe = [
        FileProbe(file="/opt/b.txt", has=["speed = 12"], missing=["speed"], matches=[r"= \d+$"]),
        FileProbe(file="/opt/*/a.txt", sha256="0" * 64),
        FileProbe(file="/opt/none", absent=True),
        FileProbe(file="/opt/b.txt", absent=True),
        FileProbe(file="/opt/none"),
    ]
    verdict = smoke_test(small(images) + lines, probe=probe)
    assert [(check.expected[:20], check.passed) for check in of(verdict, "file")] == [
        ("exists", True),
        ("has speed = 12", True),
        ("does not have speed", False),
        ("matches the expected", True),
        ("exists", True),
        ("sha256 0000000000000", False),
        ("does not exist", True),
        ("does not exist", False),
        ("exists", False),
    ]


def test_the_target_of_a_link_is_read_too(images: dict[str, str], smoke_test: SmokeTest) -> None:
    lines = "COPY <<EOF /opt/real/a.txt\nspeed = 12\nEOF\n" + as_root("ln -s real/a.txt /opt/b.txt")
    verdict = smoke_test(
        small(images) + lines, probe=[FileProbe(file="/opt/b.txt", has=["speed = 12"])]
    )
    assert [check.passed for check in of(verdict, "file")] == [True, True]


def test_the_check_of_a_patch_has_its_name(images: dict[str, str], smoke_test: SmokeTest) -> None:
    probe = FileProbe(file="/opt/patched")
    patch = FilePatch(file="mended.patch", why="it is broken", probe=probe)
    verdict = smoke_test(small(images), patch=[patch])
    (check,) = of(verdict, "patch")
    assert check.subject == "file mended.patch: /opt/patched"
    assert check.state == "failed"
