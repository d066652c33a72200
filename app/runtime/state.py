"""State that a component carries from its outputs to its inputs: key-value caches, recurrent state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from app.runtime.model_file import ModelSignature, TensorPort
from app.runtime.tensors import numpy_dtype

_PREFIX = re.compile(r"^(past_key_values|present_key_values|past|present)[._]")


def propose_state_pairs(signature: ModelSignature) -> list[dict[str, str]]:
    """Return the state pairs that the port names suggest, for a person to confirm; never used while running.

    `past...` pairs with the `present...` of the same ending; an input NAME pairs with an output NAMEn, NAME_out,
    NAME_next, NAME_new, next_NAME or new_NAME of the same dtype and rank.
    """
    outputs = {port.name: port for port in signature.outputs}
    presents = {_PREFIX.sub("", name): name for name in outputs if name.startswith("present")}
    pairs = []
    for port in signature.inputs:
        partner = None
        if port.name.startswith("past"):
            partner = presents.get(_PREFIX.sub("", port.name))
        else:
            names = (f"{port.name}{mark}" for mark in ("n", "_n", "N", "_out", "_next", ".next", "Out", "_new"))
            before = (f"{mark}_{port.name}" for mark in ("next", "new", "present"))
            partner = next((name for name in (*names, *before) if name in outputs), None)
        if partner is not None and _alike(port, outputs[partner]):
            init = "empty" if any(not isinstance(dim, int) for dim in (port.shape or ())[1:]) else "zeros"
            pairs.append({"input": port.name, "output": partner, "init": init})
    return pairs


def _alike(port: TensorPort, other: TensorPort) -> bool:
    ranks = (port.shape is None, other.shape is None)
    return port.dtype == other.dtype and (any(ranks) or len(port.shape or ()) == len(other.shape or ()))


def checked_pairs(state: Any, signature: ModelSignature) -> list[tuple[str, str, str]]:
    """Return the declared pairs as (input, output, init). Raises InputError for input `state`."""
    accepted = 'a list of {"input", "output", "init": "empty" or "zeros"} naming ports of the model'
    if not isinstance(state, list):
        raise InputError("state", found=repr(state), accepted=accepted, fix="write it so")
    inputs = {port.name for port in signature.inputs}
    outputs = {port.name for port in signature.outputs}
    pairs: list[tuple[str, str, str]] = []
    for entry in state:
        if not isinstance(entry, dict):
            raise InputError("state", found=repr(entry), accepted=accepted, fix="write it so")
        name, output, init = entry.get("input"), entry.get("output"), entry.get("init", "empty")
        for what, known in ((name, inputs), (output, outputs)):
            if what not in known:
                fix = f"use one of {', '.join(sorted(known))}"
                raise InputError("state", found=repr(what), accepted="a port of the model", fix=fix)
        if init not in ("empty", "zeros"):
            raise InputError("state", found=f"init {init!r}", accepted="empty or zeros", fix="use one of them")
        if any(name == pair[0] or output == pair[1] for pair in pairs):
            fix = "declare each port once"
            raise InputError("state", found=f"{name} and {output} again", accepted="distinct ports", fix=fix)
        pairs.append((str(name), str(output), init))
    return pairs


def first_state(port: TensorPort, init: str, sizes: Mapping[str, int]) -> Array:
    """Return the state before the first step: zeros; for `empty`, growing dimensions have length 0.

    A symbolic dimension takes the size that another input of the call binds; else axis 0 is 1 and, for `empty`, the
    others are 0. Raises InputError when a dimension of a `zeros` state is not known.
    """
    shape = []
    for axis, dim in enumerate(port.shape or ()):
        if isinstance(dim, int):
            shape.append(dim)
        elif isinstance(dim, str) and dim in sizes and (axis == 0 or init == "zeros"):
            shape.append(sizes[dim])
        elif axis == 0:
            shape.append(1)
        elif init == "empty":
            shape.append(0)
        else:
            found = f"axis {axis} of {port.name} ({dim or 'unnamed'}) without a size"
            fix = "set init to empty if it grows, or wire an input that has this dimension"
            raise InputError("state", found=found, accepted="known dimensions for zeros", fix=fix)
    return np.zeros(shape, numpy_dtype(port.dtype) or np.float32)
