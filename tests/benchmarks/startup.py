"""How long the command and the server take to start, and what they hold, beside Python and aiohttp alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from tests.benchmarks.table import print_table
from tests.server.kit import resident_mb, serving


def main() -> None:
    """Print seconds of `ortloom --help` and of an empty Python, and which heavy modules the first imports."""
    code = "import sys; from app.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = [name for name in ("onnxruntime", "onnx", "numpy", "PIL", "tokenizers") if f"'{name}'" in modules]
    rows = [
        [
            "ortloom --help",
            f"{_seconds(['-m', 'app.cli', '--help']):.3f}",
            ", ".join(heavy) or "none of the heavy ones",
        ],
        ["python -c pass", f"{_seconds(['-c', 'pass']):.3f}", ""],
    ]
    print_table(["command", "seconds (best of 5)", "imports"], rows)
    print()
    _server()


def _server() -> None:
    """Print how long a new server takes to answer, and what it holds before its first run."""
    starts, resident = zip(*(_start() for _ in range(5)), strict=True)
    aiohttp = _seconds(["-c", "import aiohttp"])
    rows = [
        ["first answer, seconds", f"{min(starts):.3f} to {max(starts):.3f}", "1", f"{aiohttp:.3f}"],
        ["resident, MB", f"{max(resident):.0f}", "90", f"{_aiohttp_resident_mb():.0f}"],
    ]
    print_table(["ortloom serve", "measured", "limit", "python -c 'import aiohttp'"], rows)


def _start() -> tuple[float, float]:
    with TemporaryDirectory() as folder:
        started = perf_counter()
        with serving(Path(folder)) as server:
            server.get("/prompt")
            answered = perf_counter() - started
            server.get("/api/node_types")
            sleep(1)
            return answered, resident_mb(server.process.pid)


def _aiohttp_resident_mb() -> float:
    code = "import aiohttp, os; print(open('/proc/self/statm').read().split()[1], os.sysconf('SC_PAGE_SIZE'))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    pages, page_bytes = map(int, answer.split())
    return pages * page_bytes / 1e6


def _seconds(arguments: list[str]) -> float:
    best = float("inf")
    for _ in range(5):
        started = perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        best = min(best, perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
