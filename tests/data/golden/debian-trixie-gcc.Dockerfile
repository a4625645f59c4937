# Debian trixie as of 2026-11-20, by mmdebstrap. Rendered by builder.
FROM scratch AS root
ARG TARGETARCH
ADD rootfs-${TARGETARCH}.tar /
