#!/usr/bin/env bash
# Guess: tritonclient's HTTP client writes JSON that a fast JSON parser reads.
# True: A NaN or an infinity in an input sent as JSON is written as a bare word, which is not JSON:
#   orjson and msgspec refuse the whole body. In the other direction both write NaN as null, which
#   the client cannot read as a number.
# Versions: tritonclient[http]==2.73.0, orjson==3.13.0, msgspec==0.22.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/proto/v2/json.py: such a body is read a second time by Python's json.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check tritonclient[http]==2.73.0 orjson==3.13.0 msgspec==0.22.0
cat >program.py <<'EOF'
import json

import msgspec
import numpy as np
import orjson
from tritonclient import http

array = np.array([np.nan, np.inf], np.float32)
tensor = http.InferInput("x", [2], "FP32")
tensor.set_data_from_numpy(array, binary_data=False)
body, _ = http.InferenceServerClient.generate_request_body([tensor])
print("written:", body[body.index(b'"data"') : body.index(b"]}")])
for name, read in {"json": json.loads, "orjson": orjson.loads, "msgspec": msgspec.json.decode}.items():
    try:
        print(name, "reads", read(body)["inputs"][0]["data"])
    except ValueError as error:
        print(name, "raises", type(error).__name__)
print("orjson writes", orjson.dumps(float("nan")), "- msgspec writes", msgspec.json.encode(float("nan")))
EOF
cat >seen <<'EOF'
written: b'"data":[NaN,Infinity'
json reads [nan, inf]
orjson raises JSONDecodeError
msgspec raises DecodeError
orjson writes b'null' - msgspec writes b'null'
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
