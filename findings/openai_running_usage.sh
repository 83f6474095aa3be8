#!/usr/bin/env bash
# Guess: Counts of tokens may stand in each chunk of a stream, as running totals: the last one
#   counts.
# True: openai-python's helper keeps the last one, langchain-openai adds all of them: three totals
#   of 2, 3 and 3 tokens are 3 for one and 8 for the other. A stream without a finish_reason is
#   complete for both.
# Versions: openai==3.57.0, langchain-openai==1.7.4; Python 3.11; 2026-11-29
# We heed it in: pipeline/frontends/openai/answers.py: usage is in the last chunk only, and each
#   choice ends with a finish_reason.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check openai==3.57.0 langchain-openai==1.7.4
cat >program.py <<'EOF'
import http.server
import json
import threading

import openai


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, end, usage in CHUNKS:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": usage}
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": end}]
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

def usage(tokens):
    return {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}


CHUNKS = [
    ({"role": "assistant", "content": "a"}, None, usage(1)),
    ({"content": "b"}, None, usage(2)),
    ({}, None, usage(2)),
]
client = openai.OpenAI(api_key="none", base_url=url)
with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}]) as stream:
    completion = stream.get_final_completion()
print("openai:", completion.usage.total_tokens, completion.choices[0].finish_reason)

from langchain_openai import ChatOpenAI

first, *others = ChatOpenAI(model="m", api_key="none", base_url=url, stream_usage=True).stream("?")
for part in others:
    first += part
print("langchain:", first.usage_metadata["total_tokens"], first.response_metadata.get("finish_reason"))
EOF
cat >seen <<'EOF'
openai: 3 None
langchain: 8 None
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
