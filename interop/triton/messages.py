"""Compares our messages with those of Triton's client: `python messages.py FILE`, 1 on difference.

FILE is the serialized FileDescriptorProto of pipeline/proto/inference_v2.proto.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

Field = tuple[Any, ...]

NEWER = {
    (".ModelConfig", "model_metrics"),
    (".ModelEnsembling", "max_inflight_requests"),
    (".ModelMetrics", "metric_control"),
    (".ModelMetrics.MetricControl", "histogram_options"),
    (".ModelMetrics.MetricControl", "metric_identifier"),
    (".ModelMetrics.MetricControl.HistogramOptions", "buckets"),
    (".ModelMetrics.MetricControl.MetricIdentifier", "family"),
}
"""Fields of Triton that this client is too old for."""


def fields_of(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> set[Field]:
    """Every field and every value of an enumeration: name, number, type; without packages."""
    fields: set[Field] = set()
    for file in files:
        for enum in file.enum_type:
            fields |= values_of("", enum)
        for message in file.message_type:
            fields |= fields_in("", message)
    return fields


def fields_in(outer: str, message: descriptor_pb2.DescriptorProto) -> set[Field]:
    path = f"{outer}.{message.name}"
    fields: set[Field] = set()
    for field in message.field:
        one_of = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        kind = field.type_name.rpartition(".")[2]
        fields.add((path, field.name, field.number, field.type, field.label, kind, one_of))
    for enum in message.enum_type:
        fields |= values_of(path, enum)
    for nested in message.nested_type:
        fields |= fields_in(path, nested)
    return fields


def values_of(outer: str, enum: descriptor_pb2.EnumDescriptorProto) -> set[Field]:
    return {(f"{outer}.{enum.name}", value.name, value.number) for value in enum.value}


def main() -> int:
    ours = descriptor_pb2.FileDescriptorProto.FromString(Path(sys.argv[1]).read_bytes())
    theirs = []
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        theirs.append(file)
    mine = fields_of([ours])
    strange = sorted(str(each) for each in mine - fields_of(theirs) if each[:2] not in NEWER)
    for field in strange:
        print(f"FAILED messages: Triton's have no {field}")
    if not strange:
        print(f"ok messages: all {len(mine)} fields and values are Triton's")
    return 1 if strange else 0


if __name__ == "__main__":
    sys.exit(main())
