"""The ONNX Component: one model file as a node, its ports read from the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.engine.cancel import RunCancelled
from app.engine.context import NodeContext
from app.engine.lanes import Pair
from app.folders import Folders
from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import InputPort, NodeInstance, NodeType, OutputPort, Ports
from app.graph.socket import SocketType
from app.runtime.model_file import ModelSignature, TensorPort, read_signature, stamp
from app.runtime.providers import DEVICES
from app.runtime.sessions import SessionLease, is_out_of_memory, shorten
from app.runtime.state import checked_pairs, first_state
from app.runtime.tensors import PortFeed, run_with_bfloat16, symbol_sizes

SETTINGS = (
    InputPort("model", socket.STRING, "the .onnx file, inside one of the model folders", literal_only=True,
              widget="model"),
    InputPort("device", socket.STRING, "what to run on; auto takes the best one that works", False, "auto",
              choices=DEVICES, literal_only=True),
    InputPort("lanes", socket.STRING, "how a guidance pair is computed: two calls, or both lanes in one batch", False,
              "separate", choices=("separate", "batched"), literal_only=True),
    InputPort("state", socket.LIST, "pairs of an output and the input that it feeds on the next step, e.g. "
              '{"input": "past.0.key", "output": "present.0.key", "init": "empty"}', False, [], literal_only=True),
)  # fmt: skip

_OWN = frozenset(port.name for port in SETTINGS)
_PREFIX = "input."


def onnx_component(folders: Folders) -> NodeType:
    """Return the node type ONNXComponent, whose models are looked up in these folders."""

    def signature_of(literals: Mapping[str, Any]) -> ModelSignature:
        return read_signature(folders.model(literals.get("model", "")))

    def ports_of(literals: Mapping[str, Any]) -> Ports:
        if not literals.get("model"):
            return Ports(SETTINGS, ())
        signature = signature_of(literals)
        carried = {pair[0] for pair in checked_pairs(literals.get("state", []), signature)}
        inputs = [_input_port(port) for port in signature.inputs if port.name not in carried]
        return Ports((*SETTINGS, *inputs), tuple(_output_port(port) for port in signature.outputs))

    def fingerprint(literals: Mapping[str, Any]) -> str:
        path = folders.model(literals["model"])
        return repr([stamp(path), *map(stamp, read_signature(path).external_files)])

    def prepare(context: NodeContext, literals: Mapping[str, Any]) -> NodeInstance:
        return Component(context, literals, signature_of(literals))

    return NodeType(
        name="ONNXComponent",
        display_name="ONNX Component",
        category="components",
        help=(
            "Run one ONNX model. Its inputs and outputs are read from the file; a model input that is called like one "
            f"of this node's own settings gets the prefix `{_PREFIX}`. Floats of any width are converted to what the "
            "model takes; nothing else is. Inside a loop, declared state goes from its outputs to its inputs from step "
            "to step without being copied, and starts afresh when the loop does."
        ),
        version=1,
        ports=Ports(SETTINGS, ()),
        prepare=prepare,
        ports_of=ports_of,
        fingerprint=fingerprint,
        source=__name__,
        search_aliases=("model", "onnx", "unet", "text encoder", "vae"),
    )


def _input_port(port: TensorPort) -> InputPort:
    name = f"{_PREFIX}{port.name}" if port.name in _OWN else port.name
    text = "has a value in the file, wire it to replace that" if port.has_default else "input of the model"
    return InputPort(name, _socket_type(port), text, required=not port.has_default, group=_group(port.name))


def _output_port(port: TensorPort) -> OutputPort:
    return OutputPort(port.name, _socket_type(port), "output of the model", group=_group(port.name))


def _socket_type(port: TensorPort) -> SocketType:
    if port.dtype in ("sequence", "map", "optional", "unknown"):
        return socket.ANY
    return SocketType("TENSOR", frozenset({port.dtype}), port.shape)


def _group(name: str) -> str:
    """Return what comes before the layer number in `past_key_values.3.key`, so that such ports fold into one line."""
    found = re.match(r"^(.+?)[._](\d+)([._]|$)", name)
    return found[1] if found else ""


class Component:
    """An ONNX Component during one run. The session is leased on the first call and given back by `close`."""

    def __init__(self, context: NodeContext, literals: Mapping[str, Any], signature: ModelSignature) -> None:
        self._context = context
        self._path = context.folders.model(literals["model"])
        device = literals.get("device", "auto")
        self._device = context.device if device == "auto" else device
        self._is_batched = literals.get("lanes") == "batched"
        self._ports = {f"{_PREFIX}{port.name}" if port.name in _OWN else port.name: port for port in signature.inputs}
        self._port_feeds = {name: PortFeed(port) for name, port in self._ports.items()}
        self._pairs = checked_pairs(literals.get("state", []), signature)
        self._outputs = [port.name for port in signature.outputs]
        self._state_outputs = [(name, self._outputs.index(output)) for name, output, _ in self._pairs]
        self._has_bfloat16 = any(port.dtype == "bfloat16" for port in (*signature.inputs, *signature.outputs))
        self._state: dict[int, dict[str, Any]] = {}
        self._lease: SessionLease | None = None
        self._session: Any = None
        self._options: Any = None

    def reset(self) -> None:
        """Forget the carried state."""
        self._state.clear()

    def close(self) -> None:
        """Give the session back."""
        self._session = None
        self._state.clear()
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def run(self, inputs: dict[str, Any], lane: int) -> Sequence[Any]:
        """Run the model once; the state of each lane is its own. Raises InputError, MemoryError or RunCancelled."""
        if self._session is None:
            self._open()
        feeds = self._feeds(inputs)
        if self._pairs:
            feeds.update(self._carried(feeds, lane))
        outputs = self._call(feeds)
        if self._pairs:
            self._state[lane] = {name: outputs[index] for name, index in self._state_outputs}
        return outputs

    def run_pair(self, inputs: dict[str, Any]) -> Sequence[Any]:
        """Run the model for both guidance lanes; returns pairs."""
        positive = {name: value.positive if type(value) is Pair else value for name, value in inputs.items()}
        negative = {name: value.negative if type(value) is Pair else value for name, value in inputs.items()}
        if self._is_batched:
            joined = _joined(inputs, positive, negative, self._ports)
            if joined is not None:
                outputs = self.run(*joined[:1], 2)
                return [_split(value, joined[1]) for value in outputs]
        lanes = zip(self.run(positive, 0), self.run(negative, 1), strict=True)
        return [Pair(*values) for values in lanes]

    def _open(self) -> None:
        import onnxruntime as ort

        self._lease = self._context.sessions.lease(self._path, self._device)
        self._session = self._lease.session
        # One for the whole run: setting its flag ends the call that is running, whichever it is.
        options = self._options = ort.RunOptions()
        self._context.cancel.on_cancel(lambda: setattr(options, "terminate", True))

    def _feeds(self, inputs: dict[str, Any]) -> dict[str, Any]:
        feeds: dict[str, Any] = {}
        for name, value in inputs.items():
            feed = self._port_feeds.get(name)
            if feed is not None and value is not None:
                feeds[feed.name] = feed.take(value, inputs, self._ports)
        return feeds

    def _carried(self, feeds: dict[str, Any], lane: int) -> dict[str, Any]:
        carried = self._state.get(lane)
        if carried is not None:
            return carried
        by_name = {port.name: port for port in self._ports.values()}
        sizes = symbol_sizes(feeds, by_name)
        return {name: first_state(by_name[name], init, sizes) for name, _, init in self._pairs}

    def _call(self, feeds: dict[str, Any]) -> list[Any]:
        try:
            if self._has_bfloat16:
                return run_with_bfloat16(self._session, self._outputs, feeds, self._options)
            outputs: list[Any] = self._session.run(self._outputs, feeds, self._options)
            return outputs
        except Exception as error:
            if self._context.cancel.is_set:
                raise RunCancelled from error
            raise self._call_error(error, feeds) from error

    def _call_error(self, error: Exception, feeds: dict[str, Any]) -> Exception:
        if is_out_of_memory(error):
            return MemoryError(f"{self._path.name} asked for more than there is")
        text = shorten(" ".join(str(error).split()))
        shapes = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in feeds.items()
                           if isinstance(value, np.ndarray))  # fmt: skip
        fix = "check that the shapes belong to this model"
        found = f"{shapes}, on which {self._path.name} fails ({text})"
        return InputError("", found=found, accepted="inputs that it can compute", fix=fix, code="model_failed")


def _joined(
    inputs: Mapping[str, Any], positive: dict[str, Any], negative: dict[str, Any], ports: Mapping[str, TensorPort]
) -> tuple[dict[str, Any], int] | None:
    """Return the inputs with both lanes joined along axis 0 and the batch size of one lane; None if they do not fit.

    What is not paired is repeated when its first axis has the symbol or size of the lanes' batch, else shared.
    """
    paired = [name for name, value in inputs.items() if type(value) is Pair]
    joined: dict[str, Any] = {}
    batch, symbol = 0, None
    for name in paired:
        first, second = np.asarray(positive[name]), np.asarray(negative[name])
        if first.ndim == 0 or first.shape != second.shape or (batch and len(first) != batch):
            return None
        batch = len(first)
        shape = ports[name].shape if name in ports else None
        symbol = shape[0] if shape else None
        joined[name] = np.concatenate([first, second])
    for name, value in inputs.items():
        if name not in joined:
            shape = ports[name].shape if name in ports else None
            is_batched = isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == batch
            if is_batched and shape and shape[0] == symbol and symbol is not None:
                value = np.concatenate([value, value])
            joined[name] = value
    return joined, batch


def _split(value: Any, batch: int) -> Any:
    """Return an output as a pair of its two halves; what does not have the joint batch belongs to both lanes."""
    if isinstance(value, np.ndarray) and value.ndim and len(value) == 2 * batch:
        return Pair(value[:batch], value[batch:])
    return Pair(value, value)
