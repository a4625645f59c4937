"""What an image must and must not hold: each check fails on its own broken image."""

from __future__ import annotations

import subprocess
import sys

import pytest

from builder.checks.check import check_layers, run_programs
from builder.checks.subject import Subject
from builder.checks.verdict import Verdict
from builder.recipes.probes import Accept, Budget
from support.smoke_tests import SmokeTest, as_root, compiled, docker, failed, failures_of, of, small

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

TOKEN = "ghp_" + "a1B2" * 9


def test_the_small_image_fails_only_for_its_missing_libraries(clean: Verdict) -> None:
    assert failed(clean) == {"closure", "contract", "runs", "output", "option"}
    assert [check.subject for check in failures_of(clean, "contract")] == ["driver"]


def test_each_part_of_the_configuration_is_held_to_the_recipe(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    lines = (
        'USER root\nENTRYPOINT ["sh"]\nCMD ["--verbose"]\nEXPOSE 9090\nHEALTHCHECK NONE\n'
        "ENV HELLO_ARG_HOST=127.0.0.1\nLABEL builder.recipe=other\n"
    )
    verdict = smoke_test(small(images) + lines, labels={"builder.recipe": "hello-sm120-0.1.0"})
    shown = {check.subject: check.found for check in failures_of(verdict, "contract")}
    shown.pop("driver")
    assert shown == {
        "user": "root",
        "entrypoint": '["sh"]',
        "command": '["--verbose"]',
        "exposed port": "8080/tcp, 9090/tcp",
        "health check": "NONE",
        "environment HELLO_ARG_HOST": "127.0.0.1",
        "label builder.recipe": "other",
    }


def test_a_missing_label_fails(images: dict[str, str], smoke_test: SmokeTest) -> None:
    verdict = smoke_test(small(images), labels={"builder.none": "abc"})
    assert ("label builder.none", "not set") in [
        (check.subject, check.found) for check in failures_of(verdict, "contract")
    ]


def test_an_empty_value_fails(images: dict[str, str], smoke_test: SmokeTest) -> None:
    lines = 'LABEL commit=""\nENV BUILD_COMMIT=\nUSER root\nARG VERSION\nRUN true\n'
    verdict = smoke_test(small(images) + lines + "USER 10001:10001\n", "--build-arg=VERSION=")
    (check,) = [c for c in failures_of(verdict, "contract") if c.expected == "none is empty"]
    for shown in ("label commit", "environment BUILD_COMMIT", "argument VERSION"):
        assert shown in check.found


@pytest.mark.parametrize(("driver", "passes"), [(None, True), ("580.65.06", True), ("570", False)])
def test_the_driver_is_that_of_the_cuda_in_the_image(
    images: dict[str, str], smoke_test: SmokeTest, driver: str | None, passes: bool
) -> None:
    layer = "USER root\nRUN touch /usr/lib/libcudart.so.13.0.96\nUSER 10001:10001\n"
    cuda = smoke_test.recipe.cuda.model_copy(update={"driver": driver})
    verdict = smoke_test(small(images) + layer, cuda=cuda)
    (check,) = [check for check in of(verdict, "contract") if check.subject == "driver"]
    assert check.passed is passes
    assert "580" in check.found


def test_a_budget_is_kept(images: dict[str, str], smoke_test: SmokeTest) -> None:
    verdict = smoke_test(small(images), budget=Budget(download=1000, unpacked=5))
    results = [(check.subject, check.passed) for check in of(verdict, "budget")]
    assert results == [("to download", True), ("unpacked", False)]


def test_a_layer_that_a_later_one_hides_fails(
    images: dict[str, str], smoke_test: SmokeTest, clean: Verdict
) -> None:
    assert not failures_of(clean, "layers")
    layers = "USER root\nRUN head -c 20000000 /dev/zero > /big\nRUN rm /big\nUSER 10001:10001\n"
    (check,) = failures_of(smoke_test(small(images) + layers), "layers")
    assert "20.0 MB of it hidden: RUN /bin/sh -c head -c 20000000" in check.found


BAD = [
    ("cp /usr/bin/env /opt/a && chmod u+s /opt/a", "set-uid", "/opt/a (4755)"),
    ("cp /usr/bin/env /opt/b && chmod g+s /opt/b", "set-uid", "/opt/b (2755)"),
    ("touch /opt/c && chmod 666 /opt/c", "world-writable", "/opt/c (0666)"),
    ("mkdir /opt/d && chmod 777 /opt/d", "world-writable", "/opt/d (0777)"),
    ("mkdir /opt/e && chmod 1777 /opt/e", "", ""),
    (f"echo {TOKEN} > /opt/f", "secrets", "/opt/f (classic GitHub token)"),
    (f"echo {TOKEN[:8]} > /opt/g", "", ""),
    ("touch /opt/.netrc", "secrets", "/opt/.netrc (credentials)"),
    (
        "echo deb http://me:word@mirror/debian > /etc/x.list",
        "secrets",
        "/etc/x.list (password in a URL)",
    ),
]


def test_files_that_no_image_may_hold(images: dict[str, str], smoke_test: SmokeTest) -> None:
    script = "\n".join(command for command, _, _ in BAD)
    verdict = smoke_test(
        small(images) + f"USER root\nRUN <<EOF\nset -e\n{script}\nEOF\nUSER 10001:10001\n"
    )
    for kind in ("set-uid", "world-writable", "secrets"):
        shown = "; ".join(check.found for check in failures_of(verdict, kind))
        files = [part for part in shown.split("; ") if part.startswith("/")]
        assert sorted(files) == sorted(found for _, of, found in BAD if of == kind)


def test_a_secret_stays_in_its_layer_when_a_later_one_removes_it(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    hidden = "COPY --chmod=600 <<EOF /opt/x\n" + TOKEN + "\nEOF\n" + as_root("rm /opt/x")
    verdict = smoke_test(small(images) + hidden)
    (check,) = failures_of(verdict, "secrets")
    assert "/opt/x (classic GitHub token, of layer " in check.found
    assert TOKEN not in str(verdict)


def test_a_secret_in_the_configuration_is_reported_by_its_place(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    lines = (
        f"ENV API_TOKEN=x\nLABEL note={TOKEN}\nENV INDEX=http://me:word@mirror/simple\n"
        "USER root\nARG MIRROR_PASSWORD\nRUN true\nUSER 10001:10001\n"
    )
    verdict = smoke_test(small(images) + lines, "--build-arg=MIRROR_PASSWORD=word")
    shown = "\n".join(check.found for check in failures_of(verdict, "secrets"))
    for found in (
        "the environment sets API_TOKEN",
        "the label note (classic GitHub token)",
        "was given MIRROR_PASSWORD",
        "environment's INDEX (password in a URL)",
    ):
        assert found in shown
    assert TOKEN not in str(verdict)
    assert "word" not in shown.replace("password", "").replace("PASSWORD", "")


VERSIONED = (
    "mkdir /out && cd /out && printf 'int f(void) { return 1; }' > /f.c "
    "&& printf 'V_1 { global: *; }; V_2 {} V_1;' > /two && printf 'V_1 { global: *; };' > /one "
    "&& printf 'int g(void) { return 2; }' > /g.c "
    "&& printf 'V_1 { global: f; }; V_2 { global: g; } V_1;' > /two "
    "&& gcc -shared -fPIC -Wl,-soname,libv.so.1 -Wl,--version-script=/two -o libv.so.1 /f.c /g.c "
    "&& printf 'int g(void); int h(void) { return g(); }' > /h.c "
    "&& gcc -shared -fPIC -o libh.so /h.c ./libv.so.1 -Wl,-rpath,/opt/engine/lib"
)
OLDER = " && gcc -shared -fPIC -Wl,-soname,libv.so.1 -Wl,--version-script=/one -o libv.so.1 /f.c"


@pytest.mark.parametrize(("older", "passes"), [("", True), (OLDER, False)])
def test_a_library_without_a_needed_symbol_version_fails(
    images: dict[str, str], smoke_test: SmokeTest, older: str, passes: bool
) -> None:
    verdict = smoke_test(compiled(images, VERSIONED + older))
    (check,) = [c for c in of(verdict, "closure") if c.expected == "all versions defined"]
    assert check.passed is passes
    expected = "newest needed: CXXABI_" if passes else "/opt/engine/lib/libh.so needs V_2 of /opt"
    assert check.found.startswith(expected)


def test_two_versions_of_one_cuda_library(images: dict[str, str], smoke_test: SmokeTest) -> None:
    how = (
        'mkdir -p /out/a /out/b && cd /out && for n in a b; do echo "int $n;" > /$n.c && gcc '
        "-shared -Wl,-soname,libcudart.so.13 -o $n/libcudart.so.13.0 /$n.c; done"
    )
    verdict = smoke_test(compiled(images, how))
    (check,) = failures_of(verdict, "copies")
    assert check.found.startswith("libcudart.so.13 for x86-64: /opt/engine/lib/")
    assert "MB too much" in check.found


def test_an_engine_without_gpu_code_is_found_beside_a_library_that_has_some(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    how = (
        "mkdir /out && nvcc -gencode=arch=compute_120,code=sm_120 -shared -Xcompiler -fPIC "
        "-o /out/libk.so /k.cu"
    )
    moved = "mv /opt/engine/lib/libk.so /usr/lib && rm /opt/engine/lib/libhello-cuda.so.0.1.0"
    verdict = smoke_test(compiled(images, how) + as_root(moved))
    (check,) = failures_of(verdict, "architectures")
    assert (check.subject, check.found) == ("/opt/engine/", "none at all")


def test_an_exemption_needs_a_reason_and_a_file(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    bent = [
        Accept(check="set-uid", path="/usr/bin/e*", why="the engine needs it"),
        Accept(check="leftovers", path="/usr/include/*", why="it compiles kernels when it runs"),
    ]
    verdict = smoke_test(small(images) + as_root("chmod u+s /usr/bin/env"), accept=bent)
    (check,) = of(verdict, "set-uid")
    assert check.passed
    assert check.found == "none; accepted: 1 (the engine needs it)"
    (stale,) = failures_of(verdict, "accept")
    assert stale.subject == "leftovers /usr/include/*"
    # Nothing is computed here: what a rule accepts of the numbers does not show.
    numbers = Accept(check="numbers", case="*", why="seen")
    verdict = smoke_test(small(images), accept=[numbers])
    assert not of(verdict, "accept")


def test_an_image_of_another_platform_is_checked_without_running_it(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    dockerfile = (
        f"FROM --platform=linux/amd64 {images['root']} AS root\n"
        "FROM scratch\nCOPY --from=root /usr/bin/env /usr/bin/env\n"
        'ENTRYPOINT ["/usr/bin/env"]\n'
    )
    verdict = smoke_test(dockerfile, "--platform=linux/arm64")
    (check,) = [c for c in failures_of(verdict, "contract") if c.subject == "platform"]
    assert check.found == "linux/arm64"
    assert any("needs libc.so.6" in check.found for check in failures_of(verdict, "closure"))


def test_any_image_gets_the_checks_for_every_image(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    name = smoke_test.build(small(images) + as_root("chmod u+s /usr/bin/env"))
    verdict = run_programs(check_layers(Subject(name, ""), smoke_test.work))
    assert failed(verdict) == {"closure", "set-uid"}
    assert not {"contract", "runs"} <= {check.kind for check in verdict.checks}


@pytest.mark.parametrize("compression", ["zstd", "gzip", "uncompressed"])
def test_layers_of_every_compression_are_read(
    images: dict[str, str], smoke_test: SmokeTest, compression: str
) -> None:
    dockerfile = f"FROM {images['small']}\nRUN touch /x && chmod 666 /x # {compression}\n"
    name = f"builder-test/smoke:{compression}"
    smoke_test.made.add(name)
    forced = f"type=image,name={name},compression={compression},force-compression=true"
    docker("buildx", "build", "--provenance=false", f"--output={forced}", "-", text=dockerfile)
    verdict = run_programs(check_layers(Subject(name, ""), smoke_test.work))
    (check,) = of(verdict, "world-writable")
    assert check.found == "/x (0666)"


PEAK = """
import re, sys, tempfile
from pathlib import Path
from builder.checks.check import check_layers, run_programs
from builder.checks.subject import Subject
with tempfile.TemporaryDirectory() as folder:
    verdict = run_programs(check_layers(Subject(sys.argv[1], ""), Path(folder)))
# Not getrusage: what it counts begins with the process that this one was forked from.
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())
print(verdict.unpacked_size, peak[1])
"""


def test_memory_does_not_grow_with_the_image(images: dict[str, str]) -> None:
    command = [sys.executable, "-c", PEAK, images["good"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    unpacked, peak = map(int, done.stdout.split())
    assert unpacked > 500_000_000
    assert peak / 1024 < 150  # MiB; it may be 300 for an image of 1 GB
