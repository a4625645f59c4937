# cuda-13.5: a CUDA toolkit to compile in, a system to run on, and CUDA's libraries. Rendered by builder.
FROM --platform=linux/amd64 base-root AS devel
RUN --network=none --mount=type=bind,from=debian-devel,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
RUN --network=none --mount=type=bind,from=wheels,target=/wheels --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "\"$@\"; /inside/reproducible /libraries", "assemble", "python3", "/inside/assemble_cuda.py", "--root", "/usr/local/cuda", "--compiler", "x86_64-linux-gnu-gcc", "--stub-compiler", "x86_64-linux-gnu-gcc", "--staging", "/libraries", "--wheels", "/wheels", "--runtime", "libcudart"]
RUN --network=none --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "cp /libraries/etc/ld.so.conf.d/cuda.conf /etc/ld.so.conf.d/; ldconfig"]
ENV PATH="/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" CUDA_HOME="/usr/local/cuda" CCACHE_DIR="/ccache" CCACHE_MAXSIZE="20G" CCACHE_NOHASHDIR="1" CCACHE_COMPILERCHECK="content"

FROM base-root AS system
RUN --network=none --mount=type=bind,from=debian-runtime,target=/debian --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache --mount=type=tmpfs,target=/var/log --mount=type=bind,from=inside,target=/inside ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends --allow-downgrades /debian/\"$(dpkg --print-architecture)\"/*.deb"]
# The loader's cache names CUDA's libraries, whose own layer comes last: every engine on it shares it.
RUN --network=none --mount=type=bind,from=inside,target=/inside --mount=type=bind,from=devel,source=/libraries/usr/local/cuda,target=/usr/local/cuda --mount=type=bind,from=devel,source=/libraries/etc/ld.so.conf.d/cuda.conf,target=/etc/ld.so.conf.d/cuda.conf ["env", "SOURCE_DATE_EPOCH=1795834381", "/inside/reproducible", "/", "sh", "-euc", "ldconfig; useradd --uid 10001 --create-home --shell /usr/sbin/nologin engine; chage --lastday -1 engine; find / -xdev -type f -perm /6000 -exec chmod ug-s {} +; rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* /etc/*-"]
# The driver's libraries and the GPUs come from the host, by NVIDIA's container runtime, which
# refuses to start a container where the driver is too old for this.
ENV NVIDIA_VISIBLE_DEVICES="all" NVIDIA_DRIVER_CAPABILITIES="compute,utility" NVIDIA_REQUIRE_CUDA="cuda>=13.5"

FROM system AS runtime
COPY --link --from=devel /libraries/ /
