"""The session pool: what is loaded, shared, evicted and refused."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from app.graph.errors import InputError
from app.runtime import sessions
from app.runtime.sessions import SessionPool
from tests.runtime.graphs import DOUBLE, add_constant, of_type, save, with_location

CPU = "CPUExecutionProvider"


def add(pool: SessionPool, path: Path, value: float = 0.0) -> list[float]:
    """Return what an `add_constant` model gives for zeros plus a value."""
    with pool.lease(path, "cpu") as lease:
        n = lease.session.get_inputs()[0].shape[0]
        result: list[float] = lease.session.run(None, {"x": np.full(n, value, np.float32)})[0].tolist()
        return result


def loaded(pool: SessionPool) -> list[str]:
    return [Path(entry["path"]).stem for entry in pool.report()]


def test_a_session_is_loaded_once_and_shared(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]))
    pool = SessionPool()
    assert pool.loads == 0
    with pool.lease(path, "cpu") as one, pool.lease(path, "cpu") as two:
        assert one.session is two.session
        assert pool.report()[0]["users"] == 2
    assert add(pool, path) == [1, 2]
    assert (pool.loads, pool.hits, pool.evictions) == (1, 2, 0)


def test_threads_that_ask_at_once_load_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]))
    pool = SessionPool()
    is_loading, may_load = threading.Event(), threading.Event()
    load = sessions.new_session

    def slow(*arguments: Any) -> Any:
        is_loading.set()
        assert may_load.wait(10)
        return load(*arguments)

    monkeypatch.setattr(sessions, "new_session", slow)
    results: list[list[float]] = []
    threads = [threading.Thread(target=lambda: results.append(add(pool, path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert is_loading.wait(10)
    may_load.set()
    for thread in threads:
        thread.join(10)
    assert results == [[1, 2]] * 4
    assert (pool.loads, pool.hits) == (1, 3)


def test_the_least_recently_used_is_evicted_when_the_budget_is_full(tmp_path: Path) -> None:
    """Three files of a little over 4,000 bytes of weights each, and room for two."""
    a, b, c = (add_constant(tmp_path, name, np.arange(1000)) for name in "abc")
    pool = SessionPool(budget_bytes=10_000)
    for path in (a, b, a, c):
        add(pool, path)
    assert loaded(pool) == ["a", "c"]
    assert (pool.loads, pool.hits, pool.evictions) == (3, 1, 1)
    assert pool.loaded_bytes == a.stat().st_size + c.stat().st_size
    add(pool, b)
    assert loaded(pool) == ["c", "b"]


def test_external_weights_count_towards_the_budget(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.arange(5000), external="w.bin")
    pool = SessionPool()
    add(pool, path)
    assert pool.loaded_bytes == 20_000


def test_a_session_in_use_is_never_evicted(tmp_path: Path) -> None:
    a, b = (add_constant(tmp_path, name, np.arange(1000)) for name in "ab")
    pool = SessionPool(budget_bytes=0)
    with pool.lease(a, "cpu") as lease:
        add(pool, b)
        assert pool.unload_all() == 0
        assert loaded(pool) == ["a"]
        assert lease.session.run(None, {"x": np.zeros(1000, np.float32)})[0][-1] == 999
    assert loaded(pool) == []
    assert pool.loaded_bytes == 0
    lease.close()
    assert pool.report() == []


def test_unload_all_unloads_what_is_idle(tmp_path: Path) -> None:
    a, b = (add_constant(tmp_path, name, np.arange(10)) for name in "ab")
    pool = SessionPool()
    add(pool, a)
    with pool.lease(b, "cpu"):
        assert pool.unload_all() == 1
        assert loaded(pool) == ["b"]
    assert (add(pool, a)[1], pool.loads, pool.evictions) == (1, 3, 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_unloading_gives_the_memory_back_to_the_system(tmp_path: Path) -> None:
    """128 MB of weights inside the file; glibc would keep most of it. A quarter is allowed to stay."""
    size = 128 << 20
    path = add_constant(tmp_path, "m", np.ones(size // 4))
    pool = SessionPool()
    add(pool, add_constant(tmp_path, "small", np.ones(1)))
    before = resident_bytes()
    pool.lease(path, "cpu").close()
    assert resident_bytes() - before > size * 3 / 4
    assert pool.unload_all() == 2
    assert resident_bytes() - before < size / 4


def test_a_model_that_changed_on_disk_is_loaded_anew(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]))
    pool = SessionPool()
    with pool.lease(path, "cpu") as old:
        add_constant(tmp_path, "m", np.array([3, 4, 5]))
        assert add(pool, path) == [3, 4, 5]
        assert old.session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 2]
    assert loaded(pool) == ["m"], "the old one is of no more use once it is given back"
    assert (pool.loads, pool.evictions) == (2, 0)


def test_a_model_whose_weights_file_was_replaced_is_loaded_anew(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]), external="w.bin")
    pool = SessionPool()
    assert add(pool, path) == [1, 2]
    np.array([8, 9], np.float32).tofile(tmp_path / "new.bin")
    (tmp_path / "new.bin").replace(tmp_path / "w.bin")
    assert add(pool, path) == [8, 9]


def test_a_failed_load_leaves_the_pool_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }")
    pool = SessionPool()
    for _ in range(2):
        with pytest.raises(InputError):
            pool.lease(path, "cpu")
    assert (pool.loads, pool.report()) == (0, [])
    add_constant(tmp_path, "m", np.array([1, 2]))
    assert add(pool, path) == [1, 2]


def test_the_report_says_what_was_asked_for_and_what_is_used(tmp_path: Path) -> None:
    """No build of onnxruntime has both CUDA and DirectML, and on Linux and macOS none has DirectML."""
    path = add_constant(tmp_path, "m", np.array([1, 2]))
    pool = SessionPool()
    with pool.lease(path, "directml"):
        [entry] = pool.report()
    assert entry == {
        "path": str(path),
        "bytes": path.stat().st_size,
        "users": 1,
        "device": "directml",
        "providers": [CPU],
        "fell_back": True,
        "why_not": {"directml": "this build of onnxruntime has no DmlExecutionProvider"},
    }


def test_a_fallback_is_reported_for_a_session_that_another_device_had_loaded(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]))
    pool = SessionPool()

    def asked_and_fell_back() -> tuple[str, bool]:
        [entry] = pool.report()
        return entry["device"], entry["fell_back"]

    with pool.lease(path, "cpu"):
        assert asked_and_fell_back() == ("cpu", False)
        with pool.lease(path, "directml"), pool.lease(path, "cpu"):
            assert asked_and_fell_back() == ("directml", True)
    assert pool.loads == 1
    with pool.lease(path, "cpu"):
        assert asked_and_fell_back() == ("cpu", False), "a new use"


def test_sessions_do_not_spin_keep_no_arena_and_leave_a_core_free(tmp_path: Path) -> None:
    with SessionPool().lease(add_constant(tmp_path, "m", np.array([1])), "cpu") as lease:
        options = lease.session.get_session_options()
    assert options.intra_op_num_threads == max(1, (os.cpu_count() or 2) - 1)
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert not options.enable_cpu_mem_arena


def broken(folder: Path, kind: str) -> Path:
    """Write a model that reads well but cannot be loaded."""
    identity = "(float[2] x) => (float[2] y) { y = Identity(x) }"
    if kind == "operator":
        return save(folder, "m", "(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }")
    if kind == "domain":
        node = helper.make_node("Fast", ["x"], ["y"], domain="com.example")
        graph = helper.make_graph([node], "g", [of_type("x", 1, [2])], [of_type("y", 1, [2])])
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx"
        )
        return folder / "m.onnx"
    if kind == "opset":
        return save(folder, "m", identity, opset=99)
    if kind == "IR version":
        return save(folder, "m", identity, ir_version=99)
    if kind == "bfloat16 on CPU":
        port = of_type("x", TensorProto.BFLOAT16, [2, 2])
        node = helper.make_node("MatMul", ["x", "x"], ["y"])
        graph = helper.make_graph([node], "g", [port], [of_type("y", TensorProto.BFLOAT16, [2, 2])])
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx"
        )
        return folder / "m.onnx"
    if kind == "dangling":
        return save(folder, "m", "(float[2] x) => (float[2] y) { y = Add(x, nowhere) }")
    path = add_constant(folder, "m", np.arange(4), external="w.bin" if kind == "short external data" else "")
    if kind == "short external data":
        (folder / "short.bin").write_bytes(b"1234")
        return with_location(path, "short.bin")
    model = onnx.load(path)
    model.graph.initializer[0].raw_data = b"123"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("kind", "code", "part"),
    [
        ("operator", "unknown_op", "No Op registered for NoSuchOperator"),
        ("domain", "unknown_op", "com.example"),
        ("opset", "unknown_opset", "update onnxruntime"),
        ("IR version", "unknown_opset", "IR version: 99"),
        ("bfloat16 on CPU", "unknown_op", r"MatMul.*choose another device, or convert the model to float32"),
        ("dangling", "model_broken", "'nowhere' is not a graph input"),
        ("short external data", "external_data_broken", "w offset: 0 size to read: 16 given file_length: 4"),
        ("short weights", "model_broken", r"raw_data size \(3 bytes\) does not match expected size"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_sentence(
    kind: str, code: str, part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=part) as caught:
        SessionPool().lease(broken(tmp_path, kind), "cpu")
    message = caught.value.message
    assert (caught.value.input, caught.value.code) == ("model", code)
    assert not any(mark in message for mark in ("\n", "::", ".cc:", ".h:", "/onnxruntime_src", "[ONNXRuntimeError]"))
    assert len(message) < 400
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_file_that_went_away_is_one_sentence(tmp_path: Path) -> None:
    path = save(tmp_path, "m", DOUBLE)
    path.unlink()
    with pytest.raises(InputError, match=r"m\.onnx, which cannot be read"):
        SessionPool().lease(path, "cpu")


class Full:
    """Stands in for a device whose memory holds one session: loading fails while another is loaded."""

    def __init__(self, pool: SessionPool) -> None:
        self.pool = pool
        self.load = sessions.new_session

    def __call__(self, *arguments: Any) -> Any:
        if self.pool.report():
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer")
        return self.load(*arguments)


def test_idle_sessions_make_room_when_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (add_constant(tmp_path, name, np.array([1, 2])) for name in "ab")
    pool = SessionPool()
    monkeypatch.setattr(sessions, "new_session", Full(pool))
    assert add(pool, a) == add(pool, b) == [1, 2]
    assert loaded(pool) == ["b"]


def test_out_of_memory_while_loading_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (add_constant(tmp_path, name, np.array([1, 2])) for name in "ab")
    pool = SessionPool()
    monkeypatch.setattr(sessions, "new_session", Full(pool))
    with pool.lease(a, "cpu"), pytest.raises(InputError, match="needs more memory than there is") as caught:
        pool.lease(b, "cpu")
    assert caught.value.code == "out_of_memory"
