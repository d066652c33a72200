"""Values, flow nodes and what Show Value shows: closed forms and numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.engine.events import Output
from app.engine.lanes import Pair
from app.graph.node import NodeType
from nodes import image, image_files, image_tensor, latent, mask, mask_blend, primitives, text
from nodes.primitives import boolean, choose, float_value, integer, list_value, reroute, seed, show_value, shown
from tests.nodes.context import context_in

MODULES = (image, image_files, image_tensor, latent, mask, mask_blend, primitives, text)
NODE_TYPES = [
    value.node_type
    for module in MODULES
    for value in vars(module).values()
    if isinstance(getattr(value, "node_type", None), NodeType) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("node_type", NODE_TYPES, ids=lambda node_type: node_type.name)
def test_every_node_input_and_output_has_help(node_type: NodeType) -> None:
    """The editor shows it beside the socket."""
    assert node_type.help
    assert [port.name for port in node_type.ports.inputs if not port.help] == []
    assert [port.name for port in node_type.ports.outputs if not port.help] == []


def test_values_pass_unchanged() -> None:
    assert integer(7) == 7
    assert float_value(0.1) == 0.1
    assert boolean(True) is True
    assert seed(2**64 - 1) == 2**64 - 1
    assert list_value([1, "a", [2.5]]) == [1, "a", [2.5]]


@pytest.mark.parametrize("value", [None, 3, "a", (1, 2), [1], np.arange(3)], ids=str)
def test_flow_nodes_pass_any_value_as_one_output(value: Any) -> None:
    for function, inputs in (
        (reroute, {"value": value}),
        (choose, {"condition": True, "if_true": value, "if_false": 0}),
        (choose, {"condition": False, "if_true": 0, "if_false": value}),
    ):
        node_type: NodeType = vars(function)["node_type"]
        outputs = node_type.prepare(None, {}).run(dict(inputs), 0)
        assert len(outputs) == 1
        assert outputs[0] is value


def test_show_value_sends_an_output(tmp_path: Path) -> None:
    context = context_in(tmp_path, step=2)
    show_value(context, "hello")
    assert context.shown == [Output("7", "value", value="hello", step=2)]


def test_a_tensor_is_summed_up() -> None:
    tensor = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert shown(tensor) == {
        "shape": [3, 4], "dtype": "float32", "min": 0.0, "max": 11.0, "mean": 5.5, "first": [0, 1, 2, 3, 4, 5, 6, 7],
    }  # fmt: skip


def test_a_tensor_of_text_shows_its_first_texts() -> None:
    """As ONNX Runtime gives a tensor(string): objects."""
    assert shown(np.array([["a"], ["b"]], object)) == {"shape": [2, 1], "dtype": "object", "first": ["a", "b"]}


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a"]), np.array([1j]),
        np.zeros((0, 3)), np.array(1.5), np.array([True, False]), np.array([1, 2], ml_dtypes.bfloat16),
        np.array([np.nan, np.inf, 1]), np.float32(2), np.array([2**63], np.uint64), {"a": np.arange(2)},
        (1, [None, "x"]), Pair(np.arange(2), 3), float("-inf"), object,
    ],
    ids=repr,
)  # fmt: skip
def test_everything_shown_is_json(value: Any) -> None:
    json.dumps(shown(value), allow_nan=False)


def test_numbers_and_lists_stay_as_they_are() -> None:
    assert shown([1, 2.5, True, None, "a"]) == [1, 2.5, True, None, "a"]
    assert shown(Pair(1, 2)) == {"positive": 1, "negative": 2}
    assert shown(np.array([False, True]))["max"] is True
