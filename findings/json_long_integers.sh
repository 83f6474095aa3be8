#!/usr/bin/env bash
# Guess: A JSON reader keeps a whole number whole, or raises an error.
# True: orjson reads an integer of more than 64 bits as a float, in silence, so that the nearest
#   other number arrives. json and msgspec keep it.
# Versions: orjson==3.13.0, msgspec==0.22.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/proto/plain_json.py, which reads plain values with msgspec;
#   pipeline/proto/v2/json_data.py refuses the float where integers are declared.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check orjson==3.13.0 msgspec==0.22.0
cat >program.py <<'EOF'
import json

import msgspec
import orjson

for text in ("18446744073709551615", "18446744073709551617", "-9223372036854775809"):
    for read in (json.loads, msgspec.json.decode, orjson.loads):
        value = read(text)
        print(text, read.__module__, type(value).__name__, int(value) == int(text))
EOF
cat >seen <<'EOF'
18446744073709551615 json int True
18446744073709551615 msgspec._core int True
18446744073709551615 orjson int True
18446744073709551617 json int True
18446744073709551617 msgspec._core int True
18446744073709551617 orjson float False
-9223372036854775809 json int True
-9223372036854775809 msgspec._core int True
-9223372036854775809 orjson float False
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
