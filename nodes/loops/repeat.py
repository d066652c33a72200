"""The Repeat Loop: a body run a number of times, along an axis or over a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.engine.loop import LoopDriver
from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import InputPort, OutputPort, Ports
from nodes.loops.loop_type import LoopBase, loop_type, names_in

MAX_COUNT = 1_000_000

_COUNT_HELP = "how many passes at most; 0 with a tensor or items: one for each of them"
_COLLECT_MODES = ("stack", "concatenate", "list")


def ports_of(literals: Mapping[str, Any]) -> Ports:
    """Return the ports of a Repeat Loop: those of its carried and collected values come from their names.

    Raises InputError when `carry` or `collect` is not a list of free names.
    """
    carry, collect = names_in(literals, "carry"), names_in(literals, "collect")
    inputs = [
        InputPort("count", socket.INT, _COUNT_HELP, False, 0, 0, MAX_COUNT, 1),
        InputPort("tensor", socket.TENSOR, "run once for each slice of this tensor along `axis`", False, pair="refuse"),
        InputPort("axis", socket.INT, "axis of `tensor` to walk along", False, 0, -8, 7, 1),
        InputPort("keep_axis", socket.BOOLEAN, "each slice keeps the axis, with length 1", False, True),
        InputPort("items", socket.LIST, "run once for each item of this list", False),
        InputPort(
            "stop",
            socket.BOOLEAN,
            "the loop ends after a pass that gives true here",
            False,
            role="feedback",
            pair="refuse",
        ),
        InputPort(
            "carry",
            socket.STRING,
            "names of values carried from pass to pass, separated by commas",
            False,
            "",
            literal_only=True,
        ),
        InputPort(
            "collect",
            socket.STRING,
            "names of values collected from every pass, separated by commas",
            False,
            "",
            literal_only=True,
        ),
        InputPort(
            "collect_mode",
            socket.STRING,
            "stack along a new axis, concatenate along one, or give a list",
            False,
            "stack",
            choices=_COLLECT_MODES,
        ),
        InputPort("collect_axis", socket.INT, "axis for stack and concatenate", False, 0, -8, 7, 1),
    ]
    inputs += [InputPort(name, socket.ANY, f"{name} before the first pass", pair="accept") for name in carry]
    inputs += [
        InputPort(f"next_{name}", socket.ANY, f"{name} for the next pass", role="feedback", pair="accept")
        for name in carry
    ]
    inputs += [
        InputPort(f"collect_{name}", socket.ANY, f"what to collect as {name}", role="feedback", pair="refuse")
        for name in collect
    ]
    _check_distinct([port.name for port in inputs])
    outputs = [
        OutputPort("index", socket.INT, "number of this pass, from 0", True),
        OutputPort("item", socket.ANY, "this pass's slice of `tensor` or element of `items`", True),
        *(OutputPort(name, socket.ANY, f"{name} as the last pass left it", True) for name in carry),
        OutputPort("passes", socket.INT, "how many passes were run"),
        *(OutputPort(f"final_{name}", socket.ANY, f"{name} after the last pass") for name in carry),
        *(OutputPort(f"collected_{name}", socket.ANY, f"{name} of all passes") for name in collect),
    ]
    return Ports(tuple(inputs), tuple(outputs))


def _check_distinct(names: list[str]) -> None:
    """Refuse carried or collected names that are taken by another input. Raises InputError."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        found = f"{', '.join(twice)}, taken by another input"
        raise InputError("carry", found=found, accepted="free names", fix="choose another name")


