# Debian trixie as of 2026-11-20, by registry. Rendered by builder.
FROM debian:trixie-slim@sha256:0000000000000000000000000000000000000000000000000000000000000000 AS root
RUN --network=default --mount=type=secret,id=apt-sources,target=/etc/apt/sources.list.d/builder.sources --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log ["sh", "-euc", "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends -- \"$@\"", "apt-install", "ca-certificates"]
