"""What is wrong with a node, in the words and shape of ComfyUI's validation errors."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from app.graph.document import link_of
from app.graph.errors import Problem
from app.graph.node import InputPort
from app.graph.socket import SocketType
from app.server.comfy.input_config import input_config, number

MAX_LISTED = 20
"""Choices that an error repeats; of a longer list it tells only the length."""

_MAX_TEXT = 500
_FOLDER = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\\/\s'\",;]+[\\/])+")


class Fault(NamedTuple):
    """One error of a node. type: empty for an exception, whose type and message depend on where it was met."""

    input: str
    type: str
    message: str
    details: str
    extra_info: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the error as clients read it."""
        return {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": self.extra_info,
        }


def missing_input(name: str) -> Fault:
    """Return the fault of an input that is neither set nor wired."""
    return Fault(name, "required_input_missing", "Required input is missing", name, {"input_name": name})


def bad_link(port: InputPort, value: Any) -> Fault:
    """Return the fault of a list that is no link, at an input that takes no lists."""
    message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
    return Fault(port.name, "bad_linked_input", message, port.name, _received(port, value))


def not_converted(port: InputPort, value: Any, reason: str) -> Fault:
    """Return the fault of a value that is not of its input's type. reason: the exception's text, or a sentence."""
    message = f"Failed to convert an input value to a {port.type.kind} value"
    extra_info = {**_received(port, value), "exception_message": shortened(reason)}
    details = f"{port.name}, {shortened(str(value))}, {shortened(reason)}"
    return Fault(port.name, "invalid_input_type", message, details, extra_info)


def not_listed(port: InputPort, value: Any) -> Fault:
    """Return the fault of a value that is not one of its input's choices."""
    is_long = len(port.choices) > MAX_LISTED
    listed = f"(list of length {len(port.choices)})" if is_long else str(list(port.choices))
    extra_info = _received(port, value) | ({"input_config": None} if is_long else {})
    details = f"{port.name}: '{shortened(str(value))}' not in {listed}"
    return Fault(port.name, "value_not_in_list", "Value not in list", details, extra_info)


def no_such_file(port: InputPort, value: Any) -> Fault:
    """Return the fault of a file name that leads to no file; the list of files is not repeated."""
    details = f"{port.name}: '{shortened(str(value))}' not in the folders of this server"
    return Fault(
        port.name, "value_not_in_list", "Value not in list", details, _received(port, value) | {"input_config": None}
    )


def mismatch(port: InputPort, value: Any, received: SocketType, sentence: str) -> Fault:
    """Return the fault of a wire between types that do not fit. sentence: our own, told where both have one name."""
    is_subtle = received.kind == port.type.kind
    details = f"{port.name}, received_type({received}) mismatch input_type({port.type})"
    return Fault(
        port.name,
        "return_type_mismatch",
        "Return type mismatch between linked nodes",
        f"{details}: {sentence}" if is_subtle else details,
        {
            "input_name": port.name,
            "input_config": input_config(port),
            "received_type": received.kind,
            "linked_node": value,
        },
    )


def refused(name: str, sentence: str) -> Fault:
    """Return the fault of anything that ComfyUI has no word for."""
    text = without_folders(shortened(sentence))
    details = f"{name} - {text}" if name else text
    return Fault(name, "custom_validation_failed", "Custom validation failed for node", details, {"input_name": name})


def circle(node_id: str, nodes: list[str], details: str) -> Fault:
    """Return the fault of a node that stands in a circle of wires which cannot run. nodes: ids of the circle."""
    extra_info = {"node_id": node_id, "cycle_nodes": nodes}
    return Fault("", "dependency_cycle", "Dependency cycle detected", details, extra_info)


def exception(name: str, exception_type: str, details: str) -> Fault:
    """Return the fault of what makes ComfyUI raise a Python exception of that type."""
    return Fault(name, "", "", shortened(details), {"exception_type": exception_type, "traceback": []})


def out_of_range(port: InputPort, value: Any, sentence: str) -> Fault:
    """Return the fault of a number beyond its input's bounds, or that is not finite."""
    low, high = number(port.minimum, port), number(port.maximum, port)
    if low is not None and value < low:
        kind, message = "value_smaller_than_min", f"Value {value} smaller than min of {low}"
    elif high is not None and value > high:
        kind, message = "value_bigger_than_max", f"Value {value} bigger than max of {high}"
    else:
        return not_converted(port, value, sentence)
    return Fault(port.name, kind, message, port.name, _received(port, value))


def fault_of(problem: Problem, port: InputPort | None, value: Any, received: SocketType | None) -> Fault:
    """Return a problem of our own validation as the nearest of ComfyUI's errors.

    port, value: the input and what is set there. received: type of the output that is wired to it, if there is one.
    """
    link = link_of(value)
    if port is None:
        return refused(problem.input, problem.message)
    if problem.code == "required_input_missing":
        return missing_input(port.name)
    if problem.code == "file_missing":
        return no_such_file(port, value)
    if link is not None:
        if problem.code == "link_to_missing_node":
            return exception(port.name, "KeyError", repr(link.node))
        if problem.code == "link_to_missing_output":
            is_slot = isinstance(link.output, int)
            details = "tuple index out of range" if is_slot else problem.message
            return exception(port.name, "IndexError" if is_slot else "KeyError", details)
        if problem.code == "type_mismatch" and received is not None:
            return mismatch(port, value, received, problem.message)
    elif problem.code == "out_of_range":
        return out_of_range(port, value, problem.message)
    elif problem.code == "not_in_choices" or (problem.code == "wrong_type" and port.choices):
        return not_listed(port, value)
    elif problem.code == "wrong_type":
        return not_converted(port, value, problem.message)
    return refused(port.name, problem.message)


def shortened(text: str) -> str:
    """Return a text of bounded length."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def without_folders(text: str) -> str:
    """Return a sentence with absolute paths cut down to their last name: a client need not know the server's disk."""
    return _FOLDER.sub("", text)


def sendable(value: Any) -> Any:
    """Return a value as it can be sent: JSON has no NaN and no infinity, they become text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return shortened(str(value))
    return value


def _received(port: InputPort, value: Any) -> dict[str, Any]:
    return {"input_name": port.name, "input_config": input_config(port), "received_value": sendable(value)}
