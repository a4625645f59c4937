"""Requests and bytes that a registry gets: a first push, a second one, a prune of seven nights.

    .venv/bin/python studies/registry.py            # needs Docker, and docker-registry (Debian)

The image is a library of one file, compiled with the farm's CUDA base, which is built if Docker
lacks it.  Any other image is pushed with the same requests, and three more for each new layer.
Everything else is in a directory that goes afterwards: the registry, the state, the nights.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

from builder.core.web import Client
from builder.publish.registry import Manifest, Repository

FARM = Path(__file__).parents[1]
RECIPE = """engine  = "measured"
version = "0.1.0"
summary = "A library of one file"
license = "MIT"
family  = "artifact"
base    = "cuda-13.0"
[source]
path = "engines/measured"
[cuda]
arch = ["120"]
[[cmake]]
targets = ["one"]
[artifact]
files = ["libone.so"]
loads = false
[image]
repository = "measured"
tags       = ["0.1.0"]
moving     = ["latest", "nightly"]
[track]
branch  = "main"
channel = "nightly"
[build]
disk = 1.0
[[probe]]
library = "libone.so"
symbols = ["answer"]
"""
CMAKE = "cmake_minimum_required(VERSION 3.20)\nproject(one C)\nadd_library(one SHARED one.c)\n"
HOP = {"connection", "transfer-encoding", "host", "content-length"}


class Counting(BaseHTTPRequestHandler):
    """A proxy before a registry that counts requests by method, and the bytes that it gets."""

    registry = ""
    requests: ClassVar[Counter[str]] = Counter()
    received = 0

    def forward(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(size)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        Counting.requests[self.command] += 1
        Counting.received += len(content)
        sent = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
        url = f"http://{self.registry}{self.path}"
        answer = Client().request(
            self.command, url, limit=1 << 30, headers=sent, data=content or None
        )
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in HOP:
                self.send_header(name, value.replace(self.registry, self.headers["Host"]))
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = forward

    def log_message(self, *_: object) -> None:
        pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*words: str | Path) -> str:
    """builder's standard output; it ends this script where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", *map(str, words)], cwd=FARM, stdout=subprocess.PIPE
    )
    if done.returncode:
        raise SystemExit(f"studies/registry.py: builder {' '.join(map(str, words))} failed")
    return done.stdout.decode()


def measured(title: str, *words: str | Path) -> None:
    """Run a command, and print what the registry got."""
    Counting.requests.clear()
    Counting.received = 0
    run(*words)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counting.requests.items()))
    print(
        f"| {title} | {Counting.requests.total()} | {kinds} | {Counting.received:,} |", flush=True
    )


def add_nights(repository: Repository, count: int) -> None:
    """Nights of a channel: the image under other digests, as ``builder nightly`` names them."""
    image = repository.manifest("0.1.0")
    if image is None:
        raise SystemExit("studies/registry.py: the registry has no image")
    for day in range(1, count + 1):
        body = json.loads(image.content)
        config = json.loads(repository.blob(body["config"]["digest"]))
        config["created"] = f"2026-01-{day:02}T00:00:00Z"
        labels = config["config"]["Labels"]
        labels["org.opencontainers.image.version"] = f"nightly-b{day}"
        labels["builder.key"] = f"{day:064}"
        text = json.dumps(config).encode()
        repository.put_bytes(text)
        made = Manifest(text, "")
        body["config"] |= {"digest": made.digest, "size": len(text)}
        night = Manifest(json.dumps(body).encode(), image.media_type)
        repository.put_manifest(f"nightly-b{day}-{day:012}", night)
    repository.put_manifest("nightly", night)


def catalog(folder: Path) -> Path:
    """A farm with that recipe alone, on the real bases."""
    source = folder / "engines" / "measured"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(CMAKE)
    (source / "one.c").write_text("int answer(void) { return 1; }\n")
    shutil.copytree(FARM / "recipes" / "bases", folder / "recipes" / "bases")
    (folder / "recipes" / "measured-0.1.0.toml").write_text(RECIPE)
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        work, port = Path(name), free_port()
        Counting.registry = f"127.0.0.1:{port}"
        settings = work / "registry.yml"
        settings.write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {work}/registry}}, "
            f'delete: {{enabled: true}}}}\nhttp: {{addr: "{Counting.registry}"}}\n'
        )
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
        Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{proxy.server_port}"
        os.environ |= {
            "BUILDER_NAMESPACE": f"{address}/study",
            "BUILDER_STATE_DIR": f"{work}/state",
            "BUILDER_COSIGN_KEY": "",
        }
        farm = catalog(work / "farm")
        with subprocess.Popen(
            ["docker-registry", "serve", settings], stdout=subprocess.DEVNULL, stderr=-3
        ) as server:
            try:
                time.sleep(2)
                run("build", "measured", "--catalog", farm)
                print("| | requests | of them | bytes sent |\n|---|---|---|---|")
                measured("first push", "push", "measured", "--catalog", farm)
                measured("second push", "push", "measured", "--catalog", farm)
                repository = Repository(f"{address}/study/measured", print)
                add_nights(repository, 10)
                words = ("tag", "prune", "measured", "--keep", "2", "--yes", "--catalog", farm)
                measured("prune of seven of ten nights", *words)
            finally:
                server.terminate()
                found = subprocess.run(
                    ["docker", "image", "ls", "--quiet", f"{address}/study/measured"],
                    stdout=subprocess.PIPE,
                )
                names = sorted({*found.stdout.decode().split()})
                subprocess.run(["docker", "image", "rm", "--force", *names], stdout=-3)


if __name__ == "__main__":
    main()
