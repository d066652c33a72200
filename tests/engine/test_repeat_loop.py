"""The Repeat Loop: counts, axes, lists, carried and collected values, stopping. Expected values are closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.graph.errors import WorkflowError
from tests.engine.kit import engine, values, workflow


def run(folder: Path, **nodes: Any) -> list[Any]:
    return values(engine(folder).run(workflow(**nodes)))


def test_a_carried_value_goes_from_pass_to_pass(tmp_path: Path) -> None:
    """Fibonacci: (a, b) <- (b, a + b) eight times from (0, 1) gives a = 21."""
    (result,) = run(
        tmp_path,
        loop=(
            "RepeatLoop",
            {
                "count": 8,
                "carry": "a, b",
                "a": 0,
                "b": 1,
                "next_a": "->loop.b",
                "next_b": "->sum.int",
            },
        ),
        sum=("MathExpression", {"expression": "a + b", "a": "->loop.a", "b": "->loop.b"}),
        out=("Collect", {"value": "->loop.final_a"}),
    )
    assert result == 21


def test_the_number_of_passes_may_come_from_an_axis(tmp_path: Path) -> None:
    (result,) = run(
        tmp_path,
        rows=("ListToTensor", {"items": [[1, 2], [3, 4], [5, 6]]}),
        loop=(
            "RepeatLoop",
            {
                "tensor": "->rows.tensor",
                "axis": 1,
                "keep_axis": False,
                "collect": "s",
                "collect_s": "->sum.tensor",
            },
        ),
        sum=("TensorReduce", {"tensor": "->loop.item", "operation": "sum"}),
        out=("Collect", {"value": "->loop.collected_s"}),
    )
    assert result.tolist() == [9, 12]


def test_items_of_a_list_are_taken_in_order_and_collected_as_a_list(tmp_path: Path) -> None:
    (result,) = run(
        tmp_path,
        loop=(
            "RepeatLoop",
            {
                "items": {"__value__": ["red", "green"]},
                "collect": "t",
                "collect_mode": "list",
                "collect_t": "->join.text",
            },
        ),
        join=("ConcatenateText", {"a": "a ", "b": "->loop.item"}),
        out=("Collect", {"value": "->loop.collected_t"}),
    )
    assert result == ["a red", "a green"]


def test_the_loop_stops_after_the_pass_that_says_so(tmp_path: Path) -> None:
    """x doubles from 1 until it is above 100: 128 after 7 passes."""
    nodes = {
        "loop": (
            "RepeatLoop",
            {
                "count": 1000,
                "carry": "x",
                "x": 1,
                "next_x": "->double.int",
                "stop": "->done.boolean",
            },
        ),
        "double": ("MathExpression", {"expression": "2 * a", "a": "->loop.x"}),
        "done": ("MathExpression", {"expression": "a > 100", "a": "->double.int"}),
        "out": ("Collect", {"value": "->loop.final_x"}),
    }
    assert run(tmp_path, **nodes) == [128]
    assert run(tmp_path, **nodes | {"out": ("Collect", {"value": "->loop.passes"})}) == [7]


@pytest.mark.parametrize(("mode", "expected"), [("stack", [[0], [1], [2]]), ("concatenate", [0, 1, 2])])
def test_collected_tensors_are_stacked_or_concatenated(tmp_path: Path, mode: str, expected: list[Any]) -> None:
    (result,) = run(
        tmp_path,
        loop=("RepeatLoop", {"count": 3, "collect": "x", "collect_mode": mode, "collect_x": "->row.tensor"}),
        row=("Reshape", {"tensor": "->loop.index", "shape": [1]}),
        out=("Collect", {"value": "->loop.collected_x"}),
    )
    assert result.tolist() == expected


def test_three_loops_inside_each_other(tmp_path: Path) -> None:
    """x grows by 1 in the innermost body: 2 * 3 * 4 = 24."""
    (result,) = run(
        tmp_path,
        outer=("RepeatLoop", {"count": 2, "carry": "x", "x": 0, "next_x": "->middle.final_x"}),
        middle=("RepeatLoop", {"count": 3, "carry": "x", "x": "->outer.x", "next_x": "->inner.final_x"}),
        inner=("RepeatLoop", {"count": 4, "carry": "x", "x": "->middle.x", "next_x": "->add.int"}),
        add=("MathExpression", {"expression": "a + 1", "a": "->inner.x"}),
        out=("Collect", {"value": "->outer.final_x"}),
    )
    assert result == 24


def test_no_passes_give_the_start_values(tmp_path: Path) -> None:
    (result,) = run(
        tmp_path,
        loop=("RepeatLoop", {"count": 0, "carry": "x", "x": 5, "next_x": "->add.int"}),
        add=("MathExpression", {"expression": "a + 1", "a": "->loop.x"}),
        out=("Collect", {"value": "->loop.final_x"}),
    )
    assert result == 5


@pytest.mark.parametrize(
    ("inputs", "input", "part"),
    [
        ({"carry": "x, x"}, "carry", "twice"),
        ({"carry": "not a name"}, "carry", "names of letters"),
        ({"carry": "count"}, "carry", "taken by another input"),
    ],
)
def test_unusable_names_are_refused(tmp_path: Path, inputs: dict[str, Any], input: str, part: str) -> None:
    document = workflow(loop=("RepeatLoop", {"count": 1, **inputs}), out=("Collect", {"value": "->loop.passes"}))
    with pytest.raises(WorkflowError) as caught:
        engine(tmp_path).run(document)
    assert any(problem.input == input and part in problem.message for problem in caught.value.problems)


def test_more_passes_than_items_are_refused(tmp_path: Path) -> None:
    document = workflow(loop=("RepeatLoop", {"count": 3, "items": [1]}), out=("Collect", {"value": "->loop.passes"}))
    (problem,) = engine(tmp_path).run(document).problems
    assert (problem.input, "0 to 1" in problem.message) == ("count", True)
