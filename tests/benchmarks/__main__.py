"""Run every benchmark and print its table: `python -m tests.benchmarks [NAME]`."""

from __future__ import annotations

import importlib
import sys

NAMES = ("denoise_loop", "planning", "cancel", "startup", "live", "load")


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    for name in sys.argv[1:] or NAMES:
        print(f"\n{name}\n{'-' * len(name)}")
        importlib.import_module(f"tests.benchmarks.{name}").main()


if __name__ == "__main__":
    main()
