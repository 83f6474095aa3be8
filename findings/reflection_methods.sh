#!/usr/bin/env bash
# Guess: gRPC's reflection finds a method by its full name, as its protocol says; the address of a server is enough for
#   tools that ask so.
# True: A Python server answers "not found" for every method, its own included: protobuf's pool of descriptors finds
#   services, messages and fields by name, not methods, also in its implementation in plain Python.
# Versions: grpcio==1.85.3, grpcio-reflection==1.85.1, protobuf==7.36.2; Python 3.11; 2026-11-29
# We heed it in: pipeline/frontends/grpc/reflection.py: a method is looked for by its service.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check grpcio==1.85.3 grpcio-reflection==1.85.1 protobuf==7.36.2
cat >program.py <<'EOF'
import concurrent.futures

import grpc
from google.protobuf.internal import api_implementation
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
reflection.enable_server_reflection([reflection.SERVICE_NAME], server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(api_implementation.Type())
package = reflection.SERVICE_NAME.rpartition(".")[0]
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    for kind, name in {
        "service": reflection.SERVICE_NAME,
        "method": f"{reflection.SERVICE_NAME}.ServerReflectionInfo",
        "message": f"{package}.ServiceResponse",
        "field": f"{package}.ServiceResponse.name",
    }.items():
        question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        (answer,) = stub.ServerReflectionInfo(iter([question]))
        print(kind, answer.WhichOneof("message_response"))
server.stop(None)
EOF
cat >seen <<'EOF'
upb
service file_descriptor_response
method error_response
message file_descriptor_response
field file_descriptor_response
python
service file_descriptor_response
method error_response
message file_descriptor_response
field file_descriptor_response
EOF
for implementation in upb python; do
  PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=$implementation env/bin/python program.py
done 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
