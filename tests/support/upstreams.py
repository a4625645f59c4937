"""Real git repositories, made on the spot, and a smart HTTP server for them that can misbehave."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from support.loopback import Quiet, serving_with

IDENTITY = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
CONFIGURATION = """\
[uploadpack]
	allowFilter = true
[protocol "file"]
	allow = always
[maintenance]
	auto = false
"""


@dataclass
class Upstream:
    """A repository with a work tree at ``folder``."""

    folder: Path
    clock: int = 1_700_000_000

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", "--template=")
        with (self.folder / ".git" / "config").open("a") as config:
            config.write(CONFIGURATION)

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def git(self, *arguments: str) -> str:
        return self.raw(*arguments).decode("utf-8", "surrogateescape").strip()

    def raw(self, *arguments: str) -> bytes:
        # Every commit at its own second, so that the names of commits do not hang on the clock.
        self.clock += 60
        date = f"{self.clock} +0000"
        done = subprocess.run(
            ["git", *IDENTITY, "-c", "protocol.file.allow=always", *arguments],
            cwd=self.folder,
            check=False,
            capture_output=True,
            env=os.environ | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        )
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout

    def commit(self, message: str, **files: str | bytes | None) -> str:
        """Write files (``a__b`` is a/b, None deletes), commit all; return the commit."""
        for name, content in files.items():
            self.write(name.replace("__", "/"), content)
        return self.record(message)

    def write(self, name: str, content: str | bytes | None) -> None:
        path = self.folder / name
        if content is None:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def record(self, message: str) -> str:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.head()

    def hashed(self, kind: str, content: str) -> str:
        """Store an object as it is; its name."""
        (self.folder / ".git" / "object").write_text(content)
        return self.git("hash-object", "-w", "-t", kind, ".git/object")

    def head(self) -> str:
        ref = (self.folder / ".git" / "HEAD").read_text().strip().removeprefix("ref: ")
        file = self.folder / ".git" / ref
        return file.read_text().strip() if file.is_file() else self.git("rev-parse", "HEAD")

    def pull(self, number: int, *commits: Mapping[str, str | bytes], base: str = "main") -> str:
        """A pull request on top of ``base``: one commit for each dict of files; its head."""
        back = self.git("rev-parse", "--abbrev-ref", "HEAD")
        self.git("checkout", "--quiet", "-B", f"pr-{number}", base)
        for index, files in enumerate(commits):
            for name, content in files.items():
                self.write(name, content)
            self.record(f"change {index + 1} of pull {number}")
        head = self.head()
        self.git("update-ref", f"refs/pull/{number}/head", head)
        self.git("checkout", "--quiet", back)
        self.git("branch", "--quiet", "-D", f"pr-{number}")
        return head


def numbered(count: int, **changed: str) -> str:
    """Lines "line 1" to "line COUNT"; ``line_3="x"`` puts another in place of the third."""
    return "".join(f"{changed.get(f'line_{n}', f'line {n}')}\n" for n in range(1, count + 1))


@dataclass
class Served:
    """A directory of repositories on loopback; ``faults`` are taken one a request, in order.

    A number is answered as that status; "cut" gives half of the answer and closes, "stall" gives
    half of it and then nothing for a while.
    """

    url: str
    faults: list[int | str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    sent: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)


class Backend(Quiet):
    """git http-backend (git-http-backend(1)) behind Python's server, with faults."""

    root: ClassVar[Path]
    served: ClassVar[Served]

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.served.requests.append(f"{self.command} {self.path}")
        body = self.body()
        fault = self.served.faults.pop(0) if self.served.faults else None
        if isinstance(fault, int):
            self.send_response(fault)
            if fault == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, answer = self.backend(body)
        self.send_response(200)
        for line in head:
            name, _, value = line.partition(": ")
            if name.lower() != "status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        sent = answer[: len(answer) // 2] if fault in {"cut", "stall"} else answer
        self.wfile.write(sent)
        self.served.sent += len(sent)
        if fault == "stall":
            self.wfile.flush()
            self.served.stalled.wait(20)
        self.close_connection = True

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def backend(self, body: bytes) -> tuple[list[str], bytes]:
        path, _, query = self.path.partition("?")
        environment = os.environ | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, env=environment, check=False
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        return head.decode().split("\r\n"), answer


@contextmanager
def smart_http(root: Path) -> Iterator[Served]:
    """Serve every repository below ``root``."""
    served = Served("")
    handler = type("Handler", (Backend,), {"root": root, "served": served})
    with serving_with(handler) as address:
        served.url = f"http://{address}"
        try:
            yield served
        finally:
            served.stalled.set()
