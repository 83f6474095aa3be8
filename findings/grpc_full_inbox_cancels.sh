#!/usr/bin/env bash
# Guess: Calls that a busy server has not taken in yet wait, or end at their deadlines.
# True: When about 1000 of them wait, grpcio's server ends further ones with CANCELLED and without
#   a text, as if their callers had left. The server's code never sees them, and the callers have
#   a minute left. (Core's argument grpc.server.max_pending_requests is not documented.)
# Versions: grpcio==1.85.3; Python 3.11; 2026-11-30
# We heed it in: docs/limits.md: a flood over gRPC.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check grpcio==1.85.3
cat >server.py <<'EOF'
import asyncio
import time

import grpc


async def answer(request, context):
    if request == b"block":
        time.sleep(5)
    return request


async def main():
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(answer)
    server.add_registered_method_handlers("service", {"method": method})
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("service", {"method": method})])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
EOF
cat >program.py <<'EOF'
import asyncio
import collections
import subprocess
import sys

import grpc

CALLS = 4000


async def main(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/service/method")
        await call(b"first")
        counts = collections.Counter()

        async def ask(request):
            try:
                await call(request, timeout=60)
                counts["answered"] += 1
            except grpc.aio.AioRpcError as error:
                counts[error.code().name, error.details()] += 1

        await asyncio.gather(ask(b"block"), *(ask(b"") for _ in range(CALLS)))
        cancelled = counts.pop(("CANCELLED", "CANCELLED"), 0)
        print("hundreds of calls ended with CANCELLED and no other text:", cancelled > 200)
        print("a thousand were answered:", counts.pop("answered", 0) >= 1000)
        print("others:", dict(counts))


with subprocess.Popen([sys.executable, "server.py"], stdout=subprocess.PIPE, text=True) as server:
    asyncio.run(main(int(server.stdout.readline())))
    server.kill()
EOF
cat >seen <<'EOF'
hundreds of calls ended with CANCELLED and no other text: True
a thousand were answered: True
others: {}
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
