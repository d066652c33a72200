"""Every node type of the library is whole: documented, with defaults that its own rules accept."""

from __future__ import annotations

import json

import pytest

from app.folders import Folders
from app.graph.node import NodeType
from app.graph.registry import schema
from app.graph.validation import why_not_literal
from nodes import builtin_registry

NODE_TYPES = sorted(builtin_registry(Folders()), key=lambda node_type: node_type.name)


@pytest.mark.parametrize("node_type", NODE_TYPES, ids=lambda node_type: node_type.name)
class TestEveryNodeType:
    def test_it_and_its_ports_have_help(self, node_type: NodeType) -> None:
        assert node_type.help
        assert [port.name for port in (*node_type.ports.inputs, *node_type.ports.outputs) if not port.help] == []

    def test_its_defaults_are_accepted_by_its_own_rules(self, node_type: NodeType) -> None:
        wrong = {
            port.name: why_not_literal(port.default, port)
            for port in node_type.ports.inputs
            if port.default is not None and why_not_literal(port.default, port) is not None
        }
        assert wrong == {}

    def test_its_schema_is_json(self, node_type: NodeType) -> None:
        entry = json.loads(json.dumps(schema(node_type), allow_nan=False))
        assert entry["name"] == node_type.name
        assert [port["name"] for port in entry["inputs"]] == [port.name for port in node_type.ports.inputs]

    def test_its_port_names_are_distinct(self, node_type: NodeType) -> None:
        for ports in (node_type.ports.inputs, node_type.ports.outputs):
            names = [port.name for port in ports]
            assert len(names) == len(set(names))
