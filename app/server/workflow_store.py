"""Saved workflows: JSON files below one folder, saved under optimistic locking, and the bundled templates."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

from app.folders import BUNDLED_WORKFLOWS
from app.graph.comfy import read_any
from app.graph.document import MAX_BYTES, Workflow, decode
from app.graph.errors import WorkflowError
from app.server.client_paths import inside
from app.server.errors import ApiError
from app.server.file_tree import FoundFile, files_below
from app.server.user_files import changing, write_whole

ANY = "*"
"""The version that stands for whatever is there."""

MAX_LISTED = 5_000
MAX_LOOKED_INTO_BYTES = 2 << 20
"""Larger files are listed without title and number of nodes: to read one would hold up every other thread."""
LOOK_S = 2.0
"""How long one listing may look into files that it has not seen before; the rest waits for the next listing."""

_SUFFIX = ".json"


class Conflict(ApiError):
    """The workflow is not as the client believes. version: what it is now, None when there is none of that name."""

    def __init__(self, message: str, version: str | None) -> None:
        super().__init__(409, message, "conflict")
        self.version = version


@dataclass(frozen=True, slots=True)
class WorkflowStore:
    """The saved workflows below a folder. A name is the file's path there, with / between and without `.json`.

    All methods block. All raise ApiError: 400 or 403 for a name that is no good, 404 for a missing workflow, 507 when
    the system does not let the folder be written to, which leaves what was there as it was. A version is a hash of
    the file's bytes, so that changes from outside are noticed too.
    """

    folder: Path

    def listing(self) -> tuple[list[dict[str, Any]], bool]:
        """Return what is known of each workflow, and whether some were left out.

        modified: seconds since 1970. title, node_count: None when unknown. error: why a file is no workflow, else None.
        """
        files, is_cut = files_below(self.folder)
        files = [file for file in files if file.name.endswith(_SUFFIX)]
        end = monotonic() + LOOK_S
        entries = [_entry(file, monotonic() < end) for file in files[:MAX_LISTED]]
        return entries, is_cut or len(files) > MAX_LISTED

    def read(self, name: str) -> tuple[dict[str, Any], str]:
        """Return a workflow's document exactly as it is stored, and its version. Raises WorkflowError when broken."""
        data = _bytes(self._path(name), name)
        if data is None:
            raise self._missing(name)
        document = decode(data)
        if not isinstance(document, dict):
            message = f"found JSON in {name!r} that is no object, accepted a workflow; save it again or delete it"
            raise WorkflowError.of(message, "shape")
        return document, version_of(data)

    def document(self, name: str) -> dict[str, Any]:
        """Return a saved workflow, or else the template of that name. Raises WorkflowError when it is broken."""
        if not self._path(name).is_file() and name in _templates():
            return read_template(name)
        return self.read(name)[0]

    def save(self, name: str, document: Any, expected: str | None) -> tuple[str, bool]:
        """Store a document; return its version and whether the name is new. Unknown keys and node types are kept.

        expected: the version that it replaces, None when there must be none yet, `ANY` for whatever there is.
        Raises WorkflowError for what is no workflow, Conflict when another version is there.
        """
        Workflow.parse(document)
        data = encode(document, indent=2)
        if len(data) > MAX_BYTES:
            message = f"found {len(data) >> 20} MiB, accepted at most {MAX_BYTES >> 20} MiB; make the workflow smaller"
            raise ApiError(413, message, "too_large")
        path = self._path(name)
        with changing(name):
            is_new = not _expect(path, name, expected)
            write_whole(path, data)
        return version_of(data), is_new

    def rename(self, name: str, to: str, expected: str | None = ANY) -> str:
        """Give a workflow another name; return its version. Raises Conflict when that is taken."""
        source, target = self._path(name), self._path(to)
        with changing(to):
            if not source.is_file():
                raise self._missing(name)
            _expect(source, name, expected)
            # On file systems that do not tell cases apart, the new name may be the old file.
            if not (target.exists() and target.samefile(source)):
                _expect(target, to, None)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
            return version_of(target.read_bytes())

    def duplicate(self, name: str, to: str) -> str:
        """Store a copy under another name; return its version. Raises Conflict when that is taken."""
        path = self._path(to)
        with changing(to):
            data = _bytes(self._path(name), name)
            if data is None:
                raise self._missing(name)
            _expect(path, to, None)
            write_whole(path, data)
        return version_of(data)

    def delete(self, name: str, expected: str | None) -> None:
        """Delete a workflow. Raises Conflict when it is not at the expected version."""
        path = self._path(name)
        with changing(name):
            if not path.is_file():
                raise self._missing(name)
            _expect(path, name, expected)
            path.unlink()

    def _path(self, name: str) -> Path:
        path = inside(self.folder, f"{name}{_SUFFIX}")
        if any(part.startswith(".") for part in name.split("/")):  # such files are not listed
            message = f"found the name {name!r}, accepted one whose parts do not start with a dot; choose another"
            raise ApiError(400, message, "bad_name")
        return path

    def _missing(self, name: str) -> ApiError:
        return ApiError(
            404, f"found no workflow {name!r}; GET /api/workflows lists those there are", "no_such_workflow"
        )


