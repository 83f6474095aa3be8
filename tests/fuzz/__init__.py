"""A model-based fuzzer: random graphs, configurations, requests and faults, checked by a model.

    PYTHONPATH=tests python -m fuzz --seconds 60        (`make fuzz` runs all)

A new capability of the engine is added in five places:

- `case`: the parts of a case: Ops, requests, faults. Plain data, printed with every finding.
- `generator`: makes a random case from a seed. `Features` has one switch for each capability.
- `model`: the outcomes that a request may have, by a plain evaluation of its graph, without the
  engine. Where several are right (the first of two branches, a deadline that may be met or
  missed) it returns exactly these.
- `ops`: the users' Ops, which act out the faults and compute the same values as the model.
- `virtual` and `real` run a case. `virtual` uses the engine alone on a virtual clock: thousands of
  cases a minute, each reproducible. `real` uses servers with threads, processes and frontends.

`checker` compares, and checks that all gauges are 0 at the end. `mutants` puts known defects back
into the engine; `test_storms` checks that the fuzzer finds each of them.

Other fuzzers, each with a command of its own (`python -m fuzz.NAME`):

- `lane`: HTTP connections, with and without the fast lane.
- `streams`, `sockets`: graphs with Ops that answer in parts; the same over WebSockets.
- `sequences`: graphs with Ops that have sequences.
- `batches`: one Op with `batching: dynamic`.
- `loads`: overload by several kinds of requests.
- `upstream`: `client_type: openai` and servers that fail.
- `repository`: models that are loaded and unloaded under requests.
- `together`: random models of a repository, each asked by several callers at once.
- `stored`: inputs by reference, in a store that fails.
- `parsers`: damaged bytes at every parser of Python.
- `coverage`: the same parsers, by a fuzzer that follows their branches.
- `edge`: the gateway compared with the embedded edge.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `PYTHONPATH=tests python -m fuzz` also needs the modules that the tests share.
if (_support := str(Path(__file__).parents[1] / "support")) not in sys.path:
    sys.path.append(_support)
