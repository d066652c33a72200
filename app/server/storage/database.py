"""The SQLite file behind two threads: one writes, many writes in one transaction, and one reads.

SQLite waits for disks and locks, which an event loop must not; one connection that writes never waits for another of
its own. The settings and their measured cost stand in `_connect`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from app.server.storage.schema import SCHEMA_VERSION, schema_version, upgrade

log = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_S = 5.0
LOCK_LIMIT_S = 30.0
MAX_BATCH = 1000
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class StorageError(Exception):
    """The database cannot do what was asked, and nothing of it was done.

    code: "database_locked", "database_full", "database_broken", "database_newer", "database_closed", "database_failed".
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class _Write:
    operation: Operation[Any]
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None


class Database:
    """An open database. Made and opened at once; `close` ends it.

    recovered: a sentence that says where a broken file went, when a new one had to be made; else None.
    transactions: how many were committed for writes so far.
    """

    def __init__(self, path: Path, lock_limit_s: float = LOCK_LIMIT_S) -> None:
        """Open or make the file; its folder must exist.

        lock_limit_s: how long writes wait while another process holds the file. Raises StorageError.
        """
        self.path = path
        self.transactions = 0
        self._lock_limit_s = lock_limit_s
        busy_timeout_s = min(BUSY_TIMEOUT_S, lock_limit_s)
        try:
            self._writer, self.recovered = _open_or_replace(path, busy_timeout_s)
            self._reader = _connect(path, busy_timeout_s)
            self._reader.execute("pragma query_only = on")
        except (sqlite3.Error, OSError) as error:
            raise storage_error(error, str(path)) from error
        self._is_closed = False
        self._waiting: SimpleQueue[_Write | None] = SimpleQueue()
        self._write_thread = threading.Thread(target=self._write_all, name="database-writer", daemon=True)
        self._write_thread.start()
        self._read_thread = ThreadPoolExecutor(1, "database-reader")

    async def write(self, operation: Operation[T]) -> T:
        """Run an operation on the connection that writes; returns what it returns once that is committed.

        Operations run in the order of their calls. One that raises changes nothing and spoils no other. It may be
        called again when the transaction around it was lost, so it must do nothing but use its connection. A caller
        that is cancelled does not take it back. Raises StorageError and what the operation raises.
        """
        self._check_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put(_Write(operation, future))
        return await future

    async def read(self, operation: Operation[T]) -> T:
        """Run an operation on the connection that reads, on one state of the database. Raises StorageError."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, self._read, operation)

    async def close(self) -> None:
        """Commit all waiting writes and close the file; nothing happens the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.put(None)
        await asyncio.to_thread(self._join)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError(
                "found a database that is closed, accepted an open one; start the server again", "closed"
            )

    def _join(self) -> None:
        self._read_thread.shutdown()
        self._reader.close()
        self._write_thread.join()
        self._writer.close()

    def _read(self, operation: Operation[T]) -> T:
        try:
            self._reader.execute("begin")
            try:
                return operation(self._reader)
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("rollback")
        except sqlite3.Error as error:
            raise storage_error(error, self.path.name) from error

    def _write_all(self) -> None:
        while batch := self._next_batch():
            _deliver(batch, self._commit(batch))

    def _next_batch(self) -> list[_Write]:
        """Wait for a write and return it with all that wait behind it; an empty list when there will be no more."""
        batch: list[_Write] = []
        write = self._waiting.get()
        while write is not None:
            batch.append(write)
            if len(batch) == MAX_BATCH:
                return batch
            try:
                write = self._waiting.get_nowait()
            except Empty:
                return batch
        if batch:
            self._waiting.put(None)  # the end was reached behind this batch: let the next call find it again
        return batch

    def _commit(self, batch: Sequence[_Write]) -> list[_Outcome]:
        """Return what became of each write: committed all together, or one by one if together they cannot be."""
        try:
            return self._transact(batch)
        except Exception as error:
            log.warning("a transaction of %d writes was undone", len(batch), exc_info=True)
            failure = storage_error(error, self.path.name)
        if len(batch) == 1 or failure.code == "database_locked":
            return [_Outcome(error=failure)] * len(batch)
        return [outcome for write in batch for outcome in self._commit([write])]

    def _transact(self, batch: Sequence[_Write]) -> list[_Outcome]:
        self._begin()
        try:
            outcomes = [self._attempt(write.operation) for write in batch]
            self._writer.execute("commit")
        finally:
            if self._writer.in_transaction:
                self._writer.execute("rollback")
        self.transactions += 1
        return outcomes

    def _begin(self) -> None:
        """Begin to write; as long as another process does, try again until the limit. Raises sqlite3.Error."""
        deadline = time.monotonic() + self._lock_limit_s
        while True:
            try:
                self._writer.execute("begin immediate")
            except sqlite3.OperationalError as error:
                if _primary_code(error) not in _LOCKED or time.monotonic() >= deadline:
                    raise
            else:
                return

    def _attempt(self, operation: Operation[Any]) -> _Outcome:
        """Run one operation in a savepoint. Raises sqlite3.Error when the whole transaction is lost."""
        connection = self._writer
        connection.execute("savepoint operation")
        try:
            outcome = _Outcome(operation(connection))
        except Exception as error:
            if not connection.in_transaction:  # a full disk makes SQLite roll back everything
                raise error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError(str(error)) from error
            connection.execute("rollback to operation")
            is_storage = isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError)
            outcome = _Outcome(error=storage_error(error, self.path.name) if is_storage else error)
        connection.execute("release operation")
        return outcome


