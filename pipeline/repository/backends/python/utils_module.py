"""The module `triton_python_backend_utils`, which models import under this name."""

from __future__ import annotations

import enum
import logging
import sys
import types
from collections.abc import Mapping
from typing import Any

from pipeline.repository.backends.python import requests, tensors
from pipeline.repository.backends.python.autocomplete import CompletedConfig
from pipeline.repository.backends.python.calls import (
    InferenceRequest,
    MetricFamily,
    is_model_ready,
    load_model,
    unload_model,
)

NAME = "triton_python_backend_utils"
"""The name that models import."""

_COMPILED = "c_python_backend_utils"  # the part of it that is C++ in Triton, which some import

_CPU, _GPU = 0, 2  # TRITONSERVER_MEMORY_

_LOGGER = logging.getLogger("pipeline.model")
# The handlers choose: a process does not know what its server logs now.
_LOGGER.setLevel(logging.DEBUG)


FOLDERS: dict[str, str] = {}
"""Folders of the versions of models, by the packages of their code."""

ALONE = ""
"""The package of a model that has its process to itself."""


class Logger:
    """The server's log. Raises TypeError for anything but a text and a level."""

    class LogLevel(enum.Enum):
        """A level of Triton's log, as Python's."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = logging.DEBUG

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @classmethod
    def log(cls, message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log at one of the levels."""
        if not isinstance(message, str) or not isinstance(level, cls.LogLevel):
            raise TypeError(
                f"expected a text and a level of Logger, found {type(message).__name__} and "
                f"{type(level).__name__}"
            )
        _LOGGER.log(level.value, "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Log at INFO."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Log at WARNING."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Log at ERROR."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Log what is of use to find faults only."""
        cls.log(message, cls.VERBOSE)


class PreferredMemory:
    """The memory in which a request to another model wants its outputs: always the host's here."""

    def __init__(self, preferred_memory_type: int = _CPU, preferred_device_id: int = 0) -> None:
        self.type = preferred_memory_type
        self.device_id = preferred_device_id


def install() -> types.ModuleType:
    """Put the module where an import finds it, and return it."""
    module = types.ModuleType(NAME, __doc__)
    for name in (
        *("TRITON_STRING_TO_NUMPY", "triton_string_to_numpy", "triton_to_numpy_type"),
        *("numpy_to_triton_type", "serialize_byte_tensor", "deserialize_bytes_tensor"),
    ):
        setattr(module, name, getattr(tensors, name))
    for name in ("InferenceResponse", "TritonError"):
        setattr(module, name, getattr(requests, name))
    module.TritonModelException = tensors.TritonModelException  # type: ignore[attr-defined]
    module.Tensor = tensors.NamedTensor  # type: ignore[attr-defined]
    for kind in (InferenceRequest, Logger, MetricFamily, PreferredMemory):
        setattr(module, kind.__name__, kind)
    for function in (
        get_input_tensor_by_name,
        get_output_tensor_by_name,
        get_input_config_by_name,
        get_output_config_by_name,
        using_decoupled_model_transaction_policy,
        load_model,
        unload_model,
        is_model_ready,
        get_model_dir,
    ):
        setattr(module, function.__name__, function)
    constants = {
        "ModelConfig": CompletedConfig,
        "InferenceResponseSender": requests.ResponseSender,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": requests.FLAG_START,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": requests.FLAG_END,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": requests.COMPLETE_FINAL,
        "TRITONSERVER_REQUEST_RELEASE_ALL": requests.RELEASE_ALL,
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": requests.RELEASE_RESCHEDULE,
        "TRITONSERVER_MEMORY_CPU": _CPU,
        "TRITONSERVER_MEMORY_GPU": _GPU,
    }
    for name, value in constants.items():
        setattr(module, name, value)
    for name in (NAME, _COMPILED):
        sys.modules[name] = module
    return module


def get_model_dir() -> str:
    """Return the folder of the version of the model whose code asks. TritonModelException."""
    package = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
    folder = FOLDERS.get(package) or FOLDERS.get(ALONE)
    if folder is None:
        raise tensors.TritonModelException("get_model_dir: expected a call from a model's code")
    return folder


def get_input_tensor_by_name(inference_request: Any, name: str) -> Any:
    """Return an input of a request; None: it has none of this name."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: Any, name: str) -> Any:
    """Return an output of a response; None: it has none of this name."""
    tensors = (tensor for tensor in inference_response.output_tensors() if tensor.name() == name)
    return next(tensors, None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Return what a configuration says of an input; None: nothing."""
    return next(
        (tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None
    )


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Return what a configuration says of an output; None: nothing."""
    return next(
        (tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None
    )


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a model answers in parts."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
