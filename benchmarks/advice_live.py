"""`python -m benchmarks.advice_live`: do a few trials find what a sweep of all settings finds?

Three services with one Op that matters: it waits as for a card, computes with numpy, or computes in
Python in processes. All settings of each are tried, then `analyse --serve`'s search looks for the
best; its best and that of the sweep are tried again, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.cli.advise import space_of
from pipeline.tuning.load import read_load
from pipeline.tuning.search import Search
from pipeline.tuning.settings import Goal, Settings, Space, Trial
from pipeline.tuning.tried_server import Bench, Script

_LEAST = 0.9  # of the sweep's best
_MOST_TIME = 0.1  # of the sweep's
_MOST_TRIALS = 20
_BATCHES = ("card", "numpy")
_SERVICE = """
import time
from pathlib import Path
import numpy as np
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Model(Op):
    def preprocess(self, input_dicts):
        (told,) = input_dicts.values()
        return {"x": np.array([float(told["x"])])}

    def process(self, feed):
        feed = feed[0]
        @WORK@
        return feed

    def postprocess(self, input_dicts, fetch):
        return {"y": str(fetch["x"][0])}

server = PipelineServer("tried")
server.set_response_op(ResponseOp(Model("model", RequestOp())))
server.prepare_server(str(Path(__file__).with_name("config.yml")))
if __name__ == "__main__":
    server.run_server()
"""
_WORK = {
    "card": "time.sleep(0.008 + 0.0002 * len(feed['x']))",
    "numpy": "np.linalg.eigvalsh(np.ones((96, 96)) + len(feed['x']))",
    "python": "sum(range(40_000))",
}
_CONFIG = "rpc_port: 0\nhttp_port: 0\ndag: {{is_thread_op: {is_thread}}}\n"
_REQUEST = {"path": "/tried/prediction", "body": {"key": ["x"], "value": ["0.5"]}}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one service; times are in seconds, figures in requests/s."""

    name: str
    choices: int
    sweep_s: float
    trials: int
    search_s: float
    share: float  # of the sweep's best, side by side

    @property
    def is_good(self) -> bool:
        """True if the search was as good, and as quick, as it is to be."""
        return self.share >= _LEAST and self.search_s <= _MOST_TIME * self.sweep_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice_live")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each trial's load")
    parser.add_argument("--most-workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="of the two bests, side by side")
    parser.add_argument("services", nargs="*", default=list(_WORK))
    given = parser.parse_args()
    print("| service | choices | sweep | search | best of the search : of the sweep |")
    print("|---|---|---|---|---|")
    comparisons = []
    for name in given.services:
        with TemporaryDirectory(prefix="advice-") as folder:
            comparison = _compare(name, Path(folder), given)
        comparisons.append(comparison)
        print(
            f"| {name} | {comparison.choices} | {comparison.sweep_s:.0f} s "
            f"| {comparison.trials} trials, {comparison.search_s:.0f} s | {comparison.share:.2f} |",
            flush=True,
        )
    return 0 if all(comparison.is_good for comparison in comparisons) else 1


def _compare(name: str, folder: Path, given: argparse.Namespace) -> Comparison:
    script = folder / "web_server.py"
    script.write_text(_SERVICE.replace("@WORK@", _WORK[name]))
    (folder / "config.yml").write_text(_CONFIG.format(is_thread=name in _BATCHES))
    (folder / "load.jsonl").write_text(json.dumps(_REQUEST) + "\n")
    made = Script((str(script),))
    service = made.describe()
    space, start = space_of(service, given.clients, given.most_workers, 32)
    requests = read_load(folder / "load.jsonl")
    names = tuple(op.name for op in service.ops)
    bench = Bench(made, names, requests, given.clients, seconds=given.seconds)
    began = time.monotonic()
    swept = [bench.trial(settings) for settings in space.all()]
    sweep_s = time.monotonic() - began
    trials, search_s = _searched(space, start, bench)
    bests = [_best(swept), _best(trials)]
    rates: list[list[float]] = [[], []]
    for _ in range(given.rounds):
        for settings, rate in zip(bests, rates, strict=True):
            rate.append(bench.trial(settings).per_s)
    of_sweep, of_search = map(statistics.median, rates)
    return Comparison(name, len(swept), sweep_s, len(trials), search_s, of_search / of_sweep)


def _searched(space: Space, start: Settings, bench: Bench) -> tuple[Sequence[Trial], float]:
    search, began = Search(space, Goal(), start, _MOST_TRIALS), time.monotonic()
    while (settings := search.propose()) is not None:
        search.tell(bench.trial(settings))
    return search.trials, time.monotonic() - began


def _best(trials: Sequence[Trial]) -> Settings:
    return max(
        (trial for trial in trials if not trial.problem), key=lambda each: each.per_s
    ).settings


if __name__ == "__main__":
    sys.exit(main())
