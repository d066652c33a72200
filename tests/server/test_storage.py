"""The queue and the history in SQLite: order, durability, and what goes wrong with files."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.graph.errors import Problem
from app.server.storage.database import Database, StorageError
from app.server.storage.runs import (
    DuplicateRun,
    NewRun,
    RunResult,
    RunStore,
    StoredOutput,
    StoredRun,
    node_types_of,
    search_text_of,
)
from app.server.storage.schema import SCHEMA_VERSION

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


def test_runs_have_their_turn_in_comfyuis_order(tmp_path: Path) -> None:
    """Recorded from ComfyUI 0.27.1: A running, then B, C, D in front, E with number -0.5 run as D, E, B, C."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("A"))
        assert await store.mark_running("A")
        for new in (a_run("B"), a_run("C"), a_run("D", front=True), a_run("E", priority=-0.5)):
            await store.add(new)
        assert await store.queue_counts() == (1, 4)
        assert ids(await store.running()) == ["A"]
        waiting = await store.queued()
        assert ids(waiting) == ["D", "E", "B", "C"]
        assert [run.priority for run in waiting] == [-4, -0.5, 2, 3]
        turns = []
        while run := await store.next_queued():
            assert await store.mark_running(run.id)
            turns.append(run.id)
        assert turns == ["D", "E", "B", "C"]

    with_store(tmp_path, act)


def test_a_run_comes_back_as_it_was_added_and_finished(tmp_path: Path) -> None:
    """What is read equals what was given, in another process's lifetime too; half a surrogate pair is no obstacle."""
    new = a_run(
        "a",
        source="comfy",
        name="ice\ud800",
        client_id="me",
        prompt={"1": {"inputs": {"text": "\ud800 \N{PENGUIN}"}}},
        extra_data={"extra_pnginfo": {"workflow": {"id": "w-1"}}},
        targets=["2"],
        priority=5,
    )
    result = RunResult(
        "failed",
        problems=[Problem("found fog, accepted ice; wait", "fog", "1", "Prompt", "text")],
        outputs=[
            StoredOutput("2", "image", "output", "ice/a.png", step=3),
            StoredOutput("2", "text", value={"n": [1]}),
        ],
        messages=[["execution_start", {"timestamp": 1}]],
        seconds=1.5,
        seconds_by_node={"1": 0.5},
        step_seconds_by_loop={"1": [0.25, 0.25]},
        cached=["2"],
        session_loads=1,
        session_hits=2,
    )

    async def act(store: RunStore) -> None:
        added = await store.add(new)
        assert added == await store.get("a")
        assert await store.mark_running("a")
        assert not await store.mark_running("a")
        assert await store.finish("a", result)
        assert not await store.finish("a", RunResult("done"))
        assert await store.get("b\ud800") is None

    with_store(tmp_path, act)
    run = with_store(tmp_path, lambda store: store.get("a"))
    assert run is not None
    assert (run.document, run.prompt, run.extra_data) == (new.document, new.prompt, new.extra_data)
    assert (run.name, run.workflow_id, run.targets, run.priority) == ("ice?", "w-1", ("2",), 5)
    assert isinstance(run.priority, int)
    assert run.node_types == ("Show|pysssss", "Text")
    for name in ("state", "messages", "seconds", "seconds_by_node", "step_seconds_by_loop", "session_hits"):
        assert getattr(run, name) == getattr(result, name)
    assert (run.problems, run.outputs) == (tuple(result.problems), tuple(result.outputs))
    assert run.started is not None
    assert run.ended is not None
    assert run.created <= run.started <= run.ended


