"""Ticks of an axis, and numbers as short as an SVG needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SPAN = 0.05  # of a value


@dataclass(frozen=True)
class Axis:
    """From `low` to `high` in the data's unit, drawn from `start` to `end` in the picture's."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int, scale: float = 1.0) -> list[float]:
        """About `count` round values inside, round when divided by `scale`."""
        width = (self.high - self.low) / scale
        step = _round_step(width / max(count, 1)) * scale
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def spanning(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis with air on both sides. Values that are nearly the same look so: what differs by
    less than LEAST_SPAN of itself does not fill a picture."""
    air = max((high - low) * 0.1, (LEAST_SPAN * abs(high) - (high - low)) / 2) or 1.0
    return max(low - air, 0.0), high + air


def left_margin(ticks: Sequence[str]) -> float:
    """So wide that the title of an axis stands beside its ticks."""
    return max(58.0, 30 + 7 * max(map(len, ticks), default=0))


def _round_step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough))
    return next(
        times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough * (1 - 1e-9)
    )


def tick_text(value: float, step: float) -> str:
    """As many digits as tell it from its neighbours."""
    digits = 0
    while digits < 6 and abs(step * 10**digits - round(step * 10**digits)) > 1e-6:
        digits += 1
    return f"{value:.{digits}f}"


def short(value: float) -> str:
    """One digit behind the point at most: "12.5", "3"."""
    return f"{value:.1f}".removesuffix(".0")
