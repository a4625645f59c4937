# hami-core-pr188: files that cmake makes, alone. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/used", "1", "CMAKE_BUILD_TYPE", "DLSYM_HOOK_ENABLE", "MULTIPROCESS_LIMIT_ENABLE", "HOOK_MEMINFO_ENABLE", "HOOK_NVML_ENABLE", "CMAKE_POLICY_VERSION_MINIMUM", "CUDA_TOOLKIT_ROOT_DIR", "CUDA_TOOLKIT_ROOT_DIR_INTERNAL", "CUDA_TOOLKIT_TARGET_DIR_INTERNAL", "CUDA_NVCC_EXECUTABLE", "CUDA_VERSION", "--", "cmake", "-G", "Ninja", "-S", "/src/.", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CUDA_ARCHITECTURES=120", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-L/usr/local/cuda/lib64 -L/usr/local/cuda/lib64/stubs -Wl,-rpath-link,/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs", "-DCMAKE_SHARED_LINKER_FLAGS=-L/usr/local/cuda/lib64 -L/usr/local/cuda/lib64/stubs -Wl,-rpath-link,/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs", "-DDLSYM_HOOK_ENABLE=1", "-DMULTIPROCESS_LIMIT_ENABLE=1", "-DHOOK_MEMINFO_ENABLE=1", "-DHOOK_NVML_ENABLE=1", "-DCMAKE_POLICY_VERSION_MINIMUM=3.5", "-DCUDA_TOOLKIT_ROOT_DIR=/usr/local/cuda", "-DCUDA_TOOLKIT_ROOT_DIR_INTERNAL=/usr/local/cuda", "-DCUDA_TOOLKIT_TARGET_DIR_INTERNAL=/usr/local/cuda", "-DCUDA_NVCC_EXECUTABLE=/bin/true", "-DCUDA_VERSION=12.9"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "1.0", "cmake", "--build", "/build/1", "--target", "vgpu"]
RUN --network=none ["install", "-D", "-m", "0755", "--strip", "--strip-program=x86_64-linux-gnu-strip", "/build/1/libvgpu.so", "/layer/libvgpu.so"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM scratch AS image
COPY --link --from=build /layer/ /
