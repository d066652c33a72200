"""What `ortloom --help` imports and how long it takes, beside an empty Python."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

from tests.benchmarks.table import print_table


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


def _seconds(arguments: list[str]) -> float:
    best = float("inf")
    for _ in range(5):
        started = perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        best = min(best, perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
