"""Prompts over ComfyUI's API: every validation error in its shape, as recorded from ComfyUI 0.27.1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from app.folders import Folders
from app.graph import socket
from app.graph.node import InputPort, NodeType, Ports
from app.graph.registry import Registry
from app.server.comfy.prompt_errors import Checked, check_prompt
from nodes import builtin_registry
from tests.server.probe_nodes import RECORDED, REGISTRY, answer_of, never

EXACT = [
    "bad_link_len", "cycle", "empty", "int_conv", "missing_class", "no_class_type", "no_outputs", "not_in_list",
    "partial_good", "required_missing", "too_big", "too_small", "type_mismatch", "upstream_error",
]  # fmt: skip


def recorded(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the prompt and the answer of a recorded exchange."""
    data = json.loads((RECORDED / f"v_{name}.json").read_text())
    return data["request"]["prompt"], data["response"]


def without_exception_text(data: Any) -> Any:
    """Return an answer with Python's own words and stack traces left out."""
    if isinstance(data, dict):
        return {key: "" if key == "traceback" else without_exception_text(item) for key, item in data.items()}
    return [without_exception_text(item) for item in data] if isinstance(data, list) else data


@pytest.mark.parametrize("name", EXACT)
def test_a_recorded_prompt_gives_the_recorded_errors(name: str) -> None:
    """Expected values: ComfyUI 0.27.1's own answers to the same prompts."""
    prompt, response = recorded(name)
    expected = {"error": response.get("error"), "node_errors": response["node_errors"]}
    assert answer_of(check_prompt(prompt, REGISTRY, None)) == expected


@pytest.mark.parametrize("name", ["inputs_missing", "link_bad_slot", "link_to_missing"])
def test_what_raises_in_comfyui_gives_the_recorded_errors_without_a_trace(name: str) -> None:
    """As above; ComfyUI's stack trace shows paths of its disk, ours is always empty."""
    prompt, response = recorded(name)
    answer = answer_of(check_prompt(prompt, REGISTRY, None))
    assert without_exception_text(answer) == without_exception_text(response)
    assert answer["node_errors"]["1"]["errors"][0]["extra_info"]["traceback"] == []


def test_a_nodes_own_check_gives_the_recorded_shape() -> None:
    """ComfyUI asks for each input by itself and lists both; our checks tell the first one, in their own words."""
    prompt, response = recorded("custom")
    prompt["1"]["inputs"]["input1"] = 7.0
    answer = answer_of(check_prompt(prompt, REGISTRY, None))
    assert answer["error"] == response["error"]
    found, expected = answer["node_errors"]["1"], response["node_errors"]["1"]
    assert found["dependent_outputs"] == expected["dependent_outputs"]
    for key in ("type", "message", "extra_info"):
        assert found["errors"][0][key] == expected["errors"][0][key]
    assert found["errors"][0]["details"] == "input1 - found 7, accepted another number; choose one"


def test_a_prompt_that_is_no_object_is_refused_not_raised() -> None:
    """ComfyUI fails with status 500 here (v_prompt_is_list); any error with a `type` will do for clients."""
    prompt, _ = recorded("prompt_is_list")
    for bad in (prompt, None, 5, "x", [{}], True):
        checked = check_prompt(bad, REGISTRY, None)
        assert checked.error is not None
        assert checked.error["type"] == "no_prompt"
        assert checked.outputs == ()


IMAGE = {"class_type": "StubImage", "inputs": {"content": "BLACK", "height": 32, "width": 48}}


def probe(**inputs: Any) -> dict[str, Any]:
    values = {"i": 1, "f": 1.0, "s": "x", "b": True, "c": "a", "img": ["9", 0]}
    return {"9": IMAGE, "1": {"class_type": "ProbeTypes", "inputs": {**values, **inputs}, "_meta": {"title": "P"}}}


