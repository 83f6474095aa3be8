"""Another framework with our model. Arguments: `fastapi` or `litserve`; `jpeg` or `imdb`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(f"benchmarks.services.peer_{sys.argv[1]}").serve(sys.argv[2])
