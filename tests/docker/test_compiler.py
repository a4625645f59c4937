"""The compiler of the base: the same source gives the same object file."""

from __future__ import annotations

import pytest

from support.smoke_tests import docker

pytestmark = pytest.mark.docker

# Nothing here is for other source files: cudafe++ puts a process id into the names.
INTERNAL = """
#include <platform.h>
namespace {
__global__ void divided(float *values) { values[threadIdx.x] /= DIVISOR; }
struct Once { Once() { divided<<<1, 1>>>(nullptr); } } once;
}
"""
TWICE = """
cat >/tmp/internal.cu
mkdir /tmp/system
for name in one again other; do
    echo "extern int on_$name;" >/tmp/system/platform.h
    define=-DDIVISOR=$(test $name = other && echo 3 || echo 2)
    nvcc -arch=sm_120 -isystem /tmp/system $define -c /tmp/internal.cu -o /tmp/$name.o
    strip --strip-debug /tmp/$name.o
    nm /tmp/$name.o >/tmp/$name.names
done
grep --quiet divided /tmp/one.names
diff /tmp/one.names /tmp/again.names
nvcc -shared /tmp/one.o /tmp/other.o -o /tmp/both.so
"""


def test_internal_names_depend_on_the_source_alone(images: dict[str, str]) -> None:
    options = ["--rm", "--interactive", "--network=none"]
    docker("run", *options, images["devel"], "sh", "-euc", TWICE, text=INTERNAL)
