"""A model's configuration: read from its file in a repository, and shown as Triton shows it.

The message is `ModelConfig` of proto/inference_v2.proto, whose names and numbers are Triton's; its
text form is config.pbtxt. `config.yml` says the same in YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from pipeline.config.yaml import read_yaml
from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig

TEXT_FILE = "config.pbtxt"
YAML_FILE = "config.yml"

_SIXTY_FOUR_BITS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


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
        raise ConfigError(f"{where}:{error}") from None


def parse_json(text: str | bytes, where: str) -> ModelConfig:
    """Return a configuration of its JSON form, as a request to load a model carries it.

    Raises:
        ConfigError: saying what is wrong.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    return parse_mapping(value, where)


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


def as_json(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration for JSON: what is not set is there too, 64-bit numbers are numbers.

    A message within that was not given is left out, as Triton leaves it out.
    """
    found: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _unquote(found, config.DESCRIPTOR)
    return found


def _unquote(message: dict[str, Any], descriptor: Any) -> None:
    """Turn the texts that protobuf makes of 64-bit numbers into numbers, at any depth."""
    for name, value in message.items():
        field = descriptor.fields_by_name[name]
        if field.cpp_type in _SIXTY_FOUR_BITS:
            message[name] = [int(each) for each in value] if type(value) is list else int(value)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        elif field.message_type.GetOptions().map_entry:
            of_values = field.message_type.fields_by_name["value"]
            for each in value.values() if of_values.message_type is not None else ():
                _unquote(each, of_values.message_type)
        else:
            for each in value if type(value) is list else (value,):
                _unquote(each, field.message_type)
