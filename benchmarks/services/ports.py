"""The ports on which a service under test listens, as benchmarks/process.py hands them over."""

from __future__ import annotations

import os

HTTP_PORT = int(os.environ.get("BENCH_HTTP_PORT", "18080"))
GRPC_PORT = int(os.environ.get("BENCH_GRPC_PORT", "19090"))
