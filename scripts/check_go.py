"""Check the gateway's Go code: its format, vet, its tests. The first that fails ends it.

`--fuzz-seconds N` fuzzes each of its fuzz targets for N seconds instead.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.gateway.build import SOURCES, BuildError, Toolchain, find_go


def unformatted(go: Toolchain) -> list[str]:
    """The files that gofmt would write otherwise."""
    gofmt = Path(go.run("env", "GOROOT").strip(), "bin", "gofmt")
    done = subprocess.run(
        [gofmt, "-l", "."], cwd=SOURCES, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()


def fuzz_targets() -> Iterator[tuple[str, str]]:
    """Yield package and name of each fuzz target."""
    for path in sorted(SOURCES.rglob("*_test.go")):
        for name in re.findall(r"^func (Fuzz\w+)", path.read_text("utf-8"), re.MULTILINE):
            yield f"./{path.parent.relative_to(SOURCES)}", name


def fuzz(go: Toolchain, seconds: int) -> None:
    targets = list(fuzz_targets())
    for package, name in targets:
        words = ("test", package, "-run=^$", f"-fuzz=^{name}$", f"-fuzztime={seconds}s")
        print(f"{package} {name}: {go.run(*words).splitlines()[-3]}", flush=True)
    print(f"nothing found: {seconds} s of each of {', '.join(name for _, name in targets)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzz-seconds", type=int, default=0)
    given = parser.parse_args()
    try:
        go = find_go()
        if given.fuzz_seconds:
            fuzz(go, given.fuzz_seconds)
            return 0
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
