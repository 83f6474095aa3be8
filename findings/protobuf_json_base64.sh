#!/usr/bin/env bash
# Guess: protobuf's JSON reader refuses bytes that are not base64, and reads without a complaint
#   what its own writer wrote.
# True: It drops other characters and reads the rest: !!!! is no bytes, AB!CD is ABCD. It writes +
#   and /, of which Python 3.15 warns when they are read back: later Pythons are to drop these too.
# Versions: protobuf==7.36.2; Python 3.15; 2026-11-29
# We heed it in: pipeline/proto/pipeline/json.py has a reader of its own, which is strict.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3.15}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check protobuf==7.36.2
cat >program.py <<'EOF'
import warnings

from google.protobuf import json_format
from google.protobuf.wrappers_pb2 import BytesValue

warnings.simplefilter("always")
written = json_format.MessageToJson(BytesValue(value=b"\xfb\xff\xbf"))
for text in (written, '"-_-_"', '"!!!!"', '"AB!CD"', '"AAA*"', '"A"'):
    with warnings.catch_warnings(record=True) as caught:
        try:
            result = json_format.Parse(text, BytesValue()).value
        except json_format.ParseError:
            result = "ParseError"
    print(text, result, *(warning.category.__name__ for warning in caught))
EOF
cat >seen <<'EOF'
"+/+/" b'\xfb\xff\xbf' FutureWarning
"-_-_" b'\xfb\xff\xbf'
"!!!!" b''
"AB!CD" b'\x00\x10\x83'
"AAA*" b'\x00\x00'
"A" ParseError
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
