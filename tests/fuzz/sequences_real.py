"""`python -m fuzz.sequences_real`: the cases of `fuzz.sequences` on threads and processes.

The clock is real: a seed gives the same case, but not the same order of events. Processes
end themselves, or the fuzzer kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from streaming import serving

from fuzz import pacing, real
from fuzz.campaign import campaign, parser_of
from fuzz.sequence_cases import REAL, Case, Judge, Script, built
from fuzz.sequences import Callers, case_of, left_over

_PATIENCE_S = 40.0
_HANG_S = 1.5
_REPEATS = 2


class RealWorld:
    """Real time; a crash is a SIGKILL."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang(self, seconds: float | None) -> None:
        time.sleep(_HANG_S)

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Complaints:
    """A file in which each process writes its findings."""

    def __init__(self) -> None:
        handle, path = tempfile.mkstemp()
        os.close(handle)
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND)
        os.unlink(path)

    def __getstate__(self) -> dict[str, str]:
        """Return the state for a process of this machine that was not forked from this one."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._handle}"}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._handle = os.open(state["path"], os.O_RDWR | os.O_APPEND)

    def __call__(self, text: str) -> None:
        os.write(self._handle, f"{text}\n".encode())

    def read(self) -> list[str]:
        return os.pread(self._handle, 2**16, 0).decode(errors="replace").splitlines()

    def close(self) -> None:
        os.close(self._handle)


def run(case: Case) -> list[str]:
    """Return the defects of the engine that this case shows."""
    complaints = Complaints()
    try:
        return asyncio.run(_run(case, complaints))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        complaints.close()


async def _run(case: Case, complaints: Complaints) -> list[str]:
    loop = asyncio.get_running_loop()
    wrong: list[str] = []
    loop.set_exception_handler(lambda _, context: wrong.append(f"on the loop: {context}"))
    _, response_op = built(case, Script(case, RealWorld(), complaints))
    config = real.on_ray(case.config())
    async with serving(response_op.get_input_ops()[0], response_op, **config) as served:
        engine = served.engine
        pacing.pace(engine, case)  # type: ignore[arg-type]
        callers = Callers(engine, case, loop, wrong.append)
        for at_s, name in case.kills:
            loop.call_later(at_s, _kill, engine, name, random.Random(f"{case.origin} {at_s}"))
        await _until(lambda: callers.is_over)
        wrong += Judge(case, callers.order, callers.endings).findings()
        await _until(lambda: not left_over(engine))
        wrong += left_over(engine)
    return wrong + complaints.read()


def _kill(engine: Any, name: str, rng: random.Random) -> None:
    """Kill a process of an Op."""
    node = next(node for node in engine.executor.nodes.values() if node.name == name)
    alive = [worker.child.pid for worker in node.workers.pool.alive if worker.is_up]
    if alive:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(rng.choice(sorted(alive)), signal.SIGKILL)


async def _until(is_so: Callable[[], bool]) -> None:
    """Wait until callers have come and `is_so`, or until the patience ends."""
    ends = time.monotonic() + _PATIENCE_S
    await asyncio.sleep(0.05)
    while not is_so() and time.monotonic() < ends:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.02)


def main() -> int:
    parser = parser_of("sequences_real", __doc__)
    parser.add_argument("--without", default="", help="processes,faults,leaves,idle,ways,state")
    parser.add_argument("--only", default="", help="of the cases: these requests, with commas")
    parser.add_argument("--ray", action="store_true", help="actors in the place of processes")
    given = parser.parse_args()
    if given.ray:
        real.start_ray()

    def run_again(seed: int) -> list[str]:
        case = case_of(seed, given, scale=REAL)
        findings = run(case)
        return findings and [f"again: {[bool(run(case)) for _ in range(_REPEATS)]}", *findings]

    return campaign(parser.prog, given, run_again)


if __name__ == "__main__":
    sys.exit(main())
