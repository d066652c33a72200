"""Muted nodes do not run, nor does what needs them; bypassed ones pass on what is wired into them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from app.engine.run import RunRecord
from app.graph.modes import active
from app.graph.node import Help, Out, node
from tests.engine.kit import engine, workflow
from tests.engine.kit import registry as kit_registry


@node(category="test")
def add_texts(
    a: Annotated[str, Help("first")], b: Annotated[str, Help("second")], c: Annotated[str, Help("third")] = "!"
) -> Annotated[str, Out("text")]:
    """Join three texts."""
    return a + b + c


def run(tmp_path: Path, modes: dict[str, str], nodes: dict[str, Any]) -> RunRecord:
    """Run a document whose nodes have these modes."""
    document = {"version": 1, "nodes": {}}
    for name, (class_type, inputs) in nodes.items():
        wired = {
            key: value[2:].split(".") if isinstance(value, str) and value.startswith("->") else value
            for key, value in inputs.items()
        }
        document["nodes"][name] = {"class_type": class_type, "inputs": wired}  # type: ignore[index]
        if name in modes:
            document["nodes"][name]["mode"] = modes[name]  # type: ignore[index]
    return engine(tmp_path, add_texts).run(workflow_of(document))


def workflow_of(document: dict[str, Any]) -> Any:
    """Parse a document."""
    from app.graph.document import Workflow

    return Workflow.parse(document)


def shown(record: RunRecord) -> list[Any]:
    """Return the values that were shown; a run with problems shows none."""
    assert record.problems == ()
    return [output.value for output in record.outputs]


TEXTS = {
    "x": ("Text", {"text": "x"}),
    "y": ("Text", {"text": "y"}),
    "sum": ("AddTexts", {"a": "->x.text", "b": "->y.text"}),
    "more": ("AddTexts", {"a": "->sum.text", "b": "->y.text", "c": "->x.text"}),
    "one": ("Collect", {"value": "->sum.text"}),
    "two": ("Collect", {"value": "->more.text"}),
}


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({}, ["xy!", "xy!yx"]),
        ({"sum": "bypass"}, ["x", "xyx"]),
        ({"sum": "bypass", "more": "bypass"}, ["x", "x"]),
        ({"more": "mute"}, ["xy!"]),
        ({"one": "mute"}, ["xy!yx"]),
        ({"something": "mute"}, ["xy!", "xy!yx"]),
        ({"sum": "other"}, ["xy!", "xy!yx"]),
    ],
)
def test_what_is_shown(tmp_path: Path, modes: dict[str, str], expected: list[str]) -> None:
    """Worked out by hand: sum is x + y + "!", more is sum + y + x; a bypassed node gives its first text."""
    assert shown(run(tmp_path, modes, TEXTS)) == expected


def test_an_input_that_is_not_needed_is_unset(tmp_path: Path) -> None:
    """x is muted: sum needs it; a text wired into the optional c falls back to its own value."""
    nodes = {
        "x": ("Text", {"text": "x"}),
        "y": ("Text", {"text": "y"}),
        "sum": ("AddTexts", {"a": "->y.text", "b": "->y.text", "c": "->x.text"}),
        "out": ("Collect", {"value": "->sum.text"}),
    }
    assert shown(run(tmp_path, {"x": "mute"}, nodes)) == ["yy!"]


def test_a_bypassed_node_without_an_input_of_the_type_counts_as_muted(tmp_path: Path) -> None:
    nodes = {**TEXTS, "three": ("Collect", {"value": "->x.text"})}
    record = run(tmp_path, {"y": "bypass"}, nodes)
    assert shown(record) == ["x"]


def test_bypassed_nodes_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    nodes = {
        "a": ("AddTexts", {"a": "->b.text", "b": "->b.text"}),
        "b": ("AddTexts", {"a": "->a.text", "b": "->a.text"}),
        "c": ("AddTexts", {"a": "->a.text", "b": "->b.text"}),
        "out": ("Collect", {"value": "->c.text"}),
        "z": ("Text", {"text": "z"}),
        "other": ("Collect", {"value": "->z.text"}),
    }
    assert shown(run(tmp_path, {"a": "bypass", "b": "bypass"}, nodes)) == ["z"]


def test_a_bypassed_node_in_a_loop_passes_the_sample_through(tmp_path: Path) -> None:
    """Without a scheduler the prediction is the next sample: 3 steps of + 2 from 1 give 7; bypassed they leave 1."""
    nodes: dict[str, Any] = {
        "start": ("TensorFill", {"shape": [1], "value": 1.0}),
        "loop": ("DenoiseLoop", {"latent": "->start.tensor", "prediction": "->add.tensor", "steps": 3}),
        "add": ("TensorArithmetic", {"a": "->loop.sample", "b": 2.0, "operation": "add"}),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert shown(run(tmp_path, {}, nodes))[0].tolist() == [7.0]
    assert shown(run(tmp_path, {"add": "bypass"}, nodes))[0].tolist() == [1.0]


def test_nothing_left_to_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unmute"):
        run(tmp_path, {"x": "mute"}, TEXTS)


def test_a_document_without_modes_is_left_as_it_is() -> None:
    document = workflow(x=("Text", {"text": "x"}))
    assert active(document, kit_registry()) is document


def test_a_long_row_of_bypassed_nodes_is_followed(tmp_path: Path) -> None:
    """5,000 of them, deeper than Python's recursion goes."""
    nodes: dict[str, Any] = {"0": ("Text", {"text": "far"})}
    for number in range(1, 5001):
        nodes[str(number)] = ("AddTexts", {"a": f"->{number - 1}.text", "b": "b"})
    nodes["out"] = ("Collect", {"value": "->5000.text"})
    assert shown(run(tmp_path, {str(number): "bypass" for number in range(1, 5001)}, nodes)) == ["far"]
