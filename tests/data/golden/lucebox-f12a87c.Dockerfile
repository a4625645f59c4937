# lucebox-f12a87c: programs with ggml inside, and a server in Python. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe lucebox-f12a87c", "code sm_120a", "cpu sse4.2", "cpu avx", "cpu f16c", "cpu fma", "cpu bmi2", "cpu avx2", "cuda 13.0", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
RUN --network=none --mount=type=bind,from=debian-build,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache ["cmake", "-G", "Ninja", "-S", "/src/dflash", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DGGML_CUDA=ON", "-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CCACHE=OFF", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_USE_PREBUILT_WEBUI=OFF", "-DLLAMA_LLGUIDANCE=OFF", "-DLLAMA_BUILD_BORINGSSL=OFF", "-DLLAMA_BUILD_LIBRESSL=OFF", "-DGGML_CPU_KLEIDIAI=OFF", "-DGGML_CUDA_CUB_3DOT2=OFF", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_BMI2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_WEBUI=OFF", "-DGGML_CUDA_NO_VMM=ON"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", "/build/1", "--target", "test_dflash"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/collect.py", "--everywhere", "--strip", "x86_64-linux-gnu-strip", "/build/1", "/opt/engine/dflash/build", "test_dflash"]
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/used", "2", "LLAMA_BUILD_COMMIT", "--", "cmake", "-G", "Ninja", "-S", "/src/dflash/deps/llama.cpp", "-B", "/build/2", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DGGML_CUDA=ON", "-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CCACHE=OFF", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_USE_PREBUILT_WEBUI=OFF", "-DLLAMA_LLGUIDANCE=OFF", "-DLLAMA_BUILD_BORINGSSL=OFF", "-DLLAMA_BUILD_LIBRESSL=OFF", "-DGGML_CPU_KLEIDIAI=OFF", "-DGGML_CUDA_CUB_3DOT2=OFF", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_BMI2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_WEBUI=OFF", "-DGGML_CUDA_NO_VMM=ON", "-DLLAMA_BUILD_COMMIT=b6ffab4a9"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", "/build/2", "--target", "llama-server"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/collect.py", "--everywhere", "--strip", "x86_64-linux-gnu-strip", "/build/2", "/opt/engine/bin", "llama-server"]
RUN --network=none ["python3", "-m", "venv", "/venv"]
RUN --network=none ["python3", "-m", "venv", "--without-pip", "/opt/engine"]
RUN --network=none --mount=type=bind,from=runtime-wheels,target=/wheels ["sh", "-euc", "/venv/bin/python -m pip --python /opt/engine/bin/python install --no-index --no-deps --no-compile --disable-pip-version-check /wheels/*.whl"]
RUN --network=none ["/venv/bin/python", "-m", "pip", "--python", "/opt/engine/bin/python", "check"]
# Wheels bring libraries to link against; a runtime has no use for them.
RUN --network=none ["find", "/opt/engine", "-name", "*.a", "-delete"]
COPY --from=source /tree/dflash/scripts /opt/engine/dflash/scripts
RUN --network=none ["sh", "-uc", "\"$@\" || [ $? = 1 ]", "compile", "/opt/engine/bin/python", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "/opt/engine/lib"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS image
RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" PYTHONUNBUFFERED="1" PYTHONDONTWRITEBYTECODE="1"
COPY --link --from=entrypoint /layer/ /
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "8000", "v1/models"]
ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/python", "/opt/engine/dflash/scripts/server.py", "--host", "0.0.0.0", "--port", "8000", "--"]

