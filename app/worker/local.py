"""The local home: a worker as a child process, supervised and started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from app.folders import PROGRAM
from app.graph.errors import Problem, WorkflowError
from app.graph.node import Ports
from app.worker.exits import exit_sentence
from app.worker.frames import FrameError, pack, read_async
from app.worker.home import WorkerListener
from app.worker.last_words import make_note, read_note
from app.worker.node_types import ports_of_json
from app.worker.settings import Job, WorkerSettings

log = logging.getLogger(__name__)

START_S = 120.0
"""How long a worker may take to start: imports on a cold disk, extensions that load much."""
LOOK_S = 0.25
LAST_MESSAGES_S = 1.0
"""How long what a worker said before it ended may take to arrive."""
LONGEST_DEATH_S = 5.0
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker is ended. grace_s: after a cancel that it does not follow; watchdog_s: when it says nothing at all.

    memory_bytes: when it holds more than that; 0 for no limit.
    """

    grace_s: float = 5.0
    watchdog_s: float = 30.0
    memory_bytes: int = 0


class LocalWorker:
    """A child process that speaks frames on its stdin and stdout. log_path: where its stderr goes."""

    def __init__(self, settings: WorkerSettings, limits: Limits, log_path: Path) -> None:
        self._settings = settings
        self._limits = limits
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ready = False
        self._is_closing = False
        self._loading = ""
        self._heard = 0.0
        self._reason = ""
        self._cancel_due: float | None = None
        self._held = ""
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}

    @property
    def pid(self) -> int | None:
        """Process id of the present worker, or None."""
        return None if self._process is None else self._process.pid

    async def start(self, listener: WorkerListener) -> None:
        """See WorkerHome."""
        self._task = asyncio.create_task(self._supervise(listener))

    def submit(self, job: Job) -> None:
        """See WorkerHome."""
        self._cancel_due, self._held = None, job.id
        self._send({"type": "run", "job": job.to_json()})

    async def steer(self, run: str, changes: Sequence[tuple[str, str, Any]]) -> bool:
        """See WorkerHome."""
        return bool(await self._ask({"type": "steer", "run": run, "changes": [list(change) for change in changes]}))

    def cancel(self, run: str) -> None:
        """See WorkerHome."""
        if run != self._held:  # it has ended by itself: nobody would answer, and the worker would be ended for it
            return
        if self._cancel_due is None:
            self._cancel_due = monotonic() + self._limits.grace_s
        self._send({"type": "cancel", "run": run})

    def free(self, *, unload_models: bool, free_memory: bool) -> None:
        """See WorkerHome."""
        self._send({"type": "free", "unload_models": unload_models, "free_memory": free_memory})

    async def ports(self, class_type: str, literals: Mapping[str, Any]) -> Ports:
        """See WorkerHome."""
        return ports_of_json(await self._ask({"type": "ports", "class_type": class_type, "literals": dict(literals)}))

    async def close(self) -> None:
        """See WorkerHome."""
        self._is_closing = True
        self._kill("the server ends")
        if self._task is not None:
            await self._task

    def _send(self, header: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None and self._is_ready:
            with contextlib.suppress(OSError, RuntimeError):  # it has just died: the supervisor will see
                self._process.stdin.write(pack(header))

    async def _ask(self, header: dict[str, Any]) -> Any:
        if not self._is_ready:
            raise WorkflowError.of("found no worker that is ready, accepted one; try again in a moment", "no_worker")
        number = next(self._numbers)
        self._questions[number] = asyncio.get_running_loop().create_future()
        self._send({**header, "id": number})
        try:
            return await self._questions[number]
        finally:
            del self._questions[number]

    async def _supervise(self, listener: WorkerListener) -> None:
        """Start a worker, and another whenever one ends; pause longer each time one ends before it is ready."""
        pause = 0.0
        while not self._is_closing:
            note = make_note(Path(self._settings.temp))
            try:
                sentence = await self._live_once(listener, note)
            except OSError as error:
                sentence = f"the worker process cannot be started ({error}); check the memory and process limits"
            except Exception as error:
                log.exception("what a worker said could not be followed")
                sentence = f"the worker process was ended: what it said failed inside Ortloom with {error!r}"
            run, node = read_note(note)
            if self._is_closing:
                return
            log.error("%s", sentence)
            was_ready, self._is_ready = self._is_ready, False
            if not was_ready and self._loading:
                log.error("extension %s is skipped from now on", self._loading)
                skip = (*self._settings.skip_extensions, self._loading)
                self._settings = replace(self._settings, skip_extensions=skip)
            self._fail_questions(sentence)
            listener.worker_died(sentence, run, node)
            pause = 0.0 if was_ready or self._loading else min(LONGEST_PAUSE_S, pause * 2 + 0.5)
            await asyncio.sleep(pause)

    async def _live_once(self, listener: WorkerListener, note: Path | None) -> str:
        """Run one worker process to its end; return the sentence that says how it ended."""
        self._reason, self._loading, self._held, self._cancel_due = "", "", "", None
        self._heard = monotonic() + START_S - self._limits.watchdog_s
        with open(self._log_path, "ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.worker", replace(self._settings, note=str(note or "")).to_json()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=PROGRAM,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        if self._is_closing:
            self._kill("the server ends")
        guard = asyncio.create_task(self._guard(self._process))
        listening = asyncio.create_task(self._listen(self._process, listener))
        try:
            await asyncio.wait({guard, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
        finally:
            guard.cancel()
            listening.cancel()
            _kill_group(self._process)
            await _has_exited(self._process, LONGEST_DEATH_S)
        return self._reason or exit_sentence(self._process.returncode or 0)

    async def _listen(self, process: asyncio.subprocess.Process, listener: WorkerListener) -> None:
        """Pass on what the worker says until it closes its end."""
        assert process.stdout is not None
        try:
            while True:
                header, blob = await read_async(process.stdout)
                self._heard = max(self._heard, monotonic())
                try:
                    self._take(header, blob, listener)
                except Exception:
                    log.exception("a message of the worker could not be taken")
        except FrameError as error:
            self._reason = f"the worker process sent nonsense ({error}); a library in it wrote where it must not"
        except (asyncio.IncompleteReadError, ConnectionError):
            # Its end is closed: it has ended, or will within moments; a kill now would hide how.
            await _has_exited(process, LONGEST_DEATH_S)

    def _take(self, header: dict[str, Any], blob: bytes, listener: WorkerListener) -> None:
        kind = header["type"]
        if kind == "events":
            listener.worker_events(header["run"], header["events"], blob)
        elif kind == "ended":
            self._cancel_due, self._held = None, ""
            listener.worker_ended(header)
        elif kind == "reply":
            self._answer(header)
        elif kind == "heartbeat":
            listener.worker_stats(header)
        elif kind == "loading":
            self._loading = header["extension"]
        elif kind == "ready":
            self._is_ready, self._loading = True, ""
            self._heard = monotonic()
            listener.worker_ready(header["node_types"], header["extensions"])

    def _answer(self, header: dict[str, Any]) -> None:
        question = self._questions.get(header["id"])
        if question is None or question.done():
            return
        if "problems" in header:
            question.set_exception(WorkflowError([Problem(**problem) for problem in header["problems"]]))
        else:
            question.set_result(header["value"])

    def _fail_questions(self, sentence: str) -> None:
        for question in self._questions.values():
            if not question.done():
                question.set_exception(WorkflowError.of(sentence, "worker_died"))

    async def _guard(self, process: asyncio.subprocess.Process) -> None:
        """End a worker that hangs, that does not follow a cancel, or that takes too much memory.

        Returns when it has ended: what it forked may hold its pipes open, so that nobody would hear of it.
        """
        while process.returncode is None:
            await asyncio.sleep(LOOK_S)
            now = monotonic()
            limits = self._limits
            if now - self._heard > limits.watchdog_s:
                self._kill(f"the worker process was ended: it hung and said nothing for {limits.watchdog_s:.0f} s")
            elif self._cancel_due is not None and now > self._cancel_due:
                self._kill(f"the worker process was ended: it did not stop within {limits.grace_s:g} s of a cancel")
            elif limits.memory_bytes and (used := resident_bytes(process.pid)) > limits.memory_bytes:
                found, limit = f"{used / 2**30:.1f} GiB", f"{limits.memory_bytes / 2**30:.1f} GiB"
                self._kill(
                    f"the worker process was ended: out of memory, it held {found} of at most {limit}; use smaller "
                    "sizes or models, or raise the limit with --memory"
                )
        await asyncio.sleep(LAST_MESSAGES_S)

    def _kill(self, reason: str) -> None:
        self._reason = reason
        if self._process is not None:
            _kill_group(self._process)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """End a worker with every process that its nodes started and that has not left its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


async def _has_exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Return whether a process ends within some seconds; its `wait` would wait for its pipes too."""
    end = monotonic() + seconds
    while process.returncode is None and monotonic() < end:
        await asyncio.sleep(0.005)
    return process.returncode is not None


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
