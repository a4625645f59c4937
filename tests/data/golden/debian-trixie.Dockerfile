# Debian trixie, by mmdebstrap. Rendered by builder.
FROM scratch AS root
ARG TARGETARCH
ADD rootfs-${TARGETARCH}.tar /
