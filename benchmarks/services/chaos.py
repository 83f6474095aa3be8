"""The service of `make chaos`: two branches and a join, all of processes, with poisoned calls.

A call of `process` may crash or hang. Which ones do is drawn from the seed, the request's number,
the Op and the attempt alone, so that the same seed gives the same poison, whatever the timing.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
import threading
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

OPS = {"left": 2, "right": 3, "join": 2}
"""Workers by Op."""

_BATCH_SIZE = 4  # of the right branch
_MOST_WORKERS = max(OPS.values())
_MOST_ATTEMPTS = 255

Bytes = npt.NDArray[np.uint8]


class Poison(enum.IntEnum):
    """The fault of a call of `process`."""

    CRASH = 0
    HANG = 1


class Recipe(msgspec.Struct, frozen=True):
    """Settings of the service. A request with a negative number is never poisoned.

    `every`: of so many attempts of a request at an Op one crashes and one hangs; `doomed_every`:
    of so many requests one is poison in every attempt. `board`: a file of `Board`, for `requests`.
    """

    seed: int
    every: int
    doomed_every: int
    retry: int
    timeout_ms: int
    deadline_ms: int
    board: str
    requests: int


@dataclass(frozen=True, slots=True)
class Doom:
    """The Op and the fault of all attempts of a request."""

    op: str
    poison: Poison


def doom_of(recipe: Recipe, number: int) -> Doom | None:
    """None for a request that is not always poison."""
    draw = _draw(recipe.seed, "doom", number)
    if number < 0 or draw % recipe.doomed_every:
        return None
    draw //= recipe.doomed_every
    return Doom([*OPS][draw // 2 % len(OPS)], Poison(draw % 2))


def poison_of(recipe: Recipe, op: str, number: int, attempt: int) -> Poison | None:
    """Return the poison of an attempt (0 is the first) of a request at an Op."""
    if number < 0:
        return None
    doom = doom_of(recipe, number)
    if doom is not None and doom.op == op:
        return doom.poison
    draw = _draw(recipe.seed, op, number, attempt) % recipe.every
    return Poison(draw) if draw < len(Poison) else None


def _draw(*of: object) -> int:
    digest = hashlib.blake2b(repr(of).encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def answer_to(content: bytes) -> bytes:
    """Return the service's answer."""
    array = np.frombuffer(content, np.uint8)
    return (mirrored(array) ^ shifted(array)).tobytes()


def mirrored(content: Bytes) -> Bytes:
    return content[..., ::-1]


def shifted(content: Bytes) -> Bytes:
    return content + np.uint8(1)


class Board:
    """A record that outlives the workers: their pids, their poison, the attempts of requests.

    It is a file that all processes map. Every cell has one writer at a time.
    """

    def __init__(self, path: str, requests: int) -> None:
        layout = np.dtype(
            [
                ("pids", "i4", (len(OPS), _MOST_WORKERS)),
                ("struck", "i4", (len(OPS), _MOST_WORKERS, len(Poison))),
                ("attempts", "u1", (len(OPS), requests)),
            ]
        )
        if not Path(path).exists():
            Path(path).write_bytes(bytes(layout.itemsize))
        self._cells = np.memmap(path, dtype=layout, mode="r+", shape=(1,))[0]

    def enter(self, op: str, worker: int) -> None:
        self._cells["pids"][_row(op), worker] = getpid()

    def pid(self, op: str, worker: int) -> int:
        """Of the worker that has this place; 0 if none ever had."""
        return int(self._cells["pids"][_row(op), worker])

    def count_attempt(self, op: str, number: int) -> int:
        """Return the number of earlier attempts."""
        attempts = self._cells["attempts"][_row(op)]
        before = int(attempts[number])
        attempts[number] = min(before + 1, _MOST_ATTEMPTS)
        return before

    def count_strike(self, op: str, worker: int, poison: Poison) -> None:
        self._cells["struck"][_row(op), worker, poison] += 1

    def strikes(self, poison: Poison) -> int:
        """Of all workers."""
        return int(self._cells["struck"][:, :, poison].sum())


def _row(op: str) -> int:
    return [*OPS].index(op)


class Poisoned(Op):
    """Ops of which any call of `process` may be the worker's last."""

    recipe: Recipe

    def init_op(self) -> None:
        self.worker = self.concurrency_idx or 0
        self.board = Board(self.recipe.board, self.recipe.requests)
        self.board.enter(self.name, self.worker)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        for number in feed["number"].tolist():
            self._strike_if_poisoned(number)
        return {"number": feed["number"], "content": self.work(feed)}

    def work(self, feed: Any) -> Bytes:
        raise NotImplementedError

    def _strike_if_poisoned(self, number: int) -> None:
        if number < 0:
            return
        attempt = self.board.count_attempt(self.name, number)
        poison = poison_of(self.recipe, self.name, number, attempt)
        if poison is None:
            return
        self.board.count_strike(self.name, self.worker, poison)
        if poison is Poison.CRASH:
            ctypes.string_at(0)
        threading.Event().wait()


class Left(Poisoned):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, request),) = input_dicts.items()
        content = np.frombuffer(request["content"], np.uint8)
        # With an axis in front: samples of the same size can be merged.
        return {"number": request["number"], "content": content[np.newaxis]}

    def work(self, feed: Any) -> Bytes:
        return mirrored(feed["content"])


class Right(Left):
    def work(self, feed: Any) -> Bytes:
        return shifted(feed["content"])


class Join(Poisoned):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        left, right = input_dicts["left"], input_dicts["right"]
        if left["number"] != right["number"]:
            raise ValueError(f"parts of two requests: {left['number']} and {right['number']}")
        content = left["content"], right["content"]
        return {"number": left["number"], "left": content[0], "right": content[1]}

    def work(self, feed: Any) -> Bytes:
        both: Bytes = feed["left"] ^ feed["right"]
        return both

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        answer = {"number": fetch_data["number"], "content": fetch_data["content"].tobytes()}
        return answer, None, ""


def _serve(recipe: Recipe) -> None:
    Poisoned.recipe = recipe
    read = RequestOp()
    left, right = Left(name="left", input_ops=[read]), Right(name="right", input_ops=[read])
    join = Join(name="join", input_ops=[left, right])
    join.set_pack_tensor_format(True)
    server = PipelineServer(name="chaos")
    server.set_response_op(ResponseOp(input_ops=[join]))
    common = {"timeout": recipe.timeout_ms, "retry": recipe.retry}
    ops: dict[str, dict[str, Any]] = {
        name: {"concurrency": workers, **common} for name, workers in OPS.items()
    }
    ops["right"]["batch_size"] = _BATCH_SIZE
    server.prepare_server(
        yml_dict={
            "http_port": HTTP_PORT,
            "rpc_port": GRPC_PORT,
            "timeout": recipe.deadline_ms,
            "dag": {"is_thread_op": False},
            "op": ops,
        }
    )
    server.run_server()


if __name__ == "__main__":
    _serve(msgspec.json.decode(sys.argv[1], type=Recipe))
