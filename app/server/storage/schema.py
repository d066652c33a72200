"""The tables, and the records that they hold."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from app.graph.errors import Problem

State = Literal["queued", "running", "done", "failed", "cancelled"]
EndState = Literal["done", "failed", "cancelled"]
Source = Literal["comfy", "api", "live", "workflow"]
OutputFolder = Literal["output", "temp", ""]

# Documents stand in a table of their own: a row of `runs` is rewritten whole at each change of state, and 5,000 of
# them are listed without theirs. `priority` has no type, so that an integer comes back as one.
_FIRST_VERSION = (
    """
    create table runs (
        number integer primary key autoincrement,
        id text not null unique,
        priority not null,
        state text not null check (state in ('queued', 'running', 'done', 'failed', 'cancelled')),
        client_id text,
        source text not null check (source in ('comfy', 'api', 'live', 'workflow')),
        name text not null,
        workflow_id text,
        targets text,
        created real not null,
        started real,
        ended real,
        attempts integer not null default 0,
        seconds real not null default 0,
        session_loads integer not null default 0,
        session_hits integer not null default 0,
        problems text,
        messages text,
        seconds_by_node text,
        step_seconds_by_loop text,
        cached text,
        node_types text not null,
        search_text text not null
    )
    """,
    "create index runs_by_turn on runs (state, priority, number)",
    "create index runs_by_end on runs (ended, number) where ended is not null",
    """
    create table documents (
        run integer primary key references runs (number) on delete cascade,
        document text not null,
        prompt text,
        extra_data text not null
    )
    """,
    """
    create table outputs (
        run integer not null references runs (number) on delete cascade,
        position integer not null,
        node text not null,
        type text not null,
        folder text not null check (folder in ('output', 'temp', '')),
        path text,
        value text,
        step integer,
        primary key (run, position)
    )
    """,
    # The size of the history, so that no run has to count 10,000 rows to learn whether the oldest must go.
    "create table history_size (runs integer not null)",
    "insert into history_size values (0)",
    """
    create trigger run_ended after update of ended on runs when old.ended is null and new.ended is not null
    begin update history_size set runs = runs + 1; end
    """,
    """
    create trigger ended_run_deleted after delete on runs when old.ended is not null
    begin update history_size set runs = runs - 1; end
    """,
)
UPGRADES: tuple[tuple[str, ...], ...] = (_FIRST_VERSION,)
SCHEMA_VERSION = len(UPGRADES)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring the tables to SCHEMA_VERSION, inside the transaction of the caller; a newer database stays as it is."""
    version = schema_version(connection)
    if version < SCHEMA_VERSION:
        for statements in UPGRADES[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"pragma user_version = {SCHEMA_VERSION}")


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the tables in a database; 0 for an empty one."""
    return int(connection.execute("pragma user_version").fetchone()[0])


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to queue.

    document, extra_data: JSON objects. prompt: what clients of ComfyUI's API get back; None where the document says it.
    priority: any finite number, lower first; None for the run's number, with `front` its negative.
    targets: ids of the output nodes to run; None for all. created: seconds since 1970; None means the present moment.
    """

    id: str
    document: Mapping[str, Any]
    source: Source = "api"
    name: str = ""
    client_id: str | None = None
    prompt: Mapping[str, Any] | None = None
    extra_data: Mapping[str, Any] = field(default_factory=dict)
    targets: Sequence[str] | None = None
    priority: float | None = None
    front: bool = False
    created: float | None = None


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One result of a run. folder and path: where its file lies, path relative with slashes; value: what is no file."""

    node: str
    type: str
    folder: OutputFolder = ""
    path: str | None = None
    value: Any = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    messages: ComfyUI's status messages, [event, data] each. ended: seconds since 1970; None means the present moment.
    All else is what the engine's RunRecord says.
    """

    state: EndState
    problems: Sequence[Problem] = ()
    outputs: Sequence[StoredOutput] = ()
    messages: Sequence[Any] = ()
    seconds: float = 0.0
    seconds_by_node: Mapping[str, float] = field(default_factory=dict)
    step_seconds_by_loop: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cached: Sequence[str] = ()
    session_loads: int = 0
    session_hits: int = 0
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as the database has it.

    number: counts all runs ever added, from 1. priority: ComfyUI's `number`; the lowest has its turn first, and among
    equals the one with the lowest number.
    attempts: how often the server ended while it ran. workflow_id: what the editor of ComfyUI calls the workflow.
    document_json, prompt_json, extra_data_json: JSON texts; document_json is None where it was read without them.
    """

    number: int
    id: str
    priority: float
    state: State
    client_id: str | None
    source: Source
    name: str
    workflow_id: str | None
    created: float
    targets: tuple[str, ...] | None = None
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    seconds: float = 0.0
    session_loads: int = 0
    session_hits: int = 0
    problems: tuple[Problem, ...] = ()
    messages: list[Any] = field(default_factory=list)
    seconds_by_node: dict[str, float] = field(default_factory=dict)
    step_seconds_by_loop: dict[str, list[float]] = field(default_factory=dict)
    cached: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    document_json: str | None = None
    prompt_json: str | None = None
    extra_data_json: str = "{}"
    outputs: tuple[StoredOutput, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The workflow. Raises ValueError when the run was read without it."""
        if self.document_json is None:
            raise ValueError(f"run {self.id} was read without its document; read it with RunStore.get")
        return cast("dict[str, Any]", json.loads(self.document_json))

    @property
    def prompt(self) -> dict[str, Any] | None:
        """What clients of ComfyUI's API get back, or None where the document says it."""
        return None if self.prompt_json is None else cast("dict[str, Any]", json.loads(self.prompt_json))

    @property
    def extra_data(self) -> dict[str, Any]:
        """What the client sent along with the prompt."""
        return cast("dict[str, Any]", json.loads(self.extra_data_json))


