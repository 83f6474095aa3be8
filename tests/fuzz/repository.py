"""`python -m fuzz.repository`: models that come and go under requests; checks each answer.

Each model has an operator that loads and unloads it, adds versions and sends configurations that
are wrong, while callers ask all models and an ensemble over HTTP. An answer is right, and of a
version that its model had while the request ran. A request fails only if its model was not loaded
at some moment of that time: a load of a model that is there fails no request.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any

from doubles import http
from repositories import add_ensemble, add_identity, control, serving

from fuzz.campaign import campaign, parser_of

_MODELS = ("a", "b")
_ENSEMBLE = "both"  # of the first model
_CHANGES = 12  # of each model
_CALLERS = 6
_PATIENCE_S = 30.0
_ABSENT = ""  # in the place of a version
_CONFIG = """
dynamic_batching { max_queue_delay_microseconds: %d }
parameters { key: "execute_delay_ms" value { string_value: "%d" } }
"""


class Life:
    """The versions by which a model may answer, from each time on."""

    def __init__(self) -> None:
        self._times = [(0.0, frozenset({_ABSENT}))]

    @property
    def now(self) -> frozenset[str]:
        return self._times[-1][1]

    def may(self, versions: Collection[str]) -> None:
        self._times.append((time.monotonic(), frozenset(versions)))

    def during(self, began: float) -> frozenset[str]:
        """Return the versions since `began`."""
        times = list(self._times)
        first = max(place for place, (at, _) in enumerate(times) if at <= began)
        return frozenset().union(*(versions for _, versions in times[first:]))


class Operator:
    """Changes one model, one change after the other."""

    def __init__(self, rng: random.Random, folder: Path, name: str) -> None:
        self.name, self.life = name, Life()
        self._rng, self._folder = rng, folder
        config = _CONFIG % (rng.choice((0, 3_000, 20_000)), rng.choice((0, 1, 10)))
        self._version = 1
        add_identity(folder, name, 1, most=rng.choice((8, 12)), more=config)

    def change(self, server: Any, complain: Callable[[str], None]) -> None:
        kind = self._rng.choice(("load", "load", "version", "version", "other", "wrong", "unload"))
        if kind == "unload" and self.life.now != {_ABSENT}:
            self._ask(server, "unload", {_ABSENT}, complain)
        elif kind == "wrong":
            status, text = control(server, self.name, "load", config=json.dumps({"backend": "no"}))
            if status == HTTPStatus.OK or not text:
                complain(f"{self.name}: a wrong configuration was loaded: {status}, {text}")
        else:
            self.load(server, complain, kind)

    def load(self, server: Any, complain: Callable[[str], None], kind: str = "load") -> None:
        parameters = {}
        if kind == "version":
            self._version += 1
            (self._folder / self.name / str(self._version)).mkdir()
        elif kind == "other":
            config = {"backend": "identity", "max_batch_size": self._rng.choice((8, 10, 16))}
            for side in ("input", "output"):
                tensor = {"name": f"{side.upper()}0", "data_type": "TYPE_FP32", "dims": [-1]}
                config[side] = [tensor]
            parameters["config"] = json.dumps(config)
        self._ask(server, "load", {str(self._version)}, complain, **parameters)

    def _ask(
        self, server: Any, what: str, then: set[str], complain: Callable[[str], None], **more: str
    ) -> None:
        self.life.may(self.life.now | then)
        status, text = control(server, self.name, what, **more)
        if status != HTTPStatus.OK:
            complain(f"{what} of {self.name}: {status}, {text}")
        self.life.may(then)


def ask(rng: random.Random, server: Any, operator: Operator, model: str) -> str:
    """Ask a model or an ensemble that begins with it; return what is wrong with the answer."""
    now = sorted(operator.life.now - {_ABSENT})
    version = rng.choice(now) if now and model == operator.name and rng.random() < 0.3 else ""
    where = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    values = [float(rng.randrange(1 << 20)) for _ in range(rng.choice((1, 3, 50)))]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    began = time.monotonic()
    status, _, answer = http(server, "POST", f"{where}/infer", {"inputs": [tensor]})
    may = operator.life.during(began)
    if version and may != {version}:
        may |= {_ABSENT}
    asked = f"{where}, which may be {sorted(may)}"
    if status != HTTPStatus.OK:
        return "" if _ABSENT in may else f"{asked}: {status}, {answer}"
    if answer["outputs"][0]["data"] != values:
        return f"{asked}: the outputs are of another request: {answer}, not {values}"
    if model == operator.name and answer["model_version"] not in may & {version or "", *may}:
        return f"{asked}: version {answer['model_version']} answered"
    if version and answer["model_version"] != version:
        return f"{asked}: version {answer['model_version']} answered"
    return ""


def run(seed: int) -> list[str]:
    """Return the defects that the case of a seed shows."""
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder, rng = Path(name), random.Random(f"repository {seed}")
        operators = [Operator(rng, folder, model) for model in _MODELS]
        add_ensemble(folder, _ENSEMBLE, operators[0].name)
        with serving(folder) as server:
            for operator in operators:
                operator.load(server, findings.append)
            status, text = control(server, _ENSEMBLE, "load")
            if status != HTTPStatus.OK:
                findings.append(f"load of the ensemble: {status}, {text}")
            _storm(seed, server, operators, findings)
            for operator in operators:
                operator.load(server, findings.append)
                findings += filter(None, [ask(rng, server, operator, operator.name)])
                operator.change(server, findings.append)
            for model in (_ENSEMBLE, *_MODELS):
                control(server, model, "unload")
            findings += _left(server)
    return findings


def _storm(seed: int, server: Any, operators: list[Operator], findings: list[str]) -> None:
    """Let operators and callers work at the same time, until the operators are ready."""
    is_over = threading.Event()

    def operate(operator: Operator) -> None:
        for _ in range(_CHANGES):
            operator.change(server, findings.append)

    def call(number: int) -> None:
        rng = random.Random(f"repository {seed} caller {number}")
        while not is_over.is_set():
            operator = rng.choice(operators)
            has_ensemble = operator is operators[0] and rng.random() < 0.3
            wrong = ask(rng, server, operator, _ENSEMBLE if has_ensemble else operator.name)
            if wrong:
                findings.append(wrong)

    def guarded(work: Callable[..., None], *given: Any) -> None:
        try:
            work(*given)
        except Exception:  # a server that does not answer: a finding
            findings.append(traceback.format_exc(limit=4))

    workers = [threading.Thread(target=guarded, args=(operate, each)) for each in operators]
    callers = [threading.Thread(target=guarded, args=(call, each)) for each in range(_CALLERS)]
    for thread in (*workers, *callers):
        thread.start()
    for thread in workers:
        thread.join()
    is_over.set()
    for thread in callers:
        thread.join()


def _left(server: Any) -> list[str]:
    """Return what does not end after the last model was unloaded."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        index = http(server, "POST", "/v2/repository/index", {})[2]
        states = {each["name"]: each["state"] for each in index if each.get("state")}
        if set(states.values()) <= {"UNAVAILABLE"}:
            return []
        if time.monotonic() > ends:
            return [f"models are still there: {states}"]
        time.sleep(0.05)


def main() -> int:
    parser = parser_of("repository", __doc__)
    return campaign(parser.prog, parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