def test_values_are_cast_as_python_casts_them() -> None:
    """ComfyUI calls int(), float(), str() and bool() on the values; unknown inputs stay in what is stored only."""
    checked = check_prompt(probe(i="3", f="0.5", s=7, b="", extra="kept", img=["9", "image"]), REGISTRY, None)
    assert checked.error is None
    run = checked.workflow.nodes["1"].inputs
    assert [run[name] for name in "ifsb"] == [3, 0.5, "7", False]
    assert type(run["i"]) is int
    assert "extra" not in run
    stored = checked.prompt["1"]
    assert stored["inputs"] == {
        "i": 3,
        "f": 0.5,
        "s": "7",
        "b": False,
        "c": "a",
        "img": ["9", "image"],
        "extra": "kept",
    }
    assert stored["_meta"] == {"title": "P"}
    assert checked.outputs == ("1",)


def test_wrapped_values_are_unwrapped_unless_they_would_read_as_links() -> None:
    """`{"__value__": x}` is how both ComfyUI and our documents write a list that is no link."""
    prompt = {"1": {"class_type": "Lists", "inputs": {"items": {"__value__": ["a", 0]}, "tensor": [1, 2]}}}
    checked = check_prompt(prompt, REGISTRY, None)
    assert checked.error is None
    assert checked.workflow.nodes["1"].inputs == {"items": {"__value__": ["a", 0]}, "tensor": [1, 2]}
    assert check_prompt(probe(i={"__value__": "4"}), REGISTRY, None).prompt["1"]["inputs"]["i"] == 4


def test_links_may_name_titles_and_outputs() -> None:
    """A wire from the only node of a title runs as a wire from its id; what is stored stays as it was sent."""
    prompt = probe(img=["Source", "image"])
    prompt["9"] = {**IMAGE, "_meta": {"title": "Source"}}
    checked = check_prompt(prompt, REGISTRY, None)
    assert checked.error is None
    assert checked.workflow.nodes["1"].inputs["img"] == ["9", "image"]
    assert checked.prompt["1"]["inputs"]["img"] == ["Source", "image"]


def errors_at(checked: Checked, node_id: str = "1") -> list[dict[str, Any]]:
    return list(checked.node_errors[node_id]["errors"])


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({"i": math.nan}, "invalid_input_type"),
        ({"i": None}, "invalid_input_type"),
        ({"f": "nan"}, "invalid_input_type"),
        ({"f": math.inf}, "value_bigger_than_max"),
        ({"i": -1.5}, "value_smaller_than_min"),
        ({"c": 5}, "value_not_in_list"),
        ({"img": 5}, "invalid_input_type"),
        ({"img": []}, "bad_linked_input"),
        ({"img": [9, 0]}, "exception_during_validation"),
        ({"img": ["9", 0.5]}, "exception_during_validation"),
        ({"img": ["9", "nope"]}, "exception_during_validation"),
        ({"img": ["9", -1]}, "exception_during_validation"),
    ],
)
def test_odd_values_are_refused_with_the_nearest_kind(inputs: dict[str, Any], kind: str) -> None:
    """What our engine refuses must be refused here; the answer must be JSON, which has no NaN."""
    checked = check_prompt(probe(**inputs), REGISTRY, None)
    if inputs == {"i": -1.5}:  # int(-1.5) is -1
        assert errors_at(checked)[0]["extra_info"]["received_value"] == -1
    assert [error["type"] for error in errors_at(checked)] == [kind]
    json.dumps(answer_of(checked), allow_nan=False)


def test_a_long_list_of_choices_is_told_by_its_length() -> None:
    """ComfyUI leaves `input_config` out (null) when there are more than 20 options."""
    port = InputPort("c", socket.STRING, choices=tuple(map(str, range(21))))
    many = NodeType("Many", "Many", "test", "", 1, Ports((port,), ()), never, output_node=True)
    checked = check_prompt({"1": {"class_type": "Many", "inputs": {"c": "x"}}}, Registry([many]), None)
    assert errors_at(checked)[0]["extra_info"] == {"input_name": "c", "input_config": None, "received_value": "x"}
    assert errors_at(checked)[0]["details"] == "c: 'x' not in (list of length 21)"


def test_an_exception_above_the_output_is_an_inner_one() -> None:
    """ComfyUI reports it at the node where it happened, with the wire that led there."""
    prompt = {
        "1": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
        "2": {"class_type": "Plain", "inputs": {"a": ["77", 0]}},
    }
    checked = check_prompt(prompt, REGISTRY, None)
    (error,) = errors_at(checked, "2")
    assert error["type"] == "exception_during_inner_validation"
    assert error["details"] == "'77'"
    assert set(error["extra_info"]) == {
        "input_name", "input_config", "exception_message", "exception_type", "traceback", "linked_node",
    }  # fmt: skip
    assert error["extra_info"]["linked_node"] == ["2", 0]
    assert checked.node_errors["2"]["dependent_outputs"] == ["1"]


def loop(back: str, shown: list[Any], plain: list[Any]) -> dict[str, Any]:
    return {
        "0": {"class_type": "Plain", "inputs": {}},
        "L": {"class_type": "Loop", "inputs": {"start": ["0", 0], "back": [back, 0]}},
        "b": {"class_type": "Plain", "inputs": {"a": ["L", "step"], "b": plain}},
        "out": {"class_type": "Show", "inputs": {"value": shown}},
    }


def test_a_circle_through_a_loop_node_runs() -> None:
    """What ComfyUI calls a cycle is how loops are wired here."""
    checked = check_prompt(loop("b", ["L", "result"], ["0", 0]), REGISTRY, None)
    assert checked.error is None
    assert checked.outputs == ("out",)


def test_mixed_use_of_a_loop_is_a_dependency_cycle() -> None:
    """A node that needs a step and the result of one loop can never run."""
    checked = check_prompt(loop("0", ["b", 0], ["L", "result"]), REGISTRY, None)
    (error,) = errors_at(checked, "b")
    assert error["type"] == "dependency_cycle"
    assert error["extra_info"] == {"node_id": "b", "cycle_nodes": ["b"]}
    assert "not both in one node" in error["details"]


def test_a_circle_spoils_only_the_outputs_that_need_it() -> None:
    """Two outputs, one circle: ComfyUI accepts the prompt and lists the bad one."""
    prompt, _ = recorded("cycle")
    prompt["8"] = {"class_type": "Show", "inputs": {"value": 5}}
    checked = check_prompt(prompt, REGISTRY, None)
    assert checked.error is None
    assert checked.outputs == ("8",)
    assert set(checked.node_errors) == {"1", "2"}


def test_targets_choose_among_the_output_nodes() -> None:
    """As ComfyUI's partial_execution_targets: other ids and kinds of values choose nothing."""
    prompt = {
        "1": {"class_type": "Show", "inputs": {"value": 1}},
        "2": {"class_type": "Show", "inputs": {}},
        "3": {"class_type": "Plain", "inputs": {}},
    }
    checked = check_prompt(prompt, REGISTRY, ["1"])
    assert (checked.outputs, checked.node_errors) == (("1",), {})
    for none in ([], ["3"], ["77"], [{}, 5]):
        error = check_prompt(prompt, REGISTRY, none).error
        assert error is not None
        assert error["type"] == "prompt_no_outputs"


def test_a_missing_file_is_told_without_the_servers_folders(tmp_path: Path) -> None:
    """ComfyUI answers value_not_in_list for a file that is gone; no answer tells where the server keeps its files."""
    registry = builtin_registry(Folders((tmp_path,), (tmp_path,), tmp_path))
    prompt = {
        "1": {"class_type": "ONNXComponent", "inputs": {"model": "gone.onnx"}},
        "2": {"class_type": "ShowValue", "inputs": {"value": ["1", 0]}},
    }
    checked = check_prompt(prompt, registry, None)
    assert errors_at(checked)[0]["type"] == "value_not_in_list"
    (tmp_path / "gone.onnx").write_bytes(b"no model")
    assert str(tmp_path) not in json.dumps(answer_of(checked)) + json.dumps(
        answer_of(check_prompt(prompt, registry, None))
    )
