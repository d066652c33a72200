"""Short hands for documents of topology tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Run: TypeAlias = Callable[..., list[Any]]


def component(model: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
    """Return an ONNX Component of one of the tiny models."""
    return "ONNXComponent", {"model": f"{model}.onnx", **inputs}
