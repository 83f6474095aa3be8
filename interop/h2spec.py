"""Runs h2spec, the conformance tests of HTTP/2, against the gateway's two ports, with TLS.

`python interop/h2spec.py [--h2spec PROGRAM]`: without a program, Go builds the version that is
named here. Exit status 1: a case fails that is not in `_KNOWN`, or no case in `_KNOWN` fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attack.__main__ import make_certificates
from benchmarks.attack.callers import Callers
from benchmarks.process import running

MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
_LIMIT_S = 600
_PATHS = {"HTTP": "/health/live", "gRPC": "/grpc.health.v1.Health/Check"}

# Cases where Go's servers differ from h2spec. None affects memory or other requests.
_KNOWN = {
    "HTTP": {  # net/http: another error code, or one stream ends instead of the connection
        "http2/4.2: Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE",
        "http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",
        "http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field",
        "http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value "
        'other than "trailers"',
    },
    "gRPC": set[str](),  # grpc-go ignores much that gRPC does not use: see docs/limits.md
}
_MOST_GRPC = 26


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h2spec", type=Path, help="the h2spec program")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="h2spec-") as name:
        folder = Path(name)
        program = given.h2spec or _build(folder)
        authority, certificate, key = make_certificates(folder)
        with running("secured", str(certificate), str(key)) as service:
            callers = Callers(service.http_port, service.grpc_port, authority)
            service.first_answer(callers.first)
            ports = {"HTTP": service.http_port, "gRPC": service.grpc_port}
            return max(_judge(kind, *_run(program, ports[kind], kind, folder)) for kind in ports)


def _build(folder: Path) -> Path:
    environment = os.environ | {"GOBIN": str(folder)}
    subprocess.run(["go", "install", MODULE], env=environment, check=True, timeout=_LIMIT_S)
    return folder / "h2spec"


def _run(program: Path, port: int, kind: str, folder: Path) -> tuple[int, set[str]]:
    """Return the number of cases that ran, and the names of the failed ones."""
    report = folder / f"{kind}.xml"
    subprocess.run(
        [program, "-h", "127.0.0.1", "-p", str(port), "-t", "-k", "-o", "5",
         "-P", _PATHS[kind], "-j", report],
        stdout=subprocess.DEVNULL, check=False, timeout=_LIMIT_S,
    )  # fmt: skip
    every = ElementTree.parse(report).iter("testcase")
    cases = [case for case in every if case.find("skipped") is None]
    failed = {
        f"{case.get('package')}: {case.get('classname')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return len(cases), failed


def _judge(kind: str, count: int, failed: set[str]) -> int:
    """Print what a port has done; 1 if that is worse than what is known."""
    print(f"{kind}: {count} cases, {count - len(failed)} pass")
    for name in sorted(failed):
        print(f"  {'known' if name in _KNOWN[kind] else 'fails'}: {name}")
    if kind == "gRPC":
        return int(len(failed) > _MOST_GRPC)
    return int(not failed <= _KNOWN[kind])


if __name__ == "__main__":
    sys.exit(main())
