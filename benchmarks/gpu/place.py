"""Place: where the checks run their models, and what this machine has for that."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import Any

_SMI_S = 30.0
_FIELDS = "name,memory.total,driver_version"


class MissingError(Exception):
    """Something that a check needs is not on this machine; the text says what."""


@dataclass(frozen=True)
class Place:
    """A card, or in a rehearsal the processor with small models: the same code runs.

    Args:
        is_rehearsal: no card is asked for.
        seconds: for how long something is measured.
    """

    is_rehearsal: bool = False
    seconds: float = 5.0

    def local(self, model: str, cards: str = "0", device_type: int = 1) -> dict[str, object]:
        """Return what `local_service_conf` says of a model here."""
        if self.is_rehearsal:
            return {"model_config": model}
        return {"model_config": model, "device_type": device_type, "devices": cards}

    @property
    def provider(self) -> str:
        """The provider of a bare onnxruntime session."""
        return "CPUExecutionProvider" if self.is_rehearsal else "CUDAExecutionProvider"


@cache
def cards() -> tuple[str, ...]:
    """Return a line for each NVIDIA card of this machine: its name, memory and driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=False)
    except subprocess.TimeoutExpired:
        return ()
    return tuple(done.stdout.strip().splitlines()) if done.returncode == 0 else ()


def need_card(place: Place) -> None:
    """Raise MissingError where there is no card; a rehearsal needs none."""
    if not place.is_rehearsal and not cards():
        raise MissingError("an NVIDIA card, and nvidia-smi")


def need_provider(place: Place, name: str) -> None:
    """Raise MissingError where onnxruntime has not this provider."""
    need_card(place)
    runtime = need_module("onnxruntime")
    if not place.is_rehearsal and name not in runtime.get_available_providers():
        raise MissingError(f"an onnxruntime with {name} (pip install onnxruntime-gpu)")


def need_paddle(place: Place) -> None:
    """Raise MissingError where there is no Paddle for cards."""
    need_card(place)
    paddle = need_module("paddle")
    if not place.is_rehearsal and not paddle.device.is_compiled_with_cuda():
        raise MissingError("a Paddle for CUDA (paddlepaddle-gpu)")


def need_module(name: str) -> Any:
    """Return an imported module; MissingError: it is not installed."""
    need_installed(name)
    return importlib.import_module(name)


def need_installed(name: str) -> None:
    """Raise MissingError where a package is not installed."""
    if importlib.util.find_spec(name) is None:
        raise MissingError(f"the package {name}")
