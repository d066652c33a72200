"""How a worker process ended, as a sentence."""

from __future__ import annotations

import signal

_BY_SIGNAL = {
    "SIGKILL": "most often because memory ran out; use smaller sizes or models, or close other programs",
    "SIGSEGV": "a crash in native code; update the model or the execution provider, or choose another device",
    "SIGABRT": "native code gave up; the worker's log has its last words",
    "SIGBUS": "a model file changed or shrank while it was in use; replace model files by renaming only",
    "SIGILL": "native code met an instruction that this processor lacks; install another build of ONNX Runtime",
    "SIGFPE": "a division by zero in native code; check the inputs of the node",
    "SIGTERM": "something told it to end; run again",
}


def exit_sentence(returncode: int) -> str:
    """Return how a process ended, e.g. `the worker process was ended by SIGKILL (signal 9): most often ...`."""
    if returncode >= 0:
        return (
            f"the worker process ended by itself with exit code {returncode}: something in a node or library called "
            "exit; the worker's log has its last words"
        )
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "a signal"
    why = _BY_SIGNAL.get(name, "the worker's log has its last words")
    return f"the worker process was ended by {name} (signal {-returncode}): {why}"
