#!/usr/bin/env bash
# Guess: A client that retries waits as long as Retry-After says, or as long as it would without the
#   header.
# True: openai-python 3 waits for a Retry-After of up to 120 seconds, ignores 0 and negative ones,
#   and for more than 120 does not retry at all: a limiter that names two minutes and a second turns
#   two retries into none. 501 is retried.
# Versions: openai==3.57.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/frontends/openai: Retry-After is 1 to 60 whole seconds.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check openai==3.57.0
cat >program.py <<'EOF'
import http.server
import threading
import time

import openai

ERROR = b'{"error": {"message": "busy", "type": "busy", "param": null, "code": "busy"}}'


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        _, status, seconds, *_ = self.path.split("/")
        requests.append(status)
        self.send_response(int(status))
        self.send_header("retry-after", seconds)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ERROR)))
        self.end_headers()
        self.wfile.write(ERROR)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
waits, requests = [], []
time.sleep = waits.append
for status, seconds in ((429, "7"), (429, "0"), (429, "-1"), (429, "120"), (429, "121"), (501, "7"), (400, "7")):
    waits.clear(), requests.clear()
    url = f"http://127.0.0.1:{server.server_port}/{status}/{seconds}"
    client = openai.OpenAI(api_key="none", base_url=url, max_retries=1)
    try:
        client.embeddings.create(model="m", input="text")
    except openai.APIStatusError:
        pass
    waited = [wait if wait > 1 else "less than 1" for wait in waits]
    print(status, "Retry-After:", seconds, "-", len(requests), "requests, waits:", waited)
EOF
cat >seen <<'EOF'
429 Retry-After: 7 - 2 requests, waits: [7.0]
429 Retry-After: 0 - 2 requests, waits: ['less than 1']
429 Retry-After: -1 - 2 requests, waits: ['less than 1']
429 Retry-After: 120 - 2 requests, waits: [120.0]
429 Retry-After: 121 - 1 requests, waits: []
501 Retry-After: 7 - 2 requests, waits: [7.0]
400 Retry-After: 7 - 1 requests, waits: []
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
