"""What all loop nodes share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from app.graph.errors import InputError
from app.graph.node import NodeInstance, NodeType, Ports


class LoopBase:
    """Base of loop instances: they carry nothing from run to run."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def run(self, inputs: dict[str, Any], lane: int) -> Any:
        """Refuse: a loop is driven by `run_loop` and has no lanes of its own."""
        raise InputError("", found="a guidance pair", accepted="single values", fix="fold the pair before the loop")

    def reset(self) -> None:
        """Do nothing: a loop starts afresh on every run."""

    def close(self) -> None:
        """Do nothing: a loop holds nothing."""


def loop_type(
    *,
    name: str,
    display_name: str,
    instance: type[LoopBase],
    ports_of: Callable[[Mapping[str, Any]], Ports],
    check: Callable[[Mapping[str, Any]], None] | None = None,
    search_aliases: tuple[str, ...] = (),
    version: int = 1,
) -> NodeType:
    """Return the node type of a loop. instance: its class, with `run_loop`; its docstring becomes the help."""

    def prepare(context: Any, literals: Mapping[str, Any]) -> NodeInstance:
        return instance(context)

    return NodeType(
        name=name,
        display_name=display_name,
        category="loops",
        help=inspect.getdoc(instance) or "",
        version=version,
        ports=ports_of({}),
        prepare=prepare,
        is_loop=True,
        ports_of=ports_of,
        check=check,
        source=instance.__module__,
        search_aliases=search_aliases,
    )


def names_in(literals: Mapping[str, Any], input: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text input. Raises InputError when one is no name or stands twice."""
    text = literals.get(input) or ""
    if not isinstance(text, str):
        raise InputError(input, found=repr(text), accepted="names separated by commas", fix='write e.g. "x, y"')
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if not name.isidentifier() or names.count(name) > 1:
            found = f"{name!r}{' twice' if names.count(name) > 1 else ''}"
            raise InputError(input, found=found, accepted="distinct names of letters, digits and _", fix="rename it")
    return names
