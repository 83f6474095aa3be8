"""Ask the running service over gRPC: python rpc_client.py [host:port]"""

from __future__ import annotations

import sys

from samples import SAMPLES, read_scores, report

from pipeline import PipelineClient

ENDPOINT = "127.0.0.1:18070"
FETCH = ["prediction", "bow", "cnn"]
TIMEOUT_S = 30


def ask(client: PipelineClient, review: str) -> dict[str, float]:
    """Return the scores of a review (`samples.read_scores`). Raises PipelineError: refused."""
    response = client.predict({"words": review}, fetch=FETCH, timeout=TIMEOUT_S)
    response.raise_for_error()
    return read_scores(response.key, response.value)


def main() -> None:
    with PipelineClient() as client:
        client.connect([sys.argv[1] if len(sys.argv) > 1 else ENDPOINT])
        right = sum(report(sample, ask(client, sample.text)) for sample in SAMPLES)
    print(f"{right} of {len(SAMPLES)} verdicts are right")


if __name__ == "__main__":
    main()
