"""Tables of figures beside their limits."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a head, columns aligned."""
    text = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    for row in text:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
