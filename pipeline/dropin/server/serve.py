"""`python -m paddle_serving_server.serve`: models as services, by `pipeline.serve`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

_INSTEAD = {
    "stop": "send SIGTERM or SIGINT to the server you mean: `kill PID`. It drains and takes its "
    "workers with it. There is no ProcessInfo.json; `ss -ltnp` shows who has a port.",
    "kill": "send SIGKILL to the server you mean: `kill -9 PID`. Its workers go with it.",
    "check": "it tried out an installation by services of its own. `python -m pipeline check "
    "config.yml` says what is wrong with your configuration and its model files, `python -m "
    "pipeline graph SCRIPT` with your script, both without starting anything; `python -c 'import "
    "paddle.inference'` and `python -c 'import onnxruntime'` whether these engines are installed.",
}
_WRONG_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a model, or name the replacement of a command; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    instead = _INSTEAD.get(words[0]) if words else None
    if instead is not None:
        sys.stderr.write(f"there is no command {words[0]!r} here: {instead}\n")
        return _WRONG_USAGE
    # Imported here because it imports the whole server.
    status: int = importlib.import_module("pipeline.serve").main(words)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
