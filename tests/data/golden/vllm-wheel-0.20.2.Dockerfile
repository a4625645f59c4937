# vllm-wheel-0.20.2: Python packages out of locked wheels. Rendered by builder.
FROM base-devel AS build
RUN --network=none ["python3", "-m", "venv", "/venv"]
RUN --network=none ["python3", "-m", "venv", "--without-pip", "/opt/engine"]
RUN --network=none --mount=type=bind,from=wheels,target=/wheels ["sh", "-euc", "/venv/bin/python -m pip --python /opt/engine/bin/python install --no-index --no-deps --no-compile --disable-pip-version-check /wheels/*.whl"]
RUN --network=none ["/venv/bin/python", "-m", "pip", "--python", "/opt/engine/bin/python", "check"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

FROM base-runtime AS runtime
RUN --network=default --mount=type=secret,id=apt-sources,target=/etc/apt/sources.list.d/builder.sources --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795132800", "/inside/reproducible", "/", "sh", "-euc", "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends -- \"$@\"", "apt-install", "g++", "libc6-dev", "python3", "python3-dev"]
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" PYTHONUNBUFFERED="1"
