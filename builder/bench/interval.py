"""The confidence interval of a mean, without SciPy, which only some installations have."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

QUANTILES = (
    *(12.7063, 4.3027, 3.1825, 2.7765, 2.5706, 2.4470, 2.3647, 2.3061, 2.2622, 2.2282),
    *(2.2010, 2.1789, 2.1604, 2.1448, 2.1315, 2.1200, 2.1099, 2.1010, 2.0931, 2.0860),
    *(2.0797, 2.0739, 2.0687, 2.0639, 2.0596, 2.0556, 2.0519, 2.0485, 2.0453, 2.0423),
)
"""Student's t for 95 % and 1, 2, ... degrees of freedom, rounded up; the last one for more."""


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean with 95 % confidence, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    quantile = QUANTILES[min(len(values) - 1, len(QUANTILES)) - 1]
    reach = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach
