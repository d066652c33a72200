"""Documents: what is loaded comes out again, and what is no document is refused in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.graph.comfy import load, read_any
from app.graph.document import Link, Workflow, link_of, literal_of, written
from app.graph.errors import WorkflowError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NODE = st.fixed_dictionaries(
    {"class_type": st.text(min_size=1, max_size=8), "inputs": st.dictionaries(st.text(max_size=5), JSON, max_size=3)},
    optional={"_meta": JSON, "mode": JSON, "size": JSON},
)
DOCUMENT = st.fixed_dictionaries(
    {"version": st.just(1), "nodes": st.dictionaries(st.text(max_size=4), NODE, max_size=4)},
    optional={"groups": JSON, "panel": JSON, "requires": JSON, "unheard_of": JSON},
)


@given(DOCUMENT)
@settings(max_examples=150, deadline=None)
def test_a_document_survives_load_and_save_untouched(document: dict[str, Any]) -> None:
    assert Workflow.parse(document).to_json() == document
    assert load(json.dumps(document)).to_json() == document


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_any_literal_survives_being_written_and_read(value: Any) -> None:
    assert link_of(written(value)) is None
    assert literal_of(written(value)) == value


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_any_other_json_is_a_workflow_or_a_sentence(value: Any) -> None:
    try:
        found = read_any(value)
    except WorkflowError as error:
        found = error
    assert isinstance(found, Workflow) or all("accepted" in problem.message for problem in found.problems)


@pytest.mark.parametrize(
    ("value", "link"),
    [
        (["3", "sampler"], Link("3", "sampler")),
        (["3", 0], Link("3", 0)),
        ([3, 0], None),
        (["3", True], None),
        (["3", 0.5], None),
        (["a", "b", "c"], None),
        ({"__value__": ["3", "sampler"]}, None),
        ("3", None),
    ],
)
def test_a_two_item_list_that_begins_with_a_text_is_a_link(value: Any, link: Link | None) -> None:
    assert link_of(value) == link


def test_comfyuis_api_prompt_is_read_bare_and_wrapped_with_unknown_types_and_keys_kept() -> None:
    prompt = {
        "3": {"class_type": "KSampler", "inputs": {"seed": 5, "model": ["4", 0]}, "_meta": {"title": "Sampler"}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a"}, "is_changed": [1]},
    }
    for data in (prompt, {"prompt": prompt, "client_id": "x"}):
        workflow = read_any(data)
        assert workflow.to_json()["nodes"] == prompt
        assert workflow.nodes["3"].title == "Sampler"
    assert workflow.extra["client_id"] == "x"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "found no JSON"),
        ("{", "line 1, column 2"),
        ("[1, 2]", "found a list"),
        ("{}", "found an empty object"),
        ('"text"', "found a text"),
        ("null", "found nothing"),
        ('{"version": 2, "nodes": {}}', "document version 2"),
        ('{"version": "x", "nodes": {}}', "document version 'x'"),
        ('{"version": 1, "nodes": []}', "found an object with version, nodes"),
        ('{"nodes": [], "links": []}', "export it there"),
        ("[" * 100_000, "nested too deeply"),
        ('{"nodes": {"1": {"class_type": "T", "inputs": {"x": ' + "[" * 200 + "]" * 200 + "}}}}", "nested over 100"),
        (b"{\x80abc}", "no text"),
        ('{"nodes": {"1": {"class_type": "T", "inputs": {"x": ' + "9" * 5000 + "}}}}", "too long a number"),
    ],
)
def test_what_is_no_workflow_is_refused_in_one_sentence(text: str | bytes, part: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(text)
    (problem,) = caught.value.problems
    assert part in problem.message
    assert "\n" not in problem.message


def test_every_broken_node_is_reported_at_once() -> None:
    nodes = {"1": 5, "2": {"inputs": {}}, "3": {"class_type": "T", "inputs": []}, "4": {"class_type": "T"}}
    with pytest.raises(WorkflowError) as caught:
        Workflow.parse({"nodes": nodes})
    assert [problem.node for problem in caught.value.problems] == ["1", "2", "3"]


def titled() -> Workflow:
    return Workflow.parse(
        {
            "nodes": {
                "1": {"class_type": "T", "inputs": {"x": 1}, "_meta": {"title": "Denoise"}},
                "2": {"class_type": "T", "inputs": {"x": ["1", "out"]}, "_meta": {"title": "Twin"}},
                "3": {"class_type": "T", "inputs": {}, "_meta": {"title": "Twin"}},
            }
        }
    )


def test_nodes_are_found_by_id_or_title() -> None:
    assert titled().find_node("2") == "2"
    assert titled().find_node("Denoise") == "1"


@pytest.mark.parametrize(
    ("name", "part"), [("Denois", "did you mean Denoise"), ("Twin", "use its id: 2, 3"), ("zzzzzz", "use the id or")]
)
def test_a_node_that_cannot_be_told_is_refused(name: str, part: str) -> None:
    with pytest.raises(WorkflowError, match=part):
        titled().find_node(name)


def test_changing_inputs_leaves_the_original_alone() -> None:
    workflow = titled()
    changed = workflow.with_inputs({("1", "x"): 2, ("3", "names"): ["a", "b"]})
    assert (workflow.nodes["1"].inputs["x"], changed.nodes["1"].inputs["x"]) == (1, 2)
    assert literal_of(changed.nodes["3"].inputs["names"]) == ["a", "b"]


@pytest.mark.parametrize(("place", "part"), [(("2", "x"), "wired input"), (("9", "x"), "no node '9'")])
def test_changes_that_cannot_be_made_are_refused(place: tuple[str, str], part: str) -> None:
    with pytest.raises(WorkflowError, match=part):
        titled().with_inputs({place: 1})
