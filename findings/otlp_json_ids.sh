#!/usr/bin/env bash
# Guess: Traces in OTLP's JSON form can be written and read with protobuf's JSON helpers.
# True: OTLP's JSON has ids in hexadecimal, protobuf's has bytes in base64. What the helper writes
#   is refused or misread by a collector; and the helper reads a hexadecimal id as base64 without an
#   error: the 16 bytes of a trace id become 24 others.
# Versions: opentelemetry-proto==1.45.2, protobuf==6.33.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/observe/otel: only the binary form is sent.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check opentelemetry-proto==1.45.2 protobuf==6.33.6
cat >program.py <<'EOF'
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ID = "0af7651916cd43dd8448eb211c80319c"
request = ExportTraceServiceRequest()
request.resource_spans.add().scope_spans.add().spans.add().trace_id = bytes.fromhex(ID)
print("written:", json_format.MessageToJson(request, indent=None))
text = '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "%s"}]}]}]}' % ID
read = json_format.Parse(text, ExportTraceServiceRequest())
trace_id = read.resource_spans[0].scope_spans[0].spans[0].trace_id
print("read:", len(trace_id), "bytes,", trace_id.hex())
EOF
cat >seen <<'EOF'
written: {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "CvdlGRbNQ92ESOshHIAxnA=="}]}]}]}
read: 24 bytes, d1a7fbeb9d7dd7a71de3775df38e3c79bdb5d5cf34df5f5c
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
