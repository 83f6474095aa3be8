"""Complaints of onnxruntime in the words of somebody who has to mend their cause."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import one_line

_LFS_POINTER = b"version https://git-lfs"

_NO_MODEL = (
    "it is no ONNX file, or is cut short or damaged: compare its size with the original's, and "
    "copy or export it again"
)
_TOO_NEW = "upgrade onnxruntime, or export the model for an older one"
_NO_WEIGHTS = (
    "is missing, which has weights of the model: copy it beside the model file, under the name "
    "that it was exported with"
)
_DEVICE = "see that its number in devices is right, its driver fits, and it has memory left"

_CAUSES = (
    (r"INVALID_PROTOBUF|No graph was found|does not have a graph", _NO_MODEL),
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        f"its ir_version is {{0}}, and this onnxruntime reads up to {{1}}: {_TOO_NEW}",
    ),
    (
        r"pset (\d+) is under development.*?till opset (\d+)",
        f"its opset is {{0}}, and this onnxruntime knows up to {{1}}: {_TOO_NEW}",
    ),
    (
        r"No Op registered for (\S+) with domain_version of (\d+)",
        "opset {1}, as this onnxruntime knows it, has no operator {0}: upgrade onnxruntime, "
        "or export the model without it",
    ),
    (
        r"Fatal error: (\S+?)\(-?\d+\) is not a registered function/op",
        "this onnxruntime has no operator {0}: export the model without it",
    ),
    (
        r"Could not find an implementation for (\S+?)\(",
        "onnxruntime has no {0} for the types that the model gives it on this device: export "
        "it with other types, such as float32",
    ),
    (r"xternal data path does not exist: \"(.+?)\"", f"{{0}} {_NO_WEIGHTS}"),
    (r"No such file or directory \[(.+?)\]", f"{{0}} {_NO_WEIGHTS}"),
    (r"GetFileLength for (.+?) failed", f"{{0}} {_NO_WEIGHTS}"),
    (
        r"External initializer: (\S+) .*(?:out of bounds|can not be read in full)",
        "the file beside it that has the weights of {0} is cut short: copy it again",
    ),
    (
        r"install TensorRT libraries",
        "TensorRT cannot be loaded: install it with the CUDA that this onnxruntime was built "
        "for, and have libnvinfer in LD_LIBRARY_PATH",
    ),
    (r"CUDA failure \d+: (.+?) ;", f"the card cannot be used ({{0}}): {_DEVICE}"),
    (r"Invalid device ID: (\d+)", f"there is no card {{0}}: {_DEVICE}"),
)


def brief(error: Exception) -> str:
    """Return one line that is short enough for an answer and a log."""
    return one_line(str(error)) or type(error).__name__


def why_it_does_not_load(path: Path, error: Exception) -> str:
    """Return what is wrong with the model or device, and what to do; else onnxruntime's text."""
    if _is_lfs_pointer(path):
        return "it is a pointer of Git LFS, not the model itself: run `git lfs pull`"
    text = " ".join(str(error).split())
    for pattern, cause in _CAUSES:
        if found := re.search(pattern, text):
            return f"{cause.format(*found.groups())} (onnxruntime: {brief(error)})"
    return brief(error)


def _is_lfs_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return False
