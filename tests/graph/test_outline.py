"""The loops of a plan as an editor draws them."""

from __future__ import annotations

from app.graph.outline import outline
from app.graph.plan import LoopPlan, Plan


def test_inner_loops_name_the_loop_around_them() -> None:
    """A loop `in` inside of a loop `out`, with a tap in each."""
    inner = LoopPlan("in", ("b", "t2"), frozenset({"t2"}), frozenset({"value"}))
    outer = LoopPlan("out", ("a", inner, "t1"), frozenset({"t1"}), frozenset({"y", "x"}))
    assert outline(Plan(("start", outer, "end"))) == [
        {"header": "out", "parent": None, "body": ["a", "in", "b", "t2", "t1"], "taps": ["t1"], "feedback": ["x", "y"]},
        {"header": "in", "parent": "out", "body": ["b", "t2"], "taps": ["t2"], "feedback": ["value"]},
    ]
    assert outline(Plan(("alone",))) == []
