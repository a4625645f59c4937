# llama-cpp-0.5.0-dev: llama.cpp family. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe llama-cpp-0.5.0-dev", "code sm_120a", "cuda 13.0", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM --platform=linux/amd64 base-devel AS npm
ARG SOURCE_DATE_EPOCH
# Only the page's directory is an input: another change of the source does not build the page again.
RUN --network=none --mount=type=bind,from=source,source=/tree/tools/ui,target=/page-source --mount=type=bind,from=build-packages,target=/page-packages --mount=type=bind,from=build-node,target=/page-node --mount=type=bind,from=inside,target=/inside ["env", "LLAMA_BUILD_NUMBER=0", "LLAMA_UI_VERSION=b0", "python3", "/inside/page.py", "/page-source", "/page"]

FROM scratch AS page
COPY --from=npm /page/ /

FROM --platform=linux/amd64 base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
COPY --from=page / /src/tools/ui/dist/
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/used", "1", "GGML_BACKEND_DL", "GGML_CPU_ALL_VARIANTS", "--", "cmake", "-G", "Ninja", "-S", "/src/.", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DGGML_CUDA=ON", "-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CCACHE=OFF", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_USE_PREBUILT_WEBUI=OFF", "-DLLAMA_LLGUIDANCE=OFF", "-DLLAMA_BUILD_BORINGSSL=OFF", "-DLLAMA_BUILD_LIBRESSL=OFF", "-DGGML_CPU_KLEIDIAI=OFF", "-DGGML_CUDA_CUB_3DOT2=OFF", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON", "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=/inside/needs_cuda.cmake", "-DGGML_CUDA_NO_VMM=ON", "-DLLAMA_BUILD_NUMBER=0", "-DLLAMA_BUILD_COMMIT=0c1e57098", "-DLLAMA_BUILD_UI=ON", "-DLLAMA_BUILD_WEBUI=ON"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", "/build/1", "--target", "llama-server", "llama-cli", "llama-bench"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/collect.py", "--strip", "x86_64-linux-gnu-strip", "/build/1/bin", "/opt/engine/bin", "llama-server", "llama-cli", "llama-bench"]
# Most commits change no kernel: the library of kernels is a layer of its own, which stays.
RUN --network=none ["sh", "-euc", "mkdir -p /kernels$0; find $0 -name 'libggml-cuda.so*' -exec mv -t /kernels$0 {} +", "/opt/engine/bin"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/kernels"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS image
COPY --link --from=build /kernels/ /
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COPY --link --from=entrypoint /layer/ /
ENV LLAMA_ARG_HOST="0.0.0.0" LLAMA_ARG_PORT="8080"
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "8080", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/llama-server", "--"]

