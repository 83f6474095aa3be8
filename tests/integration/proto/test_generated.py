"""The generated code is what the .proto gives, and the .proto is the released wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from paths import ROOT

from pipeline.proto import pipeline_service_pb2

SUFFIXES = {
    "python": ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"),
    "go": (".pb.go", ".pb.gw.go"),
}

# The wire of Paddle Serving's pipeline: number, type, and whether it is repeated.
INT32, INT64, UINT32 = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
)
FLOAT, DOUBLE, BOOL = (
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_BOOL,
)
STRING, BYTES, MESSAGE = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
)
RELEASED = {
    "Tensor": {
        "int64_data": (1, INT64, True),
        "float_data": (2, FLOAT, True),
        "int_data": (3, INT32, True),
        "float64_data": (4, DOUBLE, True),
        "uint32_data": (5, UINT32, True),
        "bool_data": (6, BOOL, True),
        "complex64_data": (7, FLOAT, True),
        "complex128_data": (8, DOUBLE, True),
        "str_data": (9, STRING, True),
        "byte_data": (10, BYTES, False),
        "elem_type": (20, INT32, False),
        "shape": (21, INT32, True),
        "lod": (22, INT32, True),
        "name": (23, STRING, False),
    },
    "Request": {
        "key": (1, STRING, True),
        "value": (2, STRING, True),
        "tensors": (3, MESSAGE, True),
        "name": (4, STRING, False),
        "method": (5, STRING, False),
        "logid": (6, INT64, False),
        "clientip": (7, STRING, False),
    },
    "Response": {
        "err_no": (1, INT32, False),
        "err_msg": (2, STRING, False),
        "key": (3, STRING, True),
        "value": (4, STRING, True),
        "tensors": (5, MESSAGE, True),
    },
}


def generated(root: Path, language: str) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (root / "pipeline").rglob("*")
        if path.name.endswith(SUFFIXES[language])
    }


@pytest.mark.parametrize("language", sorted(SUFFIXES))
def test_the_committed_code_is_generated_from_the_proto_files(language: str, tmp_path: Path):
    script = ROOT / "scripts" / "generate_proto.py"
    command = [sys.executable, str(script), "--only", language, "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    fresh = generated(tmp_path, language)
    assert fresh
    assert generated(ROOT, language) == fresh


def fields(message: Descriptor) -> dict[str, tuple[int, int, bool]]:
    return {field.name: (field.number, field.type, field.is_repeated) for field in message.fields}


def test_the_messages_are_the_released_ones():
    file = pipeline_service_pb2.DESCRIPTOR
    assert file.package == "baidu.paddle_serving.pipeline_serving"
    assert {name: fields(message) for name, message in file.message_types_by_name.items()} == (
        RELEASED
    )


def test_the_service_has_the_released_name_and_methods():
    service = pipeline_service_pb2.DESCRIPTOR.services_by_name["PipelineService"]
    assert service.full_name == "baidu.paddle_serving.pipeline_serving.PipelineService"
    results = [(method.name, method.server_streaming) for method in service.methods]
    assert results == [("inference", False), ("inference_stream", True)]
    for method in service.methods:
        names = method.input_type.name, method.output_type.name, method.client_streaming
        assert names == ("Request", "Response", False)
