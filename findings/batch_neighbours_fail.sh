#!/usr/bin/env bash
# Guess: In a server that batches, a request whose own input is refused fails alone.
# True: In LitServe and in mosec an error that a batch raises because of one request answers all
#   requests of that batch: three callers with good inputs get the 422 of the fourth.
# Versions: litserve==0.2.19, mosec==0.9.8, fastapi==0.165.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/engine/run/job.py: a failed batch of several requests runs again, one
#   request at a time.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check litserve==0.2.19 mosec==0.9.8 fastapi==0.165.0
cat >program.py <<'EOF'
import concurrent.futures
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

LITSERVE = """
import sys
import litserve
from fastapi import HTTPException

class Api(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return request["x"]
    def batch(self, inputs): return inputs
    def predict(self, inputs):
        if min(inputs) < 0:
            raise HTTPException(422, "negative")
        return inputs
    def unbatch(self, outputs): return outputs
    def encode_response(self, output): return {"y": output}

if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=4, batch_timeout=5.0), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
"""
MOSEC = """
from mosec import Server, ValidationError, Worker

class Api(Worker):
    def forward(self, inputs):
        if min(each["x"] for each in inputs) < 0:
            raise ValidationError("negative")
        return [{"y": each["x"]} for each in inputs]

if __name__ == "__main__":
    server = Server()
    server.append_worker(Api, max_batch_size=4, max_wait_time=5000)
    server.run()
"""


def ask(url, x):
    request = urllib.request.Request(url, b'{"x": %d}' % x, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


for name, source, path in (("litserve", LITSERVE, "predict"), ("mosec", MOSEC, "inference")):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pathlib.Path(f"{name}_server.py").write_text(source)
    arguments = [str(port)] if name == "litserve" else ["--address", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([sys.executable, f"{name}_server.py", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}/{path}"
    try:
        for _ in range(300):
            try:
                if ask(url, 0) == 200:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        with concurrent.futures.ThreadPoolExecutor(4) as callers:
            print(name, dict(zip((1, 2, 3, -1), callers.map(lambda x: ask(url, x), (1, 2, 3, -1)))))
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # LitServe's other processes stay when the first one is terminated
        server.wait(30)
EOF
cat >seen <<'EOF'
litserve {1: 422, 2: 422, 3: 422, -1: 422}
mosec {1: 422, 2: 422, 3: 422, -1: 422}
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
