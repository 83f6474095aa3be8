"""Ask the running service over HTTP, with the standard library: python http_client.py [URL]"""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen

from samples import SAMPLES, read_scores, report

URL = "http://127.0.0.1:18071/imdb/prediction"
TIMEOUT_S = 30


def ask(url: str, review: str) -> dict[str, float]:
    """Return the scores of a review (`samples.read_scores`). Raises RuntimeError: refused."""
    body = json.dumps({"key": ["words"], "value": [review]}).encode()
    request = Request(url, data=body, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=TIMEOUT_S) as reply:
        answer = json.load(reply)
    if answer["err_no"] != 0:
        raise RuntimeError(
            f"the service answered with error {answer['err_no']}: {answer['err_msg']}"
        )
    return read_scores(answer["key"], answer["value"])


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else URL
    right = sum(report(sample, ask(url, sample.text)) for sample in SAMPLES)
    print(f"{right} of {len(SAMPLES)} verdicts are right")


if __name__ == "__main__":
    main()
