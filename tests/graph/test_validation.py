"""Validation: every kind of problem, at its node and input, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time
from typing import Annotated, Any, Literal

import pytest

from app.graph.document import Workflow
from app.graph.errors import InputError
from app.graph.node import Array, Help, InputPort, NodeType, Out, OutputPort, Ports, Range, node
from app.graph.registry import Registry
from app.graph.socket import INT, STRING, TENSOR, SocketType
from app.graph.validation import validate


def _check(literals: Mapping[str, Any]) -> None:
    if literals.get("whole") == 13:
        raise InputError("whole", found=13, accepted="another number", fix="choose one")


@node(category="test", check=_check)
def widgets(
    whole: Annotated[int, Range(0, 20, help="h")] = 5,
    real: Annotated[float, Range(0, 1, help="h")] = 0.5,
    flag: Annotated[bool, Help("h")] = False,
    text: Annotated[str, Help("h")] = "",
    choice: Annotated[Literal["red", "green"], Help("h")] = "red",
    items: Annotated[list[Any] | None, Help("h")] = None,
) -> Annotated[int, Out("number")]:
    """Hold widgets."""
    return whole


@node(category="test", output_node=True)
def show(value: Annotated[Any, Help("h")]) -> None:
    """Show."""


@node(category="test")
def halve(tensor: Annotated[Array, Help("h")], by: Annotated[int, Help("h")] = 2) -> Annotated[Array, Out("tensor")]:
    """Halve."""
    return tensor / by


def _dynamic(literals: Mapping[str, Any]) -> Ports:
    model = InputPort("model", STRING, "h", literal_only=True)
    if literals.get("model") == "bad":
        raise InputError("model", found="'bad'", accepted="a model", fix="choose one")
    kind = SocketType("TENSOR", frozenset({"float32"}), (1, "n", 4))
    x = InputPort("x", SocketType("TENSOR", frozenset({"int64"}), (1, "n", 4)))
    return Ports((model, x), (OutputPort("y", kind), OutputPort("flat", SocketType("TENSOR", frozenset(), (4,)))))


FILE = NodeType("FromFile", "From File", "test", "", 1, _dynamic({}), lambda context, literals: None, ports_of=_dynamic)  # type: ignore[arg-type,return-value]
REGISTRY = Registry([widgets.node_type, show.node_type, halve.node_type, FILE])


def problems_of(
    targets: list[str] | None = None, **nodes: tuple[str, dict[str, Any]]
) -> list[tuple[str, str, str, str]]:
    document = {"nodes": {key: {"class_type": kind, "inputs": inputs} for key, (kind, inputs) in nodes.items()}}
    _, problems = validate(Workflow.parse(document), REGISTRY, targets)
    return [(problem.node, problem.input, problem.code, problem.message) for problem in problems]


def widget(**inputs: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    return {"w": ("Widgets", inputs), "s": ("Show", {"value": ["w", "number"]})}


def test_defaults_are_filled_in_and_links_resolved() -> None:
    document = {
        "nodes": {
            "w": {"class_type": "Widgets", "inputs": {"whole": 7}},
            "s": {"class_type": "Show", "inputs": {"value": ["w", 0]}},
        }
    }
    graph, problems = validate(Workflow.parse(document), REGISTRY)
    assert problems == []
    assert graph["w"].literals == {"whole": 7, "real": 0.5, "flag": False, "text": "", "choice": "red"}
    assert graph["s"].links == {"value": ("w", 0)}


@pytest.mark.parametrize(
    ("inputs", "input", "code", "part"),
    [
        ({"whole": 21}, "whole", "out_of_range", "a whole number from 0 to 20; lower it"),
        ({"whole": -1}, "whole", "out_of_range", "raise it"),
        ({"whole": 1.5}, "whole", "wrong_type", "a whole number"),
        ({"whole": True}, "whole", "wrong_type", "found True"),
        ({"whole": "7"}, "whole", "wrong_type", "found '7'"),
        ({"real": float("nan")}, "real", "out_of_range", "found nan"),
        ({"real": float("inf")}, "real", "out_of_range", "found inf"),
        ({"flag": 1}, "flag", "wrong_type", "true or false"),
        ({"text": 5}, "text", "wrong_type", "a text"),
        ({"choice": "gren"}, "choice", "not_in_choices", "did you mean green?"),
        ({"choice": 5}, "choice", "wrong_type", "one of red, green"),
        ({"items": "a"}, "items", "wrong_type", "a list"),
        ({"whole": None}, "whole", "", ""),
        ({"wohle": 1}, "wohle", "unknown_input", "did you mean whole?"),
        ({"_private": 1}, "", "", ""),
        ({"whole": 13}, "whole", "invalid_input", "another number"),
        ({"real": 1}, "", "", ""),
        ({"real": None, "text": None, "choice": None}, "", "", ""),
    ],
)
def test_literals_are_judged_by_type_range_and_choices(
    inputs: dict[str, Any], input: str, code: str, part: str
) -> None:
    found = problems_of(**widget(**inputs))
    if code:
        ((node_id, where, what, message),) = found
        assert (node_id, where, what) == ("w", input, code)
        assert part in message
    else:
        assert found == []


@pytest.mark.parametrize(
    ("value", "code", "part"),
    [
        (["gone", "x"], "link_to_missing_node", "'gone'"),
        (["w", "nmber"], "link_to_missing_output", "accepted one of number"),
        (["w", 3], "link_to_missing_output", "output 3"),
        (["w", -1], "link_to_missing_output", "output -1"),
    ],
)
def test_links_to_what_is_not_there_are_refused(value: list[Any], code: str, part: str) -> None:
    ((node_id, input_name, what, message),) = problems_of(w=("Widgets", {}), s=("Show", {"value": value}))
    assert (node_id, input_name, what) == ("s", "value", code)
    assert part in message


def test_a_missing_required_input_is_named() -> None:
    assert problems_of(s=("Show", {}))[0][:3] == ("s", "value", "required_input_missing")


def test_an_unknown_node_type_names_its_neighbours() -> None:
    found = problems_of(w=("Widgts", {}), s=("Show", {"value": ["w", "number"]}))
    assert found[0][:3] == ("w", "", "unknown_node_type")
    assert "did you mean Widgets?" in found[0][3]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (["f", "y"], "the dtypes differ; put a Cast node"),
        (["f", "flat"], "1 dimensions do not fit 3; put a Reshape"),
        (["t", "text"], "put a Tokenize node"),
    ],
)
def test_a_wire_that_cannot_work_is_refused_with_the_reason(source: list[str], part: str) -> None:
    @node(category="test")
    def words() -> Annotated[str, Out("text")]:
        """Give a text."""
        return ""

    registry = Registry([*REGISTRY, words.node_type])
    nodes = {
        "t": ("Words", {}),
        "f": ("FromFile", {"model": "m", "x": 0}),
        "g": ("FromFile", {"model": "m", "x": source}),
        "s": ("Show", {"value": ["g", "y"]}),
        "keep": ("Show", {"value": ["f", "y"]}),
        "keep2": ("Show", {"value": ["t", "text"]}),
    }
    document = {"nodes": {key: {"class_type": kind, "inputs": inputs} for key, (kind, inputs) in nodes.items()}}
    _, problems = validate(Workflow.parse(document), registry)
    assert [(problem.node, problem.input, problem.code) for problem in problems] == [("g", "x", "type_mismatch")]
    assert part in problems[0].message


def test_ports_that_cannot_be_told_are_one_problem_and_hide_no_others() -> None:
    found = problems_of(
        f=("FromFile", {"model": "bad", "x": 0}),
        h=("Halve", {"tensor": ["f", "y"], "by": "x"}),
        s=("Show", {"value": ["h", "tensor"]}),
    )
    assert [entry[:3] for entry in found] == [("f", "model", "invalid_input"), ("h", "by", "wrong_type")]


def test_a_wire_into_a_literal_only_input_is_refused() -> None:
    found = problems_of(
        w=("Widgets", {}), f=("FromFile", {"model": ["w", "number"], "x": 0}), s=("Show", {"value": ["f", "y"]})
    )
    assert ("f", "model", "literal_only") in [entry[:3] for entry in found]


def test_everything_is_reported_at_once() -> None:
    found = problems_of(
        w=("Widgets", {"whole": 99, "real": "x", "nope": 1}),
        u=("Unknwn", {}),
        s=("Show", {"value": ["w", "number"]}),
        s2=("Show", {"value": ["u", 0]}),
        s3=("Show", {}),
    )
    assert {entry[2] for entry in found} == {
        "out_of_range",
        "wrong_type",
        "unknown_input",
        "unknown_node_type",
        "required_input_missing",
    }


def test_a_workflow_without_outputs_has_nothing_to_run() -> None:
    ((_, _, code, message),) = problems_of(w=("Widgets", {}))
    assert code == "no_outputs"
    assert "Save Image" in message


def test_nodes_that_no_output_needs_are_not_judged() -> None:
    assert problems_of(**widget(), broken=("Widgets", {"whole": 99})) == []


def test_targets_choose_what_is_judged() -> None:
    nodes = {**widget(), "broken": ("Widgets", {"whole": 99})}
    assert problems_of(["w"], **nodes) == []
    assert [entry[2] for entry in problems_of(["broken"], **nodes)] == ["out_of_range"]
    assert [entry[2] for entry in problems_of(["gone"], **nodes)] == ["unknown_node"]


def test_numbers_may_feed_tensors_and_whole_numbers_real_ones() -> None:
    assert (
        problems_of(w=("Widgets", {}), h=("Halve", {"tensor": ["w", "number"]}), s=("Show", {"value": ["h", "tensor"]}))
        == []
    )


def test_time_grows_linearly_with_nodes() -> None:
    """Ten times the nodes may take at most forty times the CPU time: quadratic work would take a hundred times."""

    def seconds(count: int) -> float:
        nodes: dict[str, Any] = {"n0": {"class_type": "Halve", "inputs": {"tensor": 1.0}}}
        for index in range(1, count):
            nodes[f"n{index}"] = {"class_type": "Halve", "inputs": {"tensor": [f"n{index - 1}", "tensor"]}}
        nodes["s"] = {"class_type": "Show", "inputs": {"value": [f"n{count - 1}", "tensor"]}}
        workflow = Workflow.parse({"nodes": nodes})
        best = float("inf")
        for _ in range(5):
            started = process_time()
            assert validate(workflow, REGISTRY)[1] == []
            best = min(best, process_time() - started)
        return best

    assert seconds(5000) < 40 * seconds(500)


def test_sockets_know_int_and_tensor() -> None:
    """INT and TENSOR are the types that the nodes above were given by their annotations."""
    assert widgets.node_type.ports.outputs[0].type == INT
    assert halve.node_type.ports.inputs[0].type == TENSOR


@pytest.mark.parametrize("value", [[[1, 2], [3]], [1, [2]], ["1"], {"a": 1}, None, [[], [1]]])
def test_a_tensor_literal_is_a_number_or_evenly_nested_numbers(value: Any) -> None:
    ((_, input_name, _, _),) = problems_of(h=("Halve", {"tensor": value}), s=("Show", {"value": ["h", "tensor"]}))
    assert input_name == "tensor"
    for fits in (1, True, [1.5, 2], [[1], [2]], [], [[], []]):
        assert problems_of(h=("Halve", {"tensor": fits}), s=("Show", {"value": ["h", "tensor"]})) == []


def test_null_stands_for_the_default() -> None:
    nodes = {
        "w": {"class_type": "Widgets", "inputs": {"whole": None}},
        "s": {"class_type": "Show", "inputs": {"value": ["w", 0]}},
    }
    graph, problems = validate(Workflow.parse({"nodes": nodes}), REGISTRY)
    assert (problems, graph["w"].literals["whole"]) == ([], 5)
