"""A store of runs for tests, opened before and closed behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from app.server.storage.database import Database
from app.server.storage.runs import RunStore
from app.server.storage.schema import NewRun, RunResult, StoredRun

T = TypeVar("T")

DOCUMENT = {
    "version": 1,
    "nodes": {
        "1": {"class_type": "Text", "inputs": {"text": "Penguin on ice"}, "_meta": {"title": "Prompt"}},
        "2": {"class_type": "Show|pysssss", "inputs": {"text": ["1", "text"], "tags": {"__value__": ["snow", "sea"]}}},
    },
}


@asynccontextmanager
async def opened(folder: Path, keep_runs: int = 10_000, lock_limit_s: float = 30.0) -> AsyncIterator[RunStore]:
    database = Database(folder / "ortloom.db", lock_limit_s)
    try:
        yield RunStore(database, keep_runs)
    finally:
        await database.close()


def with_store(folder: Path, act: Callable[[RunStore], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Return what `act` returns on a store that is opened before and closed behind it."""

    async def run() -> T:
        async with opened(folder, **options) as store:
            return await act(store)

    return asyncio.run(run())


def a_run(id: str, **fields: Any) -> NewRun:
    return NewRun(id, fields.pop("document", DOCUMENT), **fields)


def ids(runs: Iterable[StoredRun]) -> list[str]:
    return [run.id for run in runs]


async def end(store: RunStore, *names: str, **fields: Any) -> None:
    for name in names:
        await store.add(a_run(name))
        await store.finish(name, RunResult("done", **fields))


async def add_all(store: RunStore, names: Iterable[str]) -> None:
    """Queue runs of these ids in order."""
    for name in names:
        await store.add(a_run(name))
