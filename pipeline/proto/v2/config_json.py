"""A model's configuration as JSON, as Triton shows it."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from pipeline.proto.inference_v2_pb2 import ModelConfig

_SIXTY_FOUR_BITS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def as_json(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration for JSON, with unset fields, and with 64-bit integers as numbers.

    As in Triton, nested messages that were not given are left out.
    """
    result: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _unquote(result, config.DESCRIPTOR)
    return result


def _unquote(message: dict[str, Any], descriptor: Any) -> None:
    """Convert 64-bit integers from protobuf's texts to numbers, at any depth."""
    for name, value in message.items():
        field = descriptor.fields_by_name[name]
        if field.cpp_type in _SIXTY_FOUR_BITS:
            message[name] = [int(item) for item in value] if type(value) is list else int(value)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        elif field.message_type.GetOptions().map_entry:
            of_values = field.message_type.fields_by_name["value"]
            for item in value.values() if of_values.message_type is not None else ():
                _unquote(item, of_values.message_type)
        else:
            for item in value if type(value) is list else (value,):
                _unquote(item, field.message_type)
