"""`python -m pipeline.gateway --backend host:rpc_port ...`: the gateway before a fleet of servers.

This process becomes the gateway: its options are the binary's own, see `--help`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pipeline.errors import InitError
from pipeline.gateway.binary import cannot_run, find_binary

_WRONG_USE = 2  # as the binary itself says


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway; returns only if that is impossible, with the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        binary = find_binary()
        try:
            os.execv(binary, [binary.name, *words])
        except OSError as error:
            raise cannot_run(binary, error) from error
    except InitError as error:
        sys.stderr.write(f"pipeline.gateway: {error}\n")
    return _WRONG_USE


if __name__ == "__main__":
    raise SystemExit(main())