def test_a_second_run_with_one_id_and_a_priority_without_order_are_refused(tmp_path: Path) -> None:
    """Each is an error of its own; nothing of them, nor of what was added along with them, stays."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("a"))
        with pytest.raises(DuplicateRun, match="'a'"):
            await store.add_many([a_run("b"), a_run("a")])
        for priority in (float("nan"), float("inf"), 10**400):
            with pytest.raises(ValueError, match="accepted a finite number"):
                await store.add(a_run("c", priority=priority))
        assert ids(await store.queued(documents=False)) == ["a"]

    with_store(tmp_path, act)


def test_deleting_and_clearing_touch_only_what_they_name(tmp_path: Path) -> None:
    """ComfyUI: POST /queue never touches the running run, unknown ids are ignored; POST /history only ended ones."""

    async def act(store: RunStore) -> None:
        await end(store, "done", "old")
        await store.add_many([a_run(name) for name in ("running", "b", "c", "d", "e")])
        await store.mark_running("running")
        assert await store.delete_queued(["b", "running", "done", "unknown"]) == 1
        assert await store.delete_ended(["old", "running", "c"]) == 1
        await store.add(a_run("front", front=True))
        assert await store.clear_queued() == ["front", "c", "d", "e"]
        assert await store.queue_counts() == (1, 0)
        assert ids(await store.history()) == ["done"]
        assert await store.clear_history() == 1
        assert await store.get("done") is None
        assert ids(await store.running()) == ["running"]
        assert (await store.add(a_run("next"))).number == 9

    with_store(tmp_path, act)


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
from app.server.storage.runs import NewRun, RunStore

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
        with_store(tmp_path, lambda store: store.add_many([a_run(str(index)) for index in range(50)]))
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
        await store.add_many([a_run(str(index)) for index in range(500)])
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


def test_runs_that_the_server_left_running_have_their_turn_again(tmp_path: Path) -> None:
    """After the first and second end they wait before their equals; the third makes them failed, with a sentence."""

    async def start(store: RunStore) -> list[str]:
        return await store.recover()

    async def fill(store: RunStore) -> None:
        for name in ("a", "b", "c"):
            await store.add(a_run(name, priority=7))
        await store.mark_running("a")

    with_store(tmp_path, fill)
    for attempts in (1, 2):

        async def act(store: RunStore, attempts: int = attempts) -> None:
            assert await store.recover() == ["a"]
            run = await store.next_queued()
            assert run is not None
            assert (run.id, run.state, run.attempts, run.started) == ("a", "queued", attempts, None)
            assert ids(await store.queued()) == ["a", "b", "c"]
            await store.mark_running("a")

        with_store(tmp_path, act)
    assert with_store(tmp_path, start) == []
    failed, total = with_store(tmp_path, lambda store: store.search("server ended", state="failed"))
    assert (ids(failed), total) == (["a"], 1)
    assert "was running when the server ended 3 times" in failed[0].problems[0].message


def test_a_run_put_back_in_peace_counts_no_attempt(tmp_path: Path) -> None:
    """Only a server that ended without a word can be the run's fault."""

    async def act(store: RunStore) -> None:
        await store.add_many([a_run("a"), a_run("b")])
        await store.mark_running("a")
        assert await store.put_back("a")
        assert not await store.put_back("b")
        run = await store.next_queued()
        assert run is not None
        assert (run.id, run.attempts) == ("a", 0)

    with_store(tmp_path, act)


