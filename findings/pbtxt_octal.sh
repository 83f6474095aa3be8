#!/usr/bin/env bash
# Guess: Numbers in a config.pbtxt are decimal, as in JSON and YAML.
# True: A leading zero makes a number octal: 010 is 8. One setting written twice is an error, one
#   key of a map written twice is not: the last one wins. An enum may be its number, but not a text
#   in quotes.
# Versions: tritonclient[grpc]==2.73.0, protobuf==6.33.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/repository/model_config.py, which leaves the reading to protobuf.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check tritonclient[grpc]==2.73.0 protobuf==6.33.6
cat >program.py <<'EOF'
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

for text in (
    "max_batch_size: 010",
    "max_batch_size: 0x10",
    "max_batch_size: 8.0",
    "max_batch_size: 1 max_batch_size: 2",
    'parameters { key: "a" value { string_value: "1" } } parameters { key: "a" value { string_value: "2" } }',
    "instance_group { kind: 2 }",
    'instance_group { kind: "KIND_CPU" }',
):
    try:
        config = text_format.Parse(text, ModelConfig())
        print(text, "->", " ".join(str(config).split()))
    except text_format.ParseError:
        print(text, "-> ParseError")
EOF
cat >seen <<'EOF'
max_batch_size: 010 -> max_batch_size: 8
max_batch_size: 0x10 -> max_batch_size: 16
max_batch_size: 8.0 -> ParseError
max_batch_size: 1 max_batch_size: 2 -> ParseError
parameters { key: "a" value { string_value: "1" } } parameters { key: "a" value { string_value: "2" } } -> parameters { key: "a" value { string_value: "2" } }
instance_group { kind: 2 } -> instance_group { kind: KIND_CPU }
instance_group { kind: "KIND_CPU" } -> ParseError
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
