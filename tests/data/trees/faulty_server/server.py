"""A server with the API of hello-sm120 that misbehaves in the way that its argument names."""

import json
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULT = sys.argv[1]
TEXT = "abcdefghijkl"
CHATS: list[int] = []


class Handler(BaseHTTPRequestHandler):
    def answer(self, value: object, status: int = 200) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer({}, 503 if FAULT == "loads-forever" else 200)
        elif self.path == "/v1/models":
            names = ["a", "b"] if FAULT == "two-models" else ["a"]
            self.answer({"data": [{"id": name} for name in names]})
        else:
            self.answer({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.answer({"tokens": [ord(c) for c in body["content"]]})
        elif self.path == "/detokenize":
            tokens = body["tokens"][1:] if FAULT == "loses-tokens" else body["tokens"]
            self.answer({"content": "".join(map(chr, tokens))})
        elif FAULT == "hangs-up":
            self.answer({}, 404)
        elif self.path == "/v1/chat/completions" and body.get("stream"):
            self.timed_stream()
        elif self.path == "/v1/chat/completions":
            role = "user" if FAULT == "wrong-role" else "assistant"
            self.answer({"choices": [{"message": {"role": role, "content": TEXT}}]})
        elif body.get("stream"):
            self.stream()
        else:
            self.complete()

    def complete(self) -> None:
        if FAULT == "hangs":
            time.sleep(1000)
        if FAULT == "dies":
            import os

            os._exit(7)
        if FAULT == "garbage":
            self.answer(b"<html>it works</html>")
        elif FAULT == "error":
            self.answer({"error": "invalid UTF-8"}, 500)
        elif FAULT == "list":
            self.answer([1])
        elif FAULT == "drips":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b" ")
                time.sleep(0.1)
        else:
            text = "" if FAULT == "empty" else TEXT
            count = 3 if FAULT == "short" else 12
            choices = [{"text": text, "finish_reason": "length"}]
            self.answer({"choices": choices, "usage": {"completion_tokens": count}})

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        pieces = [TEXT] if FAULT == "one-piece" else list(TEXT)
        if FAULT == "half-a-reply":
            pieces = pieces[:6]
        if FAULT == "other-text":
            pieces[3] = "?"
        for piece in pieces:
            self.event(json.dumps({"choices": [{"text": piece}]}))
        if FAULT == "error-in-stream":
            self.event('{"error": {"message": "out of memory"}}')
        if FAULT != "half-a-reply":
            self.event("[DONE]")

    def timed_stream(self) -> None:
        speeds = {"collapses": [53, 55, 11], "loses-drafts": [50, 51, 50]}.get(FAULT, [50])
        number = len(CHATS)
        CHATS.append(number)
        timings = {"predicted_n": 9, "predicted_per_second": speeds[number % len(speeds)]}
        accepted = 0 if FAULT == "loses-drafts" and number else 7
        self.send_response(200)
        self.end_headers()
        self.event(json.dumps({"choices": [{"delta": {"content": "a"}}]}))
        drafts = {"draft_n": 10, "draft_n_accepted": accepted}
        self.event(json.dumps({"choices": [], "timings": timings | drafts}))
        self.event("[DONE]")

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if FAULT == "crashes":
        sys.exit("error: tensor 'output.weight' is missing")
    if FAULT == "takes-memory":
        bytearray(4 << 30)
    if FAULT == "prints":
        for _ in range(100):
            sys.stdout.write("x" * 99 * 10000 + "\n" * 10000)
    if FAULT == "talks":
        sys.stdout.write("\n".join(["first", *map(str, range(1000)), "last\n"]))
        sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "deaf" else lambda *_: sys.exit(0))
    if FAULT == "status-after-stop":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ThreadingHTTPServer(("", 8080), Handler).serve_forever()


main()
