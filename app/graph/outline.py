"""The loops of a plan as an editor draws them: what lies inside of each, what hangs off it, what leads back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.graph.plan import Item, LoopPlan, Plan


def outline(plan: Plan) -> list[dict[str, Any]]:
    """Return every loop as JSON-ready data, outer ones before inner ones.

    header: id of the loop node. parent: header of the loop around it, or None. body: ids of all nodes that run on every
    pass, those of inner loops included, in order. taps: those of them that feed nothing back, inner loops by their
    header. feedback: inputs of the header that are wired from the body.
    """
    return list(_loops(plan.items, None))


def _loops(items: tuple[Item, ...], parent: str | None) -> Iterator[dict[str, Any]]:
    for item in items:
        if isinstance(item, LoopPlan):
            yield {
                "header": item.header,
                "parent": parent,
                "body": list(item.nodes()),
                "taps": sorted(item.taps),
                "feedback": sorted(item.closing),
            }
            yield from _loops(item.body, item.header)
