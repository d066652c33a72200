"""Routes of the model folders: packages and what is in them, signatures of models, what a workflow lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any

from aiohttp import web

from app.folders import BUNDLED_MODELS, Folders
from app.graph.comfy import read_any
from app.graph.document import Workflow, literal_of
from app.graph.errors import InputError
from app.graph.registry import Registry
from app.runtime.model_facts import model_facts
from app.runtime.model_file import read_signature
from app.server.body import read_object
from app.server.client_paths import inside
from app.server.errors import ApiError
from app.server.file_tree import MAX_ENTRIES, FoundFile, files_below
from app.server.keys import NODES, SETTINGS

routes = web.RouteTableDef()

MAX_SUGGESTIONS = 100
"""Unknown node types that get a sentence with near names: to search for those takes a while."""

_NOTEWORTHY = frozenset({".json", ".jinja", ".onnx_data", ".data", ".pb"})
"""Suffixes of configurations and of weights beside a model."""
_NOTEWORTHY_NAMES = frozenset({"merges.txt", "vocab.txt", "tokenizer.model"})


@routes.get("/api/packages")
async def list_packages(request: web.Request) -> web.Response:
    """List the folders that hold models, as they are or were a second ago.

    200 {"packages": [{name, folder, models: [{name, bytes, modified}], files: [the same]}], "is_cut"}: names are
    relative to the model folder, as workflows write them; is_cut tells that there are more files than are looked at.
    """
    roots = request.app[SETTINGS].folders.models
    packages, is_cut = await asyncio.to_thread(_packages, roots, int(monotonic()))
    return web.json_response({"packages": packages, "is_cut": is_cut})


@routes.get("/api/packages/signature")
async def model_signature(request: web.Request) -> web.Response:
    """Tell what the model `?model=NAME` takes and gives.

    200 {inputs, outputs, proposed_state, opsets, ir_version, producer, metadata, weight_bytes, ops}; 400 bad name;
    404 no such file; 422 it is no model, damaged or without its weights.
    """
    roots = request.app[SETTINGS].folders.models
    facts = await asyncio.to_thread(_signature, roots, request.query.get("model", ""))
    return web.json_response(facts)


@routes.post("/api/packages/missing")
async def list_missing(request: web.Request) -> web.Response:
    """List what the workflow in {"document"} names and this server does not have.

    200 {"models": [{node, input, name}], "files": [{node, input, name, kind}], "node_types": [{node, class_type,
    sentence}]}; kind: tokenizer or image; 400 not JSON; 422 no workflow.
    """
    workflow = read_any((await read_object(request)).get("document"))
    registry = await request.app[NODES].registry()
    return web.json_response(await asyncio.to_thread(_missing, workflow, registry, request.app[SETTINGS].folders))


@lru_cache(maxsize=2)
def _packages(roots: Sequence[Path], second: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the packages in all model folders and whether files were left out. second: read once in each."""
    packages: list[dict[str, Any]] = []
    is_cut = False
    left = MAX_ENTRIES
    for root, label in zip(roots, _labels(roots), strict=True):
        files, is_root_cut = files_below(root, left)
        is_cut |= is_root_cut
        left -= len(files)
        packages += [_package(name, label, found) for name, found in _grouped(files).items()]
    return packages, is_cut


def _labels(roots: Iterable[Path]) -> list[str]:
    """Return a name for each folder, no two alike, as clients must not see where on the disk it is."""
    labels: list[str] = []
    for root in roots:
        name = "bundled" if root == BUNDLED_MODELS else root.name
        same = sum(label == name or label.startswith(f"{name} (") for label in labels)
        labels.append(f"{name} ({same + 1})" if same else name)
    return labels


