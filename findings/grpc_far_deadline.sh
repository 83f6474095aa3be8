#!/usr/bin/env bash
# Guess: A timeout of a very long time is as good as none.
# True: grpcio lets a call with a timeout of 1e12 seconds (or NaN) end at once with
#   DEADLINE_EXCEEDED; 1e8 seconds are fine. A timeout of 0 is not refused.
# Versions: grpcio==1.85.3; Python 3.11; 2026-11-29
# We heed it in: pipeline/config/fields.py: a configured duration has an upper bound.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check grpcio==1.85.3
cat >program.py <<'EOF'
from concurrent import futures

import grpc


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Handler()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/service/method")
for timeout in (None, 1e8, 1e12, float("nan")):
    try:
        print(timeout, call(b"answer", timeout=timeout))
    except grpc.RpcError as error:
        print(timeout, error.code())
server.stop(None)
EOF
cat >seen <<'EOF'
None b'answer'
100000000.0 b'answer'
1000000000000.0 StatusCode.DEADLINE_EXCEEDED
nan StatusCode.DEADLINE_EXCEEDED
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
