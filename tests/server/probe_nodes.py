"""Node types as those that the prompts were recorded with, for checks without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.folders import Folders
from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import InputPort, NodeType, OutputPort, Ports
from app.graph.registry import Registry
from app.graph.socket import SocketType
from app.server.comfy.prompt_errors import Checked
from nodes import builtin_registry

RECORDED = Path(__file__).parent / "data" / "comfy-wire"


def never(context: Any, literals: Any) -> Any:
    raise AssertionError("checking a prompt prepares no node")


def make(name: str, inputs: str = "", outputs: str = "", **options: Any) -> NodeType:
    """Return a node type; its ports are written `name:KIND`, a number's range as `name:INT=default,min,max`."""
    ports = Ports(
        tuple(map(_input, inputs.split())),
        tuple(OutputPort(kind.lower(), SocketType(kind)) for kind in outputs.split()),
    )
    return NodeType(name, name, "test", "", 1, ports, never, source="nodes.test", **options)


def _input(text: str) -> InputPort:
    name, _, rest = text.partition(":")
    kind, _, numbers = rest.partition("=")
    if not numbers:
        return InputPort(name, SocketType(kind.rstrip("?")), required=not kind.endswith("?"))
    default, low, high = json.loads(f"[{numbers}]")
    return InputPort(name, SocketType(kind), default=default, minimum=low, maximum=high)


def _no_sevens(literals: Mapping[str, Any]) -> None:
    for name, value in literals.items():
        if value == 7.0:
            raise InputError(name, found=7, accepted="another number", fix="choose one")


def _probe() -> NodeType:
    probe = make("ProbeTypes", "i:INT=1,0,10 f:FLOAT=1.0,0,2.0 s:STRING b:BOOLEAN img:IMAGE", "INT", output_node=True)
    choice = InputPort("c", socket.STRING, choices=("a", "b"))
    inputs = (*probe.ports.inputs[:4], choice, *probe.ports.inputs[4:])
    ports = Ports(inputs, probe.ports.outputs)
    return NodeType("ProbeTypes", "Probe", "test", "", 1, ports, never, output_node=True)


LOOP = NodeType(
    "Loop",
    "Loop",
    "test",
    "",
    1,
    Ports(
        (InputPort("start", socket.ANY), InputPort("back", socket.ANY, role="feedback")),
        (OutputPort("step", socket.ANY, per_step=True), OutputPort("result", socket.ANY)),
    ),
    never,
    is_loop=True,
)

REGISTRY = Registry(
    [
        _probe(),
        LOOP,
        make("StubImage", "content:STRING height:INT width:INT batch_size:INT=1,1,4096", "IMAGE"),
        make("SaveImage", "images:IMAGE filename_prefix:STRING", output_node=True),
        make("ProbeBusy", "seconds:FLOAT salt:INT", output_node=True),
        make("TestCustomValidation5", "input1:FLOAT input2:FLOAT", "IMAGE", check=_no_sevens),
        make("TestVariadicAverage", "input1:IMAGE", "IMAGE"),
        make("Plain", "a:*? b:*?", "*"),
        make("Show", "value:*", output_node=True),
        make("Lists", "items:LIST? tensor:TENSOR?", output_node=True),
    ]
)

BUILTIN = builtin_registry(Folders())


def answer_of(checked: Checked) -> dict[str, Any]:
    return {"error": checked.error, "node_errors": checked.node_errors}
