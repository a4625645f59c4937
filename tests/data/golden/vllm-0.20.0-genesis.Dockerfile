# vllm-0.20.0-genesis: patches laid over an installed package. Rendered by builder.
FROM --platform=linux/amd64 base-root AS entrypoint
RUN --network=none --mount=type=bind,from=entrypoint-source,target=/entrypoint ["make", "--silent", "--directory=/entrypoint", "OUT=/layer/opt/builder", "HEALTHCHECK=/layer/usr/local/bin/healthcheck", "CROSS="]
RUN --network=none ["sh", "-euc", "printf \"%s\\n\" \"$@\" >\"$0\"", "/layer/opt/builder/needs", "recipe vllm-0.20.0-genesis", "cuda 13.0", "driver 580.126.09"]

FROM base-runtime AS image
ARG BASE_USER SOURCE_DATE_EPOCH
USER root
RUN --network=none --mount=type=bind,from=inside,target=/run/inside --mount=type=bind,from=entrypoint,source=/layer,target=/run/entrypoint ["/run/inside/reproducible", "/", "cp", "-r", "/run/entrypoint/.", "/"]
RUN --network=none --mount=type=bind,from=inside,target=/run/inside --mount=type=bind,from=source,target=/run/overlay ["/run/inside/reproducible", "/", "python3", "/run/inside/overlay.py", "/run/overlay", "--package", "vllm", "--version", "0.20.0", "--start", "[{\"run\": [\"python3\", \"-m\", \"vllm._genesis.patches.apply_all\"], \"says\": [\"kv_cache_utils=applied\", \"scheduler=applied\", \"applied: P60 \", \"applied: P62 \", \"applied: P64 \", \"applied: P65 \", \"applied: P66 \"], \"seconds\": 300}]"]
ENV GENESIS_ENABLE_P60_GDN_NGRAM_FIX="1" GENESIS_ENABLE_P62_STRUCT_OUT_SPEC_TIMING="1" GENESIS_ENABLE_P64_QWEN3CODER_MTP_STREAMING="1" GENESIS_ENABLE_P65_TURBOQUANT_SPEC_CG_DOWNGRADE="1" GENESIS_ENABLE_P66_CUDAGRAPH_SIZE_FILTER="1"
USER $BASE_USER
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20m CMD ["/usr/local/bin/healthcheck", "8000", "health"]
ENTRYPOINT ["/opt/builder/entrypoint", "python3", "/opt/builder/start.py", "--"]
