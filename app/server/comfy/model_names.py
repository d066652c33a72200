"""Names of the files that workflows may use, as they are written in workflows: relative to the folder searched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.folders import Folders
from app.server.comfy.input_config import FileNames

MAX_NAMES = 2_000
"""Most names of one kind that are listed."""

_MAX_ENTRIES = 20_000
"""Most files and folders that are looked at below one folder, so that a whole disk given as one ends too."""

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


def file_names(folders: Folders) -> FileNames:
    """Return the pictures, models and tokenizers in the folders. Reads folders: call it off the event loop."""
    models, tokenizers = set[str](), set[str]()
    for name in _names(folders.models):
        if name.endswith(".onnx"):
            models.add(name)
        elif name.endswith("tokenizer.json"):
            tokenizers.add(name)
        elif name.endswith("/merges.txt"):
            tokenizers.add(name.removesuffix("/merges.txt"))
    images = {name for name in _names(folders.inputs) if Path(name).suffix.lower() in _PICTURES}
    return FileNames(_bounded(images), _bounded(models), _bounded(tokenizers))


def model_folders(folders: Folders) -> dict[str, list[Path]]:
    """Return the folders right inside the model folders by name, in the order in which they are searched."""
    found: dict[str, list[Path]] = {}
    for root in folders.models:
        for entry in _entries(root):
            if entry.is_dir() and not entry.name.startswith("."):
                found.setdefault(entry.name, []).append(Path(entry.path))
    return dict(sorted(found.items()))


def models_in(paths: Iterable[Path]) -> list[str]:
    """Return the models below some folders, relative to them, sorted."""
    return list(_bounded({name for name in _names(paths) if name.endswith(".onnx")}))


def newest_files(folder: Path) -> list[str]:
    """Return the names of the files right inside a folder, newest first."""
    aged = []
    for entry in _entries(folder):
        try:
            if entry.is_file() and not entry.name.startswith("."):
                aged.append((-entry.stat().st_mtime_ns, entry.name))
        except OSError:  # it went away meanwhile
            continue
    return [name for _, name in sorted(aged)[:MAX_NAMES]]


def _bounded(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names)[:MAX_NAMES])


def _names(roots: Iterable[Path]) -> Iterator[str]:
    """Yield the files below the roots, relative, with / between; links that lead out of a root are left out."""
    for root in roots:
        inside = root.resolve()
        left = _MAX_ENTRIES
        work = [root]
        while work and left > 0:
            for entry in _entries(work.pop()):
                left -= 1
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    work.append(Path(entry.path))
                elif not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(inside):
                    yield Path(entry.path).relative_to(root).as_posix()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
