"""Prompts of any kind: templates as they are, any JSON, thousands of nodes."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.folders import BUNDLED_WORKFLOWS
from app.graph.node import NodeType
from app.graph.plan import plan
from app.graph.registry import Registry
from app.graph.validation import validate
from app.server.comfy.prompt_errors import Checked, check_prompt
from tests.server.probe_nodes import BUILTIN, REGISTRY, answer_of

TEMPLATES = sorted(BUNDLED_WORKFLOWS.glob("*.json"))


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_is_accepted_and_stored_as_it_was_sent(path: Path) -> None:
    """The templates run as they are, literal lists included, so no value of theirs may be refused or changed."""
    nodes = json.loads(path.read_text())["nodes"]
    checked = check_prompt(nodes, BUILTIN, None)
    assert (checked.error, checked.node_errors) == (None, {})
    assert checked.prompt == nodes


def _chain(count: int) -> dict[str, Any]:
    nodes: dict[str, Any] = {
        str(index): {"class_type": "Plain", "inputs": {"a": [str(index - 1), 0]} if index else {}}
        for index in range(count)
    }
    return nodes | {"out": {"class_type": "Show", "inputs": {"value": [str(count - 1), 0]}}}


def _side_by_side(count: int) -> dict[str, Any]:
    return {str(index): {"class_type": "Show", "inputs": {"value": index}} for index in range(count)}


def _bad_side_by_side(count: int) -> dict[str, Any]:
    return {str(index): {"class_type": "Show", "inputs": {}} for index in range(count)}


def _bad_chain(count: int) -> dict[str, Any]:
    nodes = _chain(count)
    for index in range(count):
        nodes[str(index)]["inputs"]["b"] = ["gone", 0]
    return nodes


@pytest.mark.parametrize("shape", [_chain, _side_by_side, _bad_side_by_side, _bad_chain])
def test_the_time_is_linear_in_nodes(shape: Any) -> None:
    """16 times the nodes in at most 100 times the time (a quadratic check takes 256 times as long)."""

    def seconds(count: int) -> float:
        prompt = shape(count)
        started = process_time()
        check_prompt(prompt, REGISTRY, None)
        return process_time() - started

    few = min(seconds(250) for _ in range(3))
    assert min(seconds(4000) for _ in range(2)) < 100 * few + 0.05  # sixteen times the nodes; quadratic would be 256


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def _prompts(registry: Registry) -> st.SearchStrategy[Any]:
    ids = st.sampled_from(["1", "2", "3", "4"])
    links = st.tuples(ids, st.integers(-1, 3)).map(list)

    def inputs_of(node_type: NodeType) -> st.SearchStrategy[Any]:
        names = st.sampled_from([*(port.name for port in node_type.ports.inputs), "other"])
        inputs = st.dictionaries(names, links | json_values | json_values.map(lambda value: {"__value__": value}))
        return inputs.map(lambda given: {"class_type": node_type.name, "inputs": given})

    nodes = st.sampled_from(list(registry)).flatmap(inputs_of)
    odd = json_values | st.fixed_dictionaries({"class_type": json_values}, optional={"inputs": json_values})
    return st.dictionaries(ids, nodes, max_size=4) | st.dictionaries(ids, nodes | odd, max_size=4) | json_values


def _expect_sound(checked: Checked, registry: Registry) -> None:
    json.dumps(answer_of(checked), allow_nan=False)
    if checked.error is None:
        graph, problems = validate(checked.workflow, registry, checked.outputs)
        assert problems == []
        plan(graph)
        assert checked.outputs
    else:
        assert checked.outputs == ()
        assert set(checked.error) == {"type", "message", "details", "extra_info"}


@settings(max_examples=300, deadline=None)
@given(prompt=_prompts(REGISTRY), targets=st.none() | st.lists(st.sampled_from(["1", "2"]), max_size=2))
def test_any_json_is_answered_and_what_is_accepted_can_run(prompt: Any, targets: list[str] | None) -> None:
    """Whatever is accepted passes our own validation and planning; whatever is not has an error; nothing raises."""
    _expect_sound(check_prompt(prompt, REGISTRY, targets), REGISTRY)


@settings(max_examples=300, deadline=None)
@given(prompt=_prompts(BUILTIN))
def test_any_values_at_the_built_in_nodes_are_answered(prompt: Any) -> None:
    """As above, with the checks and the ports of the real nodes."""
    _expect_sound(check_prompt(prompt, BUILTIN, None), BUILTIN)
