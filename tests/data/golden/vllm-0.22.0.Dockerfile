# vllm-0.22.0: patches laid over an installed package. Rendered by builder.
FROM --platform=linux/amd64 base-root AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe vllm-0.22.0", "cuda 13.0", "driver 580"]

FROM base-runtime AS image
ARG BASE_USER SOURCE_DATE_EPOCH
USER root
RUN --network=none --mount=type=bind,from=inside,target=/run/inside --mount=type=bind,from=entrypoint,source=/layer,target=/run/entrypoint ["/run/inside/reproducible", "/", "cp", "-r", "/run/entrypoint/.", "/"]
RUN --network=none --mount=type=bind,from=inside,target=/run/inside --mount=type=bind,from=source,target=/run/overlay ["/run/inside/reproducible", "/", "python3", "/run/inside/overlay.py", "/run/overlay", "--package", "vllm", "--version", "0.22.0", "--keep-start"]
USER $BASE_USER
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20m CMD ["/usr/local/bin/healthcheck", "8000", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "--"]
