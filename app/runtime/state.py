"""State pairs: which outputs of a component go into which of its inputs on the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.graph.errors import InputError
from app.runtime.model_file import ModelSignature, TensorPort
from app.runtime.tensors import numpy_dtype

_PAST = re.compile(r"past_key_values|past")
_PRESENT = re.compile(r"present_key_values|present")
_AFTER = ("n", "_n", "N", "_out", "_next", ".next", "Out", "_new")
_BEFORE = ("next", "new", "present")

_ACCEPTED = 'a list of {"input", "output", "init": "empty" or "zeros"} naming ports of the model'


@dataclass(frozen=True, slots=True)
class StatePair:
    """An output that feeds an input on the next step.

    index: position of the output among the model's. init: `empty` or `zeros`, what there is before the first step.
    """

    input: TensorPort
    output: TensorPort
    index: int
    init: str


def propose_state_pairs(signature: ModelSignature) -> list[dict[str, str]]:
    """Return the state pairs that the port names suggest, for a person to confirm; never used while running.

    `past...` pairs with the `present...` of the same ending; an input NAME pairs with an output NAMEn, NAME_out,
    NAME_next, NAME_new, next_NAME, new_NAME or present_NAME, always of the same dtype and rank. `init` is `zeros` when
    all dimensions besides the first are fixed, or named alike before and after and by another input, e.g. the batch of
    an LSTM; else the state grows. A `past...` with a free dimension always grows.
    """
    outputs = {port.name: port for port in signature.outputs}
    presents = {_PRESENT.sub("*", name.lower(), count=1): name for name in outputs if "present" in name.lower()}
    found: list[tuple[TensorPort, TensorPort]] = []
    for port in signature.inputs:
        if "past" in port.name.lower():
            partner = presents.get(_PAST.sub("*", port.name.lower(), count=1))
        else:
            names = (f"{port.name}{mark}" for mark in _AFTER)
            before = (f"{mark}_{port.name}" for mark in _BEFORE)
            partner = next((name for name in (*names, *before) if name in outputs), None)
        if partner is not None and _why_unlike(port, outputs[partner]) is None:
            found.append((port, outputs[partner]))
    carried = {port.name for port, _ in found}
    bound = {dim for port in signature.inputs if port.name not in carried for dim in port.shape or ()}
    return [{"input": port.name, "output": after.name, "init": _init(port, after, bound)} for port, after in found]


def _init(port: TensorPort, after: TensorPort, bound: set[int | str | None]) -> str:
    """Return the likely `init` of a pair. bound: dimensions of the inputs that are not carried."""
    dims = list(zip(port.shape or (), after.shape or port.shape or (), strict=True))[1:]
    free = [(dim, next_dim) for dim, next_dim in dims if not isinstance(dim, int)]
    is_fixed = all(dim is not None and dim == next_dim and dim in bound for dim, next_dim in free)
    return "zeros" if not free or (is_fixed and "past" not in port.name.lower()) else "empty"


def checked_pairs(state: Any, signature: ModelSignature) -> tuple[StatePair, ...]:
    """Return the declared pairs. Raises InputError for input `state`."""
    if not isinstance(state, list):
        raise InputError("state", found=repr(state), accepted=_ACCEPTED, fix="write it so")
    inputs = {port.name: port for port in signature.inputs}
    outputs = {port.name: (port, index) for index, port in enumerate(signature.outputs)}
    pairs: list[StatePair] = []
    for entry in state:
        if not isinstance(entry, dict):
            raise InputError("state", found=repr(entry), accepted=_ACCEPTED, fix="write it so")
        name = _known(entry.get("input"), inputs, "an input")
        output = _known(entry.get("output"), outputs, "an output")
        init = entry.get("init", "empty")
        if init not in ("empty", "zeros"):
            raise InputError("state", found=f"init {init!r}", accepted="empty or zeros", fix="use one of them")
        pair = StatePair(inputs[name], *outputs[output], init)
        reason = _why_unlike(pair.input, pair.output)
        if reason is not None:
            found = f"{output}, {pair.output}, for {name}, {pair.input}"
            fix = "pair ports that belong together"
            if pair.input.shape is None:
                fix = "export the model with shapes, as the first value is made from them"
            raise InputError("state", found=found, accepted=reason, fix=fix)
        if any(name == other.input.name or output == other.output.name for other in pairs):
            found = f"{name} and {output} again"
            raise InputError("state", found=found, accepted="distinct ports", fix="declare each port once")
        pairs.append(pair)
    return tuple(pairs)


def _known(name: Any, known: Mapping[str, Any], what: str) -> str:
    if not isinstance(name, str) or name not in known:
        fix = f"use one of {', '.join(sorted(known))}"
        raise InputError("state", found=repr(name), accepted=f"{what} of the model", fix=fix)
    return name


def _why_unlike(past: TensorPort, present: TensorPort) -> str | None:
    """Return None when `present` can be the next `past`, else what must hold."""
    if past.dtype != present.dtype or numpy_dtype(past.dtype) is None:
        return "two tensors of the same dtype"
    if past.shape is None:
        return "an input whose rank the file tells"
    if present.shape is None or len(past.shape) == len(present.shape):
        return None
    return "two tensors of the same rank"
