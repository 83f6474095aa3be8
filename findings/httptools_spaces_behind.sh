#!/usr/bin/env bash
# Guess: httptools gives a header's value without the spaces around it, which HTTP excludes from the
#   value (RFC 9110, 5.5).
# True: It removes those in front of the value and leaves those behind it, also for Content-Length,
#   which it reads rightly itself. Of nothing but spaces nothing is left.
# Versions: httptools==0.9.0; Python 3.11; 2026-11-30
# We heed it in: pipeline/proto/http.py: SPACES, which the readers of requests and answers remove.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check httptools==0.9.0
cat >program.py <<'EOF'
import httptools


class Head:
    def on_header(self, name, value):
        print(name.decode(), repr(value.decode()))

    def on_message_complete(self):
        print("complete")


lines = (b"POST / HTTP/1.1", b"Before:  x", b"Behind: x \t", b"Only:  ", b"Content-Length: 2 ", b"", b"{}")
httptools.HttpRequestParser(Head()).feed_data(b"\r\n".join(lines))
EOF
cat >seen <<'EOF'
Before 'x'
Behind 'x \t'
Only ''
Content-Length '2 '
complete
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
