"""Queue and history: what was asked for, in order, and what came of it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from app.graph.errors import Problem
from app.server.storage.database import Database
from app.server.storage.schema import (
    FULL_SELECT,
    LIGHT_SELECT,
    NewRun,
    RunResult,
    State,
    StoredOutput,
    StoredRun,
    clean,
    output_of,
    output_row,
    problems_json,
    run_of,
    to_json,
)

__all__ = ["DuplicateRun", "NewRun", "RunResult", "RunStore", "StoredOutput", "StoredRun"]

Order = Literal["newest", "oldest", "longest", "shortest"]

MAX_ATTEMPTS = 3
_BY_TURN = "order by priority, number"
_ORDER_SQL: dict[Order, str] = {
    "newest": "number desc",
    "oldest": "number",
    "longest": "ended - started desc nulls last, number desc",
    "shortest": "ended - started nulls last, number desc",
}
_MAX_SQL_INTEGER = 2**63 - 1
_SEARCHED_CHARACTERS = 20_000  # of a workflow, and again of its results: enough to find it by
_SEARCHED_WORDS = 50  # SQLite refuses conditions of more than 1,000


class DuplicateRun(Exception):
    """A run with this id is in the queue or in the history already."""


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
        return await self._database.write(lambda connection: _insert(connection, new))

    async def add_many(self, new: Sequence[NewRun]) -> list[StoredRun]:
        """Queue several runs in their order, all or none. Raises what `add` raises."""
        return await self._database.write(lambda connection: [_insert(connection, item) for item in new])

    async def next_queued(self) -> StoredRun | None:
        """Return the run whose turn is next, or None; it stays queued until `mark_running`."""
        sql = f"{FULL_SELECT} where state = 'queued' {_BY_TURN} limit 1"
        runs = await self._database.read(lambda connection: _runs(connection, sql))
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
        return await self._database.write(lambda connection: _finish(connection, clean(id), result, self._keep_runs))

    async def add_ended(self, new: NewRun, result: RunResult) -> StoredRun:
        """Store a run that did not wait in the queue and has ended: the kept result of a live session."""

        def store(connection: sqlite3.Connection) -> StoredRun:
            run = _insert(connection, new)
            connection.execute("update runs set started = created where number = ?", (run.number,))
            _finish(connection, run.id, result, self._keep_runs)
            return run

        return await self._database.write(store)

    async def delete_queued(self, ids: Iterable[str]) -> int:
        """Delete runs that still wait; returns how many did. Others are ignored."""
        return await self._delete(ids, "state = 'queued'")

    async def clear_queued(self) -> list[str]:
        """Delete every run that still waits and return their ids, in the order of their turns."""

        def clear(connection: sqlite3.Connection) -> list[str]:
            ids = [row[0] for row in connection.execute(f"select id from runs where state = 'queued' {_BY_TURN}")]
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
        runs = await self._database.read(lambda connection: _runs_with_outputs(connection, sql, (clean(id),)))
        return runs[0] if runs else None

    async def history(self, max_items: int | None = None, offset: int | None = None) -> list[StoredRun]:
        """Return ended runs with everything, in the order of their ends, cut as ComfyUI cuts its history.

        offset counts from the oldest; without it (or negative), max_items means the newest ones.
        """
        limit = -1 if max_items is None else _sql_integer(max_items)
        is_newest = max_items is not None and (offset is None or offset < 0)
        direction = "desc" if is_newest else "asc"
        order = f"order by ended {direction}, number {direction}"
        sql = f"{FULL_SELECT} where ended is not null {order} limit ? offset ?"
        values = (limit, 0 if is_newest else _sql_integer(offset or 0))
        runs = await self._database.read(lambda connection: _runs_with_outputs(connection, sql, values))
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
        where, values = _conditions(text, node_type, state, workflow_id)
        page_sql = f"{LIGHT_SELECT} where {where} order by {_ORDER_SQL[order]} limit ? offset ?"
        page_values = (*values, _sql_integer(limit), _sql_integer(offset))

        def find(connection: sqlite3.Connection) -> tuple[list[StoredRun], int]:
            total = connection.execute(f"select count(*) from runs where {where}", values).fetchone()[0]
            return _runs_with_outputs(connection, page_sql, page_values), total

        return await self._database.read(find)

    async def recover(self) -> list[str]:
        """At start, queue the runs again that ran when the server ended; returns their ids.

        They keep their turn, which is before all that was added later with the same priority. One that ended the
        server MAX_ATTEMPTS times is failed instead.
        """
        return await self._database.write(lambda connection: _recover(connection, self._keep_runs))

    async def _in_state(self, state: State, documents: bool) -> list[StoredRun]:
        sql = f"{FULL_SELECT if documents else LIGHT_SELECT} where state = ? {_BY_TURN}"
        return await self._database.read(lambda connection: _runs(connection, sql, (state,)))

    async def _delete(self, ids: Iterable[str], condition: str) -> int:
        sql = f"delete from runs where id = ? and {condition}"
        rows = [(clean(id),) for id in ids]
        return await self._database.write(lambda connection: max(0, connection.executemany(sql, rows).rowcount))

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        return await self._database.write(lambda connection: connection.execute(sql, values).rowcount)


def search_text_of(document: Mapping[str, Any]) -> str:
    """Return the words to find a workflow by: titles and literal texts of its nodes."""
    parts: list[str] = []
    for node in _nodes(document):
        meta = node.get("_meta")
        if isinstance(meta, dict):
            parts.extend(_texts(meta.get("title")))
        inputs = node.get("inputs")
        if isinstance(inputs, dict):
            for value in inputs.values():
                if not isinstance(value, list):  # a list is a link; a literal one is wrapped in {"__value__": ...}
                    parts.extend(_texts(value))
    return "\n".join(parts)


def node_types_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types of a workflow's nodes, each once, in alphabetical order."""
    types = {node["class_type"] for node in _nodes(document) if isinstance(node.get("class_type"), str)}
    return tuple(sorted(name for name in types if name))


