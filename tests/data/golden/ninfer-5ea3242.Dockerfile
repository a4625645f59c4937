# ninfer-5ea3242: cmake. Rendered by builder.
FROM --platform=linux/amd64 base-devel AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe ninfer-5ea3242", "code sm_120a", "code compute_120a", "cuda 13.5", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM --platform=linux/amd64 base-devel AS build
ARG REBUILD=no CCACHE_DISABLE
RUN --network=none --mount=type=bind,from=debian-build,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
ARG SOURCE_DATE_EPOCH
COPY --from=source /tree/ /src/
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache ["cmake", "-G", "Ninja", "-S", "/src/.", "-B", "/build/1", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=120a", "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64", "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=/build/1/bin", "-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=/build/1/bin", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"]
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "cmake", "--build", "/build/1", "--target", "ninfer-serve", "ninfer"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/collect.py", "--strip", "x86_64-linux-gnu-strip", "/build/1/bin", "/opt/engine/bin", "ninfer-serve", "ninfer"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS image
RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COPY --link --from=entrypoint /layer/ /
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "8080", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/ninfer-serve", "--"]

