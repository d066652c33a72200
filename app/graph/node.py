"""Node types: a typed function, or a small class for loops and file-defined ports, whose signature is its schema."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, Union

import numpy as np

from app.graph import socket
from app.graph.socket import SocketType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""Any numpy array: what flows on a TENSOR wire."""

Image: TypeAlias = Annotated[Array, socket.IMAGE]
"""float32 [B, H, W, C] in [0, 1], C = 3 (RGB)."""

Mask: TypeAlias = Annotated[Array, socket.MASK]
"""float32 [B, H, W] in [0, 1]; 1 marks what is to change."""

Latent: TypeAlias = Annotated[Array, SocketType("TENSOR", frozenset({"float32"}), (None, None, None, None))]
"""float32 [B, C, H, W]."""

Role = Literal["input", "feedback", "steerable"]
PairRule = Literal["lift", "accept", "refuse"]


@dataclass(frozen=True, slots=True)
class InputPort:
    """One input of a node type.

    role: `feedback` is read at the end of each pass of a loop's body, `steerable` again on every step, `input` once.
    pair: what happens when a guidance pair arrives. `lift`: the node runs once for each lane and gives pairs;
        `accept`: the node takes the pair itself; `refuse`: an error.
    cfg: for an input that folds a pair: the name of the node's input that holds the guidance scale. At exactly 1 the
        negative lane is not needed and nobody computes it.
    minimum, maximum, step: range and scrub step of a number, both ends included.
    choices: accepted values of a STRING that is one of a list.
    literal_only: the value shapes the node itself (a model file, a port list) and cannot come from a wire.
    widget: how the editor draws it: "", "multiline", "slider", "seed", "model", "image", "tokenizer", "color".
    group: ports with the same group fold into one line on the canvas.
    """

    name: str
    type: SocketType
    help: str = ""
    required: bool = True
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    role: Role = "input"
    pair: PairRule = "lift"
    cfg: str = ""
    literal_only: bool = False
    widget: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class OutputPort:
    """One output of a node type. per_step: given anew on every pass of the loop's body, else when the node is done.

    gives_pair: it may be a guidance pair although no input is one.
    """

    name: str
    type: SocketType
    help: str = ""
    per_step: bool = False
    group: str = ""
    gives_pair: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    """The inputs and outputs of one node, in order."""

    inputs: tuple[InputPort, ...]
    outputs: tuple[OutputPort, ...]

    def input(self, name: str) -> InputPort | None:
        """Return the input of that name, or None."""
        return next((port for port in self.inputs if port.name == name), None)


class NodeInstance(Protocol):
    """One node during one run."""

    def run(self, inputs: dict[str, Any], lane: int) -> Sequence[Any]:
        """Compute the outputs, in port order. lane: 0 for the positive or only lane, 1 for the negative one."""

    def reset(self) -> None:
        """Forget carried state: the innermost loop around this node starts."""

    def close(self) -> None:
        """Give back what the node holds: the run has ended."""


Prepare: TypeAlias = Callable[[Any, Mapping[str, Any]], NodeInstance]
"""(context, literal inputs) -> the node's instance for one run. context is an `app.engine.context.NodeContext`."""


@dataclass(frozen=True, slots=True)
class NodeType:
    """A registered class of node.

    name: `class_type` in documents, e.g. "DenoiseLoop".
    version: raised whenever the same inputs may give other outputs, so that cached results are not reused.
    prepare: makes the node's instance for a run; it is called when the node is first needed, not before.
    ports_of: ports of one node, given its literal inputs; None when `ports` always holds.
    fingerprint: facts outside the document that the outputs depend on, e.g. a model file's size and mtime.
    output_node: shows or stores something: a run computes what its output nodes need.
    is_loop: has per-step outputs and drives a body.
    check: extra checks of literal inputs, each raising InputError.
    """

    name: str
    display_name: str
    category: str
    help: str
    version: int
    ports: Ports
    prepare: Prepare
    output_node: bool = False
    is_loop: bool = False
    ports_of: Callable[[Mapping[str, Any]], Ports] | None = None
    fingerprint: Callable[[Mapping[str, Any]], str] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None
    source: str = ""
    search_aliases: tuple[str, ...] = ()

    def ports_for(self, literals: Mapping[str, Any]) -> Ports:
        """Return the ports of a node with these literal inputs. Raises InputError when they cannot be told."""
        return self.ports if self.ports_of is None else self.ports_of(literals)


