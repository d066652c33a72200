"""Choosing execution providers: an explicit list for each device, a fallback of our own, and a report about both."""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass
from typing import Any

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


@functools.cache
def choose(device: str) -> ProviderChoice:
    """Return the providers for a device: one of DEVICES. An unusable one falls back to the CPU, with the reason."""
    tried = _AUTO if device == "auto" else (device,)
    why_not: list[tuple[str, str]] = []
    for name in tried:
        if name == "cpu":
            break
        reason = why_unusable(name)
        if reason is None:
            return ProviderChoice(device, (PROVIDER_BY_DEVICE[name], CPU), tuple(why_not))
        why_not.append((name, reason))
    return ProviderChoice(device, (CPU,), tuple(why_not))


@functools.cache
def why_unusable(device: str) -> str | None:
    """Return None when a session runs on the device, else the reason. Asked once per process: it may take a second."""
    import onnxruntime as ort

    provider = PROVIDER_BY_DEVICE.get(device)
    if provider is None:
        return f"unknown device; known are {', '.join(DEVICES)}"
    if provider not in ort.get_available_providers():
        return f"this build of onnxruntime has no {provider}"
    # Without a CPU to fall back on, a provider that cannot be loaded raises instead of being replaced in silence.
    ort.set_default_logger_severity(4)
    try:
        session: Any = ort.InferenceSession(_PROBE, providers=[provider], enable_fallback=0)
        used = session.get_providers()
    except Exception as error:  # noqa: BLE001 - providers raise types of their own; the reason is kept
        return _first_line(error)
    finally:
        ort.set_default_logger_severity(3)
    return None if used and used[0] == provider else f"{provider} could not be loaded; its libraries are missing"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
