"""A small server with llama-server's page of probabilities, for tests of the server's numbers.

Its text depends on how many layers of its model add something.  Each of them adds an eighth, by a
kernel of CUDA's driver API, or on the CPU with BUILDER_CPU.  FAULT says what is wrong:

- layer: on a card, the second layer adds more
- drafts: with --spec-type, the sixth token is another one
- block: a model with a block that drafts is refused
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PTX = b"""
.version 8.7
.target sm_120a
.address_size 64
.visible .entry add(.param .u64 at, .param .f32 more)
{
    .reg .b64 %d<2>;
    .reg .f32 %f<3>;
    ld.param.u64 %d1, [at];
    ld.param.f32 %f1, [more];
    ld.global.f32 %f2, [%d1];
    add.f32 %f2, %f2, %f1;
    st.global.f32 [%d1], %f2;
    ret;
}
"""
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ADDING = ("attn_output", "ssm_out", "ffn_down")
DRAFTED = 6


class Gguf:
    """The names of a model's tensors, and whether they begin with zeros."""

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as self.file:
            _, _, tensors, values = self.numbers("<IIQQ")
            for _ in range(values):
                self.text()
                self.skip(*self.numbers("<I"))
            places = {}
            for _ in range(tensors):
                name = self.text()
                (dimensions,) = self.numbers("<I")
                self.file.read(8 * dimensions + 4)
                (places[name],) = self.numbers("<Q")
            start = -(-self.file.tell() // 32) * 32
            self.zero = {}
            for name, place in places.items():
                self.file.seek(start + place)
                self.zero[name] = not any(self.file.read(256))

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.file.read(struct.calcsize(form)))

    def text(self) -> str:
        (length,) = self.numbers("<Q")
        return self.file.read(length).decode()

    def skip(self, kind: int) -> None:
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            kind, length = self.numbers("<IQ")
            for _ in range(length):
                self.skip(kind)
        else:
            self.file.read(SIZES[kind])

    def layers(self) -> list[int]:
        """The layers that add to their input."""
        return sorted(
            {
                int(name.split(".")[1])
                for name, zero in self.zero.items()
                if name.startswith("blk.") and not zero and name.split(".")[2].startswith(ADDING)
            }
        )


class Card:
    """Adds numbers on a card."""

    def __init__(self) -> None:
        self.cuda, self.lock = ctypes.CDLL("libcuda.so.1"), threading.Lock()
        self.context, module, self.kernel = (ctypes.c_void_p() for _ in range(3))
        self.at = ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"add")
        self.call("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(4))

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            sys.exit(f"{name}: error {status}")

    def sum(self, parts: list[float]) -> float:
        number = ctypes.c_float()
        size = ctypes.c_size_t(4)
        with self.lock:
            self.call("cuCtxSetCurrent", self.context)
            self.call("cuMemcpyHtoD_v2", self.at, ctypes.byref(number), size)
            for part in parts:
                given = [self.at, ctypes.c_float(part)]
                pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, given))
                shape = (1,) * 6
                self.call("cuLaunchKernel", self.kernel, *shape, 0, None, pointers, None)
            self.call("cuMemcpyDtoH_v2", ctypes.byref(number), self.at, size)
        return number.value


def prediction(total: float, count: int) -> dict[str, object]:
    scores = [total, 0.0, -1.0]
    whole = math.log(sum(map(math.exp, scores)))
    likely = [{"id": i, "logprob": score - whole} for i, score in enumerate(scores)]
    tokens = [{**likely[0], "top_logprobs": likely} for _ in range(count)]
    timings = {"prompt_n": 5}
    if "--spec-type" in sys.argv:
        timings |= {"draft_n": DRAFTED, "draft_n_accepted": 3}
        tokens[:DRAFTED] = [{**likely[0], "top_logprobs": []} for _ in range(DRAFTED)]
        if FAULT == "drafts":
            tokens[DRAFTED] = {**likely[2], "top_logprobs": likely}
    text = "".join("abc"[token["id"]] for token in tokens)
    return {"content": text, "completion_probabilities": tokens, "timings": timings}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        total = CARD.sum(PARTS) if CARD else sum(PARTS)
        self.answer(prediction(total, asked["n_predict"]))

    def answer(self, value: dict[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


FAULT = os.environ.get("FAULT", "")
MODEL = Gguf(sys.argv[sys.argv.index("-m") + 1])
if FAULT == "block" and any("nextn" in name for name in MODEL.zero):
    sys.exit("error: wrong number of tensors")
if FAULT == "drafter" and "-md" in sys.argv:
    sys.exit("error loading model: unknown model architecture: 'dflash'")
CARD = None if "BUILDER_CPU" in os.environ else Card()
PARTS = [1.25 if CARD and FAULT == "layer" and layer == 1 else 0.125 for layer in MODEL.layers()]
ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
