"""Check the gateway's Go code: its format, vet, its tests. The first that fails ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.gateway.build import SOURCES, BuildError, Toolchain, find_go


def unformatted(go: Toolchain) -> list[str]:
    """The files that gofmt would write otherwise."""
    gofmt = Path(go.run("env", "GOROOT").strip(), "bin", "gofmt")
    done = subprocess.run(
        [gofmt, "-l", "."], cwd=SOURCES, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()


def main() -> int:
    try:
        go = find_go()
        if files := unformatted(go):
            sys.stderr.write(f"gofmt -w is needed, in {SOURCES}: {' '.join(files)}\n")
            return 1
        go.run("vet", "./...")
        sys.stdout.write(go.run("test", "./..."))
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
