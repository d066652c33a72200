"""Guidance lanes: a positive and a negative value that travel on one wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """Values of the two guidance lanes. positive: conditional; negative: unconditional."""

    positive: Any
    negative: Any
