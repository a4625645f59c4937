"""Floating point by exact rational arithmetic: the reference that the interpreter is tested against.

Written from IEEE 754 and the PTX ISA alone, and shares nothing with the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

INF = "inf"
NAN = "nan"


@dataclass(frozen=True)
class Real:
    """A value: a fraction with the sign of a zero, an infinity, or NaN."""

    kind: str  # "finite", INF, NAN
    negative: bool = False
    value: Fraction = Fraction(0)


def finite(value: Fraction, negative_zero: bool = False) -> Real:
    return Real("finite", value < 0 or (value == 0 and negative_zero), value)


@dataclass(frozen=True)
class Format:
    """A binary format with IEEE's infinities and NaNs."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent - 1)) - 1

    def decode(self, code: int) -> Real:
        sign = code >> (self.bits - 1) & 1
        e = code >> self.mantissa & (2**self.exponent - 1)
        m = code & (2**self.mantissa - 1)
        if e == 2**self.exponent - 1:
            return Real(NAN) if m else Real(INF, bool(sign))
        if e == 0:
            value = Fraction(m) * Fraction(2) ** (1 - self.bias - self.mantissa)
        else:
            value = Fraction(m + 2**self.mantissa) * Fraction(2) ** (e - self.bias - self.mantissa)
        return Real("finite", bool(sign), -value if sign else value)

    def encode(self, real: Real, mode: str = "rn", ftz: bool = False) -> int | None:
        """The code after rounding; None for NaN.

        ``ftz``: zero, where the number rounded as if the exponent had no lower end is subnormal.
        """
        sign = 1 << (self.bits - 1) if real.negative else 0
        infinity: int = (2**self.exponent - 1) << self.mantissa
        if real.kind == NAN:
            return None
        if real.kind == INF:
            return sign | infinity
        magnitude: Fraction = abs(real.value)
        if magnitude == 0:
            return sign
        e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if Fraction(2) ** e > magnitude:
            e -= 1
        unit = Fraction(2) ** (e - self.mantissa)
        if ftz and e < 1 - self.bias:
            nearest = unit * round_fraction(magnitude / unit, mode, real.negative)
            if nearest < Fraction(2) ** (1 - self.bias):
                return sign
        e = max(e, 1 - self.bias)
        unit = Fraction(2) ** (e - self.mantissa)
        count = round_fraction(magnitude / unit, mode, real.negative)
        code = ((e + self.bias - 1) << self.mantissa) + count if count else 0
        if code >= infinity:
            toward_zero = mode == "rz" or (mode == "rm" and not real.negative)
            toward_zero = toward_zero or (mode == "rp" and real.negative)
            code = infinity - 1 if toward_zero else infinity
        return sign | code


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)


def round_fraction(value: Fraction, mode: str, negative: bool) -> int:
    """A magnitude to an integer; ``negative`` is the sign that the directed modes look at."""
    whole = value.numerator // value.denominator
    rest = value - whole
    if rest == 0 or mode == "rz":
        return whole
    if mode == "rm":
        return whole + (1 if negative else 0)
    if mode == "rp":
        return whole + (0 if negative else 1)
    half = Fraction(1, 2)
    if mode == "rna":
        return whole + (1 if rest >= half else 0)
    return whole + (1 if rest > half or (rest == half and whole % 2 == 1) else 0)


def add(a: Real, b: Real, mode: str = "rn") -> Real:
    if NAN in (a.kind, b.kind):
        return Real(NAN)
    if a.kind == INF or b.kind == INF:
        if a.kind == b.kind and a.negative != b.negative:
            return Real(NAN)
        return a if a.kind == INF else b
    total = a.value + b.value
    if total == 0:
        both = a.negative and b.negative
        differ = a.negative != b.negative or a.value != 0
        return finite(total, both or (differ and mode == "rm"))
    return finite(total)


def neg(a: Real) -> Real:
    return Real(a.kind, not a.negative, -a.value)


def mul(a: Real, b: Real) -> Real:
    if NAN in (a.kind, b.kind):
        return Real(NAN)
    negative = a.negative != b.negative
    if a.kind == INF or b.kind == INF:
        zero = (a.kind == "finite" and a.value == 0) or (b.kind == "finite" and b.value == 0)
        return Real(NAN) if zero else Real(INF, negative)
    return Real("finite", negative, a.value * b.value)


def div(a: Real, b: Real) -> Real:
    if NAN in (a.kind, b.kind):
        return Real(NAN)
    negative = a.negative != b.negative
    if a.kind == INF:
        return Real(NAN) if b.kind == INF else Real(INF, negative)
    if b.kind == INF:
        return finite(Fraction(0), negative)
    if b.value == 0:
        return Real(NAN) if a.value == 0 else Real(INF, negative)
    return Real("finite", negative, a.value / b.value)


def sqrt(a: Real) -> Real:
    """Cut off far below any format, with a last bit that says whether something was cut off."""
    if a.kind == NAN or (a.negative and not (a.kind == "finite" and a.value == 0)):
        return Real(NAN)
    if a.kind == INF or a.value == 0:
        return a
    shift = 1300  # more than the smallest double needs
    scaled = (a.value.numerator << (2 * shift)) // a.value.denominator
    root = isqrt(scaled)
    exact = root * root == scaled and (a.value.numerator << (2 * shift)) % a.value.denominator == 0
    return finite(Fraction(2 * root + (0 if exact else 1), 1 << (shift + 1)))


def flush(fmt: Format, code: int) -> int:
    """``.ftz`` of an operand: subnormal numbers become zeros of their sign."""
    exponent = code >> fmt.mantissa & (2**fmt.exponent - 1)
    return code if exponent else code & 1 << (fmt.bits - 1)