_COLUMNS = (
    "number, id, priority, state, client_id, source, name, workflow_id, targets, created, started, ended, attempts, "
    "seconds, session_loads, session_hits, problems, messages, seconds_by_node, step_seconds_by_loop, cached, "
    "node_types"
)
_DOCUMENTS = "document as document_json, prompt as prompt_json, extra_data as extra_data_json"
LIGHT_SELECT = f"select {_COLUMNS} from runs"
FULL_SELECT = f"select {_COLUMNS}, {_DOCUMENTS} from runs join documents on run = number"


_DECODERS: dict[str, Callable[[str], Any]] = {
    "targets": lambda text: tuple(json.loads(text)),
    "problems": lambda text: tuple(Problem(*fields) for fields in json.loads(text)),
    "messages": json.loads,
    "seconds_by_node": json.loads,
    "step_seconds_by_loop": json.loads,
    "cached": lambda text: tuple(json.loads(text)),
    "node_types": lambda text: tuple(text.split("\n")[1:-1]),
}


def run_of(row: sqlite3.Row) -> StoredRun:
    """Return the run in a row of LIGHT_SELECT or FULL_SELECT, its outputs left out."""
    fields: dict[str, Any] = dict(zip(row.keys(), row, strict=True))
    for name, decode in _DECODERS.items():
        text = fields.pop(name)
        if text is not None:  # else the default of the field holds
            fields[name] = decode(text)
    return StoredRun(**fields)


def problems_json(problems: Sequence[Problem]) -> str:
    """Return problems as `run_of` reads them."""
    return to_json([[item.message, item.code, item.node, item.title, item.input] for item in problems])


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def to_json(value: Any) -> str:
    """Return short JSON in ASCII: SQLite refuses the halves of surrogate pairs that clients may send."""
    return _encode(value)


def output_row(run: int, position: int, output: StoredOutput) -> tuple[Any, ...]:
    """Return an output as a row of its table."""
    value = None if output.value is None else to_json(output.value)
    names = (clean(output.node), clean(output.type), output.folder, None if output.path is None else clean(output.path))
    return (run, position, *names, value, output.step)


def output_of(row: sqlite3.Row) -> StoredOutput:
    """Return the output in a row of its table."""
    value = None if row["value"] is None else json.loads(row["value"])
    return StoredOutput(row["node"], row["type"], row["folder"], row["path"], value, row["step"])


def clean(text: str) -> str:
    """Return a text that SQLite can store: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode()
