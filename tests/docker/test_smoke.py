"""Each check passes on a good image and fails on the image that is broken for it.

The images are real: a few lines on top of the Debian root with the good engine's files, built by
buildx; where the break comes from compiling, the compiler of the base made it.
"""

from __future__ import annotations

from typing import Any

import pytest

from builder.checks import subject as contexts
from builder.checks.check import check_layers, run_programs
from builder.checks.subject import Subject
from builder.checks.verdict import CheckState, Verdict
from builder.recipes.probes import LibraryProbe, OptionProbe, RunProbe
from support.environment import SHARED_CACHE
from support.smoke_tests import SmokeTest, compiled, docker, failed, failures_of, of, small

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]


def test_the_good_image_passes_every_check(hello: dict[str, Any]) -> None:
    verdict = hello["verdict"]
    assert [check for check in verdict["checks"] if check["state"] in ("failed", "untried")] == []
    kinds = {check["kind"] for check in verdict["checks"]}
    assert kinds == {
        *("architectures", "budget", "closure", "code paths", "contract", "copies", "cuda"),
        *("device", "entrypoint"),
        *("image", "layers"),
        *("leftovers", "library", "numbers", "option", "output", "run paths", "runs"),
        *("secrets", "serves"),
        *("set-uid", "times", "world-writable"),
    }
    assert verdict["download_size"] < verdict["unpacked_size"]


def test_the_device_code_of_every_library_is_in_the_verdict(hello: dict[str, Any]) -> None:
    found = {each["path"].rpartition("/")[2]: each for each in hello["verdict"]["code"]}
    own = found["libhello-cuda.so.0.1.0"]
    assert own["compiled"] == 0
    assert own["native"] > own["dead"] > 0, "its PTX is for later cards"
    below = found["libcublas.so.13"]
    assert below["native"] > 0
    assert below["dead"] > below["native"], "NVIDIA's library has code for older cards"


