"""Compares the answers of our repository server with those of the genuine Triton 2.51.

The genuine server is part of nvidia-pytriton; if that cannot be installed, a message says so and
nothing is compared. Intended differences are in `docs/triton_differences.md` and in the rules of
`is_same`; any other difference fails.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import questions
import repository
from run import ROOT, free_ports

sys.path.insert(0, str(ROOT))
import beside_grpc

from benchmarks.services.triton import installed

START_S = 60.0
STOP_S = 30.0
SEED, WRONG = 1, 400
COUNTED = ["add", "add_batched", "any_size", "texts", "labelled", "chain", "outer"]
# Shapes of this size end the genuine server.
_FATAL = re.compile(rb"9223372036854775808|1099511627776|Infinity")
_ID = re.compile(r"\[request id: [^\]]*\] ")
_FOLDER = re.compile(r"/\S*/(\w+/\d+/model\.py)")
_OF_JSON = ("Unable to parse", "failed to parse", "attempt to")
_SAYS_SO = (*_OF_JSON[:2], "must be a JSON object", "has invalid type", "must set only one")
_SHOWN = 300


class Reply(NamedTuple):
    """An answer; `content` is its JSON, or its text."""

    status: int
    content: Any
    tail: bytes = b""


@contextmanager
def running(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """Run a server that is live at `port`; end it afterwards."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not is_settled(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start:\n{log.read().decode()}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            finally:
                process.kill()


def is_settled(port: int) -> bool:
    """Return whether a server has loaded, or failed to load, every model."""
    index = urllib.request.Request(f"http://127.0.0.1:{port}/v2/repository/index", b"")
    try:
        with urllib.request.urlopen(index, timeout=5) as answer:
            states = {model["name"]: model.get("state") for model in json.load(answer)}
    except OSError:
        return False
    ready = [name for name in repository.MODELS if name not in repository.NOT_LOADED]
    return all(states.get(name) == "READY" for name in ready)


def ask(port: int, question: questions.Question) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(question.method, question.path, question.body, question.headers)
        answer = connection.getresponse()
        body = answer.read()
        length = int(answer.headers.get("Inference-Header-Content-Length", len(body)))
        try:
            content = json.loads(body[:length])
        except ValueError:
            content = body.decode(errors="replace")
        return Reply(answer.status, plain(content), body[length:])
    finally:
        connection.close()


def plain(answer: Any) -> Any:
    """Return an answer without parts that may differ: the order of outputs, times, folders."""
    if isinstance(answer, dict):
        fields = {
            key: plain(field)
            for key, field in answer.items()
            if key not in ("ns", "last_inference", "version" if "extensions" in answer else "ns")
        }
        for key in ("outputs", "extensions"):
            if isinstance(fields.get(key), list):
                fields[key] = sorted(fields[key], key=str)
        return fields
    if isinstance(answer, list):
        return [plain(element) for element in answer]
    return _FOLDER.sub(r"\1", answer) if isinstance(answer, str) else answer


def is_same(question: questions.Question, theirs: Reply, ours: Reply) -> bool:
    """Return whether two answers are the same, or differ on purpose."""
    if theirs == ours:
        return True
    if theirs.content == "" and ours.status == theirs.status:
        return True  # KServe's clients want a body where Triton has none
    their_text, our_text = texts_of(theirs), texts_of(ours)
    if their_text is None or our_text is None:
        return is_stricter(theirs, ours) or is_meant(question, theirs, ours)
    is_json = their_text.startswith(_OF_JSON)
    if ours.status != theirs.status and not (is_json and ours.status == 400):
        return is_stricter(theirs, ours) or is_meant(question, theirs, ours)
    their_text, our_text = _ID.sub("", their_text).rstrip(". "), _ID.sub("", our_text)
    # Both are right where several things are wrong; we refuse more than Triton does.
    return their_text in our_text or ours.status == 400


def texts_of(reply: Reply) -> str | None:
    error = reply.content.get("error") if isinstance(reply.content, dict) else None
    return error if isinstance(error, str) else None


def is_stricter(theirs: Reply, ours: Reply) -> bool:
    """Return whether we refuse an invalid request that Triton passes to the model."""
    text = texts_of(ours) or ""
    words = (*_SAYS_SO, "must be", "expecting", "has the parameter", "unrecognized", "must specify")
    words += ("expects",)  # a text as id, where the control has room for a number
    return ours.status == 400 and any(word in text for word in words)


