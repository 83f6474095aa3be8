"""`python -m benchmarks.pings PORT PATH BODY`: small requests one after the other until stdin ends.

A process of its own: who sends hundreds of MiB has no time to measure what others wait. The answer
is one line of JSON: [[when a request was sent, the seconds that it took], ...].
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time

_PAUSE_S = 0.002


def main() -> int:
    port, path, body = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    taken: list[tuple[float, float]] = []
    while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
        start = time.monotonic()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        taken.append((start, time.monotonic() - start))
    print(json.dumps(taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
