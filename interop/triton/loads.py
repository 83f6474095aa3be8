"""perf_analyzer in its modes against our repository server; exits with 1 on failure."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import example_models
from run import CLOSED, OPEN, Ports, free_ports, load_fails, python, running

MODELS = ("simple", "simple_string", "simple_identity", "simple_dyna_sequence", "repeat_int32")
_SEQUENCES = ("--sequence-length", "20", "--sequence-length-variation", "10")
_SHARED = ("--shared-memory", "system", "--output-shared-memory-size", "1024")
_ASYNC = ("--async", *CLOSED)
_STREAM = ("--async", "--streaming", *CLOSED)


def files(folder: Path) -> dict[str, Path]:
    """Write the tool's files: inputs, steps of sequences, requests of `repeat_int32`, intervals."""
    numbers = list(range(16))
    data = {
        "pairs": [
            {"INPUT0": numbers, "INPUT1": numbers[::-1]},
            {"INPUT0": numbers, "INPUT1": numbers},
        ],
        "steps": [[{"INPUT": [number]} for number in range(5)], [{"INPUT": [7]}, {"INPUT": [1]}]],
        "parts": [
            {
                "IN": {"content": [1, 2, 3], "shape": [3]},
                "DELAY": {"content": [0, 0, 0], "shape": [3]},
                "WAIT": [0],
            }
        ],
    }
    paths = {name: folder / f"{name}.json" for name in data}
    for name, path in paths.items():
        path.write_text(json.dumps({"data": data[name]}), encoding="utf-8")
    paths["intervals"] = folder / "intervals.txt"
    paths["intervals"].write_text("5000\n10000\n15000\n", encoding="utf-8")
    return paths


def loads(given: dict[str, Path]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Model, protocol and options of each run."""
    poisson = ("--request-distribution", "poisson", *OPEN)
    custom = ("--request-intervals", str(given["intervals"]))
    pairs = ("--input-data", str(given["pairs"]))
    steps = ("--input-data", str(given["steps"]))
    parts = ("--input-data", str(given["parts"]), "--streaming", "--async")
    both: list[tuple[str, tuple[str, ...]]] = [
        ("simple", CLOSED),
        ("simple", ("-b", "8", *CLOSED)),
        ("simple", _ASYNC),
        ("simple", OPEN),
        ("simple", poisson),
        ("simple", custom),
        ("simple", (*pairs, *CLOSED)),
        ("simple", ("--input-data", "zero", *CLOSED)),
        ("simple", (*_SHARED, *CLOSED)),
        ("simple_string", ("--string-data", "12", *CLOSED)),
        ("simple_identity", ("--shape", "INPUT0:5", "--string-length", "100", *CLOSED)),
        ("simple_dyna_sequence", (*_SEQUENCES, *CLOSED)),
        # Else it sends a step before the last one is answered, over another connection.
        (
            "simple_dyna_sequence",
            (*_SEQUENCES, "--num-of-sequences", "4", "--serial-sequences", *OPEN),
        ),
        ("simple_dyna_sequence", (*steps, *CLOSED)),
    ]
    http = [
        ("simple", ("--input-tensor-format", "json", "--output-tensor-format", "json", *CLOSED)),
    ]
    grpc = [
        ("simple", ("--request-parameter", "priority:1:int", *CLOSED)),
        ("simple", _STREAM),
        ("simple", (*_SHARED, *_STREAM)),
        ("simple", ("--grpc-compression-algorithm", "gzip", *CLOSED)),
        ("simple", ("--streaming", "--async", *OPEN)),
        ("simple_dyna_sequence", (*_SEQUENCES, *_STREAM)),
        (
            "simple_dyna_sequence",
            (*_SEQUENCES, "--serial-sequences", "--async", "--streaming", *OPEN),
        ),
        ("repeat_int32", (*parts, *CLOSED)),
        ("repeat_int32", (*parts, *OPEN)),
    ]
    return [
        *((model, protocol, options) for model, options in both for protocol in ("http", "grpc")),
        *((model, "http", options) for model, options in http),
        *((model, "grpc", options) for model, options in grpc),
    ]


def main() -> int:
    python()
    ports: Ports = free_ports()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        example_models.write(folder / "models", MODELS)
        command = ["-m", "pipeline", "repository", f"--model-repository={folder / 'models'}"]
        command += [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}"]
        command += ["--allow-metrics=false", "--allow-client-shm=true"]
        cases = loads(files(folder))
        with running(command, ports, folder):
            bad = sum(
                load_fails(model, protocol, ports[protocol == "grpc"], more)
                for model, protocol, more in cases
            )
    print(f"perf_analyzer: {len(cases) - bad} of {len(cases)} modes pass")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
