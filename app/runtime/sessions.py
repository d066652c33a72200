"""One pool of ONNX Runtime sessions for the process: loaded on first use, shared, evicted under a byte budget."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from app.graph.errors import InputError
from app.runtime.model_file import read_signature, stamp
from app.runtime.providers import ProviderChoice, choose

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, int, int, tuple[str, ...]]
"""Path, size, mtime and providers: a file that changed on disk is another key."""


@dataclass(slots=True)
class LoadedSession:
    """A session and what the pool knows of it. session: onnxruntime.InferenceSession."""

    path: Path
    session: Any
    choice: ProviderChoice
    bytes: int
    users: int = 0
    providers_used: tuple[str, ...] = ()


@dataclass(slots=True)
class SessionLease:
    """Holds a session in the pool; give it back with `close` or by leaving its `with` block."""

    pool: SessionPool
    loaded: LoadedSession
    is_open: bool = True

    @property
    def session(self) -> Any:
        """Return the onnxruntime.InferenceSession."""
        return self.loaded.session

    def close(self) -> None:
        """Give the session back; it stays loaded until its room is needed."""
        if self.is_open:
            self.is_open = False
            self.pool.give_back(self.loaded)

    def __enter__(self) -> SessionLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True)
class SessionPool:
    """Thread-safe. budget_bytes: for the weights of all loaded sessions; one in use is never unloaded.

    loads, hits, evictions: how many sessions were loaded, found loaded, and unloaded to make room.
    """

    budget_bytes: int = 8 << 30
    loads: int = 0
    hits: int = 0
    evictions: int = 0
    loaded_bytes: int = 0
    _loaded: OrderedDict[Key, LoadedSession] = field(default_factory=OrderedDict)
    _loading: dict[Key, threading.Event] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lease(self, path: Path, device: str = "auto") -> SessionLease:
        """Return a lease on the session of a model file, loading it if need be; a second caller waits for the first.

        Raises InputError for input `model` when the file cannot be loaded, MemoryError when memory runs out.
        """
        choice = choose(device)
        key = (*stamp(path), choice.providers)
        while True:
            with self._lock:
                found = self._loaded.get(key)
                if found is not None:
                    self._loaded.move_to_end(key)
                    self.hits += 1
                    found.users += 1
                    return SessionLease(self, found)
                waiting = self._loading.get(key)
                if waiting is None:
                    self._loading[key] = threading.Event()
                    break
            waiting.wait()
        try:
            loaded = self._load(path, choice)
            with self._lock:
                loaded.users = 1
                self._loaded[key] = loaded
                self.loaded_bytes += loaded.bytes
                self.loads += 1
        finally:
            with self._lock:
                self._loading.pop(key).set()
        self._make_room()
        return SessionLease(self, loaded)

    def give_back(self, loaded: LoadedSession) -> None:
        """Count one user less; called by the lease."""
        with self._lock:
            loaded.users -= 1
        self._make_room()

    def unload_all(self) -> None:
        """Unload every session that is not in use and give its memory back to the system."""
        self._unload(lambda: True)

    def report(self) -> list[dict[str, Any]]:
        """Return what is loaded, least recently used first: path, bytes, users, providers asked for and really used."""
        with self._lock:
            return [
                {
                    "path": str(loaded.path),
                    "bytes": loaded.bytes,
                    "users": loaded.users,
                    "device": loaded.choice.device,
                    "providers": list(loaded.providers_used),
                    "why_not": dict(loaded.choice.why_not),
                }
                for loaded in self._loaded.values()
            ]

    def _load(self, path: Path, choice: ProviderChoice) -> LoadedSession:
        signature = read_signature(path)
        weights = max(signature.weight_bytes, path.stat().st_size)
        self._make_room(weights)
        session = _new_session(path, choice)
        used = tuple(session.get_providers())
        if choice.fell_back or used != choice.providers:
            log.warning("%s: asked for %s, uses %s; %s", path.name, choice.device, used, dict(choice.why_not))
        return LoadedSession(path, session, choice, weights, providers_used=used)

    def _make_room(self, coming: int = 0) -> None:
        self._unload(lambda: self.loaded_bytes + coming > self.budget_bytes)

    def _unload(self, wanted: Any) -> None:
        """Unload idle sessions, least recently used first, while `wanted()` holds."""
        gone: list[LoadedSession] = []
        with self._lock:
            for key, loaded in list(self._loaded.items()):
                if not wanted():
                    break
                if loaded.users == 0:
                    gone.append(self._loaded.pop(key))
                    self.loaded_bytes -= loaded.bytes
                    self.evictions += 1
        if gone:
            for loaded in gone:
                loaded.session = None
            give_memory_back()


def session_options() -> Any:
    """Return the options every session is made with.

    No spinning: it costs several times the CPU in paced use and gains nothing measurable. No arena on the CPU: it keeps
    the memory of the largest shapes ever seen. One core is left to the rest of the program.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = max(1, (os.cpu_count() or 2) - 1)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options


def _new_session(path: Path, choice: ProviderChoice) -> Any:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    try:
        return ort.InferenceSession(
            str(path), sess_options=session_options(), providers=list(choice.providers), enable_fallback=0
        )
    except Exception as error:
        raise load_error(path, error) from error


_LOAD_ERRORS = (
    ("external data", "external_data_broken", "copy its weights file beside it, whole"),
    ("No Op registered", "unknown_op", "update onnxruntime, or export with a lower opset"),
    ("is not a registered function/op", "unknown_op", "update onnxruntime, or export with a lower opset"),
    ("Could not find an implementation", "unknown_op", "choose another device, or convert the model to float32"),
    ("opset", "unknown_opset", "update onnxruntime, or export with a lower opset"),
    ("IR version", "unknown_opset", "update onnxruntime, or export with a lower IR version"),
)


def load_error(path: Path, error: Exception) -> Exception:
    """Return the error that a user sees for a failed load."""
    text = " ".join(str(error).split())
    if is_out_of_memory(error):
        return MemoryError(f"loading {path.name} needs more memory than there is")
    code, fix = "model_broken", "copy it again or export it again"
    for mark, found_code, found_fix in _LOAD_ERRORS:
        if mark.lower() in text.lower():
            code, fix = found_code, found_fix
            break
    found = f"{path.name}, which ONNX Runtime cannot load ({shorten(text)})"
    return InputError("model", found=found, accepted="a model that it can", fix=fix, code=code)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of onnxruntime says that memory ran out."""
    marks = ("bad_alloc", "Failed to allocate", "out of memory", "Available memory of")
    return isinstance(error, MemoryError) or any(mark.lower() in str(error).lower() for mark in marks)


def shorten(text: str, limit: int = 160) -> str:
    """Return ONNX Runtime's words without its source paths and status prefix, short enough for a sentence."""
    text = text.split(" : ", 2)[-1] if text.startswith("[ONNXRuntimeError]") else text
    words = [word for word in text.split() if not word.startswith(("/", "onnxruntime::", "(/"))]
    text = " ".join(words)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def give_memory_back() -> None:
    """Return freed memory to the system: glibc keeps it otherwise."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):
            log.debug("no malloc_trim in this libc")
