# vllm-wheel-0.20.2: Python packages out of locked wheels. Rendered by builder.
FROM base-devel AS build
RUN --network=none ["python3", "-m", "venv", "/venv"]
RUN --network=none ["python3", "-m", "venv", "--without-pip", "/opt/engine"]
RUN --network=none --mount=type=bind,from=wheels,target=/wheels ["sh", "-euc", "/venv/bin/python -m pip --python /opt/engine/bin/python install --no-index --no-deps --no-compile --disable-pip-version-check /wheels/*.whl"]
RUN --network=none ["/venv/bin/python", "-m", "pip", "--python", "/opt/engine/bin/python", "check"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["python3", "/inside/diet.py", "/opt/engine", "12.0"]
RUN --network=none ["sh", "-uc", "\"$@\" || [ $? = 1 ]", "compile", "/opt/engine/bin/python", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "/opt/engine/lib"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["/inside/reproducible", "/opt"]

# The wheels bring CUDA's libraries.
FROM base-system AS runtime
RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795227046", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
COPY --link --from=build /opt/ /opt/
ENV PATH="/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" PYTHONUNBUFFERED="1"
