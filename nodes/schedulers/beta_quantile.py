"""Quantiles of the beta distribution, for the beta spread of sigmas."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Return x in [0, 1] below which a Beta(a, b) variable lies with probability `share`, to about 1e-14.

    Bisection on the regularised incomplete beta function; a, b > 0.
    """
    if share <= 0 or share >= 1:
        return 0.0 if share <= 0 else 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _regularised(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _regularised(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) (Abramowitz and Stegun 26.5.8), by the continued fraction where it converges fast."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _regularised(1 - x, b, a)
    if x == 0:
        return 0.0
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of I_x, evaluated with Lentz's method."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / d
    result = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result