def version_of(data: bytes) -> str:
    """Return the version of a file's bytes."""
    return blake2b(data, digest_size=10).hexdigest()


def encode(data: Any, indent: int | None = None) -> bytes:
    """Return JSON. Raises WorkflowError for numbers that it cannot hold."""
    try:
        return json.dumps(data, indent=indent, allow_nan=False).encode()
    except ValueError:
        message = "found a number that is infinite or none at all (NaN), accepted finite ones; mend the workflow"
        raise WorkflowError.of(message, "not_json") from None


def template_entries() -> list[dict[str, Any]]:
    """Return name, title, note and bytes of each bundled workflow: title and text of its first note."""
    return [_template_entry(name, path) for name, path in _templates().items()]


def read_template(name: str) -> dict[str, Any]:
    """Return a bundled workflow. Raises ApiError 404."""
    path = _templates().get(name)
    if path is None:
        message = f"found no template {name!r}; GET /api/templates lists those there are"
        raise ApiError(404, message, "no_such_template")
    document: dict[str, Any] = decode(path.read_bytes())
    return document


def _templates() -> dict[str, Path]:
    return {path.stem: path for path in sorted(BUNDLED_WORKFLOWS.glob(f"*{_SUFFIX}"))}


def _template_entry(name: str, path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    notes = (node for node in read_any(decode(data)).nodes.values() if node.class_type == "Note")
    note = next(notes, None)
    title, text = (note.title, note.inputs.get("text", "")) if note else ("", "")
    return {"name": name, "title": title or name, "note": text, "bytes": len(data)}


def _entry(file: FoundFile, may_look: bool) -> dict[str, Any]:
    title, node_count, error = None, None, None
    if may_look and file.bytes <= MAX_LOOKED_INTO_BYTES:
        try:
            title, node_count, error = _look(file.path, file.bytes, file.modified_ns)
        except OSError as failure:
            error = f"found a file that cannot be read ({failure.strerror}); check its permissions"
    return {
        "name": file.name.removesuffix(_SUFFIX),
        "bytes": file.bytes,
        "modified": file.modified_ns / 1e9,
        "title": title,
        "node_count": node_count,
        "error": error,
    }


@lru_cache(maxsize=2 * MAX_LISTED)
def _look(path: Path, size: int, modified_ns: int) -> tuple[str | None, int | None, str | None]:
    """Return title, number of nodes and what is wrong; unchanged files are read once. Raises OSError."""
    try:
        workflow = read_any(decode(path.read_bytes()))
    except WorkflowError as error:
        return None, None, error.problems[0].message
    title = workflow.extra.get("title")
    return title[:200] if isinstance(title, str) else None, len(workflow.nodes), None


def _bytes(path: Path, name: str) -> bytes | None:
    """Return what a file holds, None when there is no such file. Raises ApiError 422 when it is too large or closed."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_BYTES:
            message = f"found {name!r} to be over {MAX_BYTES >> 20} MiB; this is no workflow, delete it"
            raise ApiError(422, message, "too_large")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"found {name!r} unreadable ({error.strerror}); check the file's permissions"
        raise ApiError(422, message, "unreadable") from error


def _expect(path: Path, name: str, expected: str | None) -> bool:
    """Return whether there is such a file. Raises Conflict when it is not at the expected version."""
    if expected == ANY:
        return path.is_file()
    data = _bytes(path, name)
    present = None if data is None else version_of(data)
    if present == expected:
        return data is not None
    if present is None:
        message = f"found no workflow {name!r} any more, accepted version {expected}; save it with version null"
    elif expected is None:
        message = f"found a workflow {name!r} already, accepted a new name; choose another one or send its version"
    else:
        message = f"found version {present} of {name!r}, accepted {expected}; load it again or save it as another one"
    raise Conflict(message, present)
