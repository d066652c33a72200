"""Large graphs of trivial nodes."""

from __future__ import annotations

from typing import Any


def chain(count: int, salt: str = "") -> dict[str, Any]:
    """Return `count` nodes in a row, the last of them an output; salt: makes all of them differ from cached ones."""
    nodes: dict[str, Any] = {"1": {"class_type": "Text", "inputs": {"text": salt}}}
    for number in range(2, count):
        nodes[str(number)] = {"class_type": "ConcatenateText", "inputs": {"a": [str(number - 1), 0], "b": ""}}
    nodes[str(count)] = {"class_type": "ShowText", "inputs": {"text": [str(count - 1), 0]}}
    return {"version": 1, "nodes": nodes}


def side_by_side(count: int, salt: str = "") -> dict[str, Any]:
    """Return `count` output nodes that know nothing of each other."""
    nodes = {str(n): {"class_type": "ShowText", "inputs": {"text": f"{salt} {n}"}} for n in range(1, count + 1)}
    return {"version": 1, "nodes": nodes}
