"""Triton's own Python client, as it is released, asks our servers: a line a check, 1 on failure.

Runs in a virtual environment without our library: `python checks.py NAME=HTTP,GRPC ...`, where
NAME is `numbers`, `echo` or `imdb`, and the others are ports.
"""

from __future__ import annotations

import sys
import traceback

import checks_data  # noqa: F401  their checks are listed
import checks_models  # noqa: F401  their checks are listed
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from caller import CHECKS, Caller


def failures(server: str, callers: dict[str, Caller]) -> int:
    """Run the checks of a server; return the number of failures."""
    count = 0
    for function, protocol in CHECKS[server]:
        name = f"tritonclient {protocol}: {server}: {function.__name__.replace('_', ' ')}"
        try:
            function(callers[protocol])
        except Exception:  # whatever a check raises, the others are run
            count += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok {name}", flush=True)
    return count


def main() -> int:
    count = 0
    for argument in sys.argv[1:]:
        server, _, given = argument.partition("=")
        http_port, grpc_port = map(int, given.split(","))
        ports = (http_port, grpc_port)
        with (
            v2_http.InferenceServerClient(f"127.0.0.1:{http_port}", concurrency=8) as http,
            v2_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as grpc,
        ):
            callers = {
                "http": Caller("http", v2_http, http, ports),
                "grpc": Caller("grpc", v2_grpc, grpc, ports),
            }
            count += failures(server, callers)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
