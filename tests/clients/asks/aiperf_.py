"""aiperf, with chats and embeddings and a tokenizer of our own."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokens import tokenizer_in
from told import ability, same

COUNT = 4


def results_of(*options):
    """Return what aiperf found out about a number of requests."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--url", sys.argv[1], "--tokenizer", str(tokenizer_in(Path(folder)))]
        sizes = ["--request-count", str(COUNT), "--concurrency", "2", "--isl", "10", "--osl", "5"]
        shown = ["--artifact-dir", f"{folder}/found", "--ui", "none"]
        program = Path(sys.executable).parent / "aiperf"
        command = [sys.executable, program, "profile", *place, *sizes, *shown, *options]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-500:] + run.stderr[-500:]
        return json.loads(Path(folder, "found", "profile_export_aiperf.json").read_text())


@ability("chat")
def chat():
    found = results_of("-m", "scripted", "--endpoint-type", "chat")
    same((found["request_count"]["avg"], found.get("error_request_count")), (COUNT, None))


@ability("stream")
def stream():
    found = results_of("-m", "scripted", "--endpoint-type", "chat", "--streaming")
    same((found["request_count"]["avg"], found["output_sequence_length"]["avg"]), (COUNT, 5))


@ability("completions")
def completions():
    found = results_of("-m", "scripted", "--endpoint-type", "completions", "--streaming")
    same((found["request_count"]["avg"], found["output_sequence_length"]["avg"]), (COUNT, 5))


@ability("embeddings")
def embeddings():
    found = results_of("-m", "vectors", "--endpoint-type", "embeddings")
    same((found["request_count"]["avg"], found.get("error_request_count")), (COUNT, None))