@dataclass(frozen=True, slots=True)
class Help:
    """Help text of an input, and how the editor draws it."""

    help: str
    widget: str = ""
    pair: PairRule = "lift"
    cfg: str = ""
    literal_only: bool = False
    role: Role = "input"


@dataclass(frozen=True, slots=True)
class Range:
    """Help text and range of a number, both ends included."""

    minimum: float | None
    maximum: float | None
    step: float | None = None
    help: str = ""
    widget: str = ""
    role: Role = "input"


@dataclass(frozen=True, slots=True)
class Out:
    """Name and help of an output, and whether it may be a guidance pair although no input is one."""

    name: str
    help: str = ""
    gives_pair: bool = False


_KIND_BY_TYPE: dict[Any, SocketType] = {
    int: socket.INT,
    float: socket.FLOAT,
    bool: socket.BOOLEAN,
    str: socket.STRING,
    list: socket.LIST,
    np.ndarray: socket.TENSOR,
    Any: socket.ANY,
}

F = TypeVar("F", bound=Callable[..., Any])


def node(
    *,
    category: str,
    version: int = 1,
    name: str = "",
    display_name: str = "",
    output_node: bool = False,
    fingerprint: Callable[[Mapping[str, Any]], str] | None = None,
    check: Callable[[Mapping[str, Any]], None] | None = None,
    search_aliases: Sequence[str] = (),
) -> Callable[[F], F]:
    """Make a node type of a typed function; it is found on the function as `node_type`.

    Parameters become inputs: the annotation gives the socket type, `Annotated` extras (`Range`, `Help`, a
    `SocketType`) give help, range and widget, a default makes it optional. A parameter whose annotation is a frozen
    dataclass spreads into one input per field. A parameter called `context` is not an input: it receives the
    NodeContext. The return annotation gives the outputs: `Annotated[T, Out("name", "help")]`, a NamedTuple class
    whose fields are annotated with `Help`, or None.
    Raises TypeError when an annotation cannot be turned into a socket type.
    """

    def decorate(function: F) -> F:
        hints = typing.get_type_hints(function, include_extras=True)
        returns = hints.pop("return", type(None))
        spread: dict[str, tuple[type, tuple[str, ...]]] = {}
        inputs: list[InputPort] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name == "context":
                continue
            annotation = hints[parameter.name]
            if is_dataclass_type(annotation):
                fields = ports_of_dataclass(annotation)
                spread[parameter.name] = (annotation, tuple(port.name for port in fields))
                inputs.extend(fields)
            else:
                inputs.append(input_port(parameter.name, annotation, parameter.default))
        type_name = name or "".join(part.capitalize() for part in function.__name__.split("_"))
        wants_context = "context" in inspect.signature(function).parameters
        outputs = output_ports(returns)
        gives_any = len(outputs) == 1 and outputs[0].type == socket.ANY

        def prepare(context: Any, literals: Mapping[str, Any]) -> NodeInstance:
            return FunctionInstance(function, context if wants_context else None, spread, gives_any)

        function.node_type = NodeType(  # type: ignore[attr-defined]
            name=type_name,
            display_name=display_name or title_of(type_name),
            category=category,
            help=inspect.getdoc(function) or "",
            version=version,
            ports=Ports(tuple(inputs), outputs),
            prepare=prepare,
            output_node=output_node,
            fingerprint=fingerprint,
            check=check,
            source=function.__module__,
            search_aliases=tuple(search_aliases),
        )
        return function

    return decorate


