"""The ONNX Component: one model file as a node, its ports read from the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.engine.cancel import RunCancelled
from app.engine.context import NodeContext
from app.engine.lanes import Pair
from app.folders import Folders
from app.graph import socket
from app.graph.node import InputPort, NodeInstance, NodeType, OutputPort, Ports
from app.graph.socket import SocketType
from app.runtime.carried import CarriedState, Feeds
from app.runtime.extended_types import EXTENDED, run_extended
from app.runtime.lanes import can_part, join, part
from app.runtime.model_file import ModelSignature, TensorPort, read_signature, stamp
from app.runtime.ort_errors import call_error, is_out_of_memory
from app.runtime.providers import DEVICES, onnxruntime
from app.runtime.sessions import SessionLease
from app.runtime.state import checked_pairs
from app.runtime.tensors import PortFeed, is_number, symbol_sizes

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
_TAKEN = re.compile(rf"(?:{re.escape(_PREFIX)})*(?:{'|'.join(map(re.escape, sorted(_OWN)))})")
"""Names that get the prefix. Those that look as if they had it get it again, so that no two ports share a name."""


def onnx_component(folders: Folders) -> NodeType:
    """Return the node type ONNXComponent, whose models are looked up in these folders."""

    def signature_of(literals: Mapping[str, Any]) -> ModelSignature:
        return read_signature(folders.model(literals.get("model", "")))

    def ports_of(literals: Mapping[str, Any]) -> Ports:
        if not literals.get("model"):
            return Ports(SETTINGS, ())
        signature = signature_of(literals)
        carried = {pair.input.name for pair in checked_pairs(literals.get("state", []), signature)}
        inputs = [port for port in signature.inputs if port.name not in carried]
        groups, output_groups = _groups(inputs), _groups(signature.outputs)
        return Ports(
            (*SETTINGS, *(_input_port(port, groups.get(port.name, "")) for port in inputs)),
            tuple(_output_port(port, output_groups.get(port.name, "")) for port in signature.outputs),
        )

    def fingerprint(literals: Mapping[str, Any]) -> str:
        return repr(stamp(folders.model(literals["model"])))

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


def _shown_name(name: str) -> str:
    return f"{_PREFIX}{name}" if _TAKEN.fullmatch(name) else name


def _input_port(port: TensorPort, group: str) -> InputPort:
    text = "has a value in the file, wire it to replace that" if port.has_default else "input of the model"
    return InputPort(_shown_name(port.name), _input_type(port), text, required=port.is_required, group=group)


def _output_port(port: TensorPort, group: str) -> OutputPort:
    return OutputPort(port.name, _socket_type(port), "output of the model", group=group)


def _input_type(port: TensorPort) -> SocketType:
    # A text may come as a STRING, a list or a tensor; `to_port` makes the tensor of it.
    return socket.ANY if port.dtype == "string" else _socket_type(port)


def _socket_type(port: TensorPort) -> SocketType:
    if port.dtype in ("sequence", "map", "optional", "sparse", "unknown"):
        return socket.ANY
    return SocketType("TENSOR", frozenset({port.dtype}), port.shape)


def _groups(ports: Sequence[TensorPort]) -> dict[str, str]:
    """Return the group of each port that has one.

    It is what comes before the number in names such as `past_key_values.3.key`, where several ports share that, and
    `defaults` for what has a value in the file.
    """
    found = {port.name: re.match(r"^(.+?)[._]\d+(?:[._]|$)", port.name) for port in ports if not port.has_default}
    group_by_name = {name: match[1] for name, match in found.items() if match}
    sizes = Counter(group_by_name.values())
    numbered = {name: group for name, group in group_by_name.items() if sizes[group] > 1}
    return numbered | {port.name: "defaults" for port in ports if port.has_default}


class Component:
    """An ONNX Component during one run. The session is leased on the first call and given back by `close`."""

    def __init__(self, context: NodeContext, literals: Mapping[str, Any], signature: ModelSignature) -> None:
        self._context = context
        self._path = context.folders.model(literals["model"])
        device = literals.get("device", "auto")
        self._device = context.device if device == "auto" else device
        self._is_batched = literals.get("lanes") == "batched" and can_part(signature.outputs)
        self._ports = {port.name: port for port in signature.inputs}
        self._port_feeds = {
            _shown_name(port.name): PortFeed(replace(port, name=_shown_name(port.name)), port.name)
            for port in signature.inputs
        }
        self._outputs = signature.outputs
        self._output_names = [port.name for port in signature.outputs]
        self._is_extended = any(port.dtype in EXTENDED for port in (*signature.inputs, *signature.outputs))
        pairs = checked_pairs(literals.get("state", []), signature)
        self._state = CarriedState(pairs, self._ports) if pairs else None
        self._carried = frozenset(_shown_name(pair.input.name) for pair in pairs)
        self._lease: SessionLease | None = None
        self._session: Any = None
        self._options: Any = None

    def reset(self) -> None:
        """Forget the carried state."""
        if self._state is not None:
            self._state.reset()

    def close(self) -> None:
        """Give the session back."""
        self.reset()
        self._session = None
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def run(self, inputs: dict[str, Any], lane: int) -> Sequence[Any]:
        """Run the model once; the state of each lane is its own. Raises InputError, MemoryError or RunCancelled."""
        feeds = self._feeds(inputs)
        state = self._state
        if state is None:
            return self._call(feeds)
        feeds.update(state.of(lane, feeds))
        outputs = self._call(feeds)
        state.keep(lane, outputs)
        return outputs

    def run_pair(self, inputs: dict[str, Any]) -> Sequence[Any]:
        """Run the model for both guidance lanes; returns pairs. Raises as `run` does."""
        paired = {name for name, value in inputs.items() if type(value) is Pair}
        positive = {name: value.positive if name in paired else value for name, value in inputs.items()}
        negative = {name: value.negative if name in paired else value for name, value in inputs.items()}
        if self._is_batched:
            outputs = self._run_joined(positive, negative, paired)
            if outputs is not None:
                return outputs
        lanes = zip(self.run(positive, 0), self.run(negative, 1), strict=True)
        return [Pair(*values) for values in lanes]

    def _run_joined(
        self, positive: dict[str, Any], negative: dict[str, Any], paired: set[str]
    ) -> Sequence[Pair] | None:
        """Run both lanes in one call; None when only two calls give the right result."""
        lanes = self._feeds(positive), self._feeds(negative)
        names = frozenset(self._port_feeds[name].name for name in paired if name in self._port_feeds)
        joined = join(*lanes, names, self._ports)
        if joined is None:
            return None
        feeds, batch = joined
        state = self._state
        if state is not None:
            carried = state.of_both(batch, lambda: lanes)
            if carried is None:
                return None
            feeds.update(carried)
        outputs = self._call(feeds, hint="set lanes to separate, as this model may not take both lanes in one batch")
        parted = part(outputs, batch)
        if parted is None:
            self._is_batched = False
            return None
        if state is not None:
            state.keep_both(batch, outputs)
        return [Pair(*halves) for halves in parted]

    def _open(self) -> Any:
        self._lease = self._context.sessions.lease(self._path, self._device)
        self._session = self._lease.session
        # One for the whole run: setting its flag ends the call that is running, whichever it is.
        options = self._options = onnxruntime().RunOptions()
        self._context.cancel.on_cancel(lambda: setattr(options, "terminate", True))
        return self._session

    def _feeds(self, inputs: dict[str, Any]) -> Feeds:
        """Return the values for the model's inputs; numbers last, as they take their size from the others."""
        feeds: Feeds = {}
        numbers: list[tuple[PortFeed, Any]] = []
        for name, value in inputs.items():
            feed = self._port_feeds.get(name)
            if feed is None or value is None:
                continue
            if feed.fits(value):
                feeds[feed.name] = value
            elif is_number(value):
                numbers.append((feed, value))
            else:
                feeds[feed.name] = feed.take(value, {})
        sizes: dict[str, int] | None = None
        for feed, value in numbers:
            if feed.has_symbols and sizes is None:
                sizes = symbol_sizes(feeds, self._ports)
            feeds[feed.name] = feed.take(value, sizes or {})
        return feeds

    def _call(self, feeds: Feeds, hint: str = "") -> list[Any]:
        session = self._session or self._open()
        try:
            return self._call_once(session, feeds)
        except Exception as error:
            if self._context.cancel.is_set:
                raise RunCancelled from error
            if not is_out_of_memory(error):
                raise call_error(self._path.name, error, feeds, self._shown_ports(), hint, self._carried) from error
            if not self._context.sessions.unload_all():
                raise MemoryError(f"{self._path.name} asked for more than there is") from error
        # With the idle sessions gone it may fit.
        try:
            return self._call_once(session, feeds)
        except Exception as error:
            if self._context.cancel.is_set:
                raise RunCancelled from error
            raise MemoryError(f"{self._path.name} asked for more than there is") from error

    def _call_once(self, session: Any, feeds: Feeds) -> list[Any]:
        if self._is_extended:
            return run_extended(session, self._outputs, feeds, self._options)
        outputs: list[Any] = session.run(self._output_names, feeds, self._options)
        return outputs

    def _shown_ports(self) -> dict[str, TensorPort]:
        return {_shown_name(name): port for name, port in self._ports.items()}
