"""Values typed into the workflow, notes, and nodes that pass values on or show them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from app.engine.events import Output
from app.engine.lanes import Pair
from app.graph.node import Help, Out, Range, node

FIRST_VALUES = 8
"""How many elements of a tensor Show Value lists."""

MAX_SEED = 2**64 - 1


@node(category="values", name="Integer", search_aliases=("int", "number", "constant", "primitive"))
def integer(
    value: Annotated[int, Range(None, None, 1, help="The whole number")] = 0,
) -> Annotated[int, Out("value", "The number, for every input that is to share it")]:
    """Hold a whole number, so that several inputs can share it."""
    return value


@node(category="values", name="Float", search_aliases=("number", "constant", "primitive"))
def float_value(
    value: Annotated[float, Range(None, None, 0.01, help="The number")] = 0.0,
) -> Annotated[float, Out("value", "The number, for every input that is to share it")]:
    """Hold a number, so that several inputs can share it."""
    return value


@node(category="values", search_aliases=("bool", "switch", "toggle", "true", "false"))
def boolean(
    value: Annotated[bool, Help("On or off")] = False,
) -> Annotated[bool, Out("value", "True when it is on")]:
    """Hold a choice between yes and no."""
    return value


@node(category="values", name="List", search_aliases=("items", "array", "constant"))
def list_value(
    items: Annotated[list[Any], Help("The items, as JSON, e.g. [1, 2, 3]")],
) -> Annotated[list[Any], Out("items", "The same items")]:
    """Hold a list."""
    return items


@node(category="values", search_aliases=("random", "noise seed", "integer"))
def seed(
    value: Annotated[int, Range(0, MAX_SEED, 1, help="Equal seeds give equal results", widget="seed")] = 0,
) -> Annotated[int, Out("seed", "The seed, for every node that is to share it")]:
    """Hold a seed, so that several nodes draw from the same one."""
    return value


@node(category="values", search_aliases=("comment", "text", "markdown"))
def note(text: Annotated[str, Help("Anything a reader should know", widget="multiline")] = "") -> None:
    """Hold a remark for whoever reads the workflow; it takes no part in a run."""


@node(category="flow", search_aliases=("pass", "dot", "bend"))
def reroute(
    value: Annotated[Any, Help("Anything")],
) -> Annotated[Any, Out("value", "The same value")]:
    """Pass a value on unchanged: a bend in a wire."""
    return (value,)  # a bare tuple would pass as several outputs


@node(category="flow", search_aliases=("if", "switch", "select", "condition"))
def choose(
    condition: Annotated[bool, Help("Which of the two values is passed on")],
    if_true: Annotated[Any, Help("Passed on when the condition is true")],
    if_false: Annotated[Any, Help("Passed on when the condition is false")],
) -> Annotated[Any, Out("value", "One of the two values")]:
    """Pass on one of two values. Both are computed: it chooses between results, not between branches of work."""
    return (if_true if condition else if_false,)


@node(category="values", output_node=True, search_aliases=("print", "inspect", "debug", "display"))
def show_value(context: Any, value: Annotated[Any, Help("Anything; a tensor is summed up", pair="accept")]) -> None:
    """Show a value: numbers, text and lists as they are, a tensor as shape, dtype, range, mean and first elements."""
    context.emit(Output(context.node, "value", value=shown(value), step=context.step))


def shown(value: Any) -> Any:
    """Return a value as JSON-ready data.

    A tensor becomes {"shape", "dtype", "min", "max", "mean", "first"}; without elements only shape and dtype, and
    without range and mean when it holds text or complex numbers.
    A guidance pair becomes {"positive", "negative"}. NaN and the infinities, which JSON lacks, become text.
    """
    if isinstance(value, Pair):
        return {"positive": shown(value.positive), "negative": shown(value.negative)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _summary(value)
    if isinstance(value, dict):
        return {str(key): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _summary(tensor: np.ndarray[Any, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    if not tensor.size:
        return summary
    if tensor.dtype.kind in "OSUc":  # ONNX Runtime gives tensors of text as objects
        return summary | {"first": [str(item) for item in tensor.ravel()[:FIRST_VALUES]]}
    numbers = tensor if tensor.dtype.kind in "iub" else tensor.astype(np.float64)
    return summary | {
        "min": shown(numbers.min()),
        "max": shown(numbers.max()),
        "mean": shown(float(numbers.mean(dtype=np.float64))),
        "first": shown(numbers.ravel()[:FIRST_VALUES].tolist()),
    }
