"""What is done to the tables of runs, inside of a transaction that somebody else opened."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.graph.errors import Problem
from app.server.storage.schema import (
    NewRun,
    RunResult,
    StoredOutput,
    StoredRun,
    clean,
    output_of,
    output_row,
    problems_json,
    run_of,
    to_json,
)
from app.server.storage.search import node_types_of, search_text_of, searchable, typed

MAX_ATTEMPTS = 3
BY_TURN = "order by priority, number"
_MAX_SQL_INTEGER = 2**63 - 1


class DuplicateRun(Exception):
    """A run with this id is in the queue or in the history already."""


def insert(connection: sqlite3.Connection, new: NewRun) -> StoredRun:
    """Queue a run. Raises DuplicateRun, and ValueError for a priority that is no finite number."""
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
    row["node_types"] = "\n" + "".join(map(typed, node_types))
    row["search_text"] = searchable(new.name, search_text_of(new.document))
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


def finish(connection: sqlite3.Connection, id: str, result: RunResult, keep_runs: int) -> bool:
    """Store how a run ended, forget the oldest beyond `keep_runs`; False when it has ended before or is not there."""
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
    found_by = searchable(
        *(str(problem) for problem in result.problems),
        *(output.path or "" for output in result.outputs),
        *(output.value for output in result.outputs if isinstance(output.value, str)),
    )
    assignments = ", ".join(f"{name} = :{name}" for name in row)
    sql = f"update runs set {assignments}, search_text = search_text || :found_by where number = :number"
    connection.execute(sql, {**row, "found_by": found_by, "number": number})
    rows = [output_row(number, position, output) for position, output in enumerate(result.outputs)]
    connection.executemany("insert into outputs values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    forget_oldest(connection, keep_runs)
    return True


def forget_oldest(connection: sqlite3.Connection, keep_runs: int) -> None:
    """Delete the ended runs beyond `keep_runs`, those first that ended first."""
    excess = connection.execute("select runs from history_size").fetchone()[0] - keep_runs
    if excess > 0:
        oldest = "select number from runs where ended is not null order by ended, number limit ?"
        connection.execute(f"delete from runs where number in ({oldest})", (excess,))


def recover(connection: sqlite3.Connection, keep_runs: int) -> list[str]:
    """Queue the runs again that were running; fail one that did so MAX_ATTEMPTS times. Returns the ids queued."""
    recovered: list[str] = []
    rows = connection.execute(f"select id, attempts from runs where state = 'running' {BY_TURN}").fetchall()
    for id, attempts in rows:
        connection.execute("update runs set attempts = attempts + 1 where id = ?", (id,))
        if attempts + 1 >= MAX_ATTEMPTS:
            message = (
                f"was running when the server ended {attempts + 1} times, accepted fewer than {MAX_ATTEMPTS}; "
                "see the server's log for why it ended, then queue the workflow again"
            )
            finish(connection, id, RunResult("failed", problems=[Problem(message, "server_ended")]), keep_runs)
        else:
            connection.execute("update runs set state = 'queued', started = null where id = ?", (id,))
            recovered.append(id)
    forget_oldest(connection, keep_runs)
    return recovered


def runs_in(connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[StoredRun]:
    """Return the runs that a selection of the schema gives, their outputs left out."""
    return [run_of(row) for row in connection.execute(sql, values)]


def runs_with_outputs(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[StoredRun]:
    """Return the runs that a selection of the schema gives, with their outputs."""
    runs = runs_in(connection, sql, values)
    outputs_by_run: dict[int, list[StoredOutput]] = {}
    wanted = "select value from json_each(?)"
    numbers = json.dumps([run.number for run in runs])
    for row in connection.execute(f"select * from outputs where run in ({wanted}) order by run, position", (numbers,)):
        outputs_by_run.setdefault(row["run"], []).append(output_of(row))
    return [replace(run, outputs=tuple(outputs_by_run.get(run.number, ()))) for run in runs]


def sql_integer(value: int) -> int:
    """Return a count that SQLite can take: neither negative nor beyond 64 bits."""
    return min(max(value, 0), _MAX_SQL_INTEGER)
