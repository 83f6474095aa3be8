"""A model's configuration: read from its file in a repository.

The message is `ModelConfig` of proto/inference_v2.proto, whose names and numbers are Triton's; its
text form is config.pbtxt. `config.yml` says the same in YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format, text_format

from pipeline.config.yaml import read_yaml
from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig

_TOKEN = re.compile(
    r"""\s*+(?:(?P<text>"(?:[^"\\]|\\.)*+")|(?P<single>'(?:[^'\\]|\\.)*+')"""
    r"""|(?P<key>[A-Za-z_$][\w$]*+)(?=\s*+:)|(?P<other>[{}\[\],:]|[^\s"'{}\[\],:]++))""",
    re.DOTALL | re.ASCII,
)
_TO_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
_CHANGED = {r"\'": "'", '"': r"\""}


def strict_json(text: str) -> str:
    """Return JSON that protobuf reads, and Triton's clients write, as every reader takes it.

    There keys may lack quotes, text may have single ones, and a comma may follow the last element.
    A text that is not JSON even so is returned unchanged.
    """
    parts: list[str] = []
    for token in _tokens(text):
        if token in ("}", "]") and parts and parts[-1] == ",":
            parts.pop()
        parts.append(token)
    return " ".join(parts)


def is_nested_deeper(text: str, most: int) -> bool:
    """Return whether more lists and objects of a text of JSON than that are open at once."""
    depth = 0
    for token in _tokens(text):
        depth += (token in ("{", "[")) - (token in ("}", "]"))
        if depth > most:
            return True
    return False


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while token := _TOKEN.match(text, at):
        at = token.end()
        if token["single"]:
            inner = _TO_ESCAPE.sub(lambda one: _CHANGED.get(one[0], one[0]), token["single"][1:-1])
            yield f'"{inner}"'
        else:
            yield f'"{token["key"]}"' if token["key"] else token["text"] or token["other"]
    yield text[at:]


TEXT_FILE = "config.pbtxt"
YAML_FILE = "config.yml"


def read_model_config(folder: Path, name: str = "") -> ModelConfig | None:
    """Return what the file in a model's folder says, and nothing else; None: there is none.

    Args:
        name: configs/<name>.pbtxt is read if it exists, and no other file.

    Raises:
        ConfigError: it cannot be read or says what no configuration can; or there are two files.
    """
    named = folder / "configs" / f"{name}.pbtxt"
    if name and named.is_file():
        return parse_text(named.read_bytes(), str(named))
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
    except (text_format.ParseError, ValueError) as error:  # not UTF-8; a number that no enum has
        raise ConfigError(f"{where}:{error}{_as_triton_says(str(error))}") from None


def _as_triton_says(fault: str) -> str:
    """Return the words that Triton's scripts look for when a number is not valid, or of another
    kind."""
    for words in ("Couldn't parse integer: ", "Value out of range: "):
        _, separator, value = fault.rpartition(words)
        if separator and value.isdigit():
            return f" - Integer out of range ({value})"
        if separator:
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
    return parse_mapping(_with_lists(value, ModelConfig.DESCRIPTOR), where)


def _with_lists(value: object, descriptor: Any) -> object:
    """Return a message with lists in repeated fields: as in Triton, one value is a list of one."""
    if not isinstance(value, Mapping):
        return value
    fields = {**descriptor.fields_by_camelcase_name, **descriptor.fields_by_name}
    return {
        name: _listed(item, fields[name]) if name in fields and item is not None else item
        for name, item in value.items()
    }


def _listed(value: Any, field: Any) -> object:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_values = kind.fields_by_name["value"].message_type
        if of_values is None or not isinstance(value, Mapping):
            return value
        return {key: _with_lists(item, of_values) for key, item in value.items()}
    is_list = isinstance(value, list)
    items = value if is_list else [value]
    if kind is not None:
        items = [_with_lists(item, kind) for item in items]
    has_the_kind = isinstance(value, Mapping) == (kind is not None)  # others are errors
    return items if is_list or (field.is_repeated and has_the_kind) else items[0]


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
