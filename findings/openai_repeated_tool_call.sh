#!/usr/bin/env bash
# Guess: A server may say a tool call's id and name in each delta: clients know the call by its
#   index.
# True: openai-python's stream helper glues the repetitions together, the id as well as the name;
#   langchain-openai glues only the name. So both must come once, in the first delta.
# Versions: openai==3.57.0, langchain-openai==1.7.4; Python 3.11; 2026-11-29
# We heed it in: pipeline/frontends/openai/output.py: id and name are written once a call.
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

CHUNKS = [
    ({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": part}}]}, None, None)
    for part in ('{"a"', ": 1}")
] + [({}, "tool_calls", None)]
tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}

client = openai.OpenAI(api_key="none", base_url=url)
with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}], tools=[tool]) as stream:
    call = stream.get_final_completion().choices[0].message.tool_calls[0]
print("openai:", call.id, call.function.name, call.function.arguments)

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="m", api_key="none", base_url=url).bind_tools([tool])
first, *others = chat.stream("?")
for part in others:
    first += part
print("langchain:", first.tool_calls[0]["id"], first.tool_calls[0]["name"], first.tool_calls[0]["args"])
EOF
cat >seen <<'EOF'
openai: call_1call_1 addadd {"a": 1}
langchain: call_1 addadd {'a': 1}
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
