"""What a node shows is checked where it shows it, so that its own run fails and no one who reads it later."""

from __future__ import annotations

import json
import os
from typing import Any

from app.engine.events import Event, Output, Preview
from app.worker.event_json import Roots, event_json

MAX_VALUE_BYTES = 16 << 20
MAX_VALUE_ITEMS = 1_000_000
MAX_DEPTH = 100


def check_event(event: Event, roots: Roots) -> None:
    """Raise TypeError or ValueError for an output or a preview that cannot be stored or drawn, and for what is none."""
    if isinstance(event, Output):
        _check_output(event, roots)
    elif isinstance(event, Preview):
        _check_preview(event)
    elif not isinstance(event, Event):
        raise TypeError(f"found {_named(event)} among the events, accepted Output and Preview; emit one of these")


def _check_output(output: Output, roots: Roots) -> None:
    _must_be("node", output.node, str)
    _must_be("type", output.type, str)
    _must_be("path", output.path, str | os.PathLike | None)
    _must_be("step", output.step, int | None)
    _check_depth(output.value)
    try:
        size = len(json.dumps(event_json(output, roots)))
    except ValueError as error:
        raise ValueError(f"found an output whose value is no JSON ({error}); send it as text") from error
    if size > MAX_VALUE_BYTES:
        accepted = f"at most {MAX_VALUE_BYTES >> 20} MiB"
        raise ValueError(f"found an output of {size >> 20} MiB, accepted {accepted}; write it to a file, send its path")


def _check_depth(value: Any) -> None:
    """Raise ValueError for what cannot be walked through: too deep, too much, or inside of itself."""
    waiting, items = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        items += len(item)
        if depth > MAX_DEPTH or items > MAX_VALUE_ITEMS:
            accepted = f"at most {MAX_DEPTH} levels and {MAX_VALUE_ITEMS} items"
            raise ValueError(f"found an output deeper or larger than accepted, {accepted}; send it flat, or as text")
        waiting += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]


def _check_preview(preview: Preview) -> None:
    _must_be("node", preview.node, str)
    _must_be("step", preview.step, int | None)
    image = preview.image
    shape, dtype = getattr(image, "shape", None), getattr(image, "dtype", None)
    if shape is None or len(shape) != 3 or shape[2] != 3 or 0 in shape or str(dtype) != "uint8":
        found = _named(image) if shape is None else f"{dtype} of shape {tuple(shape)}"
        raise TypeError(f"found a preview of {found}, accepted uint8 of shape (height, width, 3); convert it")


def _must_be(name: str, value: Any, accepted: Any) -> None:
    if not isinstance(value, accepted):
        names = getattr(accepted, "__name__", str(accepted))
        raise TypeError(f"found an event whose {name} is {_named(value)}, accepted {names}; give one")


def _named(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:60]