def test_what_programs_wait_for_comes_between_the_layers_and_the_programs(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    name = smoke_test.build(small(images))
    probe = RunProbe(run=["hello-server", "--version"])
    recipe = smoke_test.recipe.model_copy(update={"serve": None, "probe": [probe]})

    context = check_layers(Subject(name, "", recipe, cache=SHARED_CACHE), smoke_test.work)
    docker("image", "rm", "--force", name)
    verdict = run_programs(context)
    assert "closure" in failed(verdict), "the layers were read"
    assert [check.state for check in of(verdict, "runs")] == [CheckState.UNTRIED]


def test_a_missing_library_breaks_the_closure_and_the_program(clean: Verdict) -> None:
    assert failed(clean) == {"closure", "contract", "runs", "output", "option"}
    shown = [check.found for check in clean.failures if check.kind == "contract"]
    assert shown == ["no libcudart of a known CUDA in the image"]
    closure = next(check for check in clean.failures if check.kind == "closure")
    assert "libhello-cuda.so.0.1.0 needs libcublas.so.13" in closure.found


LEFT = {
    "/usr/local/cuda/lib64/stubs/libcuda.so": "driver stub",
    "/opt/engine/lib/libcuda.so.1": "driver stub",
    "/usr/bin/x86_64-linux-gnu-g++-14": "compiler",
    "/usr/local/cuda/bin/nvcc": "compiler",
    "/usr/include/stdio.h": "headers",
    "/opt/engine/lib/libhello.a": "static libraries",
    "/var/lib/apt/lists/mirror_Packages": "package lists",
    "/var/cache/apt/pkgcache.bin": "package caches",
    "/home/engine/.cache/pip/http/x": "package caches",
    "/build/1/build.ninja": "build directories",
}


def test_files_of_the_build_are_found(
    images: dict[str, str], smoke_test: SmokeTest, clean: Verdict
) -> None:
    assert "leftovers" not in failed(clean)
    script = (
        f'for file in {" ".join(LEFT)}; do mkdir -p "$(dirname "$file")"; echo x >"$file"; done'
    )
    verdict = smoke_test(small(images, f"RUN {script}\n"))
    found = {check.subject: check.found for check in failures_of(verdict, "leftovers")}
    assert {*found} == {f"no {what}" for what in LEFT.values()}
    for path, what in LEFT.items():
        assert path in found[f"no {what}"]


def test_a_file_taken_away_by_a_later_layer_is_not_left_behind(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    layers = "RUN mkdir -p /build/1 && touch /build/1/x\nRUN rm -r /build\n"
    verdict = smoke_test(small(images, layers))
    (check,) = [check for check in verdict.checks if check.subject == "no build directories"]
    assert (check.kind, check.passed) == ("leftovers", True), check.found


def test_a_library_behind_a_dereferenced_link_is_stored_twice(
    images: dict[str, str], smoke_test: SmokeTest, clean: Verdict
) -> None:
    folder = "/opt/engine/lib"
    grown = "truncate -s 100K libhello-cuda.so.0.1.0"  # small files may be there twice
    copied = "cp libhello-cuda.so.0.1.0 x && mv x libhello-cuda.so.0"
    copied = f"RUN cd {folder} && {grown} && {copied}\n"
    assert "copies" not in failed(clean)
    verdict = smoke_test(small(images, copied))
    (check,) = [check for check in verdict.failures if check.kind == "copies"]
    assert f"{folder}/libhello-cuda.so.0 = {folder}/libhello-cuda.so.0.1.0" in check.found


def test_a_damaged_elf_file_is_named(images: dict[str, str], smoke_test: SmokeTest) -> None:
    cut = "RUN head -c 5000 /opt/engine/lib/libhello-cuda.so.0.1.0 > /opt/engine/lib/libcut.so\n"
    verdict = smoke_test(small(images, cut))
    damaged = [check for check in verdict.failures if check.subject == "/opt/engine/lib/libcut.so"]
    assert [check.expected for check in damaged] == ["a readable ELF file"]


CODE = {
    "right": ("-gencode=arch=compute_120,code=sm_120", True, "sm_120"),
    "special": ("-gencode=arch=compute_120a,code=sm_120a", True, "sm_120a"),
    "older": ("-gencode=arch=compute_90,code=sm_90", False, "sm_90"),
    "ptx": ("-gencode=arch=compute_120,code=compute_120", False, "compute_120"),
}


def test_machine_code_for_the_recipes_gpu_must_be_there(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    how = "mkdir /out" + "".join(
        f" && nvcc {flags} -shared -Xcompiler -fPIC -o /out/lib{name}.so /k.cu"
        for name, (flags, _, _) in CODE.items()
    )
    verdict = smoke_test(compiled(images, how))
    checks = {check.subject: check for check in verdict.checks if check.kind == "architectures"}
    for name, (_, passes, found) in CODE.items():
        check = checks[f"/opt/engine/lib/lib{name}.so"]
        assert check.expected == "sm_120"
        assert check.passed is passes
        assert found in check.found


RUN_PATHS = {
    "gone": ("/build/1/lib", False),
    "nowhere": ("/opt/engine/nowhere", False),
    "relative": ("lib", False),
    "origin": ("\\$ORIGIN", True),
    "system": ("/usr/lib", True),
}


def test_a_run_path_must_lead_into_the_image(images: dict[str, str], smoke_test: SmokeTest) -> None:
    how = "mkdir /out" + "".join(
        f" && echo 'int {name};' | gcc -x c -shared -Wl,-rpath,{runpath} -o /out/lib{name}.so -"
        for name, (runpath, _) in RUN_PATHS.items()
    )
    verdict = smoke_test(compiled(images, how))
    (check,) = failures_of(verdict, "run paths")
    named = {name for name in RUN_PATHS if f"/opt/engine/lib/lib{name}.so" in check.found}
    assert named == {name for name, (_, passes) in RUN_PATHS.items() if not passes}


def test_a_recipes_probes_of_a_library_are_checked(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    how = (
        "mkdir /out && nvcc -gencode=arch=compute_120,code=sm_120 -shared -Xcompiler -fPIC "
        "-o /out/libk.so /k.cu -L/usr/local/cuda/lib64/stubs -Xlinker --no-as-needed -lcuda"
    )
    probes = [
        LibraryProbe(library="libk.so", architectures=["sm_120a"]),
        LibraryProbe(library="libk.so", needs_not=["libcuda.so.1"]),
        LibraryProbe(library="libk.so", needs=["libcuda.so.1"]),
        LibraryProbe(library="libnowhere.so"),
        LibraryProbe(library="liba.so", alternatives=["libnowhere.so"]),
        LibraryProbe(library="libk.so", alternatives=["libnowhere.so"], architectures=["sm_120"]),
        LibraryProbe(
            library="liba.so", alternatives=["libb.so", "libk.so"], architectures=["sm_120"]
        ),
    ]
    verdict = smoke_test(compiled(images, how), probe=probes)
    results = [
        (check.expected, check.passed) for check in verdict.checks if check.kind == "library"
    ]
    assert results == [
        ("machine code for sm_120a", False),
        ("does not need libcuda.so.1", False),
        ("needs libcuda.so.1", True),
        ("is in the image", False),
        ("is in the image", False),
        ("machine code for sm_120", True),
        ("machine code for sm_120", True),
    ]
    assert [c.subject for c in verdict.checks if c.expected == "is in the image"] == [
        "libnowhere.so",
        "liba.so or libnowhere.so",
    ]
    driver = [check for check in verdict.failures if "vmm = false" in check.subject]
    assert "libk.so needs libcuda.so.1" in driver[0].found


SCRIPT = (
    "RUN printf '#!/bin/sh\\n{script}\\n' > /usr/bin/hello-server "
    "&& chmod +x /usr/bin/hello-server\n"
)


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        ('echo "version: 0 (unknown)"', {"output"}),
        ("exit 3", {"runs", "output"}),
    ],
)
def test_a_program_must_print_what_the_recipe_expects(
    images: dict[str, str], smoke_test: SmokeTest, script: str, kinds: set[str]
) -> None:
    probe = [RunProbe(run=["/usr/bin/hello-server"], contains=["version: 1 (in-repo)"])]
    right = smoke_test(
        small(images, SCRIPT.format(script='echo "version: 1 (in-repo)"')), probe=probe
    )
    assert not failed(right) & {"runs", "output"}
    verdict = smoke_test(small(images, SCRIPT.format(script=script)), probe=probe)
    assert failed(verdict) & {"runs", "output"} == kinds


def test_a_program_that_never_ends_is_stopped_and_fails(
    images: dict[str, str], smoke_test: SmokeTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "TIMEOUT", 3.0)
    probe = [RunProbe(run=["/usr/bin/hello-server"])]
    verdict = smoke_test(small(images, SCRIPT.format(script="sleep 1000")), probe=probe)
    (check,) = [check for check in verdict.failures if check.kind == "runs"]
    assert "did not end" in check.found
    assert "sleep 1000" not in docker("ps", "--no-trunc")


def test_a_program_sees_neither_network_nor_rights(
    images: dict[str, str], smoke_test: SmokeTest
) -> None:
    probe = [
        RunProbe(run=["sh", "-c", "cat /proc/net/dev"], contains=["lo:"], excludes=["eth0:"]),
        RunProbe(run=["sh", "-c", "touch /x"], status=1, contains=["Read-only file system"]),
        RunProbe(run=["sh", "-c", "grep CapEff /proc/self/status"], contains=["0000000000000000"]),
    ]
    verdict = smoke_test(small(images), probe=probe)
    subjects = [" ".join(each.run) for each in probe]
    tried = [check for check in verdict.checks if check.subject in subjects]
    assert [(check.subject, check.expected, check.found) for check in tried] == [
        (subjects[0], "exit status 0", "0"),
        (subjects[0], "contains lo:", "lo:"),
        (subjects[0], "does not contain eth0:", "not there"),
        (subjects[1], "exit status 1", "1"),
        (subjects[1], "contains Read-only file system", "Read-only file system"),
        (subjects[2], "exit status 0", "0"),
        (subjects[2], "contains 0000000000000000", "0000000000000000"),
    ]
    assert all(check.passed for check in tried)


def test_options_are_read_value_by_value(images: dict[str, str], smoke_test: SmokeTest) -> None:
    script = SCRIPT.format(
        script='echo "--spec-type [dflash|copyspec] which"\\n'
        'echo "--cache-type-k TYPE"\\necho "   allowed values: f16, turbo3"'
    )
    probe = [
        OptionProbe(
            option="--spec-type",
            program="hello-server",
            has=["dflash"],
            missing=["f16", "copyspec"],
        ),
        OptionProbe(option="--cache-type-k", program="hello-server", has=["turbo3", "turbo"]),
        OptionProbe(option="--spec-typ", program="hello-server"),
    ]
    verdict = smoke_test(small(images, script), probe=probe)
    options = [check for check in verdict.checks if check.kind == "option"]
    assert options[-1].found == "not one of its 2 names; did you mean --spec-type?"
    results = [(check.expected, check.passed) for check in options]
    assert results == [
        ("is listed", True),
        ("has dflash", True),
        ("does not have f16", True),
        ("does not have copyspec", False),
        ("is listed", True),
        ("has turbo3", True),
        ("has turbo", False),
        ("is listed", False),
    ]
