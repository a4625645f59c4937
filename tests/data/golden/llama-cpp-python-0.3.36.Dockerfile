# llama-cpp-python-0.3.36: a Python package with CUDA parts. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe llama-cpp-python-0.3.36", "code sm_120a", "cpu sse4.2", "cpu avx", "cpu f16c", "cpu fma", "cpu bmi2", "cpu avx2", "cuda 13.0", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
RUN --network=none ["python3", "-m", "venv", "/venv"]
RUN --network=none --mount=type=bind,from=build-wheels,target=/wheels ["sh", "-euc", "/venv/bin/python -m pip install --no-index --no-deps --disable-pip-version-check /wheels/*.whl"]
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "/venv/bin/python", "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--verbose", "--disable-pip-version-check", "--wheel-dir", "/wheel", "--config-settings", "build-dir=/build", "--config-settings", "cmake.define.CMAKE_BUILD_TYPE=Release", "--config-settings", "cmake.define.CMAKE_CUDA_ARCHITECTURES=120", "--config-settings", "cmake.define.CMAKE_C_COMPILER_LAUNCHER=ccache", "--config-settings", "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache", "--config-settings", "cmake.define.CMAKE_CUDA_COMPILER_LAUNCHER=ccache", "--config-settings", "cmake.define.CMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "--config-settings", "cmake.define.CMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "--config-settings", "cmake.define.GGML_SSE42=ON", "--config-settings", "cmake.define.GGML_AVX=ON", "--config-settings", "cmake.define.GGML_AVX2=ON", "--config-settings", "cmake.define.GGML_BMI2=ON", "--config-settings", "cmake.define.GGML_FMA=ON", "--config-settings", "cmake.define.GGML_F16C=ON", "--config-settings", "cmake.define.GGML_CUDA=ON", "--config-settings", "cmake.define.GGML_CUDA_NO_VMM=ON", "--config-settings", "cmake.define.GGML_CUDA_NCCL=OFF", "--config-settings", "cmake.define.GGML_NATIVE=OFF", "--config-settings", "cmake.define.LLAMA_OPENSSL=OFF", "--config-settings", "cmake.define.LLAMA_BUILD_TESTS=OFF", "--config-settings", "cmake.define.LLAMA_BUILD_EXAMPLES=OFF", "--config-settings", "wheel.exclude=lib/**;bin/**;include/**", "/src"]
# The virtual environment is made here and moved whole: both stages have the same Python.
RUN --network=none ["python3", "-m", "venv", "--without-pip", "/opt/engine"]
RUN --network=none --mount=type=bind,from=runtime-wheels,target=/wheels ["sh", "-euc", "/venv/bin/python -m pip --python /opt/engine/bin/python install --no-index --no-deps --no-compile --disable-pip-version-check /wheels/*.whl /wheel/*.whl"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/relink.py", "/opt/engine/lib"]
# Wheels bring libraries to link against; a runtime has no use for them.
RUN --network=none ["find", "/opt/engine", "-name", "*.a", "-delete"]
RUN --network=none ["sh", "-uc", "\"$@\" || [ $? = 1 ]", "compile", "/opt/engine/bin/python", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "/opt/engine/lib"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS image
RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" PYTHONUNBUFFERED="1" PYTHONDONTWRITEBYTECODE="1"
COPY --link --from=entrypoint /layer/ /
ENV HOST="0.0.0.0" PORT="8000"
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "8000", "v1/models"]
ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/python", "-m", "llama_cpp.server", "--"]