def _nodes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    nodes = document.get("nodes")
    return [node for node in nodes.values() if isinstance(node, dict)] if isinstance(nodes, dict) else []


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a literal; documents are never nested more than 100 deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _searchable(*parts: str) -> str:
    return clean("\n".join(part for part in parts if part)[:_SEARCHED_CHARACTERS]).casefold() + "\n"


def _typed(name: str) -> str:
    """Return a node type as one line of the column `node_types`."""
    return clean(name).replace("\n", " ") + "\n"


def _insert(connection: sqlite3.Connection, new: NewRun) -> StoredRun:
    counted = connection.execute("select seq from sqlite_sequence where name = 'runs'").fetchone()
    number = 1 + (counted[0] if counted else 0)
    node_types = node_types_of(new.document)
    run = StoredRun(
        number=number,
        id=clean(new.id),
        priority=_priority(new, number),
        state="queued",
        client_id=None if new.client_id is None else clean(new.client_id),
        source=new.source,
        name=clean(new.name),
        workflow_id=_workflow_id(new.extra_data),
        targets=None if new.targets is None else tuple(new.targets),
        created=time.time() if new.created is None else new.created,
        node_types=node_types,
        document_json=to_json(new.document),
        prompt_json=None if new.prompt is None else to_json(new.prompt),
        extra_data_json=to_json(new.extra_data),
    )
    names = "number, id, priority, state, client_id, source, name, workflow_id, created"
    row = {name: getattr(run, name) for name in names.split(", ")}
    row["targets"] = None if run.targets is None else to_json(run.targets)
    row["node_types"] = "\n" + "".join(map(_typed, node_types))
    row["search_text"] = _searchable(new.name, search_text_of(new.document))
    try:
        _insert_row(connection, "runs", row)
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise
        raise DuplicateRun(
            f"found a run with id {new.id!r} already, accepted a new id; send another or none"
        ) from error
    texts = {"document": run.document_json, "prompt": run.prompt_json, "extra_data": run.extra_data_json}
    _insert_row(connection, "documents", {"run": number, **texts})
    return run


