"""tritonclient's own examples, unmodified, against our repository server.

They come with the sources of Triton's clients, not with the package: `TRITON_CLIENT` names a
checkout of them (triton-inference-server/client on GitHub). Without it that is said, and nothing is
run. Exits with 1 on failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import example_models
from run import Ports, free_ports, python, run, running

PICTURE = Path(__file__).resolve().parents[2] / "examples" / "ocr" / "pictures" / "page.png"
TIMEOUT_S = 60
CONTROLLED = ("simple", "simple_int8", "simple_string", "simple_identity")
_DENSENET = ("-m", "densenet_onnx", "-s", "INCEPTION", "-c", "3")
_MORE = ("simple_sequence", "simple_dyna_sequence", "repeat_int32", "densenet_onnx")
REPOSITORIES: dict[str, tuple[str, ...]] = {
    "all": tuple(example_models.MODELS),
    # The examples of control count the models.
    "seven": (*CONTROLLED, *_MORE[:3]),
    "eight": (*CONTROLLED, *_MORE),
}
OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "image_client.py": (
        _DENSENET,
        ("-i", "grpc", *_DENSENET),
        ("-a", *_DENSENET),
        ("-i", "grpc", "-a", "--streaming", *_DENSENET),
        ("-m", "batched_inception", "-b", "2", "-c", "1"),
    ),
    "grpc_image_client.py": (_DENSENET, ("--streaming", *_DENSENET)),
    "ensemble_image_client.py": (("-c", "2"), ("-i", "grpc", "-c", "2")),
    "reuse_infer_objects_client.py": ((), ("-i", "grpc")),
    "simple_http_sequence_sync_infer_client.py": ((), ("-d",)),
    "simple_grpc_sequence_sync_infer_client.py": ((), ("-d",)),
    "simple_grpc_sequence_stream_infer_client.py": ((), ("-d",)),
    "simple_grpc_aio_sequence_stream_infer_client.py": ((), ("-d",)),
}
"""Options of each run of an example; other examples run once, without options."""
LEFT_OUT = {
    "simple_grpc_cudashm_client.py": "needs a card",
    "simple_http_cudashm_client.py": "needs a card",
    "memory_growth_test.py": "has ports of its own",
}


def arguments(example: str, options: tuple[str, ...], ports: Ports) -> list[str]:
    """Return the arguments of an example."""
    over_grpc = example.startswith(("grpc_", "simple_grpc_")) or "grpc" in options
    pair = ("--http-url", f"localhost:{ports[0]}", "--grpc-url", f"localhost:{ports[1]}")
    url = ("-u", f"localhost:{ports[over_grpc]}")
    picture = (str(PICTURE),) if "image_client" in example else ()
    return [*options, *(pair if "--grpc-url" in options else url), *picture]


def fails(interpreter: Path, example: Path, options: tuple[str, ...], ports: Ports) -> bool:
    """Run an example and print the result; return whether it failed."""
    command = [str(interpreter), str(example), *arguments(example.name, options, ports)]
    name = " ".join(("example", example.name, *options))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        output, failed = done.stdout + done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired as error:
        output, failed = f"{error}\n{error.stdout!r}", True
    print(f"FAILED {name}\n{output}" if failed else f"ok {name}", flush=True)
    return failed


def repository_of(example: str) -> str:
    if "model_control" not in example:
        return "all"
    return "eight" if "grpc" in example else "seven"


def main() -> int:
    checkout = os.environ.get("TRITON_CLIENT")
    if not checkout:
        print("the examples of tritonclient are not run: TRITON_CLIENT names no checkout of them")
        return 0
    interpreter = python()
    run([str(interpreter), "-m", "pip", "install", "--quiet", "pillow", "attrdict"])
    examples = sorted((Path(checkout) / "src" / "python" / "examples").glob("*.py"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: dict[str, Ports] = {}
        for name, models in REPOSITORIES.items():
            ports = started[name] = free_ports()
            example_models.write(folder / name, models)
            command = ["-m", "pipeline", "repository", f"--model-repository={folder / name}"]
            command += [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}"]
            command += ["--allow-metrics=false", "--allow-client-shm=true"]
            if name != "all":
                command += ["--model-control-mode=explicit"]
            stack.enter_context(running(command, ports, folder))
        failed = 0
        for example in examples:
            if example.name in LEFT_OUT:
                print(f"left out {example.name}: {LEFT_OUT[example.name]}", flush=True)
                continue
            ports = started[repository_of(example.name)]
            ways = OPTIONS.get(example.name, ((),))
            # Each way is tried, also behind one that failed.
            failed += sum(fails(interpreter, example, options, ports) for options in ways) > 0
    print(f"{len(examples) - len(LEFT_OUT) - failed} of {len(examples)} examples are well")
    return 1 if failed or not examples else 0


if __name__ == "__main__":
    sys.exit(main())
