# stable-diffusion-cpp-90e87bc: ggml family. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe stable-diffusion-cpp-90e87bc", "code sm_120a", "cpu sse4.2", "cpu avx", "cpu f16c", "cpu fma", "cpu bmi2", "cpu avx2", "cuda 13.0", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM --platform=linux/amd64 base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/used", "1", "SD_BUILD_SHARED_GGML_LIB", "SD_SERVER_BUILD_FRONTEND", "SDCPP_BUILD_VERSION", "SDCPP_BUILD_COMMIT", "--", "cmake", "-G", "Ninja", "-S", "/src/.", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DGGML_CUDA=ON", "-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CCACHE=OFF", "-DBUILD_SHARED_LIBS=ON", "-DGGML_CPU_KLEIDIAI=OFF", "-DGGML_CUDA_CUB_3DOT2=OFF", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_BMI2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_CUDA_NO_VMM=ON", "-DSD_CUDA=ON", "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=/build/1/bin", "-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=/build/1/bin", "-DSD_BUILD_SHARED_GGML_LIB=ON", "-DSD_SERVER_BUILD_FRONTEND=OFF", "-DSDCPP_BUILD_VERSION=master-596-90e87bc", "-DSDCPP_BUILD_COMMIT=90e87bc"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", "/build/1", "--target", "sd-server", "sd-cli"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/collect.py", "--strip", "x86_64-linux-gnu-strip", "/build/1/bin", "/opt/engine/bin", "sd-server", "sd-cli"]
# Most commits change no kernel: the library of kernels is a layer of its own, which stays.
RUN --network=none ["sh", "-euc", "mkdir -p /kernels$0; find $0 -name 'libggml-cuda.so*' -exec mv -t /kernels$0 {} +", "/opt/engine/bin"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/kernels"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS image
COPY --link --from=build /kernels/ /
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COPY --link --from=entrypoint /layer/ /
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "8080", "v1/models"]
ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/sd-server", "--listen-ip", "0.0.0.0", "--listen-port", "8080", "--"]