def _insert_row(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    connection.execute(f"insert into {table} ({', '.join(row)}) values (:{', :'.join(row)})", row)


def _priority(new: NewRun, number: int) -> float:
    if new.priority is None:
        return -number if new.front else number
    if not -_MAX_SQL_INTEGER <= new.priority <= _MAX_SQL_INTEGER:  # NaN is not, either
        raise ValueError(
            f"found priority {new.priority!r}, accepted a finite number of at most 19 digits; give a smaller"
        )
    return new.priority


def _workflow_id(extra_data: Mapping[str, Any]) -> str | None:
    """Return the id that ComfyUI's editor gives a workflow: extra_data.extra_pnginfo.workflow.id."""
    value: Any = extra_data
    for key in ("extra_pnginfo", "workflow", "id"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return clean(value) if isinstance(value, str) else None


def _finish(connection: sqlite3.Connection, id: str, result: RunResult, keep_runs: int) -> bool:
    found = connection.execute("select number from runs where id = ? and ended is null", (id,)).fetchone()
    if found is None:
        return False
    number = found[0]
    row = {
        "state": result.state,
        "ended": time.time() if result.ended is None else result.ended,
        "seconds": result.seconds,
        "session_loads": result.session_loads,
        "session_hits": result.session_hits,
        "problems": problems_json(result.problems),
        "messages": to_json(list(result.messages)),
        "seconds_by_node": to_json(dict(result.seconds_by_node)),
        "step_seconds_by_loop": to_json({node: list(times) for node, times in result.step_seconds_by_loop.items()}),
        "cached": to_json(list(result.cached)),
    }
    found_by = _searchable(
        *(str(problem) for problem in result.problems),
        *(output.path or "" for output in result.outputs),
        *(output.value for output in result.outputs if isinstance(output.value, str)),
    )
    assignments = ", ".join(f"{name} = :{name}" for name in row)
    sql = f"update runs set {assignments}, search_text = search_text || :found_by where number = :number"
    connection.execute(sql, {**row, "found_by": found_by, "number": number})
    rows = [output_row(number, position, output) for position, output in enumerate(result.outputs)]
    connection.executemany("insert into outputs values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    _forget_oldest(connection, keep_runs)
    return True


def _forget_oldest(connection: sqlite3.Connection, keep_runs: int) -> None:
    excess = connection.execute("select runs from history_size").fetchone()[0] - keep_runs
    if excess > 0:
        oldest = "select number from runs where ended is not null order by ended, number limit ?"
        connection.execute(f"delete from runs where number in ({oldest})", (excess,))


def _recover(connection: sqlite3.Connection, keep_runs: int) -> list[str]:
    recovered: list[str] = []
    rows = connection.execute(f"select id, attempts from runs where state = 'running' {_BY_TURN}").fetchall()
    for id, attempts in rows:
        connection.execute("update runs set attempts = attempts + 1 where id = ?", (id,))
        if attempts + 1 >= MAX_ATTEMPTS:
            message = (
                f"was running when the server ended {attempts + 1} times, accepted fewer than {MAX_ATTEMPTS}; "
                "see the server's log for why it ended, then queue the workflow again"
            )
            _finish(connection, id, RunResult("failed", problems=[Problem(message, "server_ended")]), keep_runs)
        else:
            connection.execute("update runs set state = 'queued', started = null where id = ?", (id,))
            recovered.append(id)
    _forget_oldest(connection, keep_runs)
    return recovered


def _conditions(
    text: str, node_type: str | None, state: State | Iterable[State] | None, workflow_id: str | None
) -> tuple[str, tuple[Any, ...]]:
    """Return an SQL condition and its values. instr takes % and _ for what they are, which LIKE would not."""
    words = clean(text[:_SEARCHED_CHARACTERS]).casefold().split()[:_SEARCHED_WORDS]
    conditions = ["instr(search_text, ?) > 0"] * len(words)
    values: list[Any] = list(words)
    if node_type is not None:
        conditions.append("instr(node_types, ?) > 0")
        values.append("\n" + _typed(node_type))
    if state is not None:
        states = [state] if isinstance(state, str) else list(state)
        conditions.append(f"state in ({', '.join('?' * len(states))})")
        values.extend(states)
    if workflow_id is not None:
        conditions.append("workflow_id = ?")
        values.append(clean(workflow_id))
    return " and ".join(conditions) or "true", tuple(values)


def _runs(connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[StoredRun]:
    return [run_of(row) for row in connection.execute(sql, values)]


def _runs_with_outputs(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[StoredRun]:
    runs = _runs(connection, sql, values)
    outputs_by_run: dict[int, list[StoredOutput]] = {}
    wanted = "select value from json_each(?)"
    numbers = json.dumps([run.number for run in runs])
    for row in connection.execute(f"select * from outputs where run in ({wanted}) order by run, position", (numbers,)):
        outputs_by_run.setdefault(row["run"], []).append(output_of(row))
    return [replace(run, outputs=tuple(outputs_by_run.get(run.number, ()))) for run in runs]


def _sql_integer(value: int) -> int:
    """Return a count that SQLite can take: neither negative nor beyond 64 bits."""
    return min(max(value, 0), _MAX_SQL_INTEGER)
