"""The output of buildx for a compile that fails, and a client with a builder of another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

# As buildx 0.13 prints them with --progress=plain.
COMPILE = r"""#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 1.92kB done
#5 [context base-devel] load metadata for docker.io/builder-base/cuda-13.0:devel-0123456789ab
#8 [build 2/5] COPY --from=source /tree/ /src/
#8 CACHED
#14 [build 4/5] RUN --network=none ["/inside/jobs", "3.0", "cmake", "--build", "/b"]
#14 0.412 jobs: 2 (2 cores, 7 GiB free, 3.0 GiB a job)
#14 26.59   [22/339] ccache g++ -Werror -I/src/error_code.d -c /src/a.cpp
#14 31.20 [23/339] Building CUDA object x.o
#14 31.21 FAILED: x.o
#14 31.21 /usr/local/cuda/bin/nvcc -c /src/x.cu -o x.o
#14 31.21 /src/x.cu(7): error: identifier "missing" is undefined
#14 31.21
#14 31.30 1 error detected in the compilation of "/src/x.cu".
#14 31.31 ninja: build stopped: subcommand failed.
#14 ERROR: process "/inside/jobs 3.0" did not complete successfully: exit code: 1
"""

# Steps of hello-sm120 and of its bases, each as BuildKit 0.28 printed it, on one line.
STEPS = r"""#4 [1/1] ADD rootfs-amd64.tar /
#13 [devel 2/4] RUN --network=none --mount=type=bind,from=wheels,target=/wheels \
--mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795227046", \
"/inside/reproducible", "/", "sh", "-euc", ""$@"; /inside/reproducible /libraries", \
"assemble", "python3", "/inside/assemble_cuda.py", "--root", "/usr/local/cuda", "--compiler", \
"x86_64-linux-gnu-gcc", "--stub-compiler", "x86_64-linux-gnu-gcc", "--staging", "/libraries", \
"--wheels", "/wheels", "--runtime", "libcudart", "--runtime", "libcublas", "--runtime", \
"libcublasLt"]
#14 [devel 3/4] RUN --network=none --mount=type=bind,from=inside,target=/inside ["env", \
"SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", "cp \
/libraries/etc/ld.so.conf.d/cuda.conf /etc/ld.so.conf.d/; ldconfig"]
#17 [image 1/5] RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian \
--mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache \
--mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", \
"SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", \
"DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes \
--no-install-recommends --allow-downgrades /debian/"$(dpkg --print-architecture)"/*.deb"]
#22 [build 2/7] COPY --from=source /tree/ /src/
#23 [build 3/7] RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache \
["cmake", "-G", "Ninja", "-S", "/src/.", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Release", \
"-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", \
"-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", \
"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", \
"-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DHELLO_CUDA_NO_VMM=ON", \
"-DHELLO_BUILD_NUMBER=1", "-DHELLO_BUILD_COMMIT=in-repo"]
#24 [build 4/7] RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache \
--mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", \
"/build/1"]
#25 [build 5/7] RUN --network=none ["cmake", "--install", "/build/1", "--prefix", \
"/opt/engine", "--strip"]
#26 [build 6/7] RUN --network=none --mount=type=bind,from=inside,target=/inside \
["/inside/reproducible", "/opt"]
#27 [image 2/5] COPY --link --from=build /opt/ /opt/
#28 [image 3/5] COPY --link --from=entrypoint /layer/ /
#29 [image 4/5] WORKDIR /home/engine
""".replace(" \\\n", " ")

CLIENT = """#!/usr/bin/env python3
import json, sys
print("Driver: docker\\nPlatforms: linux/arm64*, linux/arm/v7" if "inspect" in sys.argv else "{}")
"""


def use_arm64_builder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client in the place of docker's that knows one builder, which runs arm64 alone."""
    client = folder / "docker"
    client.write_text(CLIENT)
    client.chmod(0o755)
    monkeypatch.setattr("builder.docker.engine.executable", lambda: str(client))