@dataclass(slots=True)
class FunctionInstance:
    """A function node during one run: it has no state. gives_any: its only output may be None as well."""

    function: Callable[..., Any]
    context: Any = None
    spread: Mapping[str, tuple[type, tuple[str, ...]]] = field(default_factory=dict)
    gives_any: bool = False

    def run(self, inputs: dict[str, Any], lane: int) -> Sequence[Any]:
        """Call the function; a plain result becomes the only output."""
        if self.spread:
            inputs = dict(inputs)
            for parameter, (cls, names) in self.spread.items():
                inputs[parameter] = cls(**{name: inputs.pop(name) for name in names if name in inputs})
        result = self.function(**inputs) if self.context is None else self.function(context=self.context, **inputs)
        if isinstance(result, tuple):
            return result
        return () if result is None and not self.gives_any else (result,)

    def reset(self) -> None:
        """Do nothing: a function carries no state."""

    def close(self) -> None:
        """Do nothing: a function holds nothing."""


def title_of(type_name: str) -> str:
    """Return `Denoise Loop` for `DenoiseLoop`, `ONNX Component` for `ONNXComponent`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", type_name)


def is_dataclass_type(annotation: Any) -> bool:
    """Return whether the annotation is a dataclass to be spread into inputs."""
    return isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__")


def ports_of_dataclass(cls: type) -> tuple[InputPort, ...]:
    """Return one input port per field of an annotated dataclass, in field order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    parameters = inspect.signature(cls).parameters
    return tuple(input_port(name, hints[name], parameter.default) for name, parameter in parameters.items())


def input_port(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> InputPort:
    """Return the port that a parameter's name, annotation and default describe. Raises TypeError if it cannot."""
    base, extras = _unwrap(annotation)
    optional = False
    if typing.get_origin(base) in (Union, types.UnionType):
        members = [arg for arg in typing.get_args(base) if arg is not type(None)]
        optional = True
        base, inner = _unwrap(members[0] if len(members) == 1 else Any)
        extras = (*inner, *extras)
    has_default = default is not inspect.Parameter.empty
    port = InputPort(
        name,
        _socket_of(base, extras, name),
        required=not (optional or has_default),
        default=default if has_default else None,
    )
    if typing.get_origin(base) is Literal:
        port = replace(port, choices=tuple(typing.get_args(base)))
    for extra in extras:
        if isinstance(extra, Range):
            port = replace(
                port,
                minimum=extra.minimum,
                maximum=extra.maximum,
                step=extra.step,
                help=extra.help,
                widget=extra.widget,
                role=extra.role,
            )
        elif isinstance(extra, Help):
            port = replace(
                port,
                help=extra.help,
                widget=extra.widget,
                pair=extra.pair,
                cfg=extra.cfg,
                literal_only=extra.literal_only,
                role=extra.role,
            )
    return port


def output_ports(annotation: Any) -> tuple[OutputPort, ...]:
    """Return the output ports that a return annotation describes."""
    base, extras = _unwrap(annotation)
    if base is type(None):
        return ()
    if isinstance(base, type) and issubclass(base, tuple) and hasattr(base, "_fields"):
        hints = typing.get_type_hints(base, include_extras=True)
        return tuple(_output_port(name, hints[name]) for name in base._fields)
    out = next((extra for extra in extras if isinstance(extra, Out)), Out("output"))
    return (OutputPort(out.name, _socket_of(base, extras, out.name), out.help, gives_pair=out.gives_pair),)


def _output_port(name: str, annotation: Any) -> OutputPort:
    base, extras = _unwrap(annotation)
    text = next((extra.help for extra in extras if isinstance(extra, Help)), "")
    return OutputPort(name, _socket_of(base, extras, name), text)


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split `Annotated[T, *extras]` into T and its extras."""
    if typing.get_origin(annotation) is Annotated:
        base, *extras = typing.get_args(annotation)
        return base, tuple(extras)
    return annotation, ()


def _socket_of(base: Any, extras: tuple[Any, ...], name: str) -> SocketType:
    for extra in extras:
        if isinstance(extra, SocketType):
            return extra
    origin = typing.get_origin(base) or base
    if origin is Literal:
        return socket.STRING
    if origin in _KIND_BY_TYPE:
        return _KIND_BY_TYPE[origin]
    raise TypeError(f"parameter {name}: {base!r} is not a socket type; annotate it with a SocketType")
