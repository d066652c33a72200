"""One server per data folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.server.storage.data_lock import DataFolderInUse, DataLock

HOLDER = """
import sys, time
from pathlib import Path
from app.server.storage.data_lock import DataLock
lock = DataLock(Path(sys.argv[1]))
lock.acquire("127.0.0.1", 8188)
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_of_two_processes_hears_who_holds_the_folder_until_that_one_is_killed(tmp_path: Path) -> None:
    """The operating system frees a lock with its process: kill -9 must not leave the folder locked."""
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(DataFolderInUse) as refused:
            DataLock(tmp_path).acquire("127.0.0.1", 8200)
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    assert f"process {first.pid} at http://127.0.0.1:8188" in str(refused.value)
    assert "--data" in str(refused.value)
    second = DataLock(tmp_path)
    second.acquire("127.0.0.1", 8200)
    second.release()


def test_a_refused_server_leaves_the_name_of_the_holder_for_the_third(tmp_path: Path) -> None:
    """Two refusals name the same first server, the IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    first = DataLock(tmp_path)
    first.acquire("::1", 8188)
    for _ in range(2):
        with pytest.raises(DataFolderInUse, match=r"http://\[::1\]:8188"):
            DataLock(tmp_path).acquire("127.0.0.1", 8200)
    first.release()


def test_a_released_folder_is_free_for_another(tmp_path: Path) -> None:
    """Release once, or more often: another may take the folder, and then the first is refused."""
    first, second = DataLock(tmp_path), DataLock(tmp_path)
    first.acquire("127.0.0.1", 8188)
    first.release()
    first.release()
    second.acquire("127.0.0.1", 8200)
    with pytest.raises(DataFolderInUse, match="8200"):
        first.acquire("127.0.0.1", 8188)
    second.release()


def test_a_holder_that_left_no_words_is_still_respected(tmp_path: Path) -> None:
    """Between taking the lock and writing its name a server can be asked for by the next."""
    first = DataLock(tmp_path)
    first.acquire("127.0.0.1", 8188)
    first.path.write_bytes(b"")
    with pytest.raises(DataFolderInUse, match="another Ortloom server, on the data folder"):
        DataLock(tmp_path).acquire("127.0.0.1", 8200)
    first.release()
