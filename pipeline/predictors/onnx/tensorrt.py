"""TensorRT behind onnxruntime: its options by the keys of `local_service_conf`, its engine cache.

Building an engine takes minutes, so engines are kept in
`$XDG_CACHE_HOME/pipeline-serving/tensorrt` (`~/.cache` where the variable is not set), in a folder
for each model and set of options.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.errors import InitError
from pipeline.predictors.base import AcceleratedModel

_LOGGER = logging.getLogger(__name__)

Options = dict[str, str | int]

_PRECISION_FLAGS = {
    "fp32": {},
    "fp16": {"trt_fp16_enable": 1},
    "bf16": {"trt_bf16_enable": 1},
    "int8": {"trt_int8_enable": 1},
}
_PROFILES = ("min_input_shape", "opt_input_shape", "max_input_shape")
# What `onnxruntime.quantization` and TensorRT itself call a table: is it TensorRT's own kind?
_TABLES = {"calibration.flatbuffers": 0, "calibration.cache": 1}
_LOCK_FILE = "building.lock"
# How a protobuf writer puts down where a tensor's data lies: the key, and the value's length.
_WEIGHTS_FILE = re.compile(rb"\n\x08location\x12([\x01-\x7f])")


def tensorrt_options(model: AcceleratedModel, card: int) -> Options:
    """Return the provider's options, without the cache's.

    Raises InitError: the precision is unknown to TensorRT, `use_calib` has no table, or the shapes
    of `set_dynamic_shape_info` contradict each other.
    """
    path = Path(model.model_path)
    flags = _PRECISION_FLAGS.get(model.precision)
    if flags is None:
        raise InitError(
            f"[{path.name}] precision: {model.precision} is not one of TensorRT's: "
            f"{', '.join(_PRECISION_FLAGS)}"
        )
    return {
        "device_id": card,
        "trt_min_subgraph_size": model.min_subgraph_size,
        **flags,
        **_calibration(model, path),
        **_profiles(path.name, model.dynamic_shapes),
    }


def _calibration(model: AcceleratedModel, path: Path) -> Options:
    if not model.use_calib or model.precision != "int8":
        return {}
    for name, is_native in _TABLES.items():
        table = path.resolve().parent / name
        if table.is_file():
            return {
                "trt_int8_calibration_table_name": str(table),
                "trt_int8_use_native_calibration_table": is_native,
            }
    raise InitError(
        f"[{path.name}] use_calib: True needs a table of the activations' ranges beside the model "
        f"({' or '.join(_TABLES)}), as onnxruntime.quantization writes it: onnxruntime does not "
        "calibrate while it serves"
    )


def _profiles(name: str, shapes: Mapping[str, Mapping[str, Sequence[int]]]) -> Options:
    """Return smallest, usual and largest shape of each input, in TensorRT's notation."""
    if not any(shapes.values()):
        return {}
    lowest, usual, highest = (shapes.get(profile, {}) for profile in _PROFILES)
    for tensor in sorted({*lowest, *usual, *highest}):
        if not tensor or set(tensor) & set(":,"):
            raise InitError(
                f"[{name}] set_dynamic_shape_info: {tensor!r} cannot be written in TensorRT's "
                "notation of shapes"
            )
        given = [tuple(profile.get(tensor, ())) for profile in (lowest, usual, highest)]
        if not _are_ordered(given):
            stated = ", ".join(
                f"{key}: {shape}" for key, shape in zip(_PROFILES, given, strict=True)
            )
            raise InitError(
                f"[{name}] set_dynamic_shape_info: {tensor!r} must have a shape in each of min, "
                "opt and max, of one rank and with 0 < min <= opt <= max on each axis, but has "
                f"{stated}"
            )
    return {
        f"trt_profile_{key}_shapes": ",".join(
            f"{tensor}:{'x'.join(map(str, shape))}" for tensor, shape in profile.items()
        )
        for key, profile in (("min", lowest), ("opt", usual), ("max", highest))
    }


def _are_ordered(shapes: Sequence[tuple[int, ...]]) -> bool:
    lowest, usual, highest = shapes
    if not lowest or not len(lowest) == len(usual) == len(highest):
        return False
    return all(
        0 < least <= middle <= most
        for least, middle, most in zip(lowest, usual, highest, strict=True)
    )


def engine_folder(path: Path, options: Options, runtime_version: str) -> Path | None:
    """Return the folder for this model's engines with these options; None: they cannot be kept.

    onnxruntime names an engine by the graph's names and shapes and not by its weights, so it would
    run an older model's engine after a retraining: the folder's name covers what is in the file.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = f"{path.stem}-{_digest(path, options, runtime_version)}"
        folder = home / "pipeline-serving" / "tensorrt" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's, and an engine is code")
        (folder / _LOCK_FILE).touch()
    except (OSError, RuntimeError, ValueError) as error:  # no home; an empty file is not mapped
        _LOGGER.warning(
            "[%s] TensorRT's engines cannot be kept (%s), so they are built anew, in minutes, at "
            "each start: set XDG_CACHE_HOME to a folder of your own that can be written",
            path.name,
            error,
        )
        return None
    return folder


def _digest(path: Path, options: Options, runtime_version: str) -> str:
    digest = hashlib.sha256(repr((sorted(options.items()), runtime_version)).encode())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest.update(content)
        starts = [(found.end(), found[1][0]) for found in _WEIGHTS_FILE.finditer(content)]
        names = {os.fsdecode(content[start : start + length]) for start, length in starts}
    for name in sorted(names):
        weights = path.resolve().parent / name
        if weights.is_file():  # may be too large to read at each start
            facts = weights.stat()
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def cache_options(folder: Path | None) -> Options:
    """Return the provider's options for keeping engines in `folder`."""
    if folder is None:
        return {}
    return {"trt_engine_cache_enable": 1, "trt_engine_cache_path": str(folder)}


@contextlib.contextmanager
def building(folder: Path | None) -> Iterator[None]:
    """Let one process at a time build the engines of `folder`; the others then read them.

    onnxruntime writes an engine file in place, so that two builders would spoil it for each other.
    """
    if folder is None:
        yield
        return
    with (folder / _LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, or the process ends
        yield