def test_the_history_keeps_the_runs_that_ended_last(tmp_path: Path) -> None:
    """keep_runs = 3: of five ended runs the last three stay, whole; queued ones do not count."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("waiting"))
        await end(store, *"abcde", outputs=[StoredOutput("2", "image", "output", "a.png")])
        assert ids(await store.history()) == ["c", "d", "e"]
        await store.delete_ended(["d"])
        await end(store, "f")
        assert ids(await store.history()) == ["c", "e", "f"]
        tables = ("documents", "outputs")
        counts = await store._database.read(
            lambda connection: [connection.execute(f"select count(*) from {table}").fetchone()[0] for table in tables]
        )
        assert counts == [4, 2]

    async def shrink(store: RunStore) -> None:
        await store.recover()
        assert ids(await store.history()) == ["f"]

    with_store(tmp_path, act, keep_runs=3)
    with_store(tmp_path, shrink, keep_runs=1)


@pytest.mark.parametrize(
    ("max_items", "offset", "expected"),
    [
        (None, None, "abcde"),
        (2, None, "de"),
        (9, None, "abcde"),
        (2, 1, "bc"),
        (None, 3, "de"),
        (2, 9, ""),
        (0, None, ""),
        (2, -1, "de"),
        (10**30, 10**30, ""),
    ],
)
def test_the_history_is_cut_as_comfyui_cuts_it(
    tmp_path: Path, max_items: int | None, offset: int | None, expected: str
) -> None:
    """wire-protocol: max_items alone = the newest N, offset counts from the oldest, in insertion order."""

    async def act(store: RunStore) -> list[str]:
        await end(store, *"abcde")
        return ids(await store.history(max_items, offset))

    assert with_store(tmp_path, act) == list(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100%", ["percent"]),
        ("a_b", ["underscore"]),
        ("%", ["percent"]),
        ("_", ["underscore"]),
        ("PENGUIN ice", ["penguin"]),
        ("ice penguin ", ["penguin"]),
        ("ice\\", []),
        ("ÄPFEL", ["umlaut"]),
        ("fog", ["failed"]),
        ("drift/a.png", ["penguin"]),
        ("\ud800\0", []),
        ("word " * 10_000, []),
        ("", ["failed", "umlaut", "penguin", "underscore", "percent"]),
    ],
)
def test_a_search_takes_every_character_for_itself(tmp_path: Path, text: str, expected: list[str]) -> None:
    """%, _ and backslash are no wildcards; words in any order and case, in literals, names, results and errors."""

    async def act(store: RunStore) -> tuple[list[str], int]:
        literals = {"percent": "100% sure", "underscore": "a_b", "umlaut": "äpfel"}
        for name, literal in literals.items():
            document = {"nodes": {"1": {"class_type": "Text", "inputs": {"text": literal}}}}
            if name == "umlaut":
                await store.add(a_run("penguin"))
            await store.add(a_run(name, document=document))
        await store.finish("penguin", RunResult("done", outputs=[StoredOutput("2", "image", "output", "drift/a.png")]))
        await store.add(a_run("failed", document={"nodes": {}}))
        await store.finish("failed", RunResult("failed", problems=[Problem("found fog")]))
        found, total = await store.search(text)
        return ids(found), total

    assert with_store(tmp_path, act) == (expected, len(expected))


def test_a_search_filters_sorts_and_pages(tmp_path: Path) -> None:
    """By node type in full, state, workflow id; longest first means by ended - started, what has not ended last."""

    async def act(store: RunStore) -> None:
        workflow = {"extra_pnginfo": {"workflow": {"id": "w"}}}
        text_only = {"nodes": {"1": {"class_type": "Text", "inputs": {}}}}
        await store.add_many([a_run("a"), a_run("b", document=text_only), a_run("c", extra_data=workflow)])
        for name, seconds in (("a", 100), ("b", 300)):
            await store.mark_running(name)
            run = await store.get(name)
            assert run is not None
            assert run.started is not None
            await store.finish(name, RunResult("done" if name == "a" else "cancelled", ended=run.started + seconds))

        async def found(**query: Any) -> list[str]:
            return ids((await store.search(**query))[0])

        assert await found(node_type="Show|pysssss") == ["c", "a"]
        assert await found(node_type="pysssss") == []
        assert await found(state=["done", "queued"]) == ["c", "a"]
        assert await found(state=[]) == []
        assert await found(workflow_id="w") == ["c"]
        assert await found(order="longest") == ["b", "a", "c"]
        assert await found(order="shortest") == ["a", "b", "c"]
        assert await found(order="oldest", limit=1, offset=1) == ["b"]
        assert (await store.search(limit=1))[1] == 3
        with pytest.raises(ValueError, match="without its document"):
            _ = (await store.search())[0][0].document

    with_store(tmp_path, act)


def test_search_words_and_node_types_come_from_any_document() -> None:
    """Titles and literals, links left out; what has no shape of a node is passed over."""
    assert search_text_of(DOCUMENT).split("\n") == ["Prompt", "Penguin on ice", "snow", "sea"]
    assert node_types_of(DOCUMENT) == ("Show|pysssss", "Text")
    for odd in ({}, {"nodes": []}, {"nodes": {"1": 5, "2": {"class_type": 7, "inputs": [], "_meta": "x"}}}):
        assert (search_text_of(odd), node_types_of(odd)) == ("", ())
