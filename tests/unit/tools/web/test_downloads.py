"""Connections of downloads."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from builder.tools.web import downloads
from builder.tools.web.client import Client

CONTENT = b"x" * 9


def test_a_client_asks_for_many_files_over_one_connection(tmp_path: Path) -> None:
    clients: list[tuple[str, int]] = []

    class Files(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            clients.append(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *_: object) -> None:
            pass

    digest = hashlib.sha256(CONTENT).hexdigest()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        client = Client()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in ("a", "b", "c"):
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            downloads.store(client, url, name, digest, tmp_path / name)
        server.shutdown()
    assert len(clients) == 3
    assert len(set(clients)) == 1