class RepeatLoop(LoopBase):
    """Run the body a number of times, once for each slice of a tensor, or once for each item of a list.

    `carry` names values that travel from pass to pass: wire the first into NAME, use the output NAME in the body and
    wire its successor into next_NAME; after the last pass it is final_NAME. `collect` names values that are
    gathered: wire them into collect_NAME and take collected_NAME afterwards.
    """

    def run_loop(self, loop: LoopDriver, inputs: dict[str, Any]) -> Sequence[Any]:
        """See LoopInstance. Raises InputError when the number of passes is not known or values cannot be joined."""
        carry, collect = names_in(inputs, "carry"), names_in(inputs, "collect")
        passes = _passes(inputs)
        carried = [inputs[name] for name in carry]
        collected: list[list[Any]] = [[] for _ in collect]
        index = 0
        while index < passes:
            loop.run_body([index, _item(inputs, index), *carried], index)
            carried = [loop.feedback(f"next_{name}") for name in carry]
            for values, name in zip(collected, collect, strict=True):
                values.append(loop.feedback(f"collect_{name}"))
            index += 1
            is_last = _is_true(loop.feedback("stop"))
            loop.step_done(index, index if is_last else passes)
            if is_last:
                break
        joined = [_join(values, name, inputs) for values, name in zip(collected, collect, strict=True)]
        return [index, *carried, *joined]


def _passes(inputs: Mapping[str, Any]) -> int:
    """Return how many passes there will be at most."""
    count, tensor, items = int(inputs["count"]), inputs.get("tensor"), inputs.get("items")
    if tensor is not None and items is not None:
        raise InputError("items", found="both a tensor and items", accepted="one of them", fix="unwire the other")
    if tensor is not None:
        axis = _axis(tensor, inputs["axis"])
        return _at_most(count, tensor.shape[axis], f"the length of axis {axis}")
    if items is not None:
        return _at_most(count, len(items), "the number of items")
    return count


def _at_most(count: int, available: int, what: str) -> int:
    if count > available:
        raise InputError("count", found=count, accepted=f"0 to {available}, {what}", fix="lower count, or set it to 0")
    return count or available


def _axis(tensor: Any, axis: int) -> int:
    if not -tensor.ndim <= axis < tensor.ndim:
        accepted = f"{-tensor.ndim} to {tensor.ndim - 1} for a tensor of shape {list(tensor.shape)}"
        raise InputError("axis", found=axis, accepted=accepted, fix="choose an axis that the tensor has")
    return axis % int(tensor.ndim)


def _item(inputs: Mapping[str, Any], index: int) -> Any:
    tensor, items = inputs.get("tensor"), inputs.get("items")
    if tensor is None:
        return None if items is None else items[index]
    axis = _axis(tensor, inputs["axis"])
    last = index + 1 if inputs["keep_axis"] else None
    where = slice(index, last) if last else index
    return tensor[(slice(None),) * axis + (where,)]


def _is_true(value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.size != 1:
        fix = "reduce it to one value first"
        raise InputError("stop", found=f"a tensor of shape {list(value.shape)}", accepted="one true or false", fix=fix)
    return bool(value)


def _join(values: list[Any], name: str, inputs: Mapping[str, Any]) -> Any:
    mode, axis = inputs["collect_mode"], int(inputs["collect_axis"])
    if mode == "list":
        return values
    if not values:
        fix = "set collect_mode to list, or run at least one pass"
        raise InputError("collect_mode", found=f"{mode} of nothing", accepted="at least one pass", fix=fix)
    arrays = [np.asarray(value) for value in values]
    try:
        return np.stack(arrays, axis) if mode == "stack" else np.concatenate(arrays, axis)
    except (ValueError, np.exceptions.AxisError) as error:
        shapes = sorted({str(list(array.shape)) for array in arrays})
        raise InputError(
            f"collect_{name}",
            found=f"values of shape {', '.join(shapes)} to {mode} along axis {axis}",
            accepted="values that can be joined so",
            fix="change collect_axis or collect_mode",
        ) from error


REPEAT_LOOP = loop_type(
    name="RepeatLoop",
    display_name="Repeat Loop",
    instance=RepeatLoop,
    ports_of=ports_of,
    search_aliases=("for", "while", "iterate", "map"),
)