def is_meant(question: questions.Question, theirs: Reply, ours: Reply) -> bool:
    """Return whether a difference is listed in docs/triton_differences.md."""
    if "binary_data_output" in question.body.decode(errors="replace"):
        return ours.status == theirs.status == 200  # ours is the default of outputs that are named
    if not question.path.startswith("/v2") or "%" in question.path or question.path == "/v2":
        return True
    if "/repository/" in question.path:
        return {ours.status, theirs.status} <= {200, 400, 500}
    if question.path.endswith(("/stats", "/config")):
        return ours.status == theirs.status == 200
    return "sequence_id" in question.body.decode(errors="replace") and theirs.status == 500


def compare(ports: tuple[int, int], asked_questions: Iterator[questions.Question]) -> int:
    """Ask both servers; return how many answers differ that must not."""
    wrong = count = 0
    for question in asked_questions:
        if _FATAL.search(question.body):
            continue
        count += 1
        theirs, ours = (ask(port, question) for port in ports)
        if not is_same(question, theirs, ours):
            wrong += 1
            print(f"DIFFERENT {question.name}: {question.body[:_SHOWN]!r} {question.headers}")
            print(f"  Triton {str(theirs)[:_SHOWN]}\n  ours   {str(ours)[:_SHOWN]}", flush=True)
    print(f"{count} requests, {wrong} answers differ", flush=True)
    return wrong


def counts_of(port: int, model: str) -> dict[str, Any]:
    """Counters of a model that are the same whatever the time takes."""
    question = questions.Question("", f"/v2/models/{model}/stats", method="GET")
    (stats_of_model,) = ask(port, question).content["model_stats"]
    (stats,) = [stats_of_model] if isinstance(stats_of_model, dict) else stats_of_model
    counts = {name: stats[name] for name in ("inference_count", "execution_count")}
    counts |= {name: value.get("count") for name, value in stats["inference_stats"].items()}
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in stats["batch_stats"]}
    return {**counts, "batches": sizes}


def compare_counts(ports: tuple[int, int]) -> int:
    """Compare the statistics of models that were asked; returns how many differ."""
    wrong = 0
    for model in COUNTED:
        theirs, ours = (counts_of(port, model) for port in ports)
        if theirs != ours:
            wrong += 1
            print(f"DIFFERENT statistics of {model}:\n  Triton {theirs}\n  ours   {ours}")
    print(f"statistics: {wrong} models differ", flush=True)
    return wrong


def main() -> int:
    try:
        site = installed()
    except SystemExit as reason:
        print(f"the genuine Triton: {reason}")
        return 0
    home = site / "pytriton" / "tritonserver"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http_ports, grpc_ports = [], []
        for name in ("triton", "ours"):
            (models := folder / name).mkdir()
            repository.write(models, str(site) if name == "triton" else ".")
            (http_port, grpc_port), (metrics_port, _) = free_ports(), free_ports()
            flags = [f"--model-repository={models}", "--model-control-mode=explicit"]
            flags += ["--load-model=*", "--exit-on-error=false", f"--http-port={http_port}"]
            flags += [f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
            if name == "triton":
                command = [str(home / "bin" / "tritonserver"), *flags]
                command.append(f"--backend-directory={home / 'backends'}")
                libraries = str(site / "nvidia_pytriton.libs")
                environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries}
            else:
                command = [sys.executable, "-m", "pipeline", "repository", *flags]
                command.append("--allow-client-shm=true")
                environment = {**os.environ, "SERVING_LOG_PATH": str(folder)}
            stack.enter_context(running(command, environment, http_port))
            http_ports.append(http_port)
            grpc_ports.append(grpc_port)
        ports = http_ports[0], http_ports[1]
        wrong = compare(ports, questions.good())
        wrong += compare_counts(ports)
        wrong += beside_grpc.compare_all(
            (grpc_ports[0], grpc_ports[1]), list(repository.MODELS), COUNTED, SEED, WRONG
        )
        wrong += compare(ports, questions.sequences())
        wrong += compare(ports, questions.wrong(SEED, WRONG))
        wrong += compare(ports, questions.descriptions(list(repository.MODELS)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
