"""`python -m pipeline COMMAND`, which is the command `pipeline`."""

from __future__ import annotations

from pipeline.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