def _deliver(batch: Sequence[_Write], outcomes: Sequence[_Outcome]) -> None:
    """Resolve the futures, each on its own loop, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
    for write, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(write.future.get_loop(), []).append((write.future, outcome))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, pairs)
        except RuntimeError:
            log.warning("%d writes were committed for a loop that has ended", len(pairs))


def _resolve(pairs: Sequence[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for future, outcome in pairs:
        if future.done():  # the caller was cancelled
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)


def storage_error(error: Exception, name: str) -> StorageError:
    """Return SQLite's error as a sentence. name: of the database's file."""
    code = _primary_code(error)
    if code in _LOCKED:
        fix = "end it or wait, then try again"
        return StorageError(
            f"found {name} locked by another process, accepted a free database; {fix}", "database_locked"
        )
    if code == sqlite3.SQLITE_FULL:
        fix = "free some space, then try again"
        return StorageError(f"found no space left to write {name}, accepted a disk with space; {fix}", "database_full")
    if code in _BROKEN:
        fix = "end the server and move that file away; the queue and the history begin anew"
        return StorageError(f"found {name} broken ({error}), accepted a whole database; {fix}", "database_broken")
    fix = "check its folder and the disk, then try again"
    return StorageError(
        f"found {name} unusable ({error}), accepted a database to read and write; {fix}", "database_failed"
    )


def _primary_code(error: Exception) -> int:
    """Return SQLite's result code without its extension; 0 for errors that are not SQLite's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a connection that leaves transactions to its user.

    WAL with synchronous=NORMAL commits in 50 us, FULL in 500 us to 12 ms. NORMAL loses nothing when processes are
    killed; when the power fails, the last commits can be lost but nothing is broken.
    """
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        for setting in ("journal_mode = wal", "synchronous = normal", "foreign_keys = on"):
            connection.execute(f"pragma {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_or_replace(path: Path, busy_timeout_s: float) -> tuple[sqlite3.Connection, str | None]:
    """Return a connection with all tables, and a sentence when a broken file had to give way."""
    try:
        return _open(path, busy_timeout_s), None
    except sqlite3.DatabaseError as error:
        if _primary_code(error) not in _BROKEN:
            raise
        aside = _move_aside(path)
        said = f"found the database {path} broken ({error}); it is now {aside}, queue and history begin anew"
    log.error("%s", said)
    return _open(path, busy_timeout_s), said


def _open(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    log_file = Path(f"{path}-wal")
    was_left_open = log_file.exists() and log_file.stat().st_size > 0
    connection = _connect(path, busy_timeout_s)
    try:
        if was_left_open:  # by a server or a machine that broke down: what else did it leave? 1 ms per MB tells
            _check_pages(connection)
        connection.execute("begin immediate")
        upgrade(connection)
        connection.execute("commit")
        version = schema_version(connection)
        if version > SCHEMA_VERSION:
            fix = "start the newer Ortloom that made it, or choose another folder with --data"
            message = f"found the database {path} of version {version}, accepted up to {SCHEMA_VERSION}; {fix}"
            raise StorageError(message, "database_newer")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_pages(connection: sqlite3.Connection) -> None:
    """Read every page. Raises sqlite3.DatabaseError, as if SQLite had come across it, for the first broken one."""
    found = connection.execute("pragma quick_check(1)").fetchone()[0]
    if found != "ok":
        error = sqlite3.DatabaseError(found)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _move_aside(path: Path) -> Path:
    """Rename a broken database and what belongs to it; returns its new path. Raises OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):  # the file last: a log without its file would be read into the new one
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(f"{aside}{suffix}")
    return aside
