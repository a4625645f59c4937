# tabbyapi-e632af4: TabbyAPI's server, and ExLlamaV3's extension. Rendered by builder.
FROM --platform=linux/amd64 base-root AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe tabbyapi-e632af4", "code sm_120", "cuda 13.0", "driver 580"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]

FROM base-runtime AS build
USER root
ARG REBUILD=no CCACHE_DISABLE
RUN --network=none --mount=type=bind,from=debian-build,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795573351", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
ARG SOURCE_DATE_EPOCH
ARG BUILDER_JOBS
RUN --network=none --mount=type=cache,id=builder-ccache,target=/ccache --mount=type=bind,from=inside,target=/inside ["/inside/jobs", "3.0", "python3", "/inside/extension.py", "exllamav3.ext", "exllamav3_ext", "/layer", "120"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/layer"]
COPY --from=source /tree/main.py /server/opt/engine/tabbyapi/main.py
COPY --from=source /tree/backends /server/opt/engine/tabbyapi/backends
COPY --from=source /tree/common /server/opt/engine/tabbyapi/common
COPY --from=source /tree/endpoints /server/opt/engine/tabbyapi/endpoints
COPY --from=source /tree/LICENSE /server/opt/engine/tabbyapi/LICENSE
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/server"]

FROM base-runtime AS image
COPY --link --from=build /layer/ /
COPY --link --from=build /server/ /
COPY --link --from=entrypoint /layer/ /
USER 10001:10001
WORKDIR /home/engine
EXPOSE 5000
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["/usr/local/bin/healthcheck", "5000", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "/usr/bin/env", "--chdir=/tmp", "/opt/engine/bin/python", "/opt/engine/tabbyapi/main.py", "--model-dir", "/models", "--host", "0.0.0.0", "--port", "5000", "--"]

# An image that adds to its base keeps the base's directory.
WORKDIR /
