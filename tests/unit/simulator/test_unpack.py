"""The simulated card unpacks device code as the libraries of zstd and LZ4 do."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Callable

import lz4.block
import pytest
from backports import zstd

from support.environment import REPOSITORY

CARD = REPOSITORY / "simulator/card"
RANDOM = random.Random(1)
TEXTS = {
    "empty": b"",
    "one byte": b"a",
    "zeros": bytes(300_000),
    "noise": RANDOM.randbytes(5000),
    "two letters": bytes(RANDOM.choice(b"ab") for _ in range(20_000)),
    "digits": bytes(RANDOM.choice(b"0123456789abcdef") for _ in range(200_000)),
    "runs": b"".join(bytes([RANDOM.randrange(8)]) * RANDOM.randrange(1, 400) for _ in range(2000)),
    "source": b"".join(file.read_bytes() for file in sorted(CARD.glob("*.cpp"))),
}
Unpack = Callable[[str, bytes, int], "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    program = tmp_path_factory.mktemp("unpack") / "unpack"
    sources = [REPOSITORY / "tests/data/simulator/unpack.cpp", CARD / "unpack.cpp"]
    options = ["-std=c++20", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["g++", *options, f"-I{CARD}", *sources, "-o", program]
    subprocess.run([str(word) for word in command], check=True, timeout=300)

    def run(kind: str, packed: bytes, size: int) -> subprocess.CompletedProcess[bytes]:
        call = [str(program), kind, str(size)]
        return subprocess.run(call, input=packed, capture_output=True, check=False, timeout=60)

    return run


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_packed_comes_out(unpack: Unpack, name: str) -> None:
    text = TEXTS[name]
    assert unpack("sha256", text, 0).stdout.decode() == hashlib.sha256(text).hexdigest()
    for level in (-5, 1, 3, 9, 19, 22):
        assert unpack("zstd", zstd.compress(text, level), len(text)).stdout == text, level
    packed = lz4.block.compress(text, store_size=False)
    assert unpack("lz4", packed, len(text)).stdout == text


def test_damaged_data_are_refused_or_give_other_bytes(unpack: Unpack) -> None:
    text = TEXTS["source"]
    for kind, packed in (
        ("zstd", zstd.compress(text, 9)),
        ("lz4", lz4.block.compress(text, store_size=False)),
    ):
        short = unpack(kind, packed[:-1], len(text))
        assert short.returncode == 1, kind
        assert b"damaged" in short.stderr or b"LZ4" in short.stderr
        assert unpack(kind, packed, len(text) - 1).returncode == 1, kind
        for _ in range(40):  # the sanitizers end a run that reads or writes elsewhere
            wrong = bytearray(packed)
            for _ in range(RANDOM.randrange(1, 4)):
                wrong[RANDOM.randrange(len(wrong))] = RANDOM.randrange(256)
            done = unpack(kind, bytes(wrong), len(text))
            assert done.returncode == 1 or len(done.stdout) == len(text), done.stderr[-2000:]
            assert b"Sanitizer" not in done.stderr
