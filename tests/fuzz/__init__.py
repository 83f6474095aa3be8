"""A model-based fuzzer: random graphs, configurations, requests and faults, held to a plain model.

    PYTHONPATH=tests python -m fuzz --seconds 60        (`make fuzz`)

One capability of the engine is learnt in five places, a file each:

- `case`: what a case is made of: Ops, requests, faults. Plain data, printed with every finding.
- `generator`: a random case for a seed. `Features` are switches, one a capability.
- `model`: the outcomes that a request may have, by a plain evaluation of its graph. It knows
  nothing of the engine. Where several are right (the first of two branches, a deadline that may
  or may not be met) it says all of them, and no more.
- `ops`: the users' Ops: they act out the faults, and compute what the model computes.
- `virtual` and `real` run a case: on the engine alone with a virtual clock, thousands a minute,
  each the same every time; on real servers with threads, processes and doors.

`checker` compares, and looks at all that has to be 0 again afterwards. `mutants` puts known defects
back into the engine: a fuzzer that does not find them is of no use, see `test_storms`.

`lane` is another one, of HTTP connections: `python -m fuzz.lane`; so is `streams`, of graphs with
Ops that answer in parts: `python -m fuzz.streams`, and by WebSockets `python -m fuzz.sockets`;
`sequences`, of graphs with Ops that have sequences:
`python -m fuzz.sequences`; and `batches`, of one Op with `batching: dynamic`:
`python -m fuzz.batches`; and `loads`, of overload by several kinds of requests:
`python -m fuzz.loads`; `upstream`, of `client_type: openai` and servers that fail. `edge` compares
the gateway with the embedded edge: `python -m fuzz.edge`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `PYTHONPATH=tests python -m fuzz`: what the tests share lies beside this folder.
if (_support := str(Path(__file__).parents[1] / "support")) not in sys.path:
    sys.path.append(_support)
