"""A plain interpreter of PTX in Python: one thread after the other, one instruction after the other.

It knows what the products of q8_0 and q4_0 need, and is what speed.py compares the C++ one with.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from typing import Any

Values = dict[str, Any]
LOADS: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "f32": ctypes.c_float,
}
STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*([^;]*);")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
}


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def single(value: float) -> float:
    return float(ctypes.c_float(value).value)


class Kernel:
    """The statements of one kernel, split once."""

    def __init__(self, text: str, name: str) -> None:
        head, body = text[text.index(f".entry {name}(") :].split("{", 1)
        self.parameters = re.findall(r"\.param \.u(\d+)[^,)]* (\w+)", head)
        body = re.sub(r"//[^\n]*", "", body[: body.index("\n}\n")])
        self.code: list[tuple[str, str, list[str], list[str]]] = []
        self.labels: dict[str, int] = {}
        for line in re.split(r"(?<=;)|\n", body):
            label = re.match(r"\s*(\$\w+):", line)
            if label:
                self.labels[label[1]] = len(self.code)
            found = STATEMENT.search(line)
            if found and ".reg" not in line:
                operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[4])
                self.code.append((found[1] or "", found[2] or "", found[3].split("."), operands))
        self.executed = 0

    def run(self, thread: int, arguments: list[int]) -> None:
        """One thread of the first block."""
        values: Values = {"%tid.x": thread, "%ctaid.x": 0, "%ntid.x": 1}
        parameters = dict(zip((name for _, name in self.parameters), arguments, strict=True))
        at = 0
        while at < len(self.code):
            negated, guard, parts, operands = self.code[at]
            at += 1
            self.executed += 1
            if guard and bool(values[guard]) == bool(negated):
                continue
            if parts[0] == "ret":
                return
            if parts[0] == "bra":
                at = self.labels[operands[0]]
                continue
            self.step(values, parts, operands, parameters)

    def step(
        self, values: Values, parts: list[str], operands: list[str], parameters: dict[str, int]
    ) -> None:
        base, kind = parts[0], parts[-1]

        def value(n: int) -> Any:
            text = operands[n]
            if text in values:
                return values[text]
            if text.startswith("0f"):
                return struct.unpack(">f", bytes.fromhex(text[2:]))[0]
            return int(text, 0)

        def address(text: str) -> int:
            register, _, offset = text.strip("[]").partition("+")
            return int(values[register]) + int(offset or 0)

        bits = int(kind[1:]) if kind[1:].isdigit() else 0
        if base == "ld" and parts[1] == "param":
            values[operands[0]] = parameters[operands[1].strip("[]")]
        elif base == "ld":
            values[operands[0]] = LOADS[kind].from_address(address(operands[1])).value
        elif base == "st":
            LOADS[kind].from_address(address(operands[0])).value = value(1)
        elif base == "mov" and operands[0].startswith("{"):
            whole = value(1)
            for i, name in enumerate(operands[0].strip("{}").split(",")):
                values[name.strip()] = whole >> 16 * i & 0xFFFF
        elif base == "dp4a":
            a, b, total = value(1), value(2), value(3)
            for i in range(4):
                total += signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8)
            values[operands[0]] = total & 0xFFFFFFFF
        elif base == "setp":
            a, b = value(1), value(2)
            values[operands[0]] = COMPARE[parts[1]](signed(a, bits), signed(b, bits))
        elif base == "cvt":
            values[operands[0]] = self.convert(parts, value(1))
        else:
            numbers = [value(i) for i in range(1, len(operands))]
            values[operands[0]] = compute(base, parts, numbers, kind, bits)

    @staticmethod
    def convert(parts: list[str], v: Any) -> Any:
        if parts[-1] == "f16":
            return struct.unpack("<e", struct.pack("<H", v))[0]
        if parts[-2] == "f32":
            return float(signed(v, int(parts[-1][1:])))
        return v


def compute(base: str, parts: list[str], n: list[Any], kind: str, bits: int) -> Any:
    if kind == "f32":
        results = {"mov": lambda: n[0], "add": lambda: n[0] + n[1], "sub": lambda: n[0] - n[1],
                   "mul": lambda: n[0] * n[1], "fma": lambda: n[0] * n[1] + n[2]}  # fmt: skip
        return single(results[base]())
    if kind == "pred":
        return not n[0]
    if "wide" in parts:
        return signed(n[0], bits) * signed(n[1], bits) if kind[0] == "s" else n[0] * n[1]
    whole = {"mov": lambda: n[0], "cvta": lambda: n[0], "add": lambda: n[0] + n[1], "sub": lambda: n[0] - n[1],
             "mul": lambda: n[0] * n[1], "mad": lambda: n[0] * n[1] + n[2], "neg": lambda: -n[0],
             "and": lambda: n[0] & n[1], "or": lambda: n[0] | n[1], "xor": lambda: n[0] ^ n[1],
             "shl": lambda: n[0] << n[1], "shr": lambda: n[0] >> n[1]}  # fmt: skip
    return int(whole[base]()) & (1 << bits) - 1
