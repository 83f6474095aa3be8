#!/usr/bin/env bash
# Guess: A client sees the status that the server gave, however long its text is.
# True: The text travels as a header. From 16 KiB on (from 8 KiB on by chance) the client reports
#   RESOURCE_EXHAUSTED instead, so that a wrong argument looks like overload and is retried. Each
#   character beyond ASCII counts for its percent-encoding: 2,730 accented letters are enough.
# Versions: grpcio==1.85.3; Python 3.11; 2026-11-29
# We heed it in: pipeline/frontends/grpc/server.py and the gateway: the text of a status has at most
#   2,000 bytes.
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
        def abort(request, context):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.decode())

        return grpc.unary_unary_rpc_method_handler(abort)


server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Handler()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/service/method")
for letter, count in (("x", 8000), ("x", 17000), ("é", 1000), ("é", 2800)):
    try:
        call((letter * count).encode(), timeout=10)
    except grpc.RpcError as error:
        print(ascii(letter), count, error.code())
server.stop(None)
EOF
cat >seen <<'EOF'
'x' 8000 StatusCode.INVALID_ARGUMENT
'x' 17000 StatusCode.RESOURCE_EXHAUSTED
'\xe9' 1000 StatusCode.INVALID_ARGUMENT
'\xe9' 2800 StatusCode.RESOURCE_EXHAUSTED
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
