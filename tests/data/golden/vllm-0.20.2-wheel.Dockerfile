# vllm-0.20.2-wheel: patches laid over an installed package. Rendered by builder.
FROM --platform=linux/amd64 base-root AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/out", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >/out/needs", "needs", "recipe vllm-0.20.2-wheel", "cuda 13.0", "driver 580"]

FROM base-runtime AS image
ARG REBUILD=no
ARG BASE_USER
USER root
COPY --from=entrypoint /out/ /opt/builder/
RUN --network=none --mount=type=bind,from=inside,target=/run/inside --mount=type=bind,from=source,target=/run/overlay ["python3", "/run/inside/overlay.py", "/run/overlay", "--package", "vllm", "--version", "0.20.2"]
COPY --from=inside --chmod=0755 healthcheck /usr/local/bin/healthcheck
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20m CMD ["/usr/local/bin/healthcheck", "8000", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "vllm", "serve", "--"]
