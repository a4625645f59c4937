"""``builder compare`` on what the base's nvcc makes, and on images of the engine and a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.image.compare import FileDifference, compare_contents
from builder.image.device_code import CodeDifference
from support.commands import Builder
from support.cuda_tools import compile_in
from support.smoke_tests import SmokeTest, docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCE = """
__global__ void shift(char *p) { p[threadIdx.x] = p[threadIdx.x] >> 1; }
__global__ void divide(const char *p, int *o) { o[threadIdx.x] = p[threadIdx.x] / 3; }
__global__ void argument(char c, int *o) { o[threadIdx.x] = c * 3; }
__global__ void floats(const float *p, float *o) { o[threadIdx.x] = p[threadIdx.x] * 3; }
namespace { __global__ void internal(float *p) { p[threadIdx.x] *= 6; } }
__device__ __noinline__ float deep(float x, int n) { return n ? deep(x * x, n - 1) + x : x; }
__global__ void calls(float *p, int n) { p[0] = deep(p[1], n); }
int main() { internal<<<1, 1>>>(nullptr); }
"""
CHANGED = SOURCE.replace("* 3; }\n__global__ void floats", "* 5; }\n__global__ void floats")
CODES = {"sm_120a", "compute_120a"}


@pytest.fixture(scope="module")
def compiled(devel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program compiled twice, with unsigned char, elsewhere, packed otherwise, changed."""
    folder = tmp_path_factory.mktemp("compare")
    for name, source in (("k", SOURCE), ("other", SOURCE), ("changed/k", CHANGED)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.cu").write_text(source)
    nvcc = "nvcc -gencode=arch=compute_120a,code=[sm_120a,compute_120a]"
    calls = [
        f"{nvcc} -o first k.cu",
        f"{nvcc} -o again k.cu",
        f"{nvcc} -Xcudafe --unsigned_chars -o unsigned k.cu",
        f"{nvcc} -o elsewhere other.cu",
        f"{nvcc} --compress-mode=none -o plain k.cu",
        f"cd changed; {nvcc} -o ../changed.out k.cu",
    ]
    return compile_in(devel, folder, *calls)


def compared(folder: Path, other: str) -> tuple[FileDifference, CodeDifference]:
    of = FileDifference("/", None, None)
    found = compare_contents(of, folder / "first", folder / other)
    assert found.code is not None, found.unread
    assert found.elf is not None
    return found, found.code


def test_a_program_compiled_twice_has_the_same_device_code(compiled: Path) -> None:
    found, code = compared(compiled, "again")
    assert code.same
    assert {each.code for each in code.totals} == CODES
    # nvcc names its temporary files in the symbol table.
    assert found.elf is not None
    assert {each.name for each in found.elf.sections} <= {".strtab", ".symtab"}


def test_packing_does_not_change_device_code(compiled: Path) -> None:
    found, code = compared(compiled, "plain")
    assert code.same
    assert found.elf is not None
    assert ".nv_fatbin" in {each.name for each in found.elf.sections}


def test_functions_that_unsigned_char_changes(compiled: Path) -> None:
    _, code = compared(compiled, "unsigned")
    names = {each.name for each in code.functions}
    assert names == {"shift(char*)", "divide(char const*, int*)", "argument(char, int*)"}
    assert {each.code for each in code.functions} == CODES


def test_only_names_differ_of_a_source_with_another_name(compiled: Path) -> None:
    _, code = compared(compiled, "elsewhere")
    assert [(each.code, each.name) for each in code.functions] == [
        ("compute_120a", "(anonymous namespace)::internal(float*)")
    ]


def test_a_kernel_that_changed_is_the_only_one(compiled: Path) -> None:
    _, code = compared(compiled, "changed.out")
    made_up = "(anonymous namespace)::internal(float*)"  # the name has a hash of the path
    changed = {(each.code, each.name) for each in code.functions if each.name != made_up}
    assert changed == {(each, "argument(char, int*)") for each in CODES}
    sass = next(each for each in code.functions if each.code == "sm_120a")
    assert sass.parts[0] == "SASS"


def test_images_of_the_engine_and_of_a_registry(
    compiled: Path,
    images: dict[str, str],
    smoke_test: SmokeTest,
    builder: Builder,
    registry: str,
) -> None:
    context = f"--build-context=compiled={compiled}"
    copy = "COPY --from=compiled"
    start = f"FROM {images['small']}\n{copy}"
    first, second = (
        smoke_test.build(
            f"{start} {name} /opt/program\n{copy} --chmod={mode} k.cu /opt/\n", context
        )
        for name, mode in (("first", "644"), ("unsigned", "600"))
    )
    done = builder("compare", first, second)
    assert done.returncode == 17, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("the files differ: 2 changed;")
    assert any(line.endswith("kernels: 3 changed") for line in lines)
    assert "changed\t/opt/k.cu\tmode 644 -> 600" in lines

    name = f"{registry}/compare:1"
    docker("tag", first, name)
    docker("push", "--quiet", name)
    docker("image", "rm", name)
    far = builder("compare", first, name)
    assert far.returncode == 0, far.stderr
    assert far.stdout.startswith("the same image: sha256:")
    assert f"Docker does not have {name}: pulling it" in far.stderr
    assert name not in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}")

    gone = builder("compare", first, f"{registry}/compare:2")
    assert gone.returncode == 5
    assert f"cannot pull {registry}/compare:2" in gone.stderr
    assert "check the name and the tag" in gone.stderr
    away = builder("compare", first, "127.0.0.1:9/compare:2")
    assert away.returncode == 5
    assert "check the network" in away.stderr


INDEX = """
FROM scratch AS arm64
COPY <<EOF /same
EOF
FROM arm64 AS amd64
COPY <<EOF /other-{tag}
EOF
FROM $TARGETARCH
"""


def test_images_of_a_registry_for_two_platforms(builder: Builder, registry: str) -> None:
    """The first two are alike for arm64 and differ for amd64; the third one is for amd64 alone."""
    a, b, amd64 = names = [f"{registry}/index:{tag}" for tag in ("a", "b", "amd64")]
    for name in names:
        only = "" if name == amd64 else ",linux/arm64"
        options = [f"--platform=linux/amd64{only}", f"--output=type=image,name={name},push=true"]
        text = INDEX.format(tag=name.rpartition(":")[2])
        docker("buildx", "build", "--provenance=false", *options, "-", text=text)
        docker("image", "rm", name)
    assert builder("compare", a, b).returncode == 17
    same = builder("compare", a, b, "--platform=linux/arm64")
    assert same.returncode == 0, same.stderr
    assert same.stderr.count("pulling it") == 2
    lacks = builder("compare", a, amd64, "--platform=linux/arm64")
    assert lacks.returncode == 4
    assert f"{amd64} has no image for linux/arm64\n  it is there for linux/amd64\n" in lacks.stderr
    assert not docker("image", "ls", "--quiet", f"{registry}/index")


def test_a_recipe_is_its_image(hello: dict[str, Any], builder: Builder) -> None:
    done = builder("compare", "hello-sm120", hello["references"][0], "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digests"] == [hello["digest"]] * 2
