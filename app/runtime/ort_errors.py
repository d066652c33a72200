"""What ONNX Runtime says when it fails, turned into sentences for people."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.graph.errors import InputError
from app.runtime.model_file import TensorPort

_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LOADING = re.compile(r"^(Load model from .*? failed:|Exception during initialization: )")
_NODE = re.compile(r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: ")
_SOURCE_LINE = r"(?:\S*/)?\w+\.(?:cc|cpp|cu|h|hpp):\d+ "
_CPP_SIGNATURE = r"[^()]*?\w::[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? "
_CPP_NAME = r"[A-Z]\w+ (?=[A-Z])"
_CPP_PLACE = re.compile(f"{_SOURCE_LINE}(?:{_CPP_SIGNATURE}|{_CPP_NAME})?")
_IN_NODE = re.compile(r"^This is an invalid model\. In Node, .*, Error ")

_OUT_OF_MEMORY = ("bad_alloc", "failed to allocate", "out of memory", "available memory of")

_LOAD_ERRORS = (
    ("external", "external_data_broken", "copy its weights file beside it again, whole"),
    ("no op registered", "unknown_op", "update onnxruntime, or export with a lower opset"),
    ("is not a registered function/op", "unknown_op", "update onnxruntime, or export with a lower opset"),
    ("no opset import for domain", "unknown_op", "export it with standard operators only"),
    ("could not find an implementation", "unknown_op", "choose another device, or convert the model to float32"),
    ("opset", "unknown_opset", "update onnxruntime, or export with a lower opset"),
    ("ir version", "unknown_opset", "update onnxruntime, or export with a lower IR version"),
)
"""Part of the text, error code, what to do; the first that fits counts."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _OUT_OF_MEMORY)


def shortened(error: BaseException, limit: int = 200) -> str:
    """Return ONNX Runtime's words, short enough for a sentence, without status prefix and places in its C++ source."""
    text = " ".join(str(error)[:4000].split())
    text = _STATUS.sub("", text)
    text = _LOADING.sub("", text)
    text = _NODE.sub(lambda node: f"{node[1]} node{f' {node[2]!r}' if node[2] else ''}: ", text)
    text = _CPP_PLACE.sub("", text)
    text = _IN_NODE.sub("", text).strip(" .")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def load_error(path: Path, error: BaseException) -> InputError:
    """Return the error that a user sees when a model cannot be loaded."""
    if is_out_of_memory(error):
        found = f"{path.name}, which needs more memory than there is"
        fix = "close other programs, choose another device, or use a smaller model"
        return InputError("model", found=found, accepted="a model that fits", fix=fix, code="out_of_memory")
    text = shortened(error)
    code, fix = "model_broken", "copy it again or export it again"
    for mark, found_code, found_fix in _LOAD_ERRORS:
        if mark in text.lower():
            code, fix = found_code, found_fix
            break
    found = f"{path.name}, which ONNX Runtime cannot load ({text})"
    return InputError("model", found=found, accepted="a model that it can", fix=fix, code=code)


def call_error(
    model: str,
    error: BaseException,
    feeds: Mapping[str, Any],
    ports: Mapping[str, TensorPort],
    hint: str = "",
    carried: Collection[str] = (),
) -> InputError:
    """Return the error that a user sees when a call of a loaded model fails.

    ports: the model's inputs by the names that the user knows them by. feeds: by the model's own names.
    hint: what else to do. carried: names of inputs that carry state, which no one can wire.
    """
    for name, port in ports.items():
        if port.is_required and port.name not in feeds:
            fix = "wire it or set a value"
            return InputError(name, found="nothing", accepted=str(port), fix=fix, code="required_input_missing")
    clash = _clash(feeds, ports, carried)
    if clash is not None:
        return clash
    shapes = ", ".join(f"{name} {_shown(value)}" for name, value in feeds.items())
    found = f"{shapes}, on which {model} fails ({shortened(error)})"
    fix = hint or "check that the shapes belong to this model"
    return InputError("", found=found, accepted="inputs that it can compute", fix=fix, code="model_failed")


def _clash(feeds: Mapping[str, Any], ports: Mapping[str, TensorPort], carried: Collection[str]) -> InputError | None:
    """Return the error for two inputs that give one symbolic dimension two sizes, or None."""
    first: dict[str, tuple[int, str]] = {}
    for name, port in ports.items():
        value = feeds.get(port.name)
        for dim, size in zip(port.shape or (), getattr(value, "shape", ()), strict=False):
            if isinstance(dim, str) and first.setdefault(dim, (size, name))[0] != size:
                other_size, other = first[dim]
                accepted = f"{port} with {dim} = {other_size} as in {other}"
                fix = f"make {dim} the same in both"
                state = next((port for port in (name, other) if port in carried), "")
                if state:
                    fix += f" on every step, or set init of {state} to zeros if it does not grow"
                    found = f"{_shown(value)} for {name}"
                    return InputError("state", found=found, accepted=accepted, fix=fix, code="misfit")
                return InputError(name, found=_shown(value), accepted=accepted, fix=fix, code="misfit")
    return None


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
