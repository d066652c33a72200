"""The database itself: transactions, kill -9, locks, full disks, broken files."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.server.storage.database import Database, StorageError
from app.server.storage.runs import RunStore
from app.server.storage.schema import SCHEMA_VERSION
from tests.server.store_kit import DOCUMENT, a_run, add_all, ids, opened, with_store


def test_a_thousand_adds_at_once_share_few_transactions(tmp_path: Path) -> None:
    """All are queued before the writer has done the first: far fewer commits than runs, and the order is kept."""

    async def act(store: RunStore) -> int:
        names = [f"run-{index:04}" for index in range(1000)]
        before = store._database.transactions
        added = await asyncio.gather(*(store.add(a_run(name)) for name in names))
        assert [run.number for run in added] == list(range(1, 1001))
        assert ids(await store.queued(documents=False)) == names
        return store._database.transactions - before

    assert with_store(tmp_path, act) <= 50


def test_an_operation_that_fails_spoils_none_beside_it(tmp_path: Path) -> None:
    """Three writes in one transaction: the middle one's half-done work is undone, the others stay."""

    async def run() -> None:
        database = Database(tmp_path / "ortloom.db")
        store = RunStore(database)

        def half(connection: sqlite3.Connection) -> None:
            connection.execute("delete from runs")
            raise KeyError("half")

        results = await asyncio.gather(
            store.add(a_run("a")), database.write(half), store.add(a_run("b")), return_exceptions=True
        )
        assert isinstance(results[1], KeyError)
        assert ids(await store.queued()) == ["a", "b"]
        await database.close()
        with pytest.raises(StorageError, match="closed"):
            await store.add(a_run("c"))

    asyncio.run(run())


def test_close_commits_what_waits(tmp_path: Path) -> None:
    """Writes that nobody has awaited yet when the database is closed are there when it is opened again."""

    async def act(store: RunStore) -> None:
        adds = [asyncio.ensure_future(store.add(a_run(str(index)))) for index in range(100)]
        await asyncio.sleep(0)
        await store._database.close()
        await asyncio.gather(*adds)

    with_store(tmp_path, act)
    assert with_store(tmp_path, lambda store: store.queue_counts()) == (0, 100)


ADDER = """
import asyncio, sys
from pathlib import Path
from app.server.storage.database import Database
from app.server.storage.runs import RunStore
from app.server.storage.schema import NewRun

async def main():
    store = RunStore(Database(Path(sys.argv[1])))
    async def add(lane):
        for index in range(100_000):
            run = await store.add(NewRun(f"{lane}-{index}", {"nodes": {}, "padding": "x" * 5000}))
            print(run.id, flush=True)
    await asyncio.gather(*(add(lane) for lane in range(4)))

asyncio.run(main())
"""


