"""A model's configuration: read from its file in a repository.

The message is `ModelConfig` of proto/inference_v2.proto, whose names and numbers are Triton's; its
text form is config.pbtxt. `config.yml` says the same in YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from google.protobuf import json_format, text_format

from pipeline.config.yaml import read_yaml
from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.lenient_json import strict_json

TEXT_FILE = "config.pbtxt"
YAML_FILE = "config.yml"


def read_model_config(folder: Path) -> ModelConfig | None:
    """Return what the file in a model's folder says, and nothing else; None: there is none.

    Raises:
        ConfigError: it cannot be read or says what no configuration can; or there are two files.
    """
    text, yml = folder / TEXT_FILE, folder / YAML_FILE
    if text.is_file() and yml.is_file():
        raise ConfigError(f"{folder}: there are {TEXT_FILE} and {YAML_FILE}; keep one of them.")
    if text.is_file():
        return parse_text(text.read_bytes(), str(text))
    if not yml.is_file():
        return None
    source = read_yaml(yml)
    if source.problems:
        raise ConfigError("\n".join(source.problems))
    return parse_mapping({} if source.data is None else source.data, str(yml))


def parse_text(text: bytes, where: str) -> ModelConfig:
    """Return a configuration of its text form.

    Raises:
        ConfigError: with file, line and column.
    """
    try:
        return text_format.Parse(text.decode(), ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}:{error}{_as_triton_says(str(error))}") from None


def _as_triton_says(fault: str) -> str:
    """Return what Triton's scripts look for where a number is none, or none of its kind."""
    for words in ("Couldn't parse integer: ", "Value out of range: "):
        _, found, value = fault.rpartition(words)
        if found and value.isdigit():
            return f" - Integer out of range ({value})"
        if found:
            return f" - Expected integer, got: {value}"
    return ""


def parse_json(text: str | bytes, where: str) -> ModelConfig:
    """Return a configuration of its JSON form, as a request to load a model carries it.

    Raises:
        ConfigError: saying what is wrong.
    """
    try:
        value = _decoded(text)
    except RecursionError:
        raise ConfigError(f"{where}: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    return parse_mapping(value, where)


def _decoded(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        lenient = text if isinstance(text, str) else text.decode()
        with suppress(msgspec.DecodeError):  # the first error is about what was written
            return msgspec.json.decode(strict_json(lenient))
        raise error


def parse_mapping(value: object, where: str) -> ModelConfig:
    """Return a configuration of a mapping by Triton's names.

    Raises:
        ConfigError: saying what is wrong.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a mapping, found {type(value).__name__}.")
    try:
        return json_format.ParseDict(dict(value), ModelConfig())
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