def _grouped(files: Iterable[FoundFile]) -> dict[str, list[FoundFile]]:
    """Return the files of each package: the uppermost folder with models right in it or one level below.

    Models right in the model folder make a package named `.`, without what is in its subfolders.
    """
    files = list(files)
    folders = {
        folder
        for file in files
        if file.name.endswith(".onnx")
        for folder in list(PurePosixPath(file.name).parents)[:2]
        if folder != PurePosixPath()
    }
    groups: dict[str, list[FoundFile]] = {}
    for file in files:
        parents = list(PurePosixPath(file.name).parents)
        package = next((folder for folder in reversed(parents) if folder in folders), None)
        if package is not None or len(parents) == 1:
            groups.setdefault(str(package or "."), []).append(file)
    return {name: found for name, found in groups.items() if any(file.name.endswith(".onnx") for file in found)}


def _package(name: str, folder: str, files: Iterable[FoundFile]) -> dict[str, Any]:
    models, others = [], []
    for file in files:
        path = PurePosixPath(file.name)
        entry = {"name": file.name, "bytes": file.bytes, "modified": file.modified_ns / 1e9}
        if path.suffix == ".onnx":
            models.append(entry)
        elif path.suffix in _NOTEWORTHY or path.name in _NOTEWORTHY_NAMES:
            others.append(entry)
    return {"name": name, "folder": folder, "models": models, "files": others}


def _signature(roots: Iterable[Path], name: str) -> dict[str, Any]:
    """Return the facts about a model. Raises ApiError 400 or 404, and InputError."""
    if not name:
        raise ApiError(400, "found no ?model=, accepted the name of a model; GET /api/packages lists them", "no_model")
    path = next((path for root in roots if (path := inside(root, name)).is_file()), None)
    if path is None:
        message = f"found no model file {name!r} in the model folders; GET /api/packages lists those there are"
        raise ApiError(404, message, "file_missing")
    return model_facts(read_signature(path))


def _missing(workflow: Workflow, registry: Registry, folders: Folders) -> dict[str, Any]:
    """Return the models, files and node types that a workflow names and that are not here."""
    finders = {"model": folders.model, "tokenizer": folders.model, "image": folders.input}
    models, files = [], []
    is_here: dict[tuple[str, str], bool] = {}
    for entry, kind in _named_files(workflow, registry):
        key = (kind, entry["name"])
        if key not in is_here:
            is_here[key] = _is_here(finders[kind], entry["name"], may_be_folder=kind == "tokenizer")
        if is_here[key]:
            continue
        if kind == "model":
            models.append(entry)
        else:
            files.append({**entry, "kind": kind})
    return {"models": models, "files": files, "node_types": _unknown(workflow, registry)}


def _named_files(workflow: Workflow, registry: Registry) -> Iterator[tuple[dict[str, str], str]]:
    """Yield node, input and name of every file that a workflow names, and its kind."""
    for node in workflow.nodes.values():
        node_type = registry.get(node.class_type)
        for port in node_type.ports.inputs if node_type else ():
            name = literal_of(node.inputs.get(port.name, port.default))
            if port.widget in ("model", "tokenizer", "image") and isinstance(name, str) and name:
                yield {"node": node.id, "input": port.name, "name": name}, port.widget


def _is_here(find: Callable[[str], Path], name: str, may_be_folder: bool) -> bool:
    try:
        path = find(name)
    except (InputError, ValueError):  # ValueError: half a character, which no file name can hold
        return False
    return may_be_folder or path.is_file()


def _unknown(workflow: Workflow, registry: Registry) -> list[dict[str, str]]:
    """Return every node of an unknown type."""
    sentences: dict[str, str] = {}
    unknown = [node for node in workflow.nodes.values() if registry.get(node.class_type) is None]
    for node in unknown:
        name = node.class_type
        if name not in sentences:
            is_searched = len(sentences) < MAX_SUGGESTIONS
            sentences[name] = registry.unknown(name) if is_searched else f"node type {name!r} is not registered"
    return [
        {"node": node.id, "class_type": node.class_type, "sentence": sentences[node.class_type]} for node in unknown
    ]
