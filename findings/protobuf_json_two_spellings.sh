#!/usr/bin/env bash
# Guess: protobuf's JSON reader refuses a field that is written twice, and a list where a message
#   belongs.
# True: It refuses one spelling written twice, but takes max_batch_size and maxBatchSize side by
#   side: the last one wins. An empty list is taken for an empty message, which switches the feature
#   on.
# Versions: tritonclient[grpc]==2.73.0, protobuf==6.33.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/repository/model_config.py: overrides of a model's configuration.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check tritonclient[grpc]==2.73.0 protobuf==6.33.6
cat >program.py <<'EOF'
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

for text in (
    '{"max_batch_size": 1, "max_batch_size": 2}',
    '{"max_batch_size": 1, "maxBatchSize": 2}',
    '{"dynamic_batching": []}',
    '{"dynamic_batching": [1]}',
    '{"dynamic_batching": null}',
    '{"max_batch_size": "8"}',
    '{"max_batch_size": 1e1}',
):
    try:
        config = json_format.Parse(text, ModelConfig())
        print(text, "->", " ".join(str(config).split()), "batching:", config.HasField("dynamic_batching"))
    except json_format.ParseError:
        print(text, "-> ParseError")
EOF
cat >seen <<'EOF'
{"max_batch_size": 1, "max_batch_size": 2} -> ParseError
{"max_batch_size": 1, "maxBatchSize": 2} -> max_batch_size: 2 batching: False
{"dynamic_batching": []} -> dynamic_batching { } batching: True
{"dynamic_batching": [1]} -> ParseError
{"dynamic_batching": null} ->  batching: False
{"max_batch_size": "8"} -> max_batch_size: 8 batching: False
{"max_batch_size": 1e1} -> max_batch_size: 10 batching: False
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
