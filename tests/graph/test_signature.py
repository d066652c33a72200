"""Signatures: equal exactly when the outputs must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.graph.graph import Graph
from app.graph.plan import LoopPlan, plan
from app.graph.signature import encode, loop_signature, node_signature
from tests.graph.wiring import PLAIN, graph

VALUES = [None, True, False, 0, 1, 1.0, -0.0, 0.0, "", "1", [], [1], ["1"], [[1], 2], [1, 2], {}, {"a": 1}, {"a": [1]}]


@pytest.mark.parametrize("first", VALUES, ids=repr)
def test_values_that_differ_are_encoded_differently(first: Any) -> None:
    equal = [value for value in VALUES if encode(value) == encode(first)]
    assert len(equal) == 1


def test_the_order_of_keys_does_not_count() -> None:
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})


def loop_of(text: Graph) -> bytes:
    (loop,) = (item for item in plan(text).items if isinstance(item, LoopPlan))
    return loop_signature(text[loop.header], [text[node] for node in loop.nodes()], lambda source: b"outside")


def test_a_loop_is_known_by_its_body_whatever_its_nodes_are_called() -> None:
    first = graph(L="back=x", x="a=L.sample", y="a=x")
    renamed = graph(L9="back=p", p="a=L9.sample", q="a=p")
    other = graph(L="back=x", x="a=L.sample b=L.step", y="a=x")
    assert loop_of(first) == loop_of(renamed)
    assert loop_of(first) != loop_of(other)


def test_literals_and_versions_count_and_titles_do_not() -> None:
    node = graph(a="")["a"]
    plain = node_signature(node, lambda source: b"")
    assert node_signature(replace(node, title="Other", id="z"), lambda source: b"") == plain
    assert node_signature(replace(node, literals={"a": 1}), lambda source: b"") != plain
    assert node_signature(replace(node, type=replace(PLAIN, version=2)), lambda source: b"") != plain


def test_facts_outside_of_the_document_count() -> None:
    node = graph(a="")["a"]
    size = "1"
    watched = replace(node, type=replace(PLAIN, fingerprint=lambda literals: size))
    before = node_signature(watched, lambda source: b"")
    size = "2"
    assert node_signature(watched, lambda source: b"") != before
