"""Results of nodes in the shape of ComfyUI's history: by node, lists of files and texts under the kind's plural."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

_PLURAL = {"image": "images", "preview": "images", "audio": "audio", "video": "gifs", "text": "text"}


def ui_outputs(outputs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Return {node id: {"images": [{"filename", "subfolder", "type"}], "text": [...], ...}}.

    outputs: entries with node, type, and folder and path or value. A text that was saved too shows both; a value that
    is no text is shown as its JSON.
    """
    shown: dict[str, dict[str, list[Any]]] = {}
    for output in outputs:
        node = shown.setdefault(output["node"], {})
        kind = output["type"]
        if output.get("path") is not None:
            key = "files" if kind == "text" else _PLURAL.get(kind, "files")
            node.setdefault(key, []).append(file_item(output["folder"], output["path"]))
        value = output.get("value")
        if value is not None:
            node.setdefault("text", []).append(value if isinstance(value, str) else json.dumps(value))
    return shown


def file_item(folder: str, path: str) -> dict[str, str]:
    """Return a file as `/view` takes it."""
    parts = PurePosixPath(path)
    subfolder = "" if parts.parent == PurePosixPath() else parts.parent.as_posix()
    return {"filename": parts.name, "subfolder": subfolder, "type": folder}
