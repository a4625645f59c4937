"""What each instruction computes, by the words of the PTX ISA document, on Python's integers; what
it leaves open, and a few corner cases, as cards compute them.

A reference takes the bits of its sources and gives the bits of the result, or None: NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ptxlab import soft
from ptxlab.kernels import Shape
from ptxlab.soft import BF16, F16, F32, F64, Format, Real

Reference = Callable[..., "int | None"]


@dataclass(frozen=True)
class Case:
    """An instruction with {d}, {a}, ..; ``kinds`` of its sources choose the operands."""

    instruction: str
    shape: Shape
    kinds: tuple[str, ...]
    reference: Reference
    nan: Format | None = None  # the result's format: any NaN is right where the reference has one


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def of_type(type_: str, value: int) -> int:
    bits = int(type_[1:])
    return signed(value, bits) if type_[0] == "s" else value & ((1 << bits) - 1)


CASES: list[Case] = []


def words(
    instruction: str,
    reference: Reference,
    sources: int,
    kinds: tuple[str, ...] = (),
) -> None:
    """A case of ``sources`` operands; all have 32 bits, as the result has."""
    case(instruction, reference, 32, *[32] * sources, kinds=kinds)


def case(
    instruction: str,
    reference: Reference,
    result: int,
    *sources: int,
    kinds: tuple[str, ...] = (),
    nan: Format | None = None,
) -> None:
    CASES.append(
        Case(
            instruction,
            Shape(result, sources),
            kinds or tuple(f"i{b}" for b in sources),
            reference,
            nan,
        )
    )


def tdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def integers() -> None:
    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        n = int(t[1:])

        def hi(a: int, b: int, n: int = n) -> int:
            return (a * b) >> n

        def hi_plus(a: int, b: int, c: int, n: int = n) -> int:
            return ((a * b) >> n) + c

        def quotient(a: int, b: int, n: int = n) -> int:
            return tdiv(a, b) if b else (1 << n) - 1

        def two(op: str, f: Callable[[int, int], int], t: str = t, n: int = n) -> None:
            case(
                f"{op}.{t} {{d}}, {{a}}, {{b}};",
                lambda a, b: f(of_type(t, a), of_type(t, b)) & (1 << n) - 1,
                n,
                n,
                n,
            )

        two("add", lambda a, b: a + b)
        two("sub", lambda a, b: a - b)
        two("mul.lo", lambda a, b: a * b)
        two("mul.hi", hi)
        two("min", min)
        two("max", max)
        # Division by zero is left open: cards give all ones.
        two("div", quotient)
        two("rem", lambda a, b: a - tdiv(a, b) * b if b else -1)

        def three(op: str, f: Callable[[int, int, int], int], t: str = t, n: int = n) -> None:
            case(
                f"{op}.{t} {{d}}, {{a}}, {{b}}, {{c}};",
                lambda a, b, c: f(of_type(t, a), of_type(t, b), of_type(t, c)) & (1 << n) - 1,
                n, n, n, n,
            )  # fmt: skip

        three("mad.lo", lambda a, b, c: a * b + c)
        three("mad.hi", hi_plus)
        three("sad", lambda a, b, c: c + abs(a - b))
        if n < 64:
            case(f"mul.wide.{t} {{d}}, {{a}}, {{b}};",
                 lambda a, b, t=t, n=n: of_type(t, a) * of_type(t, b) & (1 << 2 * n) - 1, 2 * n, n, n)  # fmt: skip
            case(f"mad.wide.{t} {{d}}, {{a}}, {{b}}, {{c}};",
                 lambda a, b, c, t=t, n=n: (of_type(t, a) * of_type(t, b) + c) & (1 << 2 * n) - 1,
                 2 * n, n, n, 2 * n)  # fmt: skip
        if t[0] == "s":
            case(f"abs.{t} {{d}}, {{a}};", lambda a, n=n: abs(signed(a, n)) & (1 << n) - 1, n, n)
            case(f"neg.{t} {{d}}, {{a}};", lambda a, n=n: -a & (1 << n) - 1, n, n)
        if n >= 32:
            case(f"bfe.{t} {{d}}, {{a}}, {{b}}, {{c}};", lambda a, b, c, t=t: bfe(t, a, b, c), n, n, 32, 32,
                 kinds=(f"i{n}", "small", "small"))  # fmt: skip
            case(f"bfind.{t} {{d}}, {{a}};", lambda a, t=t: bfind(t, a, False), 32, n)
            case(f"bfind.shiftamt.{t} {{d}}, {{a}};", lambda a, t=t: bfind(t, a, True), 32, n)
        case(f"shr.{t} {{d}}, {{a}}, {{b}};",
             lambda a, b, t=t, n=n: (of_type(t, a) >> min(b, n)) & (1 << n) - 1, n, n, 32, kinds=(f"i{n}", "small"))  # fmt: skip
    for n in (16, 32, 64):
        mask = (1 << n) - 1
        case(f"shl.b{n} {{d}}, {{a}}, {{b}};", lambda a, b, n=n, mask=mask: (a << min(b, n)) & mask, n, n, 32,
             kinds=(f"i{n}", "small"))  # fmt: skip
        case(f"and.b{n} {{d}}, {{a}}, {{b}};", lambda a, b: a & b, n, n, n)
        case(f"or.b{n} {{d}}, {{a}}, {{b}};", lambda a, b: a | b, n, n, n)
        case(f"xor.b{n} {{d}}, {{a}}, {{b}};", lambda a, b: a ^ b, n, n, n)
        case(f"not.b{n} {{d}}, {{a}};", lambda a, mask=mask: a ^ mask, n, n)
        case(f"cnot.b{n} {{d}}, {{a}};", lambda a: int(a == 0), n, n)
    for n in (32, 64):
        case(f"popc.b{n} {{d}}, {{a}};", lambda a: a.bit_count(), 32, n)
        case(f"clz.b{n} {{d}}, {{a}};", lambda a, n=n: n - a.bit_length(), 32, n)
        case(f"brev.b{n} {{d}}, {{a}};", lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2), n, n)
        case(f"bfi.b{n} {{d}}, {{a}}, {{b}}, {{c}}, {{c}};",
             lambda a, b, c, n=n: bfi(n, a, b, c, c), n, n, n, 32, kinds=(f"i{n}", f"i{n}", "small"))  # fmt: skip
    m32 = (1 << 32) - 1
    words(
        "add.sat.s32 {d}, {a}, {b};",
        lambda a, b: clamp(signed(a, 32) + signed(b, 32), -(1 << 31), (1 << 31) - 1) & m32,
        2,
    )
    words(
        "sub.sat.s32 {d}, {a}, {b};",
        lambda a, b: clamp(signed(a, 32) - signed(b, 32), -(1 << 31), (1 << 31) - 1) & m32,
        2,
    )
    words(
        "mul24.lo.u32 {d}, {a}, {b};",
        lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & m32,
        2,
    )
    words(
        "mul24.hi.s32 {d}, {a}, {b};",
        lambda a, b: (signed(a, 24) * signed(b, 24) >> 16) & m32,
        2,
    )
    words(
        "mad24.lo.s32 {d}, {a}, {b}, {c};",
        lambda a, b, c: (signed(a, 24) * signed(b, 24) + c) & m32,
        3,
    )
    case("add.u16x2 {d}, {a}, {b};", lambda a, b: halves(lambda x, y: x + y, a, b), 32, 32, 32)
    words(
        "min.s16x2 {d}, {a}, {b};",
        lambda a, b: halves(lambda x, y: min(signed(x, 16), signed(y, 16)), a, b),
        2,
    )
    case("max.u16x2 {d}, {a}, {b};", lambda a, b: halves(max, a, b), 32, 32, 32)
    words(
        "bmsk.clamp.b32 {d}, {a}, {b};",
        lambda a, b: (((1 << min(b, 32)) - 1) << min(a, 32)) & m32,
        2,
        kinds=("small", "small"),
    )
    words(
        "bmsk.wrap.b32 {d}, {a}, {b};",
        lambda a, b: (((1 << b % 32) - 1) << a % 32) & m32,
        2,
        kinds=("small", "small"),
    )
    words(
        "szext.clamp.s32 {d}, {a}, {b};",
        lambda a, b: (signed(a, min(b, 32)) if b else 0) & m32,
        2,
        kinds=("i32", "small"),
    )
    words(
        "szext.wrap.u32 {d}, {a}, {b};",
        lambda a, b: a & (1 << b % 32) - 1,
        2,
        kinds=("i32", "small"),
    )
    case("fns.b32 {d}, {a}, {b}, {c};", fns, 32, 32, 32, 32, kinds=("i32", "small", "i32"))
    for left in (True, False):
        for wrap in (True, False):
            case(f"shf.{'l' if left else 'r'}.{'wrap' if wrap else 'clamp'}.b32 {{d}}, {{a}}, {{b}}, {{c}};",
                 lambda a, b, c, left=left, wrap=wrap: shf(left, wrap, a, b, c), 32, 32, 32, 32,
                 kinds=("i32", "i32", "small"))  # fmt: skip
    for table in (0x00, 0x1B, 0x6A, 0x80, 0x96, 0xCA, 0xE4, 0xEA, 0xF8, 0xFE, 0xFF):
        words(
            f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table:#x};",
            lambda a, b, c, t=table: lop3(a, b, c, t),
            3,
        )
    case("prmt.b32 {d}, {a}, {b}, {c};", lambda a, b, c: prmt(a, b, c), 32, 32, 32, 32)
    for mode, table6 in PRMT.items():
        words(
            f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};",
            lambda a, b, c, t=table6: prmt(a, b, t[c & 3]),
            3,
        )
    for x in ("u32", "s32"):
        for y in ("u32", "s32"):
            words(
                f"dp4a.{x}.{y} {{d}}, {{a}}, {{b}}, {{c}};",
                lambda a, b, c, x=x, y=y: dot(a, b, c, x, y, 4),
                3,
            )
            for half in ("lo", "hi"):
                case(f"dp2a.{half}.{x}.{y} {{d}}, {{a}}, {{b}}, {{c}};",
                     lambda a, b, c, x=x, y=y, h=half: dot(a, b >> 16 if h == "hi" else b, c, x, y, 2), 32, 32, 32, 32)  # fmt: skip
    # Carry goes through CC.CF: low words, then high words of a sum of 64 bits.
    for op, f in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        case("{{ .reg .b32 l<6>; mov.b64 {{l0, l1}}, {a}; mov.b64 {{l2, l3}}, {b}; "
             f"{op}.cc.u32 l4, l0, l2; {op}c.u32 l5, l1, l3; mov.b64 {{d}}, {{{{l4, l5}}}}; }}}}",
             lambda a, b, f=f: f(a, b) & (1 << 64) - 1, 64, 64, 64)  # fmt: skip
    case("{{ .reg .b32 l<4>; mad.lo.cc.u32 l0, {a}, {b}, {c}; madc.hi.u32 l1, {a}, {b}, 0; mov.b64 {d}, {{l0, l1}}; }}",
         lambda a, b, c: (a * b + c) & (1 << 64) - 1, 64, 32, 32, 32)  # fmt: skip


PRMT = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def halves(f: Callable[[int, int], int], a: int, b: int) -> int:
    return (f(a & 0xFFFF, b & 0xFFFF) & 0xFFFF) | (f(a >> 16, b >> 16) & 0xFFFF) << 16


def bfe(t: str, a: int, b: int, c: int) -> int:
    n = int(t[1:])
    # The document takes the lowest bytes; cards do so in words, but not in double words.
    pos, length = (b & 255, c & 255) if n == 32 else (min(b, 255), min(c, 255))
    sign = 0 if t[0] == "u" or length == 0 else a >> min(pos + length - 1, n - 1) & 1
    out = 0
    for i in range(n):
        bit = a >> (pos + i) & 1 if i < length and pos + i < n else sign
        out |= bit << i
    return out


def bfi(n: int, a: int, b: int, c: int, d: int) -> int:
    pos, length = c & 255, d & 255
    for i in range(length):
        if pos + i < n:
            b = (b & ~(1 << (pos + i))) | (a >> i & 1) << (pos + i)
    return b


def bfind(t: str, a: int, shift: bool) -> int:
    n = int(t[1:])
    if t[0] == "s" and a >> (n - 1):
        a = ~a & (1 << n) - 1
    if a == 0:
        return 0xFFFFFFFF
    top = a.bit_length() - 1
    return n - 1 - top if shift else top


def fns(mask: int, base: int, offset: int) -> int:
    offset = signed(offset, 32)
    if offset == -(1 << 31):  # the document has no case for it; cards give 0
        return 0
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    pos, count = base, 0
    while 0 <= pos < 32:
        if mask >> pos & 1:
            count += 1
            if count == abs(offset):
                return pos
        pos += 1 if offset > 0 else -1
    return 0xFFFFFFFF


def shf(left: bool, wrap: bool, a: int, b: int, c: int) -> int:
    n = c & 31 if wrap else min(c, 32)
    both = b << 32 | a
    return (both << n >> 32 if left else both >> n) & 0xFFFFFFFF


def lop3(a: int, b: int, c: int, table: int) -> int:
    out = 0
    for i in range(32):
        index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1
        out |= (table >> index & 1) << i
    return out


def prmt(a: int, b: int, selector: int) -> int:
    source = [(b << 32 | a) >> 8 * i & 255 for i in range(8)]
    out = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        out |= byte << 8 * i
    return out


def dot(a: int, b: int, c: int, x: str, y: str, count: int) -> int:
    width = 32 // count
    total = c
    for i in range(count):
        p = a >> width * i & (1 << width) - 1
        q = b >> 8 * i & 255
        total += (signed(p, width) if x == "s32" else p) * (signed(q, 8) if y == "s32" else q)
    return total & 0xFFFFFFFF


def real_case(
    op: str, fmt: Format, f: Callable[..., Real], count: int, mode: str, ftz: bool, sat: bool
) -> None:
    name = {F32: "f32", F64: "f64", F16: "f16", BF16: "bf16"}[fmt]

    def reference(*codes: int) -> int | None:
        values = [fmt.decode(soft.flush(fmt, c) if ftz else c) for c in codes]
        made = f(*values) if op != "add" and op != "sub" else f(*values, mode)
        if sat and made.kind == soft.NAN:
            return 0
        code = fmt.encode(made, mode, ftz)
        if code is None:
            return None
        if sat:
            one = fmt.bias << fmt.mantissa
            return 0 if code >> (fmt.bits - 1) else min(code, one)
        return code

    sources = ", ".join("{" + "abc"[i] + "}" for i in range(count))
    rounding = f".{mode}" if fmt in (F32, F64) or op == "fma" else ""
    text = f"{op}{rounding}{'.ftz' if ftz else ''}{'.sat' if sat else ''}.{name} {{d}}, {sources};"
    case(text, reference, fmt.bits, *[fmt.bits] * count, kinds=(name,) * count, nan=fmt)


def fused(a: Real, b: Real, c: Real) -> Real:
    product = soft.mul(a, b)
    return soft.add(product, c)


def floats() -> None:
    for fmt in (F32, F64):
        for mode in ("rn", "rz", "rm", "rp"):
            for ftz, sat in (
                ((False, False), (True, False), (True, True)) if fmt is F32 else ((False, False),)
            ):
                real_case("add", fmt, soft.add, 2, mode, ftz, sat)
                real_case(
                    "sub", fmt, lambda a, b, m: soft.add(a, soft.neg(b), m), 2, mode, ftz, sat
                )
                real_case("mul", fmt, soft.mul, 2, mode, ftz, sat)
                real_case(
                    "fma",
                    fmt,
                    lambda a, b, c, m=mode: soft.add(soft.mul(a, b), c, m),
                    3,
                    mode,
                    ftz,
                    sat,
                )
                if not sat:
                    real_case("div", fmt, soft.div, 2, mode, ftz, False)
                    real_case(
                        "rcp",
                        fmt,
                        lambda a: soft.div(soft.finite(Fraction(1)), a),
                        1,
                        mode,
                        ftz,
                        False,
                    )
                    real_case("sqrt", fmt, soft.sqrt, 1, mode, ftz, False)
    for fmt in (F16, BF16):
        flags = ((False, False), (True, False), (False, True)) if fmt is F16 else ((False, False),)
        for ftz, sat in flags:
            real_case("add", fmt, lambda a, b, m="rn": soft.add(a, b, m), 2, "rn", ftz, sat)
            real_case(
                "sub", fmt, lambda a, b, m="rn": soft.add(a, soft.neg(b), m), 2, "rn", ftz, sat
            )
            real_case("mul", fmt, soft.mul, 2, "rn", ftz, sat)
            real_case("fma", fmt, fused, 3, "rn", ftz, sat)
    for fmt, name in ((F32, "f32"), (F64, "f64"), (F16, "f16"), (BF16, "bf16")):
        n = fmt.bits
        for biggest in (False, True):
            for propagate in (False, True) if fmt is not F64 else (False,):
                case(f"{'max' if biggest else 'min'}{'.NaN' if propagate else ''}.{name} {{d}}, {{a}}, {{b}};",
                     lambda a, b, f=fmt, g=biggest, p=propagate: extreme(f, a, b, g, p), n, n, n, kinds=(name, name), nan=fmt)  # fmt: skip
        case(
            f"abs.{name} {{d}}, {{a}};",
            lambda a, n=n: a & (1 << n - 1) - 1,
            n,
            n,
            kinds=(name,),
            nan=fmt,
        )
        case(
            f"neg.{name} {{d}}, {{a}};", lambda a, n=n: a ^ 1 << n - 1, n, n, kinds=(name,), nan=fmt
        )
        if n >= 32:
            case(
                f"copysign.{name} {{d}}, {{a}}, {{b}};",
                lambda a, b, n=n: a & 1 << n - 1 | b & (1 << n - 1) - 1,
                n,
                n,
                n,
                kinds=(name, name),
            )


def extreme(fmt: Format, a: int, b: int, biggest: bool, propagate: bool) -> int | None:
    x, y = fmt.decode(a), fmt.decode(b)
    if soft.NAN in (x.kind, y.kind):
        if propagate or x.kind == y.kind:
            return None
        return b if x.kind == soft.NAN else a

    def order(v: Real) -> tuple[int, object, int]:
        sign = -1 if v.negative else 1
        return (sign if v.kind == soft.INF else 0, v.value, sign)

    first = order(x) >= order(y) if biggest else order(x) <= order(y)
    return a if first else b


ORDERED: dict[str, Callable[[object, object], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,  # type: ignore[operator]
    "le": lambda a, b: a <= b,  # type: ignore[operator]
    "gt": lambda a, b: a > b,  # type: ignore[operator]
    "ge": lambda a, b: a >= b,  # type: ignore[operator]
}


def comparisons() -> None:
    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        n = int(t[1:])
        for name, f in ORDERED.items():
            case(f"setp.{name}.{t} {{p}}, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, {{p}};",
                 lambda a, b, t=t, f=f: int(f(of_type(t, a), of_type(t, b))), 32, n, n, kinds=(f"near{n}", f"near{n}"))  # fmt: skip
    for fmt, t in ((F32, "f32"), (F64, "f64"), (F16, "f16"), (BF16, "bf16")):
        for name in [*ORDERED, *(f"{o}u" for o in ORDERED), "num", "nan"]:
            case(f"setp.{name}.{t} {{p}}, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, {{p}};",
                 lambda a, b, f=fmt, c=name: int(compare(f, a, b, c)), 32, fmt.bits, fmt.bits, kinds=(t, t))  # fmt: skip
    for combine, g in (
        ("and", lambda p, q: p and q),
        ("or", lambda p, q: p or q),
        ("xor", lambda p, q: p != q),
    ):
        case(f"setp.ne.u32 {{q}}, {{c}}, 0; setp.lt.{combine}.s32 {{p}}, {{a}}, {{b}}, !{{q}}; selp.u32 {{d}}, 1, 0, {{p}};",
             lambda a, b, c, g=g: int(g(signed(a, 32) < signed(b, 32), c == 0)), 32, 32, 32, 32, kinds=("i32", "i32", "bit"))  # fmt: skip
    words(
        "setp.lt.s32 {p}|{q}, {a}, {b}; selp.u32 {d}, 1, 0, {q};",
        lambda a, b: int(not signed(a, 32) < signed(b, 32)),
        2,
    )
    words(
        "set.gt.u32.s32 {d}, {a}, {b};",
        lambda a, b: 0xFFFFFFFF if signed(a, 32) > signed(b, 32) else 0,
        2,
    )
    words(
        "set.le.f32.f32 {d}, {a}, {b};",
        lambda a, b: 0x3F800000 if compare(F32, a, b, "le") else 0,
        2,
        kinds=("f32", "f32"),
    )
    words(
        "slct.u32.s32 {d}, {a}, {b}, {c};",
        lambda a, b, c: a if signed(c, 32) >= 0 else b,
        3,
    )
    tests = {"finite": lambda r: r.kind == "finite", "infinite": lambda r: r.kind == soft.INF, "notanumber": lambda r: r.kind == soft.NAN,
             "number": lambda r: r.kind != soft.NAN}  # fmt: skip
    for name, h in tests.items():
        words(
            f"testp.{name}.f32 {{p}}, {{a}}; selp.u32 {{d}}, 1, 0, {{p}};",
            lambda a, h=h: int(h(F32.decode(a))),
            1,
            kinds=("f32",),
        )


def compare(fmt: Format, a: int, b: int, name: str) -> bool:
    x, y = fmt.decode(a), fmt.decode(b)
    unordered = soft.NAN in (x.kind, y.kind)
    if name == "num":
        return not unordered
    if name == "nan":
        return unordered
    if unordered:
        return name.endswith("u") and name[:-1] in ORDERED

    def value(v: Real) -> object:
        return (float("-inf") if v.negative else float("inf")) if v.kind == soft.INF else v.value

    return ORDERED[name.removesuffix("u") if name.removesuffix("u") in ORDERED else name](
        value(x), value(y)
    )


FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def conversions() -> None:
    whole = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for source in whole:
        for to in whole:
            for sat in (False, True):
                if sat and (
                    to == source or (source[0] == to[0] and int(source[1:]) <= int(to[1:]))
                ):
                    continue
                case(f"cvt{'.sat' if sat else ''}.{to}.{source} {{d}}, {{a}};",
                     lambda a, s=source, t=to, sat=sat: integer_to_integer(a, s, t, sat),
                     max(int(to[1:]), 16), int(source[1:]))  # fmt: skip
    for source in whole:
        for to in ("f16", "bf16", "f32", "f64"):
            if to == "bf16" and source != "s32":
                continue
            for mode in ("rn", "rz", "rm", "rp"):
                case(f"cvt.{mode}.{to}.{source} {{d}}, {{a}};",
                     lambda a, s=source, t=to, m=mode: FORMATS[t].encode(soft.finite(Fraction(of_type(s, a))), m),
                     FORMATS[to].bits, int(source[1:]))  # fmt: skip
    for source in ("f16", "bf16", "f32", "f64"):
        for to in whole:
            if source == "bf16" and to != "s32":
                continue
            for mode in ("rni", "rzi", "rmi", "rpi"):
                case(f"cvt.{mode}.{to}.{source} {{d}}, {{a}};",
                     lambda a, s=source, t=to, m=mode: real_to_integer(FORMATS[s].decode(a), t, m, s == "f64"),
                     max(int(to[1:]), 16), FORMATS[source].bits, kinds=(f"wide-{source}",))  # fmt: skip
    for source in ("f16", "bf16", "f32", "f64"):
        for to in ("f16", "bf16", "f32", "f64"):
            narrows = FORMATS[to].mantissa < FORMATS[source].mantissa
            if source == to or (source, to) in (
                ("f16", "bf16"),
                ("bf16", "f16"),
                ("f64", "bf16"),
                ("bf16", "f64"),
            ):
                continue
            for mode in (
                ("rn", "rz", "rm", "rp")
                if narrows and (to == "f32" or source == "f64")
                else ("rn", "rz")
                if narrows
                else ("",)
            ):
                case(f"cvt{'.' + mode if mode else ''}.{to}.{source} {{d}}, {{a}};",
                     lambda a, s=source, t=to, m=mode: FORMATS[t].encode(FORMATS[s].decode(a), m or "rn"),
                     FORMATS[to].bits, FORMATS[source].bits, kinds=(source,), nan=FORMATS[to])  # fmt: skip
    for mode in ("rn", "rz", "rm", "rp"):
        case(f"cvt.{mode}.ftz.f32.f64 {{d}}, {{a}};", lambda a, m=mode: F32.encode(F64.decode(a), m, True),
             32, 64, kinds=("f64",), nan=F32)  # fmt: skip
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for t in ("f32", "f64", "f16"):
            case(f"cvt.{mode}.{t}.{t} {{d}}, {{a}};", lambda a, t=t, m=mode: integral(FORMATS[t], a, m),
                 FORMATS[t].bits, FORMATS[t].bits, kinds=(t,), nan=FORMATS[t])  # fmt: skip
    case("cvt.ftz.rzi.s32.f32 {d}, {a};".replace("ftz.rzi", "rzi.ftz"), lambda a: real_to_integer(F32.decode(soft.flush(F32, a)), "s32", "rzi"),
         32, 32, kinds=("wide-f32",))  # fmt: skip
    case("cvt.sat.f32.f32 {d}, {a};", lambda a: saturated(F32, a), 32, 32, kinds=("f32",))
    for to in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            for extra in ("", ".relu"):
                case(f"cvt.{mode}{extra}.{to}x2.f32 {{d}}, {{a}}, {{b}};",
                     lambda a, b, t=to, m=mode, e=extra: pack16(narrow_half(a, t, m, bool(e)), narrow_half(b, t, m, bool(e))),
                     32, 32, 32, kinds=("number-f32", "number-f32"))  # fmt: skip
    case("cvt.rna.tf32.f32 {d}, {a};", lambda a: tf32(a, "rna"), 32, 32, kinds=("number-f32",))
    case("cvt.rn.tf32.f32 {d}, {a};", lambda a: tf32(a, "rn"), 32, 32, kinds=("number-f32",))
    for to in SMALL:
        width = 4 if to == "e2m1" else 8
        case(small_text(f"cvt.rn.satfinite.{to}x2.f32", to, True),
             lambda a, b, t=to, w=width: small_encode(t, F32.decode(a)) << w | small_encode(t, F32.decode(b)), 16, 32, 32,
             kinds=("small-f32", "small-f32"))  # fmt: skip
        case(small_text(f"cvt.rn.f16x2.{to}x2", to, False),
             lambda a, t=to, w=width: pack16(small_half(t, a >> w & (1 << w) - 1), small_half(t, a & (1 << w) - 1)), 32, 16,
             kinds=("code-" + to,))  # fmt: skip
    for to in ("e4m3", "e5m2"):
        case(f"cvt.rn.satfinite.{to}x2.f16x2 {{d}}, {{a}};",
             lambda a, t=to: small_encode(t, F16.decode(a >> 16)) << 8 | small_encode(t, F16.decode(a & 0xFFFF)), 16, 32)  # fmt: skip
    case(
        "cvt.rp.satfinite.ue8m0x2.f32 {d}, {a}, {b};",
        lambda a, b: ue8m0(a, True) << 8 | ue8m0(b, True),
        16,
        32,
        32,
        kinds=("positive-f32", "positive-f32"),
    )
    case(
        "cvt.rz.satfinite.ue8m0x2.f32 {d}, {a}, {b};",
        lambda a, b: ue8m0(a, False) << 8 | ue8m0(b, False),
        16,
        32,
        32,
        kinds=("positive-f32", "positive-f32"),
    )
    case(
        "cvt.rn.bf16x2.ue8m0x2 {d}, {a};",
        lambda a: pack16(scale_bf16(a >> 8), scale_bf16(a & 255)),
        32,
        16,
    )


def small_text(op: str, kind: str, narrows: bool) -> str:
    """e2m1x2 is in a .b8 register."""
    if kind != "e2m1":
        return f"{op} {{d}}, {{a}}, {{b}};" if narrows else f"{op} {{d}}, {{a}};"
    if narrows:
        return "{{ .reg .b8 t; " + op + " t, {a}, {b}; mov.b16 {d}, {{t, 0}}; }}"
    return "{{ .reg .b8 t, u; mov.b16 {{t, u}}, {a}; " + op + " {d}, t; }}"


def integer_to_integer(a: int, source: str, to: str, sat: bool) -> int:
    value, bits = of_type(source, a), int(to[1:])
    if sat:
        low = -(1 << bits - 1) if to[0] == "s" else 0
        high = (1 << bits - (1 if to[0] == "s" else 0)) - 1
        value = clamp(value, low, high)
    # A result narrower than its register is extended (PTX ISA 9.7.9.21).
    return of_type(to, value) & (1 << max(bits, 16)) - 1


def real_to_integer(v: Real, to: str, mode: str, double: bool = False) -> int | None:
    bits = int(to[1:])
    low = -(1 << bits - 1) if to[0] == "s" else 0
    high = (1 << bits - (1 if to[0] == "s" else 0)) - 1
    if v.kind == soft.NAN:
        # PTX ISA 9.7.9.21: "Zero if source is not .f64 and destination is not .s64/.u64. Otherwise
        # 1 << (BitWidth(dtype) - 1)".
        nan = 1 << bits - 1 if double or bits == 64 else 0
        return of_type(to, nan) & (1 << max(bits, 16)) - 1
    if v.kind == soft.INF:
        value = low if v.negative else high
    else:
        magnitude = soft.round_fraction(abs(v.value), mode[:2], v.negative)
        value = clamp(-magnitude if v.negative else magnitude, low, high)
    return value & (1 << max(bits, 16)) - 1


def integral(fmt: Format, a: int, mode: str) -> int | None:
    v = fmt.decode(a)
    if v.kind == soft.NAN:
        return None
    if v.kind == soft.INF:
        return a
    magnitude = soft.round_fraction(abs(v.value), mode[:2], v.negative)
    return fmt.encode(Real("finite", v.negative, Fraction(-magnitude if v.negative else magnitude)))


def saturated(fmt: Format, a: int) -> int:
    v = fmt.decode(a)
    if v.kind == soft.NAN or v.negative:
        return 0
    return min(a, fmt.bias << fmt.mantissa)


def narrow_half(a: int, to: str, mode: str, relu: bool) -> int:
    v = F32.decode(a)
    if relu and v.negative:
        return 0
    code = FORMATS[to].encode(v, mode)
    assert code is not None
    return code


def pack16(high: int, low: int) -> int:
    return high << 16 | low


def tf32(a: int, mode: str) -> int:
    code = Format(8, 10).encode(F32.decode(a), mode)
    assert code is not None
    return code << 13


SMALL = {"e4m3": (4, 3), "e5m2": (5, 2), "e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2)}
MOST = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 7, "e2m3": 31, "e3m2": 31}


def small_value(kind: str, code: int) -> Fraction:
    exponent, mantissa = SMALL[kind]
    bias = 2 ** (exponent - 1) - 1
    e, m = code >> mantissa & (2**exponent - 1), code & (2**mantissa - 1)
    if e == 0:
        return Fraction(Fraction(m) * Fraction(2) ** (1 - bias - mantissa))
    return Fraction(Fraction(m + 2**mantissa) * Fraction(2) ** (e - bias - mantissa))


def small_encode(kind: str, v: Real) -> int:
    """The nearest of all values, by trying each; the even code where two are as near."""
    sign = 1 << sum(SMALL[kind])
    if v.kind == soft.NAN:
        return 0x7F if kind in ("e4m3", "e5m2") else MOST[kind]
    out = MOST[kind]
    if v.kind != soft.INF:
        magnitude = abs(v.value)
        out = min(
            range(MOST[kind] + 1), key=lambda c: (abs(small_value(kind, c) - magnitude), c & 1)
        )
    return out | (sign if v.negative else 0)


def small_half(kind: str, code: int) -> int:
    sign_bit = 1 << sum(SMALL[kind])
    code &= 2 * sign_bit - 1
    magnitude = code & (sign_bit - 1)
    if kind == "e4m3" and magnitude == 0x7F:
        return 0x7FFF
    if kind == "e5m2" and magnitude >= 0x7C:
        return (0x7C00 | (0x8000 if code & sign_bit else 0)) if magnitude == 0x7C else 0x7FFF
    value = small_value(kind, magnitude)
    made = F16.encode(Real("finite", bool(code & sign_bit), -value if code & sign_bit else value))
    assert made is not None
    return made


def ue8m0(a: int, up: bool) -> int:
    v = F32.decode(a)
    if v.kind == soft.NAN:
        return 0xFF
    if v.kind == soft.INF:
        return 0xFE
    magnitude = abs(v.value)
    scales = [Fraction(2) ** (e - 127) for e in range(255)]
    below = [e for e, s in enumerate(scales) if s <= magnitude]
    if up:
        above = [e for e, s in enumerate(scales) if s >= magnitude]
        return above[0] if above else 0xFE
    return below[-1] if below else 0


def scale_bf16(code: int) -> int:
    if code == 0xFF:
        return 0x7FFF
    made = BF16.encode(soft.finite(Fraction(2) ** (code - 127)))
    assert made is not None
    return made


integers()
floats()
comparisons()
conversions()
