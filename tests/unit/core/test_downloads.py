"""Connections of downloads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from builder.core import web
from builder.core.web import Client
from support.loopback import Quiet, serving_with

CONTENT = b"x" * 9


def test_a_client_asks_for_many_files_over_one_connection(tmp_path: Path) -> None:
    clients: list[tuple[str, int]] = []

    class Files(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            clients.append(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

    digest = hashlib.sha256(CONTENT).hexdigest()
    with serving_with(Files) as address:
        client = Client()
        for name in ("a", "b", "c"):
            web.store(client, f"http://{address}/{name}", name, digest, tmp_path / name)
    assert len(clients) == 3
    assert len(set(clients)) == 1
