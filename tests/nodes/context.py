"""What a node sees of a run, for nodes that are called by themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.folders import Folders


def context_in(folder: Path, step: int | None = None, document: dict[str, Any] | None = None) -> Any:
    """Return a context whose models, inputs and outputs are subfolders of a folder; it collects events in `shown`."""
    folders = Folders(models=(folder / "models",), inputs=(folder / "inputs",), output=folder / "output")
    for path in (*folders.models, *folders.inputs):
        path.mkdir(parents=True, exist_ok=True)
    shown: list[Any] = []
    return SimpleNamespace(
        node="7", title="", folders=folders, step=step, document=document or {}, shown=shown, emit=shown.append
    )