def test_kill_9_loses_no_run_that_was_acknowledged(tmp_path: Path) -> None:
    """The child prints each id only after `add` has returned; all that the parent has read must be there."""
    path = tmp_path / "ortloom.db"
    with subprocess.Popen([sys.executable, "-c", ADDER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline().strip() for _ in range(300)]
        child.kill()
        acknowledged += child.stdout.read().split()  # the last may be cut short, but then was not acknowledged whole
    stored = set(ids(with_store(tmp_path, lambda store: store.queued(documents=False))))
    assert len(acknowledged) >= 300
    assert set(acknowledged[:-1]) <= stored
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


def held_by_another(path: Path, seconds: float) -> threading.Timer:
    """Lock the database for writing, as another process would, for some seconds."""
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("begin exclusive")
    timer = threading.Timer(seconds, other.close)
    timer.start()
    return timer


def test_writes_wait_for_another_process_to_release_the_database(tmp_path: Path) -> None:
    """Held 2 s of an allowed 30: every add succeeds, and reads go on meanwhile."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("before"))
        timer = held_by_another(store._database.path, 2)
        adds = asyncio.gather(*(store.add(a_run(str(index))) for index in range(5)))
        assert await store.queue_counts() == (0, 1)
        assert len(await adds) == 5
        assert await store.queue_counts() == (0, 6)
        timer.join()

    with_store(tmp_path, act)


def test_a_database_locked_beyond_the_limit_fails_with_a_sentence_and_works_later(tmp_path: Path) -> None:
    """Held longer than the 0.2 s allowed: all waiting adds fail, nothing of them is there, the next one works."""

    async def act(store: RunStore) -> None:
        timer = held_by_another(store._database.path, 1)
        results = await asyncio.gather(*(store.add(a_run(str(index))) for index in range(3)), return_exceptions=True)
        assert [getattr(result, "code", None) for result in results] == ["database_locked"] * 3
        assert "ortloom.db locked by another process" in str(results[0])
        await asyncio.to_thread(timer.join)
        await store.add(a_run("later"))
        assert ids(await store.queued()) == ["later"]

    with_store(tmp_path, act, lock_limit_s=0.2)


def test_a_full_disk_fails_with_a_sentence_and_works_again_with_space(tmp_path: Path) -> None:
    """max_page_count makes SQLite answer SQLITE_FULL, as it does for a full disk: what fits is stored beside it."""
    big = {"nodes": {}, "padding": "x" * 200_000}

    async def act(store: RunStore) -> None:
        database = store._database
        pages = await database.write(lambda connection: connection.execute("pragma page_count").fetchone()[0])
        database._writer.execute(f"pragma max_page_count = {pages + 20}")
        results = await asyncio.gather(
            *(
                store.add(a_run(name, document=big if "big" in name else DOCUMENT))
                for name in ("a", "big", "b", "big-2")
            ),
            return_exceptions=True,
        )
        assert [getattr(result, "code", "stored") for result in results] == [
            "stored",
            "database_full",
            "stored",
            "database_full",
        ]
        assert "no space left" in str(results[1])
        database._writer.execute("pragma max_page_count = 100000")
        await store.add(a_run("big", document=big))
        assert ids(await store.queued(documents=False)) == ["a", "b", "big"]

    with_store(tmp_path, act)


def test_a_transaction_that_sqlite_undoes_whole_is_done_again_one_by_one(tmp_path: Path) -> None:
    """SQLite may roll back everything when a disk is full; an operation that rolls back itself looks the same."""

    async def run() -> None:
        database = Database(tmp_path / "ortloom.db")
        store = RunStore(database)

        def lose_all(connection: sqlite3.Connection) -> None:
            connection.execute("rollback")
            raise sqlite3.OperationalError("disk I/O error")

        results = await asyncio.gather(
            store.add(a_run("a")), database.write(lose_all), store.add(a_run("b")), return_exceptions=True
        )
        assert isinstance(results[1], StorageError)
        assert ids(await store.queued()) == ["a", "b"]
        await database.close()

    asyncio.run(run())


def broken(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "no database":
        path.write_bytes(b"not a database " * 1000)
    elif how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        path.write_bytes(whole[:100] + b"\xff" * 4000 + whole[4100:])


@pytest.mark.parametrize("how", ["no database", "cut", "first page"])
def test_a_broken_file_moves_aside_and_the_server_starts_anew(tmp_path: Path, how: str) -> None:
    """The broken bytes stay, under a number of their own each time, and the new database works."""
    path = tmp_path / "ortloom.db"
    for number in (1, 2):
        with_store(tmp_path, lambda store: add_all(store, map(str, range(50))))
        broken(path, how)
        bytes_before = path.read_bytes()

        async def act(store: RunStore) -> str | None:
            assert await store.queued() == []
            await store.add(a_run("new"))
            await store.delete_queued(["new"])
            return store._database.recovered

        said = with_store(tmp_path, act)
        aside = tmp_path / f"ortloom.db.broken-{number}"
        assert said is not None
        assert str(aside) in said
        assert aside.read_bytes() == bytes_before
        assert not (tmp_path / "ortloom.db-wal").exists()


def test_pages_broken_by_a_breakdown_are_found_at_the_next_start(tmp_path: Path) -> None:
    """A copy of files in use is what a breakdown leaves: damage in the middle is found before a run stumbles on it."""
    after = tmp_path / "after"
    after.mkdir()

    async def fill(store: RunStore) -> None:
        await add_all(store, map(str, range(500)))
        await store._database.close()
        async with opened(tmp_path) as again:
            await again.add(a_run("last"))
            for name in ("ortloom.db", "ortloom.db-wal"):
                (after / name).write_bytes((tmp_path / name).read_bytes())

    async def look(store: RunStore) -> tuple[str | None, tuple[int, int]]:
        return store._database.recovered, await store.queue_counts()

    with_store(tmp_path, fill)
    assert with_store(after, look) == (None, (0, 501))
    with_store(tmp_path, lambda store: store.clear_queued())
    with_store(tmp_path, fill)
    whole = (after / "ortloom.db").read_bytes()
    half = len(whole) // 2
    (after / "ortloom.db").write_bytes(whole[:half] + b"\xff" * 40_960 + whole[half + 40_960 :])
    recovered, counts = with_store(after, look)
    assert recovered is not None
    assert counts == (0, 0)


def test_a_whole_file_is_not_recovered(tmp_path: Path) -> None:
    """`recovered` is None for a new file and for one that was closed well."""

    async def recovered(store: RunStore) -> str | None:
        return store._database.recovered

    assert [with_store(tmp_path, recovered) for _ in range(2)] == [None, None]


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """user_version above ours: a sentence with both versions, and not one byte is changed."""
    path = tmp_path / "ortloom.db"
    with_store(tmp_path, lambda store: store.add(a_run("a")))
    connection = sqlite3.connect(path)
    connection.execute(f"pragma user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"version {SCHEMA_VERSION + 1}, accepted up to {SCHEMA_VERSION}"):
        Database(path)
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_opened_fails_with_a_sentence(tmp_path: Path) -> None:
    """A folder in the file's place is nothing that SQLite opens, nor anything to move aside."""
    (tmp_path / "ortloom.db").mkdir()
    with pytest.raises(StorageError, match="unusable"):
        Database(tmp_path / "ortloom.db")
