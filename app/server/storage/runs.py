"""Queue and history: what was asked for, in order, and what came of it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from app.server.storage.database import Database
from app.server.storage.schema import FULL_SELECT, LIGHT_SELECT, NewRun, RunResult, State, StoredRun, clean
from app.server.storage.search import conditions
from app.server.storage.statements import (
    BY_TURN,
    finish,
    insert,
    recover,
    runs_in,
    runs_with_outputs,
    sql_integer,
)

Order = Literal["newest", "oldest", "longest", "shortest"]

_ORDER_SQL: dict[Order, str] = {
    "newest": "number desc",
    "oldest": "number",
    "longest": "ended - started desc nulls last, number desc",
    "shortest": "ended - started nulls last, number desc",
}


class RunStore:
    """The runs in a database. Everything that a method changes is committed when it returns.

    All methods raise StorageError when the database fails them.
    """

    def __init__(self, database: Database, keep_runs: int = 10_000) -> None:
        """keep_runs: how many ended runs stay; the ones that ended first go first."""
        self._database = database
        self._keep_runs = keep_runs

    async def add(self, new: NewRun) -> StoredRun:
        """Queue a run. Raises DuplicateRun, and ValueError for a priority that is no finite number."""
        return await self._database.write(lambda connection: insert(connection, new))

    async def next_queued(self) -> StoredRun | None:
        """Return the run whose turn is next, or None; it stays queued until `mark_running`."""
        sql = f"{FULL_SELECT} where state = 'queued' {BY_TURN} limit 1"
        runs = await self._database.read(lambda connection: runs_in(connection, sql))
        return runs[0] if runs else None

    async def mark_running(self, id: str) -> bool:
        """Return whether the run was still queued; now it runs."""
        sql = "update runs set state = 'running', started = ? where id = ? and state = 'queued'"
        return await self._execute(sql, (time.time(), clean(id))) > 0

    async def put_back(self, id: str) -> bool:
        """Return whether the run was running; now it is queued again, with its old turn: the server ends in peace."""
        sql = "update runs set state = 'queued', started = null where id = ? and state = 'running'"
        return await self._execute(sql, (clean(id),)) > 0

    async def finish(self, id: str, result: RunResult) -> bool:
        """Store how a queued or running run ended and forget the oldest beyond `keep_runs`.

        Returns False, and changes nothing, when there is no such run or it has ended before.
        """
        return await self._database.write(lambda connection: finish(connection, clean(id), result, self._keep_runs))

    async def add_ended(self, new: NewRun, result: RunResult) -> StoredRun:
        """Store a run that did not wait in the queue and has ended: the kept result of a live session."""

        def store(connection: sqlite3.Connection) -> StoredRun:
            run = insert(connection, new)
            connection.execute("update runs set started = created where number = ?", (run.number,))
            finish(connection, run.id, result, self._keep_runs)
            return run

        return await self._database.write(store)

    async def delete_queued(self, ids: Iterable[str]) -> int:
        """Delete runs that still wait; returns how many did. Others are ignored."""
        return await self._delete(ids, "state = 'queued'")

    async def clear_queued(self) -> list[str]:
        """Delete every run that still waits and return their ids, in the order of their turns."""

        def clear(connection: sqlite3.Connection) -> list[str]:
            ids = [row[0] for row in connection.execute(f"select id from runs where state = 'queued' {BY_TURN}")]
            connection.execute("delete from runs where state = 'queued'")
            return ids

        return await self._database.write(clear)

    async def delete_ended(self, ids: Iterable[str]) -> int:
        """Delete runs from the history; returns how many were there. Their files stay."""
        return await self._delete(ids, "ended is not null")

    async def clear_history(self) -> int:
        """Delete every ended run; returns how many there were. Their files stay."""
        return await self._execute("delete from runs where ended is not null", ())

    async def queued(self, documents: bool = True) -> list[StoredRun]:
        """Return the runs that wait, in the order of their turns; thousands are listed faster without `documents`."""
        return await self._in_state("queued", documents)

    async def running(self, documents: bool = True) -> list[StoredRun]:
        """Return the runs that run."""
        return await self._in_state("running", documents)

    async def queue_counts(self) -> tuple[int, int]:
        """Return how many runs run and how many wait."""
        sql = "select state, count(*) from runs where state in ('running', 'queued') group by state"
        counts = await self._database.read(lambda connection: dict(map(tuple, connection.execute(sql))))
        return counts.get("running", 0), counts.get("queued", 0)

    async def get(self, id: str) -> StoredRun | None:
        """Return everything about a run, or None."""
        sql = f"{FULL_SELECT} where id = ?"
        runs = await self._database.read(lambda connection: runs_with_outputs(connection, sql, (clean(id),)))
        return runs[0] if runs else None

    async def history(self, max_items: int | None = None, offset: int | None = None) -> list[StoredRun]:
        """Return ended runs with everything, in the order of their ends, cut as ComfyUI cuts its history.

        offset counts from the oldest; without it (or negative), max_items means the newest ones.
        """
        limit = -1 if max_items is None else sql_integer(max_items)
        is_newest = max_items is not None and (offset is None or offset < 0)
        direction = "desc" if is_newest else "asc"
        order = f"order by ended {direction}, number {direction}"
        sql = f"{FULL_SELECT} where ended is not null {order} limit ? offset ?"
        values = (limit, 0 if is_newest else sql_integer(offset or 0))
        runs = await self._database.read(lambda connection: runs_with_outputs(connection, sql, values))
        return runs[::-1] if is_newest else runs

    async def search(
        self,
        text: str = "",
        node_type: str | None = None,
        state: State | Iterable[State] | None = None,
        limit: int = 100,
        offset: int = 0,
        order: Order = "newest",
        workflow_id: str | None = None,
    ) -> tuple[list[StoredRun], int]:
        """Return a page of runs, queued and running ones too, without documents, and how many fit on all pages.

        text: words that must all occur, in any case, in titles, literals, output names, errors or the workflow's name.
        """
        where, values = conditions(text, node_type, state, workflow_id)
        page_sql = f"{LIGHT_SELECT} where {where} order by {_ORDER_SQL[order]} limit ? offset ?"
        page_values = (*values, sql_integer(limit), sql_integer(offset))

        def find(connection: sqlite3.Connection) -> tuple[list[StoredRun], int]:
            total = connection.execute(f"select count(*) from runs where {where}", values).fetchone()[0]
            return runs_with_outputs(connection, page_sql, page_values), total

        return await self._database.read(find)

    async def recover(self) -> list[str]:
        """At start, queue the runs again that ran when the server ended; returns their ids.

        They keep their turn, which is before all that was added later with the same priority. One that ended the
        server MAX_ATTEMPTS times is failed instead.
        """
        return await self._database.write(lambda connection: recover(connection, self._keep_runs))

    async def _in_state(self, state: State, documents: bool) -> list[StoredRun]:
        sql = f"{FULL_SELECT if documents else LIGHT_SELECT} where state = ? {BY_TURN}"
        return await self._database.read(lambda connection: runs_in(connection, sql, (state,)))

    async def _delete(self, ids: Iterable[str], condition: str) -> int:
        sql = f"delete from runs where id = ? and {condition}"
        rows = [(clean(id),) for id in ids]
        return await self._database.write(lambda connection: max(0, connection.executemany(sql, rows).rowcount))

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        return await self._database.write(lambda connection: connection.execute(sql, values).rowcount)
