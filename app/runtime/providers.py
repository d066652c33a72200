"""Choosing execution providers: an explicit list for each device, a fallback of our own, and a report about both."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import io
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.runtime.ort_errors import shortened

CPU = "CPUExecutionProvider"

PROVIDER_BY_DEVICE = {
    "cpu": CPU,
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}

DEVICES = ("auto", *PROVIDER_BY_DEVICE)

_AUTO = ("cuda", "migraphx", "rocm", "directml", "coreml", "openvino")
"""Tried in this order for `auto`; TensorRT builds engines for minutes and is used only when asked for."""

_PROBE = base64.b64decode("CAg6NwoQCgF4EgF5IghJZGVudGl0eRIBcFoPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEA0=")
"""A model of one Identity operator on float32 [1], opset 13."""

_probing = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """What was asked for and what is used.

    device: as asked. providers: what a session is made with, always ending in the CPU's.
    why_not: reason by device for each one that was tried and cannot be used.
    """

    device: str
    providers: tuple[str, ...]
    why_not: tuple[tuple[str, str], ...] = ()

    @property
    def fell_back(self) -> bool:
        """Return whether another device than the one asked for is used."""
        wanted = PROVIDER_BY_DEVICE.get(self.device)
        return wanted is not None and self.providers[0] != wanted


def onnxruntime() -> Any:
    """Return the module, its log silenced: what it says there about providers is in our own report."""
    import onnxruntime as module

    module.set_default_logger_severity(4)
    return module


def choose(device: str) -> ProviderChoice:
    """Return the providers for a device: one of DEVICES. An unusable one falls back to the CPU, with the reason.

    Each device is probed once per process, which may take a second; a second caller waits for the first.
    """
    with _probing:
        return _choose(device)


@functools.cache
def _choose(device: str) -> ProviderChoice:
    why_not: list[tuple[str, str]] = []
    for name in _AUTO if device == "auto" else (device,):
        if name == "cpu":
            break
        reason = _why_unusable(name)
        if reason is None:
            return ProviderChoice(device, (PROVIDER_BY_DEVICE[name], CPU), tuple(why_not))
        why_not.append((name, reason))
    return ProviderChoice(device, (CPU,), tuple(why_not))


@functools.cache
def _why_unusable(device: str) -> str | None:
    """Return None when a session runs on the device, else the reason."""
    ort = onnxruntime()
    provider = PROVIDER_BY_DEVICE.get(device)
    if provider is None:
        return f"unknown device; known are {', '.join(DEVICES)}"
    if provider not in ort.get_available_providers():
        return f"this build of onnxruntime has no {provider}"
    if device in ("cuda", "tensorrt"):
        # Finds CUDA where pip puts it; prints what it cannot load, which is said below and only when it matters.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    try:
        session: Any = ort.InferenceSession(_PROBE, providers=[provider], enable_fallback=0)
        used = session.get_providers()
    except Exception as error:  # noqa: BLE001 - providers raise types of their own; the reason is kept
        return _missing_library(ort, device) or shortened(error)
    # A provider that cannot be loaded raises nothing: it is left out of the session.
    if not used or used[0] != provider:
        return _missing_library(ort, device) or f"{provider} found no device that it can use"
    return None


def _missing_library(ort: Any, device: str) -> str | None:
    """Return which library a provider's own one lacks, e.g. `libcublasLt.so.13: cannot open ...`; None if none."""
    library = Path(ort.__file__).parent / "capi" / f"libonnxruntime_providers_{device}.so"
    if sys.platform != "linux" or not library.is_file():
        return None
    try:
        ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return None
