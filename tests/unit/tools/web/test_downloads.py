"""Connections of downloads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from builder.tools.web import downloads
from builder.tools.web.client import Client


def test_a_client_asks_for_many_files_over_one_connection() -> None:
    clients: list[tuple[str, int]] = []

    class FirstBytes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            clients.append(self.client_address)
            self.send_response(206)
            self.send_header("Content-Range", "bytes 0-0/9")
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), FirstBytes) as server:
        client = Client()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in ("a", "b", "c"):
            downloads.require_offered(f"http://127.0.0.1:{server.server_port}/{name}", client)
        server.shutdown()
    assert len(clients) == 3
    assert len(set(clients)) == 1
