"""Nodes and schedulers of your own: Python files in a folder, or packages with an entry point `ortloom.nodes`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from app.graph.node import NodeType
from app.graph.registry import Registry

ENTRY_POINT_GROUP = "ortloom.nodes"


@dataclass(frozen=True, slots=True)
class ExtensionReport:
    """What came of one extension.

    error: empty, or one sentence on why it was skipped; traceback: the details for the log.
    """

    name: str
    node_types: tuple[str, ...] = ()
    error: str = ""
    traceback: str = ""


def load_extensions(
    registry: Registry, folder: Path, skip: Container[str] = (), before: Callable[[str], None] | None = None
) -> list[ExtensionReport]:
    """Register what the folder's files and packages and the installed entry points define; one report for each.

    A broken extension is reported and skipped as a whole; it never raises.
    skip: extensions that ended the process when they were last loaded. before: called before each is loaded.
    """
    reports = []
    for name, load in (*_in_folder(folder), *_installed()):
        if name in skip:
            reports.append(
                ExtensionReport(name, error="it ended the process while it was loaded; mend it or remove it")
            )
            continue
        if before is not None:
            before(name)
        reports.append(_load(registry, name, load))
    return reports


def node_types_in(module: ModuleType) -> list[NodeType]:
    """Return the node types a module holds, bare or as `node_type` of its functions, those it only imports left out."""
    found = []
    for value in list(vars(module).values()):
        node_type = value if isinstance(value, NodeType) else getattr(value, "node_type", None)
        if isinstance(node_type, NodeType) and _is_of(node_type.source, module.__name__):
            found.append(node_type)
    return found


def _is_of(source: str, module: str) -> bool:
    return source == module or source.startswith(f"{module}.")


def _in_folder(folder: Path) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        is_package = path.is_dir() and (path / "__init__.py").is_file()
        if path.name.startswith((".", "_")) or not (is_package or path.suffix == ".py"):
            continue
        yield path.name, lambda path=path, is_package=is_package: _import_file(path, is_package)  # type: ignore[misc]


def _import_file(path: Path, is_package: bool) -> ModuleType:
    """Import a file under a name of its own, so that it can shadow no other module."""
    mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    name = f"custom_nodes_{mark}_{path.stem.replace('.', '_').replace('-', '_')}"
    file = path / "__init__.py" if is_package else path
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if is_package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _installed() -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        yield entry.name, entry.load


def _load(registry: Registry, name: str, load: Callable[[], ModuleType]) -> ExtensionReport:
    try:
        module = load()
        node_types = [replace(node_type, source=f"{name}:{node_type.source}") for node_type in node_types_in(module)]
        taken = [node_type.name for node_type in node_types if registry.get(node_type.name) is not None]
        if taken:
            other = registry.get(taken[0])
            source = other.source if other else ""
            error = f"its node type {taken[0]} already comes from {source}; rename it"
            return ExtensionReport(name, error=error)
        for node_type in node_types:
            registry.add(node_type)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may do anything; it must not stop the program
        text = str(error).strip().splitlines()
        sentence = f"{type(error).__name__}: {text[0] if text else 'no reason given'}; mend it or remove it"
        return ExtensionReport(name, error=sentence, traceback=traceback.format_exc())
    if not node_types:
        return ExtensionReport(name, error="it defines no node type; decorate a function with app.graph.node.node")
    return ExtensionReport(name, tuple(node_type.name for node_type in node_types))
