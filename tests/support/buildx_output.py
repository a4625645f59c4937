"""The output of buildx for a compile that fails."""

# As buildx 0.13 prints them with --progress=plain.
COMPILE = r"""#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 1.92kB done
#5 [context base-devel] load metadata for docker.io/builder-base/cuda-13.0:devel-0123456789ab
#8 [build 2/5] COPY --from=source /tree/ /src/
#8 CACHED
#14 [build 4/5] RUN --network=none --mount=type=cache,id=c,target=/ccache ["/inside/jobs", "3.0"]
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
