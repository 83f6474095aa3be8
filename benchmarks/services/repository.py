"""Serves a model repository in mode explicit; all is loaded. Arguments: its folder, more flags."""

from __future__ import annotations

import os
import sys

from pipeline.cli.repository import repository

if __name__ == "__main__":
    raise SystemExit(
        repository(
            [
                f"--model-repository={sys.argv[1]}",
                "--model-control-mode=explicit",
                "--load-model=*",
                f"--http-port={os.environ['BENCH_HTTP_PORT']}",
                f"--grpc-port={os.environ['BENCH_GRPC_PORT']}",
                "--allow-metrics=false",
                *sys.argv[2:],
            ]
        )
    )
