"""A model's configuration as JSON, as Triton shows it."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from pipeline.proto.inference_v2_pb2 import ModelConfig

_SIXTY_FOUR_BITS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def as_json(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration for JSON, with unset fields, in the order of their declaration.

    64-bit integers are numbers. As in Triton, nested messages that were not given are left out.
    """
    return _in_order(
        json_format.MessageToDict(
            config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        ),
        config.DESCRIPTOR,
    )


def _in_order(message: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """Return a message with its fields in the order of their declaration, at any depth."""
    return {
        field.name: _value(message[field.name], field)
        for field in descriptor.fields
        if field.name in message
    }


def _value(value: Any, field: Any) -> Any:
    """Return a field's value, or list of values; 64-bit integers are texts in protobuf's JSON."""
    if type(value) is list:
        return [_value(item, field) for item in value]
    if field.cpp_type in _SIXTY_FOUR_BITS:
        return int(value)
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return value
    if not field.message_type.GetOptions().map_entry:
        return _in_order(value, field.message_type)
    of_values = field.message_type.fields_by_name["value"]
    return {key: _value(item, of_values) for key, item in value.items()}
