"""Run the cascade, ask it over gRPC and HTTP, show which models ran, and stop it: `make cascade`.

Exits with status 1 if an answer is wrong, or if the second model ran for all reviews or for none.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterable

from web_server import server  # adds the folder of `samples` to the path

from pipeline import PipelineClient

from samples import SAMPLES, read_scores, verdict  # isort: skip  # in imdb_ensemble

Scores = dict[str, float]
HOST = "127.0.0.1"
TIMEOUT_S = 30


def main() -> int:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def over_http(review: str) -> Iterable[list[str]]:
        url = f"http://{HOST}:{server.http_port}/cascade/prediction"
        body = json.dumps({"key": ["words"], "value": [review]}).encode()
        with direct.open(url, body, timeout=TIMEOUT_S) as answer:
            reply = json.load(answer)
        return reply["key"], reply["value"]

    with server, PipelineClient() as client:
        client.connect([f"{HOST}:{server.rpc_port}"])

        def over_grpc(review: str) -> Iterable[list[str]]:
            response = client.predict({"words": review}, timeout=TIMEOUT_S)
            response.raise_for_error()
            return list(response.key), list(response.value)

        right = all([ask_all("over gRPC", over_grpc), ask_all("over HTTP", over_http)])
        with direct.open(f"http://{HOST}:{server.http_port}/status.json") as status:
            ops = json.load(status)["ops"]
    print()
    for op in ops:
        for edge in op["edges"]:
            total = edge["sent"] + edge["absent"]
            print(f"{op['name']} -> {edge['to']}: {edge['sent']} of {total} answers")
    to_cnn = next(edge for op in ops for edge in op["edges"] if edge["to"] == "cnn")
    if not (right and to_cnn["sent"] and to_cnn["absent"]):
        print("demo failed: see above", file=sys.stderr)
        return 1
    print("demo passed: every answer is right, and cnn ran where bow was unsure")
    return 0


def ask_all(title: str, ask: Callable[[str], Iterable[list[str]]]) -> bool:
    """Ask for every sample and print the answers; return whether all are right."""
    print(f"\n{title}:")
    right = True
    for sample in SAMPLES:
        scores: Scores = read_scores(*ask(sample.text))
        answer = verdict(scores.pop("prediction"))
        models = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        print(f"  {answer} ({models}): {sample.text:.60}")
        right = right and (answer == "positive") == sample.positive
    return right


if __name__ == "__main__":
    sys.exit(main())
