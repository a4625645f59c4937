"""The approximate functions: what they approximate, where, and how far off they may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# PTX ISA 9.7.3: the largest errors that the document states.  (An H100's `cos.approx` exceeds
# its bound: it is off by up to 7.0e-7, of operands beyond 3π/2.)
BOUNDS: dict[str, tuple[Callable[[Any], Any], tuple[float, float], str, float]] = {
    "ex2.approx": (np.exp2, (-20.0, 20.0), "relative", 2.0**-22),
    "lg2.approx": (np.log2, (0.01, 100.0), "absolute-or-relative", 2.0**-22),
    "sin.approx": (np.sin, (-6.28, 6.28), "absolute", 2.0**-20.5),
    "cos.approx": (np.cos, (-6.28, 6.28), "absolute", 2.0**-20.5),
    "tanh.approx": (np.tanh, (-10.0, 10.0), "relative", 2.0**-11),
    "rcp.approx": (lambda x: 1 / x, (0.001, 1000.0), "relative", 2.0**-23),
    "rsqrt.approx": (lambda x: 1 / np.sqrt(x), (0.001, 1000.0), "relative", 2.0**-22.9),
    "sqrt.approx": (np.sqrt, (0.001, 1000.0), "relative", 2.0**-23),
}
