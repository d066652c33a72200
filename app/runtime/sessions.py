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

from app.runtime.model_file import read_signature, stamp
from app.runtime.ort_errors import is_out_of_memory, load_error
from app.runtime.providers import ProviderChoice, choose, onnxruntime

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[tuple[tuple[str, int, int], ...], tuple[str, ...]]
"""Path, size and mtime of each file, and providers: a model that changed on disk has another key. Options are the same
for all sessions."""


@dataclass(slots=True)
class LoadedSession:
    """A session and what the pool knows of it.

    session: onnxruntime.InferenceSession. bytes: of its weights. users: open leases.
    choice: for what its users asked; where they asked for several devices, one that is not used counts first.
    providers_used: as the session itself names them. is_stale: the file has changed since and was loaded anew.
    """

    path: Path
    session: Any
    choice: ProviderChoice
    bytes: int
    users: int = 0
    providers_used: tuple[str, ...] = ()
    is_stale: bool = False


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

        Raises InputError for input `model` when the file cannot be loaded.
        """
        choice = choose(device)
        key = (stamp(path), choice.providers)
        while True:
            with self._lock:
                found = self._loaded.get(key)
                if found is not None:
                    self._loaded.move_to_end(key)
                    self.hits += 1
                    if found.users == 0 or choice.fell_back:
                        found.choice = choice
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
                self._add(key, loaded)
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

    def unload_all(self) -> int:
        """Unload every session that is not in use, give its memory back to the system, return how many there were."""
        with self._lock:
            gone = [key for key, loaded in self._loaded.items() if loaded.users == 0]
            self._remove(gone)
        if gone:
            give_memory_back()
        return len(gone)

    def report(self) -> list[dict[str, Any]]:
        """Return what is loaded, least recently used first, with the device asked for and the providers really used.

        `fell_back`: another device than the one asked for is used. `why_not` says by device why.
        """
        with self._lock:
            return [
                {
                    "path": str(loaded.path),
                    "bytes": loaded.bytes,
                    "users": loaded.users,
                    "device": loaded.choice.device,
                    "providers": list(loaded.providers_used),
                    "fell_back": loaded.choice.fell_back,
                    "why_not": dict(loaded.choice.why_not),
                }
                for loaded in self._loaded.values()
            ]

    def _load(self, path: Path, choice: ProviderChoice) -> LoadedSession:
        weights = max(read_signature(path).weight_bytes, path.stat().st_size)
        self._make_room(weights)
        try:
            session = new_session(path, choice)
        except Exception as error:
            # The budget counts weights only, and a device may have less memory than the budget.
            if not is_out_of_memory(error) or not self.unload_all():
                raise load_error(path, error) from error
            session = self._load_again(path, choice)
        used = tuple(session.get_providers())
        if choice.fell_back or used != choice.providers:
            log.warning("%s: asked for %s, uses %s; %s", path.name, choice.device, used, dict(choice.why_not))
        return LoadedSession(path, session, choice, weights, providers_used=used)

    def _load_again(self, path: Path, choice: ProviderChoice) -> Any:
        try:
            return new_session(path, choice)
        except Exception as error:
            raise load_error(path, error) from error

    def _add(self, key: Key, loaded: LoadedSession) -> None:
        files, providers = key
        for (other_files, other_providers), other in self._loaded.items():
            other.is_stale = other.is_stale or (other_files[0][0] == files[0][0] and other_providers == providers)
        loaded.users = 1
        self._loaded[key] = loaded
        self.loaded_bytes += loaded.bytes
        self.loads += 1

    def _make_room(self, coming: int = 0) -> None:
        """Unload idle sessions: stale ones, and least recently used first those that the budget does not hold."""
        gone: list[Key] = []
        with self._lock:
            excess = self.loaded_bytes + coming - self.budget_bytes
            for key, loaded in self._loaded.items():
                if loaded.users == 0 and (loaded.is_stale or excess > 0):
                    gone.append(key)
                    excess -= loaded.bytes
                    self.evictions += not loaded.is_stale
            self._remove(gone)
        if gone:
            give_memory_back()

    def _remove(self, gone: list[Key]) -> None:
        for key in gone:
            loaded = self._loaded.pop(key)
            self.loaded_bytes -= loaded.bytes
            loaded.session = None


def session_options() -> Any:
    """Return the options every session is made with.

    No spinning: it costs several times the CPU in paced use and gains nothing measurable. No arena on the CPU: it keeps
    the memory of the largest shapes ever seen. One core is left to the rest of the program. No log: what ONNX Runtime
    prints there it also raises.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = max(1, (os.cpu_count() or 2) - 1)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    return options


def new_session(path: Path, choice: ProviderChoice) -> Any:
    """Return an onnxruntime.InferenceSession. Raises whatever ONNX Runtime does."""
    return onnxruntime().InferenceSession(
        str(path), sess_options=session_options(), providers=list(choice.providers), enable_fallback=0
    )


def give_memory_back() -> None:
    """Return freed memory to the system: glibc keeps it otherwise."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):
            log.debug("no malloc_trim in this libc")
